package protocol

import "encoding/json"

// EventType names a fact, in the past tense.
type EventType string

const (
	EventSubmitted       EventType = "submitted"
	EventOffered         EventType = "offered"
	EventClaimed         EventType = "claimed"
	EventAccepted        EventType = "accepted"
	EventStarted         EventType = "started"
	EventProgressed      EventType = "progressed"
	EventCompleted       EventType = "completed"
	EventFailed          EventType = "failed"
	EventRejected        EventType = "rejected"
	EventConditioned     EventType = "conditioned"
	EventAnswered        EventType = "answered"
	EventRetryScheduled  EventType = "retry_scheduled"
	EventRerouted        EventType = "rerouted"
	EventEscalated       EventType = "escalated"
	EventLeaseLost       EventType = "lease_lost"
	EventReleased        EventType = "released"
	EventReminded        EventType = "reminded"
	EventExtended        EventType = "extended"
	EventTimedOut        EventType = "timed_out"
	EventCancelRequested EventType = "cancel_requested"
	EventClosed          EventType = "closed"
	EventStuck           EventType = "stuck"
	EventHandedOff       EventType = "handed_off"
	EventSuspended       EventType = "suspended"
	EventChildrenClosed  EventType = "children_closed"
	EventTaken           EventType = "taken"
	EventRolledBack      EventType = "rolled_back"
	EventLateResultUsed  EventType = "late_result_used"
	EventResultParked    EventType = "result_parked"
	EventReturnSent      EventType = "return_sent"
	EventReturned        EventType = "returned"
	EventRedriven        EventType = "redriven"
	EventDismissed       EventType = "dismissed"
	EventAssigned        EventType = "assigned"
	EventSourceCompleted EventType = "source_completed"
)

// Event is one fact of a handoff's life. The concrete types are below, one
// for each EventType.
type Event interface {
	EventType() EventType
	// When is the instant the event carries; the core knows no other clock.
	When() Time
}

// Meta is what every event carries beside its own fields. The event's id is
// the id of its Record and its place in it.
type Meta struct {
	At Time   `json:"at"`
	By string `json:"by,omitempty"` // who caused it: an agent, a holder, "supervisor", a person
}

// When returns the instant of the event.
func (m Meta) When() Time { return m.At }

// UnknownEvent is an event of a newer minor version. What it means stands in the state
// after it; it cannot be applied.
type UnknownEvent struct {
	Meta
	Type EventType
	Raw  json.RawMessage // all of it
}

// EventType returns the type, which this version does not know.
func (e *UnknownEvent) EventType() EventType { return e.Type }

// BlobRef points at a body in the object store.
type BlobRef struct {
	Digest string `json:"digest"` // "sha256:" and 64 hex digits
	Size   int64  `json:"size"`   // bytes
}

// BodyOf is where an event keeps a package or a result: in itself, or as a
// reference to the object store. Both are nil for an event that never has any.
func BodyOf(e Event) (inline *json.RawMessage, blob *BlobRef) {
	switch e := e.(type) {
	case *Submitted:
		return &e.Package, e.Blob
	case *HandedOff:
		return &e.Package, e.Blob
	case *Completed:
		return &e.Result, e.Blob
	case *ResultParked:
		return &e.Result, e.Blob
	case *RolledBack:
		return &e.Result, e.Blob
	}
	return nil, nil
}

// Submitted begins a handoff. Body or Blob holds the package.
type Submitted struct {
	Meta
	Ticket  string          `json:"ticket"`
	Package json.RawMessage `json:"package,omitempty"`
	Blob    *BlobRef        `json:"package_blob,omitempty"`
	// What the core needs to know of the package, so that it never parses it.
	Summary Summary `json:"summary"`
	Policy  Policy  `json:"policy"`
}

