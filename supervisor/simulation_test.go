package supervisor_test

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/broker/audit"
	"github.com/agenthandoff/handoff/broker/brokertest"
	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/protocol/lifecycle"
	"github.com/agenthandoff/handoff/supervisor"
)

var (
	simSeed  = flag.Uint64("sim-seed", 1, "the first seed of the simulation")
	simSeeds = flag.Int("sim-seeds", 2, "how many seeds the simulation tries")
)

// Families through everything: workers that die before or behind any append,
// supervisors that come, go and are cut off, offers and wake-ups that are lost or
// doubled. In the end every handoff has closed, every promise is kept, once, and
// every parent that waited knows how each child ended. A seed gives the same dice,
// though not the same order of those who throw them. For a long run:
//
//	go test ./supervisor -run Simulation -sim-seed $RANDOM -sim-seeds 100
func TestSimulation(t *testing.T) {
	for i := range *simSeeds {
		seed := *simSeed + uint64(i)
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			inBubble(t, func(w *world) {
				s := &sim{world: w, chance: rand.New(rand.NewPCG(seed, 7)), lives: w.begun.Add(2 * time.Hour).UTC()}
				s.run()
			})
		})
	}
}

var simAgents = []string{"lead", "a", "b", "c", "d"}

type sim struct {
	*world
	mu     sync.Mutex
	chance *rand.Rand
	lives  time.Time // when the deadline of everything is
	deaths int
	roots  []string
}

func (s *sim) one(of int) bool { return s.below(of) == 0 }
func (s *sim) below(n int) int { s.mu.Lock(); defer s.mu.Unlock(); return s.chance.IntN(n) }
func (s *sim) other(not string) string {
	for {
		if a := simAgents[s.below(len(simAgents))]; a != not {
			return a
		}
	}
}

// mortal is the engine of a process that dies at an append now and then, before
// it is stored or behind that. Then nothing of it reaches anybody any more.
type mortal struct {
	broker.Engine
	s    *sim
	mu   sync.Mutex
	dead bool
}

func (m *mortal) isDead() bool { m.mu.Lock(); defer m.mu.Unlock(); return m.dead }

func (m *mortal) die() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.dead = true
}

func (m *mortal) check() error {
	if m.isDead() {
		return fmt.Errorf("%w: this process is dead", broker.ErrUnreachable)
	}
	return nil
}

func (m *mortal) Append(ctx context.Context, ticket string, after uint64, id string, body []byte) (uint64, error) {
	if m.s.one(25) {
		m.die()
	}
	if err := m.check(); err != nil {
		return 0, err
	}
	seq, err := m.Engine.Append(ctx, ticket, after, id, body)
	if err == nil && m.s.one(25) {
		m.die()
	}
	if dead := m.check(); dead != nil {
		return 0, dead
	}
	return seq, err
}

func (m *mortal) Last(ctx context.Context, ticket string, min uint64) (broker.Entry, error) {
	if err := m.check(); err != nil {
		return broker.Entry{}, err
	}
	return m.Engine.Last(ctx, ticket, min)
}

func (m *mortal) PutOffer(ctx context.Context, key broker.OfferKey, body []byte) error {
	if err := m.check(); err != nil {
		return err
	}
	return m.Engine.PutOffer(ctx, key, body)
}

func (m *mortal) Beat(ctx context.Context, h protocol.Holder) error {
	if err := m.check(); err != nil {
		return err
	}
	return m.Engine.Beat(ctx, h)
}

func (m *mortal) Pull(ctx context.Context, agent string, most int, wait time.Duration) ([]broker.Delivery, error) {
	if err := m.check(); err != nil {
		return nil, err
	}
	all, err := m.Engine.Pull(ctx, agent, most, wait)
	for i, d := range all {
		all[i] = &mortalDelivery{d, m}
	}
	return all, err
}

type mortalDelivery struct {
	broker.Delivery
	m *mortal
}

func (d *mortalDelivery) Remove() error {
	if err := d.m.check(); err != nil {
		return err
	}
	return d.Delivery.Remove()
}

