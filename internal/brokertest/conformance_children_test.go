package brokertest

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/lifecycle"
	"github.com/agenthandoff/handoff/protocol"
)

func testChildrenSubmitted(k *kit) {
	r := k.familyKit()
	to := r.registerAgents(4)
	parent := r.submit(pkg("lead", to[0]))
	claim := r.accept(to[0])
	group := pkg("", to[1], to[2])
	group.Return = &protocol.ReturnProtocol{Expected: true}
	children := []broker.Child{
		{N: 0, Package: pkg("", to[1])},
		{N: 1, Package: delegated(pkg("", to[2]))},
		{N: 5, Package: group},
	}
	r.must(claim.Complete(r.ctx, protocol.Result{Command: &protocol.Command{Goto: []byte(`"` + to[3] + `"`)}}, children...))
	s := r.state(parent.Ticket)
	if got := s.Children.Made.Numbers(); !slices.Equal(got, []int{0, 1, 2, 5}) || !s.Closed {
		r.Fatalf("children %v, closed %t", got, s.Closed)
	}
	for _, n := range []int{0, 1, 2, 5} {
		c := r.state(protocol.ChildTicketN(parent.Ticket, n))
		if c.Parent != parent.Ticket || c.N != n+1 || c.Source != to[0] {
			r.Errorf("child %d: parent %s, n %d, source %s", n, c.Parent, c.N, c.Source)
		}
	}
	for i := range 2 {
		m := r.state(protocol.ChildTicketN(protocol.ChildTicketN(parent.Ticket, 5), i))
		if m.Group != protocol.ChildTicketN(parent.Ticket, 5) || m.Agent != to[1+i] {
			r.Errorf("member %d: group %s, agent %s", i, m.Group, m.Agent)
		}
	}
	for i, want := range []int{0, 2, 2, 1} {
		r.awaitDepth(to[i], want)
	}
}

func testOrdinalOnce(k *kit) {
	r := k.familyKit()
	to := r.registerAgents(3)
	parent := r.submit(pkg("lead", to[0]))
	claim := r.accept(to[0])
	one, named := delegated(pkg("", to[1])), delegated(pkg("", to[1]))
	named.Key = "k"
	handOff := func(p protocol.Package, nth int) string {
		r.Helper()
		ticket, err := claim.HandOff(r.ctx, broker.Child{Package: p, Nth: nth})
		r.must(err)
		return ticket
	}
	first, second, keyed := handOff(one, 0), handOff(one, 0), handOff(named, 0)
	if again := handOff(one, 1); first == second || again != first {
		r.Errorf("tickets %s and %s; the first of them is %s", first, second, again)
	}
	if again := handOff(named, 0); keyed == first || again != keyed {
		r.Errorf("under a key %s, and then %s", keyed, again)
	}
	other := delegated(pkg("", to[2]))
	other.Key = "k"
	if _, err := claim.HandOff(r.ctx, broker.Child{Package: other}); !errors.Is(err, &protocol.Error{Code: protocol.CodeConflict, Field: "key"}) {
		r.Errorf("another package under the key: %v", err)
	}
	r.must(claim.Release(r.ctx, "drain", nil))
	claim = r.accept(to[0]) // a further attempt
	if again := []string{handOff(named, 0), handOff(one, 0), handOff(one, 0)}; !slices.Equal(again, []string{keyed, first, second}) {
		r.Errorf("the second attempt got %v", again)
	}
	if further := handOff(one, 0); further == first || further == second {
		r.Errorf("a third equal one is %s", further)
	}
	r.must(claim.Complete(r.ctx, protocol.Result{}, broker.Child{N: 0, Package: other}))
	if made := r.state(parent.Ticket).Children; made.Made.Len() != 4 || made.Asked.Len() != 4 {
		r.Errorf("children %+v", made)
	}
	r.awaitDepth(to[1], 4)
	r.awaitDepth(to[2], 0)

	claim = func() *broker.Claim { r.submit(pkg("lead", to[0])); return r.accept(to[0]) }()
	for name, children := range map[string][]broker.Child{
		"above": {{N: protocol.ChildrenMax, Package: pkg("", to[2])}},
		"twice": {{N: 1, Package: pkg("", to[2])}, {N: 1, Package: pkg("", to[2])}},
	} {
		var refused *protocol.Error
		if err := claim.Complete(r.ctx, protocol.Result{}, children...); !errors.As(err, &refused) {
			r.Errorf("%s: %v, want a refusal that a worker can report", name, err)
		}
		if s := r.state(claim.Ticket); s.Phase != protocol.PhaseFailed {
			r.Errorf("%s: the attempt is %s; it would be held until its work timeout", name, s.Phase)
		}
		claim = func() *broker.Claim { r.submit(pkg("lead", to[0])); return r.accept(to[0]) }()
	}
}