// Summary is the part of a package that the State keeps.
type Summary struct {
	Type           Type                 `json:"type"`
	Source         string               `json:"source"`
	Target         Target               `json:"target"`
	Priority       Priority             `json:"priority"`
	Deadline       Time                 `json:"deadline,omitzero"`
	Parent         string               `json:"parent,omitempty"`
	WorkflowID     string               `json:"workflow_id,omitempty"`
	ConversationID string               `json:"conversation_id,omitempty"`
	TaskID         string               `json:"task_id,omitempty"`
	Requires       []RequiredCapability `json:"requires,omitempty"`
	Risk           Risk                 `json:"risk,omitempty"`
	Digest         string               `json:"digest"` // sha256 of the package as stored
	// N is its place among the children of Parent, from 1; 0 is a handoff that
	// names a parent which did not hand it off itself.
	N int `json:"n,omitempty"`
	// Group is the ticket of the group it belongs to; Aggregate makes it one.
	Group     string     `json:"group,omitempty"`
	Aggregate *Aggregate `json:"aggregate,omitempty"`
	// ReturnExpected says that its end is delivered to the source; Wait is what
	// a parent does meanwhile (block or continue), where it does not close.
	ReturnExpected bool   `json:"return_expected,omitempty"`
	Wait           string `json:"wait,omitempty"`
	ReturnOf       string `json:"return_of,omitempty"` // the handoff whose return this is
	Origin         string `json:"origin,omitempty"`    // the handoff that this one redrives
	// Excluded are the agents that refused the handoff which this one follows from, or
	// redrives. Again says that a redriven group does not exclude them.
	Excluded []string `json:"excluded,omitempty"`
	Again    bool     `json:"again,omitempty"`
	// AwaitsSource says that it begins when its parent completes (document 1 §2.1).
	AwaitsSource bool `json:"awaits_source,omitempty"`
	// Trace is the span that this handoff follows from; nil where its trace
	// begins with it.
	Trace *TraceContext `json:"trace,omitempty"`
	// Overrides are kept so that the policy can be resolved anew when the
	// handoff goes to another agent.
	Overrides PolicyOverrides `json:"overrides,omitzero"`
}

// Aggregate is what makes a handoff a group: how its members' ends become its
// own. The members are its children, with the ordinals 0 to Size-1.
type Aggregate struct {
	Size int         `json:"size"`
	Mode Aggregation `json:"mode"`
	// Counted are the members whose ends count; empty is all of them.
	Counted Bits `json:"counted,omitempty"`
	// CancelRest ends the other members once the outcome is certain.
	CancelRest bool `json:"cancel_rest,omitempty"`
}

// Offered puts the handoff into an agent's queue. The offer's id is the
// ledger sequence of the append that holds this event.
type Offered struct {
	Meta
	Agent   string   `json:"agent"`
	Reason  string   `json:"reason"`            // submitted, retry, reroute, escalation, answer, lease_lost, not_acknowledged, released, deferred
	Routing *Routing `json:"routing,omitempty"` // where the agent was chosen
	Policy  *Policy  `json:"policy,omitempty"`  // resolved anew for this agent
}

// Routing is why an agent was chosen, kept for whoever asks later.
type Routing struct {
	Revision   uint64      `json:"revision"` // of the directory that was seen
	Candidates []Candidate `json:"candidates,omitempty"`
	Excluded   []string    `json:"excluded,omitempty"`
	Choice     string      `json:"choice"`
	Warnings   []string    `json:"warnings,omitempty"` // a partial match, say
}

// Candidate is an agent that was looked at, and how well it fits (0 to 1).
type Candidate struct {
	Agent string  `json:"agent"`
	Score float64 `json:"score"`
	Live  int     `json:"live_holders"`
	Busy  int     `json:"busy_slots"`
}

// Claimed says that a holder which polls has the offer in its hands but has
// not acknowledged it. Workers that run skip it and append Accepted.
type Claimed struct {
	Meta
	Offer   uint64 `json:"offer"`
	Agent   string `json:"agent"`
	Holder  string `json:"holder"`
	LeaseMS int64  `json:"lease_ms"`
	// AckWithinMS is the time to the acknowledgement that the holder asked for;
	// 0 is the acknowledge timeout of the policy.
	AckWithinMS int64 `json:"ack_within_ms,omitempty"`
}

