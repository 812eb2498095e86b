package protocol

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/agenthandoff/handoff/protocol/internal/wirejson"
)

// Printable makes text from outside safe for one line of a terminal: control
// characters (of which terminal escapes are made), bytes that are no UTF-8, and
// characters that cannot be seen or that turn the direction of writing are
// written out as \x1b or \u202e. A line break becomes ⏎, a tab a space.
func Printable(s string) string { return printable(s, false) }

// PrintableLines is Printable, but keeps line breaks and tabs.
func PrintableLines(s string) string { return printable(s, true) }

func printable(s string, lines bool) string {
	if !suspect(s) {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); {
		r, n := utf8.DecodeRuneInString(s[i:])
		switch {
		case r == utf8.RuneError && n <= 1:
			fmt.Fprintf(&b, `\x%02x`, s[i])
		case (r == '\n' || r == '\t') && lines:
			b.WriteRune(r)
		case r == '\r' && strings.HasPrefix(s[i+1:], "\n"): // of a line break
		case r == '\n':
			b.WriteRune('⏎')
		case r == '\t':
			b.WriteByte(' ')
		case !hidden(r):
			b.WriteRune(r)
		case r < 0x80:
			fmt.Fprintf(&b, `\x%02x`, r)
		case r > 0xffff:
			fmt.Fprintf(&b, `\U%08x`, r)
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
		i += n
	}
	return b.String()
}

// suspect tells whether there is anything but plain ASCII in s.
func suspect(s string) bool {
	for i := range len(s) {
		if s[i] < ' ' || s[i] > '~' {
			return true
		}
	}
	return false
}

// hidden tells whether a character steers the terminal or deceives the eye:
// controls (C0, C1), format characters (bidirectional overrides, zero-width
// ones, tags), line and paragraph separators.
func hidden(r rune) bool {
	switch {
	case r == '\u200c' || r == '\u200d': // joiners: scripts and emoji need them
		return false
	case r >= '\u0600' && r <= '\u08e2' && r != '\u061c': // signs that are seen, though of that class
		return unicode.Is(unicode.Cc, r)
	}
	return unicode.In(r, unicode.Cc, unicode.Cf, unicode.Zl, unicode.Zp)
}

// CutText bounds a text that goes into an event: at most so many bytes, cut
// between characters and then ended by …. Broken UTF-8 and NUL, which the wire
// refuses, become U+FFFD.
func CutText(s string, bytesMax int) string { return wirejson.CutText(s, bytesMax) }

// Prefix is the beginning of a text: at most so many bytes, cut between characters.
func Prefix(s string, bytesMax int) string { return wirejson.Prefix(s, bytesMax) }
