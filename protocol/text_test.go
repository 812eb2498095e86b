package protocol_test

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/agenthandoff/handoff/protocol"
)

func TestPrintable(t *testing.T) {
	for _, c := range []struct{ in, line, lines string }{
		{"", "", ""},
		{"plain text ~", "plain text ~", "plain text ~"},
		{"two\nlines\tand a tab", "two⏎lines and a tab", "two\nlines\tand a tab"},
		{"windows\r\n", "windows⏎", "windows\n"},
		{"over\rwrite", `over\x0dwrite`, `over\x0dwrite`},
		{"\x1b[31mred\x1b[0m", `\x1b[31mred\x1b[0m`, `\x1b[31mred\x1b[0m`},
		{"\x1b]0;title\x07", `\x1b]0;title\x07`, `\x1b]0;title\x07`},
		{"c1 \u009b31m", `c1 \u009b31m`, `c1 \u009b31m`},
		{"bidi \u202eabc\u2066", `bidi \u202eabc\u2066`, `bidi \u202eabc\u2066`},
		{"zero\u200bwidth\ufeff", `zero\u200bwidth\ufeff`, `zero\u200bwidth\ufeff`},
		{"tag \U000e0041", `tag \U000e0041`, `tag \U000e0041`},
		{"separators\u2028\u2029", `separators\u2028\u2029`, `separators\u2028\u2029`},
		{"bytes \xff\xc3", `bytes \xff\xc3`, `bytes \xff\xc3`},
		{"del\x7f nul\x00", `del\x7f nul\x00`, `del\x7f nul\x00`},
		{"naïve 日本語 👩‍👩‍👧 ✓ \ufffd", "naïve 日本語 👩‍👩‍👧 ✓ \ufffd", "naïve 日本語 👩‍👩‍👧 ✓ \ufffd"},
	} {
		if got := protocol.Printable(c.in); got != c.line {
			t.Errorf("Printable(%q) = %q, want %q", c.in, got, c.line)
		}
		if got := protocol.PrintableLines(c.in); got != c.lines {
			t.Errorf("PrintableLines(%q) = %q, want %q", c.in, got, c.lines)
		}
	}
}

// FuzzPrintable: nothing that steers a terminal comes out, and what comes out
// comes out of itself.
func FuzzPrintable(f *testing.F) {
	f.Add("\x1b[2J\u202e\xff")
	f.Fuzz(func(t *testing.T, s string) {
		out := protocol.Printable(s)
		if i := strings.IndexFunc(out, func(r rune) bool { return r < ' ' || r >= 0x7f && r < 0xa0 }); i >= 0 || !utf8.ValidString(out) {
			t.Fatalf("%q becomes %q", s, out)
		}
		if again := protocol.Printable(out); again != out {
			t.Fatalf("%q becomes %q", out, again)
		}
	})
}

func TestCutText(t *testing.T) {
	for _, c := range []struct {
		in   string
		most int
		want string
	}{
		{"short", 5, "short"}, {"longer", 5, "lo…"}, {"日本語です", 9, "日本…"}, {"日本語です", 10, "日本…"},
		{"a\x00b\xff", 20, "a\ufffdb\ufffd"}, {"abc", 2, "ab"[:0]}, {"", 0, ""}, {"abc", 0, ""},
	} {
		got := protocol.CutText(c.in, c.most)
		if got != c.want || len(got) > c.most {
			t.Errorf("CutText(%q, %d) = %q, want %q", c.in, c.most, got, c.want)
		}
	}
}
