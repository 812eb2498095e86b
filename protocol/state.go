package protocol

import (
	"bytes"
	"encoding/json"
	"sync"
)

// Override is a person's decision that an unfit agent may have a handoff.
type Override struct {
	Agent string   `json:"agent"`
	By    string   `json:"by"`
	Rules []string `json:"rules"` // the overridden ones: autonomy, risk, contract, capabilities
}

// Overridden reports whether a person has overridden rules for an agent.
func (s *State) Overridden(agent string) bool { return s.Override != nil && s.Override.Agent == agent }

// Phase is the phase of a handoff, for a person polling.
type Phase string

const (
	AwaitingApproval Phase = "awaiting_approval" // a gate delays its next offer
	AwaitingSource   Phase = "awaiting_source"   // it begins when the handoff that handed it off completes
	Pending          Phase = "pending"           // an offer is in an agent's queue
	Conditional      Phase = "conditional"       // the agent takes it under a condition
	PhaseAccepted    Phase = "accepted"          // a holder has it, work not begun
	Working          Phase = "working"           // a holder works on it
	Retrying         Phase = "retrying"          // waiting for the next attempt
	Complete         Phase = "complete"          // the result is stored
	PhaseReturned    Phase = "returned"          // rolled back to its source
	PhaseTimeout     Phase = "timeout"           // a clock ran out
	PhaseRejected    Phase = "rejected"          // refused
	PhaseFailed      Phase = "failed"            // the attempt failed
	Cancelled        Phase = "cancelled"         // ended on request
)

// Phases lists all phases, in the order of the table.
var Phases = []Phase{AwaitingApproval, AwaitingSource, Pending, Conditional, PhaseAccepted, Working, Retrying,
	Complete, PhaseReturned, PhaseTimeout, PhaseRejected, PhaseFailed, Cancelled}

// StateBytesMax is the largest State that an append may carry.
const StateBytesMax = 32 << 10

