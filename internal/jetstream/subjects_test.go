package jetstream

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/protocol"
)

// Whatever is built is read back as it was, and what another builder built is
// not.
func TestSubjectsRoundTrip(t *testing.T) {
	ticket := protocol.NewTicket()
	for _, agent := range []string{"a", "with-dash", "with_underscore", "x-high", "critical", "sentinel", "-", "9"} {
		for _, lane := range protocol.Priorities {
			for _, seq := range []uint64{0, 1, math.MaxUint64} {
				key := broker.OfferKey{Agent: agent, Lane: lane, Ticket: ticket, Sequence: seq}
				if got, ok := parseWorkSubject(workSubject(0, key)); !ok || got != key {
					t.Errorf("offer %v came back as %v, %v", key, got, ok)
				}
			}
			gotAgent, gotLane, ok := parseLaneConsumer(laneConsumer(agent, lane))
			if !ok || gotAgent != agent || gotLane != lane {
				t.Errorf("consumer of %s, %s came back as %s, %s", agent, lane, gotAgent, gotLane)
			}
		}
	}
	if got, ok := parseLedgerSubject(ledgerSubject(0, ticket)); !ok || got != ticket {
		t.Errorf("ticket %s came back as %s", ticket, got)
	}
	for _, seq := range []uint64{0, 1, math.MaxUint64} {
		if got, gotSeq, ok := parseDueSubject(dueSubject(ticket, seq)); !ok || got != ticket || gotSeq != seq {
			t.Errorf("wake-up %s %d came back as %s %d", ticket, seq, got, gotSeq)
		}
	}
}

// Both forms of the subject that a delivery is acknowledged on tell the same; the
// newer one has a token at its end that may be missing.
func TestAckSubjects(t *testing.T) {
	at := time.Date(2026, 3, 1, 12, 0, 0, 7, time.UTC)
	facts := fmt.Sprintf("HANDOFF_LEDGER.supervisor.2.81.97.%d.3", at.UnixNano())
	for _, s := range []string{"$JS.ACK." + facts, "$JS.ACK._.hash." + facts, "$JS.ACK.hub.hash." + facts + ".x7"} {
		if sent := readAckSubject(s); sent != (ackInfo{2, 81, at.UnixNano(), 3}) {
			t.Errorf("%s is read as %+v", s, sent)
		}
	}
	for _, s := range []string{"", "_INBOX.x.y", "$JS.ACK.S.C.1.2.3.4", "$JS.ACK._.hash.S.C.1.2", "$JS.ACK.S.C.1.x.3.4.5", "$JS.ACK.S.C.1.2.3.x.5"} {
		if sent := readAckSubject(s); sent != (ackInfo{}) {
			t.Errorf("%q is read as %+v", s, sent)
		}
	}
	reply := "$JS.ACK." + facts
	if n := testing.AllocsPerRun(100, func() { readAckSubject(reply) }); n > 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestSubjectsOfOthersAreNotRead(t *testing.T) {
	for _, s := range []string{"", workPrefix + sentinel, "handoff.work.a.normal.t", "handoff.work.a.urgent.t.1",
		"handoff.work.a.normal.t.x", "handoff.work.a.normal.t.1.2", "handoff.work..normal.t.1", "handoff.ledger.t"} {
		if key, ok := parseWorkSubject(s); ok {
			t.Errorf("%q is read as offer %v", s, key)
		}
	}
	for _, s := range []string{"", "handoff.ledger.", "handoff.ledger.a.b", feedSubject("t")} {
		if ticket, ok := parseLedgerSubject(s); ok {
			t.Errorf("%q is read as ticket %q", s, ticket)
		}
	}
	for _, s := range []string{"", "handoff.due.t", "handoff.due.t.", "handoff.due..1", "handoff.due.t.1.2", timerSubject("t", 1)} {
		if ticket, seq, ok := parseDueSubject(s); ok {
			t.Errorf("%q is read as wake-up %q %d", s, ticket, seq)
		}
	}
	for _, s := range []string{"", "normal", "-normal", "a-urgent"} {
		if agent, lane, ok := parseLaneConsumer(s); ok {
			t.Errorf("%q is read as consumer of %q %q", s, agent, lane)
		}
	}
}
