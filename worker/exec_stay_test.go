//go:build unix

package worker_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/agenthandoff/handoff/worker"
)

// stayOf keeps a shell script whose body answers one line, in $line. Each start of it leaves a line
// in the file that is returned.
func stayOf(t *testing.T, cfg worker.ExecConfig, body string) (*worker.Stay, string) {
	t.Helper()
	starts := filepath.Join(t.TempDir(), "starts")
	cfg.Command = []string{script(t, "echo $$ >> "+starts+"\n"+body)}
	s, err := worker.NewStay(cfg, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s, starts
}

func startsIn(t *testing.T, file string) int {
	t.Helper()
	body, err := os.ReadFile(file)
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	return bytes.Count(body, []byte("\n"))
}

func ticketed(n int) worker.Handoff {
	h := handoff()
	h.Ticket = fmt.Sprintf("3f0c9a3e-5a77-4f0e-8d6f-%012d", n)
	return h
}

const answers = `while read -r line; do echo "{\"result\":{\"body\":\"$$\"}}"; done`

// A program that stays works on many handoffs: one at a time, and one program for each slot.
func TestStayIsStartedOnce(t *testing.T) {
	s, starts := stayOf(t, worker.ExecConfig{}, answers)
	for n := range 20 {
		if result, err := s.Handle(t.Context(), ticketed(n)); err != nil || len(result.Body) == 0 || result.Malformed != "" {
			t.Fatalf("%+v, %v", result, err)
		}
	}
	if n := startsIn(t, starts); n != 1 {
		t.Errorf("started %d times", n)
	}
	var all sync.WaitGroup
	slot := make(chan struct{}, 4)
	for n := range 40 {
		all.Go(func() {
			slot <- struct{}{}
			defer func() { <-slot }()
			if result, err := s.Handle(t.Context(), ticketed(n)); err != nil || len(result.Body) == 0 {
				t.Errorf("%+v, %v", result, err)
			}
		})
	}
	all.Wait()
	if n := startsIn(t, starts); n > 4 {
		t.Errorf("started %d times for 4 slots", n)
	}
}

// A program has the package, and no variable of the worker that was not named.
func TestStayInput(t *testing.T) {
	t.Setenv("HANDOFF_TOKEN", "secret")
	s, _ := stayOf(t, worker.ExecConfig{}, `while read -r line; do printf '{"result":{"body":%s,"summary":"%s"}}\n' "$line" "$HANDOFF_STAY,$HANDOFF_TOKEN"; done`)
	result, err := s.Handle(t.Context(), handoff())
	if err != nil {
		t.Fatal(err)
	}
	var line struct {
		Ticket, Agent, Brief string
		Attempt              int
		Fence                uint64
		Package              struct{ Task struct{ Description string } }
	}
	if err := json.Unmarshal(result.Body, &line); err != nil || line.Ticket != handoff().Ticket || line.Attempt != 2 || line.Fence != 17 ||
		line.Package.Task.Description != "write it" || line.Brief == "" || result.Summary != "1," {
		t.Errorf("%s %s, %v", result.Body, result.Summary, err)
	}
}

func TestStayOutcomes(t *testing.T) {
	answer := func(line string) string { return `read -r line; echo '` + line + `'; cat > /dev/null` }
	for _, c := range []struct{ body, want string }{
		{answer(`{"result":{"body":{"a":1}}}`), "complete"},
		{answer(`{"result":{"body":1,"bdy":2}}`), "malformed"},
		{answer(`{"body":"a result without its field"}`), "malformed"},
		{answer(`{"result":`), "malformed"},
		{answer(`{"ack":{"status":"accepted"}}`), "malformed"},
		{answer(`{"ack":{"status":"perhaps"}}`), "malformed"},
		{answer(`{"ack":{"status":"rejected","reason":"no","suggested_alternative":"b"}}`), `{"status":"rejected","reason":"no","suggested_alternative":"b"}`},
		{answer(`{"ack":{"status":"conditional","needs_context":["which branch?"]}}`), `{"status":"conditional","needs_context":["which branch?"]}`},
		{answer(`{"fail":{"message":"no"}}`), "retry "},
		{answer(`{"fail":{"code":"mine","message":"no","retryable":false}}`), "permanent mine"},
		{answer(`{"fail":{"code":"busy","retry_after_ms":60000}}`), "retry after 1m0s busy"},
		{answer(`{"fail":{"code":"busy","retry_after_ms":60000,"limit_key":"model:m"}}`), "retry after 1m0s busy model:m"},
		{answer("text of a library\n\n" + `{"progress":40}` + "\n" + `{"progress":{"percent":40}}` + "\n" + `{"ticket":"another","result":{}}` + "\n" + `{"result":{}}`), "complete"},
		{`read -r line; echo '{"result":{"body":"written before the end"}}'`, "complete"},
		{`read -r line; exit 3`, "retry exit_3"},
		{`read -r line; exit 0`, "retry exit_0"},
		{`read -r line; kill -KILL $$`, "retry signal_9"},
		{`read -r line; exec >&-; sleep 60`, "retry output_ended"},
		{`exit 127`, "stop"},
		{`read -r line; head -c 100000 /dev/zero; cat > /dev/null`, "malformed"},
	} {
		cfg := worker.ExecConfig{KillGrace: 2 * time.Second} // in which also a busy machine sees an end
		if strings.Contains(c.body, "/dev/zero") {
			cfg.OutputBytesMax = 1000
		}
		s, _ := stayOf(t, cfg, c.body)
		result, err := s.Handle(t.Context(), handoff())
		got := outcome(t, err)
		if err == nil && result.Malformed != "" {
			got = "malformed"
		}
		if got != c.want {
			t.Errorf("%s\n%s (%s), want %s", c.body, got, result.Malformed, c.want)
		}
	}
}

// A program that dies fails the handoff that it had and no other, and is started again.
func TestStayThatDies(t *testing.T) {
	s, starts := stayOf(t, worker.ExecConfig{}, `while read -r line; do
case "$line" in *000000000003*) echo "the third" >&2; kill -KILL $$;; esac
echo '{"result":{"body":"ok"}}'; done`)
	for n := 1; n <= 5; n++ {
		_, err := s.Handle(t.Context(), ticketed(n))
		if got := outcome(t, err); n != 3 && got != "complete" || n == 3 && (got != "retry signal_9" || !strings.Contains(err.Error(), "the third")) {
			t.Errorf("%d: %s, %v", n, got, err)
		}
	}
	if n := startsIn(t, starts); n != 2 {
		t.Errorf("started %d times", n)
	}
}

// A program that cannot serve is started ever more slowly, and its handoffs fail: none waits for ever.
func TestStayThatDiesAtOnce(t *testing.T) {
	s, starts := stayOf(t, worker.ExecConfig{}, `exit 1`)
	for n := range 3 {
		if _, err := s.Handle(t.Context(), ticketed(n)); !strings.HasPrefix(outcome(t, err), "retry exit_1") {
			t.Errorf("%v", err)
		}
	}
	if n := startsIn(t, starts); n > 12 { // a tight loop makes hundreds
		t.Errorf("started %d times", n)
	}
}

// A program is asked to stop its handoff, and keeps running if it does; one that does not is ended.
func TestStayIsCancelled(t *testing.T) {
	for name, c := range map[string]struct {
		body   string
		starts int
		want   string
	}{
		"that listens": {`while read -r line; do case "$line" in
*'"cancel"'*) echo '{"fail":{"message":"stopped"}}';; *000000000001*) echo '{"progress":"1"}'; : ;; *) echo '{"result":{}}';; esac; done`, 1, "retry "},
		"that does not": {`while read -r line; do case "$line" in *000000000001*) sleep 60;; *) echo '{"result":{}}';; esac; done`, 2, worker.ErrCancelled.Error()},
	} {
		s, starts := stayOf(t, worker.ExecConfig{KillGrace: 300 * time.Millisecond}, c.body)
		if _, err := s.Handle(t.Context(), ticketed(0)); err != nil { // it is running now
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(100*time.Millisecond, func() { cancel(worker.ErrCancelled) })
		if _, err := s.Handle(ctx, ticketed(1)); outcome(t, err) != c.want {
			t.Errorf("a program %s: %v", name, err)
		}
		if _, err := s.Handle(t.Context(), ticketed(2)); err != nil {
			t.Errorf("a program %s, then: %v", name, err)
		}
		if n := startsIn(t, starts); n != c.starts {
			t.Errorf("a program %s was started %d times", name, n)
		}
	}
}

// Close ends the programs: those that wait for input, and those that ignore its end.
func TestStayCloses(t *testing.T) {
	for _, body := range []string{answers, `trap '' TERM; read -r line; echo '{"result":{}}'; while :; do sleep 1; done`} {
		s, starts := stayOf(t, worker.ExecConfig{KillGrace: 200 * time.Millisecond}, body)
		if _, err := s.Handle(t.Context(), handoff()); err != nil {
			t.Fatal(err)
		}
		s.Close()
		pid, err := os.ReadFile(starts)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat("/proc/" + strings.TrimSpace(string(pid))); err == nil {
			t.Errorf("%s runs on", pid)
		}
		if _, err := s.Handle(t.Context(), handoff()); outcome(t, err) != worker.ErrShutdown.Error() {
			t.Errorf("after Close: %v", err)
		}
	}
}

// Standard error goes to the log while the program runs.
func TestStayLogs(t *testing.T) {
	var log lockedBuffer
	s, err := worker.NewStay(worker.ExecConfig{Command: []string{script(t, `read -r line; echo "a warning" >&2; echo '{"result":{}}'; cat >/dev/null`)}}, slog.New(slog.NewTextHandler(&log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Handle(t.Context(), handoff()); err != nil {
		t.Error(err)
	}
	s.Close()
	if !strings.Contains(log.String(), "a warning") {
		t.Errorf("log:\n%s", log.String())
	}
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}
