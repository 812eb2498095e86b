//go:build proof

// Package damage harms the files of a real ledger, and proves that handoff dev notices before it
// offers anything, and that with --accept-damage no finished work is done again.
package damage

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/agenthandoff/handoff"
	"github.com/agenthandoff/handoff/internal/testworld"
)

const (
	closedHandoffs = 120
	openHandoffs   = 20
	taskBytes      = 50 << 10 // so that the ledger has two blocks
	exitDamaged    = 11
	askedMax       = 8 // tickets whose status and result are asked for
	patience       = 3 * time.Minute
)

// store is a directory of dev with closed and open handoffs, and what its witness has seen.
type store struct {
	t            *testing.T
	program      string
	dir, state   string
	old          string // a copy of dir from before the last closed ones
	closed       map[string]bool
	urlOfEngine  string
	workerScript string // for sh
}

func (s *store) environ() []string {
	return append(os.Environ(), "XDG_STATE_HOME="+s.state, "XDG_DATA_HOME="+s.state, "NATS_CONTEXT=", "HANDOFF_AGENT=", "NATS_URL="+s.urlOfEngine)
}

// run runs a command to its end, and returns what it printed and its exit code.
func (s *store) run(args ...string) (string, int) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, s.program, args...)
	cmd.Env = s.environ()
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		s.t.Fatalf("%v: %v", args, err)
	}
	return string(out), cmd.ProcessState.ExitCode()
}

// dev starts dev in a directory. ok is false if it ended before it was ready; stop ends it cleanly.
func (s *store) dev(dir string, args ...string) (out string, code int, stop func()) {
	s.t.Helper()
	cmd := exec.CommandContext(s.t.Context(), s.program, append([]string{"dev", "--port", "0", "--data", dir}, args...)...)
	cmd.Env = s.environ()
	log := &bytes.Buffer{}
	cmd.Stderr = log
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		s.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	line := make([]byte, 256)
	late := time.AfterFunc(patience, func() { _ = cmd.Process.Kill() })
	n, _ := stdout.Read(line)
	late.Stop()
	if url, ready := strings.CutPrefix(strings.TrimSpace(string(line[:n])), "ready "); ready {
		s.urlOfEngine, _, _ = strings.Cut(url, "\n")
		return "", 0, func() {
			_ = cmd.Process.Signal(syscall.SIGTERM)
			if err := cmd.Wait(); err != nil {
				s.t.Errorf("dev ended with %v:\n%s", err, log)
			}
		}
	}
	_ = cmd.Wait()
	return log.String(), cmd.ProcessState.ExitCode(), func() {}
}

func (s *store) submit(from, to int) {
	s.t.Helper()
	client, err := handoff.Connect(s.t.Context(), s.urlOfEngine, "")
	if err != nil {
		s.t.Fatal(err)
	}
	defer client.Close()
	for i := from; i < to; i++ {
		_, err := client.Submit(s.t.Context(), handoff.Package{
			Key: fmt.Sprint("k", i), Target: handoff.Target{Agent: "coder"}, Reason: "r",
			Task: handoff.Task{Description: fmt.Sprintf("Task %d %s", i, strings.Repeat("x", taskBytes))},
		})
		if err != nil {
			s.t.Fatalf("submit %d: %v", i, err)
		}
	}
}

// finish has all open handoffs done.
func (s *store) finish(want int) {
	s.t.Helper()
	cmd := exec.CommandContext(s.t.Context(), s.program, "work", "--agent", "coder", "--concurrency", "8", "--", "sh", "-c", cmp.Or(s.workerScript, "cat >/dev/null; echo done"))
	cmd.Env = s.environ()
	if err := cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	for began := time.Now(); ; {
		if out, _ := s.run("list", "--open", "--count"); strings.TrimSpace(out) == "0" {
			break
		}
		if time.Since(began) > patience {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
			s.t.Fatal("the handoffs do not end")
		}
		time.Sleep(200 * time.Millisecond)
	}
	_ = cmd.Process.Signal(syscall.SIGTERM)
	_ = cmd.Wait()
	for ticket := range s.tickets() {
		s.closed[ticket] = true
	}
	if len(s.closed) != want {
		s.t.Fatalf("%d closed, want %d", len(s.closed), want)
	}
}

// tickets lists handoffs.
func (s *store) tickets(filter ...string) map[string]bool {
	s.t.Helper()
	out, code := s.run(append([]string{"list", "--limit", "1000", "-o", "jsonl"}, filter...)...)
	if code != 0 {
		s.t.Fatalf("list: %d\n%s", code, out)
	}
	all := map[string]bool{}
	for _, line := range strings.Split(out, "\n") {
		var row struct {
			Ticket string `json:"ticket"`
		}
		if json.Unmarshal([]byte(line), &row) == nil && row.Ticket != "" {
			all[row.Ticket] = true
		}
	}
	return all
}

