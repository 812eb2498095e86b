package protocol

import (
	"bytes"
	"encoding/json"
)

// Override is the word of a person that an agent may have a handoff for which it is not fit.
type Override struct {
	Agent string   `json:"agent"`
	By    string   `json:"by"`
	Rules []string `json:"rules"` // those that are set aside: autonomy, risk, contract, capabilities
}

// Overridden reports whether a person has set rules aside for an agent.
func (s *State) Overridden(agent string) bool { return s.Override != nil && s.Override.Agent == agent }

// Phase is where a handoff stands, as a person polling sees it.
type Phase string

const (
	AwaitingApproval Phase = "awaiting_approval" // a gate stands before its next offer
	AwaitingSource   Phase = "awaiting_source"   // it begins when the handoff that it was handed off from completes
	Pending          Phase = "pending"           // an offer stands in an agent's queue
	Conditional      Phase = "conditional"       // the agent takes it only if
	PhaseAccepted    Phase = "accepted"          // a holder has it, work not begun
	Working          Phase = "working"           // a holder works on it
	Retrying         Phase = "retrying"          // waiting for the next attempt
	Complete         Phase = "complete"          // the result is there
	PhaseReturned    Phase = "returned"          // rolled back to its source
	PhaseTimeout     Phase = "timeout"           // a clock ran out
	PhaseRejected    Phase = "rejected"          // refused
	PhaseFailed      Phase = "failed"            // the attempt failed
	Cancelled        Phase = "cancelled"         // ended on request
)

// Phases are all phases, in the order of the table.
var Phases = []Phase{AwaitingApproval, AwaitingSource, Pending, Conditional, PhaseAccepted, Working, Retrying,
	Complete, PhaseReturned, PhaseTimeout, PhaseRejected, PhaseFailed, Cancelled}

// StateBytesMax is the largest State that an append may carry.
const StateBytesMax = 32 << 10

