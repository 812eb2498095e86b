//go:build proof

package process

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"
	"golang.org/x/sync/errgroup"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/jetstream"
	"github.com/agenthandoff/handoff/internal/lifecycle"
	"github.com/agenthandoff/handoff/protocol"
)

// relaySize is how large a relay is, and how unlucky.
type relaySize struct {
	chains  int
	ahead   int           // chains that run at a time
	workers int           // processes of each agent
	percent int           // of all attempts, for each of the faults
	least   int           // how often each fault must happen
	ackWait time.Duration // of the queues; 0 is the default
	fsync   string        // of the engine, which has no faults here
	limit   time.Duration // for all of it
}

// TestRelay runs chains of handoffs around five agents whose worker processes at
// random refuse, ask, fail, sleep past their lease, panic and are killed. Every
// handoff closes once, every chain runs to its end, no late result counts, and
// the ledger adds up. The seed of the dice can be given again; which process
// meets which handoff, and when, is then still chance.
func TestRelay(t *testing.T) {
	// An offer that was with a worker when it was killed, and was not accepted,
	// comes again after the queue's ack wait: 30 s, which the short form has not.
	size := relaySize{chains: 40, ahead: 40, workers: 3, percent: 7, least: 10,
		ackWait: relayLease, fsync: "interval", limit: 3 * time.Minute}
	if long() {
		size = relaySize{chains: 400, ahead: 80, workers: 5, percent: 4, least: 100,
			fsync: "always", limit: 10 * time.Minute}
	}
	ctx, cancel := context.WithTimeout(t.Context(), size.limit)
	defer cancel()
	seed := uint64(time.Now().UnixNano())
	if given := os.Getenv("HANDOFF_RELAY_SEED"); given != "" {
		var err error
		if seed, err = strconv.ParseUint(given, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("HANDOFF_RELAY_SEED=%d", seed)
	dev := startDev(t, ctx, "--fsync", size.fsync)
	startHandoff(t, "second supervisor", []string{"NATS_URL=" + dev.url}, "supervise").AwaitOutput(ctx, "supervising")
	r := &relayDriver{t: t, b: dial(t, dev.url), size: size, seed: seed, open: map[string]bool{}, asked: make(chan protocol.State, 1000)}
	r.register(dev.url)
	began := time.Now()
	c, dismiss := startRelayWorkers(ctx, r.b, size.workers, []string{"NATS_URL=" + dev.url,
		relaySeedVar + "=" + strconv.FormatUint(seed, 10), relayPercentVar + "=" + strconv.Itoa(size.percent)})
	defer dismiss()
	people, away := context.WithCancel(ctx)
	defer away()
	desks, people := errgroup.WithContext(people)
	desks.Go(func() error { return r.answerAgents(people) })
	desks.Go(func() error { return r.servePerson(people) })
	err := r.run(ctx, func() error { return errors.Join(c.err(), people.Err()) })
	if err != nil {
		t.Errorf("%v; open: %v", err, r.stillOpen())
	}
	took := time.Since(began)
	away()
	if err := desks.Wait(); err != nil {
		t.Error(err)
	}
	dismiss()
	if err := c.err(); err != nil {
		t.Error(err)
	}
	audit := readRelay(t, context.WithoutCancel(ctx), r.b)
	audit.check(r, c)
	audit.summary(r, c, took)
}

// relayDriver is the driver of the chains.
type relayDriver struct {
	t    *testing.T
	b    *broker.Broker
	size relaySize
	seed uint64

	roots    []string        // by chain: the ticket of its first handoff
	open     map[string]bool // by ticket: false is closed, with no duty left
	finished int             // chains
	redriven int
	asked    chan protocol.State // questions to agents
}

// register makes the agents known. Each has its own leg as a capability, and the
// next two less well, so that a refused leg has somewhere to go; two of them
// escalate to a third, the others to a person.
func (r *relayDriver) register(url string) {
	r.t.Helper()
	nc, err := nats.Connect(url)
	if err != nil {
		r.t.Fatal(err)
	}
	defer nc.Close()
	engine, err := jetstream.Open(r.t.Context(), nc, jetstream.Config{AckWait: r.size.ackWait})
	if err != nil {
		r.t.Fatal(err)
	}
	defer engine.Close()
	for i, agent := range relayAgents {
		profile := protocol.Profile{ID: agent}
		for j, proficiency := range []float64{1, 0.8, 0.6} {
			profile.Capabilities = append(profile.Capabilities, protocol.Capability{ID: relayCapability(i + j), Proficiency: proficiency})
		}
		if i < 2 {
			profile.EscalatesTo = relayAgents[2]
		}
		putAgent(r.t, r.b, profile)
		if err := engine.EnsureQueue(r.t.Context(), agent); err != nil { // the workers leave it as it is
			r.t.Fatal(err)
		}
	}
}

func relayCapability(i int) string { return fmt.Sprintf("leg-%d", i%len(relayAgents)) }

// run starts one chain after the other, hands in again what failed for good, and
// returns when all legs were run and nothing is open.
func (r *relayDriver) run(ctx context.Context, broken func() error) error {
	every := time.NewTicker(100 * time.Millisecond)
	defer every.Stop()
	for next := uint64(1); ; {
		for len(r.roots) < r.size.chains && len(r.roots)-r.finished < r.size.ahead {
			if err := r.beginChain(ctx, len(r.roots)); err != nil {
				return err
			}
		}
		var ended []protocol.State
		err := r.b.Entries(ctx, broker.From(next), func(e broker.Entry) error {
			next = e.Seq + 1
			change, err := broker.DecodeChange(e)
			if err == nil && r.updateOpen(change) {
				ended = append(ended, change.Record.State)
			}
			return err
		})
		if err != nil {
			return err
		}
		for _, s := range ended {
			if err := r.continueChain(ctx, s); err != nil {
				return fmt.Errorf("%s, which closed as %s: %w", s.Ticket, s.Outcome, err)
			}
		}
		if r.finished == r.size.chains && len(r.stillOpen()) == 0 {
			return nil
		}
		if err := broken(); err != nil {
			return err
		}
		select {
		case <-every.C:
		case <-ctx.Done():
			return fmt.Errorf("%d of %d chains are through: %w", r.finished, r.size.chains, ctx.Err())
		}
	}
}

// updateOpen keeps account of what is open, and of what is promised and not there yet.
// It tells whether a handoff closed by this.
func (r *relayDriver) updateOpen(c protocol.Change) (closed bool) {
	s := c.Record.State
	promise := func(ticket string) {
		if _, there := r.open[ticket]; !there && ticket != "" {
			r.open[ticket] = true
		}
	}
	promise(s.ReturnTicket)
	promise(s.RedrivenAs)
	if s.Aggregate != nil {
		for n := range s.Aggregate.Size {
			promise(s.ChildTicket(n))
		}
	}
	for _, e := range c.Record.Events {
		switch e := e.(type) {
		case *protocol.HandedOff:
			promise(e.Ticket)
		case *protocol.Completed, *protocol.Closed, *protocol.RolledBack, *protocol.LateResultUsed:
			closed = true
		}
	}
	if s.Conditions != nil && slices.Contains(relayAgents, s.Source) {
		r.asked <- s
	}
	r.open[s.Ticket] = !s.Closed || lifecycle.DutiesOf(s).Return // whose return is still due
	return closed
}

func (r *relayDriver) stillOpen() (tickets []string) {
	for ticket, open := range r.open {
		if open {
			tickets = append(tickets, ticket)
		}
	}
	return tickets
}

// continueChain follows the end of a leg. Errands and returns are over when they are over.
func (r *relayDriver) continueChain(ctx context.Context, s protocol.State) error {
	at, isLeg, err := placeOf(s.WorkflowID, s.TaskID, s.ReturnOf != "")
	if err != nil || !isLeg || s.Reason == lifecycle.ReasonSourceEnded { // never begun: the next attempt has handed off its own
		return err
	}
	if s.Outcome != protocol.OutcomeSuccess {
		r.redriven++
		_, err := r.b.Redrive(ctx, s.Ticket, "", "the driver", true) // also to the agents that refused it
		return err
	}
	if at.leg == relayLegs-1 {
		r.finished++
	}
	return nil
}

// beginChain submits the first leg of a chain: to a capability, or to an agent by name.
func (r *relayDriver) beginChain(ctx context.Context, chain int) error {
	at := place{chain, 0}
	pkg := protocol.Package{Source: "coach", Target: protocol.Target{Agent: at.agentFor("")}, Reason: "on your marks",
		Key:     fmt.Sprintf("%d of %d", chain, r.seed),
		Task:    protocol.Task{ID: at.task(), Description: at.words()},
		Context: protocol.Context{WorkflowID: at.workflow()},
		Policy:  protocol.PolicyOverrides{BackoffBaseMS: pointer(int64(100)), BackoffCapMS: pointer(int64(500))}}
	if chain%2 == 0 {
		pkg.Target = protocol.Target{Capability: relayCapability(chain)}
	}
	prepared, err := r.b.Prepare(ctx, pkg)
	if err != nil {
		return err
	}
	r.roots = append(r.roots, prepared.Ticket)
	_, err = r.b.Submit(ctx, prepared)
	return err
}

// answerAgents replies, until ctx ends, to what agents ask agents, as soon as the driver
// sees it: the workers of those who are asked run legs.
func (r *relayDriver) answerAgents(ctx context.Context) error {
	for {
		select {
		case s := <-r.asked:
			if err := ignoreMoved(ctx, r.answer(ctx, s.Source, s)); err != nil {
				return fmt.Errorf("%s, which asks %s: %w", s.Ticket, s.Source, err)
			}
		case <-ctx.Done():
			return nil
		}
	}
}

// servePerson sees, until ctx ends, to what waits for one: questions of first legs,
// what was escalated, what came back.
func (r *relayDriver) servePerson(ctx context.Context) error {
	every := time.NewTicker(time.Second)
	defer every.Stop()
	for {
		select {
		case <-every.C:
		case <-ctx.Done():
			return nil
		}
		waiting, err := r.b.Inbox(ctx, protocol.Human)
		if err != nil && ctx.Err() == nil {
			return fmt.Errorf("the inbox: %w", err)
		}
		for _, w := range waiting {
			if err := ignoreMoved(ctx, r.handleInboxEntry(ctx, w)); err != nil {
				return fmt.Errorf("%s, which waits for a person (%s): %w", w.State.Ticket, w.Why, err)
			}
		}
	}
}

// ignoreMoved passes over the errors that are no errors: the relay is over, or the
// handoff was elsewhere by then.
func ignoreMoved(ctx context.Context, err error) error {
	var refused *protocol.Error
	if ctx.Err() != nil || errors.As(err, &refused) {
		return nil
	}
	return err
}

func (r *relayDriver) handleInboxEntry(ctx context.Context, w broker.Waiting) error {
	s := w.State
	mood := r.personRoll(s)
	switch {
	case w.Why == lifecycle.InboxHeld: // by this goroutine, a moment ago
		return nil
	case w.Why == lifecycle.InboxReview:
		_, err := r.b.Dismiss(ctx, s.Ticket, protocol.Human, "seen")
		return err
	case w.Why == lifecycle.InboxQuestion:
		return r.answer(ctx, protocol.Human, s)
	case w.Why == lifecycle.InboxEscalation && mood.oneIn(3, "advise"):
		_, err := r.b.Answer(ctx, s.Ticket, protocol.Answer{By: protocol.Human, Question: s.EscalationQuestion, Text: "you can do it"})
		return err
	case mood.oneIn(3, "reroute"):
		to := relayAgents[mood.more%uint64(len(relayAgents))]
		_, err := r.b.Reroute(ctx, s.Ticket, to, protocol.Human, "you are the one", time.Time{})
		var refused *protocol.Error
		if !errors.As(err, &refused) { // to its source: then the person does it
			return err
		}
	}
	return r.takeOver(ctx, s)
}

func (r *relayDriver) personRoll(s protocol.State) roll {
	return rollFor(r.seed, r.size.percent, s, -1)
}

// answer gives what is asked for, or denies it. A return is for its agent alone,
// and would wait for ever.
func (r *relayDriver) answer(ctx context.Context, by string, s protocol.State) error {
	answer := protocol.Answer{By: by, Question: s.Conditions.Question}
	switch {
	case s.ReturnOf == "" && r.personRoll(s).oneIn(6, "deny"):
		answer.Deny, answer.DenyReason = true, "not today"
	case len(s.Conditions.NeedsPermission) > 0:
		answer.Permit = true
	default:
		answer.Text = "red"
	}
	_, err := r.b.Answer(ctx, s.Ticket, answer)
	return err
}

// takeOver is a person who runs a leg.
func (r *relayDriver) takeOver(ctx context.Context, s protocol.State) error {
	me := protocol.Holder{ID: uuid.NewString(), Agent: protocol.Human, LeaseMS: time.Minute.Milliseconds(), Slots: 1, Busy: 1, Polling: true}
	if err := r.b.Beat(ctx, me); err != nil {
		return err
	}
	claim, err := r.b.Take(ctx, s.Ticket, me, "no worker does")
	if err == nil {
		err = r.runLeg(ctx, claim)
	}
	return errors.Join(err, r.b.RemoveHolder(context.WithoutCancel(ctx), me.ID))
}

func (r *relayDriver) runLeg(ctx context.Context, claim *broker.Claim) error {
	pkg, err := protocol.DecodePackage(claim.Package)
	if err != nil {
		return err
	}
	result, next, goesOn, err := legResult(pkg, claim.Agent)
	if err == nil && goesOn {
		result.Command, err = next.command(claim.Agent)
	}
	if err != nil {
		return err
	}
	return claim.Complete(ctx, result)
}
