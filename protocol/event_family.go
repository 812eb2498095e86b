package protocol

import "encoding/json"

// The events of other handoffs that belong to this one, of interventions, and after the end.
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

// HandedOff records a handoff that follows from this one, before it is
// submitted: a crash between the two neither loses nor doubles it. Package or
// Blob holds the child's package.
type HandedOff struct {
	Meta
	Fence   uint64          `json:"fence"`
	N       int             `json:"n"`                 // its ordinal among the children, from 0
	After   bool            `json:"after,omitempty"`   // it begins when this handoff completes
	Goto    bool            `json:"goto,omitempty"`    // the chain goes on with it
	Returns bool            `json:"returns,omitempty"` // its end comes back to this handoff
	Waits   bool            `json:"waits,omitempty"`   // the program that hands it off waits for it in its slot
	Ticket  string          `json:"ticket" redact:"-"` // of the child, derived from this ticket and its key, or N
	Type    Type            `json:"child_type" redact:"-"`
	Target  string          `json:"target" redact:"-"`          // in words, for people
	Digest  string          `json:"digest" redact:"-"`          // of the child's package as stored
	Trace   *TraceContext   `json:"trace,omitempty" redact:"-"` // what its package said; nil is that it follows from the work
	Package json.RawMessage `json:"package,omitempty" redact:"-"`
	Blob    *BlobRef        `json:"package_blob,omitempty" redact:"-"`
	// Undelivered says why no agent could be given it when it was handed off. Then it goes up to
	// the authority of its source.
	Undelivered string `json:"undelivered,omitempty" redact:"text"`
	// Key is that of the child's package, if it has one, and Cell its short form. Written is the
	// digest of the package as it was written.
	Key     string `json:"key,omitempty" redact:"-"`
	Cell    string `json:"cell,omitempty" redact:"-"`
	Written string `json:"written,omitempty" redact:"-"`
	// Excluded is that of the child's summary.
	Excluded []string `json:"excluded,omitempty" redact:"-"`
	// Hash is the ContextHash of the child's package, for the lineage. Grant are the limits that the
	// child gets: its parent sets them aside until it has ended.
	// Cost is what the hand-off itself takes.
	Hash  string   `json:"hash,omitempty" redact:"-"`
	Grant *Limits  `json:"grant,omitempty" redact:"-"`
	Cost  *Amounts `json:"cost,omitempty" redact:"-"`
}

func (*HandedOff) EventType() EventType { return EventHandedOff }

// Adopted says that an attempt asks for children that an earlier one handed off. Nothing is handed off.
type Adopted struct {
	Meta
	Fence    uint64 `json:"fence"`
	Children []int  `json:"children"` // ordinals
}

func (*Adopted) EventType() EventType { return EventAdopted }

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
	Children []ChildClosed `json:"children" redact:"-"`
}

func (*ChildrenClosed) EventType() EventType { return EventChildrenClosed }

// ChildClosed is one child's end.
type ChildClosed struct {
	N       int     `json:"n"`
	Outcome Outcome `json:"outcome"`
	Vote    Vote    `json:"vote,omitempty"`
	// Grant is what the parent had set aside for it, and Commit what it and all below it have used.
	Grant  *Amounts `json:"grant,omitempty"`
	Commit *Amounts `json:"commit,omitempty"`
}

// Taken gives the handoff to a person, or to an agent that claims it out of turn. No
// holder before keeps it. Its fence is the sequence of its append.
type Taken struct {
	Meta
	Agent   string `json:"agent" redact:"-"`
	Holder  string `json:"holder" redact:"-"`
	LeaseMS int64  `json:"lease_ms"`
	Reason  string `json:"reason,omitempty" redact:"text"`
}

func (*Taken) EventType() EventType { return EventTaken }

// RolledBack returns the handoff to its source, with what there is of a result.
// Fence is 0 where no worker held it.
type RolledBack struct {
	Meta
	Fence  uint64          `json:"fence,omitempty"`
	Reason string          `json:"reason" redact:"text"`
	Inbox  string          `json:"inbox,omitempty" redact:"-"` // as in Closed
	Result json.RawMessage `json:"result,omitempty" redact:"result"`
	Blob   *BlobRef        `json:"result_blob,omitempty" redact:"-"`
	Usage  *Usage          `json:"usage,omitempty"`
}

func (*RolledBack) EventType() EventType { return EventRolledBack }

// ResultParked keeps what a holder handed in that had lost its lease. It
// changes nothing else, and is legal after the handoff has closed too.
type ResultParked struct {
	Meta
	Holder  string          `json:"holder" redact:"-"`
	Agent   string          `json:"agent,omitempty" redact:"-"` // of that holder
	Fence   uint64          `json:"fence"`                      // the lost one
	Attempt int             `json:"attempt"`
	Status  ResultStatus    `json:"status" redact:"-"`
	Result  json.RawMessage `json:"result,omitempty" redact:"result"`
	Blob    *BlobRef        `json:"result_blob,omitempty" redact:"-"`
	Usage   *Usage          `json:"usage,omitempty"`
	// SetAside, Vote and Malformed are those of the result. A malformed one is never used.
	SetAside  string `json:"set_aside,omitempty" redact:"text"`
	Vote      Vote   `json:"vote,omitempty" redact:"-"`
	Malformed string `json:"malformed,omitempty" redact:"text"`
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
	Ticket string `json:"ticket" redact:"-"`
	To     string `json:"to" redact:"-"`
}

func (*ReturnSent) EventType() EventType { return EventReturnSent }

// Returned says what became of the return. Delivered is that the source has acknowledged it, or
// that a worker of the parent got it with its claim. Inbox lists one that neither gets.
type Returned struct {
	Meta
	Delivered bool   `json:"delivered"`
	Reason    string `json:"reason,omitempty" redact:"text"`
	Inbox     string `json:"inbox,omitempty" redact:"-"`
}

func (*Returned) EventType() EventType { return EventReturned }

// Redriven says that a closed handoff was submitted again, and as what.
type Redriven struct {
	Meta
	Ticket string `json:"ticket" redact:"-"`
}

func (*Redriven) EventType() EventType { return EventRedriven }

// Dismissed takes a closed handoff out of the inbox that lists it.
type Dismissed struct {
	Meta
	Note string `json:"note,omitempty" redact:"text"`
}

func (*Dismissed) EventType() EventType { return EventDismissed }

// Assigned records at a group which agent a member goes to that the group names none for.
// No other member goes there then.
type Assigned struct {
	Meta
	N     int    `json:"n"` // ordinal of the member
	Agent string `json:"agent" redact:"-"`
}

func (*Assigned) EventType() EventType { return EventAssigned }

// SourceCompleted begins a handoff that awaited its source: the handoff that it was
// handed off from has completed.
type SourceCompleted struct {
	Meta
}

func (*SourceCompleted) EventType() EventType { return EventSourceCompleted }

// ChainEnded says how the chain has ended that a closed handoff began. Its source or its parent
// waits for that.
type ChainEnded struct {
	Meta
	End ChainEnd `json:"end" redact:"-"`
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
	// FellBack says that the handoff closes with its own result in its place.
	FellBack bool `json:"fell_back,omitempty"`
}

func (*Barred) EventType() EventType { return EventBarred }

// Raised adds to the limits of an open handoff. By is who allowed it.
type Raised struct {
	Meta
	Limits Amounts `json:"limits" redact:"-"` // what is added to each
}

func (*Raised) EventType() EventType { return EventRaised }
