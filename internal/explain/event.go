package explain

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/google/uuid"

	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/protocol/lifecycle"
)

// By names who caused an event; the id of a holder is shortened.
func By(by string) string {
	if _, err := uuid.Parse(by); err == nil {
		return "holder " + by[:8]
	}
	return by
}

// Event says who caused an event, and its details in words.
func Event(e protocol.Event) (by, detail string) {
	switch e := e.(type) {
	case *protocol.Submitted:
		detail = Join(string(e.Summary.Type), e.Summary.Source+" -> "+e.Summary.TargetWords(), string(e.Summary.Priority))
		if e.Summary.Origin != "" {
			detail = Join(detail, "redrive of "+e.Summary.Origin)
		}
		return e.By, detail
	case *protocol.Offered:
		return e.By, Join("to "+e.Agent, e.Reason, routingText(e.Routing))
	case *protocol.Claimed:
		return e.By, Join(e.Agent, "lease "+Millis(e.LeaseMS))
	case *protocol.Accepted:
		detail = Join(e.Agent, fmt.Sprintf("attempt %d", e.Attempt), "lease "+Millis(e.LeaseMS))
		if !e.EstimatedCompletion.IsZero() {
			detail = Join(detail, "done by "+Instant(e.EstimatedCompletion))
		}
		return e.By, detail
	case *protocol.Started:
		return e.By, ""
	case *protocol.Progressed:
		words := strings.TrimSpace(Number(e.Progress.Percent) + "% " + e.Progress.Message)
		return e.By, Join(words, used(e.Progress.Usage))
	case *protocol.Spent:
		return e.By, Join(Usage(e.Usage)+" so far", strings.TrimPrefix(string(e.Source), string(protocol.UsageReport)))
	case *protocol.Completed:
		size := len(e.Result)
		if e.Blob != nil {
			size = int(e.Blob.Size)
		}
		return e.By, Join(string(e.Status), protocol.Size(int64(size)), used(e.Usage))
	case *protocol.Failed:
		detail = e.Code + ": " + e.Message
		if !e.Retryable {
			detail = "for good: " + detail
		}
		return e.By, detail
	}
	return describeTurn(e)
}

// describeTurn is Event for the events by which a handoff changes its course.
func describeTurn(e protocol.Event) (by, detail string) {
	switch e := e.(type) {
	case *protocol.Rejected:
		detail = Join(e.Agent+": "+e.Reason, e.ReasonCode)
		if e.Alternative != "" {
			detail = Join(detail, "suggests "+e.Alternative)
		}
		return e.By, detail
	case *protocol.Conditioned:
		needs := Needs(protocol.Conditions{NeedsContext: e.NeedsContext, NeedsPermission: e.NeedsPermission})
		if needs != "" {
			needs = "needs " + needs
		}
		if e.RetryAfterMS > 0 {
			needs = Join(needs, "again after "+Millis(e.RetryAfterMS))
		}
		if e.EstimatedCompletionMS > 0 {
			needs = Join(needs, "then done in "+Millis(e.EstimatedCompletionMS))
		}
		return e.By, Join(e.Agent+" "+needs, e.Reason)
	case *protocol.Answered:
		return e.Answer.By, Answer(e.Answer)
	case *protocol.RetryScheduled:
		return e.By, fmt.Sprintf("after attempt %d, at %s", e.Attempt, e.Due.UTC().Format("15:04:05.000"))
	case *protocol.Rerouted:
		manual := ""
		if e.Manual {
			manual = "by hand"
		}
		if len(e.Override) > 0 {
			manual += ", overriding " + strings.Join(e.Override, " and ")
		}
		return e.By, Join(e.From+" -> "+e.To, manual, e.Reason)
	case *protocol.Escalated:
		assessment := ""
		if e.Assessment != "" {
			assessment = "assessment: " + e.Assessment
		}
		return e.By, Join(fmt.Sprintf("level %d", e.Level), e.From+" -> "+e.To, e.Reason, assessment)
	case *protocol.LeaseLost:
		if e.Fence == 0 {
			if e.Reason == protocol.NotAcknowledged {
				return e.By, "the claim was not acknowledged in time; not charged"
			}
			return e.By, "the holder of the claim is gone; not charged"
		}
		return e.By, fmt.Sprintf("the worker of attempt %d is gone", e.Attempt)
	case *protocol.Released:
		return e.By, Join("released, not charged", e.Reason)
	case *protocol.Reminded:
		return e.By, "most of the time is used up"
	case *protocol.Extended:
		return e.By, Join("until "+Instant(e.Until), e.Reason)
	case *protocol.TimedOut:
		return e.By, Join(string(e.Clock)+" timeout", e.Agent)
	case *protocol.Deadlocked:
		return e.By, fmt.Sprintf("what holds the slots of %s waits for it: a circle of %s", e.Agent, Count(len(e.Cycle), "handoff"))
	case *protocol.CancelRequested:
		what := ""
		if e.Return {
			what = "to be rolled back to its source"
		}
		if e.Children {
			what = Join(what, "and all that it has handed off")
		}
		return e.By, Join(what, e.Reason)
	case *protocol.Closed:
		return e.By, Join(string(e.Outcome)+" ("+e.Reason+")", e.Message, inboxWords(e.Inbox))
	case *protocol.Stuck:
		return e.By, e.Reason
	}
	return describeGate(e)
}

