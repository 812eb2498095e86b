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
	j := job{variables: variables{Directory: dir, LongFileLines: 10}}
	body, _, err := doInspection(context.Background(), j)
	found, ok := body.(inspection)
	if err != nil || !ok {
		t.Fatal(body, err)
	}
	var notes []string
	for _, n := range found.Notes {
		notes = append(notes, n.Where+" "+n.Text)
	}
	if got := strings.Join(notes, "|"); got != "a.go:5 FIXME two */|b.sh:1 HACK three|a.go:1 TODO one" {
		t.Errorf("notes %s", got)
	}
	if len(found.LongFiles) != 1 || found.LongFiles[0].Path != "b.sh" {
		t.Errorf("long files %+v", found.LongFiles)
	}
}

func TestPlain(t *testing.T) {
	if got := plain("\x1b]0;name\x07|`\n"); strings.ContainsAny(got, "\x1b\x07`\n") {
		t.Errorf("not harmless: %q", got)
	}
}
