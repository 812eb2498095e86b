package brokertest

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/lifecycle"
	"github.com/agenthandoff/handoff/protocol"
)

func testReturnOnce(k *kit) {
	r := k.familyKit()
	to := r.registerAgents(2)
	origin := r.submit(delegated(pkg(to[0], to[1])))
	r.must(r.accept(to[1]).Complete(r.ctx, protocol.Result{Body: []byte(`"done"`)}))
	head := r.head(origin.Ticket)
	if head.State.ReturnTicket == "" {
		r.Fatal("no return was promised")
	}
	two := []*broker.Broker{r.b, k.brokerOver(r.Engine)}
	look := func() {
		forEachParallel(8, func(i int) {
			if err := two[i%2].EnsureReturn(r.ctx, head); err != nil {
				r.Error(err)
			}
		})
	}
	look()
	r.awaitDepth(to[0], 1)
	claim := r.accept(to[0])
	got, err := protocol.DecodePackage(claim.Package)
	r.must(err)
	if ret := got.Returned; ret == nil || ret.HandoffID != origin.Ticket || ret.Status != protocol.ReturnSuccess || string(ret.Result.Body) != `"done"` {
		r.Fatalf("the return is %+v", ret)
	}
	look()
	look()
	if s := r.state(origin.Ticket); s.Phase != protocol.PhaseReturned || s.Outcome != protocol.OutcomeSuccess {
		r.Errorf("%s, %s", s.Phase, s.Outcome)
	}
	if got := r.entries(origin.Ticket); len(got) != 4 { // submitted, accepted, completed, returned
		r.Errorf("entries %v", got)
	}
	r.must(claim.Complete(r.ctx, protocol.Result{}))
	if s := r.state(claim.Ticket); s.ReturnTicket != "" || lifecycle.HasPendingDuties(s) {
		r.Errorf("a return owes one itself: %q", s.ReturnTicket)
	}
	r.noOffers(to[0])
}

// testStaleHolder try everything after the handoff was taken from them.
func testStaleHolder(k *kit) {
	r := k.familyKit()
	to := r.registerAgents(3)
	child := broker.Child{N: 3, Package: pkg("", to[2])}
	for name, report := range map[string]func(*broker.Claim) error{
		"hand off":  func(c *broker.Claim) error { _, err := c.HandOff(r.ctx, child); return err },
		"wait":      func(c *broker.Claim) error { _, err := c.Suspend(r.ctx, 0); return err },
		"escalate":  func(c *broker.Claim) error { return c.Escalate(r.ctx, "too hard", "") },
		"roll back": func(c *broker.Claim) error { return c.RollBack(r.ctx, "no", &protocol.Result{}) },
		"complete": func(c *broker.Claim) error {
			return c.Complete(r.ctx, protocol.Result{Command: &protocol.Command{Goto: []byte(`"` + to[2] + `"`)}}, child)
		},
		"complete badly": func(c *broker.Claim) error { return c.Complete(r.ctx, protocol.Result{Status: "odd"}, child) },
		"release":        func(c *broker.Claim) error { return c.Release(r.ctx, "drain", nil) },
		"fail":           func(c *broker.Claim) error { return c.Fail(r.ctx, broker.Failure{Code: "x"}) },
	} {
		head := r.submit(pkg("lead", to[0]))
		claim := r.accept(to[0])
		_, err := claim.HandOff(r.ctx, broker.Child{N: 0, Package: delegated(pkg("", to[1]))})
		r.must(err)
		_, err = r.b.Reroute(r.ctx, head.Ticket, protocol.Human, protocol.Human, "taken away", time.Time{})
		r.must(err)
		before := r.head(head.Ticket)
		if err := report(claim); !errors.Is(err, broker.ErrLeaseLost) {
			r.Errorf("%s: %v, want ErrLeaseLost", name, err)
		}
		after := r.head(head.Ticket)
		if name == "complete" || name == "roll back" { // the result is kept as a late one, and nothing else
			entries := r.entries(head.Ticket)
			if last := entries[len(entries)-1]; !slices.Equal(last, []protocol.EventType{protocol.EventResultParked}) {
				r.Errorf("%s appended %v", name, last)
			}
		} else if after.Seq != before.Seq {
			r.Errorf("%s appended %v", name, r.entries(head.Ticket))
		}
		if made := after.State.Children.Made.Numbers(); !slices.Equal(made, []int{0}) {
			r.Errorf("%s: children %v", name, made)
		}
		for n := 1; n < 5; n++ {
			r.noHandoff(protocol.ChildTicketN(head.Ticket, n))
		}
	}
	r.awaitDepth(to[2], 0)

	r.must(r.b.PutProfile(r.ctx, protocol.Profile{ID: to[0], EscalatesTo: to[1]}))
	r.until("who is above", func() bool {
		d, err := r.b.Directory(r.ctx)
		r.must(err)
		profile, _ := d.Agent(to[0])
		return profile.EscalatesTo == to[1]
	})
	head := r.submit(pkg("lead", to[0]))
	r.must(r.accept(to[0]).Escalate(r.ctx, "too hard", "the spec is wrong"))
	claim := r.accept(to[1])
	for claim.Ticket != head.Ticket { // children of before
		claim = r.accept(to[1])
	}
	_, err := r.b.Reroute(r.ctx, head.Ticket, protocol.Human, protocol.Human, "taken away", time.Time{})
	r.must(err)
	before := r.head(head.Ticket)
	if err := claim.Answer(r.ctx, protocol.Answer{Text: "go on"}); !errors.Is(err, broker.ErrLeaseLost) {
		r.Errorf("answer: %v, want ErrLeaseLost", err)
	}
	if after := r.head(head.Ticket); after.Seq != before.Seq {
		r.Errorf("answer appended %v", r.entries(head.Ticket))
	}
}