// describeFamily is Event for other handoffs, late results and what follows the end.
func describeFamily(e protocol.Event) (by, detail string) {
	switch e := e.(type) {
	case *protocol.HandedOff:
		after := ""
		switch {
		case e.After:
			after = "begins when this completes"
		case e.Goto:
			after = "its chain goes on with that"
		}
		return e.By, Join(string(e.Type)+" to "+e.Target, e.Ticket, after, After("undelivered: ", e.Undelivered))
	case *protocol.Suspended:
		return e.By, fmt.Sprintf("lets go until what it handed off has ended: %s, not charged", Count(len(e.Children), "handoff"))
	case *protocol.ChildrenClosed:
		return e.By, childrenText(e.Children)
	case *protocol.Taken:
		return e.By, Join("by "+e.Agent+", out of turn", "lease "+Millis(e.LeaseMS), e.Reason)
	case *protocol.RolledBack:
		partial := ""
		if len(e.Result) > 0 || e.Blob != nil {
			partial = "with a partial result"
		}
		return e.By, Join("rolled back to its source", e.Reason, partial, inboxWords(e.Inbox))
	case *protocol.LateResultUsed:
		return e.By, fmt.Sprintf("the late result in entry %d completes it", e.Seq)
	case *protocol.ResultParked:
		said := string(e.Status)
		if e.Malformed != "" {
			said = e.Malformed
		}
		return e.By, Join(fmt.Sprintf("the result of attempt %d came late and changes nothing", e.Attempt), said)
	case *protocol.ChainEnded:
		return e.By, Join(fmt.Sprintf("its chain ended with %s", e.End.Outcome), After("at ", e.End.Agent), e.End.Ticket)
	case *protocol.ReturnSent:
		return e.By, fmt.Sprintf("the return goes to %s, as %s", e.To, e.Ticket)
	case *protocol.Returned:
		if !e.Delivered {
			return e.By, Join("not delivered", e.Reason)
		}
		return e.By, "the return is received"
	case *protocol.Redriven:
		return e.By, "submitted again, as " + e.Ticket
	case *protocol.Assigned:
		return e.By, fmt.Sprintf("member %d goes to %s, and no other member does", e.N+1, e.Agent)
	case *protocol.Barred:
		return e.By, barredText(e)
	case *protocol.Raised:
		return e.By, "its limits are raised by " + amountsText(e.Limits)
	case *protocol.Dismissed:
		return e.By, Join("out of the inbox", e.Note)
	}
	return protocol.CausedBy(e), lifecycle.EventWords(e.EventType())
}

// inboxWords say in whose inbox an end is listed.
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
		vote := ""
		if c.Vote != "" {
			vote = " (" + string(c.Vote) + ")"
		}
		parts = append(parts, fmt.Sprintf("#%d %s%s", c.N+1, c.Outcome, vote))
	}
	return Some(parts)
}

// Answer writes an answer in words.
func Answer(answer protocol.Answer) string {
	var parts []string
	if answer.Permit {
		parts = append(parts, "permitted")
	}
	if answer.Deny {
		parts = append(parts, "denied", answer.DenyReason)
		if answer.LetOthers {
			parts = append(parts, "others may decide")
		}
	}
	parts = append(parts, slices.Sorted(maps.Keys(answer.Variables))...)
	return Join(append(parts, answer.Text)...)
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
	return Join(append(parts, r.Warnings...)...)
}
