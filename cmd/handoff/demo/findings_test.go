package demo

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

func TestFunctions(t *testing.T) {
	for _, test := range []struct {
		language, body, want string
		lines                int
	}{
		{"Go", "package p\n\nfunc (t *T[K]) Do() {\n\tone()\n\ttwo()\n}\n", "T.Do", 4},
		{"Go", "package p\n\nfunc whole() {\n}\n\nfunc broken( {\n", "whole", 2},
		{"Python", "class A:\n    def f(self,\n          x):\n        return x\n\n    y = 1\n", "f", 3},
		{"Python", "def f(\n    x,\n):\n    return x\n", "f", 4},
		{"JavaScript", "export default async function load() {\n  if (a) {\n  }\n}\nlet b\n", "load", 4},
		{"Rust", "impl A {\n    pub fn go(&self) {\n        x();\n    }\n}\n", "go", 3},
	} {
		got := functions(file{Path: "f", Language: test.language}, []byte(test.body))
		if len(got) == 0 || got[0].Name != test.want || got[0].Lines != test.lines {
			t.Errorf("%s %q: %+v, want %s with %d lines", test.language, test.body, got, test.want, test.lines)
		}
	}
	// Where the end cannot be told there is no length, rather than a wrong one.
	if got := functions(file{Language: "Rust"}, []byte("fn f() { g() }\n")); len(got) != 0 {
		t.Errorf("a function on one line was measured: %+v", got)
	}
}

func TestMarks(t *testing.T) {
	for _, test := range []struct{ language, body, want string }{
		{"Go", "package p // TODO: one\n\n/* none\n * FIXME(ann) two\n */\n// HACK\nvar s = `\n// TODO no comment\n` + \"// TODO nor this\"\n",
			"1 TODO one|4 FIXME two|6 HACK"},
		{"Shell", "# TODO one\necho \"# FIXME not this\"\necho \"x\" # XXX two\n# TODOs are none, nor\n# TODO, FIXME and the like, nor XXXX\n",
			"1 TODO one|3 XXX two"},
		{"Markdown", "TODO in prose\n<!-- TODO one -->\n", "2 TODO one"},
		{"JSON", `{"a": "# TODO"}`, ""},
	} {
		var found inspection
		found.marks(file{Path: "f", Language: test.language}, []byte(test.body))
		var got []string
		for _, m := range found.Marks {
			got = append(got, strings.TrimSpace(fmt.Sprintf("%d %s %s", m.Line, m.Word, m.Text)))
		}
		if strings.Join(got, "|") != test.want {
			t.Errorf("marks in %s are %q, want %s", test.language, got, test.want)
		}
	}
}

func TestReadLog(t *testing.T) {
	dir := t.TempDir()
	log := "\x01Ann\x022026-02-03\x02later\n\n2\t1\tgone.txt\n-\t-\tlogo.png\n" +
		"\x01Bob\x022026-01-02\x02\x1b[31mfirst\n\n9\t0\tgone.txt\n"
	found := readLog(dir, []byte(log))
	if found.Commits != 2 || found.People != 2 || found.First != "2026-01-02" || found.Last != "2026-02-03" || len(found.Latest) != 2 {
		t.Errorf("history is %+v", found)
	}
	if len(found.Churn) != 0 {
		t.Errorf("files that are gone were listed: %+v", found.Churn)
	}
	report := findings{history: found}.markdown("\x1b]0;name\x07|`", time.Unix(0, 0))
	if strings.ContainsAny(report, "\x1b\x07") {
		t.Errorf("the report has control characters: %q", report)
	}
}

func TestLines(t *testing.T) {
	if got := fit("漢字漢字漢字", 8); got != "漢字漢…" {
		t.Errorf("fit cut to %q", got)
	}
	if got := fit("short", 80); got != "short" {
		t.Errorf("fit cut to %q", got)
	}
	if got := wrap("  one two three", 10); got != "  one two\n      three" {
		t.Errorf("wrap broke to %q", got)
	}
	if got := count(1234567) + " " + count(12) + " " + count(-1234); got != "1,234,567 12 -1,234" {
		t.Errorf("count wrote %s", got)
	}
}
