package supervisor_test

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/brokertest"
	"github.com/agenthandoff/handoff/internal/lifecycle"
	"github.com/agenthandoff/handoff/internal/supervisor"
	"github.com/agenthandoff/handoff/protocol"
)

// superviseCounted starts a supervisor whose requests are counted.
func (w *world) superviseCounted(cfg supervisor.Config) *brokertest.CountingEngine {
	w.Helper()
	own := w.m.Connect()
	counting := brokertest.NewCountingEngine(own)
	b := brokertest.Over(w, counting)
	w.superviseOver(own, b, counting, cfg)
	return counting
}

var snapshots = regexp.MustCompile(`(, )?(directory|fleet) \d+`)

// requests are what a supervisor asked for; looking at its snapshot is none, nor is reading the
// settings of the fleet, which it remembers.
func requests(c *brokertest.CountingEngine) string {
	return strings.TrimPrefix(snapshots.ReplaceAllString(c.TakeCounts(), ""), ", ")
}

// handOff is a package to somebody, as a child.
func handOff(agent string) protocol.Package {
	return protocol.Package{Target: protocol.Target{Agent: agent}, Reason: "next", Task: protocol.Task{Description: "go on"}}
}

func (w *world) completeWith(c *broker.Claim, children ...broker.Child) {
	w.Helper()
	if err := c.Complete(w.ctx, protocol.Result{}, children...); err != nil {
		w.Fatal(err)
	}
}

// A hop of a relay asks nothing of a supervisor: it sees the child come by. Where
// two share the events, a hop whose child came to the other costs two reads.
func TestRelayCostsNoRequests(t *testing.T) {
	for supervisors, most := range map[int]int{1: 0, 2: 2 * 100} {
		t.Run(fmt.Sprint(supervisors), func(t *testing.T) {
			inBubble(t, func(w *world) {
				var counted []*brokertest.CountingEngine
				for range supervisors {
					counted = append(counted, w.superviseCounted(supervisor.Config{SweepInterval: staying}))
				}
				var holders []protocol.Holder
				for i := range 5 {
					w.agent(fmt.Sprint("a", i), nil)
					holders = append(holders, w.holder(fmt.Sprint("a", i), staying))
				}
				pass(time.Minute)
				for _, c := range counted {
					requests(c)
				}
				ticket := w.submit(func(p *protocol.Package) { p.Target.Agent = "a0" })
				for hop := range 100 {
					claim := w.work(holders[hop%5])
					if claim.Ticket != ticket {
						t.Fatalf("hop %d is %s, want %s", hop, claim.Ticket, ticket)
					}
					next := handOff(fmt.Sprint("a", (hop+1)%5))
					next.Task.Description = fmt.Sprint("step ", hop) // the same one again would be a circle
					w.completeWith(claim, broker.Child{N: 0, Package: next})
					ticket = protocol.ChildTicketN(ticket, 0)
					pass(10 * time.Millisecond)
				}
				w.complete(w.work(holders[0]))
				pass(10 * time.Second)
				reads := 0
				for _, c := range counted {
					asked := requests(c)
					var n int
					if _, err := fmt.Sscanf(asked, "last %d", &n); asked != "" && (err != nil || strings.Contains(asked, ",")) {
						t.Errorf("a supervisor asked for %s", asked)
					}
					reads += n
				}
				t.Logf("%d reads for 100 hops", reads)
				if reads > most {
					t.Errorf("%d reads for 100 hops, want at most %d", reads, most)
				}
			})
		})
	}
}

// A supervisor reads the heads of a group's members once, not at each reconciliation. Ends
// that come together are recorded together.
func TestLooksAtALargeGroup(t *testing.T) {
	const size = 400
	inBubble(t, func(w *world) {
		counted := w.superviseCounted(supervisor.Config{})
		w.agent("coder", nil)
		coder := w.holder("coder", staying)
		pass(time.Minute)
		requests(counted)
		ticket := w.submit(func(p *protocol.Package) {
			p.Target, p.Type = protocol.Target{}, protocol.Broadcast
			p.Return = &protocol.ReturnProtocol{Expected: true}
			for range size {
				p.Members = append(p.Members, protocol.Member{Target: protocol.Target{Agent: "coder"}})
			}
		})
		pass(5 * time.Second)
		first := requests(counted)
		t.Log("once it was submitted: ", first)
		// A read of each member and of the group, and one of each member by the group.
		if want := fmt.Sprintf("last %d", 2*size+1); !strings.Contains(first, want) {
			t.Errorf("a supervisor asked for %s, want %s", first, want)
		}
		for n := range size / 2 { // one after another
			w.complete(w.work(coder))
			pass(3 * time.Second)
			if n == 0 {
				requests(counted)
			}
		}
		slow := requests(counted)
		t.Logf("while %d members closed slowly: %s", size/2-1, slow)
		// Ten minutes of the members' own clocks, and two reads a close.
		var reads int
		if _, err := fmt.Sscanf(slow[strings.Index(slow, "last"):], "last %d", &reads); err != nil || reads > 8*size {
			t.Errorf("%d reads, %v", reads, err)
		}
		var wg sync.WaitGroup
		for range size / 2 { // and all at once
			claim := w.work(coder)
			wg.Go(func() { w.complete(claim) })
		}
		wg.Wait()
		pass(100 * time.Millisecond)
		state := w.closed(ticket)
		if state.Outcome != protocol.OutcomeSuccess {
			t.Errorf("closed as %s", state.Outcome)
		}
		t.Logf("while %d members closed together: %s", size/2, requests(counted))
		changes, err := w.b.History(w.ctx, ticket)
		if err != nil {
			t.Fatal(err)
		}
		if appends := len(changes) - 1 - size/2; appends > 10 {
			t.Errorf("%d appends for %d ends that came together", appends, size/2)
		}
	})
}