// process is one life of a worker.
func (s *sim) process(ctx context.Context, agent string) {
	own := s.m.Connect()
	defer own.Close()
	engine := &mortal{Engine: own, s: s}
	b, err := broker.New(engine, broker.Config{})
	if err != nil {
		s.Error(err)
		return
	}
	h := protocol.Holder{ID: protocol.NewTicket(), Agent: agent, LeaseMS: 10_000, Slots: 1}
	var beats sync.WaitGroup
	defer beats.Wait()
	beats.Go(func() {
		for !engine.isDead() && ctx.Err() == nil {
			_ = b.Beat(ctx, h)
			sleep(ctx, 3*time.Second)
		}
	})
	defer engine.die()
	for !engine.isDead() && ctx.Err() == nil {
		offers, err := b.Pull(ctx, agent, 1, 5*time.Second)
		if err != nil || len(offers) == 0 {
			continue
		}
		claim, err := offers[0].Acknowledge(ctx, h, protocol.Ack{Status: protocol.AckAccepted}, true)
		if err != nil {
			continue
		}
		sleep(ctx, time.Duration(s.below(2000))*time.Millisecond)
		if err := s.handle(ctx, b, claim); err != nil && !engine.isDead() && !errors.Is(err, broker.ErrLeaseLost) && ctx.Err() == nil {
			var refused *protocol.Error
			if !errors.As(err, &refused) {
				s.Errorf("%s: %v", claim.Ticket, err)
			}
			_ = claim.Fail(ctx, broker.Failure{Code: "sim", Retryable: true})
		}
		if s.one(40) { // with nothing said
			return
		}
	}
}

func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d): // the bubble's clock
	}
}

func (s *sim) pkg(depth int, to ...string) protocol.Package {
	p := protocol.Package{Reason: "sim", Task: protocol.Task{Description: strings.Repeat(">", depth+1)},
		Constraints: protocol.Constraints{Deadline: s.lives}}
	if len(to) == 1 {
		p.Target.Agent = to[0]
	} else {
		p.Type, p.Target.Agents = protocol.Broadcast, to
	}
	return p
}

func (s *sim) delegation(p protocol.Package, wait string) protocol.Package {
	p.Type, p.Return = protocol.Delegation, &protocol.ReturnProtocol{Expected: true, TimeoutMS: 1_800_000, Wait: wait}
	return p
}

func (s *sim) group(depth int, not string) protocol.Package {
	var to []string
	for _, a := range simAgents {
		if a != not {
			to = append(to, a)
		}
	}
	p := s.pkg(depth, to[:2+s.below(3)]...)
	modes := []protocol.Aggregation{protocol.AggregateAll, protocol.AggregateAny, protocol.AggregateMajority}
	p.Return = &protocol.ReturnProtocol{Expected: s.one(2), Aggregation: modes[s.below(3)], CancelRest: s.one(2)}
	return p
}

// handle is one attempt.
func (s *sim) handle(ctx context.Context, b *broker.Broker, c *broker.Claim) error {
	pkg, err := protocol.DecodePackage(c.Package)
	if err != nil {
		return err
	}
	depth := len(pkg.Task.Description)
	if children := c.State().Children; children != nil && children.Closed != "" {
		if _, err := b.ChildReturns(ctx, c.State()); err != nil {
			return err
		}
		return c.Complete(ctx, protocol.Result{})
	}
	if pkg.Returned != nil || depth > 4 {
		return c.Complete(ctx, protocol.Result{})
	}
	switch s.below(10) {
	case 0, 1:
		return c.Complete(ctx, protocol.Result{}, broker.Child{N: 0, Package: s.pkg(depth, s.other(c.Agent))})
	case 2:
		to, err := json.Marshal([]string{s.other(c.Agent), "END"})
		if err != nil {
			return err
		}
		return c.Complete(ctx, protocol.Result{Command: &protocol.Command{Goto: to}})
	case 3, 4:
		n := 1 + s.below(3)
		var all []int
		for i := range n {
			child := []protocol.Package{s.delegation(s.pkg(depth, s.other(c.Agent)), "block"), s.delegation(s.pkg(depth, s.other(c.Agent)), "continue"),
				s.group(depth, c.Agent), s.pkg(depth, s.other(c.Agent))}[s.below(4)]
			if _, err := c.HandOff(ctx, broker.Child{N: i, Package: child}); err != nil {
				return err
			}
			all = append(all, i)
		}
		if s.one(4) { // it does not wait for them
			return c.Complete(ctx, protocol.Result{})
		}
		sleep(ctx, time.Duration(s.below(4))*time.Second)
		suspended, err := c.Suspend(ctx, all...)
		if err == nil && !suspended {
			return c.Complete(ctx, protocol.Result{})
		}
		return err
	case 5:
		return c.Fail(ctx, broker.Failure{Code: "sim", Retryable: s.one(2)})
	case 6:
		return c.HandBack(ctx, "sim", &protocol.Result{Status: protocol.Partial})
	}
	return c.Complete(ctx, protocol.Result{})
}

