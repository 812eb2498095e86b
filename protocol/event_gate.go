package protocol

// The events of a gate: what a handoff waits for before it is offered.
const (
	EventGated      EventType = "gated"
	EventGateOpened EventType = "gate_opened"
	EventApproved   EventType = "approved"
	EventDenied     EventType = "denied"
	EventLapsed     EventType = "lapsed"
)

var gateEvents = []func() Event{
	empty[Gated], empty[GateOpened], empty[Approved], empty[Denied], empty[Lapsed],
}

// Gated closes a gate before the next offer.
type Gated struct {
	Meta
	GateTerms
	Routing *Routing `json:"routing,omitempty" redact:"-"` // where the agent was chosen
	Calls   []string `json:"calls,omitempty" redact:"-"`   // the agents that are asked for bids
}

func (*Gated) EventType() EventType { return EventGated }

// GateOpened says that something is there which a gate waited for. After the last one the offer
// follows in the append.
type GateOpened struct {
	Meta
	Gate  GateKind `json:"gate" redact:"-"`
	Agent string   `json:"agent,omitempty" redact:"-"` // that gets the offer, where the gate chose it
	Seq   uint64   `json:"seq,omitempty"`              // of the entry that says so, in another stream
	Probe bool     `json:"probe,omitempty"`            // the offer tells whether its agent works again
}

func (*GateOpened) EventType() EventType { return EventGateOpened }

// Approved says that an agent may have the handoff; AnyAgent is all of them.
type Approved struct {
	Meta
	Agent   string `json:"agent" redact:"-"`
	Comment string `json:"comment,omitempty" redact:"text"`
}

func (*Approved) EventType() EventType { return EventApproved }

// Denied says that the agent which the gate names may not have the handoff, which ends.
type Denied struct {
	Meta
	Agent  string `json:"agent,omitempty" redact:"-"`
	Reason string `json:"reason" redact:"text"`
}

func (*Denied) EventType() EventType { return EventDenied }

// Lapsed passes the question of a gate on, which its approver has not answered.
type Lapsed struct {
	Meta
	From  string `json:"from" redact:"-"`
	To    string `json:"to" redact:"-"`
	Level int    `json:"level"`          // how often it has lapsed, with this one
	Until Time   `json:"until,omitzero"` // when it lapses again; zero is never
}

func (*Lapsed) EventType() EventType { return EventLapsed }