// testObsoleteOffersRemoved takes handoffs from the holders that pulled them: the offer is still in
// the queue, as if the first process had died.
func testObsoleteOffersRemoved(k *kit) {
	r := k.familyKit()
	to := r.registerAgents(3)
	for name, leave := range map[string]func(*broker.Claim) error{
		"waits": func(c *broker.Claim) error {
			resumed, err := r.b.Resume(r.ctx, c.Lease())
			if err != nil {
				return err
			}
			suspended, err := resumed.Suspend(r.ctx, 0)
			if err == nil && !suspended {
				err = errors.New("it does not wait")
			}
			return err
		},
		"taken": func(c *broker.Claim) error {
			h := protocol.Holder{ID: protocol.NewTicket(), Agent: to[2], LeaseMS: 600_000, Slots: 1}
			if err := r.b.Beat(r.ctx, h); err != nil {
				return err
			}
			taken, err := r.b.Take(r.ctx, c.Ticket, h, "urgent")
			if err == nil && string(taken.Package) != string(c.Package) {
				err = fmt.Errorf("took %s", taken.Package)
			}
			return err
		},
		"rolled back": func(c *broker.Claim) error {
			resumed, err := r.b.Resume(r.ctx, c.Lease())
			if err != nil {
				return err
			}
			return resumed.RollBack(r.ctx, "not mine", nil)
		},
	} {
		head := r.submit(pkg("lead", to[0]))
		claim := r.accept(to[0])
		_, err := claim.HandOff(r.ctx, broker.Child{N: 0, Package: delegated(pkg("", to[1]))})
		r.must(err)
		if err := leave(claim); err != nil {
			r.Fatalf("%s: %v", name, err)
		}
		before := r.head(head.Ticket)
		r.until(name+": the end of the old offer", func() bool { // it comes again after the ack wait
			r.noOffers(to[0])
			n, err := r.QueueDepth(r.ctx, to[0])
			r.must(err)
			return n == 0
		})
		if after := r.head(head.Ticket); after.Seq != before.Seq {
			r.Errorf("%s: the old offer appended %v", name, r.entries(head.Ticket))
		}
		if name != "waits" {
			continue
		}
		child := r.accept(to[1])
		for child.Ticket != before.State.ChildTicket(0) { // one of the others'
			child = r.accept(to[1])
		}
		r.must(child.Complete(r.ctx, protocol.Result{}))
		ended, err := r.ensureChildren(before)
		r.must(err)
		_, _, err = r.b.Update(r.ctx, before, func(h broker.Head, q lifecycle.Query) (lifecycle.Step, error) {
			return lifecycle.MarkChildren(h.State, q, ended)
		})
		r.must(err)
		if again := r.accept(to[0]); again.Ticket != head.Ticket || again.State().Attempt != 1 {
			r.Errorf("woken as %s, attempt %d", again.Ticket, again.State().Attempt)
		} else {
			r.must(again.Complete(r.ctx, protocol.Result{}))
		}
	}
}

