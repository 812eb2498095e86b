package broker

import (
	"errors"

	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/protocol/lifecycle"
	"github.com/agenthandoff/handoff/protocol/record"
)

// StateOf reads the state out of a ledger entry. It is the one place in which what was
// read is checked before anything is decided about it (lifecycle.CheckRead). Any bytes
// may stand in the ledger: what is no entry of this handoff is an error of which
// Unreadable is true, and its handoff is stuck.
func StateOf(e Entry) (protocol.State, error) {
	_, state, err := record.DecodeState(e.Body, e.Seq)
	if err == nil {
		err = lifecycle.CheckRead(e.Ticket, e.Seq, &state)
	}
	if err != nil {
		return protocol.State{}, unreadable(e, err)
	}
	return state, nil
}

// RecordOf is StateOf for those who need the events, too.
func RecordOf(e Entry) (protocol.Record, error) {
	read, err := record.Decode(e.Body, e.Seq)
	if err == nil {
		err = lifecycle.CheckRead(e.Ticket, e.Seq, &read.State)
	}
	if err != nil {
		return protocol.Record{}, unreadable(e, err)
	}
	return read, nil
}

// UnreadableError is an entry of the ledger that cannot be read: to try again helps
// nothing. It unwraps to a *protocol.Error with CodeUnreadable.
type UnreadableError struct {
	Ticket string
	Seq    uint64
	Why    string // what is wrong with it, in at most unreadableBytesMax bytes
}

// unreadableBytesMax bounds what is said of an entry, which may quote it.
const unreadableBytesMax = 300

func unreadable(e Entry, err error) error {
	return &UnreadableError{Ticket: e.Ticket, Seq: e.Seq, Why: protocol.CutText(err.Error(), unreadableBytesMax)}
}

// Error implements error.
func (e *UnreadableError) Error() string { return e.Unwrap().Error() }

// Unwrap implements errors.As and errors.Is.
func (e *UnreadableError) Unwrap() error {
	return protocol.Errorf(protocol.CodeUnreadable, "ticket", "%s is stuck: ledger entry %d cannot be read: %s", e.Ticket, e.Seq, e.Why)
}

// Unreadable tells whether an error is, or wraps, an UnreadableError.
func Unreadable(err error) bool {
	var unread *UnreadableError
	return errors.As(err, &unread)
}

// isAbsent tells whether another handoff has nothing to say: the ledger does not have it,
// or it is stuck with an entry that cannot be read.
func isAbsent(err error) bool { return errors.Is(err, ErrNotFound) || Unreadable(err) }
