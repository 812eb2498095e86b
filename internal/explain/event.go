package explain

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/agenthandoff/handoff/internal/lifecycle"
	"github.com/agenthandoff/handoff/protocol"
)

// By names the originator of an event. The id of a holder is cut to 8 characters.
func By(by string) string {
	if _, err := uuid.Parse(by); err == nil {
		return "worker " + by[:8]
	}
	return by
}

// AgentsOf lists the agents that an entry concerns: the one that has the handoff after it, and those
// that its events name.
func AgentsOf(c protocol.Change) []string {
	agents := []string{c.Record.State.Agent}
	for _, e := range c.Record.Events {
		o := protocol.OutlineOf(e)
		agents = append(agents, o.From, o.Agent, o.To)
	}
	return agents
}

// Event returns the originator of an event, and its details in words: those of its fields with a tag
// words, or else of its type.
func Event(e protocol.Event) (by, detail string) {
	by = e.Author()
	if words, own := together(e); own {
		return by, words
	}
	var parts []string
	v := reflect.ValueOf(e).Elem()
	for _, field := range reflect.VisibleFields(v.Type()) {
		if words := field.Tag.Get("words"); words != "" && !v.FieldByIndex(field.Index).IsZero() {
			value := fieldWords(v.FieldByIndex(field.Index).Interface(), strings.HasSuffix(field.Name, "MS"))
			if value != "" {
				parts = append(parts, strings.Replace(words, "%", value, 1))
			}
		}
	}
	return by, cmp.Or(Join(parts...), lifecycle.EventWords(e.EventType()))
}

// fieldWords describes the value of a field of an event.
func fieldWords(value any, millis bool) string {
	switch value := value.(type) {
	case int64:
		if millis {
			return Millis(value)
		}
	case time.Time:
		return Instant(value)
	case string:
		if value == protocol.AnyAgent {
			return "any agent"
		}
	case []int:
		return Count(len(value), "handoff")
	case json.RawMessage:
		return protocol.Size(int64(len(value)))
	case *protocol.BlobRef:
		return protocol.Size(value.Size)
	case *protocol.Usage:
		return Usage(*value)
	case protocol.Usage:
		return Usage(value)
	case protocol.UsageSource:
		return strings.TrimPrefix(string(value), string(protocol.UsageReport))
	case protocol.Progress:
		return Join(strings.TrimSpace(Number(value.Percent)+"% "+value.Message), used(value.Usage))
	case protocol.Summary:
		return Join(string(value.Type), value.From()+" -> "+value.TargetWords(), string(value.Priority), After("redrive of ", value.Origin))
	case *protocol.Routing:
		return routingText(value)
	case protocol.Answer:
		return Answer(value)
	case []protocol.ChildClosed:
		return childrenText(value)
	case protocol.ChainEnd:
		return Join(string(value.Outcome), After("at ", value.Agent), value.Ticket)
	case protocol.Amounts:
		return amountsText(value)
	}
	return fmt.Sprint(value)
}

// together describes an event whose fields make one phrase.
func together(e protocol.Event) (words string, own bool) {
	switch e := e.(type) {
	case *protocol.Started: // its name is enough
	case *protocol.Failed:
		words = e.Code + ": " + e.Message
		if !e.Retryable {
			words = "for good: " + words
		}
		if e.LimitKey != "" {
			words = Join(words, fmt.Sprintf("%s is paused for %s", e.LimitKey, Millis(min(e.RetryAfterMS, protocol.KeyPauseMaxMS))))
		}
	case *protocol.Rejected:
		words = Join(e.Agent+": "+e.Reason, e.ReasonCode, After("suggests ", e.Alternative))
	case *protocol.Conditioned:
		needs := After("needs ", Needs(protocol.Conditions{NeedsContext: e.NeedsContext, NeedsPermission: e.NeedsPermission}))
		if e.RetryAfterMS > 0 {
			needs = Join(needs, "again after "+Millis(e.RetryAfterMS))
		}
		if e.EstimatedCompletionMS > 0 {
			needs = Join(needs, "then done in "+Millis(e.EstimatedCompletionMS))
		}
		words = Join(e.Agent+" "+needs, e.Reason)
	case *protocol.Rerouted:
		manual := ""
		if e.Manual {
			manual = "by hand"
		}
		if len(e.Override) > 0 {
			manual += ", overriding " + strings.Join(e.Override, " and ")
		}
		words = Join(way(e.From, e.To), manual, e.Reason)
	case *protocol.Escalated:
		words = Join(fmt.Sprintf("level %d", e.Level), way(e.From, e.To), e.Reason, After("assessment: ", e.Assessment))
	case *protocol.LeaseLost:
		switch {
		case e.Fence != 0:
			words = fmt.Sprintf("the worker of attempt %d is gone", e.Attempt)
		case e.Reason == protocol.NotAcknowledged:
			words = "the claim was not acknowledged in time; not charged"
		default:
			words = "the worker of the claim is gone; not charged"
		}
	case *protocol.Deadlocked:
		words = fmt.Sprintf("the handoffs that hold the slots of %s wait for it: a circle of %s", e.Agent, Count(len(e.Cycle), "handoff"))
	case *protocol.Closed:
		words = Join(string(e.Outcome)+" ("+e.Reason+")", e.Message, After("listed in the inbox of ", e.Inbox))
	case *protocol.HandedOff:
		after := ""
		switch {
		case e.After:
			after = "begins when this completes"
		case e.Goto:
			after = "its chain continues as that"
		}
		words = Join(string(e.Type)+" to "+e.Target, e.Ticket, after, After("undelivered: ", e.Undelivered))
	case *protocol.Assigned:
		words = fmt.Sprintf("member %d goes to %s, and no other member does", e.N+1, e.Agent)
	case *protocol.Barred:
		words = barredText(e)
	case *protocol.Gated:
		if len(e.Calls) > 0 {
			words = fmt.Sprintf("before the first offer: %s asked for a bid, until %s", Is(enumerate(e.Calls), len(e.Calls)), Instant(e.Until))
			break
		}
		asked := ""
		if e.Approver != "" {
			asked = e.Approver + " is asked"
		}
		before := cmp.Or(e.Agent, "the first offer") // its start, for which no agent is chosen yet
		words = Join("before "+before+": "+protocol.OutlineOf(e).Words, asked)
	case *protocol.Awarded:
		winner := "the best bid"
		if len(e.Bids) > 0 {
			winner = e.Bids[0].Agent
		}
		words = Join(winner+" gets it", bids(e.AwardTerms))
	case *protocol.Unawarded:
		words = Join("no agent gets it by a bid", bids(e.AwardTerms))
	case *protocol.BidAnswered:
		words = BidAnswer(e.Answer, e.Agent)
	default:
		return "", false
	}
	return words, true
}

// way joins agents with arrows. An empty name becomes "no agent".
func way(agents ...string) string {
	named := slices.Clone(agents)
	for i, agent := range named {
		named[i] = cmp.Or(agent, "no agent")
	}
	return strings.Join(named, " -> ")
}

// childrenText lists ended children by number, with their outcomes: #1 success, #2 failed.
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

// Answer lists the parts of an answer: permission or denial, names of variables, text.
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
	if n := len(r.Candidates); n > 0 { // a target that is an agent has no candidates
		parts = append(parts, fmt.Sprintf("best of %d", n))
	}
	if len(r.Excluded) > 0 {
		parts = append(parts, "without "+strings.Join(r.Excluded, ", "))
	}
	return Join(append(parts, r.Warnings...)...)
}
