package dossier

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/explain"
	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/protocol/lifecycle"
)

// InboxEntry is an entry of an inbox for programs: a state, and why the inbox lists it.
type InboxEntry struct {
	Why   lifecycle.InboxReason `json:"why"`
	Since time.Time             `json:"since"` // when the wait began
	Words string                `json:"words"` // the question, the outcome, or else the task
	StateView
}

// InboxEntries returns the entries of an inbox, the most urgent first: by priority, open before
// closed, the longest wait first. What the absence of an agent has brought there follows, by agent.
func InboxEntries(ctx context.Context, r Reader, waiting []broker.Waiting) ([]InboxEntry, error) {
	views := make([]InboxEntry, len(waiting))
	for i, w := range waiting {
		views[i] = InboxEntry{Why: w.Why, Since: waitingSince(w.Why, w.State), Words: waitingWords(w.Why, w.State), StateView: StateOf(w.State)}
	}
	slices.SortStableFunc(views, func(x, y InboxEntry) int {
		return cmp.Or(cmp.Compare(x.Absent, y.Absent), cmp.Compare(urgency(x.Priority), urgency(y.Priority)), cmpBool(x.Closed, y.Closed), x.Since.Compare(y.Since))
	})
	// Other entries have the task's description.
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(ReadsAtOnce)
	for i := range views {
		v := &views[i]
		if v.Words != "" || v.Aggregate != nil {
			continue
		}
		group.Go(func() (err error) {
			v.Words, err = taskWords(ctx, r, v.Ticket)
			return err
		})
	}
	return views, group.Wait()
}

func urgency(p protocol.Priority) int { return slices.Index(protocol.Priorities, p) }

func cmpBool(x, y bool) int {
	switch {
	case x == y:
		return 0
	case y:
		return -1
	}
	return 1
}

func waitingSince(why lifecycle.InboxReason, s protocol.State) time.Time {
	switch why {
	case lifecycle.InboxQuestion:
		return s.ConditionedAt
	case lifecycle.InboxReview:
		return s.ClosedAt
	case lifecycle.InboxHeld:
		if !s.AcceptedAt.IsZero() {
			return s.AcceptedAt
		}
		return s.ClaimedAt
	}
	return s.OfferedAt
}

// waitingWords says why the inbox lists the handoff, if its state has the reason.
func waitingWords(why lifecycle.InboxReason, s protocol.State) string {
	switch {
	case why == lifecycle.InboxQuestion && s.Conditions != nil:
		return s.Agent + " needs " + explain.Needs(*s.Conditions)
	case why == lifecycle.InboxReview:
		return explain.Ending(s)
	case why == lifecycle.InboxEscalation && s.Absent != "":
		return fmt.Sprintf("no worker of %s since %s; it goes back when there is one", s.Absent, explain.Instant(s.OfferedAt.Add(-lifecycle.AckTimeout(s))))
	case why == lifecycle.InboxEscalation && s.Message != "":
		return s.Message
	}
	return ""
}

// descriptionBytesMax bounds the description of a task in a list.
const descriptionBytesMax = 512

// taskWords returns the description of a handoff's task; empty if its package cannot be read.
func taskWords(ctx context.Context, r Reader, ticket string) (string, error) {
	body, err := r.Package(ctx, ticket)
	if err != nil {
		return "", ctx.Err()
	}
	pkg, err := protocol.DecodePackage(body)
	if err != nil {
		return "", nil
	}
	return protocol.CutText(pkg.Task.Description, descriptionBytesMax), nil
}
