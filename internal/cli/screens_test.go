package cli

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/agenthandoff/handoff/internal/dossier"
	"github.com/agenthandoff/handoff/internal/index/ask"
	"github.com/agenthandoff/handoff/protocol"
)

var writeScreens = flag.Bool("write-screens", false, "write testdata/screens/*.golden anew; look at them then")

// screensNoon is when the store of testdata/screens is looked at.
var screensNoon = time.Date(2026, 11, 27, 22, 0, 0, 0, time.UTC)

// stored reads an answer of an engine that had the handoffs of the screens.
func stored[T any](t *testing.T, name string) (v T) {
	t.Helper()
	body, err := os.ReadFile(filepath.Join("testdata", "screens", name))
	if err == nil {
		err = json.Unmarshal(body, &v)
	}
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// TestScreens: commands on a terminal of 80 columns, and of 120. No line is wider.
func TestScreens(t *testing.T) {
	list := stored[ask.ListAnswer](t, "list.json").Handoffs
	asks := stored[protocol.State](t, "status.json")
	way := crooked(t)
	stuck := newTale(t).worker("reviewer", whyHolder, 1).submit(policy(func(o *protocol.PolicyOverrides) { o.MaxAttempts = to(1) })).
		accept().pass(time.Minute).fail("exit", "exit status 1: ImportError: No module named torch", true).look()
	screens := []struct {
		name string
		show func(a *app) error
	}{
		{"list", func(a *app) error { return a.rows(listTable, list) }},
		{"list, all alike", func(a *app) error { return a.rows(listTable, []ask.Row{list[0], list[5]}) }},
		{"tree", func(a *app) error { return a.tree(stored[dossier.Tree](t, "tree.json")) }},
		{"tree, without an index", func(a *app) error {
			a.hasIndex = nil
			return a.tree(stored[dossier.Tree](t, "tree.json"))
		}},
		{"stats", func(a *app) error { return a.stats(stored[statsAnswer](t, "stats.json"), freshness{}) }},
		{"history", func(a *app) error { return a.history(way.changes) }},
		{"status", func(a *app) error { return a.stateText(asks, nil) }},
		{"status, with a person", func(a *app) error { return a.stateText(stuck.state, nil) }},
		{"why", func(a *app) error { return a.explanation(stuck.told()) }},
	}
	for _, width := range []int{80, 120} {
		var b strings.Builder
		for _, s := range screens {
			var out bytes.Buffer
			a := &app{out: &out, err: &out, format: formatText, terminal: true, width: width, clock: func() time.Time { return screensNoon },
				hasIndex: func() bool { return true }, env: func(name string) string { return map[string]string{"TERM": "dumb"}[name] }}
			if err := s.show(a); err != nil {
				t.Fatal(err)
			}
			fmt.Fprintf(&b, "== %s\n%s", s.name, out.String())
			for line := range strings.Lines(out.String()) {
				if n := columnsOf(strings.TrimSuffix(line, "\n")); n > width {
					t.Errorf("%s at %d columns: a line of %d: %s", s.name, width, n, line)
				}
			}
		}
		golden := filepath.Join("testdata", "screens", fmt.Sprintf("%d.golden", width))
		if *writeScreens {
			if err := os.WriteFile(golden, []byte(b.String()), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(golden)
		if err != nil {
			t.Fatal(err)
		}
		if b.String() != string(want) {
			t.Errorf("%s (go test ./internal/cli -run TestScreens -write-screens): %s", golden, firstDifference(b.String(), string(want)))
		}
	}
}

// TestTickets: a terminal shows them short where an index finds them by that and no two begin alike;
// the text of others stays as it is.
func TestTickets(t *testing.T) {
	const one, two, alike = "11111111-1111-4111-8111-111111111111", "22222222-1111-4111-8111-111111111111", "11111111-2222-4111-8111-111111111111"
	for name, c := range map[string]struct {
		a       *app
		tickets []string
		short   bool
	}{
		"a terminal":         {&app{terminal: true, width: 80, hasIndex: func() bool { return true }}, []string{one, two}, true},
		"two alike":          {&app{terminal: true, width: 80, hasIndex: func() bool { return true }}, []string{one, alike}, false},
		"no index":           {&app{terminal: true, width: 80, hasIndex: func() bool { return false }}, []string{one, two}, false},
		"through a gateway":  {&app{terminal: true, width: 80}, []string{one, two}, false},
		"--wide":             {&app{terminal: true, width: 80, wide: true, hasIndex: func() bool { return true }}, []string{one, two}, false},
		"a pipe":             {&app{hasIndex: func() bool { return true }}, []string{one, two}, false},
		"JSON on a terminal": {&app{terminal: true, width: 80, format: formatJSON, hasIndex: func() bool { return true }}, []string{one, two}, false},
	} {
		var out bytes.Buffer
		c.a.out, c.a.env = &out, func(string) string { return "dumb" }
		if c.a.format == "" {
			c.a.format = formatText
		}
		rows := [][]string{{"TICKET", "TASK"}}
		for _, ticket := range c.tickets {
			rows = append(rows, []string{ticket, "see " + two})
		}
		if err := c.a.table(rows); err != nil {
			t.Fatal(err)
		}
		if short := !strings.Contains(out.String(), one); short != c.short {
			t.Errorf("%s: short %t\n%s", name, short, out.String())
		}
		if c.a.width == 0 || c.a.wide {
			if !strings.Contains(out.String(), "see "+two) {
				t.Errorf("%s: a text was changed:\n%s", name, out.String())
			}
		}
	}
}