// A child may have closed before its parent begins to wait for it. Nobody waits
// for a timer then.
func TestWaitForWhatHasEnded(t *testing.T) {
	inBubble(t, func(w *world) {
		w.supervise(supervisor.Config{SweepInterval: staying})
		w.agent("coder", nil)
		w.agent("tester", nil)
		coder, tester := w.holder("coder", staying), w.holder("tester", staying)
		pass(time.Minute)
		ticket := w.submit(nil)
		claim := w.work(coder)
		pkg := handOff("tester")
		delegate(&pkg)
		pkg.Return.Wait = protocol.WaitBlock
		for n := range 3 {
			if _, err := claim.HandOff(w.ctx, broker.Child{N: n, Package: pkg}); err != nil {
				t.Fatal(err)
			}
		}
		for range 3 {
			w.complete(w.work(tester))
		}
		pass(10 * time.Second)
		begun := time.Now()
		if suspended, err := claim.Suspend(w.ctx, 0, 1, 2); err != nil || !suspended {
			t.Fatalf("suspended %t, %v", suspended, err)
		}
		again := w.work(coder)
		if took := time.Since(begun); again.Ticket != ticket || took > 50*time.Millisecond {
			t.Errorf("%s after %v", again.Ticket, took)
		}
		w.complete(again)
		for n := range 3 {
			w.until(w.child(ticket, n), func(s protocol.State) bool { return s.Phase == protocol.PhaseReturned })
		}
	})
}