func (s *sim) run() {
	s.m.SetKnobs(brokertest.Knobs{
		DropOffer:      func(broker.OfferKey) bool { return s.one(20) },
		DuplicateOffer: func(broker.OfferKey) bool { return s.one(20) },
		DropTimer:      func(string, uint64) bool { return s.one(20) },
		DuplicateTimer: func(string, uint64) bool { return s.one(20) },
		DropFeed:       func(string, uint64) bool { return s.one(20) },
	})
	for _, a := range simAgents {
		s.agent(a, nil)
	}
	ctx, end := context.WithCancel(s.ctx)
	var all sync.WaitGroup
	for _, a := range simAgents {
		for range 2 {
			all.Go(func() {
				for ctx.Err() == nil {
					s.process(ctx, a)
					s.mu.Lock()
					s.deaths++
					s.mu.Unlock()
					sleep(ctx, time.Duration(1+s.below(15))*time.Second)
				}
			})
		}
	}
	for range 2 {
		all.Go(func() {
			for ctx.Err() == nil {
				own, stop := s.superviseQuietly()
				sleep(ctx, time.Duration(1+s.below(120))*time.Second)
				if s.one(2) {
					own.Disconnect()
					sleep(ctx, time.Duration(s.below(60))*time.Second)
					own.Reconnect()
					sleep(ctx, time.Duration(s.below(60))*time.Second)
				}
				stop()
				sleep(ctx, time.Duration(s.below(20))*time.Second)
			}
		})
	}
	all.Go(func() { s.submitAll(ctx) })
	pass(time.Until(s.lives.Add(-30 * time.Minute)))
	end()
	all.Wait()
	s.m.SetKnobs(brokertest.Knobs{})
	s.supervise(supervisor.Config{})
	for _, a := range simAgents { // the rest is done by workers that do not die
		h := s.holder(a, staying)
		s.running.Go(func() { s.finish(h) })
	}
	pass(time.Until(s.lives.Add(20 * time.Minute)))
	s.judge()
}

// superviseQuietly is supervise for what ends with an error when it is cut off.
func (s *sim) superviseQuietly() (own *brokertest.Memory, stop func()) {
	own = s.m.Connect()
	sup, err := supervisor.New(brokerOver(s.T, own), supervisor.Config{})
	if err != nil {
		s.Error(err)
	}
	ctx, cancel := context.WithCancel(s.ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = sup.Run(ctx)
		_ = own.Close()
	}()
	return own, func() { cancel(); <-ended }
}

func (s *sim) submitAll(ctx context.Context) {
	for i := range 40 {
		from := simAgents[s.below(len(simAgents))]
		p := []protocol.Package{s.pkg(0, s.other(from)), s.delegation(s.pkg(0, s.other(from)), "continue"), s.group(0, from)}[s.below(3)]
		p.Source, p.Key = from, fmt.Sprint("root ", i)
		for tries := 0; ; tries++ { // the submitter dies too, and submits again under its key
			if tries == 100 {
				s.Errorf("root %d was not submitted", i)
				break
			}
			own := s.m.Connect()
			b := s.brokerOver(&mortal{Engine: own, s: s})
			in, err := b.Prepare(p)
			if err == nil {
				_, err = b.Submit(ctx, in)
			}
			_ = own.Close()
			if err == nil {
				break
			}
			if !errors.Is(err, broker.ErrUnreachable) && ctx.Err() == nil {
				s.Errorf("root %d: %v", i, err)
			}
		}
		s.roots = append(s.roots, protocol.TicketForKey(from, p.Key))
		sleep(ctx, time.Duration(s.below(20))*time.Second)
		if s.one(6) {
			if _, err := s.b.CancelTree(ctx, s.roots[s.below(len(s.roots))], "sim", "enough"); err != nil && ctx.Err() == nil {
				s.Errorf("cancel: %v", err)
			}
		}
	}
}

func (s *sim) brokerOver(e broker.Engine) *broker.Broker {
	b, err := broker.New(e, broker.Config{})
	if err != nil {
		s.Error(err)
	}
	return b
}

// finish completes whatever comes.
func (s *sim) finish(h protocol.Holder) {
	for s.ctx.Err() == nil {
		offers, err := s.b.Pull(s.ctx, h.Agent, 1, time.Minute)
		if err != nil || len(offers) == 0 {
			continue
		}
		claim, err := offers[0].Acknowledge(s.ctx, h, protocol.Ack{Status: protocol.AckAccepted}, true)
		if err == nil {
			err = claim.Complete(s.ctx, protocol.Result{})
		}
		if err != nil && !errors.Is(err, broker.ErrOfferGone) && !errors.Is(err, broker.ErrLeaseLost) && s.ctx.Err() == nil {
			s.Errorf("finish %s: %v", offers[0].Ticket, err)
		}
	}
}

