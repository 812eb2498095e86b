package wirejson

import "testing"

// TestWritesText: every character, alone and among others.
func TestWritesText(t *testing.T) {
	for r := rune(0); r < 0x3000; r++ {
		for _, s := range []string{string(r), "seven.." + string(r) + "and eight after it", string([]byte{byte(r)}) + "x"} {
			w := new(Writer)
			w.Text(s)
			if want, _ := Marshal(s); string(want) != string(w.buf) {
				t.Fatalf("%q: %s, want %s", s, w.buf, want)
			}
		}
	}
}
