package lifecycle

import (
	"bytes"
	"flag"
	"os"
	"slices"
	"strings"
	"testing"

	p "github.com/agenthandoff/handoff/protocol"
)

var update = flag.Bool("update", false, "rewrite the generated parts of docs/concepts/lifecycle.md")

const doc = "../../docs/concepts/lifecycle.md"

// TestDoc: the table in the documentation is that of the code.
func TestDoc(t *testing.T) {
	have, err := os.ReadFile(doc)
	if err != nil {
		t.Fatal(err)
	}
	want := between(t, string(have), "events", Events())
	if bytes.Equal(have, []byte(want)) {
		return
	}
	if !*update {
		t.Fatalf("%s is out of date; go test ./internal/lifecycle -run TestDoc -update writes it anew", doc)
	}
	if err := os.WriteFile(doc, []byte(want), 0o644); err != nil {
		t.Fatal(err)
	}
}

// between replaces what stands between the two marks of a generated part.
func between(t *testing.T, text, name, body string) string {
	t.Helper()
	begin, end := "<!-- generated: "+name+" -->\n", "<!-- end: "+name+" -->"
	head, rest, found := strings.Cut(text, begin)
	_, tail, closes := strings.Cut(rest, end)
	if !found || !closes {
		t.Fatalf("%s has no %q with %q after it", doc, begin, end)
	}
	return head + begin + body + end + tail
}

// TestDocNamesAll: every phase, event, outcome and clock is spoken of.
func TestDocNamesAll(t *testing.T) {
	body, err := os.ReadFile(doc)
	if err != nil {
		t.Fatal(err)
	}
	words := []string{string(p.ClockAcknowledge), string(p.ClockQueue), string(p.ClockWork), string(p.ClockProgress), string(p.ClockReturn), string(p.ClockCondition), string(p.ClockDeadline),
		string(p.OutcomeSuccess), string(p.OutcomePartial)}
	for _, phase := range p.Phases {
		words = append(words, string(phase))
	}
	for _, e := range p.EventTypes {
		words = append(words, string(e))
	}
	for outcome := range closedPhase {
		words = append(words, string(outcome))
	}
	for _, word := range words {
		if !strings.Contains(string(body), "`"+word+"`") {
			t.Errorf("%s does not speak of `%s`", doc, word)
		}
	}
}

// TestEveryPhaseHasAWayIn: an event leads to each phase.
func TestEveryPhaseHasAWayIn(t *testing.T) {
	for _, phase := range p.Phases {
		if !slices.ContainsFunc(p.EventTypes, func(e p.EventType) bool {
			return slices.ContainsFunc(append([]p.Phase{fresh}, append(open, closedPhases...)...), func(from p.Phase) bool {
				return from != phase && (Legal(from, false, e) || Legal(from, true, e)) && leadsTo(from, e, phase)
			})
		}) {
			t.Errorf("no way into %s", phase)
		}
	}
}
