//go:build unix

package worker_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/worker"
)

// script writes a shell script and returns its path.
func script(t testing.TB, body string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "agent.sh")
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+body+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

func execOf(t testing.TB, cfg worker.ExecConfig) *worker.Exec {
	t.Helper()
	e, err := worker.NewExec(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// handoff is one as a program gets it, without an engine behind it.
func handoff() worker.Handoff {
	return worker.Handoff{Ticket: "3f0c9a3e-5a77-4f0e-8d6f-4f4b0a9d7c11", Agent: "coder", Attempt: 2, Fence: 17,
		Raw: json.RawMessage(`{"source":"lead","task":{"description":"write it"},"context":{"variables":{"branch":"old","n":1}}}`)}
}

// outcome says in a word what an error of a handler becomes.
func outcome(t *testing.T, err error) string {
	t.Helper()
	var failure *worker.Failure
	switch {
	case err == nil:
		return "complete"
	case errors.As(err, &failure) && failure.Permanent:
		return "permanent " + failure.Code
	case errors.As(err, &failure) && failure.RetryAfter > 0:
		return strings.TrimSuffix(fmt.Sprintf("retry after %v %s %s", failure.RetryAfter, failure.Code, failure.LimitKey), " ")
	case errors.As(err, &failure):
		return "retry " + failure.Code
	case worker.IsStop(err):
		return "stop"
	}
	if ack, ok := worker.RefusalOf(err); ok {
		raw, err := json.Marshal(ack)
		if err != nil {
			t.Fatal(err)
		}
		return string(raw)
	}
	return err.Error()
}

func TestExitCodes(t *testing.T) {
	rejected := func(reason string) string { return `{"status":"rejected","reason":"` + reason + `"}` }
	conditional := func(need string) string { return `{"status":"conditional","needs_context":["` + need + `"]}` }
	const ack = ` > "$HANDOFF_ACK_FILE"; `
	for _, c := range []struct{ body, want string }{
		{`exit 0`, "complete"},
		{`exit 1`, "retry exit_1"},
		{`exit 64`, "retry exit_64"},
		{`exit 255`, "retry exit_255"},
		{`exit 65`, "permanent exit_65"},
		{`exit 75`, "retry after 30s exit_75"},
		{`echo '{"retry_after_ms": 60000}'` + ack + `exit 75`, "retry after 1m0s exit_75"},
		{`echo '{"retry_after_ms": 60000, "limit_key": "model:m"}'` + ack + `exit 75`, "retry after 1m0s exit_75 model:m"},
		{`echo '{"limit_key": "model:m"}'` + ack + `exit 75`, "retry after 30s exit_75 model:m"},
		{`echo '{"limit_key": "model:m"}'` + ack + `exit 1`, "retry exit_1"},
		{`echo '{"limit_key": 7}'` + ack + `exit 75`, "retry after 30s exit_75"},
		{`exit 69`, rejected("exit status 69")},
		{`echo one >&2; echo '  two ' >&2; exit 69`, rejected("two")},
		{`echo rejected no German here` + ack + `exit 69`, rejected("no German here")},
		{`echo rejected: no German here` + ack + `exit 0`, rejected("no German here")},
		{`echo '{"status":"rejected","reason":"no","suggested_alternative":"b"}'` + ack + `exit 1`, `{"status":"rejected","reason":"no","suggested_alternative":"b"}`},
		{`exit 77`, conditional("exit status 77")},
		{`echo 'which branch?' >&2; exit 77`, conditional("which branch?")},
		{`echo 'conditional: which branch?'` + ack + `exit 77`, conditional("which branch?")},
		{`echo '{"status":"conditional","needs_permission":["to push"]}'` + ack, `{"status":"conditional","needs_permission":["to push"]}`},
		{`echo accepted` + ack, "complete"},
		{`:` + ack, "complete"},
		{`echo '{"status":'` + ack, "malformed"},
		{`echo perhaps` + ack, "malformed"},
		{`echo rejected` + ack, "malformed"},
		{`head -c 100000 /dev/zero` + ack, "malformed"},
		{`echo '{"status":"rejected","reason":"no","reson":1}'` + ack, "malformed"},
		{`echo '{"status":' ` + ack + `exit 75`, "retry after 30s exit_75"},
		{`echo '{"status":' ` + ack + `kill -KILL $$`, "retry signal_9"},
		{`echo '{"status":' ` + ack + `exit 1`, "malformed"},
		{`echo '{"status":"conditional"}'` + ack, "malformed"},
		{`echo escalated` + ack, "malformed"},
		{`echo '{"status":"conditional","needs_context":"which branch?"}'` + ack, conditional("which branch?")},
		{`echo '{"status":"conditional","timestamp":"2026-01-02T00:00:00Z","agentId":"a","conditions":{"needsMoreContext":["which branch?"]}}'` + ack, conditional("which branch?")},
		{`echo '{"status":"conditional","conditions":{"needsPermission":"to push","estimatedCompletionMs":9}}'` + ack, `{"status":"conditional","needs_permission":["to push"],"estimated_completion_ms":9}`},
		{`echo '{"status":"conditional","needs_context":["a"],"conditions":{"needsMoreContext":["b"]}}'` + ack, "malformed"},
		{`echo '{"status":"conditional","conditions":["b"]}'` + ack, "malformed"},
		{`echo '{"status":"rejected","reason":"no","suggestedAlternative":"b"}'` + ack, `{"status":"rejected","reason":"no","suggested_alternative":"b"}`},
		{`echo answered: take the left one` + ack + `exit 3`, "answered: take the left one"},
		{`echo '{"status":"answered","text":"left","variables":{"way":"left"}}'` + ack, "answered: left"},
		{`echo '{"status":"answered","deny":true,"deny_reason":"no budget"}'` + ack, "denied: no budget"},
		{`echo answered` + ack, "malformed"},
		{`echo '{"status":"answered"}'` + ack, "malformed"},
		{`echo '{"status":"answered","txt":"left"}'` + ack, "malformed"},
		{`echo escalated two ways` + ack + `exit 1`, "escalated: two ways"},
		{`echo '{"status":"escalated","rationale":"two ways","assessment":"left"}'` + ack, "escalated: two ways"},
		{`echo '{"status":"escalated","reason":"two ways"}'` + ack, "malformed"},
		{`echo returned: not worth it` + ack + `exit 1`, "rolled back: not worth it"},
		{`echo returned` + ack, "rolled back: "},
		{`echo '{"status":"returned","reason":"not worth it"}'` + ack, "rolled back: not worth it"},
		{`echo '{"status":7}'` + ack, "malformed"},
		{`echo '{"status":"perhaps"}'` + ack, "malformed"},
		{`head -c 3000 /dev/zero | tr '\0' x >&2; exit 77`, conditional(strings.Repeat("x", 1021) + "…")},
		{`exit 126`, "stop"},
		{`exit 127`, "stop"},
		{`no_such_command_anywhere`, "stop"},
		{`kill -KILL $$`, "retry signal_9"},
		{`kill -TERM $$`, "retry signal_15"},
	} {
		result, err := execOf(t, worker.ExecConfig{Command: []string{script(t, c.body)}}).Handle(t.Context(), handoff())
		got := outcome(t, err)
		if result.Malformed != "" {
			got = "malformed"
		}
		if got != c.want {
			t.Errorf("%s\n got %s\nwant %s", c.body, got, c.want)
		}
	}
}

func TestOutputIsTheResult(t *testing.T) {
	for body, want := range map[string]string{
		`echo hello`:                               `"hello`,
		`echo '{"answer": 42}'`:                    `{"answer": 42}`,
		`cat | tr -d '\n' | wc -c`:                 ``,
		`exec 0<&-; echo '[1]'`:                    `[1]`, // input unread
		`echo '[2]'; sleep 60 >&- &`:               `[2]`, // leaves something behind
		`echo '[3]'; (sleep 60) & :`:               `[3]`, // with the output open
		`exec 1>&- 2>&-; sleep 0; :`:               ``,
		`printf '{"status":"partial","body":"x"}'`: `"x"`,
	} {
		h := handoff()
		h.Raw = json.RawMessage(`"` + strings.Repeat("x", 1<<20) + `"`)
		begin := time.Now()
		result, err := execOf(t, worker.ExecConfig{Command: []string{script(t, body)}}).Handle(t.Context(), h)
		if err != nil || !strings.HasPrefix(string(result.Body), want) {
			t.Errorf("%s: %s, %v", body, result.Body, err)
		}
		if took := time.Since(begin); took > 3*time.Second {
			t.Errorf("%s took %v", body, took)
		}
	}
}

func TestProgramsSurroundings(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("INHERITED", "yes")
	body := `echo "$HANDOFF_TICKET $HANDOFF_AGENT $HANDOFF_ATTEMPT $HANDOFF_FENCE $NATS_URL $INHERITED ${HANDOFF_ACK_FILE:+ack} $(pwd) $1"`
	e := execOf(t, worker.ExecConfig{Command: []string{script(t, body), "an argument"}, Dir: dir, Env: []string{"NATS_URL=nats://there:4222"}, Inherit: []string{"INHERITED"}})
	result, err := e.Handle(t.Context(), handoff())
	if err != nil {
		t.Fatal(err)
	}
	var got string
	if err := json.Unmarshal(result.Body, &got); err != nil {
		t.Fatal(err)
	}
	if want := "3f0c9a3e-5a77-4f0e-8d6f-4f4b0a9d7c11 coder 2 17 nats://there:4222 yes ack " + dir + " an argument"; strings.TrimSpace(got) != want {
		t.Errorf("got %q\nwant %q", got, want)
	}
	left, err := filepath.Glob(filepath.Join(os.TempDir(), "handoff-*", "ack"))
	if err != nil || len(left) > 0 {
		t.Errorf("acknowledgement files left: %v, %v", left, err)
	}
}

// Supplements reach a program in its input: variables where it looks for them
// anyhow, all else in a list.
func TestInputWithSupplements(t *testing.T) {
	e := execOf(t, worker.ExecConfig{Command: []string{"cat"}})
	result, err := e.Handle(t.Context(), handoff())
	if err != nil || string(result.Body) != string(handoff().Raw) {
		t.Errorf("without answers: %s, %v", result.Body, err)
	}
	h := handoff()
	h.Answers = []protocol.Answer{
		{By: "lead", Text: "take <main>", Variables: map[string]json.RawMessage{"branch": []byte(`"main"`)}},
		{By: "lead", Permit: true},
	}
	result, err = e.Handle(t.Context(), h)
	want := `{"context":{"variables":{"branch":"main","n":1}},"source":"lead","supplements":[{"by":"lead","text":"take <main>","variables":{"branch":"main"}},{"by":"lead","permit":true}],"task":{"description":"write it"}}`
	if err != nil || string(result.Body) != want {
		t.Errorf("with answers: %s, %v", result.Body, err)
	}
	h.Raw = json.RawMessage(`{"task":{"description":"no context at all"}}`)
	if result, err = e.Handle(t.Context(), h); err != nil || !strings.Contains(string(result.Body), `"branch":"main"`) {
		t.Errorf("without a context: %s, %v", result.Body, err)
	}
}

// What happened before, and what was handed off, reaches a program likewise.
func TestInputWithTrailAndReturns(t *testing.T) {
	e := execOf(t, worker.ExecConfig{Command: []string{"cat"}})
	h := handoff()
	h.Trail = []protocol.TrailEntry{{Event: protocol.EventRejected, Agent: "anna", Words: "not <mine>"}}
	h.Returns = []protocol.Return{{HandoffID: "a", Status: protocol.ReturnSuccess, Result: &protocol.ReturnResult{Body: []byte(`"ok"`)}}}
	result, err := e.Handle(t.Context(), h)
	var got struct {
		Source  string                `json:"source"`
		Trail   []protocol.TrailEntry `json:"trail"`
		Returns []protocol.Return     `json:"returns"`
	}
	if err := errors.Join(err, json.Unmarshal(result.Body, &got)); err != nil || got.Source != "lead" ||
		len(got.Trail) != 1 || got.Trail[0].Words != "not <mine>" || len(got.Returns) != 1 || string(got.Returns[0].Result.Body) != `"ok"` {
		t.Errorf("%s, %v", result.Body, err)
	}
	if strings.Contains(string(result.Body), "supplements") {
		t.Errorf("supplements that nobody gave: %s", result.Body)
	}
	large := func(bytes int) json.RawMessage { return json.RawMessage(`"` + strings.Repeat("x", bytes) + `"`) }
	h.Returns = []protocol.Return{
		{HandoffID: "a", Result: &protocol.ReturnResult{Body: large(10 << 20), Summary: "first"}},
		{HandoffID: "b", Result: &protocol.ReturnResult{Body: large(10 << 20), Summary: "second"}, Audit: protocol.ReturnAudit{Notes: "slow"},
			ContextUpdates: &protocol.ContextUpdates{VariablesChanged: map[string]json.RawMessage{"v": []byte("1")}}},
		{HandoffID: "c", Members: []protocol.MemberReturn{{Agent: "anna", Result: &protocol.Result{Body: large(8 << 20)}}}},
		{HandoffID: "d", Result: &protocol.ReturnResult{Body: []byte("4")}},
	}
	result, err = e.Handle(t.Context(), h)
	got.Returns = nil
	if err := errors.Join(err, json.Unmarshal(result.Body, &got)); err != nil {
		t.Fatal(err)
	}
	a, b, c, d := got.Returns[0], got.Returns[1], got.Returns[2], got.Returns[3]
	if len(a.Result.Body) < 10<<20 || string(d.Result.Body) != "4" || a.Audit.Notes != "" {
		t.Error("more was left out than had to be")
	}
	if b.Result.Body != nil || b.ContextUpdates != nil || b.Result.Summary != "second" || !strings.HasPrefix(b.Audit.Notes, "slow\nthe result is 10 MiB") || !strings.Contains(b.Audit.Notes, "result of b") {
		t.Errorf("left out as %+v", b)
	}
	if c.Members[0].Result != nil || c.Members[0].Agent != "anna" || !strings.Contains(c.Audit.Notes, "result of c") || h.Returns[2].Members[0].Result == nil {
		t.Errorf("left out as %+v", c)
	}
}

// A program puts away what another has left, and is told why.
func TestExecCleanup(t *testing.T) {
	into := filepath.Join(t.TempDir(), "said")
	body := `echo "$HANDOFF_CLEANUP_REASON $HANDOFF_TICKET ${HANDOFF_ACK_FILE:-no file} $1 $(wc -c)" >> ` + into + `; echo "left as it was" >&2; exit ${CODE:-0}`
	e := execOf(t, worker.ExecConfig{Command: []string{"cat"}, Cleanup: []string{script(t, body), "argument"}})
	for reason, why := range map[string]error{"returned": worker.RollBack("x", nil), "cancelled": worker.ErrCancelled, "lease_lost": broker.ErrLeaseLost} {
		if err := e.Cleanup(t.Context(), handoff(), why); err != nil {
			t.Errorf("%s: %v", reason, err)
		}
		said, err := os.ReadFile(into)
		want := fmt.Sprintf("%s %s no file argument %d", reason, handoff().Ticket, len(handoff().Raw))
		if err != nil || strings.Join(strings.Fields(string(said)), " ") != want {
			t.Errorf("said %q, %v; want %q", said, err, want)
		}
		if err := os.Remove(into); err != nil {
			t.Error(err)
		}
	}
	e = execOf(t, worker.ExecConfig{Command: []string{"cat"}, Cleanup: []string{script(t, body)}, Env: []string{"CODE=3"}})
	if err := e.Cleanup(t.Context(), handoff(), worker.ErrCancelled); err == nil || err.Error() != "exit status 3: left as it was" {
		t.Errorf("failed as %v", err)
	}
	e = execOf(t, worker.ExecConfig{Command: []string{"cat"}, Cleanup: []string{"sleep", "60"}, KillGrace: time.Millisecond})
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	begin := time.Now()
	if err := e.Cleanup(ctx, handoff(), worker.ErrCancelled); err == nil || time.Since(begin) > 5*time.Second {
		t.Errorf("after %v: %v", time.Since(begin), err)
	}
	if err := execOf(t, worker.ExecConfig{Command: []string{"cat"}}).Cleanup(t.Context(), handoff(), worker.ErrCancelled); err != nil {
		t.Errorf("without a program: %v", err)
	}
}

func TestStderrIsLoggedAndQuoted(t *testing.T) {
	var log bytes.Buffer
	h := handoff()
	h.Log = slog.New(slog.NewTextHandler(&log, nil))
	body := `i=0; while [ $i -lt 30 ]; do echo "line $i" >&2; i=$((i+1)); done; printf 'the end, \033[31mred, without a newline' >&2; exit 3`
	_, err := execOf(t, worker.ExecConfig{Command: []string{script(t, body)}}).Handle(t.Context(), h)
	if err == nil || !strings.Contains(err.Error(), "exit status 3: line 21\n") || !strings.HasSuffix(err.Error(), "without a newline") {
		t.Errorf("error %q", err)
	}
	for _, want := range []string{`line="line 0"`, `line="line 29"`, "without a newline"} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("the log has no %s:\n%s", want, log.String())
		}
	}
	long := `head -c 1000000 /dev/zero | tr '\0' 'x' >&2; exit 3`
	if _, err := execOf(t, worker.ExecConfig{Command: []string{script(t, long)}}).Handle(t.Context(), handoff()); err == nil || len(err.Error()) > 4<<10 {
		t.Errorf("a long line makes an error of %d bytes", len(err.Error()))
	}
}

