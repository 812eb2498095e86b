package lifecycle

import (
	"encoding/json"
	"fmt"
	"os"
	"reflect"
	"strings"
	"time"

	p "github.com/agenthandoff/handoff/protocol"
)

// breaker plays the words of a scenario that are about breakers. A supervisor is at hand: what an
// append ends counts at once, and an offer that is a probe has its place.
func (g *stage) breaker(word string, args []string) (said string, ok bool) {
	g.t.Helper()
	switch word {
	case "breaker": // of all agents
		settings := map[string]any{}
		for _, arg := range args {
			key, value, _ := strings.Cut(arg, "=")
			settings[key] = g.value(value)
		}
		if g.d.Fleet == nil {
			g.d.Fleet = &p.Fleet{}
		}
		body, _ := json.Marshal(settings)
		g.d.Fleet.Breaker = nil
		if err := json.Unmarshal(body, &g.d.Fleet.Breaker); err != nil {
			g.t.Fatal(err)
		}
	case "route_by": // of all agents
		if g.d.Fleet == nil {
			g.d.Fleet = &p.Fleet{}
		}
		g.d.Fleet.Routing = &p.FleetRouting{By: p.RouteBy(args[0])}
	case "others": // AGENT END N: so many other handoffs end so
		for i := range g.numbers(args[2:])[0] {
			g.otherSeq++
			ticket := fmt.Sprintf("00000000-0000-4000-8000-%012d", int(g.otherSeq))
			g.fold(Attempt{Agent: args[0], Ticket: ticket, Fence: g.otherSeq, End: p.AttemptEnd(args[1])})
			_ = i
		}
	case "other_probe": // AGENT: another handoff is its probe
		h := g.d.Health[args[0]]
		h.Health, _ = TakeProbe(h.Health, "00000000-0000-4000-8000-00000000000f", g.d.BreakerPolicy(args[0]), func(string) bool { return false }, g.now)
		g.d = g.d.WithHealth(args[0], h)
	case "other_probe_ends": // AGENT END
		g.otherSeq++
		g.fold(Attempt{Agent: args[0], Ticket: "00000000-0000-4000-8000-00000000000f", Fence: g.otherSeq, End: p.AttemptEnd(args[1])})
	case "health":
		h := g.d.Health[args[0]].Health
		state, until := Breaker(h, g.d.BreakerPolicy(args[0]), g.now)
		said := fmt.Sprintf("%s failed=%d", state, len(h.Failures))
		if !until.IsZero() {
			said += fmt.Sprintf(" +%s", until.Sub(g.now).Round(time.Second))
		}
		return said, true
	case "due":
		due := BreakerDue(g.state, g.query())
		if due.IsZero() {
			return "nothing", true
		}
		return fmt.Sprintf("+%s", due.Sub(g.now).Round(time.Second)), true
	default:
		return "", false
	}
	return "", true
}

func (g *stage) fold(a Attempt) {
	h := g.d.Health[a.Agent]
	h.Health = Fold(h.Health, a, g.d.BreakerPolicy(a.Agent), g.now)
	g.d = g.d.WithHealth(a.Agent, h)
}

// count does what a supervisor does about the breaker of an append.
func (g *stage) count(events []p.Event) {
	if len(events) == 0 {
		return
	}
	if a, ended := AttemptEnded(&g.before, &g.state, events); ended {
		g.fold(a)
	}
	if IsProbing(g.state) && g.state.Phase == p.Pending && !g.state.Held() {
		h := g.d.Health[g.state.Agent]
		h.Health, _ = TakeProbe(h.Health, g.state.Ticket, g.d.BreakerPolicy(g.state.Agent), func(string) bool { return false }, g.now)
		g.d = g.d.WithHealth(g.state.Agent, h)
	}
}

// vectorEvent is the event of a type in the vectors of the wire.
func vectorEvent(kind p.EventType, m p.Meta) p.Event {
	body, err := os.ReadFile("../../protocol/testdata/vectors/valid/event-" + strings.ReplaceAll(string(kind), "_", "-") + ".json")
	if err != nil {
		panic(err)
	}
	e := p.NewEvent(kind)
	if err := json.Unmarshal(body, &struct{ Input p.Event }{e}); err != nil {
		panic(err)
	}
	reflect.ValueOf(e).Elem().FieldByName("Meta").Set(reflect.ValueOf(m))
	return e
}
