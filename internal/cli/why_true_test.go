package cli

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/brokertest"
	"github.com/agenthandoff/handoff/internal/explain"
	"github.com/agenthandoff/handoff/internal/index/ask"
	"github.com/agenthandoff/handoff/internal/lifecycle"
	"github.com/agenthandoff/handoff/internal/supervisor"
	"github.com/agenthandoff/handoff/protocol"
)

// stage is a supervisor over an engine in memory, under a clock that jumps.
type stage struct {
	*testing.T
	ctx    context.Context
	b      *broker.Broker
	ticket string
}

func (s *stage) agent(id string, change func(*protocol.Profile)) {
	s.Helper()
	profile := protocol.Profile{ID: id}
	if change != nil {
		change(&profile)
	}
	if err := s.b.PutProfile(s.ctx, profile); err != nil {
		s.Fatal(err)
	}
}

// worker is present for longer than any of these handoffs lives.
func (s *stage) worker(agent string, busy int) protocol.Holder {
	s.Helper()
	h := protocol.Holder{ID: protocol.NewTicket(), Agent: agent, LeaseMS: protocol.LeaseMaxMS, Slots: 1, Busy: busy}
	if err := s.b.Beat(s.ctx, h); err != nil {
		s.Fatal(err)
	}
	return h
}

func (s *stage) submit(policy func(*protocol.PolicyOverrides), change func(*protocol.Package)) {
	s.Helper()
	pkg := protocol.Package{Source: "lead", Target: protocol.Target{Agent: "reviewer"}, Reason: "r", Task: protocol.Task{Description: "t"}}
	pkg.Constraints.Deadline = time.Now().Add(20 * time.Hour)
	ends, fails := protocol.DeadlineClose, protocol.ExhaustedFail // or each of them would end with a person
	pkg.Policy.OnDeadline, pkg.Policy.OnExhausted = &ends, &fails
	if policy != nil {
		policy(&pkg.Policy)
	}
	if change != nil {
		change(&pkg)
	}
	s.ticket = brokertest.Submit(s, s.b, pkg).Ticket
}

// ack answers the offer that stands.
func (s *stage) ack(h protocol.Holder, ack protocol.Ack) {
	s.Helper()
	s.append(func(state protocol.State, now time.Time) (lifecycle.Step, error) {
		c := lifecycle.Claimant{Agent: h.Agent, Holder: h.ID, LeaseMS: h.LeaseMS, Offer: state.Offer}
		return lifecycle.Acknowledge(state, c, ack, true, now)
	})
}

func (s *stage) append(make func(protocol.State, time.Time) (lifecycle.Step, error)) {
	s.Helper()
	_, _, err := brokertest.Update(s.ctx, s.b, s.ticket, func(h broker.Head, q lifecycle.Query) (lifecycle.Step, error) {
		return make(h.State, q.Now)
	})
	if err != nil {
		s.Fatal(err)
	}
}

// TestWhyComesTrue: whatever "handoff why" says of what is next, a supervisor
// does, and then; from the beginning of a handoff to its end, and nothing else
// happens before.
func TestWhyComesTrue(t *testing.T) {
	accepted := protocol.Ack{Status: protocol.AckAccepted}
	for name, c := range map[string]struct {
		play func(s *stage)
		want []protocol.EventType
	}{
		"nobody serves it": {func(s *stage) { s.submit(nil, nil) },
			[]protocol.EventType{protocol.EventEscalated, protocol.EventClosed}},
		"somebody else can do it": {func(s *stage) {
			s.agent("reviewer", can("review"))
			s.agent("ada", can("review"))
			s.worker("ada", 1)
			s.submit(func(o *protocol.PolicyOverrides) { o.QueueTimeoutMS = to(int64(600_000)) }, func(p *protocol.Package) {
				p.RequiredCapabilities = []protocol.RequiredCapability{{ID: "review"}}
			})
		}, []protocol.EventType{protocol.EventRerouted, protocol.EventEscalated, protocol.EventClosed}},
		"the work takes too long": {func(s *stage) {
			h := s.worker("reviewer", 0)
			s.submit(func(o *protocol.PolicyOverrides) { o.WorkTimeoutMS = to(int64(600_000)) }, nil)
			s.ack(h, accepted)
		}, []protocol.EventType{protocol.EventRetryScheduled, protocol.EventOffered, protocol.EventClosed}},
		"the attempt fails": {func(s *stage) {
			h := s.worker("reviewer", 0)
			s.submit(func(o *protocol.PolicyOverrides) { o.BackoffBaseMS = to(int64(60_000)) }, nil)
			s.ack(h, accepted)
			s.append(func(state protocol.State, now time.Time) (lifecycle.Step, error) {
				return lifecycle.StepOf(state, &protocol.Failed{Meta: protocol.Meta{At: now}, Fence: state.Fence, Attempt: 1, Code: "x", Message: "no", Retryable: true})
			})
		}, []protocol.EventType{protocol.EventOffered, protocol.EventClosed}},
		"nobody answers": {func(s *stage) {
			h := s.worker("reviewer", 0)
			s.submit(nil, nil)
			s.ack(h, protocol.Ack{Status: protocol.AckConditional, NeedsContext: []string{"which?"}})
		}, []protocol.EventType{protocol.EventEscalated, protocol.EventClosed}},
		"it is put off": {func(s *stage) {
			h := s.worker("reviewer", 0)
			s.submit(nil, nil)
			s.ack(h, protocol.Ack{Status: protocol.AckConditional, RetryAfterMS: 1_800_000, Reason: "not now"})
		}, []protocol.EventType{protocol.EventOffered, protocol.EventClosed}},
		"its worker does not stop": {func(s *stage) {
			h := s.worker("reviewer", 0)
			s.submit(nil, nil)
			s.ack(h, accepted)
			if _, err := s.b.Cancel(s.ctx, s.ticket, "lead", ""); err != nil {
				s.Fatal(err)
			}
		}, []protocol.EventType{protocol.EventClosed}},
		"the return does not come": {func(s *stage) {
			s.worker("reviewer", 1)
			s.submit(nil, func(p *protocol.Package) {
				p.Type, p.Return = protocol.Delegation, &protocol.ReturnProtocol{Expected: true, TimeoutMS: 900_000, OnTimeout: protocol.OnTimeoutEscalate}
			})
		}, []protocol.EventType{protocol.EventEscalated, protocol.EventClosed}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, end := newStage(t)
				defer end()
				s.agent("reviewer", nil)
				c.play(s)
				time.Sleep(2 * time.Second) // the supervisor has seen it
				for i, want := range c.want {
					s.comesTrue(i, want)
				}
				if state, err := s.b.Status(s.ctx, s.ticket); err != nil || !state.Closed {
					t.Errorf("closed %t, %v", state.Closed, err)
				}
			})
		})
	}
}

