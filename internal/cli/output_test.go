package cli

import (
	"bytes"
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/agenthandoff/handoff/api"
	"github.com/agenthandoff/handoff/internal/dossier"
	"github.com/agenthandoff/handoff/internal/jetstream"
	"github.com/agenthandoff/handoff/protocol"
)

const evil = "\x1b[31mred\x07\nphase  complete\u202e"

// TestTextIsEscaped: wherever a package's words end up on a terminal, they are
// words and not commands to it.
func TestTextIsEscaped(t *testing.T) {
	state := protocol.State{
		Ticket: "t", Phase: protocol.Conditional, Message: evil, Reason: evil, Agent: "a", StuckReason: evil,
		Summary:    protocol.Summary{Source: "s", Target: protocol.Target{Agent: "a"}, WorkflowID: evil, ConversationID: evil},
		Conditions: &protocol.Conditions{NeedsContext: []string{evil}, NeedsPermission: []string{evil}},
		Progress:   &protocol.Progress{Message: evil},
	}
	rejected := protocol.Change{Record: protocol.Record{State: state, Events: []protocol.Event{&protocol.Rejected{Agent: "a", Reason: evil}}}}
	for name, write := range map[string]func(*app) error{
		"status":  func(a *app) error { return a.stateText(state, nil) },
		"history": func(a *app) error { return a.history([]protocol.Change{rejected}) },
		"agents": func(a *app) error {
			return a.agents([]api.AgentStatus{{Profile: protocol.Profile{ID: "a", Description: evil}}})
		},
		"text": func(a *app) error { return a.result(protocol.Result{Body: jsonText(evil)}) },
		"json": func(a *app) error {
			return a.result(protocol.Result{Body: json.RawMessage(`{"x":"` + "\u009b\u202e" + `"}`)})
		},
		"-o json": func(a *app) error {
			a.format = formatJSON
			return a.value(map[string]string{"x": "\u009b\u202e"})
		},
		"errors": func(a *app) error {
			a.err = a.out
			a.report(protocol.Errorf(protocol.CodeInvalid, "x", "%s", evil))
			return nil
		},
	} {
		var out bytes.Buffer
		a := &app{out: &out, err: &out, format: formatText, terminal: true, env: func(string) string { return "1" }}
		if err := write(a); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if strings.ContainsAny(out.String(), "\x1b\x07\u009b\u202e") || name != "text" && strings.Contains(out.String(), "\nphase") {
			t.Errorf("%s reached the terminal as %q", name, out.String())
		}
	}
}

// TestResultIsKept: into a file or a pipe goes what the agent made.
func TestResultIsKept(t *testing.T) {
	var out bytes.Buffer
	a := &app{out: &out, format: formatText}
	if err := a.result(protocol.Result{Body: jsonText(evil)}); err != nil || out.String() != evil+"\n" {
		t.Errorf("the result is %q (%v), want it as it was", out.String(), err)
	}
}

func TestColour(t *testing.T) {
	done := protocol.State{Phase: protocol.Complete, Closed: true, Outcome: protocol.OutcomeSuccess}
	for name, c := range map[string]struct {
		terminal bool
		env      map[string]string
		colour   bool
	}{
		"terminal": {true, nil, true}, "pipe": {false, nil, false},
		"NO_COLOR": {true, map[string]string{"NO_COLOR": "1"}, false}, "dumb": {true, map[string]string{"TERM": "dumb"}, false},
	} {
		a := &app{terminal: c.terminal, env: func(n string) string { return c.env[n] }}
		if got := strings.Contains(string(a.phase(done)), "\x1b"); got != c.colour {
			t.Errorf("%s: colour %v, want %v", name, got, c.colour)
		}
	}
}

func TestOutcomeIsAlwaysThere(t *testing.T) {
	raw, err := json.Marshal(dossier.StateOf(protocol.State{Ticket: "t", Phase: protocol.Pending, SubmittedAt: time.Unix(0, 0).UTC()}))
	if err != nil {
		t.Fatal(err)
	}
	var got map[string]any
	if err := json.Unmarshal(raw, &got); err != nil {
		t.Fatal(err)
	}
	for _, field := range []string{"ticket", "phase", "closed", "outcome"} {
		if _, there := got[field]; !there {
			t.Errorf("%s is missing in %s", field, raw)
		}
	}
}

