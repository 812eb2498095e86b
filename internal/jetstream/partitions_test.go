package jetstream

import (
	"errors"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/protocol"
)

// TestDivide checks that tickets are spread evenly, and that the map does not change: entries are found
// by it.
func TestDivide(t *testing.T) {
	const tickets = 40_000
	for n := 1; n <= broker.PartitionsMax; n++ {
		counts := make([]int, n)
		for i := range tickets {
			counts[Divide(uuid.NewSHA1(uuid.Nil, fmt.Append(nil, i)).String(), n)]++
		}
		for p, count := range counts {
			if want := float64(tickets) / float64(n); math.Abs(float64(count)-want) > 6*math.Sqrt(want) {
				t.Errorf("%d of %d tickets are in partition %d of %d", count, tickets, p, n)
			}
		}
	}
	for key, want := range map[string]int{"reviewer": 8, "8b0cd4c1-3c52-4a8e-a8e4-3c1f1f5a0d11": 0, "": 1} {
		if p := Divide(key, 16); p != want {
			t.Errorf("%q is in partition %d, not %d", key, p, want)
		}
	}
}

// TestPartitionNames checks that subjects and streams name their partition, and nothing else does.
func TestPartitionNames(t *testing.T) {
	ticket := protocol.NewTicket()
	for p := range broker.PartitionsMax {
		seq := broker.PartitionBase(p) + 7
		if broker.PartitionOf(seq) != p || seq >= 1<<52 {
			t.Errorf("sequence %d of partition %d", seq, p)
		}
		if got, ok := parseLedgerSubject(ledgerSubject(p, ticket)); !ok || got != ticket {
			t.Errorf("%s is of %q", ledgerSubject(p, ticket), got)
		}
		key := broker.OfferKey{Agent: "clerk", Lane: protocol.Normal, Ticket: ticket, Sequence: seq}
		if got, ok := parseWorkSubject(workSubject(p, key)); !ok || got != key {
			t.Errorf("%s is %+v", workSubject(p, key), got)
		}
		if got, at, ok := parseDueSubject(dueSubject(ticket, seq)); !ok || got != ticket || at != seq {
			t.Errorf("%s is %s at %d", dueSubject(ticket, seq), got, at)
		}
		if !isWakeUpSubject(timerSubject(ticket, seq)) || !isOfferSubject(workPrefixes[p]+sentinel) {
			t.Errorf("%s is foreign", timerSubject(ticket, seq))
		}
		for _, base := range []string{LedgerStream, WorkStream, TimerStream} {
			if got := BaseOf(partitioned(base, p)); got != base {
				t.Errorf("%s is of %s", partitioned(base, p), got)
			}
		}
	}
	for _, subject := range []string{"handoff.ledger-0." + ticket, "handoff.ledger-16." + ticket, "handoff.ledger-01." + ticket, "handoff.ledger-." + ticket, "handoff.ledger-1" + ticket, "handoff.ledger-1.a.b"} {
		if got, ok := parseLedgerSubject(subject); ok {
			t.Errorf("%s is of %q", subject, got)
		}
	}
	for _, name := range []string{"HANDOFF_LEDGER_0", "HANDOFF_LEDGER_16", "HANDOFF_LEDGER_X", "HANDOFF_SIGNALS_1"} {
		if BaseOf(name) != name {
			t.Errorf("%s is of %s", name, BaseOf(name))
		}
	}
}

// TestGenerations checks where a key may be while partitions are added.
func TestGenerations(t *testing.T) {
	noon := time.Date(2026, 1, 31, 12, 0, 0, 0, time.UTC)
	m := partitionsIn(nil, noon)
	if m.count() != 1 || !m.undivided() || m.place("x", noon) != 0 {
		t.Errorf("without metadata there are %d", m.count())
	}
	text, err := m.grown(4, noon)
	if err != nil {
		t.Fatal(err)
	}
	m = partitionsIn(map[string]string{metaPartitions: text}, noon)
	if m.count() != 4 {
		t.Fatalf("%s are %d partitions", text, m.count())
	}
	for _, key := range []string{"a", "b", "c", "d", "e"} {
		now := Divide(key, 4)
		if before := m.places(key, noon.Add(-1)); len(before) != 1 || before[0] != 0 {
			t.Errorf("before, %s is in %v", key, before)
		}
		want := []int{now, 0}
		if now == 0 {
			want = want[:1]
		}
		if after := m.places(key, noon); fmt.Sprint(after) != fmt.Sprint(want) {
			t.Errorf("since then, %s is in %v, not %v", key, after, want)
		}
	}
	if _, err := m.grown(3, noon); !errors.Is(err, &protocol.Error{Code: protocol.CodeConflict}) {
		t.Errorf("fewer: %v", err)
	}
	if text, err := m.grown(4, time.Time{}); err != nil || text != `[{"n":4}]` {
		t.Errorf("a new ledger has %s (%v)", text, err)
	}
	for _, bad := range []string{"", "x", "[]", `[{"n":0}]`, `[{"n":17}]`, `{}`} {
		if n := PartitionsIn(map[string]string{metaPartitions: bad}); n != 1 {
			t.Errorf("%q are %d partitions", bad, n)
		}
	}
}
