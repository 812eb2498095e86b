package protocol

import (
	"cmp"
	"encoding/json"
	"slices"
	"strings"
)

// EventType names a fact, in the past tense.
type EventType string

// Event is one fact of a handoff's life. A field that can hold text has a tag redact, which selects
// how secrets are removed: text, free (any JSON), result, or "-" if only programs write it. A
// tag words describes the field to people, in a line about the event: % is its value. The concrete
// types are here, in gate.go and in bids.go, one per EventType.
type Event interface {
	EventType() EventType
	// When returns the instant of the event; the core has no other clock.
	When() Time
	// Author returns the name of who made it: an agent, a holder, "supervisor", a person.
	Author() string
	// outline returns the facts that readers of all events share.
	outline() Outline
}

// OutlineOf returns the facts of an event that its readers share.
func OutlineOf(e Event) Outline { return e.outline() }

// Outline has the facts of an event that its readers share. They are the audit and the trail, figures,
// spans, views, the index and the check of its author. An event without such facts has an empty one.
type Outline struct {
	Audit AuditType // the kind of its audit record; without one the append is noted
	Trail bool      // the next agent needs to know of it
	Ends  string    // how the attempt ends, in words, if it ends one
	// Closes means that the handoff ends with it.
	Closes bool

	Agent    string // the agent that it is about
	From, To string // the agents that it takes the handoff from, and that get it
	Suggests string // the agent that a refusal names
	Holder   string // the holder in it, which is its author or loses the handoff
	Takes    bool   // Holder has the handoff from now on
	Attempt  int
	Gate     GateKind // the condition of a gate that it is about

	Code, Words string // the reason, for programs and for people
	// Assessment and Level are those of an escalation.
	Assessment string
	Level      int
}

// events makes an empty event of each type, in the order of the lifecycle's table. It combines the
// lists of the files with the types; an event that is in no list cannot be read.
var events = slices.Concat(workEvents, courseEvents, gateEvents, bidEvents, familyEvents)

// empty makes an event of a type, to decode into.
func empty[T any, E interface {
	*T
	Event
}]() Event {
	return E(new(T))
}

// EventTypes lists all event types, in the order of the table.
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

// Meta holds the common fields of all events. An event is identified by the id of its Record and
// its index there.
type Meta struct {
	At Time   `json:"at"`
	By string `json:"by,omitempty" redact:"-"` // its author: an agent, a holder, "supervisor", a person
}

// When returns the instant of the event.
func (m Meta) When() Time { return m.At }

// Author returns the name of who made the event.
func (m Meta) Author() string { return m.By }

// outline returns no facts: those of an event without its own.
func (m Meta) outline() Outline { return Outline{} }

// The events of an offer and of the work on it.
const (
	EventSubmitted   EventType = "submitted"
	EventOffered     EventType = "offered"
	EventClaimed     EventType = "claimed"
	EventAccepted    EventType = "accepted"
	EventStarted     EventType = "started"
	EventProgressed  EventType = "progressed"
	EventSpent       EventType = "spent"
	EventCompleted   EventType = "completed"
	EventFailed      EventType = "failed"
	EventRejected    EventType = "rejected"
	EventConditioned EventType = "conditioned"
	EventAnswered    EventType = "answered"
	EventDecided     EventType = "decided"
)

var workEvents = []func() Event{
	empty[Submitted], empty[Offered], empty[Claimed], empty[Accepted],
	empty[Started], empty[Progressed], empty[Spent], empty[Completed], empty[Failed],
	empty[Rejected], empty[Conditioned], empty[Answered], empty[Decided],
}

// Submitted begins a handoff. Package or Blob holds the package.
type Submitted struct {
	Meta
	Ticket  string          `json:"ticket" redact:"-"`
	Package json.RawMessage `json:"package,omitempty" redact:"-"`
	Blob    *BlobRef        `json:"package_blob,omitempty" redact:"-"`
	// Summary and Policy are the parts of the package that the core needs, so that it never parses it.
	Summary Summary `json:"summary" redact:"-" words:"%"`
	Policy  Policy  `json:"policy" redact:"-"`
}

func (*Submitted) EventType() EventType { return EventSubmitted }

func (e *Submitted) outline() Outline {
	o := Outline{Audit: AuditInitiated, Trail: e.Summary.Origin != ""}
	if o.Trail {
		o.Words = "redrive of " + e.Summary.Origin
	}
	return o
}

