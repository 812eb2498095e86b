package protocol

// ReasonAtCapacity is why an agent takes no more: it has max_concurrency handoffs in
// hand.
const ReasonAtCapacity = "at_capacity"

// Slots are the handoffs that the holders of an agent with max_concurrency have in
// hand together, by ticket.
type Slots map[string]Slot

// Slot is one of them: which holder has it by which offer, and since when.
type Slot struct {
	Holder string `json:"holder"`
	Offer  uint64 `json:"offer"`
	At     Time   `json:"at"`
}