// State is a handoff after all of its events: enough for Decide, a status
// query and a claim, and small. Bodies stay in events or blobs.
//
// Offer, Fence and PackageSeq are ledger sequences. A State inside an append
// cannot know that append's own sequence: where such a field refers to it, the
// wire has Self, and Bind replaces it when the append is read.
type State struct {
	Ticket  string  `json:"ticket"`
	Phase   Phase   `json:"phase"`
	Closed  bool    `json:"closed"`
	Outcome Outcome `json:"outcome,omitempty"`
	Reason  string  `json:"reason,omitempty"`  // code of the outcome, or of what blocks it
	Message string  `json:"message,omitempty"` // last error or refusal, in words; cut to MessageBytesMax

	Summary
	Policy     Policy `json:"policy"`
	PackageSeq uint64 `json:"package_seq"` // append that holds the package

	Agent           string   `json:"agent"`                   // whose queue it is, or was last, in
	Offer           uint64   `json:"offer"`                   // the current offer
	Holder          string   `json:"holder,omitempty"`        // who holds it now
	LeaseMS         int64    `json:"lease_ms,omitempty"`      // the holder's lease
	AckWithinMS     int64    `json:"ack_within_ms,omitempty"` // of a claim that asked for its own time to acknowledge
	Fence           uint64   `json:"fence,omitempty"`         // the holder's fence; 0 while only claimed
	Attempt         int      `json:"attempt"`                 // attempts begun at the current agent
	AttemptsTotal   int      `json:"attempts_total"`          // attempts begun anywhere
	LeasesLost      int      `json:"leases_lost"`             // of the attempts at this agent, those ended by a lost lease
	Tried           []string `json:"tried,omitempty"`         // agents that had it
	Refused         []string `json:"refused,omitempty"`       // agents that said no: never offered to again
	Alternative     string   `json:"alternative,omitempty"`   // what the last refusal suggested
	Reroutes        int      `json:"reroutes"`
	EscalationLevel int      `json:"escalation_level"`
	Chain           []string `json:"chain,omitempty"` // agents it was escalated from, in order; of an authority that never took it, the one below

	// Absent are the agents whose absence has moved it, its addressee first: it goes back to the
	// first that is there again, unless another one has taken it.
	Absent []Absence `json:"absent,omitempty"`
	// LapsedClaims are the last claims at its agent in a row that lapsed unacknowledged.
	LapsedClaims int `json:"lapsed_claims,omitempty"`

	// Override is the last one by a person: an agent that is not fit may have the handoff.
	Override *Override `json:"override,omitempty"`

	// Denied is who said no last, while that stands: the deciders of the package alone may
	// decide otherwise.
	Denied string `json:"denied,omitempty"`

	Gate      *Gate           `json:"gate,omitempty"`      // while awaiting approval
	Approvals []ApprovalGiven `json:"approvals,omitempty"` // the last ApprovalsMax of them
	Bidding   *Bidding        `json:"bidding,omitempty"`   // the call for bids before its first offer
	// Breaker says that its agent has a breaker, and whether the offer is a probe.
	Breaker BreakerMark `json:"breaker,omitempty"`

	Joined    bool       `json:"joined,omitempty"`     // it has had a place in its workspace
	LockFence uint64     `json:"lock_fence,omitempty"` // the number of the grant of the locks that its package declares
	Decisions []Decision `json:"decisions,omitempty"`  // that its holders made, the last DecisionsMax; cut

	Conditions      *Conditions `json:"conditions,omitempty"` // while conditional
	ConditionRounds int         `json:"condition_rounds,omitempty"`
	// Questions is how many were asked so far: by a conditional, an escalation or a gate. Their numbers
	// are in Conditions and Gate, and that of an escalation is EscalationQuestion.
	Questions          int `json:"questions,omitempty"`
	EscalationQuestion int `json:"escalation_question,omitempty"`
	Supplements        int `json:"supplements,omitempty"` // answers given so far
	// EstimatedCompletionMS is how long the work takes once a conditional has what
	// it asks for, or a deferral is over; gone when the agent accepts.
	EstimatedCompletionMS int64 `json:"estimated_completion_ms,omitempty"`

	Escalations int       `json:"escalations,omitempty"` // in all, also those answered
	Account     *Account  `json:"account,omitempty"`     // what has become of its limits; nil where it has none
	Barred      *Bar      `json:"barred,omitempty"`      // the last hand-off of it that was refused
	Children    *Children `json:"children,omitempty"`    // what it has handed off, or the members of a group

	Retryable    bool  `json:"retryable,omitempty"` // the last failure's own word
	RetryAfterMS int64 `json:"retry_after_ms,omitempty"`
	TimedOut     Clock `json:"timed_out,omitempty"` // the clock that ran out last, while undecided
	// OverdueSince is when its deadline ran out. It is open for the intervention timeout
	// after that, unless a new deadline is set.
	OverdueSince Time `json:"overdue_since,omitzero"`

	SubmittedAt         Time  `json:"submitted_at"`
	UpdatedAt           Time  `json:"updated_at"` // of the last event
	OfferedAt           Time  `json:"offered_at,omitzero"`
	QueuedSince         Time  `json:"queued_since,omitzero"` // of an offer made again after a mere claim: when it was first made
	ClaimedAt           Time  `json:"claimed_at,omitzero"`
	AcceptedAt          Time  `json:"accepted_at,omitzero"`
	StartedAt           Time  `json:"started_at,omitzero"`
	EstimatedCompletion Time  `json:"estimated_completion,omitzero"`
	RetryAt             Time  `json:"retry_at,omitzero"` // while retrying or deferred
	ConditionedAt       Time  `json:"conditioned_at,omitzero"`
	RemindedAt          Time  `json:"reminded_at,omitzero"`
	ExtendedAt          Time  `json:"extended_at,omitzero"`    // when this attempt was granted more time
	ExtendedUntil       Time  `json:"extended_until,omitzero"` // until then
	ProgressAt          Time  `json:"progress_at,omitzero"`    // the last sign of progress of this attempt
	ReturnSince         Time  `json:"return_since,omitzero"`   // when the return's clock was last set
	ReturnMS            int64 `json:"return_ms,omitempty"`     // for how long, where that is an authority's time and not the policy's
	CancelRequestedAt   Time  `json:"cancel_requested_at,omitzero"`
	ClosedAt            Time  `json:"closed_at,omitzero"`

	CancelRequested bool      `json:"cancel_requested"`
	CancelReturn    bool      `json:"cancel_return,omitempty"`   // it shall go back to its source instead
	CancelBy        string    `json:"cancel_by,omitempty"`       // who asked for the end, or rolled it back by hand
	CancelReason    string    `json:"cancel_reason,omitempty"`   // why, in the words of the first request; cut as Message is
	CancelChildren  bool      `json:"cancel_children,omitempty"` // and what it handed off is cancelled too
	Progress        *Progress `json:"progress,omitempty"`
	ResultSeq       uint64    `json:"result_seq,omitempty"` // append that holds the result, or the last malformed one
	Vote            Vote      `json:"vote,omitempty"`       // of the result
	SetAside        string    `json:"set_aside,omitempty"`  // what of the output did not go into the result; cut as Message is
	Usage           *Used     `json:"usage,omitempty"`      // of all attempts
	StuckReason     string    `json:"stuck,omitempty"`
	ReturnTimeouts  int       `json:"return_timeouts,omitempty"`
	Retries         int       `json:"retries,omitempty"` // at the current agent, of whatever cause: the delay of the next one grows with them

	// Late results: the lost fences of those that were parked, and the last that is not malformed.
	LateFences   []uint64     `json:"late_fences,omitempty"`
	LateSeq      uint64       `json:"late_seq,omitempty"` // append that holds it
	LateStatus   ResultStatus `json:"late_status,omitempty"`
	LateVote     Vote         `json:"late_vote,omitempty"`
	LateSetAside string       `json:"late_set_aside,omitempty"` // cut as Message is

	// After the end.
	ChainEnd     *ChainEnd `json:"chain_end,omitempty"`     // of the chain that it begins
	Inbox        string    `json:"inbox,omitempty"`         // in whose inbox it is listed until dismissed
	ReturnTicket string    `json:"return_ticket,omitempty"` // the handoff that delivers its return
	ReturnedAt   Time      `json:"returned_at,omitzero"`    // the return is settled
	BidAnswer    BidAnswer `json:"bid_answer,omitempty"`    // of a call: what has become of its bid
	RedrivenAs   string    `json:"redriven_as,omitempty"`

	PrevHash string `json:"prev_hash,omitempty"` // sha256 of the append before, hex

	// Extra is what a newer minor version has put into the state: fields that this one
	// does not know, each behind a comma, as they stood. Each append carries them on.
	Extra json.RawMessage `json:"-"`
}