// Also what expects no return can be waited for: whoever handed it off from within
// its work is told.
func TestWaitForWhatExpectsNoReturn(t *testing.T) {
	inBubble(t, func(w *world) {
		w.supervise(supervisor.Config{SweepInterval: staying})
		w.agent("coder", nil)
		w.agent("tester", nil)
		coder, tester := w.holder("coder", staying), w.holder("tester", staying)
		pass(time.Minute)
		ticket := w.submit(nil)
		claim := w.work(coder)
		group := protocol.Package{Target: protocol.Target{Agents: []string{"tester"}}, Reason: "x", Task: protocol.Task{Description: "x"}}
		for n, pkg := range []protocol.Package{group, group} {
			if _, err := claim.HandOff(w.ctx, broker.Child{N: n, Package: pkg}); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := claim.Suspend(w.ctx, 0, 1); err != nil {
			t.Fatal(err)
		}
		pass(time.Hour)
		for range 2 {
			w.complete(w.work(tester))
		}
		begun := time.Now()
		again := w.work(coder)
		if took := time.Since(begun); again.Ticket != ticket || took > 100*time.Millisecond {
			t.Errorf("%s after %v", again.Ticket, took)
		}
	})
}

// faulty is a broker that fails at returns so many times, but not at the first.
type faulty struct {
	supervisor.Broker
	mu    sync.Mutex
	calls int
	fails int
}

func (f *faulty) EnsureReturn(ctx context.Context, head broker.Head) error {
	f.mu.Lock()
	f.calls++
	fails := f.calls > 1 && f.calls <= 1+f.fails
	f.mu.Unlock()
	if fails {
		return fmt.Errorf("%w: just now", broker.ErrUnreachable)
	}
	return f.Broker.EnsureReturn(ctx, head)
}

// The end of a child is recorded at its parent, and then the child's own return is
// settled. What fails in between is tried again, though the first is done.
func TestReturnAfterTheMark(t *testing.T) {
	inBubble(t, func(w *world) {
		own := w.m.Connect()
		b := &faulty{Broker: brokertest.Over(t, own), fails: 2}
		w.superviseOver(own, b, own, supervisor.Config{SweepInterval: staying})
		w.agent("coder", nil)
		w.agent("tester", nil)
		coder, tester := w.holder("coder", staying), w.holder("tester", staying)
		pass(time.Minute)
		ticket := w.submit(nil)
		claim := w.work(coder)
		pkg := handOff("tester")
		delegate(&pkg)
		pkg.Return.Wait = protocol.WaitBlock
		if _, err := claim.HandOff(w.ctx, broker.Child{N: 0, Package: pkg}); err != nil {
			t.Fatal(err)
		}
		if _, err := claim.Suspend(w.ctx, 0); err != nil {
			t.Fatal(err)
		}
		w.complete(w.work(tester))
		w.complete(w.work(coder))
		pass(10 * time.Second)
		if s, _ := w.b.Status(w.ctx, w.child(ticket, 0)); s.Phase != protocol.PhaseReturned {
			t.Errorf("the child is %s; without a pass it would stay so", s.Phase)
		}
	})
}

// Two supervisors, of which one is cut off again and again, deliver each return
// once and settle it.
func TestReturnsThroughOutages(t *testing.T) {
	inBubble(t, func(w *world) {
		first, _ := w.supervise(supervisor.Config{})
		second, _ := w.supervise(supervisor.Config{})
		w.agent("lead", nil)
		w.agent("coder", nil)
		lead, coder := w.holder("lead", staying), w.holder("coder", staying)
		var tickets []string
		for i := range 40 {
			tickets = append(tickets, w.submit(delegate))
			w.complete(w.work(coder))
			cut := []*brokertest.Memory{first, second}[i%2]
			cut.Disconnect()
			pass(time.Duration(i) * 10 * time.Millisecond)
			cut.Reconnect()
		}
		for range tickets {
			w.complete(w.work(lead))
		}
		pass(10 * time.Minute)
		for _, ticket := range tickets {
			if plot := w.plot(ticket); plot != "submitted offered, accepted started, completed return_sent, returned" {
				t.Errorf("%s: %s", ticket, plot)
			}
		}
		for {
			offers, err := w.b.Pull(w.ctx, "lead", 1, time.Hour)
			if err != nil {
				t.Fatal(err)
			}
			if len(offers) == 0 {
				break
			}
			if _, err := offers[0].Claim(w.ctx, lead, 0); !errors.Is(err, broker.ErrOfferGone) { // a ghost is dropped
				t.Errorf("one more return: %v", err)
			}
		}
	})
}

// stubborn is an engine that cannot store the first append of one ticket.
type stubborn struct {
	broker.Engine
	ticket string
}

func (e *stubborn) Append(ctx context.Context, ticket string, after uint64, id string, says lifecycle.Attention, body []byte) (uint64, error) {
	if ticket == e.ticket && after == 0 {
		return 0, errors.New("maximum payload exceeded")
	}
	return e.Engine.Append(ctx, ticket, after, id, says, body)
}

// A member that cannot be submitted does not keep the group from its others, nor
// from what it knows of them.
func TestOneMemberThatCannotBeSubmitted(t *testing.T) {
	inBubble(t, func(w *world) {
		group := protocol.Package{Key: "k", Type: protocol.Broadcast, Source: "lead", Reason: "x", Task: protocol.Task{Description: "x"},
			Return: &protocol.ReturnProtocol{Aggregation: protocol.AggregateAny}}
		for i := range 40 {
			w.agent(fmt.Sprint("a", i), nil)
			group.Target.Agents = append(group.Target.Agents, fmt.Sprint("a", i))
		}
		bad := protocol.ChildTicketN(protocol.TicketForKey("lead", "k"), 0)
		own := w.m.Connect()
		b := brokertest.Over(t, &stubborn{own, bad})
		w.superviseOver(own, b, own, supervisor.Config{})
		in, err := b.Prepare(t.Context(), group)
		if err != nil {
			t.Fatal(err)
		}
		head, err := b.Submit(w.ctx, in)
		if err != nil {
			t.Fatal(err)
		}
		pass(20 * time.Second)
		for n := 1; n < 40; n++ {
			if _, err := w.b.Status(w.ctx, protocol.ChildTicketN(head.Ticket, n)); err != nil {
				t.Fatalf("member %d: %v", n, err)
			}
		}
		w.complete(w.work(w.holder("a7", staying)))
		if s := w.closed(head.Ticket); s.Outcome != protocol.OutcomeSuccess {
			t.Errorf("closed as %s", s.Outcome)
		}
	})
}

// A sweep looks after what it sees: it reads what is open, once, asks for no child that
// came by, and for nothing of handoffs that owe a return which nobody takes in.
func TestPassesAskForNoChildren(t *testing.T) {
	inBubble(t, func(w *world) {
		w.m.SetFaults(brokertest.Faults{DropTimer: func(string, uint64) bool { return true }})
		w.agent("coder", nil)
		coder := w.holder("coder", staying)
		for range 50 { // their source is no agent
			w.submit(delegate)
			w.complete(w.work(coder))
		}
		for range 50 {
			w.submit(nil)
			w.completeWith(w.work(coder), broker.Child{N: 0, Package: handOff("human")})
		}
		ticket, _ := w.group(100, protocol.ReturnProtocol{})
		counted := w.superviseCounted(supervisor.Config{})
		pass(time.Minute)
		requests(counted)
		pass(4*time.Minute + 30*time.Second)
		requests(counted)
		const open = 100 + 1 + 50 // members, their group, and offers to a person
		pass(5 * time.Minute)     // one sweep
		asked := requests(counted)
		t.Log(asked)
		for _, part := range strings.Split(asked, ", ") {
			var name string
			var n int
			if _, err := fmt.Sscan(part, &name, &n); err != nil || name == "last" && n > open+20 || n > 400 {
				t.Errorf("a pass asks for %s", part)
			}
		}
		w.complete(w.work(w.holder("a0", staying)))
		w.until(ticket, func(s protocol.State) bool { return s.Children.Closed.Has(0) })
	})
}

// A sweep finds the end of a child that its parent was not told of.
func TestPassFindsUnmarkedEnds(t *testing.T) {
	inBubble(t, func(w *world) {
		ticket, holders := w.group(3, protocol.ReturnProtocol{})
		for _, h := range holders {
			w.complete(w.work(h))
		}
		pass(time.Hour) // no supervisor runs
		w.supervise(supervisor.Config{})
		if s := w.closed(ticket); s.Outcome != protocol.OutcomeSuccess {
			t.Errorf("closed as %s", s.Outcome)
		}
	})
}

// A child that its worker completes though its end was asked for is none that
// was cancelled. Its parent learns of it in a sweep, and then all is over.
func TestChildThatCompletesInSpiteOfIt(t *testing.T) {
	inBubble(t, func(w *world) {
		w.supervise(supervisor.Config{})
		w.agent("coder", nil)
		w.agent("tester", nil)
		coder, tester := w.holder("coder", staying), w.holder("tester", staying)
		ticket := w.submit(nil)
		claim := w.work(coder)
		if _, err := claim.HandOff(w.ctx, broker.Child{N: 0, Package: delegated("tester")}); err != nil {
			t.Fatal(err)
		}
		child := w.work(tester)
		if _, err := w.b.CancelTree(w.ctx, ticket, "lead", "enough"); err != nil {
			t.Fatal(err)
		}
		w.complete(child)
		if err := claim.Release(w.ctx, "cancelled", nil); err != nil {
			t.Fatal(err)
		}
		if s := w.closed(ticket); s.Outcome != protocol.OutcomeCancelled {
			t.Errorf("closed as %s", s.Outcome)
		}
		state := w.until(ticket, func(s protocol.State) bool { return s.Children.Closed.Has(0) })
		if !state.Children.Succeeded.Has(0) {
			t.Error("the child's success is not known")
		}
	})
}

// Refill publishes outbox entries, and makes no handoffs: that has time until
// the engine serves.
func TestRefillMakesNoChildren(t *testing.T) {
	inBubble(t, func(w *world) {
		w.agent("coder", nil)
		w.agent("tester", nil)
		key, err := protocol.ChildKeyOf(delegated("tester"))
		if err != nil {
			t.Fatal(err)
		}
		dying := brokertest.Over(t, &withholding{w.m, protocol.ChildTicket(protocol.TicketForKey("lead", "k"), key.Cell(0))})
		ticket := w.submit(func(p *protocol.Package) { p.Key = "k" })
		offers, err := dying.Pull(w.ctx, "coder", 1, time.Minute)
		if err != nil || len(offers) != 1 {
			t.Fatal(offers, err)
		}
		claim, err := offers[0].Acknowledge(w.ctx, w.holder("coder", staying), protocol.Ack{Status: protocol.AckAccepted}, true)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := claim.HandOff(w.ctx, broker.Child{N: 0, Package: delegated("tester")}); err != nil {
			t.Fatal(err)
		}
		if err := supervisor.Refill(w.ctx, w.b, w.m, nil); err != nil {
			t.Fatal(err)
		}
		child := w.child(ticket, 0)
		if _, err := w.b.Status(w.ctx, child); err == nil {
			t.Error("the child was made")
		}
		w.supervise(supervisor.Config{})
		synctest.Wait()
		w.complete(w.work(w.holder("tester", staying)))
		w.closed(child)
	})
}

// delegated is a child that begins at once, whose end its parent may wait for.
func delegated(to string) protocol.Package {
	pkg := handOff(to)
	pkg.Type, pkg.Return = protocol.Delegation, &protocol.ReturnProtocol{Expected: true, TimeoutMS: 3_600_000}
	return pkg
}