// Offered puts the handoff into an agent's queue. The offer's id is the ledger sequence of the
// append that holds this event.
type Offered struct {
	Meta
	Agent   string   `json:"agent" redact:"-" words:"to %"`
	Reason  string   `json:"reason" redact:"-" words:"%"`            // submitted, retry, reroute, escalation, answer, lease_lost, not_acknowledged, released, deferred
	Routing *Routing `json:"routing,omitempty" redact:"-" words:"%"` // if the agent was chosen
	Policy  *Policy  `json:"policy,omitempty" redact:"-"`            // resolved for this agent
	// Breaker reports whether the agent has a breaker, and whether this offer is a probe.
	Breaker BreakerMark `json:"breaker,omitempty" redact:"-"`
}

func (*Offered) EventType() EventType { return EventOffered }

func (e *Offered) outline() Outline { return Outline{To: e.Agent, Code: e.Reason} }

// Claimed records that a polling holder has the offer but has not acknowledged it. Running workers
// skip it and append Accepted.
type Claimed struct {
	Meta
	Offer   uint64 `json:"offer"`
	Agent   string `json:"agent" redact:"-" words:"%"`
	Holder  string `json:"holder" redact:"-"`
	LeaseMS int64  `json:"lease_ms" words:"lease %"`
	// AckWithinMS is the time to acknowledge that the holder asked for; 0 is the acknowledge timeout
	// of the policy.
	AckWithinMS int64 `json:"ack_within_ms,omitempty"`
	// LimitKeys are the keys under which it has a place.
	LimitKeys []string `json:"limit_keys,omitempty" redact:"-"`
}

func (*Claimed) EventType() EventType { return EventClaimed }

func (e *Claimed) outline() Outline { return Outline{To: e.Agent, Holder: e.Holder, Takes: true} }

// Accepted records that a holder took the offer. Its fence is the ledger sequence of the append
// that holds this event.
type Accepted struct {
	Meta
	Offer               uint64 `json:"offer"`
	Agent               string `json:"agent" redact:"-" words:"%"`
	Holder              string `json:"holder" redact:"-"`
	Attempt             int    `json:"attempt" words:"attempt %"` // the number of this attempt
	LeaseMS             int64  `json:"lease_ms" words:"lease %"`
	EstimatedCompletion Time   `json:"estimated_completion,omitzero" words:"done by %"`
	// LimitKeys are the keys under which it has a place.
	LimitKeys []string `json:"limit_keys,omitempty" redact:"-"`
}

func (*Accepted) EventType() EventType { return EventAccepted }

func (e *Accepted) outline() Outline {
	return Outline{Audit: AuditAccepted, To: e.Agent, Holder: e.Holder, Takes: true, Attempt: e.Attempt}
}

// Started records that the work has begun. Fence is 0 in the append that accepts.
type Started struct {
	Meta
	Fence uint64 `json:"fence"`
}

func (*Started) EventType() EventType { return EventStarted }

// Progressed is a report from within the work.
type Progressed struct {
	Meta
	Fence    uint64   `json:"fence"`
	Progress Progress `json:"progress" words:"%"`
}

func (*Progressed) EventType() EventType { return EventProgressed }

// Spent reports the cumulative usage of an attempt. Only the increase since its last report is
// charged.
type Spent struct {
	Meta
	Fence  uint64      `json:"fence"`
	Usage  Usage       `json:"usage" words:"% so far"`
	Source UsageSource `json:"source" redact:"-" words:"%"`
}

func (*Spent) EventType() EventType { return EventSpent }

// Decided is a decision that the holder made alone during the work.
type Decided struct {
	Meta
	Fence       uint64 `json:"fence"`
	ID          string `json:"id" redact:"-"`
	Description string `json:"description" redact:"text" words:"%"`
	Rationale   string `json:"rationale,omitempty" redact:"text" words:"%"`
	Risk        Risk   `json:"risk" redact:"-" words:"risk %"`
}

func (*Decided) EventType() EventType { return EventDecided }