// State is a handoff after all of its events: small, but enough for Decide, a status query and a
// claim. Bodies stay in events or blobs.
//
// Offer, Fence and PackageSeq are ledger sequences. A State inside an append cannot contain that
// append's own sequence: the wire has Self instead, and Bind replaces it when the append is read.
type State struct {
	Ticket  string  `json:"ticket"`
	Phase   Phase   `json:"phase"`
	Closed  bool    `json:"closed"`
	Outcome Outcome `json:"outcome,omitempty"`
	Reason  string  `json:"reason,omitempty"`  // code of the outcome, or of the current obstacle
	Message string  `json:"message,omitempty"` // last error or refusal, in words; cut to MessageBytesMax

	Summary
	Policy     Policy `json:"policy"`
	PackageSeq uint64 `json:"package_seq"` // append that holds the package

	Agent           string   `json:"agent"`                   // whose queue it is in, or was last
	Offer           uint64   `json:"offer"`                   // the current offer
	Holder          string   `json:"holder,omitempty"`        // who holds it now
	LeaseMS         int64    `json:"lease_ms,omitempty"`      // the holder's lease
	AckWithinMS     int64    `json:"ack_within_ms,omitempty"` // of a claim that asked for its own time to acknowledge
	Fence           uint64   `json:"fence,omitempty"`         // the holder's fence; 0 while only claimed
	LimitKeys       []string `json:"limit_keys,omitempty"`    // the keys under which its holder has a place
	Attempt         int      `json:"attempt"`                 // attempts begun at the current agent
	AttemptsTotal   int      `json:"attempts_total"`          // attempts begun anywhere
	LeasesLost      int      `json:"leases_lost"`             // of the attempts at this agent, those ended by a lost lease
	Tried           []string `json:"tried,omitempty"`         // agents that had it
	Refused         []string `json:"refused,omitempty"`       // agents that refused it: never offered to again
	Alternative     string   `json:"alternative,omitempty"`   // suggested by the last refusal
	Reroutes        int      `json:"reroutes"`
	EscalationLevel int      `json:"escalation_level"`
	Chain           []string `json:"chain,omitempty"` // agents it was escalated from, in order; for an authority that never took it, the one below

	// Absent lists the agents whose absence has moved it, its addressee first: it goes back to the
	// first that returns, unless another one has taken it.
	Absent []Absence `json:"absent,omitempty"`
	// LapsedClaims counts the last claims in a row at its agent that lapsed unacknowledged.
	LapsedClaims int `json:"lapsed_claims,omitempty"`

	// Override is the last decision of a person that an unfit agent may have the handoff.
	Override *Override `json:"override,omitempty"`

	// Denied names who denied it last, while the denial is in force: only the deciders of the package
	// may overrule it.
	Denied string `json:"denied,omitempty"`

	Gate      *Gate           `json:"gate,omitempty"`      // while awaiting approval
	Approvals []ApprovalGiven `json:"approvals,omitempty"` // the last ApprovalsMax of them
	Bidding   *Bidding        `json:"bidding,omitempty"`   // the call for bids before its first offer
	// Breaker reports whether its agent has a breaker, and whether the offer is a probe.
	Breaker BreakerMark `json:"breaker,omitempty"`

	Joined    bool       `json:"joined,omitempty"`     // it has had a place in its workspace
	LockFence uint64     `json:"lock_fence,omitempty"` // number of the grant of its declared locks
	Decisions []Decision `json:"decisions,omitempty"`  // that its holders made, the last DecisionsMax; cut

	Conditions      *Conditions `json:"conditions,omitempty"` // while conditional
	ConditionRounds int         `json:"condition_rounds,omitempty"`
	// Questions counts the questions so far: of conditionals, escalations and gates. Their numbers are
	// in Conditions and Gate, and that of an escalation is EscalationQuestion.
	Questions          int `json:"questions,omitempty"`
	EscalationQuestion int `json:"escalation_question,omitempty"`
	Supplements        int `json:"supplements,omitempty"` // answers given so far
	// EstimatedCompletionMS is the duration of the work once a conditional is met, or a deferral is
	// over; removed when the agent accepts.
	EstimatedCompletionMS int64 `json:"estimated_completion_ms,omitempty"`

	Escalations int       `json:"escalations,omitempty"` // in total, including answered ones
	Account     *Account  `json:"account,omitempty"`     // use of its limits; nil without limits
	Barred      *Bar      `json:"barred,omitempty"`      // its last refused hand-off
	Children    *Children `json:"children,omitempty"`    // its children, or the members of a group

	Retryable    bool  `json:"retryable,omitempty"` // as the last failure reported
	RetryAfterMS int64 `json:"retry_after_ms,omitempty"`
	TimedOut     Clock `json:"timed_out,omitempty"` // the clock that ran out last, while undecided
	// OverdueSince is when its deadline ran out. It stays open for the intervention timeout after
	// that, unless a new deadline is set.
	OverdueSince Time `json:"overdue_since,omitzero"`

	SubmittedAt         Time  `json:"submitted_at"`
	UpdatedAt           Time  `json:"updated_at"` // of the last event
	OfferedAt           Time  `json:"offered_at,omitzero"`
	QueuedSince         Time  `json:"queued_since,omitzero"` // of an offer that is repeated after a mere claim: its first time
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
	ReturnMS            int64 `json:"return_ms,omitempty"`     // the length of that clock, if it is an authority's time and not the policy's
	CancelRequestedAt   Time  `json:"cancel_requested_at,omitzero"`
	ClosedAt            Time  `json:"closed_at,omitzero"`

	CancelRequested bool      `json:"cancel_requested"`
	CancelReturn    bool      `json:"cancel_return,omitempty"`   // it returns to its source instead
	CancelBy        string    `json:"cancel_by,omitempty"`       // who requested the end, or rolled it back by hand
	CancelReason    string    `json:"cancel_reason,omitempty"`   // why, in the words of the first request; cut as Message is
	CancelChildren  bool      `json:"cancel_children,omitempty"` // its children are cancelled too
	Progress        *Progress `json:"progress,omitempty"`
	ResultSeq       uint64    `json:"result_seq,omitempty"` // append with the result, or with the last malformed one
	Vote            Vote      `json:"vote,omitempty"`       // of the result
	SetAside        string    `json:"set_aside,omitempty"`  // output that did not go into the result; cut like Message
	Usage           *Used     `json:"usage,omitempty"`      // of all attempts
	StuckReason     string    `json:"stuck,omitempty"`
	ReturnTimeouts  int       `json:"return_timeouts,omitempty"`
	Retries         int       `json:"retries,omitempty"` // at the current agent, for any cause: the next delay grows with them

	// Late results: the lost fences of the parked ones, and the last that is not malformed.
	LateFences   []uint64     `json:"late_fences,omitempty"`
	LateSeq      uint64       `json:"late_seq,omitempty"` // append that has it
	LateStatus   ResultStatus `json:"late_status,omitempty"`
	LateVote     Vote         `json:"late_vote,omitempty"`
	LateSetAside string       `json:"late_set_aside,omitempty"` // cut as Message is

	// After the end.
	ChainEnd     *ChainEnd `json:"chain_end,omitempty"`     // of the chain that began with it
	Inbox        string    `json:"inbox,omitempty"`         // whose inbox lists it until dismissed
	ReturnTicket string    `json:"return_ticket,omitempty"` // the handoff that delivers its return
	ReturnedAt   Time      `json:"returned_at,omitzero"`    // the return is settled
	BidAnswer    BidAnswer `json:"bid_answer,omitempty"`    // of a call: the result of its bid
	RedrivenAs   string    `json:"redriven_as,omitempty"`

	PrevHash string `json:"prev_hash,omitempty"` // sha256 of the append before, hex

	// Extra holds fields of a newer minor version, each after a comma, unchanged. Each append keeps
	// them.
	Extra json.RawMessage `json:"-"`
}

