package doctor

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/broker/jetstream"
	"github.com/agenthandoff/handoff/internal/index/ask"
	"github.com/agenthandoff/handoff/protocol/lifecycle"
)

// Access is how a doctor reaches an engine.
type Access struct {
	// Where names the engine for people.
	Where string
	// Diagnose connects and reads the state of the server, without the questions named.
	Diagnose func(ctx context.Context, without ...string) (jetstream.Diagnosis, error)
	// Open returns the broker of the engine. The caller calls done.
	Open func(ctx context.Context) (b *broker.Broker, done func(), err error)
	// Strays finds the messages that no part of Handoff wrote. It needs an Open before.
	Strays func(ctx context.Context, d *lifecycle.Directory) ([]jetstream.Strays, error)
}

// ExamineServer reads the state of the server alone, without the questions named.
func ExamineServer(ctx context.Context, to Access, without ...string) Examination {
	x := Examination{where: to.Where, now: time.Now()}
	x.engine, x.reachErr = to.Diagnose(ctx, without...)
	return x
}

// Examine reads the facts for all checks. A read that fails is a finding of its check.
func Examine(ctx context.Context, to Access, skip []string) Examination {
	x := ExamineServer(ctx, to)
	if x.reachErr != nil || x.engine.Unanswered["account"] != nil {
		return x
	}
	b, done, err := to.Open(ctx)
	if err != nil {
		x.openErr = err
		return x
	}
	defer done()
	directory, err := b.Directory(ctx)
	if err == nil {
		x.agents, err = examineAgents(ctx, b, directory)
	}
	x.agentsErr = err
	if x.straysErr = err; err == nil {
		x.strays, x.straysErr = to.Strays(ctx, directory)
	}
	x.now = time.Now()
	x.heads, x.headsErr = examineHeads(ctx, b, directory)
	if x.headsErr == nil {
		x.headsErr = examineOrphans(ctx, b, &x.heads)
	}
	if !slices.Contains(skip, "gates") {
		x.locks, x.locksErr = examineLocks(ctx, b, x.now)
	}
	if !slices.Contains(skip, "index") {
		x.index, x.indexErr = ask.Client{Asker: b}.Position(ctx, ask.PositionQuery{})
	}
	return x
}

// examineAgents collects the agents with their workers and queues.
func examineAgents(ctx context.Context, b *broker.Broker, d *lifecycle.Directory) ([]agentFacts, error) {
	queues, err := b.Queues(ctx)
	if err != nil {
		return nil, err
	}
	facts := map[string]*agentFacts{}
	of := func(id string) *agentFacts {
		if facts[id] == nil {
			profile, known := d.Agent(id)
			facts[id] = &agentFacts{id: id, registered: known}
			facts[id].why, _ = d.Unavailable(profile)
			facts[id].workers, _, _ = d.Load(id)
			facts[id].polled, facts[id].polls = d.Polled(id)
			if policy := d.BreakerPolicy(id); policy.Threshold > 0 {
				facts[id].breaker, _ = lifecycle.Breaker(d.Health[id].Health, policy, b.Now())
			}
		}
		return facts[id]
	}
	for id := range d.Agents {
		of(id)
	}
	for _, q := range queues {
		f := of(q.Agent)
		f.queued += q.Depth
		if f.oldest.IsZero() || q.Oldest.Before(f.oldest) {
			f.oldest = q.Oldest
		}
	}
	var all []agentFacts
	for _, id := range slices.Sorted(maps.Keys(facts)) {
		all = append(all, *facts[id])
	}
	return all, nil
}

// examineHeads reads the head of every handoff.
func examineHeads(ctx context.Context, b *broker.Broker, d *lifecycle.Directory) (headFacts, error) {
	f := headFacts{waits: lifecycle.WaitGraph{Early: true}}
	err := b.Heads(ctx, func(e broker.Entry) error {
		head, err := broker.HeadOf(e)
		var unread *broker.UnreadableError
		if errors.As(err, &unread) {
			f.addUnreadable(unread)
		} else {
			f.addHead(head, d, time.Now())
		}
		return ctx.Err()
	})
	for _, found := range f.waits.Deadlocks(d) {
		f.deadlocks.add(found.Youngest.Ticket, strings.Join(found.Agents, ", "))
	}
	return f, err
}

const (
	// orphanTimeout is how long a supervisor may take for a handoff whose holder
	// has gone. The documented time is five seconds.
	orphanTimeout = 10 * time.Second
	// orphanInterval is the time between two checks of an orphan.
	orphanInterval = 500 * time.Millisecond
)

// examineOrphans waits until a supervisor has dealt with the handoffs whose holder is gone. The
// rest are overdue.
func examineOrphans(ctx context.Context, b *broker.Broker, f *headFacts) error {
	end := time.Now().Add(orphanTimeout)
	for {
		left := f.orphans[:0:0]
		for _, o := range f.orphans {
			still, err := isOrphaned(ctx, b, o)
			if err != nil {
				return err
			}
			if still {
				left = append(left, o)
			}
		}
		if f.orphans = left; len(left) == 0 || time.Now().After(end) {
			break
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(orphanInterval):
		}
	}
	for _, o := range f.orphans {
		f.overdue.add(o.ticket, "whose worker of "+o.agent+" is gone")
	}
	return nil
}

// isOrphaned reads from the leader whether a handoff is still held by a holder that is gone.
func isOrphaned(ctx context.Context, b *broker.Broker, o orphan) (bool, error) {
	head, err := b.Head(ctx, o.ticket, 0)
	switch {
	case errors.Is(err, broker.ErrNotFound), broker.Unreadable(err):
		return false, nil
	case err != nil:
		return false, err
	case !head.State.Held() || head.State.Holder != o.holder:
		return false, nil
	}
	_, err = b.Holder(ctx, o.holder)
	if errors.Is(err, broker.ErrNotFound) {
		return true, nil
	}
	return false, err
}