// Accepted says that a holder took the offer. Its fence is the ledger
// sequence of the append that holds this event.
type Accepted struct {
	Meta
	Offer               uint64 `json:"offer"`
	Agent               string `json:"agent"`
	Holder              string `json:"holder"`
	LeaseMS             int64  `json:"lease_ms"`
	Attempt             int    `json:"attempt"` // the number of this attempt
	EstimatedCompletion Time   `json:"estimated_completion,omitzero"`
}

// Started says that the work has begun. Fence is 0 in the append that accepts.
type Started struct {
	Meta
	Fence uint64 `json:"fence"`
}

// Progressed is a report from within the work.
type Progressed struct {
	Meta
	Fence    uint64   `json:"fence"`
	Progress Progress `json:"progress"`
}

// Completed carries the result, or where it lies.
type Completed struct {
	Meta
	Fence  uint64          `json:"fence"`
	Status ResultStatus    `json:"status"`
	Result json.RawMessage `json:"result,omitempty"`
	Blob   *BlobRef        `json:"result_blob,omitempty"`
	Tokens int64           `json:"tokens,omitempty"`
}

// Failed ends an attempt without a result.
type Failed struct {
	Meta
	Fence        uint64 `json:"fence"`
	Attempt      int    `json:"attempt"`
	Code         string `json:"code"` // handler, panic, exit, output_schema, result_too_large, …
	Message      string `json:"message"`
	Retryable    bool   `json:"retryable"`
	RetryAfterMS int64  `json:"retry_after_ms,omitempty"` // a floor of the delay
}

// Rejected is a refusal. Holder is set when the offer was claimed or accepted first.
type Rejected struct {
	Meta
	Offer       uint64 `json:"offer"`
	Agent       string `json:"agent"`
	Holder      string `json:"holder,omitempty"`
	ReasonCode  string `json:"reason_code,omitempty"`
	Reason      string `json:"reason"`
	Alternative string `json:"suggested_alternative,omitempty"`
}

// Conditioned is an "only if". With RetryAfterMS alone it is a deferral, which
// says why. EstimatedCompletionMS is how long the work takes once that is settled.
type Conditioned struct {
	Meta
	Offer                 uint64   `json:"offer"`
	Agent                 string   `json:"agent"`
	Holder                string   `json:"holder,omitempty"`
	Reason                string   `json:"reason,omitempty"`
	NeedsContext          []string `json:"needs_context,omitempty"`
	NeedsPermission       []string `json:"needs_permission,omitempty"`
	RetryAfterMS          int64    `json:"retry_after_ms,omitempty"`
	EstimatedCompletionMS int64    `json:"estimated_completion_ms,omitempty"`
}

// Answered supplies what a Conditioned asked for, or is what an authority says
// to an escalation: then the handoff goes back to the agent that escalated it.
// Offer is the one whose agent asked, or the one at the authority: a later
// question is another. Denied, it counts as a refusal by the agent that asked,
// or by the authority.
type Answered struct {
	Meta
	Offer  uint64 `json:"offer"`
	Answer Answer `json:"answer"`
}

// RetryScheduled says when the next attempt will be offered.
type RetryScheduled struct {
	Meta
	Attempt int  `json:"attempt"` // the attempt that ended
	Due     Time `json:"due"`
}

// Rerouted gives up an agent for another; an Offered follows in the append.
type Rerouted struct {
	Meta
	From   string `json:"from"`
	To     string `json:"to"`
	Reason string `json:"reason"` // in words
	// ReasonCode and Facts are set where Decide gives the reason; the words are made of them.
	ReasonCode string `json:"reason_code,omitempty"`
	Facts      *Facts `json:"facts,omitempty"`
	// Deadline is a new one, of a reroute by hand: from now on it is not overdue.
	Deadline Time `json:"deadline,omitzero"`
	// Manual says that somebody asked for it: it is legal in every open phase,
	// takes the handoff from its holder, and does not count as a reroute.
	Manual bool `json:"manual,omitempty"`
}

