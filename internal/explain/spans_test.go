package explain

import (
	"strings"
	"testing"
	"time"
)

func TestSomeOf(t *testing.T) {
	words := strings.Fields("a b c d e")
	if few, many := Some(words[:3]), Some(words); few != "a, b, c" || many != "a, b, c and 2 more" {
		t.Errorf("%q and %q", few, many)
	}
}

func TestAgo(t *testing.T) {
	now := time.Date(2026, 1, 31, 12, 0, 0, 0, time.UTC)
	for d, want := range map[time.Duration]string{
		-time.Second: "0s", 42 * time.Second: "42s", 90 * time.Second: "1m", 47 * time.Hour: "47h", 50 * time.Hour: "2d",
	} {
		if got := Ago(now.Add(-d), now); got != want {
			t.Errorf("%v ago is written %q, want %q", d, got, want)
		}
	}
	if got := Ago(time.Time{}, now); got != "" {
		t.Errorf("never is written %q", got)
	}
}

func TestShortDuration(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "0s", 1234 * time.Microsecond: "1ms", 2345 * time.Millisecond: "2.35s", time.Minute: "1m", time.Hour: "1h", 90 * time.Minute: "1h30m",
		30 * time.Second: "30s", 3601 * time.Second: "1h0m1s", 48 * time.Hour: "2d", 50 * time.Hour: "2d2h", -time.Minute: "-1m",
	} {
		if got := Duration(d); got != want {
			t.Errorf("shortDuration(%d) = %s, want %s", d, got, want)
		}
	}
}

// TestTook: status and tree say the same of one handoff.
func TestTook(t *testing.T) {
	from := time.Date(2026, 1, 31, 12, 0, 0, 0, time.UTC)
	for span, want := range map[time.Duration]string{21_900 * time.Microsecond: "21ms", 2_849 * time.Millisecond: "2.85s", -time.Second: "0s"} {
		took := Took(from, from.Add(span))
		if got := Duration(took); got != want || Millis(took.Milliseconds()) != want {
			t.Errorf("%v: %s, and %s from milliseconds; want %s", span, got, Millis(took.Milliseconds()), want)
		}
	}
}