// Completed holds the result, or its address.
type Completed struct {
	Meta
	Fence  uint64          `json:"fence"`
	Status ResultStatus    `json:"status" redact:"-" words:"%"`
	Result json.RawMessage `json:"result,omitempty" redact:"result" words:"%"`
	Blob   *BlobRef        `json:"result_blob,omitempty" redact:"-" words:"%"`
	Usage  *Usage          `json:"usage,omitempty" words:"%"`
	// SetAside is that of the result.
	SetAside string `json:"set_aside,omitempty" redact:"text"`
	// Vote is the vote in the result; only a group that asks for a majority counts it.
	Vote Vote `json:"vote,omitempty" redact:"-"`
}

func (*Completed) EventType() EventType { return EventCompleted }

func (*Completed) outline() Outline {
	return Outline{Audit: AuditCompleted, Ends: "completed", Closes: true}
}

// Failed ends an attempt without a result.
type Failed struct {
	Meta
	Fence        uint64 `json:"fence"`
	Attempt      int    `json:"attempt"`
	Code         string `json:"code" redact:"-"` // handler, panic, exit, output_schema, result_malformed, …
	Message      string `json:"message" redact:"text"`
	Retryable    bool   `json:"retryable"`
	RetryAfterMS int64  `json:"retry_after_ms,omitempty"`                           // minimum delay
	LimitKey     string `json:"limit_key,omitempty" redact:"-" words:"% is paused"` // whose provider throttles: it is paused for RetryAfterMS
	Usage        *Usage `json:"usage,omitempty"`
	// Result keeps the output of an attempt whose result is malformed; Blob has its address.
	Result json.RawMessage `json:"result,omitempty" redact:"result"`
	Blob   *BlobRef        `json:"result_blob,omitempty" redact:"-"`
}

func (*Failed) EventType() EventType { return EventFailed }

func (e *Failed) outline() Outline {
	return Outline{Audit: AuditFailed, Trail: true, Ends: "failed", Attempt: e.Attempt, Code: e.Code, Words: e.Message}
}

// Rejected is a refusal. Holder is set when the offer was claimed or accepted first.
type Rejected struct {
	Meta
	Offer       uint64 `json:"offer"`
	Agent       string `json:"agent" redact:"-"`
	Holder      string `json:"holder,omitempty" redact:"-"`
	ReasonCode  string `json:"reason_code,omitempty" redact:"-"`
	Reason      string `json:"reason" redact:"text"`
	Alternative string `json:"suggested_alternative,omitempty" redact:"-"`
}

func (*Rejected) EventType() EventType { return EventRejected }

func (e *Rejected) outline() Outline {
	return Outline{Audit: AuditRejected, Trail: true, Ends: "refused", Agent: e.Agent, Suggests: e.Alternative, Holder: e.Holder,
		Code: e.ReasonCode, Words: e.Reason}
}

// Conditioned accepts an offer under a condition. With only RetryAfterMS it is a deferral, which
// has a reason. EstimatedCompletionMS is the duration of the work once the condition is met.
type Conditioned struct {
	Meta
	Offer                 uint64   `json:"offer"`
	Agent                 string   `json:"agent" redact:"-"`
	Holder                string   `json:"holder,omitempty" redact:"-"`
	Reason                string   `json:"reason,omitempty" redact:"text"`
	NeedsContext          []string `json:"needs_context,omitempty" redact:"text"`
	NeedsPermission       []string `json:"needs_permission,omitempty" redact:"text"`
	RetryAfterMS          int64    `json:"retry_after_ms,omitempty"`
	EstimatedCompletionMS int64    `json:"estimated_completion_ms,omitempty"`
}

func (*Conditioned) EventType() EventType { return EventConditioned }

func (e *Conditioned) outline() Outline {
	var asks []string
	if len(e.NeedsContext) > 0 {
		asks = append(asks, "needs context: "+strings.Join(e.NeedsContext, ", "))
	}
	if len(e.NeedsPermission) > 0 {
		asks = append(asks, "needs permission: "+strings.Join(e.NeedsPermission, ", "))
	}
	o := Outline{Audit: AuditDeferred, Trail: len(asks) > 0, Ends: "put off", Agent: e.Agent, Holder: e.Holder}
	if e.Reason != "" {
		asks = append(asks, e.Reason)
	}
	o.Words = strings.Join(asks, "; ")
	return o
}

// Answered supplies the request of a Conditioned, or answers an escalation, which then returns to
// the agent that escalated it. The answer names its question, so that it cannot answer a later one.
// A denial counts as a refusal by the agent that asked, or by the authority.
type Answered struct {
	Meta
	Answer Answer `json:"answer" words:"%"`
}

