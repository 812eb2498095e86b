package demo

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/agenthandoff/handoff/protocol"
)

// count writes a number as people read it: 12,345.
func count(n int) string {
	digits := strconv.Itoa(n)
	for i := len(digits) - 3; i > 0 && digits[i-1] != '-'; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return digits
}

// many writes a count with its noun: "1 commit", "2 commits". An irregular
// plural is given.
func many(n int, noun string, plural ...string) string {
	switch {
	case n == 1:
		return "1 " + noun
	case len(plural) > 0:
		return count(n) + " " + plural[0]
	}
	return count(n) + " " + noun + "s"
}

// size writes bytes in the unit that leaves the fewest digits.
func size(bytes int64) string {
	const unit = 1024
	if bytes < unit {
		return fmt.Sprintf("%d B", bytes)
	}
	value, units := float64(bytes)/unit, []string{"KiB", "MiB", "GiB", "TiB"}
	for value >= unit && len(units) > 1 {
		value, units = value/unit, units[1:]
	}
	return fmt.Sprintf("%.1f %s", value, units[0])
}

// clip cuts a text to so many characters.
func clip(s string, most int) string {
	s = strings.ToValidUTF8(s, "\uFFFD")
	runes := []rune(s)
	if len(runes) <= most {
		return s
	}
	return string(runes[:most-1]) + "…"
}

// printable makes one harmless line of a text from anywhere: names and words of
// the reviewed directory reach the terminal and the report through it alone.
func printable(s string) string {
	return strings.NewReplacer("\n", `\n`, "\r", `\r`, "\t", " ").Replace(protocol.Printable(s))
}