// Self, in a State, is the sequence of the append that contains it.
const Self = uint64(1)<<52 - 1 // exact in every JSON reader

// Absence is an agent whose absence has moved a handoff.
type Absence struct {
	Agent string `json:"agent,omitempty"` // empty: its target, if no agent fitted
	Depth int    `json:"depth,omitempty"` // of the chain, when the handoff was with it
	// Until is how long an agent counts as absent that claimed it and never acknowledged.
	Until Time `json:"until,omitzero"`
}

// Conditions are the requests of a conditional.
type Conditions struct {
	Question        int      `json:"question,omitempty"` // its number
	NeedsContext    []string `json:"needs_context,omitempty"`
	NeedsPermission []string `json:"needs_permission,omitempty"`
	Reason          string   `json:"reason,omitempty"`
}

// Children are the handed-off handoffs of a handoff, by their ordinals.
type Children struct {
	Count int `json:"count"` // ordinals are below it
	// Made are those that exist, or are about to; of a group all of them.
	Made Bits `json:"made,omitempty"`
	// Closed are the recorded ends, for a group or a waiting handoff; Succeeded and Cancelled are
	// subsets. A member that votes no to a majority is not in Succeeded.
	Closed    Bits `json:"closed,omitempty"`
	Succeeded Bits `json:"succeeded,omitempty"`
	Cancelled Bits `json:"cancelled,omitempty"`
	// Awaited are those that it waits for.
	Awaited Bits `json:"awaited,omitempty"`
	// Returning are those whose end returns to this handoff, and Received the closed ones whose ends a
	// worker got with its claim.
	Returning Bits `json:"returning,omitempty"`
	Received  Bits `json:"received,omitempty"`
	// After are those that begin when it completes. An attempt that ends in another way drops them.
	After Bits `json:"after,omitempty"`
	// Dropped are those that were in After when such an attempt ended. Asked are those that the
	// current attempt handed off, or adopted.
	Dropped Bits `json:"dropped,omitempty"`
	Asked   Bits `json:"asked,omitempty"`
	// Keys has, by ordinal, 8 characters of the hash of each child's key.
	Keys string `json:"keys,omitempty"`
	// Next is the one that its chain continues with, from 1; 0 is none.
	Next int `json:"next,omitempty"`
	// Undelivered are those that no agent could get at their hand-off.
	Undelivered Bits `json:"undelivered,omitempty"`
	// Assigned lists the agents that members of a group went to without being named by the group.
	Assigned []Assignment `json:"assigned,omitempty"`
}

// ChainEnd is the end of a chain: of its last handoff.
type ChainEnd struct {
	Ticket  string  `json:"ticket"`
	Agent   string  `json:"agent,omitempty"` // that had it last
	Outcome Outcome `json:"outcome"`
	Vote    Vote    `json:"vote,omitempty"`
	// Left is the rest of the limits that were granted along the chain; below 0 they were overrun.
	Left Amounts `json:"left,omitzero"`
}

// Bar is a hand-off that a limit or a rule refused.
type Bar struct {
	Count int    `json:"count"` // of all refused ones, up to BarsMax
	Code  Code   `json:"code"`
	Field string `json:"field,omitempty"` // of the limit or the rule
	To    string `json:"to,omitempty"`
	// FellBack means that the handoff closed with its own result instead.
	FellBack bool `json:"fell_back,omitempty"`
}

