package lifecycle

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	p "github.com/agenthandoff/handoff/protocol"
)

// Codes of the reasons that Decide gives. reasonWords describes each.
const (
	reasonRefused             = "refused"             // Agent refused
	ReasonAcknowledgeTimeout  = "acknowledge_timeout" // Agent had no live worker for LimitMS
	ReasonClaimsLapsed        = "claims_lapsed"       // Agent claimed it Count times in a row without acknowledging
	reasonQueueTimeout        = "queue_timeout"
	ReasonConditionTimeout    = "condition_timeout"
	ReasonWorkTimeout         = "work_timeout"
	ReasonProgressTimeout     = "progress_timeout"
	ReasonReturnTimeout       = "return_timeout"
	ReasonDeadline            = "deadline"
	reasonReroutesExhausted   = "reroutes_exhausted" // Count of Limit
	ReasonNoFitAgent          = "no_fit_agent"
	ReasonConditionsExhausted = "conditions_exhausted" // Agent asked Count times, Limit are allowed
	ReasonAttemptsExhausted   = "attempts_exhausted"   // Count of Limit
	ReasonCrashLoop           = "crash_loop"           // the same, and each worker vanished
	reasonNoTaker             = "no_taker"             // after its causes, the policy ends it
	reasonNoAuthority         = "escalation_exhausted" // after its causes, no authority is left
	ReasonAggregated          = "aggregated"           // enough members of the group succeeded
	ReasonAggregation         = "aggregation"          // too many did not succeed
	ReasonCancelled           = "cancelled"            // on request; the cause is the event that ended the wait for its worker
	reasonReturned            = "returned"             // on request, back to its source
	ReasonUndelivered         = "undelivered"          // the next handoff could not be delivered to Agent
	reasonEscalated           = "escalated"            // its holder, or a person, passed it up
	ReasonDenied              = "permission_denied"    // Agent denied the request or the escalation
	ReasonAgentBack           = "agent_back"           // Agent returned; its absence had moved the handoff
	ReasonApprovalDenied      = "approval_denied"      // Agent denied the question of a gate
	ReasonApprovalTimeout     = "approval_timeout"     // Agent did not answer it within LimitMS
	ReasonDeadlock            = "deadlock"             // it waited for a slot of Agent, which waited for it
	ReasonBreakerOpen         = "breaker_open"         // the breaker of Agent is open
	ReasonBudgetExhausted     = "budget_exhausted"     // Count of Limit of Budget are used
	reasonTooFewBids          = "too_few_bids"         // Count were made, Limit are needed
	ReasonSourceEnded         = "source_ended"         // FollowSource: its source ended without the result
)

// reasonDenied is the reason of a handoff between a denial and the next decision.
const reasonDenied = "denied"

// Causes that end the wait for the worker of a handoff whose end was requested.
const (
	causeWorkerGone = "worker_gone"
	causeGraceOver  = "grace_over"
)

// The reasons of an offer (Offered.Reason).
const (
	OfferSubmitted  = "submitted"
	OfferRetry      = "retry"
	offerReroute    = "reroute"
	OfferEscalation = "escalation"
	offerAnswer     = "answer"
	OfferLeaseLost  = "lease_lost"
	offerUnanswered = p.NotAcknowledged // it was claimed and not acknowledged in time
	OfferReleased   = "released"
	offerDeferred   = "deferred"
	OfferReturn     = "return"   // the handoffs that it waited for have ended
	offerNoTaker    = "no_taker" // back into the same queue
	offerMoved      = "moved"    // the append that moved it held no offer
	OfferOverdue    = "overdue"  // its deadline ran out at the last authority
	offerLimit      = "limit"    // a place under a key is kept for it
)

// OfferReasons lists the reasons of an offer.
var OfferReasons = []string{OfferSubmitted, OfferRetry, offerReroute, OfferEscalation, offerAnswer, OfferLeaseLost, offerUnanswered,
	OfferReleased, offerDeferred, OfferReturn, offerNoTaker, offerMoved, OfferOverdue, offerLimit}

// reason is the reason of a decision: a code and its facts.
type reason struct {
	code  string
	facts p.Facts
}

// because returns a reason about the agent that has the handoff.
func because(code string, s p.State) reason {
	return reason{code, p.Facts{Agent: s.Agent}}
}

// withLimit adds the limit of the clock that ran out.
func (r reason) withLimit(limit time.Duration) reason {
	r.facts.LimitMS = limit.Milliseconds()
	return r
}

// withCount adds the number reached, and the number allowed.
func (r reason) withCount(count, limit int) reason {
	r.facts.Count, r.facts.Limit = count, limit
	return r
}

// causing returns another reason, with this one as a cause.
func (r reason) causing(code string) reason {
	facts := r.facts
	facts.Causes = append(slices.Clone(facts.Causes), r.code)
	return reason{code, facts}
}

// factsOrNil returns the facts for an event; nil if there are none.
func (r reason) factsOrNil() *p.Facts {
	if f := r.facts; f.Agent == "" && f.Causes == nil && f.Limit == 0 && f.LimitMS == 0 {
		return nil
	}
	return &r.facts
}