// newStore makes a store of a ledger of so many partitions.
func newStore(t *testing.T, partitions int) *store {
	base := t.TempDir()
	s := &store{t: t, program: testworld.Handoff(t), dir: filepath.Join(base, "data"), old: filepath.Join(base, "old"), state: filepath.Join(base, "state"), closed: map[string]bool{}}
	start := func() (stop func()) {
		out, code, stop := s.dev(s.dir, "--partitions", fmt.Sprint(partitions))
		if out != "" {
			t.Fatalf("dev: %d\n%s", code, out)
		}
		return stop
	}
	stop := start()
	if out, code := s.run("agents", "put", "coder"); code != 0 {
		t.Fatalf("agents put: %d\n%s", code, out)
	}
	s.submit(0, closedHandoffs/2)
	s.finish(closedHandoffs / 2)
	s.submit(closedHandoffs/2, closedHandoffs) // open in the old copy
	stop()
	copyDir(t, s.dir, s.old)
	stop = start()
	s.finish(closedHandoffs)
	s.submit(closedHandoffs, closedHandoffs+openHandoffs)
	stop()
	return s
}

func copyDir(t *testing.T, from, to string) {
	t.Helper()
	if err := os.CopyFS(to, os.DirFS(from)); err != nil {
		t.Fatal(err)
	}
}

// damaged is a copy of a store that is to be harmed.
type damaged struct {
	t       *testing.T
	s       *store
	dir     string
	streams string // the directory of the streams
	ledger  string // the stream of the partition that is harmed
}

func (d *damaged) stream(name string, parts ...string) string {
	return filepath.Join(append([]string{d.streams, name}, parts...)...)
}

// block returns the n-th block of the ledger. Where the first sequence is not 1, the first block is not 1
// either.
func (d *damaged) block(n int) string {
	first := 1
	for {
		path := d.stream(d.ledger, "msgs", fmt.Sprintf("%d.blk", first+n-1))
		if _, err := os.Stat(path); err == nil || first > n || d.ledger == "HANDOFF_LEDGER" {
			return path
		}
		first++
	}
}

func (d *damaged) must(err error) {
	d.t.Helper()
	if err != nil {
		d.t.Fatal(err)
	}
}

// change rewrites a file.
func (d *damaged) change(path string, edit func([]byte) []byte) {
	d.t.Helper()
	body, err := os.ReadFile(path)
	d.must(err)
	d.must(os.WriteFile(path, edit(body), 0o600))
}

// flip flips bytes at a place in a file, counted from its end if it is negative.
func (d *damaged) flip(path string, at, n int) {
	d.change(path, func(b []byte) []byte {
		if at < 0 {
			at += len(b)
		}
		for i := range n {
			b[at+i] ^= 0x5a
		}
		return b
	})
}

func (d *damaged) cut(path string, to func(int) int) {
	d.change(path, func(b []byte) []byte { return b[:to(len(b))] })
}

func (d *damaged) withoutEngineIndex() {
	d.must(os.Remove(d.stream(d.ledger, "msgs", "index.db")))
}

func (d *damaged) withoutIndex() {
	for _, name := range []string{"index.db", "index.db-wal", "index.db-shm"} {
		if err := os.Remove(filepath.Join(d.dir, name)); err != nil && !errors.Is(err, os.ErrNotExist) {
			d.t.Fatal(err)
		}
	}
}