// Self stands in a State for the sequence of the append that carries it.
const Self = uint64(1)<<52 - 1 // exact in every JSON reader

// Absence is an agent whose absence has moved a handoff.
type Absence struct {
	Agent string `json:"agent,omitempty"` // empty: its target, which no agent could be given for
	Depth int    `json:"depth,omitempty"` // of the chain, when the handoff was with it
	// Until is until when an agent counts as absent that claimed it and never acknowledged.
	Until Time `json:"until,omitzero"`
}

// Conditions are what a conditional asks for.
type Conditions struct {
	Question        int      `json:"question,omitempty"` // its number
	NeedsContext    []string `json:"needs_context,omitempty"`
	NeedsPermission []string `json:"needs_permission,omitempty"`
	Reason          string   `json:"reason,omitempty"`
}

// Children are the handoffs that one has handed off, by their ordinals.
type Children struct {
	Count int `json:"count"` // ordinals are under it
	// Made are those that exist, or shall; of a group all of them.
	Made Bits `json:"made,omitempty"`
	// Closed is what a group, or a handoff that waits, knows of them; of those,
	// Succeeded and Cancelled. A member that votes no to a majority is not in Succeeded.
	Closed    Bits `json:"closed,omitempty"`
	Succeeded Bits `json:"succeeded,omitempty"`
	Cancelled Bits `json:"cancelled,omitempty"`
	// Awaited are those that it waits for.
	Awaited Bits `json:"awaited,omitempty"`
	// Returning are those whose end comes back to this handoff, and Received the closed ones whose
	// ends a worker got with its claim.
	Returning Bits `json:"returning,omitempty"`
	Received  Bits `json:"received,omitempty"`
	// After are those that begin when it completes. An attempt that ends in another
	// way drops them.
	After Bits `json:"after,omitempty"`
	// Dropped are those that were in After when such an attempt ended. Asked are those that the
	// current attempt handed off, or adopted.
	Dropped Bits `json:"dropped,omitempty"`
	Asked   Bits `json:"asked,omitempty"`
	// Keys has, by ordinal, 8 characters of the hash of each child's key.
	Keys string `json:"keys,omitempty"`
	// Next is the one that its chain goes on with, counted from 1; 0 is that it hands on to none.
	Next int `json:"next,omitempty"`
	// Undelivered are those that no agent could be given when they were handed off.
	Undelivered Bits `json:"undelivered,omitempty"`
	// Assigned are the agents that members of a group went to and that the group
	// does not name for them.
	Assigned []Assignment `json:"assigned,omitempty"`
}

// ChainEnd is the end of a chain: of the handoff that handed on to no other.
type ChainEnd struct {
	Ticket  string  `json:"ticket"`
	Agent   string  `json:"agent,omitempty"` // that had it last
	Outcome Outcome `json:"outcome"`
	Vote    Vote    `json:"vote,omitempty"`
	// Left is what the last handoff has left of the limits that were granted from one to the next;
	// below 0 is what was overrun.
	Left Amounts `json:"left,omitzero"`
}

// Bar is a hand-off that was refused by a limit or a rule.
type Bar struct {
	Count int    `json:"count"` // of all that were refused, counted to BarsMax
	Code  Code   `json:"code"`
	Field string `json:"field,omitempty"` // of the limit or the rule
	To    string `json:"to,omitempty"`
	// FellBack says that it closed with its own result in place of the hand-off.
	FellBack bool `json:"fell_back,omitempty"`
}

// BarsMax is how many refused hand-offs of one handoff are recorded.
const BarsMax = 100

// Assignment is an agent that a member of a group went to.
type Assignment struct {
	N     int    `json:"n"`
	Agent string `json:"agent"`
}

// Bind gives the fields that refer to the append which carries this State
// their value.
func (s *State) Bind(seq uint64) {
	for _, field := range []*uint64{&s.PackageSeq, &s.Offer, &s.Fence, &s.ResultSeq, &s.LateSeq} {
		if *field == Self {
			*field = seq
		}
	}
}

// Held tells whether a holder has this handoff in its hands.
func (s State) Held() bool { return s.Holder != "" }

// KeepUnknown keeps a field of a newer version, name and value, to be carried on.
// Broken text in it is replaced.
func (s *State) KeepUnknown(field []byte) {
	s.Extra = append(s.Extra, ',')
	s.Extra = append(s.Extra, bytes.ToValidUTF8(field, []byte("\uFFFD"))...)
}