// BarsMax is how many refused hand-offs of one handoff are recorded.
const BarsMax = 100

// Assignment is an agent that a member of a group went to.
type Assignment struct {
	N     int    `json:"n"`
	Agent string `json:"agent"`
}

// Bind replaces Self in the fields of this State by the sequence of its append.
func (s *State) Bind(seq uint64) {
	for _, field := range []*uint64{&s.PackageSeq, &s.Offer, &s.Fence, &s.ResultSeq, &s.LateSeq} {
		if *field == Self {
			*field = seq
		}
	}
}

// Held reports whether a holder has this handoff.
func (s State) Held() bool { return s.Holder != "" }

// KeepUnknown keeps a field of a newer version, name and value. Invalid text in it is replaced.
func (s *State) KeepUnknown(field []byte) {
	s.Extra = append(s.Extra, ',')
	s.Extra = append(s.Extra, bytes.ToValidUTF8(field, []byte("\uFFFD"))...)
}

// scratch pools unused states. A state has two kilobytes.
var scratch = sync.Pool{New: func() any { return new(State) }}

// Scratch returns a copy of s to work on, until Discard.
func (s *State) Scratch() *State {
	next := scratch.Get().(*State)
	*next = *s
	return next
}

// Discard releases the memory of a Scratch.
func (s *State) Discard() {
	*s = State{} // drop all references
	scratch.Put(s)
}

// Summary is the part of a package that the State keeps.
type Summary struct {
	Type           Type                 `json:"type"`
	Source         string               `json:"source"`
	Target         Target               `json:"target"`
	Priority       Priority             `json:"priority"`
	Deadline       Time                 `json:"deadline,omitzero"`
	StartAt        Time                 `json:"start_at,omitzero"` // no offer before
	Parent         string               `json:"parent,omitempty"`
	WorkflowID     string               `json:"workflow_id,omitempty"`
	ConversationID string               `json:"conversation_id,omitempty"`
	TaskID         string               `json:"task_id,omitempty"`
	Requires       []RequiredCapability `json:"requires,omitempty"`
	Risk           Risk                 `json:"risk,omitempty"`
	Digest         string               `json:"digest"` // sha256 of the package as stored
	// N is its ordinal among the children of Parent, from 1; 0 is a handoff whose named parent did not
	// hand it off.
	N int `json:"n,omitempty"`
	// Group is the ticket of its group; Aggregate makes it a group.
	Group     string     `json:"group,omitempty"`
	Aggregate *Aggregate `json:"aggregate,omitempty"`
	// ReturnExpected delivers its end to the source; Wait is how an open parent waits for it (block or
	// continue).
	ReturnExpected bool   `json:"return_expected,omitempty"`
	Wait           string `json:"wait,omitempty"`
	ReturnOf       string `json:"return_of,omitempty"` // the handoff whose return this is
	// EndOf is handoff if its source or parent receives its own end, and not that of the chain which
	// it begins.
	EndOf ReturnScope `json:"end_of,omitempty"`
	// ChainOf is the first handoff of the chain that this one continues, if its source or parent waits
	// for the chain's end. ReturnFrom is since when the return's clock runs.
	ChainOf    string `json:"chain_of,omitempty"`
	ReturnFrom Time   `json:"return_from,omitzero"`
	Origin     string `json:"origin,omitempty"` // the handoff that this one redrives
	// Schedule is the schedule that submitted it.
	Schedule string `json:"schedule,omitempty"`
	// Rule is the rule that submitted it for a signal.
	Rule string `json:"rule,omitempty"`
	// Excluded lists the agents that refused the handoff which this one follows from, or redrives.
	// Again lets a redriven group use them.
	Excluded []string `json:"excluded,omitempty"`
	Again    bool     `json:"again,omitempty"`
	// AwaitsSource delays its beginning until its parent completes.
	AwaitsSource bool `json:"awaits_source,omitempty"`
	// Lineage is the sequence of hand-offs that led to it; nil if there are none. Limits bound it and
	// everything that follows from it; nil is no limit. Class selects limits that its package does not
	// set.
	Lineage *Lineage `json:"lineage,omitempty"`
	Limits  *Limits  `json:"limits,omitempty"`
	Class   string   `json:"class,omitempty"`
	// Classified is the class, and its origin, if the source did not name it: medium/rule 1, the first
	// rule of the fleet, or medium/model.
	Classified string `json:"classified,omitempty"`
	// Meter is the estimate of the package's tokens, if a limit of tokens bounds the handoff.
	Meter int64 `json:"meter,omitempty"`
	// Trace is the span that this handoff follows from; nil if its trace begins with it.
	Trace *TraceContext `json:"trace,omitempty"`
	// OnOpen decides while the breaker of its agent is open; empty is refuse.
	OnOpen OnOpen `json:"on_open,omitempty"`
	// OnUnknown decides if no agent has the name or the capability; empty is refuse.
	OnUnknown OnOpen `json:"on_unknown,omitempty"`
	// RouteBy is how its agent is chosen, if its package sets it. Ranked lists the agents that may
	// have it if its target does not take it, and no capability is named.
	RouteBy RouteBy  `json:"route_by,omitempty"`
	Ranked  []string `json:"ranked,omitempty"`
	// Variant is its experiment and its variant: experiment/variant.
	Variant string `json:"variant,omitempty"`
	// Bids are those of the package. CallOf is the handoff for which this one, a call, asks for a bid.
	Bids   *Bids  `json:"bids,omitempty"`
	CallOf string `json:"call_of,omitempty"`
	// Deciders may still decide after a denial, in this order.
	Deciders []string `json:"deciders,omitempty"`
	// Autonomy is that of the package, without its deciders.
	Autonomy *AutonomyBudget `json:"autonomy,omitempty"`
	// Approval is that of the package, without its question.
	Approval *Approval `json:"approval,omitempty"`
	// Workspace is the workflow that it has a place in, and Locks are the declared ones.
	Workspace string `json:"workspace,omitempty"`
	Locks     *Locks `json:"locks,omitempty"`
	// Overrides are kept to resolve the policy again when the handoff goes to another agent.
	Overrides PolicyOverrides `json:"overrides,omitzero"`
}