// kinds are the kinds of damage.
var kinds = []struct {
	name    string
	harm    func(*damaged)
	healthy bool // nothing is lost: dev has to start
	// blind is damage after which no index remembers what had closed.
	blind bool
}{
	{"none", func(*damaged) {}, true, false},
	{"flipped bytes in a package", func(d *damaged) { d.flip(d.block(1), 100_000, 28) }, false, false},
	{"the same without the engine's index", func(d *damaged) { d.flip(d.block(1), 100_000, 28); d.withoutEngineIndex() }, false, false},
	{"flipped bytes in the head of a record", func(d *damaged) { d.flip(d.block(1), 2, 8) }, false, false},
	{"flipped bytes in a header", func(d *damaged) { d.flip(d.block(1), 130, 2) }, false, false},
	{"a flipped byte in the last entry", func(d *damaged) { d.flip(d.block(2), -500, 1) }, false, false},
	{"a flipped checksum", func(d *damaged) { d.flip(d.block(2), -3, 1) }, false, false},
	{"a block cut in its middle", func(d *damaged) { d.cut(d.block(1), func(n int) int { return n / 2 }) }, false, false},
	{"the last block cut in its middle", func(d *damaged) { d.cut(d.block(2), func(n int) int { return n / 2 }) }, false, false},
	{"the same without the engine's index, twice", func(d *damaged) {
		d.cut(d.block(2), func(n int) int { return n / 2 })
		d.withoutEngineIndex()
	}, false, false},
	{"a block cut to nothing", func(d *damaged) { d.cut(d.block(1), func(int) int { return 0 }) }, false, false},
	{"a block of zeros", func(d *damaged) { d.change(d.block(1), func(b []byte) []byte { return make([]byte, len(b)) }) }, false, false},
	{"the first block removed", func(d *damaged) { d.must(os.Remove(d.block(1))) }, false, false},
	{"the last block removed", func(d *damaged) { d.must(os.Remove(d.block(2))) }, false, false},
	{"swapped blocks", func(d *damaged) {
		d.must(os.Rename(d.block(1), d.block(3)))
		d.must(os.Rename(d.block(2), d.block(1)))
		d.must(os.Rename(d.block(3), d.block(2)))
	}, false, false},
	{"all messages of the ledger removed", func(d *damaged) { d.must(os.RemoveAll(d.stream(d.ledger, "msgs"))) }, false, false},
	{"the directory of the ledger removed", func(d *damaged) { d.must(os.RemoveAll(d.stream(d.ledger))) }, false, false},
	{"all streams removed", func(d *damaged) { d.must(os.RemoveAll(filepath.Join(d.dir, "jetstream"))) }, false, false},
	{"the settings cut", func(d *damaged) { d.cut(d.stream(d.ledger, "meta.inf"), func(int) int { return 5 }) }, false, false},
	{"the settings removed", func(d *damaged) { d.must(os.Remove(d.stream(d.ledger, "meta.inf"))) }, false, false},
	{"the checksum of the settings flipped", func(d *damaged) { d.flip(d.stream(d.ledger, "meta.sum"), 3, 1) }, false, false},
	{"a ledger older than its index", func(d *damaged) {
		d.must(os.RemoveAll(filepath.Join(d.dir, "jetstream")))
		copyDir(d.t, filepath.Join(d.s.old, "jetstream"), filepath.Join(d.dir, "jetstream"))
	}, false, false},
	{"an older copy of everything", func(d *damaged) {
		d.must(os.RemoveAll(d.dir))
		copyDir(d.t, d.s.old, d.dir)
	}, false, true},
	{"the last block cut, without an index", func(d *damaged) {
		d.cut(d.block(2), func(n int) int { return n / 2 })
		d.withoutIndex()
	}, false, true},
	{"the engine's index removed", func(d *damaged) { d.withoutEngineIndex() }, true, false},
	{"the engine's index flipped", func(d *damaged) { d.flip(d.stream(d.ledger, "msgs", "index.db"), 100, 4) }, true, false},
	{"the index removed", func(d *damaged) { d.withoutIndex() }, true, false},
	{"the state of a consumer cut", func(d *damaged) {
		d.cut(d.stream("HANDOFF_TIMERS", "obs", "supervisor", "o.dat"), func(int) int { return 5 })
	}, true, false},
	{"the settings of a consumer cut", func(d *damaged) {
		d.cut(d.stream("HANDOFF_TIMERS", "obs", "supervisor", "meta.inf"), func(int) int { return 5 })
	}, true, false},
}

func TestDamage(t *testing.T) {
	var all []string
	for _, kind := range kinds {
		all = append(all, kind.name)
	}
	harmEach(t, newStore(t, 1), "HANDOFF_LEDGER", all)
}

// TestDamagedPartition harms one partition of two. It has one block.
func TestDamagedPartition(t *testing.T) {
	harmEach(t, newStore(t, 2), "HANDOFF_LEDGER_1", []string{"none", "flipped bytes in a package", "flipped bytes in the head of a record",
		"a block cut in its middle", "a block cut to nothing", "a block of zeros", "the first block removed", "all messages of the ledger removed",
		"the directory of the ledger removed", "the settings cut", "the settings removed", "a ledger older than its index", "the engine's index removed", "the index removed"})
}

