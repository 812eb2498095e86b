package dossier

import (
	"encoding/json"
	"time"

	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/protocol/record"
)

// HistoryEntry is a ledger entry for programs.
type HistoryEntry struct {
	Seq    uint64            `json:"seq"`
	At     time.Time         `json:"at"` // the engine's time stamp
	ID     string            `json:"id"`
	Hash   string            `json:"hash"`
	Events []json.RawMessage `json:"events"`
	State  StateView         `json:"state"`
}

// History returns the entries of a handoff for programs.
func History(changes []protocol.Change) ([]HistoryEntry, error) {
	views := make([]HistoryEntry, 0, len(changes))
	for _, c := range changes {
		v := HistoryEntry{Seq: c.Seq, At: c.At.UTC(), ID: c.Record.ID, Hash: c.Hash, State: StateOf(c.Record.State)}
		for _, e := range c.Record.Events {
			raw, err := record.EncodeEvent(e)
			if err != nil {
				return nil, err
			}
			v.Events = append(v.Events, raw)
		}
		views = append(views, v)
	}
	return views, nil
}
