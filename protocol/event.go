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

// events makes an empty event of each type, in the order of the lifecycle's table.
// An event that is not listed here cannot be read.
var events = [...]func() Event{
	empty[Submitted], empty[Offered], empty[Claimed], empty[Accepted],
	empty[Started], empty[Progressed], empty[Completed], empty[Failed],
	empty[Rejected], empty[Conditioned], empty[Answered], empty[RetryScheduled],
	empty[Rerouted], empty[Escalated], empty[LeaseLost], empty[Released],
	empty[Reminded], empty[Extended], empty[TimedOut], empty[CancelRequested],
	empty[Closed], empty[Stuck], empty[HandedOff], empty[Suspended],
	empty[ChildrenClosed], empty[Taken], empty[RolledBack], empty[LateResultUsed],
	empty[ResultParked], empty[ReturnSent], empty[Returned], empty[Redriven],
	empty[Dismissed], empty[Assigned], empty[SourceCompleted],
}

// empty makes an event of a type, to decode into.
func empty[T any, E interface {
	*T
	Event
}]() Event {
	return E(new(T))
}

// EventTypes are all event types, in the order of the table.
var EventTypes = func() (types []EventType) {
	for _, newEmpty := range events {
		types = append(types, newEmpty().EventType())
	}
	return types
}()

// newEvent makes an empty event of each type, to decode into.
var newEvent = func() map[EventType]func() Event {
	byType := make(map[EventType]func() Event, len(events))
	for i, newEmpty := range events {
		byType[EventTypes[i]] = newEmpty
	}
	return byType
}()

// NewEvent returns an empty event of a type, or nil for an unknown type.
func NewEvent(t EventType) Event {
	if newEmpty := newEvent[t]; newEmpty != nil {
		return newEmpty()
	}
	return nil
}

// Meta is what every event carries beside its own fields. The event's id is
// the id of its Record and its place in it.
type Meta struct {
	At Time   `json:"at"`
	By string `json:"by,omitempty"` // who caused it: an agent, a holder, "supervisor", a person
}

// When returns the instant of the event.
func (m Meta) When() Time { return m.At }

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

func (*Submitted) EventType() EventType { return EventSubmitted }

// Offered puts the handoff into an agent's queue. The offer's id is the
// ledger sequence of the append that holds this event.
type Offered struct {
	Meta
	Agent   string   `json:"agent"`
	Reason  string   `json:"reason"`            // submitted, retry, reroute, escalation, answer, lease_lost, not_acknowledged, released, deferred
	Routing *Routing `json:"routing,omitempty"` // where the agent was chosen
	Policy  *Policy  `json:"policy,omitempty"`  // resolved anew for this agent
}

func (*Offered) EventType() EventType { return EventOffered }

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

func (*Claimed) EventType() EventType { return EventClaimed }

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

func (*Accepted) EventType() EventType { return EventAccepted }

// Started says that the work has begun. Fence is 0 in the append that accepts.
type Started struct {
	Meta
	Fence uint64 `json:"fence"`
}

func (*Started) EventType() EventType { return EventStarted }

// Progressed is a report from within the work.
type Progressed struct {
	Meta
	Fence    uint64   `json:"fence"`
	Progress Progress `json:"progress"`
}

func (*Progressed) EventType() EventType { return EventProgressed }

// Completed carries the result, or where it lies.
type Completed struct {
	Meta
	Fence  uint64          `json:"fence"`
	Status ResultStatus    `json:"status"`
	Result json.RawMessage `json:"result,omitempty"`
	Blob   *BlobRef        `json:"result_blob,omitempty"`
	Tokens int64           `json:"tokens,omitempty"`
}

func (*Completed) EventType() EventType { return EventCompleted }

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

func (*Failed) EventType() EventType { return EventFailed }

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

func (*Rejected) EventType() EventType { return EventRejected }

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

func (*Conditioned) EventType() EventType { return EventConditioned }

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

func (*Answered) EventType() EventType { return EventAnswered }

// RetryScheduled says when the next attempt will be offered.
type RetryScheduled struct {
	Meta
	Attempt int  `json:"attempt"` // the attempt that ended
	Due     Time `json:"due"`
}

func (*RetryScheduled) EventType() EventType { return EventRetryScheduled }

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

func (*Rerouted) EventType() EventType { return EventRerouted }

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

func (*Escalated) EventType() EventType { return EventEscalated }