func newStage(t *testing.T) (s *stage, end func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	m := brokertest.NewMemory()
	connect := func(m *brokertest.Memory) *broker.Broker {
		b := brokertest.Over(t, m)
		return b
	}
	own := m.Connect()
	super, err := supervisor.New(connect(own), own, supervisor.Config{})
	if err != nil {
		t.Fatal(err)
	}
	var running sync.WaitGroup
	running.Go(func() {
		if err := super.Run(ctx); err != nil {
			t.Errorf("supervisor: %v", err)
		}
	})
	time.Sleep(time.Minute) // it has been there for long enough to judge
	return &stage{T: t, ctx: ctx, b: connect(m)}, func() {
		cancel()
		running.Wait()
		_ = own.Close()
		_ = m.Close()
	}
}

// slack is how much later than foreseen something may happen: timers are good to
// 250 ms, and a writer holds an announcement for a second.
const slack = 1500 * time.Millisecond

// comesTrue asks why, waits until what is said to come is due, and finds it there.
func (s *stage) comesTrue(i int, want protocol.EventType) {
	s.Helper()
	situation, err := explain.Gather(s.ctx, s.b, ask.Client{Asker: s.b}, s.ticket, time.UTC)
	if err != nil {
		s.Fatal(err)
	}
	e := explain.Explain(situation)
	if e.Next == nil || e.Next.Event != want || e.Next.Overdue {
		s.Fatalf("step %d: next is %+v, want %s; %q", i, e.Next, want, e.Sentences)
	}
	before := len(s.history())
	time.Sleep(time.Until(e.Next.At) + slack)
	var after []string
	for _, event := range s.history()[before:] {
		if event.EventType() == want {
			if late := event.When().Sub(e.Next.At); late < 0 || late > slack {
				s.Errorf("step %d: %s was foreseen at %s and came %s later", i, want, e.Next.At, late)
			}
			return
		}
		after = append(after, fmt.Sprint(event.EventType()))
	}
	s.Fatalf("step %d: %s was foreseen at %s; there came %q", i, want, e.Next.At, after)
}

func (s *stage) history() []protocol.Event {
	s.Helper()
	changes, err := s.b.History(s.ctx, s.ticket)
	if err != nil {
		s.Fatal(err)
	}
	var events []protocol.Event
	for _, c := range changes {
		events = append(events, c.Record.Events...)
	}
	return events
}

// TestWhyAsksTheIndex: what is ahead in the queue comes from an index that has
// everything, else the queue's own length does; why never fails for want of one.
func TestWhyAsksTheIndex(t *testing.T) {
	engine := brokertest.NewMemory()
	t.Cleanup(func() { _ = engine.Close() })
	b := brokertest.Over(t, engine)
	s := &stage{T: t, ctx: t.Context(), b: b}
	s.agent("reviewer", nil)
	s.worker("reviewer", 1)
	s.submit(nil, nil)
	s.submit(nil, nil)

	const own = "2 handoffs are in its queue, those being worked on included"
	for _, c := range []struct {
		answer ask.AheadAnswer
		served bool
		want   string
	}{
		{want: own},
		{ask.AheadAnswer{Position: ask.Position{Complete: true}, Waiting: true, Ahead: 7}, true, "7 handoffs are ahead of it"},
		{ask.AheadAnswer{Position: ask.Position{Complete: true}, Waiting: true}, true, "it is the next one"},
		{ask.AheadAnswer{Waiting: true, Ahead: 7}, true, own},
	} {
		stop := func() {}
		if c.served {
			stop = brokertest.Serve(t, engine, ask.VerbAhead, c.answer)
		}
		situation, err := explain.Gather(t.Context(), b, ask.Client{Asker: b}, s.ticket, time.UTC)
		if err != nil {
			t.Fatal(err)
		}
		if got := explain.Explain(situation).Sentences[0]; !strings.HasSuffix(got, ", and "+c.want+".") {
			t.Errorf("%+v: %s", c, got)
		}
		stop()
	}
}
