package explain

import (
	"fmt"
	"strings"
	"time"
)

// Join puts a comma between the parts that are not empty.
func Join(parts ...string) string {
	kept := parts[:0:0]
	for _, part := range parts {
		if part != "" {
			kept = append(kept, part)
		}
	}
	return strings.Join(kept, ", ")
}

// Took returns the whole milliseconds between two instants, and never less than none: what
// is counted in milliseconds for programs reads the same for people.
func Took(from, to time.Time) time.Duration { return max(to.Sub(from), 0).Truncate(time.Millisecond) }

// Millis writes a duration that is given in milliseconds.
func Millis(ms int64) string { return Duration(time.Duration(ms) * time.Millisecond) }

// Duration writes a duration without needless zeros: 1h, 1m30s, 2d.
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

// Some lists the first words, and counts the rest.
func Some(words []string) string {
	const few = 3
	if len(words) <= few {
		return strings.Join(words, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(words[:few], ", "), len(words)-few)
}

// Instant writes an instant in UTC, as logs and the ledger have it.
func Instant(at time.Time) string {
	if at.IsZero() {
		return ""
	}
	return at.UTC().Format("2006-01-02 15:04:05Z")
}

// Ago writes how long something has lasted, as coarse as a table needs it.
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

// Is adds the verb that fits n things.
func Is(words string, n int) string {
	if n == 1 {
		return words + " is"
	}
	return words + " are"
}

// Has adds the verb that fits n things.
func Has(words string, n int) string {
	if n == 1 {
		return words + " has"
	}
	return words + " have"
}

// Was adds the verb that fits n things.
func Was(words string, n int) string {
	if n == 1 {
		return words + " was"
	}
	return words + " were"
}