func (*Answered) EventType() EventType { return EventAnswered }

func (e *Answered) outline() Outline {
	o := Outline{Trail: true, Ends: "given back", Words: e.Answer.Text}
	switch {
	case e.Answer.Deny:
		o.Audit, o.Code, o.Words = AuditRejected, "denied", cmp.Or(e.Answer.DenyReason, e.Answer.Text)
	case e.Answer.Permit:
		o.Code = "permitted"
	}
	return o
}

// The events that change the course of a handoff: time, other agents, the end.
const (
	EventRetryScheduled  EventType = "retry_scheduled"
	EventRerouted        EventType = "rerouted"
	EventEscalated       EventType = "escalated"
	EventLeaseLost       EventType = "lease_lost"
	EventReleased        EventType = "released"
	EventReminded        EventType = "reminded"
	EventExtended        EventType = "extended"
	EventTimedOut        EventType = "timed_out"
	EventDeadlocked      EventType = "deadlocked"
	EventCancelRequested EventType = "cancel_requested"
	EventClosed          EventType = "closed"
	EventStuck           EventType = "stuck"
)

var courseEvents = []func() Event{
	empty[RetryScheduled], empty[Rerouted], empty[Escalated], empty[LeaseLost],
	empty[Released], empty[Reminded], empty[Extended], empty[TimedOut], empty[Deadlocked],
	empty[CancelRequested], empty[Closed], empty[Stuck],
}

// RetryScheduled sets the time of the next offer.
type RetryScheduled struct {
	Meta
	Attempt int  `json:"attempt" words:"after attempt %"` // the attempt that ended
	Due     Time `json:"due" words:"at %"`
}

func (*RetryScheduled) EventType() EventType { return EventRetryScheduled }

// Rerouted replaces an agent by another; an Offered follows in the append.
type Rerouted struct {
	Meta
	From   string `json:"from" redact:"-"`
	To     string `json:"to" redact:"-"`
	Reason string `json:"reason" redact:"text"` // in words
	// ReasonCode and Facts are set if Decide gives the reason; they determine its words.
	ReasonCode string `json:"reason_code,omitempty" redact:"-"`
	Facts      *Facts `json:"facts,omitempty" redact:"-"`
	// Deadline is a new one from a manual reroute, after which the handoff is no longer overdue.
	Deadline Time `json:"deadline,omitzero"`
	// Manual marks a reroute by a person or an agent: it is legal in every open phase, takes the
	// handoff from its holder, and does not count as a reroute.
	Manual bool `json:"manual,omitempty"`
	// Override lists the rules of fitness that a person has overridden for the agent
	// (lifecycle.Unfitness).
	Override []string `json:"override,omitempty" redact:"-"`
}

func (*Rerouted) EventType() EventType { return EventRerouted }

func (e *Rerouted) outline() Outline {
	o := Outline{Trail: true, Ends: "taken away", From: e.From, To: e.To, Words: e.Reason}
	if e.Manual {
		o.Code = "manual"
	}
	return o
}

// Escalated moves the handoff up the chain of authority; an Offered follows.
type Escalated struct {
	Meta
	Level  int    `json:"level"`
	From   string `json:"from" redact:"-"`
	To     string `json:"to" redact:"-"`
	Reason string `json:"reason" redact:"text"` // in words; if an agent escalates, its rationale
	// ReasonCode and Facts are as in Rerouted.
	ReasonCode string `json:"reason_code,omitempty" redact:"-"`
	Facts      *Facts `json:"facts,omitempty" redact:"-"`
	// Fence is set if the holder itself escalates. Then Assessment holds its findings so far.
	Fence      uint64 `json:"fence,omitempty"`
	Assessment string `json:"assessment,omitempty" redact:"text"`
}

func (*Escalated) EventType() EventType { return EventEscalated }

func (e *Escalated) outline() Outline {
	return Outline{Audit: AuditEscalated, Trail: true, Ends: "passed up", From: e.From, To: e.To, Words: e.Reason,
		Assessment: e.Assessment, Level: e.Level}
}

