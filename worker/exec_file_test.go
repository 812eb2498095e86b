//go:build unix

package worker_test

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/agenthandoff/handoff/worker"
)

// inPlaceOf are shell commands that put something else than a regular file in the
// place of a file.
var inPlaceOf = map[string]struct{ command, is string }{
	"named pipe":     {`mkfifo "$FILE"`, "a named pipe"},
	"directory":      {`mkdir "$FILE"`, "a directory"},
	"link":           {`echo 'rejected: it was read' >"$FILE.to"; ln -s "$FILE.to" "$FILE"`, "a symbolic link"},
	"endless link":   {`ln -s /dev/zero "$FILE"`, "a symbolic link"},
	"hanging link":   {`mkfifo "$FILE.to"; ln -s "$FILE.to" "$FILE"`, "a symbolic link"},
	"link to itself": {`ln -s "$FILE" "$FILE"`, "a symbolic link"},
}

// An acknowledgement file that is no regular file is malformed, and is not waited for.
func TestAcknowledgementFileIsRegular(t *testing.T) {
	t.Parallel()
	for name, c := range inPlaceOf {
		result, err := execOf(t, worker.ExecConfig{Command: []string{script(t, `FILE=$HANDOFF_ACK_FILE; `+c.command)}}).Handle(t.Context(), handoff())
		if err != nil || !strings.Contains(result.Malformed, "is "+c.is+"; only a regular file is read") {
			t.Errorf("%s: %q, %v", name, result.Malformed, err)
		}
	}
}

// A progress file that is no regular file is logged once, reports nothing, and does
// not keep the program's result.
func TestProgressFileIsRegular(t *testing.T) {
	t.Parallel()
	for name, c := range inPlaceOf {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			seen := filepath.Join(t.TempDir(), "seen")
			log := &watchedLog{word: "progress file not read", found: func() { _ = os.WriteFile(seen, nil, 0o600) }}
			h := handoff()
			h.Log = slog.New(slog.NewTextHandler(log, nil))
			body := `FILE=$HANDOFF_PROGRESS_FILE; ` + c.command + `; until [ -e ` + seen + ` ]; do sleep 0.1; done; echo done`
			result, err := execOf(t, worker.ExecConfig{Command: []string{script(t, body)}}).Handle(t.Context(), h)
			if err != nil || string(result.Body) != `"done\n"` && string(result.Body) != `"done"` {
				t.Errorf("%s, %v", result.Body, err)
			}
			if text := log.String(); strings.Count(text, "progress file not read") != 1 || !strings.Contains(text, "is "+c.is) {
				t.Errorf("the log says\n%s", text)
			}
		})
	}
}

// A program that has become a named pipe cannot be run, and is not waited for.
func TestCommandIsAPipe(t *testing.T) {
	body := script(t, "exit 0")
	e := execOf(t, worker.ExecConfig{Command: []string{body}})
	if err := os.Remove(body); err != nil {
		t.Fatal(err)
	}
	if _, err := execOf(t, worker.ExecConfig{Command: []string{script(t, "mkfifo -m 755 "+body)}}).Handle(t.Context(), handoff()); err != nil {
		t.Fatal(err)
	}
	if err := worker.CheckCommand("", []string{body}); err != nil {
		t.Error(err)
	}
	if _, err := e.Handle(t.Context(), handoff()); !worker.IsStop(err) {
		t.Errorf("%v, want that the worker stops", err)
	}
}

// watchedLog calls found at the first line that has the word.
type watchedLog struct {
	mu    sync.Mutex
	buf   bytes.Buffer
	word  string
	found func()
}

func (l *watchedLog) Write(line []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.found != nil && bytes.Contains(line, []byte(l.word)) {
		l.found()
		l.found = nil
	}
	return l.buf.Write(line)
}

func (l *watchedLog) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}