// testCancelTree cancels a chain of relays at whose end a group is open, of which a
// member has handed off.
func testCancelTree(k *kit) {
	const hops = 50
	r := k.familyKit()
	to := r.registerAgents(3)
	root := r.submit(pkg("lead", to[0]))
	ticket := root.Ticket
	for i := range hops {
		claim := r.accept(to[i%2])
		if claim.Ticket != ticket {
			r.Fatalf("hop %d is %s, want %s", i, claim.Ticket, ticket)
		}
		next := pkg("", to[(i+1)%2])
		next.Task.Description = fmt.Sprint("hop ", i) // else it is a circle
		r.must(claim.Complete(r.ctx, protocol.Result{}, broker.Child{N: 0, Package: next}))
		ticket = protocol.ChildTicketN(ticket, 0)
	}
	claim := r.accept(to[hops%2])
	group, err := claim.HandOff(r.ctx, broker.Child{N: 0, Package: pkg("", to[(hops+1)%2], to[2])})
	r.must(err)
	// One member has closed, and its group knows it: what it handed off is open.
	member := r.accept(to[2])
	r.must(member.Complete(r.ctx, protocol.Result{}, broker.Child{N: 0, Package: pkg("", to[0])}))
	ended, err := r.ensureChildren(r.head(group))
	r.must(err)
	_, _, err = Update(r.ctx, r.b, group, func(h broker.Head, q lifecycle.Query) (lifecycle.Step, error) {
		return lifecycle.MarkChildren(h.State, q, ended)
	})
	r.must(err)
	for range 2 { // the second time there is nothing left to do
		state, err := r.b.CancelTree(r.ctx, root.Ticket, "lead", "no longer needed")
		r.must(err)
		if state.Outcome != protocol.OutcomeSuccess {
			r.Errorf("the root is %s", state.Outcome)
		}
	}
	for name, leaf := range map[string]string{
		"the open member": protocol.ChildTicketN(group, 0), "the group": group,
		"what a closed member handed off": protocol.ChildTicketN(protocol.ChildTicketN(group, 1), 0)} {
		if s := r.state(leaf); s.Outcome != protocol.OutcomeCancelled {
			r.Errorf("%s is %s, %q", name, s.Phase, s.Outcome)
		}
	}
	if s := r.state(claim.Ticket); s.Closed || !s.CancelRequested || !s.CancelChildren { // its worker is asked first
		r.Errorf("the last hop is %s, cancel requested %t", s.Phase, s.CancelRequested)
	}

	// One that was promised by a parent which is closed by now is not begun later.
	parent := r.submit(pkg("lead", to[2]))
	dies := r.acceptOver(k.brokerOver(&failingAppends{Engine: r.Engine, lives: func(t string) bool { return t == parent.Ticket }}), to[2])
	r.must(dies.Complete(r.ctx, protocol.Result{}, broker.Child{N: 0, Package: pkg("", to[0])}))
	_, err = r.b.CancelTree(r.ctx, parent.Ticket, "lead", "no longer needed")
	r.must(err)
	if s := r.state(protocol.ChildTicketN(parent.Ticket, 0)); s.Outcome != protocol.OutcomeCancelled {
		r.Errorf("the promised child is %s, %q", s.Phase, s.Outcome)
	}
}