// LeaseLost takes a handoff from a holder that vanished, or that did not acknowledge its claim in
// time. For an unacknowledged claim Fence is 0 and no attempt is charged.
type LeaseLost struct {
	Meta
	Holder  string `json:"holder" redact:"-"`
	Fence   uint64 `json:"fence"`
	Attempt int    `json:"attempt,omitempty"`
	Reason  string `json:"reason,omitempty" redact:"-"` // not_acknowledged: the claim expired; else the holder is lost
}

func (*LeaseLost) EventType() EventType { return EventLeaseLost }

func (e *LeaseLost) outline() Outline {
	o := Outline{Trail: true, Ends: "lost", Holder: e.Holder, Attempt: e.Attempt, Code: cmp.Or(e.Reason, "lease_lost")}
	if e.Fence != 0 { // it was acknowledged
		o.Audit, o.Words = AuditFailed, "the worker that had it is gone"
	}
	return o
}

// NotAcknowledged is the reason of a claim that lapses although its holder is present.
const NotAcknowledged = "not_acknowledged"

// Released records that a holder released the handoff without charge: a drain.
type Released struct {
	Meta
	Holder string `json:"holder" redact:"-"`
	Fence  uint64 `json:"fence"`
	Reason string `json:"reason,omitempty" redact:"text" words:"not charged, %"`
}

func (*Released) EventType() EventType { return EventReleased }

func (e *Released) outline() Outline {
	return Outline{Ends: "given back", Holder: e.Holder, Words: e.Reason}
}

// Reminded records that the holder was warned of its time limit.
type Reminded struct {
	Meta
	Fence uint64 `json:"fence"`
}

func (*Reminded) EventType() EventType { return EventReminded }

// Extended grants a holder more time for its work, once per attempt.
type Extended struct {
	Meta
	Fence  uint64 `json:"fence"`
	Until  Time   `json:"until" words:"until %"`          // new end of the work's clock
	Reason string `json:"reason" redact:"text" words:"%"` // of the holder
}

func (*Extended) EventType() EventType { return EventExtended }

// Clock is one of the clocks of a handoff.
type Clock string

const (
	ClockAcknowledge Clock = "acknowledge" // the agent is absent
	ClockQueue       Clock = "queue"       // offer to acknowledge
	ClockWork        Clock = "work"        // accept to complete
	ClockProgress    Clock = "progress"    // since the last sign of progress
	ClockCondition   Clock = "condition"   // for an answer
	ClockReturn      Clock = "return"      // submission to result, of a handoff that expects a return
	ClockDeadline    Clock = "deadline"    // over everything
)

// TimedOut records that a clock ran out.
type TimedOut struct {
	Meta
	Clock   Clock  `json:"clock" redact:"-" words:"% timeout"`
	Agent   string `json:"agent,omitempty" redact:"-" words:"%"`
	Attempt int    `json:"attempt,omitempty"`
}

func (*TimedOut) EventType() EventType { return EventTimedOut }

func (e *TimedOut) outline() Outline {
	return Outline{Audit: AuditTimeout, Trail: true, Ends: "timed out", Agent: e.Agent, Code: string(e.Clock)}
}

// Deadlocked records that the handoff waits in a circle: it waits for a slot of its agent, and the
// handoffs in those slots wait for it, directly or through the others in the circle.
type Deadlocked struct {
	Meta
	Agent string   `json:"agent" redact:"-"`
	Cycle []string `json:"cycle" redact:"-"` // tickets, including its own; the first DeadlockMax
}

func (*Deadlocked) EventType() EventType { return EventDeadlocked }

func (e *Deadlocked) outline() Outline { return Outline{Agent: e.Agent} }

// CancelRequested requests an end. No holder loses its work at once.
type CancelRequested struct {
	Meta
	Reason string `json:"reason,omitempty" redact:"text" words:"%"`
	// Return asks for a rollback: the handoff returns to its source instead of being cancelled.
	Return bool `json:"return,omitempty" words:"to be rolled back to its source"`
	// Children also cancels the children of this handoff.
	Children bool `json:"children,omitempty" words:"and all that it has handed off"`
}

func (*CancelRequested) EventType() EventType { return EventCancelRequested }

