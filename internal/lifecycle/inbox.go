package lifecycle

import (
	"time"

	p "github.com/agenthandoff/handoff/protocol"
)

// InboxReason is why an inbox lists a handoff.
type InboxReason string

const (
	InboxNone       InboxReason = ""                 // the inbox does not list it
	InboxApproval   InboxReason = "approval"         // approve or deny: the agent, or one below it, is asked whether another agent may have it
	InboxBudget     InboxReason = "budget_exhausted" // its budget has run out: raise it, take the handoff, or end it
	InboxOffer      InboxReason = "offer"            // it is in the agent's queue
	InboxEscalation InboxReason = "escalation"       // the same, escalated to the agent: answer, take or reroute it
	InboxHeld       InboxReason = "held"             // the agent holds it
	InboxQuestion   InboxReason = "question"         // another agent asks for context or a permission
	InboxReview     InboxReason = "look"             // it closed, and the agent should check it: redrive or dismiss it
)

// DeadLetter reports whether a handoff closed without success. A return is no dead letter, since
// its content can be read by the ticket of its handoff; nor is a call for a bid.
func DeadLetter(s p.State) bool {
	success := s.Outcome == p.OutcomeSuccess || s.Outcome == p.OutcomePartial
	return s.Closed && !success && s.ReturnOf == "" && s.CallOf == ""
}

// Asked returns the agent that can answer the question of a handoff: its source, or a person if the
// source is not registered, asks itself, or is served only by programs, which get no questions.
func Asked(s p.State, d *Directory) string {
	if s.Source != s.Agent && d.answers(s.Source) {
		return s.Source
	}
	return p.Human
}

// Answering returns the agents that can answer a question, sorted.
func Answering(d *Directory) []string {
	return d.agentsWhere(d.answers)
}

func (d *Directory) answers(agent string) bool {
	if _, known := d.Agent(agent); !known {
		return false
	}
	programs := false
	for _, h := range d.Holders {
		switch {
		case h.Agent != agent || !h.Attends():
		case !h.Program:
			return true
		default:
			programs = true
		}
	}
	return !programs
}

// InboxSince returns since when an open handoff waits for the reason of its inbox entry.
func InboxSince(s p.State) p.Time {
	switch {
	case AskedAtGate(s) != "":
		return s.Gate.Since
	case s.Phase == p.Conditional:
		return s.ConditionedAt
	case s.Held() && !s.AcceptedAt.IsZero():
		return s.AcceptedAt
	case s.Held():
		return s.ClaimedAt
	}
	return s.OfferedAt
}

// InboxReasonFor returns why the inbox of an agent, or of a person (protocol.Human), lists a
// handoff. A question is in the inbox of its source, if registered, and of the one that Asked
// names. A request for approval is also listed for the agents above the asked one; for a person
// once a person is asked.
func InboxReasonFor(s p.State, agent string, d *Directory) InboxReason {
	switch {
	case s.Closed && s.Inbox == agent:
		return InboxReview
	case s.Closed:
		return InboxNone
	case AskedAtGate(s) != "":
		switch asked := AskedAtGate(s) == agent; {
		case asked && s.Gate.First() == p.GateBudget:
			return InboxBudget
		case asked, agent != p.Human && MayAnswer(s, agent, d) == nil:
			return InboxApproval
		}
	case s.Phase == p.Conditional && s.Conditions != nil:
		_, known := d.Agent(s.Source)
		if known && s.Source == agent && s.Agent != agent || agent == Asked(s, d) {
			return InboxQuestion
		}
	case s.Agent != agent:
	case s.Held():
		return InboxHeld
	case s.Phase == p.Pending && s.EscalationLevel > 0:
		return InboxEscalation
	case s.Phase == p.Pending:
		return InboxOffer
	}
	return InboxNone
}

// Attention is the work that an append requires of supervisors. The writer knows the state after
// its append, and announces the append if a supervisor has work. Supervisors then need not read
// appends without work, which are nearly all.
//
// It is a hint. A wrong hint delays a handoff until its next reconcile or the next sweep. It never
// loses one.
type Attention string

// The kinds of attention.
const (
	// AttentionNone marks a closed handoff without pending duties. It is not announced.
	AttentionNone Attention = "none"
	// AttentionLater means that nothing becomes due within attentionSpan, for any directory, unless
	// the holder vanishes. If this append is still the head a while later, its writer announces it,
	// and a supervisor publishes its outbox entries.
	AttentionLater Attention = "later"
	// AttentionNow means: reconcile the handoff at once.
	AttentionNow Attention = "now"
)

// attentionSpan is how long after an append AttentionLater holds: the time for which its writer
// holds it, and as much again for the announcement.
const attentionSpan = 2 * time.Second

// AttentionOf returns the attention for the append that made s. In case of doubt this is
// AttentionNow: frequent cases are distinguished, rare ones are reconciled.
func AttentionOf(s p.State) Attention {
	switch {
	case s.Phase == fresh, NotifiesParent(s), NotifiesOrigin(s), NotifiesChain(s), NotifiesCaller(s), hasDutiesNow(s), LeavesWorkspace(s), LeavesCalls(s):
		return AttentionNow
	case s.Closed && s.Children != nil && s.Children.Returning != "": // their ends go to another place now, or were received
		return AttentionNow
	case AwaitsChain(s), s.Closed && s.Children != nil && s.Children.Made.Without(s.Children.Closed) != "":
		return AttentionLater // usually its writer submits the children at once
	case s.Closed:
		return AttentionNone
	case s.CancelRequested, s.Aggregate != nil && s.Children == nil: // the state of a forged offer
		return AttentionNow
	case s.Aggregate != nil: // its members advance it
	case s.Offer == 0:
		return AttentionNow
	case s.Phase == p.Pending:
		if !s.Held() && (s.Attempt >= s.Policy.MaxAttempts || len(s.Absent) > 0) { // the agent may have returned
			return AttentionNow
		}
	case s.Phase != p.PhaseAccepted && s.Phase != p.Working && s.Phase != p.Retrying:
		return AttentionNow
	}
	// Consider all clocks, including those that ran out without effect: another directory might change
	// that.
	until := s.UpdatedAt.Add(attentionSpan)
	if s.Held() && millis(s.LeaseMS) < attentionSpan || Wake(s).Before(until) {
		return AttentionNow
	}
	return AttentionLater
}

// Impasse is why an open handoff cannot continue without a person.
type Impasse string

const (
	NoImpasse      Impasse = ""
	ImpasseRefused Impasse = "refused" // every agent refused it
	ImpasseFailed  Impasse = "failed"  // the agents that took it failed, or ran out of time or tries
	ImpasseBudget  Impasse = "budget"  // its budget is spent
)

// ImpasseOf returns the impasse of a handoff. Waiting for an approval, an answer or an absent agent
// is no impasse, nor is the work of a person, nor a handoff that was submitted to a person, nor a
// budget whose rest open children have.
func ImpasseOf(s p.State) Impasse {
	switch {
	case s.Closed || s.Held(), s.Gate.First() == p.GateBudget && exhaustedBudget(&s) == "":
		return NoImpasse
	case s.Gate.First() == p.GateBudget:
		return ImpasseBudget
	case s.Agent != p.Human || s.Phase != p.Pending || len(s.Chain) == 0, AsksInWords(s), len(s.Absent) > 0,
		s.Reason == ReasonUndelivered, s.Reason == ReasonAcknowledgeTimeout:
		return NoImpasse
	case len(s.Refused) > 0 && s.AttemptsTotal == 0:
		return ImpasseRefused
	}
	return ImpasseFailed
}