// testPromisedChildrenOnce kills the worker between the promise of a child and its submission, for
// each way to hand off. Several processes then submit the child at once.
func testPromisedChildrenOnce(k *kit) {
	r := k.familyKit()
	for name, die := range map[string]func(*broker.Claim, []broker.Child) error{
		"with the result": func(c *broker.Claim, children []broker.Child) error {
			return c.Complete(r.ctx, protocol.Result{}, children...)
		},
		"by a result that waits": func(c *broker.Claim, children []broker.Child) error {
			result := waiting(r, children)
			r.must(c.Complete(r.ctx, result))
			return c.Complete(r.ctx, result) // its answer was lost: that is no error, and asks for nothing more
		},
		"from within": func(c *broker.Claim, children []broker.Child) error {
			for _, child := range children {
				if _, err := c.HandOff(r.ctx, child); err != nil {
					return err
				}
			}
			return nil
		},
	} {
		to := r.registerAgents(4) // anew: what a worker that died held comes again after the ack wait
		parent := r.submit(pkg("lead", to[0]))
		worker := k.brokerOver(&failingAppends{Engine: r.Engine, lives: func(ticket string) bool { return ticket == parent.Ticket }})
		claim := r.acceptOver(worker, to[0])
		large := delegated(pkg("", to[2]))
		large.Context.Summary = fmt.Sprintf("%0*d", protocol.InlineBytesMax, 0)
		r.must(die(claim, []broker.Child{{N: 0, Package: delegated(pkg("", to[1]))}, {N: 1, Package: large}, {N: 2, Package: pkg("", to[2], to[3])}}))
		head := r.head(parent.Ticket)
		for n := range 3 {
			r.noHandoff(head.State.ChildTicket(n))
		}
		forEachParallel(8, func(int) {
			if _, err := r.ensureChildren(head); err != nil {
				r.Error(err)
			}
		})
		group := head.State.ChildTicket(2)
		for _, ticket := range []string{head.State.ChildTicket(0), head.State.ChildTicket(1), group,
			protocol.ChildTicketN(group, 0), protocol.ChildTicketN(group, 1)} {
			if got := r.entries(ticket); len(got) != 1 {
				r.Errorf("%s: %s has %v", name, ticket, got)
			}
		}
		claim = r.accept(to[1])
		if claim.Ticket != head.State.ChildTicket(0) {
			r.Errorf("%s: got %s", name, claim.Ticket)
		}
		for range 2 {
			r.accept(to[2]) // the large one, and the member
		}
		r.accept(to[3])
		for _, agent := range to[1:] {
			r.noOffers(agent)
		}
	}
}

// waiting is a result that waits for children.
func waiting(r *familyKit, children []broker.Child) protocol.Result {
	var entries []json.RawMessage
	for _, child := range children {
		entry, err := protocol.EncodePackage(child.Package)
		r.must(err)
		entries = append(entries, entry)
	}
	list, err := json.Marshal(entries)
	r.must(err)
	return protocol.Result{Command: &protocol.Command{Await: list}}
}

func testGroupCompleted(k *kit) {
	const size, lived = 40, 17
	r := k.familyKit()
	from, to := r.registerAgents(1)[0], r.registerAgents(size)
	p := pkg(from, to...)
	p.Key = "half"
	var appended int
	submitter := k.brokerOver(&failingAppends{Engine: r.Engine, lives: func(string) bool { appended++; return appended <= 1+lived }})
	in, err := submitter.Prepare(r.ctx, p)
	r.must(err)
	head, err := submitter.Submit(r.ctx, in)
	r.must(err)
	there := 0
	for n := range size {
		if _, err := r.b.Head(r.ctx, protocol.ChildTicketN(head.Ticket, n), 0); err == nil {
			there++
		}
	}
	// The first that fails ends the others, of which some may still be waiting for
	// their turn to be appended.
	if there == 0 || there > lived {
		r.Fatalf("%d members are there, want up to %d", there, lived)
	}
	again := r.submit(p) // with the same key
	if again.Ticket != head.Ticket {
		r.Fatalf("ticket %s, then %s", head.Ticket, again.Ticket)
	}
	forEachParallel(4, func(int) { // and what supervisors do at the same time
		if ended, err := r.ensureChildren(r.head(head.Ticket)); err != nil || len(ended) > 0 {
			r.Errorf("ended %v, %v", ended, err)
		}
	})
	for n, agent := range to {
		member := protocol.ChildTicketN(head.Ticket, n)
		if got := r.entries(member); len(got) != 1 {
			r.Errorf("member %d has %v", n, got)
		}
		r.must(r.b.EnsureOffer(r.ctx, r.head(member))) // its submitter may have died between append and offer
		r.awaitDepth(agent, 1)
	}
	p.Reason = "another"
	_, err = r.trySubmit(p)
	wantCode(k, err, protocol.CodeKeyReused)
}