// Closed ends a handoff that did not complete. Completed closes by itself.
type Closed struct {
	Meta
	Outcome Outcome `json:"outcome" redact:"-"`
	Reason  string  `json:"reason" redact:"-"`          // a code: attempts_exhausted, crash_loop, deadline, …
	Facts   *Facts  `json:"facts,omitempty" redact:"-"` // of the reason, if Decide gives it
	Message string  `json:"message,omitempty" redact:"text"`
	Inbox   string  `json:"inbox,omitempty" redact:"-"` // the inbox that lists it until dismissed
}

func (*Closed) EventType() EventType { return EventClosed }

func (e *Closed) outline() Outline {
	return Outline{Audit: cmp.Or(auditClosing[e.Outcome], AuditFailed), Ends: "ended", Closes: true, Code: e.Reason, Words: e.Message}
}

// Stuck records that the supervisor could not reconcile this handoff. It changes nothing else.
type Stuck struct {
	Meta
	Reason string `json:"reason" redact:"text" words:"%"`
}

func (*Stuck) EventType() EventType { return EventStuck }

// The events about related handoffs, of interventions, and after the end.
const (
	EventHandedOff       EventType = "handed_off"
	EventAdopted         EventType = "adopted"
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
	EventChainEnded      EventType = "chain_ended"
	EventBarred          EventType = "barred"
	EventRaised          EventType = "raised"
)

var familyEvents = []func() Event{
	empty[HandedOff], empty[Adopted], empty[Suspended], empty[ChildrenClosed], empty[Taken],
	empty[RolledBack], empty[LateResultUsed], empty[ResultParked], empty[ReturnSent],
	empty[Returned], empty[Redriven], empty[Dismissed], empty[Assigned],
	empty[SourceCompleted], empty[ChainEnded], empty[Barred], empty[Raised],
}

// HandedOff records a handoff that follows from this one, before it is submitted: a crash between
// the two neither loses nor duplicates it. Package or Blob holds the child's package.
type HandedOff struct {
	Meta
	Fence   uint64          `json:"fence"`
	N       int             `json:"n"`                 // its ordinal among the children, from 0
	After   bool            `json:"after,omitempty"`   // it begins when this handoff completes
	Goto    bool            `json:"goto,omitempty"`    // the chain continues with it
	Returns bool            `json:"returns,omitempty"` // its end returns to this handoff
	Waits   bool            `json:"waits,omitempty"`   // the program that hands it off keeps its slot until it ends
	Ticket  string          `json:"ticket" redact:"-"` // of the child, derived from this ticket and its key, or N
	Type    Type            `json:"child_type" redact:"-"`
	Target  string          `json:"target" redact:"-"`          // in words, for people
	Digest  string          `json:"digest" redact:"-"`          // of the child's package as stored
	Trace   *TraceContext   `json:"trace,omitempty" redact:"-"` // that of its package; nil: it follows from the work
	Package json.RawMessage `json:"package,omitempty" redact:"-"`
	Blob    *BlobRef        `json:"package_blob,omitempty" redact:"-"`
	// Undelivered is why no agent could be given it at its hand-off. It then goes to the authority of
	// its source.
	Undelivered string `json:"undelivered,omitempty" redact:"text"`
	// Key is that of the child's package, if it has one, and Cell its short form. Written is the
	// digest of the package as it was written.
	Key     string `json:"key,omitempty" redact:"-"`
	Cell    string `json:"cell,omitempty" redact:"-"`
	Written string `json:"written,omitempty" redact:"-"`
	// Excluded is that of the child's summary.
	Excluded []string `json:"excluded,omitempty" redact:"-"`
	// Hash is the ContextHash of the child's package, for the lineage. Grant holds the limits of the
	// child, which its parent reserves until it has ended. Cost is the cost of the hand-off itself.
	Hash  string   `json:"hash,omitempty" redact:"-"`
	Grant *Limits  `json:"grant,omitempty" redact:"-"`
	Cost  *Amounts `json:"cost,omitempty" redact:"-"`
}

func (*HandedOff) EventType() EventType { return EventHandedOff }

// Adopted records that an attempt asks for children of an earlier one. Nothing is handed off.
type Adopted struct {
	Meta
	Fence    uint64 `json:"fence"`
	Children []int  `json:"children"` // ordinals
}

func (*Adopted) EventType() EventType { return EventAdopted }

// Suspended records that the holder released the handoff until children have closed. No attempt is
// charged; the handoff is then offered to the same agent again.
type Suspended struct {
	Meta
	Fence    uint64 `json:"fence"`
	Children []int  `json:"children" words:"lets go until its children have ended: %, not charged"` // ordinals
}

