package brokertest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/protocol/lifecycle"
)

// familyCases hold a Broker over the engine to what it promises of children,
// groups, returns and redrives: nothing is lost or doubled, whoever dies where.
// They run one after another, since some are large.
var familyCases = []conformanceCase{
	{"children go with a result", childrenGo},
	{"the same ordinal is handed off once", ordinalOnce},
	{"what was recorded is submitted by whoever looks, once", promisedOnce},
	{"a group's members are made up for", groupHalf},
	{"a group sees who registered a moment ago", groupOfNew},
	{"what was promised is made though its deadline has passed", promisedLate},
	{"ends are marked once, and close the group", marksOnce},
	{"a return is delivered and settled once", returnOnce},
	{"who lost a handoff hands nothing on", zombies},
	{"what left a queue by another door is dropped from it", queueLeft},
	{"a tree is cancelled to its leaves", cancelTree},
	{"a redrive is one, whatever interrupts it", redriveOnce},
	{"what is redriven keeps its trail", redriveTrail},
	{"a member is redriven alone", redriveMember},
	{"lists know a ticket that comes twice", listsTwice},
	{"who has seen it takes it out of the inbox", dismissOnce},
	{"a key is found at any later time", keyLater},
	{"to whom one hands on", handOnTo},
	{"what follows is in the same trace", traces},
}

// relatives is a kit with a broker.
type relatives struct {
	*kit
	b *broker.Broker
}

func (k *kit) relatives() *relatives { return &relatives{k, k.brokerOver(k.Engine)} }

func (k *kit) brokerOver(e broker.Engine) *broker.Broker {
	k.Helper()
	b, err := broker.New(e, broker.Config{})
	k.must(err)
	return b
}

// registered makes agents of new names that can be pulled for.
func (r *relatives) registered(n int) []string {
	r.Helper()
	names := make([]string, n)
	each(n, func(i int) {
		names[i] = fmt.Sprintf("kin%d-%s", i, protocol.NewTicket()[:8])
		if err := r.b.PutProfile(r.ctx, protocol.Profile{ID: names[i]}); err != nil {
			r.Error(err)
		}
	})
	return names
}

// each calls fn with 0 to n-1, 16 at once.
func each(n int, fn func(i int)) {
	var wg sync.WaitGroup
	turns := make(chan struct{}, 16)
	for i := range n {
		turns <- struct{}{}
		wg.Go(func() { fn(i); <-turns })
	}
	wg.Wait()
}

// pkg is a package from one agent to others.
func pkg(from string, to ...string) protocol.Package {
	p := protocol.Package{Source: from, Reason: "conformance", Task: protocol.Task{Description: "do it"}}
	if len(to) == 1 {
		p.Target.Agent = to[0]
	} else {
		p.Type, p.Target.Agents = protocol.Broadcast, to
	}
	return p
}

// delegated makes a package one whose return is waited for.
func delegated(p protocol.Package) protocol.Package {
	p.Type, p.Return = protocol.Delegation, &protocol.ReturnProtocol{Expected: true, TimeoutMS: 600_000}
	return p
}

func (r *relatives) submit(p protocol.Package) broker.Head {
	r.Helper()
	head, err := r.trySubmit(p)
	r.must(err)
	return head
}

func (r *relatives) trySubmit(p protocol.Package) (broker.Head, error) {
	in, err := r.b.Prepare(p)
	if err != nil {
		return broker.Head{}, err
	}
	return r.b.Submit(r.ctx, in)
}

// accept pulls the next offer for an agent and accepts it.
func (r *relatives) accept(agent string) *broker.Claim {
	r.Helper()
	return r.acceptOver(r.b, agent)
}

func (r *relatives) acceptOver(b *broker.Broker, agent string) *broker.Claim {
	r.Helper()
	h := protocol.Holder{ID: protocol.NewTicket(), Agent: agent, LeaseMS: 600_000, Slots: 1}
	r.must(b.Beat(r.ctx, h))
	r.must(b.EnsureQueue(r.ctx, agent))
	for {
		offers, err := b.Pull(r.ctx, agent, 1, patience)
		r.must(err)
		if len(offers) == 0 {
			r.Fatalf("no offer for %s", agent)
		}
		claim, err := offers[0].Acknowledge(r.ctx, h, protocol.Ack{Status: protocol.AckAccepted}, true)
		if errors.Is(err, broker.ErrOfferGone) {
			continue
		}
		r.must(err)
		return claim
	}
}

