package protocol

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
	Until  Time   `json:"until"`  // when the work's clock runs out from now on
	Reason string `json:"reason"` // of the holder
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
	Clock   Clock  `json:"clock"`
	Agent   string `json:"agent,omitempty"`
	Attempt int    `json:"attempt,omitempty"`
}

func (*TimedOut) EventType() EventType { return EventTimedOut }