// testGroupOfNewAgents hands off to agents right after their registration: the snapshot of the
// directory may not have them yet.
func testGroupOfNewAgents(k *kit) {
	r := k.familyKit()
	_, err := r.b.Directory(r.ctx)
	r.must(err)
	for range 10 {
		to := r.registerAgents(3)
		head := r.submit(pkg("lead", to...))
		for n, agent := range to {
			if s := r.state(protocol.ChildTicketN(head.Ticket, n)); s.Agent != agent || s.Offer == 0 {
				r.Errorf("member %d is with %q, offer %d; only a supervisor would offer it", n, s.Agent, s.Offer)
			}
		}
	}
	_, err = r.trySubmit(pkg("lead", r.registerAgents(1)[0], "missing-"+protocol.NewTicket()[:8]))
	wantCode(k, err, protocol.CodeUnknownAgent)
}

// testPromisedPastDeadline lets the deadline pass between the promise of a child and its submission.
func testPromisedPastDeadline(k *kit) {
	r := k.familyKit()
	to := r.registerAgents(3)
	parent := r.submit(pkg("lead", to[0]))
	claim := r.acceptOver(k.brokerOver(&failingAppends{Engine: r.Engine, lives: func(t string) bool { return t == parent.Ticket }}), to[0])

	soon := time.Now().Add(time.Second)
	p := pkg("lead")
	p.Target, p.Type, p.Constraints.Deadline = protocol.Target{}, "", soon
	p.Policy.OnDeadline = new(protocol.DeadlineClose)
	p.Members = []protocol.Member{{Target: protocol.Target{Agent: to[1]}}, {Target: protocol.Target{Agent: to[1]}, Reason: "twice"}}
	in, err := r.b.Prepare(r.ctx, p)
	r.must(err)
	next := pkg("", to[2])
	next.Constraints.Deadline, next.Policy.OnDeadline = soon, new(protocol.DeadlineClose)
	r.must(claim.Complete(r.ctx, protocol.Result{}, broker.Child{N: 0, Package: next}))
	head, err := k.brokerOver(&failingAppends{Engine: r.Engine, lives: func(t string) bool { return t == in.Ticket }}).Submit(r.ctx, in)
	r.must(err)

	r.until("the deadline", func() bool { return time.Now().After(soon) })
	for _, promise := range []struct {
		by       broker.Head
		children int
	}{{head, 2}, {r.head(parent.Ticket), 1}} {
		_, err := r.ensureChildren(promise.by)
		r.must(err)
		for n := range promise.children {
			late := r.decide(protocol.ChildTicketN(promise.by.Ticket, n))
			if late.State.Outcome != protocol.OutcomeTimeout || late.State.Reason != "deadline" {
				r.Errorf("child %d ended with %q, %q", n, late.State.Outcome, late.State.Reason)
			}
		}
	}
}

func testCloseMarkedOnce(k *kit) {
	r := k.familyKit()
	to := r.registerAgents(3)
	head := r.submit(pkg("lead", to...))
	for i, agent := range to {
		r.must(r.accept(agent).Complete(r.ctx, protocol.Result{}))
		ended, err := r.ensureChildren(head)
		r.must(err)
		if len(ended) != 1 || ended[0].N != i {
			r.Fatalf("ended %v, want member %d alone", ended, i)
		}
		forEachParallel(4, func(int) {
			if _, _, err := r.b.Update(r.ctx, head, func(h broker.Head, q lifecycle.Query) (lifecycle.Step, error) {
				return lifecycle.MarkChildren(h.State, q, ended)
			}); err != nil {
				r.Error(err)
			}
		})
		head = r.head(head.Ticket)
	}
	if head.State.Outcome != protocol.OutcomeSuccess || len(r.entries(head.Ticket)) != 4 {
		r.Errorf("outcome %s after %v", head.State.Outcome, r.entries(head.Ticket))
	}
}
