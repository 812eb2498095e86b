//go:build proof

package process

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"testing"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/protocol"
)

// turn is one handoff of a conversation, as the ledger tells it.
type turn struct {
	ticket  string
	history []json.RawMessage // handed off
	said    []json.RawMessage // returned
	results int
	last    protocol.State
}

// checkLedger puts every conversation together again from the ledger alone and
// compares it with what was recorded.
func checkLedger(t *testing.T, b *broker.Broker, conversations []conversation) {
	t.Helper()
	told, err := readLedger(t, b)
	if err != nil {
		t.Fatal(err)
	}
	handoffs := 0
	for _, c := range conversations {
		handoffs += len(told[c.id])
		if err := compare(c, told[c.id]); err != nil {
			t.Errorf("%s: %v", c.id, err)
		}
		delete(told, c.id)
	}
	for id := range told {
		t.Errorf("conversation %s is in the ledger and was never held", id)
	}
	t.Logf("%d handoffs in the ledger", handoffs)
}

// readLedger reads all turns, by conversation, in the order they were submitted.
func readLedger(t *testing.T, b *broker.Broker) (map[string][]*turn, error) {
	t.Helper()
	turns := map[string]*turn{}
	told := map[string][]*turn{}
	err := b.Entries(t.Context(), broker.From(1), func(e broker.Entry) error {
		change, err := broker.DecodeChange(e)
		if err != nil {
			return err
		}
		for _, event := range change.Record.Events {
			switch event := event.(type) {
			case *protocol.Submitted:
				body, err := stored(t, b, event.Package, event.Blob)
				if err != nil {
					return err
				}
				pkg, err := protocol.DecodePackage(body)
				if err != nil {
					return err
				}
				turns[e.Ticket] = &turn{ticket: e.Ticket, history: unwrapAll(pkg.Context.ConversationHistory)}
				told[event.Summary.ConversationID] = append(told[event.Summary.ConversationID], turns[e.Ticket])
			case *protocol.Completed:
				body, err := stored(t, b, event.Result, event.Blob)
				if err != nil {
					return err
				}
				result, err := protocol.DecodeResult(body)
				if err != nil {
					return err
				}
				turns[e.Ticket].results++
				if err := json.Unmarshal(result.Body, &turns[e.Ticket].said); err != nil {
					return fmt.Errorf("result of %s: %w", e.Ticket, err)
				}
				unwrapAll(turns[e.Ticket].said)
			}
		}
		turns[e.Ticket].last = change.Record.State
		return nil
	})
	return told, err
}

func stored(t *testing.T, b *broker.Broker, inline json.RawMessage, blob *protocol.BlobRef) (json.RawMessage, error) {
	if blob == nil {
		return inline, nil
	}
	return b.Blob(t.Context(), *blob)
}

// compare tells whether the turns are the conversation, and whether each was
// taken once.
func compare(c conversation, turns []*turn) error {
	want := len(c.runs())
	if want > 1 {
		want-- // the first speaker only hands off
	}
	if len(turns) != want {
		return fmt.Errorf("%d handoffs, want %d", len(turns), want)
	}
	var told []json.RawMessage
	for i, turn := range turns {
		if i == 0 {
			told = turn.history
		}
		if err := sameMessages(turn.history, told); err != nil {
			return fmt.Errorf("handoff %d (%s) did not get the history so far: %w", i, turn.ticket, err)
		}
		if turn.results != 1 || turn.last.AttemptsTotal != 1 || turn.last.Outcome != protocol.OutcomeSuccess {
			return fmt.Errorf("handoff %d (%s) has %d results after %d attempts, outcome %q", i, turn.ticket,
				turn.results, turn.last.AttemptsTotal, turn.last.Outcome)
		}
		told = append(told[:len(told):len(told)], turn.said...)
	}
	return sameMessages(told, c.messages)
}

// sameMessages compares messages as JSON: numbers by their digits, objects
// without the order of their fields.
func sameMessages(got, want []json.RawMessage) error {
	if len(got) != len(want) {
		return fmt.Errorf("%d messages, want %d", len(got), len(want))
	}
	for i := range want {
		a, err := decodeExactly(got[i])
		if err != nil {
			return fmt.Errorf("message %d: %w", i, err)
		}
		b, err := decodeExactly(want[i])
		if err != nil {
			return fmt.Errorf("recorded message %d: %w", i, err)
		}
		if !reflect.DeepEqual(a, b) {
			return fmt.Errorf("message %d is\n\t%.300s\nwant\n\t%.300s", i, got[i], want[i])
		}
	}
	return nil
}

func decodeExactly(raw json.RawMessage) (v any, err error) {
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	return v, dec.Decode(&v)
}
