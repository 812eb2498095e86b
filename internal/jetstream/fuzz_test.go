package jetstream

import (
	"encoding/json"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/protocol"
)

// FuzzSubjects reads anything as each kind of subject: what is taken for one is one
// that we would have made, but for the spelling of numbers.
func FuzzSubjects(f *testing.F) {
	const ticket = "6ba7b810-9dad-11d1-80b4-00c04fd430c8"
	key := broker.OfferKey{Agent: "coder", Lane: protocol.Normal, Ticket: ticket, Sequence: 7}
	for _, subject := range []string{
		ledgerSubject(0, ticket), workSubject(0, key), dueSubject(ticket, 7), laneConsumer("coder", protocol.High),
		"$JS.ACK.HANDOFF_WORK.coder-normal.1.81.3.1700000000000000000.2", "$JS.ACK._.acc.HANDOFF_WORK.coder-normal.1.81.3.1700000000000000000.2.x",
		"$JS.ACK.......", workPrefix + sentinel, "", "handoff.work....", "-normal",
	} {
		f.Add(subject)
	}
	f.Fuzz(func(t *testing.T, subject string) {
		if ticket, ok := parseLedgerSubject(subject); ok && ledgerSubject(0, ticket) != subject {
			t.Errorf("%q is the ledger's of %q", subject, ticket)
		}
		if key, ok := parseWorkSubject(subject); ok {
			if again, ok := parseWorkSubject(workSubject(0, key)); !ok || again != key {
				t.Errorf("%q is of %+v, which is read as %+v", subject, key, again)
			}
		}
		if ticket, seq, ok := parseDueSubject(subject); ok {
			if again, number, ok := parseDueSubject(dueSubject(ticket, seq)); !ok || again != ticket || number != seq {
				t.Errorf("%q is of %q and %d, which are read as %q and %d", subject, ticket, seq, again, number)
			}
		}
		if agent, lane, ok := parseLaneConsumer(subject); ok && laneConsumer(agent, lane) != subject {
			t.Errorf("%q is of %q, %q", subject, agent, lane)
		}
		_ = readAckSubject(subject)
	})
}

// FuzzAnswers reads anything as what the engine, or somebody who serves questions,
// answers. The quick reading of an acknowledgement and the decoder agree.
func FuzzAnswers(f *testing.F) {
	for _, answer := range []string{
		`{"stream":"HANDOFF_LEDGER","seq":81}`, `{"stream":"HANDOFF_LEDGER","seq":81,"batch":"b","count":3}`,
		`{"error":{"code":400,"err_code":10071,"description":"wrong last sequence: 7"}}`, `{"code":"not_found","field":"ticket","message":"none"}`, `{}`, `null`, ``,
	} {
		f.Add([]byte(answer))
	}
	f.Fuzz(func(t *testing.T, answer []byte) {
		if seq, ok := ackedSeq(answer); ok {
			var ack struct {
				Seq uint64 `json:"seq"`
			}
			if err := json.Unmarshal(answer, &ack); err == nil && ack.Seq != seq { // who writes no JSON is no engine
				t.Errorf("%s is %d at a glance, and %d", answer, seq, ack.Seq)
			}
		}
		_, _ = batchAckSeq(answer, "b", 3)
		m := nats.NewMsg("x")
		m.Data = answer
		m.Header.Set("Nats-Service-Error-Code", "400")
		if _, err := readAnswer(m); err == nil {
			t.Error("an error came back as none")
		}
	})
}
