package cli_test

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/agenthandoff/handoff/internal/cli"
)

// shell runs command lines in a directory of its own.
type shell struct {
	dir string
	env map[string]string
}

func newShell(t *testing.T) *shell {
	dir := t.TempDir()
	return &shell{dir, map[string]string{"PWD": dir, "HOME": dir, "PATH": os.Getenv("PATH")}}
}

func (s *shell) write(t *testing.T, name, text string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(s.dir, name), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func (s *shell) getenv(name string) string { return s.env[name] }

func (s *shell) run(args ...string) (code int, out, errOut string) {
	var stdout, stderr bytes.Buffer
	code = cli.Run(context.Background(), args, strings.NewReader(""), &stdout, &stderr, s.getenv)
	return code, stdout.String(), stderr.String()
}

// TestRunAtOnce: command lines in one process share no directory and no environment.
func TestRunAtOnce(t *testing.T) {
	var all sync.WaitGroup
	for i := range 8 {
		s := newShell(t)
		file := fmt.Sprintf(`{"source":"s%d","target":{"agent":"reviewer"},"reason":"r","task":{"description":"d"}}`, i)
		if i%2 == 1 {
			file = `{"source":""}`
		}
		s.write(t, "package.json", file)
		all.Go(func() {
			for range 5 {
				code, _, errOut := s.run("validate", "-f", "package.json")
				if want := i % 2 * 9; code != want {
					t.Errorf("%d: exit code %d, not %d: %s", i, code, want, errOut)
				}
				if _, _, errOut := s.run("validate", "-f", "other.json"); errOut != "handoff: open other.json: no such file or directory\n" {
					t.Errorf("%d: a file that is not there: %s", i, errOut)
				}
			}
		})
	}
	all.Wait()
}

// TestServeAtOnce: two engines and their clients in one process, each in its directory.
func TestServeAtOnce(t *testing.T) {
	var all sync.WaitGroup
	for i := range 2 {
		s := newShell(t)
		s.write(t, "package.json", fmt.Sprintf(`{"source":"s%d","target":{"agent":"human"},"reason":"r","task":{"description":"d"}}`, i))
		all.Go(func() {
			ctx, stop := context.WithCancel(context.Background())
			env := maps.Clone(s.env) // the engine reads it while the address is put into the other
			ended := make(chan int)
			out, in := io.Pipe()
			var log bytes.Buffer
			go func() {
				code := cli.Run(ctx, []string{"dev", "--port", "0", "--data", "data", "--fsync", "interval"}, strings.NewReader(""), in, &log, func(name string) string { return env[name] })
				in.Close()
				ended <- code
			}()
			defer func() {
				stop()
				if code := <-ended; code != 0 {
					t.Errorf("dev ended with %d: %s", code, log.String())
				}
			}()
			line, err := bufio.NewReader(out).ReadString('\n')
			url, ok := strings.CutPrefix(strings.TrimSpace(line), "ready ")
			if !ok {
				t.Errorf("dev printed %q, %v", line, err)
				return
			}
			s.env["NATS_URL"] = url
			code, ticket, errOut := s.run("submit", "-f", "package.json")
			if code != 0 {
				t.Errorf("submit: %d %s", code, errOut)
			}
			_, status, _ := s.run("status", strings.TrimSpace(ticket))
			if want := fmt.Sprintf("s%d", i); !strings.Contains(status, want) {
				t.Errorf("the status of the ticket does not name %s: %s", want, status)
			}
			if _, err := os.Stat(filepath.Join(s.dir, "data")); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
}
