package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/protocol"
)

func newHistory(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "history TICKET",
		Short: "Show everything that happened to a handoff",
		Long: `History reads the ledger's entries of one handoff, oldest first: when, how long
after the event before, what, by whom. With -o json or jsonl it is complete: each
entry with its sequence, its hash, its events and the state after them.`,
		Example: `  handoff history 5f0c…
  handoff history 5f0c… -o jsonl | jq -r '.events[].type'`,
		Args: takes("a TICKET"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.onTicket(cmd.Context(), args[0], func(ctx context.Context, b *broker.Broker, ticket string) error {
				changes, unread := b.History(ctx, ticket)
				if len(changes) == 0 || unread != nil && !broker.Unreadable(unread) {
					return unread
				}
				if a.text() {
					return errors.Join(a.history(changes), unread)
				}
				views, err := changeViews(changes)
				if err != nil {
					return err
				}
				return errors.Join(list(a, views), unread)
			})
		},
	}
}

// changeView is an entry of the ledger for programs.
type changeView struct {
	Seq    uint64            `json:"seq"`
	At     time.Time         `json:"at"` // the engine's time stamp
	ID     string            `json:"id"`
	Hash   string            `json:"hash"`
	Events []json.RawMessage `json:"events"`
	State  stateView         `json:"state"`
}

func changeViews(changes []protocol.Change) ([]changeView, error) {
	views := make([]changeView, 0, len(changes))
	for _, c := range changes {
		v := changeView{Seq: c.Seq, At: c.At.UTC(), ID: c.Record.ID, Hash: c.Hash, State: view(c.Record.State)}
		for _, e := range c.Record.Events {
			raw, err := protocol.EncodeEvent(e)
			if err != nil {
				return nil, err
			}
			v.Events = append(v.Events, raw)
		}
		views = append(views, v)
	}
	return views, nil
}

// history prints one line for each event.
func (a *app) history(changes []protocol.Change) error {
	if len(changes) == 0 {
		return nil
	}
	last := changes[len(changes)-1].Record.State
	a.printf("%s  %s -> %s  %s\n", last.Ticket, last.Source, last.TargetWords(), a.phase(last))
	rows := [][]string{{"TIME (UTC)", "AFTER", "EVENT", "BY", "DETAIL"}}
	var before time.Time
	for _, c := range changes {
		for _, e := range c.Record.Events {
			at := e.When().UTC()
			stamp, after := at.Format("15:04:05.000"), ""
			if at.Format(time.DateOnly) != before.Format(time.DateOnly) {
				stamp = at.Format("2006-01-02 15:04:05.000")
			}
			if !before.IsZero() {
				after = "+" + shortDuration(at.Sub(before))
			}
			by, detail := describe(e)
			rows = append(rows, []string{stamp, after, string(e.EventType()), who(by), detail})
			before = at
		}
	}
	if err := a.table(rows); err != nil {
		return err
	}
	if last.Closed {
		a.printf("%s after %s, attempts: %d\n", ending(last), shortDuration(last.ClosedAt.Sub(last.SubmittedAt)), last.AttemptsTotal)
	} else {
		a.printf("open for %s; waits for %s\n", shortDuration(last.UpdatedAt.Sub(last.SubmittedAt)), waitingFor(last))
	}
	return nil
}

// who shortens the id of a holder: enough to tell two workers apart.
func who(by string) string {
	if _, err := uuid.Parse(by); err == nil {
		return "holder " + by[:8]
	}
	return by
}

