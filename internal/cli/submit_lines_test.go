package cli

import "testing"

func TestWhichFilesAreLines(t *testing.T) {
	for path, want := range map[string]bool{"a.jsonl": true, "b.c/a.ndjson": true, "a.json": false, "-": false, "": false, "jsonl": false} {
		if got := (&linesFlags{}).of(path); got != want {
			t.Errorf("%q: %v", path, got)
		}
		if !(&linesFlags{lines: true}).of(path) {
			t.Errorf("%q with --lines is none", path)
		}
	}
}
