package protocol

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
	From   string `json:"from" redact:"-"`
	To     string `json:"to" redact:"-"`
	Reason string `json:"reason" redact:"text"` // in words
	// ReasonCode and Facts are set where Decide gives the reason; the words are made of them.
	ReasonCode string `json:"reason_code,omitempty" redact:"-"`
	Facts      *Facts `json:"facts,omitempty" redact:"-"`
	// Deadline is a new one, of a reroute by hand: from now on it is not overdue.
	Deadline Time `json:"deadline,omitzero"`
	// Manual says that a person or an agent asked for it: it is legal in every open phase,
	// takes the handoff from its holder, and does not count as a reroute.
	Manual bool `json:"manual,omitempty"`
	// Override names the rules of fitness that a person has set aside for the agent (lifecycle.Unfitness).
	Override []string `json:"override,omitempty" redact:"-"`
}

func (*Rerouted) EventType() EventType { return EventRerouted }

// Escalated moves the handoff up the chain of authority; an Offered follows.
type Escalated struct {
	Meta
	Level  int    `json:"level"`
	From   string `json:"from" redact:"-"`
	To     string `json:"to" redact:"-"`
	Reason string `json:"reason" redact:"text"` // in words; of an agent that escalates by itself: its rationale
	// ReasonCode and Facts are as in Rerouted.
	ReasonCode string `json:"reason_code,omitempty" redact:"-"`
	Facts      *Facts `json:"facts,omitempty" redact:"-"`
	// Fence is set where the holder itself escalates, and then Assessment is
	// what it has found out so far.
	Fence      uint64 `json:"fence,omitempty"`
	Assessment string `json:"assessment,omitempty" redact:"text"`
}

func (*Escalated) EventType() EventType { return EventEscalated }

// LeaseLost takes a handoff from a holder that vanished, or that claimed it and did
// not acknowledge it in time. For a mere claim Fence is 0 and no attempt is charged.
type LeaseLost struct {
	Meta
	Holder  string `json:"holder" redact:"-"`
	Fence   uint64 `json:"fence"`
	Attempt int    `json:"attempt,omitempty"`
	Reason  string `json:"reason,omitempty" redact:"-"` // not_acknowledged: a claim whose time ran out; else the holder is gone
}

func (*LeaseLost) EventType() EventType { return EventLeaseLost }

// NotAcknowledged is the reason of a claim that lapses though its holder is there.
const NotAcknowledged = "not_acknowledged"

// Released says that a holder released the handoff without charge: a drain.
type Released struct {
	Meta
	Holder string `json:"holder" redact:"-"`
	Fence  uint64 `json:"fence"`
	Reason string `json:"reason,omitempty" redact:"text"`
}

func (*Released) EventType() EventType { return EventReleased }

// Reminded says that the holder was told its time is running out.
type Reminded struct {
	Meta
	Fence uint64 `json:"fence"`
}

func (*Reminded) EventType() EventType { return EventReminded }

// Extended grants a holder more time for its work, once in an attempt.
type Extended struct {
	Meta
	Fence  uint64 `json:"fence"`
	Until  Time   `json:"until"`                // when the work's clock runs out from now on
	Reason string `json:"reason" redact:"text"` // of the holder
}

func (*Extended) EventType() EventType { return EventExtended }

// Clock is one of the clocks that a handoff lives under.
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

// TimedOut says that a clock ran out.
type TimedOut struct {
	Meta
	Clock   Clock  `json:"clock" redact:"-"`
	Agent   string `json:"agent,omitempty" redact:"-"`
	Attempt int    `json:"attempt,omitempty"`
}

func (*TimedOut) EventType() EventType { return EventTimedOut }

// Deadlocked says that the handoff waits in a circle. It waits for a slot of its agent, and what
// holds the slots waits for it, by way of the others in the circle.
type Deadlocked struct {
	Meta
	Agent string   `json:"agent" redact:"-"`
	Cycle []string `json:"cycle" redact:"-"` // tickets, its own among them; the first DeadlockMax
}

func (*Deadlocked) EventType() EventType { return EventDeadlocked }

// CancelRequested asks for an end. No holder loses its work at once.
type CancelRequested struct {
	Meta
	Reason string `json:"reason,omitempty" redact:"text"`
	// Return says that the handoff shall go back to its source (a rollback)
	// instead of being cancelled.
	Return bool `json:"return,omitempty"`
	// Children says that what this handoff has handed off is cancelled too.
	Children bool `json:"children,omitempty"`
}

func (*CancelRequested) EventType() EventType { return EventCancelRequested }

// Closed ends a handoff that did not complete. Completed closes by itself.
type Closed struct {
	Meta
	Outcome Outcome `json:"outcome" redact:"-"`
	Reason  string  `json:"reason" redact:"-"`          // a code: attempts_exhausted, crash_loop, deadline, …
	Facts   *Facts  `json:"facts,omitempty" redact:"-"` // of the reason, where Decide gives it
	Message string  `json:"message,omitempty" redact:"text"`
	Inbox   string  `json:"inbox,omitempty" redact:"-"` // in whose inbox it is listed until dismissed
}

func (*Closed) EventType() EventType { return EventClosed }

// Stuck says that the supervisor could not reconcile this handoff. It changes nothing else.
type Stuck struct {
	Meta
	Reason string `json:"reason" redact:"text"`
}

func (*Stuck) EventType() EventType { return EventStuck }