func TestConnection(t *testing.T) {
	env := map[string]string{"NATS_URL": "nats://env", "NATS_CREDS": "env.creds", "NATS_CONTEXT": "envctx", "NATS_CA": "env.pem",
		"NATS_NKEY": "env.nk", "NATS_CERT": "env.cert", "NATS_KEY": "env.key", "NATS_INBOX_PREFIX": "_INBOX_me", "HANDOFF_TIMEOUT": "30s"}
	all := connection{DialConfig: jetstream.DialConfig{URL: "nats://env", Context: "envctx", Creds: "env.creds", NKey: "env.nk", InboxPrefix: "_INBOX_me",
		TLSCA: "env.pem", TLSCert: "env.cert", TLSKey: "env.key"}, timeout: 30 * time.Second}
	to := func(url, context string, timeout time.Duration) connection {
		return connection{DialConfig: jetstream.DialConfig{URL: url, Context: context}, timeout: timeout}
	}
	elsewhere := all
	elsewhere.URL = "nats://flag"
	get := func(name string) string { return env[name] }
	for name, c := range map[string]struct {
		flags, want connection
		where       string
	}{
		"environment":           {connection{}, all, "nats://env (context envctx)"},
		"a URL":                 {to("nats://flag", "", 0), elsewhere, "nats://flag (context envctx)"},
		"a context is not bent": {to("", "mine", time.Minute), to("", "mine", time.Minute), "context mine"},
		"both":                  {to("nats://flag", "mine", 0), to("nats://flag", "mine", 30*time.Second), "nats://flag (context mine)"},
	} {
		got := c.flags.resolve(get)
		if !reflect.DeepEqual(got, c.want) || got.where() != c.where {
			t.Errorf("%s: %+v at %q, want %+v at %q", name, got, got.where(), c.want, c.where)
		}
	}
	if got := to("nats://me:secret@host:4222", "", 0).where(); strings.Contains(got, "secret") {
		t.Errorf("a message would show the password: %s", got)
	}
}

func TestFormatOf(t *testing.T) {
	for line, want := range map[string]string{
		"submit --nope -o json": formatJSON, "-ojsonl x": formatJSONL, "x --output=json": formatJSON, "x --output jsonl": formatJSONL,
		"x -o yaml": formatText, "x": formatText, "x -o": formatText,
	} {
		if got := formatOf(strings.Fields(line), formatText); got != want {
			t.Errorf("%s: %s, want %s", line, got, want)
		}
	}
}

// TestTableFits: a line stays a line on a terminal, and nothing is cut in a pipe.
func TestTableFits(t *testing.T) {
	rows := func() [][]string {
		return [][]string{{"WHY", "TICKET", "WORDS"}, {"look", "5f0c", strings.Repeat("wörter ", 20)}}
	}
	for name, c := range map[string]struct{ width, lines int }{"wide": {60, 2}, "narrow": {20, 3}, "a pipe": {0, 2}} {
		var out bytes.Buffer
		a := &app{out: &out, width: c.width, terminal: c.width > 0, format: formatText, env: func(string) string { return "dumb" }}
		if err := a.table(rows()); err != nil {
			t.Fatal(err)
		}
		lines := strings.Split(strings.TrimRight(out.String(), "\n"), "\n")
		if len(lines) != c.lines {
			t.Errorf("%s: %d lines, want %d:\n%s", name, len(lines), c.lines, out.String())
		}
		for _, line := range lines {
			if n := utf8.RuneCountInString(line); c.width > 0 && n > c.width {
				t.Errorf("%s: a line of %d columns: %s", name, n, line)
			}
		}
		if whole := strings.Contains(out.String(), rows()[1][2]); whole != (c.width == 0) {
			t.Errorf("%s: the words are all there: %v\n%s", name, whole, out.String())
		}
	}
}

// TestEscapeJSON: what a terminal would act upon is escaped, and stays the same JSON.
func TestEscapeJSON(t *testing.T) {
	for _, text := range []string{"plain", "naïve ⏎ 日本", "\u009b31m", "\u202etxt.exe", "\x7f", "tag \U000e0041", "line\nbreak\ttab"} {
		raw, err := encode(map[string]string{"x": text}, true)
		if err != nil {
			t.Fatal(err)
		}
		escaped := escapeJSON(raw)
		var got map[string]string
		if err := json.Unmarshal(escaped, &got); err != nil || got["x"] != text {
			t.Errorf("%q became %s (%v)", text, escaped, err)
		}
		if shown := protocol.PrintableLines(string(escaped)); shown != string(escaped) {
			t.Errorf("%q reaches the terminal as %q", text, escaped)
		}
	}
	var out bytes.Buffer
	a := &app{err: &out, format: formatJSON}
	a.report(protocol.Errorf(protocol.CodeInvalid, "x", "is \u009b2J"))
	if strings.ContainsRune(out.String(), '\u009b') {
		t.Errorf("an error as JSON is %q", out.String())
	}
}
