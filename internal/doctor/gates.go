package doctor

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/explain"
	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/protocol/lifecycle"
)

// addGate adds a handoff that waits before its next offer.
func (f *headFacts) addGate(s protocol.State, directory *lifecycle.Directory, now time.Time) {
	if s.Gate == nil {
		return
	}
	f.gated++
	asked := lifecycle.AskedAtGate(s)
	switch until := s.Gate.Until; {
	case !until.IsZero() && now.Sub(until) > lifecycle.LateAfter:
		f.lapsed.add(s.Ticket, fmt.Sprintf("%s since %s", s.Gate.First(), explain.Instant(until)))
	case asked != "" && asked != protocol.Human && directory != nil && !directory.Attended(asked):
		f.unanswered.add(s.Ticket, asked)
	}
}

// strayLock is a lock of a handoff that is no longer open.
type strayLock struct{ workspace, path, ticket string }

// examineLocks finds the locks of handoffs that closed more than lifecycle.LateAfter ago, or that
// the ledger has dropped.
func examineLocks(ctx context.Context, b *broker.Broker, now time.Time) (stray []strayLock, err error) {
	all, err := b.Workspaces(ctx)
	if errors.Is(err, &protocol.Error{Code: protocol.CodeUnsupported}) { // an engine without them
		return nil, nil
	}
	over := map[string]bool{}
	for _, w := range all {
		for _, l := range w.Locks {
			gone, known := over[l.Ticket]
			if !known {
				if gone, err = isOver(ctx, b, l.Ticket, now); err != nil {
					return stray, err
				}
				over[l.Ticket] = gone
			}
			if gone {
				stray = append(stray, strayLock{w.Name, l.Path, l.Ticket})
			}
		}
	}
	return stray, err
}

// isOver tells whether a handoff has been over for so long that its locks should be free.
func isOver(ctx context.Context, b *broker.Broker, ticket string, now time.Time) (bool, error) {
	head, err := b.Head(ctx, ticket, 0)
	switch {
	case errors.Is(err, broker.ErrNotFound):
		return true, nil
	case broker.Unreadable(err):
		return false, nil
	}
	return err == nil && head.State.Closed && now.Sub(head.State.ClosedAt) > lifecycle.LateAfter, err
}

// judgeGates finds gates that nothing opens any more, and locks that nothing frees.
func judgeGates(x Examination) Finding {
	if f, failed := x.headsFailed(); failed {
		return f
	}
	if x.locksErr != nil {
		return Fail("see whether the engine is well, and try again", "the locks of workflows could not be read: %v", x.locksErr)
	}
	h := x.heads
	var found []Finding
	if t := h.lapsed; t.n > 0 {
		found = append(found, Fail("have every handoff looked at now; a supervisor must be there for it",
			"%s at a gate whose time is over, such as %s (%s)", explain.Is(explain.Count(t.n, "handoff"), t.n), t.first[0], t.words).
			aboutNames(t.first).withAction(explain.OpRepair))
	}
	if t := h.unanswered; t.n > 0 {
		found = append(found, Warn(fmt.Sprintf("decide it for %s, or start a worker for it", t.words),
			"%s for an approver that is not there, such as %s for %s", waits(t.n), t.first[0], t.words).
			aboutNames(t.first).withAction(explain.OpApprove, "ticket", t.first[0]).withAction(explain.OpWork, "agent", t.words))
	}
	if n := len(x.locks); n > 0 {
		l := x.locks[0]
		f := Warn("start a supervisor, whose first sweep frees them",
			"%s held by handoffs that are over, such as %s of %s by %s", explain.Is(explain.Count(n, "lock"), n), l.path, l.workspace, l.ticket)
		var tickets []string
		for _, l := range x.locks {
			tickets = append(tickets, l.ticket)
		}
		found = append(found, f.aboutNames(tickets).withAction(explain.OpSupervise))
	}
	switch {
	case len(found) > 0:
		return joined(found)
	case h.gated == 0:
		return OK("no handoff waits at one, and no lock is left over")
	}
	return OK("%s at one, and can go on", waits(h.gated))
}

func waits(n int) string {
	if n == 1 {
		return "1 handoff waits"
	}
	return fmt.Sprintf("%d handoffs wait", n)
}

// joined makes one finding of several, the worst first.
func joined(all []Finding) Finding {
	one := all[0]
	var words, do []string
	one.Actions, one.About = nil, nil
	for _, f := range all {
		words, do = append(words, f.Message), append(do, f.Do)
		one.Actions, one.About = append(one.Actions, f.Actions...), append(one.About, f.About...)
	}
	one.Message, one.Do = strings.Join(words, "; "), strings.Join(do, "; ")
	return one.aboutNames(one.About)
}