// Escalated moves the handoff up the chain of authority; an Offered follows.
type Escalated struct {
	Meta
	Level  int    `json:"level"`
	From   string `json:"from"`
	To     string `json:"to"`
	Reason string `json:"reason"` // in words; of an agent that escalates by itself: its rationale
	// ReasonCode and Facts are as in Rerouted.
	ReasonCode string `json:"reason_code,omitempty"`
	Facts      *Facts `json:"facts,omitempty"`
	// Fence is set where the holder itself escalates, and then Assessment is
	// what it has found out so far (document 1 §2.4).
	Fence      uint64 `json:"fence,omitempty"`
	Assessment string `json:"assessment,omitempty"`
}

// LeaseLost takes a handoff from a holder that vanished, or that claimed it and did
// not acknowledge it in time. For a mere claim Fence is 0 and no attempt is charged.
type LeaseLost struct {
	Meta
	Holder  string `json:"holder"`
	Fence   uint64 `json:"fence"`
	Attempt int    `json:"attempt,omitempty"`
	Reason  string `json:"reason,omitempty"` // not_acknowledged: a claim whose time ran out; else the holder is gone
}

// NotAcknowledged is the reason of a claim that lapses though its holder is there.
const NotAcknowledged = "not_acknowledged"

// Released says that a holder gave the handoff back without charge: a drain.
type Released struct {
	Meta
	Holder string `json:"holder"`
	Fence  uint64 `json:"fence"`
	Reason string `json:"reason,omitempty"`
}