func TestOutputOverTheLimit(t *testing.T) {
	for name, body := range map[string]string{
		"that goes on":    `yes`,
		"that then ends":  `head -c 2000 /dev/zero`,
		"that then fails": `head -c 2000 /dev/zero; exit 65`,
	} {
		begin := time.Now()
		result, err := execOf(t, worker.ExecConfig{Command: []string{script(t, body)}, OutputBytesMax: 1000}).Handle(t.Context(), handoff())
		if !strings.Contains(result.Malformed, "more than 1000 bytes to its standard output; its first 1000 bytes are kept") || len(result.Body) < 1000 || err != nil || time.Since(begin) > 30*time.Second {
			t.Errorf("output %s: %q, %d bytes, %v", name, result.Malformed, len(result.Body), err)
		}
	}
	result, err := execOf(t, worker.ExecConfig{Command: []string{script(t, `head -c 1000 /dev/zero | tr '\0' 'x'`)}, OutputBytesMax: 1000}).Handle(t.Context(), handoff())
	if err != nil || len(result.Body) != 1002 {
		t.Errorf("output at the limit: %d bytes, %v", len(result.Body), err)
	}
}

func TestExecConfig(t *testing.T) {
	for field, cfg := range map[string]worker.ExecConfig{
		"command":          {},
		"output_bytes_max": {Command: []string{"cat"}, OutputBytesMax: -1},
		"kill_grace":       {Command: []string{"cat"}, KillGrace: -1},
		"inherit":          {Command: []string{"cat"}, Inherit: []string{"A=b"}},
		"env":              {Command: []string{"cat"}, Env: []string{"NOVALUE"}},
		"dir":              {Command: []string{"cat"}, Dir: "/no/such/directory"},
		"cleanup":          {Command: []string{"cat"}, Cleanup: []string{"no_such_command_anywhere"}},
	} {
		var refused *protocol.Error
		if _, err := worker.NewExec(cfg); !errors.As(err, &refused) || refused.Field != field {
			t.Errorf("%s: %v", field, err)
		}
	}
}

