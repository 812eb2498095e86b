//go:build proof

package process

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/jetstream"
	"github.com/agenthandoff/handoff/protocol"
)

// chainLinks is how many agents a chain of these tests has.
const chainLinks = 5

// moment is when the worker of a link is killed.
type moment string

const (
	never         moment = "never"
	beforeAccept  moment = "before it accepts" // the offer is on its connection
	atWork        moment = "at work"
	resultPrinted moment = "its program's result printed"
	resultStored  moment = "its result stored" // and neither its offer acknowledged nor the next link submitted
)

// linkScript is the program of every link. It adds its number to what the link before said, and
// hands on to the next agent. HOLD is where it stops and waits for the end of its worker, $FAILS the
// number of the link that cannot do its work.
const linkScript = `n=${HANDOFF_AGENT##*-}
before=$(sed -n 's/.*"previous":{[^}]*"body":"\([^"]*\)".*/\1/p')
hold() {
	if [ "$HOLD" = "$1" ]; then exec >&- 2>&-; echo $$ >"$DIR/held-$n"; while [ -d "$DIR" ]; do sleep 0.05; done; fi
}
hold work
if [ "$n" = "$FAILS" ]; then echo 'there is no form' >&2; exit 65; fi
next=",\"command\":{\"goto\":\"${HANDOFF_AGENT%-*}-$((n + 1))\"}"
if [ "$n" = 5 ]; then next=; fi
echo "{\"body\":\"${before:+$before }$n\"$next}"
hold printed`

// leadScript is the program of the source: it writes down each return.
const leadScript = `jq -r '.returned | "\(.handoff_id) \(.outcome) \(.last_id) \(.result.body // .message)"' >>"$DIR/told" && echo seen`

// chain is a delegation to five agents, each of which is a process.
type chain struct {
	t    *testing.T
	b    *broker.Broker
	url  string
	name string
	dir  string
	env  []string
	link string // the script
}

// newChain registers the agents of a chain, and starts the worker of its source. An offer that
// a killed worker had is delivered again after 2 s in place of 30.
func newChain(t *testing.T, ctx context.Context, url, name string, env ...string) *chain {
	t.Helper()
	engine, err := jetstream.Dial(ctx, jetstream.DialConfig{URL: url, Name: name, Config: jetstream.Config{AckWait: 2 * time.Second}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = engine.Close() })
	c := &chain{t: t, b: brokerOver(t, engine, broker.Config{}), url: url, name: name, dir: t.TempDir(), link: script(t, linkScript)}
	c.env = append(env, "DIR="+c.dir)
	for n := range chainLinks + 1 {
		putAgent(t, c.b, protocol.Profile{ID: c.agent(n)})
		if err := c.b.EnsureQueue(ctx, c.agent(n)); err != nil {
			t.Fatal(err)
		}
	}
	lead := startHandoff(t, c.agent(0), append(c.env, "NATS_URL="+url), "work", "--env", "all", "--agent", c.agent(0), "--", script(t, leadScript))
	lead.AwaitOutput(ctx, "worker ready")
	return c
}

// agent is the agent of a link, from 1; 0 is the source.
func (c *chain) agent(n int) string { return fmt.Sprintf("%s-%d", c.name, n) }

// submit submits the delegation, which outlives any number of killed workers.
func (c *chain) submit() (ticket string) {
	c.t.Helper()
	return submit(c.t, c.b, c.agent(1), func(p *protocol.Package) {
		p.Source, p.Type = c.agent(0), protocol.Delegation
		p.Return = &protocol.ReturnProtocol{Expected: true, TimeoutMS: 3_600_000}
		p.Policy = protocol.PolicyOverrides{MaxAttempts: pointer(20), AckTimeoutMS: pointer(int64(600_000))}
	})
}

// work starts a worker of a link. It is killed at when, which is said to the program by hold.
func (c *chain) work(ctx context.Context, n int, url, hold string) *startedProcess {
	c.t.Helper()
	env := append(slices.Clone(c.env), "HOLD="+hold, "NATS_URL="+url)
	w := startHandoff(c.t, c.agent(n), env, "work", "--env", "all", "--agent", c.agent(n), "--lease", crashLease().String(), "--", c.link)
	w.AwaitOutput(ctx, "worker ready")
	return w
}

// doomed is a worker that is about to be killed, and how.
type doomed struct {
	*startedProcess
	kill func(ticket string)
}