func (*Suspended) EventType() EventType { return EventSuspended }

func (*Suspended) outline() Outline {
	return Outline{Ends: "let go", Words: "until its children have ended"}
}

// ChildrenClosed records which children of a group, or of a waiting handoff, have closed.
type ChildrenClosed struct {
	Meta
	Children []ChildClosed `json:"children" redact:"-" words:"%"`
}

func (*ChildrenClosed) EventType() EventType { return EventChildrenClosed }

// ChildClosed is one child's end.
type ChildClosed struct {
	N       int     `json:"n"`
	Outcome Outcome `json:"outcome"`
	Vote    Vote    `json:"vote,omitempty"`
	// Grant is the amount that the parent had reserved for it, and Commit the amount used by it and
	// everything below it.
	Grant  *Amounts `json:"grant,omitempty"`
	Commit *Amounts `json:"commit,omitempty"`
}

// Taken gives the handoff to a person, or to an agent that claims it out of turn. An earlier holder
// loses it. Its fence is the sequence of its append.
type Taken struct {
	Meta
	Agent   string `json:"agent" redact:"-" words:"by %, out of turn"`
	Holder  string `json:"holder" redact:"-"`
	LeaseMS int64  `json:"lease_ms" words:"lease %"`
	Reason  string `json:"reason,omitempty" redact:"text" words:"%"`
}

func (*Taken) EventType() EventType { return EventTaken }

func (e *Taken) outline() Outline {
	return Outline{Audit: AuditAccepted, To: e.Agent, Holder: e.Holder, Takes: true, Attempt: 1, Words: e.Reason}
}

// RolledBack returns the handoff to its source, with a partial result if there is one. Fence is 0
// if no worker held it.
type RolledBack struct {
	Meta
	Fence  uint64          `json:"fence,omitempty"`
	Reason string          `json:"reason" redact:"text" words:"%"`
	Inbox  string          `json:"inbox,omitempty" redact:"-" words:"listed in the inbox of %"` // as in Closed
	Result json.RawMessage `json:"result,omitempty" redact:"result" words:"a partial result of %"`
	Blob   *BlobRef        `json:"result_blob,omitempty" redact:"-" words:"a partial result of %"`
	Usage  *Usage          `json:"usage,omitempty"`
}

func (*RolledBack) EventType() EventType { return EventRolledBack }

func (e *RolledBack) outline() Outline {
	return Outline{Audit: AuditFailed, Ends: "given back", Closes: true, Code: "returned", Words: e.Reason}
}

// ResultParked keeps the result of a holder that had lost its lease. It changes nothing else, and
// is also legal after the handoff has closed.
type ResultParked struct {
	Meta
	Holder  string          `json:"holder" redact:"-"`
	Agent   string          `json:"agent,omitempty" redact:"-"` // of that holder
	Fence   uint64          `json:"fence"`                      // the lost one
	Attempt int             `json:"attempt" words:"the result of attempt % came late and changes nothing"`
	Status  ResultStatus    `json:"status" redact:"-" words:"%"`
	Result  json.RawMessage `json:"result,omitempty" redact:"result"`
	Blob    *BlobRef        `json:"result_blob,omitempty" redact:"-"`
	Usage   *Usage          `json:"usage,omitempty"`
	// SetAside, Vote and Malformed are those of the result. A malformed one is never used.
	SetAside  string `json:"set_aside,omitempty" redact:"text"`
	Vote      Vote   `json:"vote,omitempty" redact:"-"`
	Malformed string `json:"malformed,omitempty" redact:"text" words:"%"`
}

func (*ResultParked) EventType() EventType { return EventResultParked }

func (e *ResultParked) outline() Outline {
	return Outline{Agent: e.Agent, Holder: e.Holder, Attempt: e.Attempt}
}

// LateResultUsed completes a handoff that has no attempts left with its last parked result (policy
// late_result: use).
type LateResultUsed struct {
	Meta
	Seq uint64 `json:"seq" words:"the late result in entry % completes it"` // of the append that has the result
}

func (*LateResultUsed) EventType() EventType { return EventLateResultUsed }

func (*LateResultUsed) outline() Outline {
	return Outline{Audit: AuditCompleted, Closes: true, Code: "late_result"}
}