// nothing makes sure that no offer for an agent is to be had. What is held, or
// over, may come again.
func (r *relatives) nothing(agent string) {
	r.Helper()
	offers, err := r.b.Pull(r.ctx, agent, 100, 20*time.Millisecond)
	r.must(err)
	for _, offer := range offers {
		h := protocol.Holder{ID: protocol.NewTicket(), Agent: agent, LeaseMS: 600_000, Slots: 1}
		if _, err := offer.Acknowledge(r.ctx, h, protocol.Ack{Status: protocol.AckAccepted}, true); !errors.Is(err, broker.ErrOfferGone) {
			r.Errorf("got %s for %s (%v), want nothing", offer.Ticket, agent, err)
		}
	}
}

func (r *relatives) head(ticket string) broker.Head {
	r.Helper()
	head, err := r.b.Head(r.ctx, ticket, 0)
	r.must(err)
	return head
}

func (r *relatives) state(ticket string) protocol.State { r.Helper(); return r.head(ticket).State }

// entries are the facts of a handoff, an append to each element.
func (r *relatives) entries(ticket string) [][]protocol.EventType {
	r.Helper()
	changes, err := r.b.History(r.ctx, ticket)
	r.must(err)
	var all [][]protocol.EventType
	for _, c := range changes {
		var facts []protocol.EventType
		for _, e := range c.Record.Events {
			facts = append(facts, e.EventType())
		}
		all = append(all, facts)
	}
	return all
}

// absent makes sure that there is no such handoff.
func (r *relatives) absent(ticket string) {
	r.Helper()
	if _, err := r.b.Head(r.ctx, ticket, 0); !errors.Is(err, broker.ErrNotFound) {
		r.Fatalf("%s is there, and should not be: %v", ticket, err)
	}
}

// decide appends what the core says, as a supervisor's look does.
func (r *relatives) decide(ticket string) broker.Head {
	r.Helper()
	head, _, err := r.b.Update(r.ctx, ticket, func(h broker.Head, d *lifecycle.Directory, now time.Time) ([]protocol.Event, error) {
		return lifecycle.Decide(h.State, d, now), nil
	})
	r.must(err)
	return head
}

// ensure is what a look does about children.
func (r *relatives) ensure(head broker.Head) ([]protocol.ChildClosed, error) {
	return r.b.EnsureChildren(r.ctx, head)
}

func wantCode(k *kit, err error, code protocol.Code) {
	k.Helper()
	if !errors.Is(err, &protocol.Error{Code: code}) {
		k.Errorf("%.300v, want one with the code %s", err, code)
	}
}

// dying is an engine whose appends fail from some point on: what a process
// meets that dies there.
type dying struct {
	broker.Engine
	mu    sync.Mutex
	lives func(ticket string) bool
}

func (d *dying) Append(ctx context.Context, ticket string, after uint64, id string, body []byte) (uint64, error) {
	d.mu.Lock()
	lives := d.lives(ticket)
	d.mu.Unlock()
	if !lives {
		return 0, broker.ErrUnreachable
	}
	return d.Engine.Append(ctx, ticket, after, id, body)
}

func childrenGo(k *kit) {
	r := k.relatives()
	to := r.registered(4)
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
		r.deep(to[i], want)
	}
}