// LeaseLost takes a handoff from a holder that vanished, or that claimed it and did
// not acknowledge it in time. For a mere claim Fence is 0 and no attempt is charged.
type LeaseLost struct {
	Meta
	Holder  string `json:"holder"`
	Fence   uint64 `json:"fence"`
	Attempt int    `json:"attempt,omitempty"`
	Reason  string `json:"reason,omitempty"` // not_acknowledged: a claim whose time ran out; else the holder is gone
}

func (*LeaseLost) EventType() EventType { return EventLeaseLost }

// NotAcknowledged is the reason of a claim that lapses though its holder is there.
const NotAcknowledged = "not_acknowledged"

// Released says that a holder gave the handoff back without charge: a drain.
type Released struct {
	Meta
	Holder string `json:"holder"`
	Fence  uint64 `json:"fence"`
	Reason string `json:"reason,omitempty"`
}

func (*Released) EventType() EventType { return EventReleased }

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

func (*CancelRequested) EventType() EventType { return EventCancelRequested }

// Closed ends a handoff that did not complete. Completed closes by itself.
type Closed struct {
	Meta
	Outcome Outcome `json:"outcome"`
	Reason  string  `json:"reason"`          // a code: attempts_exhausted, crash_loop, deadline, …
	Facts   *Facts  `json:"facts,omitempty"` // of the reason, where Decide gives it
	Message string  `json:"message,omitempty"`
	Inbox   string  `json:"inbox,omitempty"` // in whose inbox it is listed until dismissed
}

func (*Closed) EventType() EventType { return EventClosed }

// Stuck says that the supervisor could not look at this handoff. It changes nothing else.
type Stuck struct {
	Meta
	Reason string `json:"reason"`
}

func (*Stuck) EventType() EventType { return EventStuck }

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

func (*HandedOff) EventType() EventType { return EventHandedOff }

// Suspended says that the holder lets go until children have closed. No attempt
// is charged; the handoff is offered to the same agent again then.
type Suspended struct {
	Meta
	Fence    uint64 `json:"fence"`
	Children []int  `json:"children"` // ordinals
}

func (*Suspended) EventType() EventType { return EventSuspended }

// ChildrenClosed says which children of a group, or of a handoff that waits for
// them, have closed.
type ChildrenClosed struct {
	Meta
	Children []ChildClosed `json:"children"`
}

func (*ChildrenClosed) EventType() EventType { return EventChildrenClosed }

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

func (*Taken) EventType() EventType { return EventTaken }

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

func (*RolledBack) EventType() EventType { return EventRolledBack }

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

func (*ResultParked) EventType() EventType { return EventResultParked }

// LateResultUsed completes a handoff that has no attempts left with the result
// that was parked last (policy late_result: use).
type LateResultUsed struct {
	Meta
	Seq uint64 `json:"seq"` // of the append that holds it
}

func (*LateResultUsed) EventType() EventType { return EventLateResultUsed }

// ReturnSent says under which ticket the return of a closed handoff is
// delivered to its source.
type ReturnSent struct {
	Meta
	Ticket string `json:"ticket"`
	To     string `json:"to"`
}

func (*ReturnSent) EventType() EventType { return EventReturnSent }

// Returned says what became of the return: Delivered is that the source has
// acknowledged it.
type Returned struct {
	Meta
	Delivered bool   `json:"delivered"`
	Reason    string `json:"reason,omitempty"`
}

func (*Returned) EventType() EventType { return EventReturned }

// Redriven says that a closed handoff was submitted again, and as what.
type Redriven struct {
	Meta
	Ticket string `json:"ticket"`
}

func (*Redriven) EventType() EventType { return EventRedriven }

// Dismissed takes a closed handoff out of the inbox that lists it.
type Dismissed struct {
	Meta
	Note string `json:"note,omitempty"`
}

func (*Dismissed) EventType() EventType { return EventDismissed }

// Assigned records at a group that a member of it goes to an agent which the group
// does not name for it. No other member goes there then.
type Assigned struct {
	Meta
	N     int    `json:"n"` // ordinal of the member
	Agent string `json:"agent"`
}

func (*Assigned) EventType() EventType { return EventAssigned }

// SourceCompleted begins a handoff that awaited its source: the handoff that it was
// handed off from has completed.
type SourceCompleted struct {
	Meta
}

func (*SourceCompleted) EventType() EventType { return EventSourceCompleted }