// ReturnSent records the ticket under which the return of a closed handoff is delivered to its
// source.
type ReturnSent struct {
	Meta
	Ticket string `json:"ticket" redact:"-" words:"the return is %"`
	To     string `json:"to" redact:"-" words:"to %"`
}

func (*ReturnSent) EventType() EventType { return EventReturnSent }

// Returned records the end of a return. Delivered means that the source has acknowledged it, or
// that a worker of the parent got it with its claim. Inbox lists it otherwise.
type Returned struct {
	Meta
	Delivered bool   `json:"delivered" words:"the return is received"`
	Reason    string `json:"reason,omitempty" redact:"text" words:"not delivered, %"`
	Inbox     string `json:"inbox,omitempty" redact:"-"`
}

func (*Returned) EventType() EventType { return EventReturned }

// Redriven records that a closed handoff was submitted again, with the new ticket.
type Redriven struct {
	Meta
	Ticket string `json:"ticket" redact:"-" words:"submitted again, as %"`
}

func (*Redriven) EventType() EventType { return EventRedriven }

// Dismissed removes a closed handoff from the inbox that lists it.
type Dismissed struct {
	Meta
	Note string `json:"note,omitempty" redact:"text" words:"out of the inbox, %"`
}

func (*Dismissed) EventType() EventType { return EventDismissed }

// Assigned records at a group that a member goes to an agent which the group does not name for it.
// No other member then gets that agent.
type Assigned struct {
	Meta
	N     int    `json:"n"` // ordinal of the member
	Agent string `json:"agent" redact:"-"`
}

func (*Assigned) EventType() EventType { return EventAssigned }

// SourceCompleted begins a handoff that awaited its source: the handoff from which it follows has
// completed.
type SourceCompleted struct {
	Meta
}

func (*SourceCompleted) EventType() EventType { return EventSourceCompleted }

// ChainEnded records the end of the chain that a closed handoff began. Its source or its parent
// waits for that.
type ChainEnded struct {
	Meta
	End ChainEnd `json:"end" redact:"-" words:"its chain ended with %"`
}

func (*ChainEnded) EventType() EventType { return EventChainEnded }

// Barred records a hand-off that a limit or a rule refuses. Nothing was handed off.
type Barred struct {
	Meta
	Fence uint64 `json:"fence"`
	Code  Code   `json:"code" redact:"-"`
	Field string `json:"field,omitempty" redact:"-"` // of the limit or the rule
	To    string `json:"to,omitempty" redact:"-"`    // its target, in words
	Type  Type   `json:"child_type,omitempty" redact:"-"`
	Words string `json:"words" redact:"text"` // the refusal
	// FellBack means that the handoff closes with its own result instead.
	FellBack bool `json:"fell_back,omitempty"`
}

func (*Barred) EventType() EventType { return EventBarred }

func (e *Barred) outline() Outline { return Outline{Code: string(e.Code), Words: e.Words} }

// Raised adds to the limits of an open handoff. By is who allowed it.
type Raised struct {
	Meta
	Limits Amounts `json:"limits" redact:"-" words:"its limits are raised by %"` // amount added to each
}

func (*Raised) EventType() EventType { return EventRaised }

// UnknownEvent is an event of a newer minor version. Its effect is in the state after it; it cannot
// be applied.
type UnknownEvent struct {
	Meta
	Type EventType
	Raw  json.RawMessage // the whole event
}

// EventType returns the type, which this version does not know.
func (e *UnknownEvent) EventType() EventType { return e.Type }

// BlobRef points at a body in the object store.
type BlobRef struct {
	Digest string `json:"digest"` // "sha256:" and 64 hex digits
	Size   int64  `json:"size"`   // bytes
}

// BodyOf returns the package or the result of an event: inline, or as a reference to the object
// store. Both are nil for an event that never has any.
func BodyOf(e Event) (inline *json.RawMessage, blob *BlobRef) {
	switch e := e.(type) {
	case *Submitted:
		return &e.Package, e.Blob
	case *HandedOff:
		return &e.Package, e.Blob
	case *Completed:
		return &e.Result, e.Blob
	case *Failed:
		return &e.Result, e.Blob
	case *ResultParked:
		return &e.Result, e.Blob
	case *RolledBack:
		return &e.Result, e.Blob
	}
	return nil, nil
}