// harmEach harms a copy of a store in each way.
func harmEach(t *testing.T, s *store, ledger string, names []string) {
	for _, kind := range kinds {
		if !slices.Contains(names, kind.name) {
			continue
		}
		t.Run(kind.name, func(t *testing.T) {
			d := &damaged{t: t, s: s, ledger: ledger, dir: filepath.Join(t.TempDir(), "data")}
			d.streams = filepath.Join(d.dir, "jetstream", "jetstream", "$G", "streams")
			here := *s
			here.t, here.state = t, filepath.Join(t.TempDir(), "state")
			copyDir(t, s.state, here.state)
			copyDir(t, s.dir, d.dir)
			kind.harm(d)
			before := sizes(t, d.dir)
			out, code, stop := here.dev(d.dir)
			if kind.healthy {
				if code != 0 || out != "" {
					t.Fatalf("refused with %d:\n%s", code, out)
				}
				here.report(kind.name, "starts", 0)
				stop()
				return
			}
			if code != exitDamaged || !strings.Contains(out, "Nothing is offered") || !strings.Contains(out, "--accept-damage") || !strings.Contains(out, "handoff restore") {
				stop()
				t.Fatalf("dev: %d\n%s", code, out)
			}
			if after := sizes(t, d.dir); before != after {
				t.Errorf("the refusal has changed files:\n%s\n%s", before, after)
			}
			_, damage, _ := strings.Cut(out[:strings.Index(out, "\nNothing is offered")], " is damaged:\n")
			damage = strings.Join(strings.Fields(damage), " ")
			if out, code, stop = here.dev(d.dir, "--accept-damage"); code != 0 || out != "" {
				t.Fatalf("dev --accept-damage: %d\n%s", code, out)
			}
			again := 0
			for ticket := range here.tickets("--open") {
				if s.closed[ticket] {
					again++
				}
			}
			if again > 0 && !kind.blind {
				t.Errorf("%d closed handoffs are open again", again)
			}
			here.report(kind.name, damage, again)
			stop()
			out, code, stop = here.dev(d.dir)
			if code != 0 {
				t.Errorf("accepted damage is refused again: %d\n%s", code, out)
			}
			stop()
		})
	}
}

// sizes lists the files of a directory with their sizes. Locks, and what a database makes to be
// read, are not of it.
func sizes(t *testing.T, dir string) string {
	t.Helper()
	var all strings.Builder
	err := filepath.WalkDir(filepath.Join(dir, "jetstream"), func(path string, e os.DirEntry, err error) error {
		if errors.Is(err, os.ErrNotExist) {
			return nil
		}
		if err != nil || e.IsDir() {
			return err
		}
		info, err := e.Info()
		if err == nil {
			fmt.Fprintln(&all, path, info.Size(), info.ModTime().UnixNano())
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all.String()
}

// report writes a row of the table of what each command says, where $HANDOFF_DAMAGE_TABLE names a
// file, and checks that the commands do not contradict each other.
func (s *store) report(kind, dev string, again int) {
	s.t.Helper()
	ledger, bad := s.doctor()
	for began := time.Now(); len(bad) > 0 && time.Since(began) < patience/3; ledger, bad = s.doctor() {
		time.Sleep(time.Second) // a supervisor listens again some seconds after its leader has changed
	}
	if len(bad) > 0 {
		s.t.Errorf("doctor: %s", strings.Join(bad, "; "))
	}
	all, open := s.tickets(), s.tickets("--open")
	unknown, asked := 0, 0
	for ticket := range all { // doctor compares all by their number: a few are enough
		if asked++; asked > askedMax {
			break
		}
		if _, code := s.run("status", ticket); code != 0 && code != 4 && code != 5 {
			unknown++
		}
		if open[ticket] {
			continue
		}
		if out, _ := s.run("result", ticket); strings.TrimSpace(out) == "" {
			s.t.Errorf("the result of %s is empty", ticket)
		}
	}
	if unknown > 0 {
		s.t.Errorf("list has %d handoffs that status does not know", unknown)
	}
	audit, code := s.run("audit", "verify")
	lines := strings.Split(strings.TrimSpace(audit), "\n")
	path := os.Getenv("HANDOFF_DAMAGE_TABLE")
	if path == "" {
		return
	}
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		s.t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	fmt.Fprintf(f, "| %s | %s | %s | %d, %d open (%d again) | %d: %s |\n", kind, dev, ledger, len(all), len(open), again, code, lines[len(lines)-1])
}

// doctor returns the finding about the ledger, and those that are not good.
func (s *store) doctor() (ledger string, bad []string) {
	s.t.Helper()
	out, _ := s.run("doctor", "-o", "jsonl")
	for line := range strings.Lines(out) {
		var f struct{ Check, Status, Message string }
		if json.Unmarshal([]byte(line), &f) != nil || f.Check == "" {
			continue
		}
		if f.Check == "ledger" {
			ledger = f.Status + ": " + f.Message
		}
		if f.Status != "ok" && f.Check != "workers" && f.Check != "fsync" {
			bad = append(bad, f.Check+" "+f.Message)
		}
	}
	return ledger, bad
}