// judge reads the whole ledger.
func (s *sim) judge() {
	states := map[string]protocol.State{}
	if err := s.b.Heads(s.ctx, func(e broker.Entry) error {
		_, state, err := protocol.DecodeState(e.Body, e.Seq)
		states[e.Ticket] = state
		return err
	}); err != nil {
		s.Fatal(err)
	}
	outcomes := map[protocol.Outcome]int{}
	returns, suspensions, children := 0, 0, 0
	for ticket, state := range states {
		outcomes[state.Outcome]++
		bad := func(format string, args ...any) {
			s.Errorf("%s: %s\n\t%s", ticket, fmt.Sprintf(format, args...), strings.Join(s.story(ticket), "\n\t"))
		}
		if !state.Closed {
			bad("still %s, with %s", state.Phase, state.Agent)
			continue
		}
		if lifecycle.Owes(state) {
			bad("owes a return (%q) or the end of children", state.ReturnTicket)
		}
		if state.StuckReason != "" {
			bad("stuck: %s", state.StuckReason)
		}
		if state.ReturnOf != "" {
			returns++
		}
		s.checkChain(ticket, bad, &suspensions)
		if state.Children == nil {
			continue
		}
		for _, n := range state.Children.Made.Numbers() {
			children++
			child, there := states[protocol.ChildTicketN(ticket, n)]
			switch {
			case !there:
				bad("child %d was never submitted", n)
			case child.Parent != ticket || child.N != n+1:
				bad("child %d has parent %s, n %d", n, child.Parent, child.N)
			case state.Children.Closed.Has(n) && state.Children.Succeeded.Has(n) != (child.Outcome == protocol.OutcomeSuccess || child.Outcome == protocol.OutcomePartial):
				bad("child %d ended with %s, and is known otherwise", n, child.Outcome)
			}
		}
	}
	for _, root := range s.roots {
		if _, there := states[root]; !there {
			s.Errorf("root %s is lost", root)
		}
	}
	s.checkAudit(states)
	s.Logf("%d handoffs, %d of them children, %d returns, %d waits, %d deaths of workers: %v", len(states), children, returns, suspensions, s.deaths, outcomes)
}

// checkAudit holds the audit trail against what document 1 asks of it, and its
// verification against histories that nobody has touched.
func (s *sim) checkAudit(states map[string]protocol.State) {
	report, err := audit.VerifyLedger(s.ctx, s.b, nil)
	if err != nil {
		s.Fatal(err)
	}
	if report.Found != 0 || report.Handoffs != len(states) {
		s.Errorf("the ledger does not verify: %+v", report)
	}
	reader := audit.NewReader(s.b)
	for ticket, state := range states {
		var records []protocol.AuditRecord
		err := reader.Appends(s.ctx, ticket, func(_ broker.Entry, of []protocol.AuditRecord) error {
			records = append(records, of...)
			return nil
		})
		if err != nil {
			s.Fatal(err)
		}
		closings := 0
		for _, r := range records {
			if r.ClosedAs != "" {
				closings++
			}
		}
		if records[0].EventType != protocol.AuditInitiated || state.Closed && (closings != 1 || len(records) < 2) {
			s.Errorf("%s: %d audit records, %d of them closing: %+v", ticket, len(records), closings, records)
		}
	}
}

// checkChain makes sure that each entry follows from the one before.
func (s *sim) checkChain(ticket string, bad func(string, ...any), suspensions *int) {
	changes, err := s.b.History(s.ctx, ticket)
	if err != nil {
		s.Fatal(err)
	}
	var folded protocol.State
	hash := ""
	for i, c := range changes {
		if c.Record.State.PrevHash != hash {
			bad("entry %d does not name the hash of the one before", i)
		}
		hash = c.Hash
		if folded, err = lifecycle.ApplyAll(folded, c.Record.Events); err != nil {
			bad("entry %d: %v", i, err)
			return
		}
		folded.Bind(c.Seq)
		for _, e := range c.Record.Events {
			if e.EventType() == protocol.EventSuspended {
				*suspensions++
			}
		}
	}
	folded.PrevHash = changes[len(changes)-1].Record.State.PrevHash
	live, err := json.Marshal(changes[len(changes)-1].Record.State)
	if err != nil {
		s.Fatal(err)
	}
	replayed, err := json.Marshal(folded)
	if err != nil {
		s.Fatal(err)
	}
	if string(live) != string(replayed) {
		bad("the replay is\n%s, the ledger has\n%s", replayed, live)
	}
}
