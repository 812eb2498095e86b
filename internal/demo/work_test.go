package demo

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestInspection(t *testing.T) {
	dir := t.TempDir()
	for name, body := range map[string]string{
		"a.go":  "package a // TODO one\n\ns := \"// TODO not this\"\n// TODOs are none\n/* FIXME two */\n",
		"b.sh":  "# HACK three\n" + strings.Repeat("echo\n", 10),
		"c.md":  "TODO in prose is none\n" + strings.Repeat("long prose\n", 10),
		"d.bin": "// TODO \x00",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(body), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	j := job{Directory: dir, LongFileLines: 10}
	found, summary, err := doInspection(context.Background(), j)
	if err != nil {
		t.Fatal(err)
	}
	want := "3 notes to self, 1 file over 10 lines.\n" +
		"\n- `a.go:5` FIXME two \\*/\n- `b.sh:1` HACK three\n- `a.go:1` TODO one\n- `b.sh`, 11 lines"
	if found != want {
		t.Errorf("found %q, want %q", found, want)
	}
	if summary != "3 notes to self, 1 file over 10 lines" {
		t.Errorf("summary %q", summary)
	}
}

func TestPlain(t *testing.T) {
	if got := plain("\x1b]0;name\x07|`\n"); strings.ContainsAny(got, "\x1b\x07`\n") {
		t.Errorf("not harmless: %q", got)
	}
}
