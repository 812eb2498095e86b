package main

import (
	"os"
	"slices"
	"strings"
	"testing"
	"time"
)

const rulesText = `
groups:
  - name: g
    rules:
      - {alert: Depth, expr: "max by (agent) (depth) > 0", for: 1h}
      - {alert: Grows, expr: "increase(events_total[1h]) > 0"}
      - {alert: Old, expr: "time() - max(pass_timestamp_seconds) > 900", for: 5m}
      - {alert: Waits, expr: gate_oldest_seconds > 3600}
      - {alert: Absent, expr: absent(supervisors), for: 2m}
`

func TestFiring(t *testing.T) {
	rules, err := parseRules([]byte(rulesText))
	if err != nil {
		t.Fatal(err)
	}
	began := time.Unix(1_800_000_000, 0).UTC()
	for figures, want := range map[string][]string{
		"depth{agent=\"a\"} 0\nevents_total 7\ngate_oldest_seconds 0\npass_timestamp_seconds 1.8e+09\nsupervisors 1\n": nil,
		"depth{agent=\"a\"} 2\npass_timestamp_seconds 1.79999e+09\n":                                                   {"Depth", "Old", "Absent"},
		"gate_oldest_seconds 1\nsupervisors 1\n":                                                                       {"Waits"},
	} {
		held, err := parseFigures(strings.NewReader(figures), began)
		if err != nil {
			t.Fatal(err)
		}
		got, err := firing(rules, held, began)
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: %v, %v; want %v", figures, got, err, want)
		}
	}
}

// TestShippedCounters checks the shipped rules over what grows, which figures that stay as they are
// do not show: each names a counter, by how much it grows a minute, and the alert that fires.
func TestShippedCounters(t *testing.T) {
	text, err := os.ReadFile("../../docs/operations/alerts.yaml")
	if err != nil {
		t.Fatal(err)
	}
	rules, err := parseRules(text)
	if err != nil {
		t.Fatal(err)
	}
	began := time.Unix(1_800_000_000, 0).UTC()
	for _, c := range []struct {
		counter string
		minute  float64
		want    []string
	}{
		{`handoff_barred_total{code="budget_exceeded"}`, 1, []string{"HandoffBarred"}},
		{`handoff_barred_total{code="budget_exceeded"}`, 0.1, nil},
		{`handoff_deep_lineages_total`, 0.2, []string{"HandoffDeepLineages"}},
		{`handoff_deadlocks_total`, 0.1, []string{"HandoffDeadlocks"}},
		{`handoff_deadlocks_total`, 0.01, nil},
	} {
		held, err := parseFigures(strings.NewReader("handoff_supervisors 1\nhandoff_engine_up 1\n"+c.counter+" 0\n"), began)
		if err != nil {
			t.Fatal(err)
		}
		for i := range held[2].Floats {
			held[2].Floats[i].F = float64(i) * c.minute
		}
		got, err := firing(rules, held, began)
		if err != nil || !slices.Equal(got, c.want) {
			t.Errorf("%s grows by %v a minute: %v, %v; want %v", c.counter, c.minute, got, err, c.want)
		}
	}
}
