package cli

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/agenthandoff/handoff/internal/dossier"
	"github.com/agenthandoff/handoff/internal/lifecycle"
	"github.com/agenthandoff/handoff/protocol"
)

// TestInboxWatch: what is new is printed once, and rings; what was there at first does not ring.
func TestInboxWatch(t *testing.T) {
	var out bytes.Buffer
	a := &app{out: &out, format: formatText, terminal: true, width: 80, env: func(string) string { return "dumb" }}
	entry := func(ticket string, since time.Time) dossier.InboxEntry {
		return dossier.InboxEntry{Why: lifecycle.InboxQuestion, Since: since, Words: "which branch?",
			StateView: dossier.StateOf(protocol.State{Ticket: ticket})}
	}
	one, two := entry("one", midday), entry("two", midday)
	var seen map[string]bool
	for i, c := range []struct {
		entries      []dossier.InboxEntry
		lines, bells int
	}{
		{[]dossier.InboxEntry{one}, 1, 0},
		{[]dossier.InboxEntry{one}, 0, 0},
		{[]dossier.InboxEntry{one, two}, 1, 1},
		{[]dossier.InboxEntry{two}, 0, 0},
		{[]dossier.InboxEntry{entry("one", midday.Add(time.Minute)), two}, 1, 1}, // it asks again
	} {
		out.Reset()
		var err error
		if seen, err = a.showNew(c.entries, seen); err != nil {
			t.Fatal(err)
		}
		if lines, bells := strings.Count(out.String(), "\n"), strings.Count(out.String(), "\a"); lines != c.lines || bells != c.bells {
			t.Errorf("%d: %d lines and %d bells, want %d and %d: %q", i, lines, bells, c.lines, c.bells, out.String())
		}
	}
}
