package broker_test

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/brokertest"
	"github.com/agenthandoff/handoff/protocol"
)

// What each act asks of the engine. Most handoffs are hops of relays: what a hop
// costs decides what a machine can do. A pull and the removal from the queue come
// with every offer and are not counted. A watch of the directory is worth it for
// who decides about many, and a burden for a process that does one thing: so it
// must not begin where one profile is enough. A process without one reads the
// agent's limit when it pulls.
func TestRequests(t *testing.T) {
	ctx := t.Context()
	engine := brokertest.NewCountingEngine(brokertest.NewMemory())
	now := time.Now()
	b, err := broker.New(engine, broker.Config{Now: func() time.Time { return now }})
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{"lead", "coder", "tester"} {
		if err := b.PutProfile(ctx, protocol.Profile{ID: id, EscalatesTo: "lead"}); err != nil {
			t.Fatal(err)
		}
	}
	ok := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	cost := func(what, want string) {
		t.Helper()
		now = now.Add(300 * time.Millisecond) // a profile that was just read would do for what comes next; the settings of the fleet do
		if got := engine.TakeCounts(); got != want {
			t.Errorf("%s asks for: %s; it was: %s", what, got, want)
		}
	}
	to := func(agent string) protocol.Package {
		return protocol.Package{Source: "lead", Target: protocol.Target{Agent: agent}, Reason: "test", Task: protocol.Task{Description: "test"}}
	}
	delegate := func(agent string) protocol.Package {
		p := to(agent)
		p.Type, p.Return = protocol.Delegation, &protocol.ReturnProtocol{TimeoutMS: 60_000}
		return p
	}
	submit := func(p protocol.Package) broker.Head {
		t.Helper()
		in, err := b.Prepare(ctx, p)
		ok(err)
		head, err := b.Submit(ctx, in)
		ok(err)
		return head
	}
	accept := func(agent string) *broker.Claim {
		t.Helper()
		return claim(t, b, protocol.Holder{ID: protocol.NewTicket(), Agent: agent, LeaseMS: 60_000, Slots: 1})
	}
	large := json.RawMessage(`"` + fmt.Sprintf("%0*d", protocol.InlineBytesMax, 0) + `"`)

	keyed := to("coder")
	keyed.Key = "k"
	submit(keyed)
	cost("submit", "append 1, fleet 1, offer 1, profile 2") // its source has a profile
	submit(keyed)
	cost("submit again", "append 1, last 1, offer 1, profile 1")
	c := accept("coder")
	cost("accept", "append 1, profile 1")
	ok(c.Complete(ctx, protocol.Result{Command: &protocol.Command{Goto: json.RawMessage(`"tester"`)}}))
	cost("complete and hand off", "append 2, offer 1, profile 1")
	c = accept("tester")
	cost("accept what was handed off", "append 1, profile 1")
	ok(c.Complete(ctx, protocol.Result{}))
	cost("complete", "append 1")

	submit(to("coder"))
	c = accept("coder")
	engine.TakeCounts()
	ok(c.Complete(ctx, protocol.Result{Variables: map[string]json.RawMessage{"x": large}, Command: &protocol.Command{Goto: json.RawMessage(`"tester"`)}}))
	cost("hand off what is large", "append 2, offer 1, profile 1, put blob 2")
	c = accept("tester")
	cost("accept what is large", "append 1, blob 1, profile 1")
	ok(c.Complete(ctx, protocol.Result{}))
	engine.TakeCounts()

	submit(to("coder"))
	c = accept("coder")
	engine.TakeCounts()
	for n := range 3 {
		_, err := c.HandOff(ctx, broker.Child{N: n, Package: delegate("tester")})
		ok(err)
		cost("hand off from within", "append 2, offer 1, profile 1")
	}
	_, err = c.HandOff(ctx, broker.Child{Nth: 1, Package: delegate("tester")})
	ok(err)
	cost("hand off again", "last 1")
	_, err = c.Suspend(ctx, 0, 1)
	ok(err)
	cost("wait for children", "append 1")
	_, err = b.EnsureChildren(ctx, headOf(t, b, c.Ticket))
	ok(err)
	cost("look after three children", "last 4") // one for the head itself
	for range 3 {
		c = accept("tester")
		engine.TakeCounts()
		ok(c.Complete(ctx, protocol.Result{}))
		cost("complete a delegation", "append 1, profile 1")
	}
	head := headOf(t, b, c.Ticket)
	engine.TakeCounts()
	ok(b.EnsureReturn(ctx, head))
	cost("send a return", "append 1, last 1, next 4, offer 1, profile 1")
	accept("coder")
	engine.TakeCounts()
	ok(b.EnsureReturn(ctx, head))
	cost("settle a return", "append 1, last 1")

	submit(to("coder"))
	c = accept("coder")
	engine.TakeCounts()
	ok(c.RollBack(ctx, "no", nil))
	cost("roll back", "append 1") // the submission has just read its source
	submit(to("coder"))
	c = accept("coder")
	engine.TakeCounts()
	ok(c.Release(ctx, "drain", nil))
	cost("release", "append 1, next 1, offer 1")

	group := to("")
	group.Type, group.Target = protocol.Broadcast, protocol.Target{}
	for n := range 100 {
		group.Members = append(group.Members, protocol.Member{Target: protocol.Target{Agent: []string{"coder", "tester"}[n%2]}})
	}
	head = submit(group)
	cost("submit a group of 100", "append 101, directory 2, next 1, offer 100")
	_, err = b.EnsureChildren(ctx, head)
	ok(err)
	cost("look after a group of 100", "last 100")
	_, err = b.CancelTree(ctx, head.Ticket, "lead", "enough")
	ok(err)
	cost("cancel a group of 100", "append 101, last 101")

	head = submit(to("coder"))
	engine.TakeCounts()
	_, err = b.Reroute(ctx, head.Ticket, "tester", "human", "", time.Time{})
	ok(err)
	cost("reroute", "append 1, last 1, next 4, offer 1, profile 1")
	_, err = b.Take(ctx, head.Ticket, protocol.Holder{ID: protocol.NewTicket(), Agent: "coder", LeaseMS: 60_000}, "")
	ok(err)
	cost("take", "append 1, directory 1, last 1, next 5, profile 1")
	_, err = b.Cancel(ctx, head.Ticket, "human", "enough")
	ok(err)
	cost("cancel", "append 1, last 1")
	head = submit(to("coder"))
	engine.TakeCounts()
	_, err = b.RollBack(ctx, head.Ticket, "human", "enough")
	ok(err)
	cost("return", "append 1, last 1, profile 1")
}

func headOf(t *testing.T, b *broker.Broker, ticket string) broker.Head {
	t.Helper()
	head, err := b.Head(t.Context(), ticket, 0)
	if err != nil {
		t.Fatal(err)
	}
	return head
}
