package protocol

import (
	"strings"
	"testing"
)

func TestTokens(t *testing.T) {
	for text, want := range map[string]int{
		"": 0, " \n\t": 0, "a": 1, "word": 1, "words": 2, "two words": 3, "f(x)": 4, "1234567": 2, "a.b": 3, "汉字": 2, "汉a字": 3, "Zoë": 1, "🤖🤖": 2, "ab…": 2,
	} {
		if got := Tokens(text); got != want {
			t.Errorf("%q: %d, not %d", text, got, want)
		}
	}
	for raw, want := range map[string]int{
		`{}`: 0, `[1,true]`: 2, `{"role":"user"}`: 2, `"a\nb"`: 2, `"a\"b"`: 3, `"é"`: 1, `"\u00e9x"`: 2, `"a{b"`: 3, `"\`: 1, `"\u`: 1,
	} {
		if got := jsonTokens([]byte(raw)); got != want {
			t.Errorf("%s: %d, not %d", raw, got, want)
		}
	}
}

// TestCutTokens: what is cut is within its bound, whatever it is made of.
func TestCutTokens(t *testing.T) {
	for _, text := range []string{"", "word", "one two three four five", strings.Repeat("x", 100), "汉字汉字汉字", "a b c d e f g", "(((((((", " \n ", strings.Repeat("ab cd, ", 50)} {
		for most := range 30 {
			cut := cutTokens(text, most)
			if Tokens(cut) > most {
				t.Errorf("%q cut to %d is %q, of %d", text, most, cut, Tokens(cut))
			}
			if whole := strings.Join(strings.Fields(text), " "); most >= 2 && Tokens(whole) <= most && cut != whole {
				t.Errorf("%q fits in %d, and was cut to %q", text, most, cut)
			}
		}
	}
}