// CancelRequested asks for an end. Nobody's work is taken away at once.
type CancelRequested struct {
	Meta
	Reason string `json:"reason,omitempty"`
	// Return says that the handoff shall go back to its source (a rollback)
	// instead of being cancelled.
	Return bool `json:"return,omitempty"`
	// Children says that what this handoff has handed on is cancelled too.
	Children bool `json:"children,omitempty"`
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

// Closed ends a handoff that did not complete. Completed closes by itself.
type Closed struct {
	Meta
	Outcome Outcome `json:"outcome"`
	Reason  string  `json:"reason"`          // a code: attempts_exhausted, crash_loop, deadline, …
	Facts   *Facts  `json:"facts,omitempty"` // of the reason, where Decide gives it
	Message string  `json:"message,omitempty"`
	Inbox   string  `json:"inbox,omitempty"` // in whose inbox it is listed until dismissed
}

// Facts are what the words of a reason are made of. Which are set depends on its code.
type Facts struct {
	Agent string `json:"agent,omitempty"` // that refused, asked, was absent, …
	// Causes are the codes of the reasons that led to this one, the first first.
	Causes  []string `json:"causes,omitempty"`
	Count   int      `json:"count,omitempty"`
	Limit   int      `json:"limit,omitempty"`    // of the count
	LimitMS int64    `json:"limit_ms,omitempty"` // of a clock
	// Of a group: Count of its Limit members succeeded.
	Failed    int         `json:"failed,omitempty"` // did not succeed
	Cancelled int         `json:"cancelled,omitempty"`
	Mode      Aggregation `json:"mode,omitempty"`
}

// Stuck says that the supervisor could not look at this handoff. It changes nothing else.
type Stuck struct {
	Meta
	Reason string `json:"reason"`
}

// HandedOff records a handoff that follows from this one, before it is
// submitted: a crash between the two neither loses nor doubles it. Package or
// Blob holds the child's package.
type HandedOff struct {
	Meta
	Fence   uint64          `json:"fence"`
	N       int             `json:"n"`                // its ordinal among the children, from 0
	Number  int             `json:"number,omitempty"` // what its holder called it, where that is not N + 1
	After   bool            `json:"after,omitempty"`  // it begins when this handoff completes
	Ticket  string          `json:"ticket"`           // of the child, derived from this ticket and N
	Type    Type            `json:"child_type"`
	Target  string          `json:"target"`          // in words, for people
	Digest  string          `json:"digest"`          // of the child's package as stored
	Trace   *TraceContext   `json:"trace,omitempty"` // what its package said; nil is that it follows from the work
	Package json.RawMessage `json:"package,omitempty"`
	Blob    *BlobRef        `json:"package_blob,omitempty"`
	// Excluded is that of the child's summary.
	Excluded []string `json:"excluded,omitempty"`
}

// Suspended says that the holder lets go until children have closed. No attempt
// is charged; the handoff is offered to the same agent again then.
type Suspended struct {
	Meta
	Fence    uint64 `json:"fence"`
	Children []int  `json:"children"` // ordinals
}

// ChildrenClosed says which children of a group, or of a handoff that waits for
// them, have closed.
type ChildrenClosed struct {
	Meta
	Children []ChildClosed `json:"children"`
}

// ChildClosed is one child's end.
type ChildClosed struct {
	N       int     `json:"n"`
	Outcome Outcome `json:"outcome"`
}

// Taken gives the handoff to a person, or to an agent that claims it out of
// turn, whoever had it before. Its fence is the sequence of its append.
type Taken struct {
	Meta
	Agent   string `json:"agent"`
	Holder  string `json:"holder"`
	LeaseMS int64  `json:"lease_ms"`
	Reason  string `json:"reason,omitempty"`
}

// RolledBack returns the handoff to its source, with what there is of a result.
// Fence is 0 where nobody held it.
type RolledBack struct {
	Meta
	Fence  uint64          `json:"fence,omitempty"`
	Reason string          `json:"reason"`
	Inbox  string          `json:"inbox,omitempty"` // as in Closed
	Result json.RawMessage `json:"result,omitempty"`
	Blob   *BlobRef        `json:"result_blob,omitempty"`
}

// ResultParked keeps what a holder handed in that had lost its lease. It
// changes nothing else, and is legal after the handoff has closed too.
type ResultParked struct {
	Meta
	Holder  string          `json:"holder"`
	Fence   uint64          `json:"fence"` // the lost one
	Attempt int             `json:"attempt"`
	Status  ResultStatus    `json:"status"`
	Result  json.RawMessage `json:"result,omitempty"`
	Blob    *BlobRef        `json:"result_blob,omitempty"`
	Tokens  int64           `json:"tokens,omitempty"`
}

// LateResultUsed completes a handoff that has no attempts left with the result
// that was parked last (policy late_result: use).
type LateResultUsed struct {
	Meta
	Seq uint64 `json:"seq"` // of the append that holds it
}

// ReturnSent says under which ticket the return of a closed handoff is
// delivered to its source.
type ReturnSent struct {
	Meta
	Ticket string `json:"ticket"`
	To     string `json:"to"`
}

// Returned says what became of the return: Delivered is that the source has
// acknowledged it.
type Returned struct {
	Meta
	Delivered bool   `json:"delivered"`
	Reason    string `json:"reason,omitempty"`
}

// Redriven says that a closed handoff was submitted again, and as what.
type Redriven struct {
	Meta
	Ticket string `json:"ticket"`
}

// Dismissed takes a closed handoff out of the inbox that lists it.
type Dismissed struct {
	Meta
	Note string `json:"note,omitempty"`
}

// Assigned records at a group that a member of it goes to an agent which the group
// does not name for it. No other member goes there then.
type Assigned struct {
	Meta
	N     int    `json:"n"` // ordinal of the member
	Agent string `json:"agent"`
}

// SourceCompleted begins a handoff that awaited its source: the handoff that it was
// handed off from has completed.
type SourceCompleted struct {
	Meta
}