func ordinalOnce(k *kit) {
	r := k.relatives()
	to := r.registered(3)
	parent := r.submit(pkg("lead", to[0]))
	claim := r.accept(to[0])
	first, err := claim.HandOff(r.ctx, broker.Child{N: 7, Package: pkg("", to[1])})
	r.must(err)
	for range 2 {
		again, err := claim.HandOff(r.ctx, broker.Child{N: 7, Package: pkg("", to[2])})
		r.must(err)
		if again != first {
			r.Errorf("ticket %s, then %s", first, again)
		}
	}
	r.must(claim.Release(r.ctx, "drain"))
	claim = r.accept(to[0]) // a further attempt
	again, err := claim.HandOff(r.ctx, broker.Child{N: 7, Package: pkg("", to[2])})
	r.must(err)
	r.must(claim.Complete(r.ctx, protocol.Result{}, broker.Child{N: 7, Package: pkg("", to[2])}))
	if s := r.state(first); again != first || s.Agent != to[1] || len(r.entries(first)) != 1 {
		r.Errorf("ticket %s, with %s, %d entries", again, s.Agent, len(r.entries(first)))
	}
	if made := r.state(parent.Ticket).Children.Made.Numbers(); !slices.Equal(made, []int{7}) {
		r.Errorf("children %v", made)
	}
	r.deep(to[1], 1)
	r.deep(to[2], 0)

	claim = func() *broker.Claim { r.submit(pkg("lead", to[0])); return r.accept(to[0]) }()
	for name, children := range map[string][]broker.Child{
		"below": {{N: -1, Package: pkg("", to[2])}},
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

// promisedOnce kills the worker between its record and the submission, at each
// of the ways to hand off, and lets many make up for it at once.
func promisedOnce(k *kit) {
	r := k.relatives()
	to := r.registered(4)
	for name, die := range map[string]func(*broker.Claim, []broker.Child) error{
		"with the result": func(c *broker.Claim, children []broker.Child) error {
			return c.Complete(r.ctx, protocol.Result{}, children...)
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
		parent := r.submit(pkg("lead", to[0]))
		worker := k.brokerOver(&dying{Engine: r.Engine, lives: func(ticket string) bool { return ticket == parent.Ticket }})
		claim := r.acceptOver(worker, to[0])
		large := pkg("", to[2])
		large.Context.Summary = fmt.Sprintf("%0*d", protocol.InlineBytesMax, 0)
		r.must(die(claim, []broker.Child{{N: 0, Package: pkg("", to[1])}, {N: 1, Package: large}, {N: 2, Package: pkg("", to[2], to[3])}}))
		for n := range 3 {
			r.absent(protocol.ChildTicketN(parent.Ticket, n))
		}
		head := r.head(parent.Ticket)
		each(8, func(int) {
			if _, err := r.ensure(head); err != nil {
				r.Error(err)
			}
		})
		group := protocol.ChildTicketN(parent.Ticket, 2)
		for _, ticket := range []string{protocol.ChildTicketN(parent.Ticket, 0), protocol.ChildTicketN(parent.Ticket, 1), group,
			protocol.ChildTicketN(group, 0), protocol.ChildTicketN(group, 1)} {
			if got := r.entries(ticket); len(got) != 1 {
				r.Errorf("%s: %s has %v", name, ticket, got)
			}
		}
		claim = r.accept(to[1])
		if claim.Ticket != protocol.ChildTicketN(parent.Ticket, 0) {
			r.Errorf("%s: got %s", name, claim.Ticket)
		}
		for range 2 {
			r.accept(to[2]) // the large one, and the member
		}
		r.accept(to[3])
		for _, agent := range to[1:] {
			r.nothing(agent)
		}
	}
}

func groupHalf(k *kit) {
	const size, lived = 40, 17
	r := k.relatives()
	from, to := r.registered(1)[0], r.registered(size)
	p := pkg(from, to...)
	p.Key = "half"
	var appended int
	submitter := k.brokerOver(&dying{Engine: r.Engine, lives: func(string) bool { appended++; return appended <= 1+lived }})
	in, err := submitter.Prepare(p)
	r.must(err)
	head, err := submitter.Submit(r.ctx, in)
	r.must(err)
	there := 0
	for n := range size {
		if _, err := r.b.Head(r.ctx, protocol.ChildTicketN(head.Ticket, n), 0); err == nil {
			there++
		}
	}
	if there != lived {
		r.Fatalf("%d members are there, want %d", there, lived)
	}
	again := r.submit(p) // with the same key
	if again.Ticket != head.Ticket {
		r.Fatalf("ticket %s, then %s", head.Ticket, again.Ticket)
	}
	each(4, func(int) { // and what supervisors do at the same time
		if ended, err := r.ensure(r.head(head.Ticket)); err != nil || len(ended) > 0 {
			r.Errorf("ended %v, %v", ended, err)
		}
	})
	for n, agent := range to {
		member := protocol.ChildTicketN(head.Ticket, n)
		if got := r.entries(member); len(got) != 1 {
			r.Errorf("member %d has %v", n, got)
		}
		r.must(r.b.EnsureOffer(r.ctx, r.head(member))) // its submitter may have died between append and offer
		r.deep(agent, 1)
	}
	p.Reason = "another"
	_, err = r.trySubmit(p)
	wantCode(k, err, protocol.CodeKeyReused)
}

// groupOfNew registers agents and hands to them in the next breath: the
// snapshot of the directory may not have them yet.
func groupOfNew(k *kit) {
	r := k.relatives()
	_, err := r.b.Directory(r.ctx)
	r.must(err)
	for range 10 {
		to := r.registered(3)
		head := r.submit(pkg("lead", to...))
		for n, agent := range to {
			if s := r.state(protocol.ChildTicketN(head.Ticket, n)); s.Agent != agent || s.Offer == 0 {
				r.Errorf("member %d is with %q, offer %d; nobody would offer it without a supervisor", n, s.Agent, s.Offer)
			}
		}
	}
	_, err = r.trySubmit(pkg("lead", r.registered(1)[0], "nobody-"+protocol.NewTicket()[:8]))
	wantCode(k, err, protocol.CodeUnknownAgent)
}

// promisedLate lets the deadline pass between the promise and the submission.
func promisedLate(k *kit) {
	r := k.relatives()
	to := r.registered(3)
	parent := r.submit(pkg("lead", to[0]))
	claim := r.acceptOver(k.brokerOver(&dying{Engine: r.Engine, lives: func(t string) bool { return t == parent.Ticket }}), to[0])

	soon := time.Now().Add(time.Second)
	p := pkg("lead")
	p.Target, p.Type, p.Constraints.Deadline = protocol.Target{}, "", soon
	p.Members = []protocol.Member{{Target: protocol.Target{Agent: to[1]}}, {Target: protocol.Target{Agent: to[1]}, Reason: "twice"}}
	in, err := r.b.Prepare(p)
	r.must(err)
	next := pkg("", to[2])
	next.Constraints.Deadline = soon
	r.must(claim.Complete(r.ctx, protocol.Result{}, broker.Child{N: 0, Package: next}))
	head, err := k.brokerOver(&dying{Engine: r.Engine, lives: func(t string) bool { return t == in.Ticket }}).Submit(r.ctx, in)
	r.must(err)

	r.until("the deadline", func() bool { return time.Now().After(soon) })
	for _, promise := range []struct {
		by       broker.Head
		children int
	}{{head, 2}, {r.head(parent.Ticket), 1}} {
		_, err := r.ensure(promise.by)
		r.must(err)
		for n := range promise.children {
			late := r.decide(protocol.ChildTicketN(promise.by.Ticket, n))
			if late.State.Outcome != protocol.OutcomeTimeout || late.State.Reason != "deadline" {
				r.Errorf("child %d ended with %q, %q", n, late.State.Outcome, late.State.Reason)
			}
		}
	}
}

func marksOnce(k *kit) {
	r := k.relatives()
	to := r.registered(3)
	head := r.submit(pkg("lead", to...))
	for i, agent := range to {
		r.must(r.accept(agent).Complete(r.ctx, protocol.Result{}))
		ended, err := r.ensure(head)
		r.must(err)
		if len(ended) != 1 || ended[0].N != i {
			r.Fatalf("ended %v, want member %d alone", ended, i)
		}
		each(4, func(int) {
			if _, _, err := r.b.UpdateFrom(r.ctx, head, func(h broker.Head, d *lifecycle.Directory, now time.Time) ([]protocol.Event, error) {
				return lifecycle.MarkChildren(h.State, d, ended, now), nil
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

func returnOnce(k *kit) {
	r := k.relatives()
	to := r.registered(2)
	origin := r.submit(delegated(pkg(to[0], to[1])))
	r.must(r.accept(to[1]).Complete(r.ctx, protocol.Result{Body: []byte(`"done"`)}))
	head := r.head(origin.Ticket)
	if head.State.ReturnTicket == "" {
		r.Fatal("no return was promised")
	}
	two := []*broker.Broker{r.b, k.brokerOver(r.Engine)}
	look := func() {
		each(8, func(i int) {
			if err := two[i%2].EnsureReturn(r.ctx, head); err != nil {
				r.Error(err)
			}
		})
	}
	look()
	r.deep(to[0], 1)
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
	if s := r.state(claim.Ticket); s.ReturnTicket != "" || lifecycle.Owes(s) {
		r.Errorf("a return owes one itself: %q", s.ReturnTicket)
	}
	r.nothing(to[0])
}

// zombies try everything after the handoff was taken from them.
func zombies(k *kit) {
	r := k.relatives()
	to := r.registered(3)
	child := broker.Child{N: 3, Package: pkg("", to[2])}
	for name, report := range map[string]func(*broker.Claim) error{
		"hand off":  func(c *broker.Claim) error { _, err := c.HandOff(r.ctx, child); return err },
		"wait":      func(c *broker.Claim) error { _, err := c.Suspend(r.ctx, 0); return err },
		"escalate":  func(c *broker.Claim) error { return c.Escalate(r.ctx, "too hard", "") },
		"hand back": func(c *broker.Claim) error { return c.HandBack(r.ctx, "no", &protocol.Result{}) },
		"complete": func(c *broker.Claim) error {
			return c.Complete(r.ctx, protocol.Result{Command: &protocol.Command{Goto: []byte(`"` + to[2] + `"`)}}, child)
		},
		"complete badly": func(c *broker.Claim) error { return c.Complete(r.ctx, protocol.Result{Status: "odd"}, child) },
		"release":        func(c *broker.Claim) error { return c.Release(r.ctx, "drain") },
		"fail":           func(c *broker.Claim) error { return c.Fail(r.ctx, broker.Failure{Code: "x"}) },
	} {
		head := r.submit(pkg("lead", to[0]))
		claim := r.accept(to[0])
		_, err := claim.HandOff(r.ctx, broker.Child{N: 0, Package: pkg("", to[1])})
		r.must(err)
		_, err = r.b.Reroute(r.ctx, head.Ticket, protocol.Human, "conformance", "taken away")
		r.must(err)
		before := r.head(head.Ticket)
		if err := report(claim); !errors.Is(err, broker.ErrLeaseLost) {
			r.Errorf("%s: %v, want ErrLeaseLost", name, err)
		}
		after := r.head(head.Ticket)
		if name == "complete" { // is kept as a late result, and nothing else
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
			r.absent(protocol.ChildTicketN(head.Ticket, n))
		}
	}
	r.deep(to[2], 0)

	r.must(r.b.PutProfile(r.ctx, protocol.Profile{ID: to[0], EscalatesTo: to[1]}))
	r.until("who is above", func() bool {
		d, err := r.b.Directory(r.ctx)
		r.must(err)
		return d.Agents[to[0]].EscalatesTo == to[1]
	})
	head := r.submit(pkg("lead", to[0]))
	r.must(r.accept(to[0]).Escalate(r.ctx, "too hard", "the spec is wrong"))
	claim := r.accept(to[1])
	for claim.Ticket != head.Ticket { // children of before
		claim = r.accept(to[1])
	}
	_, err := r.b.Reroute(r.ctx, head.Ticket, protocol.Human, "conformance", "taken away")
	r.must(err)
	before := r.head(head.Ticket)
	if err := claim.Answer(r.ctx, protocol.Answer{Text: "go on"}); !errors.Is(err, broker.ErrLeaseLost) {
		r.Errorf("answer: %v, want ErrLeaseLost", err)
	}
	if after := r.head(head.Ticket); after.Seq != before.Seq {
		r.Errorf("answer appended %v", r.entries(head.Ticket))
	}
}

// queueLeft lets handoffs leave the hands that pulled them by somebody else's act:
// the offer still stands in the queue, as if the first process had died there.
func queueLeft(k *kit) {
	r := k.relatives()
	to := r.registered(3)
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
		"handed back": func(c *broker.Claim) error {
			resumed, err := r.b.Resume(r.ctx, c.Lease())
			if err != nil {
				return err
			}
			return resumed.HandBack(r.ctx, "not mine", nil)
		},
	} {
		head := r.submit(pkg("lead", to[0]))
		claim := r.accept(to[0])
		_, err := claim.HandOff(r.ctx, broker.Child{N: 0, Package: pkg("", to[1])})
		r.must(err)
		if err := leave(claim); err != nil {
			r.Fatalf("%s: %v", name, err)
		}
		before := r.head(head.Ticket)
		r.until(name+": the end of the old offer", func() bool { // it comes again after the ack wait
			r.nothing(to[0])
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
		for child.Ticket != protocol.ChildTicketN(head.Ticket, 0) { // one of the others'
			child = r.accept(to[1])
		}
		r.must(child.Complete(r.ctx, protocol.Result{}))
		ended, err := r.ensure(before)
		r.must(err)
		_, _, err = r.b.UpdateFrom(r.ctx, before, func(h broker.Head, d *lifecycle.Directory, now time.Time) ([]protocol.Event, error) {
			return lifecycle.MarkChildren(h.State, d, ended, now), nil
		})
		r.must(err)
		if again := r.accept(to[0]); again.Ticket != head.Ticket || again.Attempt() != 1 {
			r.Errorf("woken as %s, attempt %d", again.Ticket, again.Attempt())
		} else {
			r.must(again.Complete(r.ctx, protocol.Result{}))
		}
	}
}

// cancelTree cancels a chain of relays at whose end a group is open, of which a
// member has handed on.
func cancelTree(k *kit) {
	const hops = 50
	r := k.relatives()
	to := r.registered(3)
	root := r.submit(pkg("lead", to[0]))
	ticket := root.Ticket
	for i := range hops {
		claim := r.accept(to[i%2])
		if claim.Ticket != ticket {
			r.Fatalf("hop %d is %s, want %s", i, claim.Ticket, ticket)
		}
		r.must(claim.Complete(r.ctx, protocol.Result{}, broker.Child{N: 0, Package: pkg("", to[(i+1)%2])}))
		ticket = protocol.ChildTicketN(ticket, 0)
	}
	claim := r.accept(to[hops%2])
	group, err := claim.HandOff(r.ctx, broker.Child{N: 0, Package: pkg("", to[(hops+1)%2], to[2])})
	r.must(err)
	// One member has closed, and its group knows it: what it handed on is open.
	member := r.accept(to[2])
	r.must(member.Complete(r.ctx, protocol.Result{}, broker.Child{N: 0, Package: pkg("", to[0])}))
	ended, err := r.ensure(r.head(group))
	r.must(err)
	_, _, err = r.b.Update(r.ctx, group, func(h broker.Head, d *lifecycle.Directory, now time.Time) ([]protocol.Event, error) {
		return lifecycle.MarkChildren(h.State, d, ended, now), nil
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
		"what a closed member handed on": protocol.ChildTicketN(protocol.ChildTicketN(group, 1), 0)} {
		if s := r.state(leaf); s.Outcome != protocol.OutcomeCancelled {
			r.Errorf("%s is %s, %q", name, s.Phase, s.Outcome)
		}
	}
	if s := r.state(claim.Ticket); s.Closed || !s.CancelRequested || !s.CancelChildren { // its worker is asked first
		r.Errorf("the last hop is %s, cancel requested %t", s.Phase, s.CancelRequested)
	}

	// One that was promised by a parent which is closed by now is not begun later.
	parent := r.submit(pkg("lead", to[2]))
	dies := r.acceptOver(k.brokerOver(&dying{Engine: r.Engine, lives: func(t string) bool { return t == parent.Ticket }}), to[2])
	r.must(dies.Complete(r.ctx, protocol.Result{}, broker.Child{N: 0, Package: pkg("", to[0])}))
	_, err = r.b.CancelTree(r.ctx, parent.Ticket, "lead", "no longer needed")
	r.must(err)
	if s := r.state(protocol.ChildTicketN(parent.Ticket, 0)); s.Outcome != protocol.OutcomeCancelled {
		r.Errorf("the promised child is %s, %q", s.Phase, s.Outcome)
	}
}

// dead submits something and lets it fail for good.
func (r *relatives) dead(p protocol.Package, agent string) broker.Head {
	r.Helper()
	head := r.submit(p)
	r.must(r.accept(agent).Fail(r.ctx, broker.Failure{Code: "no", Message: "cannot be done"}))
	return r.decide(head.Ticket)
}

func redriveOnce(k *kit) {
	r := k.relatives()
	to := r.registered(3)
	large := pkg("lead", to[0])
	large.Key = "redriven-" + to[0]
	large.Context.Summary = fmt.Sprintf("%0*d", protocol.InlineBytesMax, 0)
	large.Constraints.Deadline = time.Now().Add(time.Hour)
	origin := r.dead(large, to[0])
	again := protocol.RedriveTicket(origin.Ticket)

	// It dies at once, before the submission, and between that and the record.
	for _, lives := range []string{"", origin.Ticket, again} {
		worker := k.brokerOver(&dying{Engine: r.Engine, lives: func(t string) bool { return t == lives }})
		if _, err := worker.Redrive(r.ctx, origin.Ticket, "", "human"); !errors.Is(err, broker.ErrUnreachable) {
			r.Fatalf("redrive by who dies: %v", err)
		}
		if s := r.state(origin.Ticket); s.RedrivenAs != "" {
			r.Fatalf("recorded as %s before it was done", s.RedrivenAs)
		}
	}
	state, err := r.b.Redrive(r.ctx, origin.Ticket, "", "human")
	r.must(err)
	if state.Ticket != again || state.Origin != origin.Ticket || state.Agent != to[0] {
		r.Errorf("redriven as %s, origin %s, with %s", state.Ticket, state.Origin, state.Agent)
	}
	if s := r.state(origin.Ticket); s.RedrivenAs != again {
		r.Errorf("recorded as %q", s.RedrivenAs)
	}
	_, err = r.b.Redrive(r.ctx, origin.Ticket, to[1], "human")
	wantCode(k, err, protocol.CodeConflict)
	if n := len(r.entries(again)); n != 1 {
		r.Errorf("%d entries", n)
	}
	claim := r.accept(to[0])
	if len(claim.Package) < protocol.InlineBytesMax {
		r.Errorf("the package is %d bytes", len(claim.Package))
	}
	r.must(claim.Complete(r.ctx, protocol.Result{}))
	_, err = r.b.Redrive(r.ctx, again, "", "human")
	wantCode(k, err, protocol.CodeIllegal) // it succeeded

	// To somebody else, who must be there.
	gone := r.dead(pkg("lead", to[0]), to[0])
	r.must(r.b.RemoveProfile(r.ctx, to[0]))
	_, err = r.b.Redrive(r.ctx, gone.Ticket, "", "human")
	wantCode(k, err, protocol.CodeUnknownAgent)
	if s := r.state(gone.Ticket); s.RedrivenAs != "" {
		r.Errorf("refused, and recorded as %s", s.RedrivenAs)
	}
	state, err = r.b.Redrive(r.ctx, gone.Ticket, to[1], "human")
	r.must(err)
	if state.Agent != to[1] {
		r.Errorf("with %s", state.Agent)
	}

	// What is open, or a return, is refused.
	open := r.submit(pkg("lead", to[1]))
	_, err = r.b.Redrive(r.ctx, open.Ticket, "", "human")
	wantCode(k, err, protocol.CodeIllegal)
	origin = r.dead(delegated(pkg(to[1], to[2])), to[2])
	r.must(r.b.EnsureReturn(r.ctx, origin))
	_, err = r.b.Cancel(r.ctx, origin.State.ReturnTicket, "human", "unread")
	r.must(err)
	_, err = r.b.Redrive(r.ctx, origin.State.ReturnTicket, "", "human")
	wantCode(k, err, protocol.CodeIllegal)
}

// redriveTrail redrives twice: the third agent reads why the first two failed.
func redriveTrail(k *kit) {
	r := k.relatives()
	to := r.registered(1)
	origin := r.dead(pkg("lead", to[0]), to[0])
	for range 2 {
		state, err := r.b.Redrive(r.ctx, origin.Ticket, "", "human")
		r.must(err)
		claim := r.accept(to[0])
		if claim.Ticket != state.Ticket {
			r.Fatalf("got %s, want %s", claim.Ticket, state.Ticket)
		}
		var trail []protocol.EventType
		for _, e := range claim.Trail {
			trail = append(trail, e.Event)
		}
		want := []protocol.EventType{protocol.EventFailed, protocol.EventRedriven}
		if origin.State.Origin != "" {
			want = append(want, want...)
		}
		if !slices.Equal(trail, want) {
			r.Errorf("trail %v, want %v", trail, want)
		}
		r.must(claim.Fail(r.ctx, broker.Failure{Code: "no", Message: "still not"}))
		origin = r.decide(state.Ticket)
	}
}

// redriveMember redrives one of a group, shared or of its own, and a whole group.
func redriveMember(k *kit) {
	r := k.relatives()
	to := r.registered(3)
	shared := pkg("lead", to...)
	shared.Return = &protocol.ReturnProtocol{Expected: true, Aggregation: protocol.AggregateAny, CancelRest: true}
	differing := pkg("lead")
	differing.Target, differing.Type = protocol.Target{}, ""
	for _, agent := range to {
		differing.Members = append(differing.Members, protocol.Member{Target: protocol.Target{Agent: agent}, Task: &protocol.Task{Description: "for " + agent}})
	}
	for i, p := range []protocol.Package{shared, differing} {
		group := r.submit(p)
		for _, agent := range to {
			r.must(r.accept(agent).Fail(r.ctx, broker.Failure{Code: "no"}))
		}
		for n := range to {
			r.decide(protocol.ChildTicketN(group.Ticket, n))
		}
		ended, err := r.ensure(group)
		r.must(err)
		closed, _, err := r.b.UpdateFrom(r.ctx, group, func(h broker.Head, d *lifecycle.Directory, now time.Time) ([]protocol.Event, error) {
			return lifecycle.MarkChildren(h.State, d, ended, now), nil
		})
		r.must(err)
		if closed.State.Outcome != protocol.OutcomeFailed {
			r.Fatalf("the group is %s, %q", closed.State.Phase, closed.State.Outcome)
		}
		member := protocol.ChildTicketN(group.Ticket, 1)
		state, err := r.b.Redrive(r.ctx, member, "", "human")
		r.must(err)
		if state.Agent != to[1] || state.Group != "" || state.N != 0 || state.Aggregate != nil || state.Origin != member {
			r.Errorf("the member is redriven to %s, group %q, n %d", state.Agent, state.Group, state.N)
		}
		claim := r.accept(to[1])
		if got, err := protocol.DecodePackage(claim.Package); err != nil || i == 1 && got.Task.Description != "for "+to[1] {
			r.Errorf("its task is %q, %v", got.Task.Description, err)
		}
		r.must(claim.Complete(r.ctx, protocol.Result{}))
		_, err = r.b.Redrive(r.ctx, group.Ticket, to[0], "human")
		wantCode(k, err, protocol.CodeConflict)
		state, err = r.b.Redrive(r.ctx, group.Ticket, "", "human")
		r.must(err)
		if state.Aggregate == nil || state.Aggregate.Size != 3 {
			r.Fatalf("the group is redriven as %+v", state.Aggregate)
		}
		for n, agent := range to {
			if got := r.accept(agent); got.Ticket != protocol.ChildTicketN(state.Ticket, n) {
				r.Errorf("member %d is %s", n, got.Ticket)
			}
		}
	}
}

// stammering is an engine whose ledger tells some heads twice, first as they
// were before: what replicas do when an append comes in between.
type stammering struct {
	broker.Engine
	before map[string]broker.Entry
}

func (s *stammering) Heads(ctx context.Context, fn func(broker.Entry) error) error {
	for _, e := range s.before {
		if err := fn(e); err != nil {
			return err
		}
	}
	return s.Engine.Heads(ctx, fn)
}

func listsTwice(k *kit) {
	r := k.relatives()
	to := r.registered(2)
	s := &stammering{Engine: r.Engine, before: map[string]broker.Entry{}}
	b := k.brokerOver(s)
	note := func(ticket string) {
		e, err := r.Last(r.ctx, ticket, 0)
		r.must(err)
		s.before[ticket] = e
	}
	waits := r.submit(pkg("lead", to[0]))
	note(waits.Ticket)
	claim := r.accept(to[0])
	done := r.submit(pkg("lead", to[0]))
	note(done.Ticket)
	r.must(r.accept(to[0]).Complete(r.ctx, protocol.Result{}))
	dead := r.dead(pkg("lead", to[1]), to[1])
	note(dead.Ticket)
	_, err := r.b.Redrive(r.ctx, dead.Ticket, "", "human")
	r.must(err)

	inbox, err := b.Inbox(r.ctx, to[0])
	r.must(err)
	if len(inbox) != 1 || inbox[0].State.Ticket != claim.Ticket || inbox[0].Why != lifecycle.WaitsHeld {
		r.Errorf("the inbox is %+v, want %s once, held", inbox, claim.Ticket)
	}
	letters, err := b.DeadLetters(r.ctx, func(s protocol.State) bool { return s.Agent == to[1] })
	r.must(err)
	if len(letters) != 1 || letters[0].RedrivenAs == "" {
		r.Errorf("dead letters %+v, want the one, redriven", letters)
	}
}

func dismissOnce(k *kit) {
	r := k.relatives()
	to := r.registered(1)
	head := r.submit(pkg("nobody-"+to[0], to[0])) // a source without a queue: a person sees what came back
	_, err := r.b.Dismiss(r.ctx, head.Ticket, "human", "")
	wantCode(k, err, protocol.CodeIllegal)
	r.must(r.accept(to[0]).HandBack(r.ctx, "not mine", nil))
	listed := func() bool {
		inbox, err := r.b.Inbox(r.ctx, protocol.Human)
		r.must(err)
		return slices.ContainsFunc(inbox, func(w broker.Waiting) bool { return w.State.Ticket == head.Ticket })
	}
	if !listed() {
		r.Error("the inbox does not list it")
	}
	for range 2 {
		state, err := r.b.Dismiss(r.ctx, head.Ticket, "human", "seen")
		r.must(err)
		if state.Inbox != "" {
			r.Errorf("it is still in the inbox of %q", state.Inbox)
		}
	}
	if listed() || len(r.entries(head.Ticket)) != 4 {
		r.Errorf("listed %t after %v", listed(), r.entries(head.Ticket))
	}
	dead, err := r.b.DeadLetters(r.ctx, func(s protocol.State) bool { return s.Ticket == head.Ticket })
	r.must(err)
	if len(dead) != 1 {
		r.Errorf("%d dead letters", len(dead))
	}
}

// keyLater submits again under a key when the same would be refused by now.
func keyLater(k *kit) {
	r := k.relatives()
	to := r.registered(2)
	var all []protocol.Package
	var first []string
	for i, p := range []protocol.Package{pkg("lead", to[0]), pkg("lead", to...), pkg("lead", to[1])} {
		p.Key = fmt.Sprintf("%s-%d", to[0], i)
		if i == 2 {
			p.Constraints.Deadline = time.Now().Add(200 * time.Millisecond)
		}
		all = append(all, p)
		first = append(first, r.submit(p).Ticket)
	}
	r.must(r.b.RemoveProfile(r.ctx, to[0]))
	r.until("the deadline", func() bool { return time.Now().After(all[2].Constraints.Deadline) })
	_, err := r.b.Directory(r.ctx)
	r.must(err)
	for i, p := range all {
		again := r.submit(p)
		if again.Ticket != first[i] {
			r.Errorf("ticket %s, then %s", first[i], again.Ticket)
		}
		p.Reason = "another"
		_, err := r.trySubmit(p)
		wantCode(k, err, protocol.CodeKeyReused)
	}
	late := all[2]
	late.Key = "first at " + to[0]
	_, err = r.trySubmit(late)
	wantCode(k, err, protocol.CodePast)
	late.Key = ""
	_, err = r.b.Prepare(late)
	wantCode(k, err, protocol.CodePast)
}

// handOnTo hands on to whoever has a part in it already.
func handOnTo(k *kit) {
	r := k.relatives()
	to := r.registered(2)
	for name, c := range map[string]struct {
		to   string
		code protocol.Code
	}{
		"itself":  {to[1], protocol.CodeConflict},
		"nobody":  {"nobody-" + to[0], protocol.CodeUnknownAgent},
		"handoff": {protocol.System, protocol.CodeUnknownAgent},
		"source":  {to[0], ""},
		"human":   {protocol.Human, ""},
	} {
		r.submit(pkg(to[0], to[1]))
		claim := r.accept(to[1])
		_, err := claim.HandOff(r.ctx, broker.Child{N: 0, Package: pkg("", c.to)})
		if c.code != "" {
			wantCode(k, err, c.code)
			if made := r.state(claim.Ticket).Children; made != nil {
				r.Errorf("%s: recorded %v", name, made.Made.Numbers())
			}
			continue
		}
		r.must(err)
		if s := r.state(protocol.ChildTicketN(claim.Ticket, 0)); s.Agent != c.to {
			r.Errorf("%s: with %s", name, s.Agent)
		}
	}
}
