package main

import (
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
      - {alert: Absent, expr: absent(supervisors), for: 2m}
`

func TestFiring(t *testing.T) {
	rules, err := parseRules([]byte(rulesText))
	if err != nil {
		t.Fatal(err)
	}
	began := time.Unix(1_800_000_000, 0).UTC()
	for figures, want := range map[string][]string{
		"depth{agent=\"a\"} 0\nevents_total 7\npass_timestamp_seconds 1.8e+09\nsupervisors 1\n": nil,
		"depth{agent=\"a\"} 2\npass_timestamp_seconds 1.79999e+09\n":                            {"Depth", "Old", "Absent"},
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