func TestCheckCommand(t *testing.T) {
	dir := t.TempDir()
	write := func(name, body string, mode os.FileMode) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(body), mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	write("ok.sh", "#!/bin/sh\n", 0o755)
	t.Chdir(dir)
	for _, c := range []struct {
		dir, name, want string // want: part of the message, or empty
	}{
		{"", "cat", ""},
		{"", filepath.Join(dir, "ok.sh"), ""},
		{"", "./ok.sh", ""},
		{dir, "./ok.sh", ""},
		{"/", "./ok.sh", "not found"},
		{"", write("plain.sh", "#!/bin/sh\n", 0o644), "chmod +x"},
		{"", write("text.sh", "echo hello\n", 0o755), "#!/bin/sh"},
		{"", write("empty", "", 0o755), "#!/bin/sh"},
		{"", write("gone.py", "#!/no/such/python -u\n", 0o755), "/no/such/python"},
		{"", write("env.py", "#! /usr/bin/env python3\n", 0o755), ""},
		{"", dir, "not"},
		{"", filepath.Join(dir, "missing"), "not found"},
		{"", "no_such_command_anywhere", "not found"},
		{"", "", "missing"},
	} {
		err := worker.CheckCommand(c.dir, []string{c.name})
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%q in %q: %v, want %q", c.name, c.dir, err, c.want)
		}
	}
}

