package bench

import (
	"context"
	"fmt"

	"github.com/google/uuid"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/record"
	"github.com/agenthandoff/handoff/protocol"
)

// Proof is the result of checking a run against the ledger.
type Proof struct {
	Submitted int64 `json:"submitted"`
	// Closed are the handoffs of the run that closed exactly once, with success.
	Closed int64 `json:"closed"`
	// Entries of the run in the ledger.
	Entries int64 `json:"entries"`
}

// proveRun reads the ledger behind a cursor and checks that each submitted handoff of a source
// is there and closed once, with success, at its first attempt. sum is the sum of the hashes of
// all submitted tickets.
func proveRun(ctx context.Context, b *broker.Broker, from broker.Cursor, source string, submitted int64, sum uint64) (Proof, error) {
	proof := Proof{Submitted: submitted}
	type fate struct{ closed, wrong bool }
	fates := map[[16]byte]fate{}
	found, open, wrong, example := uint64(0), 0, 0, ""
	err := b.Entries(ctx, from, func(e broker.Entry) error {
		_, state, err := record.DecodeState(e.Body, e.Seq)
		if err != nil {
			return fmt.Errorf("ledger entry %d: %w", e.Seq, err)
		}
		if state.Source != source {
			return nil
		}
		id, err := uuid.Parse(e.Ticket)
		if err != nil {
			return fmt.Errorf("ledger entry %d: %w", e.Seq, err)
		}
		proof.Entries++
		f, known := fates[id]
		if !known {
			found += hashTicket(e.Ticket)
		}
		switch {
		case f.closed: // an entry after the close
			f.wrong = true
		case state.Closed:
			f.closed = true
			f.wrong = f.wrong || state.Outcome != protocol.OutcomeSuccess || state.AttemptsTotal != 1
		}
		fates[id] = f
		return nil
	})
	if err != nil {
		return proof, fmt.Errorf("read the ledger for the proof: %w", err)
	}
	for id, f := range fates {
		switch {
		case f.wrong:
			wrong++
			example = uuid.UUID(id).String()
		case !f.closed:
			open++
			example = uuid.UUID(id).String()
		default:
			proof.Closed++
		}
	}
	if proof.Closed == submitted && found == sum && open+wrong == 0 {
		return proof, nil
	}
	return proof, &UnprovedError{Proof: proof, Found: len(fates), Open: open, Wrong: wrong, Example: example}
}

// UnprovedError has the differences between the ledger and the submissions of a run.
type UnprovedError struct {
	Proof
	Found, Open, Wrong int
	Example            string // the ticket of an open or wrong one
}

func (e *UnprovedError) Error() string {
	text := fmt.Sprintf("the run is not proved: %d handoffs were submitted, the ledger has %d; %d closed once and with success, %d are open, %d closed otherwise or more than once",
		e.Submitted, e.Found, e.Closed, e.Open, e.Wrong)
	if e.Example != "" {
		text += "; one of them is " + e.Example
	}
	return text
}
