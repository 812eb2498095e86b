package cli

import (
	"testing"
	"time"

	"github.com/agenthandoff/handoff/internal/explain"
	"github.com/agenthandoff/handoff/internal/lifecycle"
	"github.com/agenthandoff/handoff/protocol"
)

// tale is a handoff whose states are made by the core, and who is about.
type tale struct {
	t     testing.TB
	seq   uint64
	state protocol.State
	d     *lifecycle.Directory
	now   time.Time
	ahead int64
	depth int

	inHand int
	open   []explain.Relative

	changes []protocol.Change
}

func newTale(t testing.TB) *tale {
	g := &tale{t: t, now: midday, ahead: -1, depth: -1, d: &lifecycle.Directory{Revision: 1, Agents: map[string]*protocol.Profile{},
		Holders: map[string]protocol.Holder{}, LastPresent: map[string]time.Time{}, ConnectedSince: midday.Add(-48 * time.Hour)}}
	g.agent("reviewer", nil)
	return g
}

func (g *tale) agent(id string, change func(*protocol.Profile)) *tale {
	p := protocol.Profile{ID: id}
	if change != nil {
		change(&p)
	}
	g.d.Agents[id] = &p
	return g
}

// worker is one that serves an agent, with four slots.
func (g *tale) worker(agent, holder string, busy int) *tale {
	g.d.Holders[holder] = protocol.Holder{ID: holder, Agent: agent, LeaseMS: 30_000, Slots: 4, Busy: busy, Host: "builder", PID: 4711}
	return g
}

func (g *tale) gone(holder string) *tale {
	delete(g.d.Holders, holder)
	return g
}

func (g *tale) pass(d time.Duration) *tale {
	g.now = g.now.Add(d)
	return g
}

func (g *tale) submit(change func(*protocol.Summary)) *tale {
	g.t.Helper()
	s := protocol.Summary{Type: protocol.Sequential, Source: "lead", Target: protocol.Target{Agent: "reviewer"},
		Priority: protocol.Normal, Deadline: g.now.Add(24 * time.Hour), Digest: "sha256:00"}
	if change != nil {
		change(&s)
	}
	return g.act(lifecycle.Submit(whyTicket, s, protocol.Submitted{Package: []byte(`{}`)}, g.d.At(g.now)))
}

func (g *tale) add(events ...protocol.Event) *tale {
	g.t.Helper()
	return g.act(lifecycle.StepOf(g.state, events...))
}

// act appends a step of the core.
func (g *tale) act(step lifecycle.Step, err error) *tale {
	g.t.Helper()
	if err != nil {
		g.t.Fatal(err)
	}
	next := step.State
	g.seq++
	next.Bind(g.seq)
	g.state = next
	g.changes = append(g.changes, protocol.Change{Seq: g.seq, At: g.now, Record: protocol.Record{Events: step.Events, State: next}})
	return g
}

// look appends what a supervisor would.
func (g *tale) look() *tale {
	g.t.Helper()
	if step, err := lifecycle.Decide(g.state, g.d.At(g.now)); err != nil || len(step.Events) > 0 {
		g.act(step, err)
	}
	return g
}

func (g *tale) meta() protocol.Meta { return protocol.Meta{At: g.now, By: whyHolder} }

func (g *tale) claimant() lifecycle.Claimant {
	return lifecycle.Claimant{Agent: g.state.Agent, Holder: whyHolder, LeaseMS: 30_000, Offer: g.state.Offer}
}

// ack answers the offer that stands, by the worker.
func (g *tale) ack(ack protocol.Ack, start bool) *tale {
	g.t.Helper()
	return g.act(lifecycle.Acknowledge(g.state, g.claimant(), ack, start, g.now))
}

func (g *tale) accept() *tale { return g.ack(protocol.Ack{Status: protocol.AckAccepted}, true) }

func (g *tale) fail(code, message string, retryable bool) *tale {
	return g.add(&protocol.Failed{Meta: g.meta(), Fence: g.state.Fence, Attempt: g.state.Attempt, Code: code, Message: message, Retryable: retryable})
}

func (g *tale) told() explain.Explanation {
	return explain.Explain(explain.Situation{State: g.state, Directory: g.d, Now: g.now, Zone: time.UTC, Ahead: g.ahead, Depth: g.depth, InHand: g.inHand, Open: g.open})
}

func policy(change func(*protocol.PolicyOverrides)) func(*protocol.Summary) {
	return func(s *protocol.Summary) { change(&s.Overrides) }
}

func to[T any](v T) *T { return &v }