// doom starts a worker of a link that will be killed at a moment.
func (c *chain) doom(ctx context.Context, n int, when moment) doomed {
	c.t.Helper()
	held := filepath.Join(c.dir, fmt.Sprintf("held-%d", n))
	switch when {
	case beforeAccept:
		w := c.work(ctx, n, c.url, "")
		w.Freeze()
		return doomed{w, func(ticket string) {
			c.await(ctx, ticket, func(s protocol.State) bool { return s.Phase == protocol.Pending })
			w.Kill()
		}}
	case resultStored:
		through, kill := killAt(c.t, c.url, `"type":"completed"`)
		w := c.work(ctx, n, through, "")
		kill <- w
		return doomed{w, func(string) { c.awaitEnd(ctx, w) }}
	}
	w := c.work(ctx, n, c.url, map[moment]string{atWork: "work", resultPrinted: "printed"}[when])
	return doomed{w, func(string) {
		pidIn(c.t, ctx, held)
		w.Kill()
	}}
}

// await waits until a handoff is there and meets a condition.
func (c *chain) await(ctx context.Context, ticket string, cond func(protocol.State) bool) (s protocol.State) {
	c.t.Helper()
	poll(c.t, ctx, "handoff "+ticket, func() bool {
		head, err := c.b.Head(ctx, ticket, 0)
		if err != nil && !errors.Is(err, broker.ErrNotFound) && ctx.Err() == nil {
			c.t.Fatal(err)
		}
		s = head.State
		return err == nil && cond(s)
	})
	return s
}

// awaitEnd waits until a process has been killed.
func (c *chain) awaitEnd(ctx context.Context, p *startedProcess) {
	c.t.Helper()
	select {
	case <-p.Ended():
	case <-ctx.Done():
		c.t.Fatalf("%s was not killed: %v", p.Name, ctx.Err())
	}
}

func isClosed(s protocol.State) bool { return s.Closed }

// killEach has the chain come to its end while the first worker of each link is killed. It returns the
// tickets of the links.
func (c *chain) killEach(ctx context.Context, when moment, last int) (tickets []string) {
	c.t.Helper()
	first := c.doom(ctx, 1, when)
	ticket := c.submit()
	stored := 0
	for n := 1; ; n++ {
		tickets = append(tickets, ticket)
		first.kill(ticket)
		if n < last { // it is there before the next link begins
			first = c.doom(ctx, n+1, when)
		}
		var second *startedProcess
		if head, err := c.b.Head(ctx, ticket, 0); err != nil || !head.State.Closed {
			second = c.work(ctx, n, c.url, "")
		} else {
			stored++
		}
		s := c.await(ctx, ticket, isClosed)
		if lost := s.LeasesLost; lost == 0 && (when == atWork || when == resultPrinted) {
			c.t.Errorf("link %d lost no lease", n)
		}
		if second != nil {
			second.Kill()
		}
		if n == last {
			if when == resultStored && stored == 0 {
				c.t.Error("no result was stored when its worker was killed")
			}
			return tickets
		}
		ticket = protocol.ChildTicketN(ticket, 0)
	}
}

// end is how a chain must have ended.
type end struct {
	outcome protocol.Outcome
	words   string
}

// wantOneEnd checks in the ledger and at the source that the chain ended once, in the right way, and
// that the source was told once.
func (c *chain) wantOneEnd(ctx context.Context, tickets []string, want end) {
	c.t.Helper()
	origin, last := tickets[0], tickets[len(tickets)-1]
	told := c.await(ctx, origin, func(s protocol.State) bool { return s.Phase == protocol.PhaseReturned })
	if told.ChainEnd == nil || told.ChainEnd.Ticket != last || told.ChainEnd.Outcome != want.outcome {
		c.t.Errorf("the chain ended as %+v, want %s at %s", told.ChainEnd, want.outcome, last)
	}
	c.await(ctx, told.ReturnTicket, isClosed)
	events, links, returns := c.read(ctx, origin)
	if !maps.Equal(links, setOf(tickets)) {
		c.t.Errorf("the chain has the links %v, want %v", links, tickets)
	}
	for i, ticket := range tickets {
		completed := 1
		if want.outcome != protocol.OutcomeSuccess && i == len(tickets)-1 {
			completed = 0
		}
		if n := events[ticket][protocol.EventCompleted]; n != completed {
			c.t.Errorf("link %d completed %d times, want %d", i+1, n, completed)
		}
	}
	of := events[origin]
	if len(returns) != 1 || of[protocol.EventChainEnded] != 1 || of[protocol.EventReturnSent] != 1 || of[protocol.EventReturned] != 1 {
		c.t.Errorf("the end was told by %d returns; events of the first link: %v", len(returns), of)
	}
	text, err := os.ReadFile(filepath.Join(c.dir, "told"))
	if err != nil {
		c.t.Fatal(err)
	}
	if said := fmt.Sprintf("%s %s %s %s\n", origin, want.outcome, last, want.words); string(text) != said {
		c.t.Errorf("the source heard\n%swant\n%s", text, said)
	}
}