// Aggregate makes a handoff a group: it defines how its members' ends determine its own. The
// members are its children, with the ordinals 0 to Size-1.
type Aggregate struct {
	Size int         `json:"size"`
	Mode Aggregation `json:"mode"`
	// Counted are the members whose ends count; empty is all of them.
	Counted Bits `json:"counted,omitempty"`
	// CancelRest ends the other members once the outcome is certain.
	CancelRest bool `json:"cancel_rest,omitempty"`
}

// Routing records why an agent was chosen.
type Routing struct {
	Revision   uint64      `json:"revision"` // of the directory used
	Candidates []Candidate `json:"candidates,omitempty"`
	Excluded   []string    `json:"excluded,omitempty"`
	Choice     string      `json:"choice"`
	Warnings   []string    `json:"warnings,omitempty"` // a partial match, say
}

// Candidate is a considered agent, with its fitness (0 to 1).
type Candidate struct {
	Agent string  `json:"agent"`
	Score float64 `json:"score"`
	Live  int     `json:"live_holders"`
	Busy  int     `json:"busy_slots"`
}

// Facts are the values in the words of a reason. Its code determines which are set.
type Facts struct {
	Agent string `json:"agent,omitempty"` // that refused, asked, was absent, …
	// Causes are the codes of the reasons that led to this one, oldest first.
	Causes  []string `json:"causes,omitempty"`
	Count   int      `json:"count,omitempty"`
	Limit   int      `json:"limit,omitempty"`    // of the count
	Budget  string   `json:"budget,omitempty"`   // the one that has run out: max_tokens or max_cost_micros
	LimitMS int64    `json:"limit_ms,omitempty"` // of a clock
	// For a group: Count of its Limit members succeeded.
	Failed    int         `json:"failed,omitempty"` // did not succeed
	Cancelled int         `json:"cancelled,omitempty"`
	Mode      Aggregation `json:"mode,omitempty"`
	// Unfinished lists the ordinals of the members that had not ended when its time was over.
	Unfinished []int `json:"unfinished,omitempty"`
}

// Outcome is how a closed handoff ended.
type Outcome string

const (
	OutcomeSuccess    Outcome = "success"
	OutcomePartial    Outcome = "partial"
	OutcomeFailed     Outcome = "failed"
	OutcomeTimeout    Outcome = "timeout"
	OutcomeRejected   Outcome = "rejected"
	OutcomeCancelled  Outcome = "cancelled"
	OutcomeRolledBack Outcome = "rolled_back"
)