// describe says who caused an event, and what else a person wants to know of it.
func describe(e protocol.Event) (by, detail string) {
	switch e := e.(type) {
	case *protocol.Submitted:
		detail = join(string(e.Summary.Type), e.Summary.Source+" -> "+e.Summary.TargetWords(), string(e.Summary.Priority))
		if e.Summary.Origin != "" {
			detail = join(detail, "redrive of "+e.Summary.Origin)
		}
		return e.By, detail
	case *protocol.Offered:
		return e.By, join("to "+e.Agent, e.Reason, routingText(e.Routing))
	case *protocol.Claimed:
		return e.By, join(e.Agent, "lease "+millis(e.LeaseMS))
	case *protocol.Accepted:
		detail = join(e.Agent, fmt.Sprintf("attempt %d", e.Attempt), "lease "+millis(e.LeaseMS))
		if !e.EstimatedCompletion.IsZero() {
			detail = join(detail, "done by "+when(e.EstimatedCompletion))
		}
		return e.By, detail
	case *protocol.Started:
		return e.By, ""
	case *protocol.Progressed:
		return e.By, strings.TrimSpace(trimFloat(e.Progress.Percent) + "% " + e.Progress.Message)
	case *protocol.Completed:
		size := len(e.Result)
		if e.Blob != nil {
			size = int(e.Blob.Size)
		}
		return e.By, join(string(e.Status), fmt.Sprintf("%d bytes", size))
	case *protocol.Failed:
		detail = e.Code + ": " + e.Message
		if !e.Retryable {
			detail = "for good: " + detail
		}
		return e.By, detail
	}
	return describeTurn(e)
}

// describeTurn is describe for the events by which a handoff changes its course.
func describeTurn(e protocol.Event) (by, detail string) {
	switch e := e.(type) {
	case *protocol.Rejected:
		detail = join(e.Agent+": "+e.Reason, e.ReasonCode)
		if e.Alternative != "" {
			detail = join(detail, "suggests "+e.Alternative)
		}
		return e.By, detail
	case *protocol.Conditioned:
		needs := needsText(protocol.Conditions{NeedsContext: e.NeedsContext, NeedsPermission: e.NeedsPermission})
		if needs != "" {
			needs = "needs " + needs
		}
		if e.RetryAfterMS > 0 {
			needs = join(needs, "again after "+millis(e.RetryAfterMS))
		}
		if e.EstimatedCompletionMS > 0 {
			needs = join(needs, "then done in "+millis(e.EstimatedCompletionMS))
		}
		return e.By, join(e.Agent+" "+needs, e.Reason)
	case *protocol.Answered:
		return e.Answer.By, answerText(e.Answer)
	case *protocol.RetryScheduled:
		return e.By, fmt.Sprintf("after attempt %d, at %s", e.Attempt, e.Due.UTC().Format("15:04:05.000"))
	case *protocol.Rerouted:
		manual := ""
		if e.Manual {
			manual = "by hand"
		}
		return e.By, join(e.From+" -> "+e.To, manual, e.Reason)
	case *protocol.Escalated:
		assessment := ""
		if e.Assessment != "" {
			assessment = "assessment: " + e.Assessment
		}
		return e.By, join(fmt.Sprintf("level %d", e.Level), e.From+" -> "+e.To, e.Reason, assessment)
	case *protocol.LeaseLost:
		if e.Fence == 0 {
			if e.Reason == protocol.NotAcknowledged {
				return e.By, "the claim was not acknowledged in time; not charged"
			}
			return e.By, "the holder of the claim is gone; not charged"
		}
		return e.By, fmt.Sprintf("the worker of attempt %d is gone", e.Attempt)
	case *protocol.Released:
		return e.By, join("given back, not charged", e.Reason)
	case *protocol.Reminded:
		return e.By, "most of the time is used up"
	case *protocol.Extended:
		return e.By, join("until "+when(e.Until), e.Reason)
	case *protocol.TimedOut:
		return e.By, join(string(e.Clock)+" timeout", e.Agent)
	case *protocol.CancelRequested:
		what := ""
		if e.Return {
			what = "to be given back to its source"
		}
		if e.Children {
			what = join(what, "and all that it has handed off")
		}
		return e.By, join(what, e.Reason)
	case *protocol.Closed:
		return e.By, join(string(e.Outcome)+" ("+e.Reason+")", e.Message, inboxWords(e.Inbox))
	case *protocol.Stuck:
		return e.By, e.Reason
	}
	return describeFamily(e)
}