// read counts the events of each handoff, and finds the links of a chain and its returns.
func (c *chain) read(ctx context.Context, origin string) (events map[string]map[protocol.EventType]int, links, returns map[string]bool) {
	c.t.Helper()
	events, links, returns = map[string]map[protocol.EventType]int{}, map[string]bool{origin: true}, map[string]bool{}
	err := c.b.Entries(ctx, broker.From(1), func(e broker.Entry) error {
		change, err := broker.DecodeChange(e)
		if err != nil {
			return err
		}
		if events[e.Ticket] == nil {
			events[e.Ticket] = map[protocol.EventType]int{}
		}
		for _, event := range change.Record.Events {
			events[e.Ticket][event.EventType()]++
		}
		switch s := change.Record.State; {
		case s.ChainOf == origin:
			links[e.Ticket] = true
		case s.ReturnOf != "" && (s.ReturnOf == origin || links[s.ReturnOf]):
			returns[e.Ticket] = true
		}
		return nil
	})
	if err != nil {
		c.t.Fatal(err)
	}
	return events, links, returns
}

func setOf(all []string) map[string]bool {
	set := map[string]bool{}
	for _, one := range all {
		set[one] = true
	}
	return set
}

// TestChainOfCrashes: a chain of five agents whose workers are killed at each step has one end, the
// right one, and its source hears of it once. So it is where the third agent fails.
func TestChainOfCrashes(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	t.Cleanup(cancel)
	url := supervisedNode(t, 1)
	startHandoff(t, "supervisor", []string{"NATS_URL=" + url}, "supervise").AwaitOutput(ctx, "supervising")
	t.Run("worker", func(t *testing.T) { // its subtests end before the engine does
		for i, when := range []moment{beforeAccept, atWork, resultPrinted, resultStored} {
			t.Run(string(when), func(t *testing.T) {
				t.Parallel()
				c := newChain(t, ctx, url, fmt.Sprint("c", i))
				tickets := c.killEach(ctx, when, chainLinks)
				c.wantOneEnd(ctx, tickets, end{protocol.OutcomeSuccess, "1 2 3 4 5"})
			})
		}
		t.Run("third agent fails", func(t *testing.T) {
			t.Parallel()
			c := newChain(t, ctx, url, "fails", "FAILS=3")
			tickets := c.killEach(ctx, atWork, 3)
			c.wantOneEnd(ctx, tickets, end{protocol.OutcomeFailed, "exit status 65: there is no form"})
		})
	})
}

// TestChainOfKilledSupervisors: a supervisor is killed in the middle of a chain, the next one as it
// stores the end of it. The third one tells the end.
func TestChainOfKilledSupervisors(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	t.Cleanup(cancel)
	url := supervisedNode(t, 1)
	supervise := func(name, url string) *startedProcess {
		return startHandoff(t, name, []string{"NATS_URL=" + url}, "supervise")
	}
	first := supervise("first supervisor", url)
	first.AwaitOutput(ctx, "supervising")
	c := newChain(t, ctx, url, "s")
	tickets := []string{c.submit()}
	for n := 1; n <= chainLinks; n++ {
		if n > 1 {
			tickets = append(tickets, protocol.ChildTicketN(tickets[n-2], 0))
		}
		if n == 3 {
			first.Kill()
		}
		c.work(ctx, n, url, "") // it goes on: without a supervisor it alone submits the next link
		c.await(ctx, tickets[n-1], isClosed)
	}
	if s := c.await(ctx, tickets[0], isClosed); s.ChainEnd != nil {
		t.Errorf("without a supervisor the chain ended: %+v", s.ChainEnd)
	}
	through, kill := killAt(t, url, `"type":"chain_ended"`)
	second := supervise("second supervisor", through)
	kill <- second
	c.awaitEnd(ctx, second)
	s := c.await(ctx, tickets[0], func(s protocol.State) bool { return s.ChainEnd != nil })
	if _, err := c.b.Head(ctx, s.ReturnTicket, 0); err == nil {
		t.Log("the return was submitted before its supervisor was killed")
	}
	supervise("third supervisor", url)
	c.wantOneEnd(ctx, tickets, end{protocol.OutcomeSuccess, "1 2 3 4 5"})
}