func (r reason) words() string { return reasonWords(r.code, r.facts) }

// reasonTexts describe the reasons of Decide. reasonWords puts in the facts.
var reasonTexts = map[string]string{
	reasonRefused:             "refused by {agent}",
	ReasonAcknowledgeTimeout:  "{agent} had no live worker within {limit}",
	ReasonClaimsLapsed:        "{agent} claimed it {count} times and never acknowledged it",
	reasonQueueTimeout:        "{agent} did not take it within {limit}",
	ReasonConditionTimeout:    "the question of {agent} was not answered within {limit}",
	ReasonWorkTimeout:         "no result within the work timeout of {limit}",
	ReasonProgressTimeout:     "no progress within the progress timeout of {limit}",
	ReasonReturnTimeout:       "no return within the return timeout of {limit}{members}",
	ReasonDeadline:            "the deadline passed{members}",
	reasonTooFewBids:          "too few bids were made: {count} of {most}",
	reasonReroutesExhausted:   "{causes}it was rerouted {count} times of at most {most}",
	ReasonNoFitAgent:          "{causes}no other agent is fit",
	ReasonConditionsExhausted: "{agent} asked {count} times, at most {most} are allowed",
	ReasonAttemptsExhausted:   "{count} of {most} attempts failed",
	ReasonCrashLoop:           "{count} of {most} attempts failed: each time its worker vanished",
	reasonNoTaker:             "{causes}its policy ends it there",
	reasonNoAuthority:         "{causes}no authority is left",
	ReasonAggregated:          "{group}",
	ReasonAggregation:         "{group}",
	ReasonUndelivered:         "it could not be delivered to {agent}",
	ReasonDenied:              "denied by {agent}",
	ReasonApprovalDenied:      "{agent} did not approve it",
	ReasonApprovalTimeout:     "{agent} did not approve or deny it within {limit}",
	ReasonDeadlock:            "the handoffs that hold the slots of {agent} wait for it",
	ReasonBreakerOpen:         "the breaker of {agent} is open",
	ReasonBudgetExhausted:     "{budget}{forced}",
	ReasonAgentBack:           "{agent} is available again",
	ReasonSourceEnded:         "the attempt that handed it off ended without a result",
	ReasonCancelled:           "cancelled on request{forced}",
	reasonReturned:            "returned on request{forced}",
}

// reasonWords describes a reason of Decide. It returns an unknown code unchanged: a worker may name
// its failure freely.
func reasonWords(code string, f p.Facts) string {
	text, known := reasonTexts[code]
	switch {
	case !known:
		return code
	case code == ReasonAcknowledgeTimeout && f.Agent == "":
		text = "no agent was found for it within {limit}"
	}
	return strings.NewReplacer("{agent}", cmp.Or(f.Agent, "its agent"), "{limit}", spanWords(f.LimitMS),
		"{count}", strconv.Itoa(f.Count), "{most}", strconv.Itoa(f.Limit), "{causes}", causeOf(f), "{forced}", forcedWords(f),
		"{members}", membersDone(f), "{group}", groupWords(f), "{budget}", budgetWords(f)).Replace(text)
}

// causeOf describes the causes, as the first half of a sentence.
func causeOf(f p.Facts) string {
	if len(f.Causes) == 0 {
		return ""
	}
	var parts []string
	for _, code := range f.Causes {
		cause := f
		cause.Causes = nil
		parts = append(parts, reasonWords(code, cause))
	}
	return strings.Join(parts, ", ") + ", and "
}

// forcedWords describes why the end no longer waited for the worker.
func forcedWords(f p.Facts) string {
	switch {
	case slices.Contains(f.Causes, causeWorkerGone):
		return "; its worker was gone"
	case slices.Contains(f.Causes, causeGraceOver):
		return "; its worker did not stop in time"
	}
	return ""
}

func groupWords(f p.Facts) string {
	well, not := "succeeded", "did not"
	if f.Mode == p.AggregateMajority { // votes count too
		well, not = "in favour", "not"
	}
	without := fmt.Sprintf("%d %s", f.Failed, not)
	if f.Cancelled > 0 {
		without += fmt.Sprintf(" (%d cancelled)", f.Cancelled)
	}
	return fmt.Sprintf("%d of %d %s, %s; %s was asked for", f.Count, f.Limit, well, without, f.Mode)
}

// membersDone counts the members of a group that had finished when its time was over.
func membersDone(f p.Facts) string {
	if f.Mode == "" {
		return ""
	}
	return "; " + groupWords(f)
}

// spanWords returns a span without its parts that are zero: 1m, not 1m0s.
func spanWords(ms int64) string {
	words := millis(ms).String()
	if strings.HasSuffix(words, "m0s") {
		words = strings.TrimSuffix(words, "0s")
	}
	if strings.HasSuffix(words, "h0m") {
		words = strings.TrimSuffix(words, "0m")
	}
	return words
}