// describeFamily is describe for what has to do with other handoffs, with late
// results, and with what follows the end.
func describeFamily(e protocol.Event) (by, detail string) {
	switch e := e.(type) {
	case *protocol.HandedOff:
		after := ""
		if e.After {
			after = "begins when this completes"
		}
		return e.By, join(string(e.Type)+" to "+e.Target, e.Ticket, after)
	case *protocol.SourceCompleted:
		return e.By, "what it follows from has completed"
	case *protocol.Suspended:
		return e.By, fmt.Sprintf("lets go until what it handed off has ended: %s, not charged", count(len(e.Children), "handoff"))
	case *protocol.ChildrenClosed:
		return e.By, childrenText(e.Children)
	case *protocol.Taken:
		return e.By, join("by "+e.Agent+", out of turn", "lease "+millis(e.LeaseMS), e.Reason)
	case *protocol.RolledBack:
		partial := ""
		if len(e.Result) > 0 || e.Blob != nil {
			partial = "with a partial result"
		}
		return e.By, join("given back to its source", e.Reason, partial, inboxWords(e.Inbox))
	case *protocol.LateResultUsed:
		return e.By, fmt.Sprintf("the late result in entry %d completes it", e.Seq)
	case *protocol.ResultParked:
		return e.By, join(fmt.Sprintf("the result of attempt %d came late and changes nothing", e.Attempt), string(e.Status))
	case *protocol.ReturnSent:
		return e.By, fmt.Sprintf("the return goes to %s, as %s", e.To, e.Ticket)
	case *protocol.Returned:
		if !e.Delivered {
			return e.By, join("not delivered", e.Reason)
		}
		return e.By, "its source has taken in the return"
	case *protocol.Redriven:
		return e.By, "submitted again, as " + e.Ticket
	case *protocol.Assigned:
		return e.By, fmt.Sprintf("member %d goes to %s, and no other member does", e.N+1, e.Agent)
	case *protocol.Dismissed:
		return e.By, join("out of the inbox", e.Note)
	}
	return "", ""
}

// inboxWords say that somebody shall look at an end.
func inboxWords(inbox string) string {
	if inbox == "" {
		return ""
	}
	return "listed in the inbox of " + inbox
}

// childrenText says which children have ended, and how: #1 success, #2 failed.
func childrenText(children []protocol.ChildClosed) string {
	var parts []string
	for _, c := range children {
		parts = append(parts, fmt.Sprintf("#%d %s", c.N+1, c.Outcome))
	}
	return someOf(parts)
}

// count writes a number of things: 1 handoff, 2 handoffs.
func count(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}

func answerText(answer protocol.Answer) string {
	var parts []string
	if answer.Permit {
		parts = append(parts, "permitted")
	}
	if answer.Deny {
		parts = append(parts, "denied", answer.DenyReason)
	}
	parts = append(parts, slices.Sorted(maps.Keys(answer.Variables))...)
	return join(append(parts, answer.Text)...)
}

func routingText(r *protocol.Routing) string {
	if r == nil {
		return ""
	}
	var parts []string
	if n := len(r.Candidates); n > 0 { // an agent that was named is compared with none
		parts = append(parts, fmt.Sprintf("best of %d", n))
	}
	if len(r.Excluded) > 0 {
		parts = append(parts, "without "+strings.Join(r.Excluded, ", "))
	}
	return join(append(parts, r.Warnings...)...)
}

// join puts a comma between what is not empty.
func join(parts ...string) string {
	kept := parts[:0:0]
	for _, part := range parts {
		if part != "" {
			kept = append(kept, part)
		}
	}
	return strings.Join(kept, ", ")
}

func millis(ms int64) string { return shortDuration(time.Duration(ms) * time.Millisecond) }

func trimFloat(f float64) string { return strings.TrimSuffix(fmt.Sprintf("%.1f", f), ".0") }
