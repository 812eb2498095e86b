package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/brokertest"
	"github.com/agenthandoff/handoff/protocol"
)

// TestFollowLedger cuts a tail off, takes entries away under it and puts another
// ledger in its place: what is there comes once and in order, and what is not is
// said.
func TestFollowLedger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := brokertest.NewMemory()
		other := m.Connect() // goes on writing
		defer func() { _, _ = m.Close(), other.Close() }()
		ctx, cancel := context.WithCancel(t.Context())
		add := func(n int) {
			for range n {
				if _, err := other.Append(ctx, protocol.NewTicket(), 0, protocol.NewTicket(), "", []byte("x")); err != nil {
					t.Error(err)
				}
			}
		}
		add(3)
		ledger, err := m.LedgerInfo(ctx)
		if err != nil {
			t.Fatal(err)
		}
		var log []string // what came, and what was said, in order
		expect := func(when string, want ...string) {
			t.Helper()
			synctest.Wait()
			if got := strings.Join(log, "\n"); got != strings.Join(want, "\n") {
				t.Errorf("%s:\n%s\nwant:\n%s", when, got, strings.Join(want, "\n"))
			}
			log = nil
		}
		ended := make(chan error, 1)
		go func() {
			ended <- followLedger(ctx, m, ledger, broker.From(2), func(word string) { log = append(log, word) },
				func(e broker.Entry) error { log = append(log, fmt.Sprint(e.Seq)); return nil })
		}()
		expect("what is there", "2", "3")
		add(1)
		expect("what comes", "4")

		m.Disconnect()
		add(2)
		time.Sleep(time.Minute) // of a clock that is not real
		expect("cut off", "cut off from the engine behind entry 4; waiting for it")
		m.Reconnect()
		time.Sleep(time.Minute)
		expect("back", "the engine answers again; going on with entry 5, nothing is left out", "5", "6")

		other.TruncateLedger(2)
		time.Sleep(time.Minute)
		add(1)
		expect("it lost its end", "the ledger has lost entries 5 to 6, which were shown here; going on with the entries in their place", "5")

		other.ReplaceLedger()
		add(1)
		time.Sleep(time.Minute)
		expect("it is another", "the ledger is another one now; going on with its first entry", "1")

		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("it ended with %v", err)
		}
	})
}

func TestFollowLedgerEndsWithItsCaller(t *testing.T) {
	m := brokertest.NewMemory()
	defer m.Close()
	if _, err := m.Append(t.Context(), protocol.NewTicket(), 0, "id", "", []byte("x")); err != nil {
		t.Fatal(err)
	}
	ledger, _ := m.LedgerInfo(t.Context())
	err := followLedger(t.Context(), m, ledger, broker.From(1), func(string) {}, func(broker.Entry) error { return errEnough })
	if !errors.Is(err, errEnough) {
		t.Errorf("it ended with %v", err)
	}
}

func TestParseSince(t *testing.T) {
	now := time.Date(2026, 1, 31, 17, 0, 0, 0, time.UTC)
	for text, want := range map[string]beginning{
		"":                     {},
		"0":                    {first: true},
		"1":                    {first: true, place: broker.Cursor{1}},
		"7.281474976710660":    {place: broker.Cursor{7, 281474976710660}},
		"1200":                 {place: broker.Cursor{1200}},
		"10m":                  {at: now.Add(-10 * time.Minute)},
		"2d":                   {at: now.Add(-48 * time.Hour)},
		"2026-01-30T00:00:00Z": {at: time.Date(2026, 1, 30, 0, 0, 0, 0, time.UTC)},
	} {
		got, err := parseSince(text, now)
		if err != nil || !slices.Equal(got.place, want.place) || got.first != want.first || !got.at.Equal(want.at) {
			t.Errorf("%q is %+v (%v), want %+v", text, got, err, want)
		}
	}
	for _, text := range []string{"yesterday", "-1", "-10m", "1.5", "99999999999999999999999"} {
		if _, err := parseSince(text, now); !errors.Is(err, &protocol.Error{Code: protocol.CodeInvalid}) {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// TestTailFilter: an entry is an agent's where the handoff stands with it, and
// where it leaves it.
func TestTailFilter(t *testing.T) {
	state := protocol.State{Agent: "now"}
	state.Ticket, state.Source, state.ConversationID = protocol.NewTicket(), "from", "talk"
	change := func(events ...protocol.Event) protocol.Change {
		return protocol.Change{Record: protocol.Record{Events: events, State: state}}
	}
	for name, c := range map[string]struct {
		filter tailFilter
		change protocol.Change
		want   bool
	}{
		"everything":       {tailFilter{}, change(), true},
		"where it stands":  {tailFilter{Agents: []string{"now"}}, change(), true},
		"another agent":    {tailFilter{Agents: []string{"was"}}, change(), false},
		"where it was":     {tailFilter{Agents: []string{"was"}}, change(&protocol.Rerouted{From: "was", To: "now"}), true},
		"who refused":      {tailFilter{Agents: []string{"was"}}, change(&protocol.Rejected{Agent: "was"}), true},
		"one of two":       {tailFilter{Sources: []string{"other", "from"}}, change(), true},
		"all fields count": {tailFilter{Sources: []string{"from"}, Conversations: []string{"other"}}, change(), false},
		"the ticket":       {tailFilter{Tickets: []string{state.Ticket}, Conversations: []string{"talk"}}, change(), true},
	} {
		if got := c.filter.matches(c.change); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
