package explain

import (
	"fmt"
	"strings"
	"time"
)

// Join joins the parts that are not empty with commas.
func Join(parts ...string) string {
	kept := parts[:0:0]
	for _, part := range parts {
		if part != "" {
			kept = append(kept, part)
		}
	}
	return strings.Join(kept, ", ")
}

// Took returns the whole milliseconds between two instants, at least 0, so that people and programs
// read the same number.
func Took(from, to time.Time) time.Duration { return max(to.Sub(from), 0).Truncate(time.Millisecond) }

// Millis formats a number of milliseconds.
func Millis(ms int64) string { return Duration(time.Duration(ms) * time.Millisecond) }

// Duration formats a duration without trailing zeros: 1h, 1m30s, 2d.
func Duration(d time.Duration) string {
	switch {
	case d < 0:
		return "-" + Duration(-d)
	case d < time.Second:
		return d.Round(time.Millisecond).String()
	case d < 10*time.Second:
		d = d.Round(10 * time.Millisecond)
	case d < 10*time.Minute:
		d = d.Round(100 * time.Millisecond)
	default:
		d = d.Round(time.Second)
	}
	if d >= 48*time.Hour {
		days := d / (24 * time.Hour)
		if rest := d % (24 * time.Hour); rest >= time.Hour {
			return fmt.Sprintf("%dd%dh", days, rest/time.Hour)
		}
		return fmt.Sprintf("%dd", days)
	}
	text := d.String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}

// Some joins the first three words, and counts the rest.
func Some(words []string) string {
	const few = 3
	if len(words) <= few {
		return strings.Join(words, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(words[:few], ", "), len(words)-few)
}

// Instant formats an instant in UTC, as logs and the ledger do.
func Instant(at time.Time) string {
	if at.IsZero() {
		return ""
	}
	return at.UTC().Format("2006-01-02 15:04:05Z")
}

// Ago formats the time since an instant in one unit, for a table.
func Ago(since, now time.Time) string {
	switch d := max(now.Sub(since), 0); {
	case since.IsZero():
		return ""
	case d < time.Minute:
		return fmt.Sprintf("%ds", d/time.Second)
	case d < time.Hour:
		return fmt.Sprintf("%dm", d/time.Minute)
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", d/time.Hour)
	default:
		return fmt.Sprintf("%dd", d/(24*time.Hour))
	}
}

// Is appends the form of "to be" that fits n things.
func Is(words string, n int) string { return agree(words, n, " is", " are") }

// Has appends "has" or "have".
func Has(words string, n int) string { return agree(words, n, " has", " have") }

// Was appends "was" or "were".
func Was(words string, n int) string { return agree(words, n, " was", " were") }

func agree(words string, n int, one, more string) string {
	if n == 1 {
		return words + one
	}
	return words + more
}