// What cannot be started at all, though it was there a moment ago, stops the worker.
func TestCommandVanishes(t *testing.T) {
	path := script(t, "exit 0")
	e := execOf(t, worker.ExecConfig{Command: []string{path}})
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	_, err := e.Handle(t.Context(), handoff())
	if got := outcome(t, err); got != "stop" || !strings.Contains(err.Error(), path) {
		t.Errorf("%s: %v", got, err)
	}
}

func TestExampleScript(t *testing.T) {
	path := filepath.Join(t.TempDir(), "agent.sh")
	if err := os.WriteFile(path, []byte(worker.ExampleScript()), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, shell := range map[string]string{"with jq": os.Getenv("PATH"), "with POSIX tools alone": posixOnly(t)} {
		e := execOf(t, worker.ExecConfig{Command: []string{path}, Env: []string{"PATH=" + shell}})
		result, err := e.Handle(context.Background(), handoff())
		if err != nil || !strings.Contains(string(result.Body), "Done (coder): write it") {
			t.Errorf("%s: %s, %v", name, result.Body, err)
		}
	}
}

// posixOnly makes a PATH with what the example may use, and no jq.
func posixOnly(t *testing.T) string {
	dir := t.TempDir()
	for _, tool := range []string{"cat", "tr", "sed"} {
		for _, from := range []string{"/bin", "/usr/bin"} {
			if _, err := os.Stat(filepath.Join(from, tool)); err == nil {
				if err := os.Symlink(filepath.Join(from, tool), filepath.Join(dir, tool)); err == nil {
					break
				}
			}
		}
	}
	return dir
}
