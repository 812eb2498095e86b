package protocol

import "encoding/json"

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

// Submitted begins a handoff. Body or Blob holds the package.
type Submitted struct {
	Meta
	Ticket  string          `json:"ticket" redact:"-"`
	Package json.RawMessage `json:"package,omitempty" redact:"-"`
	Blob    *BlobRef        `json:"package_blob,omitempty" redact:"-"`
	// What the core needs to know of the package, so that it never parses it.
	Summary Summary `json:"summary" redact:"-"`
	Policy  Policy  `json:"policy" redact:"-"`
}

func (*Submitted) EventType() EventType { return EventSubmitted }

// Offered puts the handoff into an agent's queue. The offer's id is the
// ledger sequence of the append that holds this event.
type Offered struct {
	Meta
	Agent   string   `json:"agent" redact:"-"`
	Reason  string   `json:"reason" redact:"-"`            // submitted, retry, reroute, escalation, answer, lease_lost, not_acknowledged, released, deferred
	Routing *Routing `json:"routing,omitempty" redact:"-"` // where the agent was chosen
	Policy  *Policy  `json:"policy,omitempty" redact:"-"`  // resolved anew for this agent
	// Breaker says that the agent has a breaker, and whether this offer is a probe.
	Breaker BreakerMark `json:"breaker,omitempty" redact:"-"`
}

func (*Offered) EventType() EventType { return EventOffered }

// Claimed says that a holder which polls has the offer in its hands but has
// not acknowledged it. Workers that run skip it and append Accepted.
type Claimed struct {
	Meta
	Offer   uint64 `json:"offer"`
	Agent   string `json:"agent" redact:"-"`
	Holder  string `json:"holder" redact:"-"`
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
	Agent               string `json:"agent" redact:"-"`
	Holder              string `json:"holder" redact:"-"`
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

// Spent says what an attempt has used so far. What is more than its fence had said counts.
type Spent struct {
	Meta
	Fence  uint64      `json:"fence"`
	Usage  Usage       `json:"usage"`
	Source UsageSource `json:"source" redact:"-"`
}

func (*Spent) EventType() EventType { return EventSpent }

// Decided is a decision that the holder has made by itself during the work.
type Decided struct {
	Meta
	Fence       uint64 `json:"fence"`
	ID          string `json:"id" redact:"-"`
	Description string `json:"description" redact:"text"`
	Rationale   string `json:"rationale,omitempty" redact:"text"`
	Risk        Risk   `json:"risk" redact:"-"`
}

func (*Decided) EventType() EventType { return EventDecided }

// Completed carries the result, or where it lies.
type Completed struct {
	Meta
	Fence  uint64          `json:"fence"`
	Status ResultStatus    `json:"status" redact:"-"`
	Result json.RawMessage `json:"result,omitempty" redact:"result"`
	Blob   *BlobRef        `json:"result_blob,omitempty" redact:"-"`
	Usage  *Usage          `json:"usage,omitempty"`
	// SetAside is that of the result.
	SetAside string `json:"set_aside,omitempty" redact:"text"`
	// Vote is that of the result; only a group that asks for a majority heeds it.
	Vote Vote `json:"vote,omitempty" redact:"-"`
}

func (*Completed) EventType() EventType { return EventCompleted }

// Failed ends an attempt without a result.
type Failed struct {
	Meta
	Fence        uint64 `json:"fence"`
	Attempt      int    `json:"attempt"`
	Code         string `json:"code" redact:"-"` // handler, panic, exit, output_schema, result_malformed, …
	Message      string `json:"message" redact:"text"`
	Retryable    bool   `json:"retryable"`
	RetryAfterMS int64  `json:"retry_after_ms,omitempty"` // a floor of the delay
	Usage        *Usage `json:"usage,omitempty"`
	// Result keeps the output of an attempt whose result is malformed, or says where it lies.
	Result json.RawMessage `json:"result,omitempty" redact:"result"`
	Blob   *BlobRef        `json:"result_blob,omitempty" redact:"-"`
}

func (*Failed) EventType() EventType { return EventFailed }

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

// Conditioned is an "only if". With RetryAfterMS alone it is a deferral, which
// says why. EstimatedCompletionMS is how long the work takes once that is settled.
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

// Answered supplies what a Conditioned asked for, or is what an authority says
// to an escalation: then the handoff goes back to the agent that escalated it.
// The answer names its question: a later one is another. Denied, it counts as a refusal by the agent that asked,
// or by the authority.
type Answered struct {
	Meta
	Answer Answer `json:"answer"`
}

func (*Answered) EventType() EventType { return EventAnswered }
