package protocol

// Record is the body of one append to the ledger: the events that were
// applied together and the state after them.
type Record struct {
	// ID is unique to this append. A writer whose append timed out finds by it
	// whether it had won.
	ID     string
	Events []Event
	State  State
}

// Change is one step of a handoff as a reader sees it: a Record, where it
// stands in the ledger, and when the engine stored it.
type Change struct {
	Seq    uint64 // ledger sequence
	At     Time   // the engine's time stamp
	Hash   string // sha256 of the record as stored, hex
	Record Record // State is bound to Seq
}
