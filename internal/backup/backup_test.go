package backup

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/audit"
	"github.com/agenthandoff/handoff/internal/embedded"
	"github.com/agenthandoff/handoff/internal/jetstream"
	"github.com/agenthandoff/handoff/protocol"
)

// fixture is an engine and a broker on it.
type fixture struct {
	*testing.T
	ctx context.Context
	nc  *nats.Conn
	b   *broker.Broker
}

func (w *fixture) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

// newNode is a single node without streams.
func newNode(t *testing.T) *nats.Conn {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	node, err := embedded.Start(ctx, embedded.Config{Dir: t.TempDir(), Fsync: embedded.FsyncInterval, DontListen: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = node.Stop() })
	nc, err := node.Conn()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	return nc
}

func newFixture(t *testing.T, nc *nats.Conn) *fixture {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	t.Cleanup(cancel)
	w := &fixture{T: t, ctx: ctx, nc: nc}
	engine, err := jetstream.Open(t.Context(), nc, jetstream.Config{})
	w.must(err)
	t.Cleanup(func() { _ = engine.Close() })
	w.b, err = broker.New(engine, broker.Config{})
	w.must(err)
	return w
}

// newFixtureInUse is a node with streams and an agent.
func newFixtureInUse(t *testing.T) *fixture {
	t.Helper()
	nc := newNode(t)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	if err := jetstream.EnsureTopology(ctx, nc, jetstream.Topology{}); err != nil {
		t.Fatal(err)
	}
	w := newFixture(t, nc)
	w.must(w.b.PutProfile(w.ctx, protocol.Profile{ID: "clerk", Description: "files things"}))
	return w
}

func (w *fixture) submit(words string) (ticket string, err error) {
	in, err := w.b.Prepare(w.Context(), protocol.Package{Source: "lead", Target: protocol.Target{Agent: "clerk"}, Reason: "r", Task: protocol.Task{Description: words}})
	if err != nil {
		return "", err
	}
	head, err := w.b.Submit(w.ctx, in)
	return head.Ticket, err
}

// entries are the entries of the ledger by sequence.
func (w *fixture) entries() map[uint64]string {
	all := map[uint64]string{}
	w.must(w.b.Entries(w.ctx, nil, func(e broker.Entry) error {
		all[e.Seq] = fmt.Sprintf("%s %s %s", e.Ticket, e.At.Format(time.RFC3339Nano), e.Body)
		return nil
	}))
	return all
}

// large does not fit into an append.
var large = strings.Repeat("a long story ", protocol.InlineBytesMax/12)

// TestBackupWhileInUse checks that a backup of an engine in use has what was acknowledged before
// it began, and restores entries, sequences, instants, bodies and agents, on a cluster too.
func TestBackupWhileInUse(t *testing.T) {
	w := newFixtureInUse(t)
	var before []string
	for i := range 40 {
		words := fmt.Sprint("no. ", i)
		if i%10 == 0 {
			words = large
		}
		ticket, err := w.submit(words)
		w.must(err)
		before = append(before, ticket)
	}
	stop := w.submitInBackground()
	dir := filepath.Join(t.TempDir(), "copy")
	made, err := Write(w.ctx, w.nc, dir, func(string, uint64, uint64) {})
	stop()
	w.must(err)
	source, last := w.entries(), made.Streams[0].LastSeq
	if last < uint64(len(before)) || last > uint64(len(source)) {
		t.Fatalf("the backup has %d entries of %d", last, len(source))
	}
	was, err := w.b.LedgerInfo(w.ctx)
	w.must(err)

	cluster, err := embedded.StartCluster(w.ctx, 3, t.TempDir(), embedded.FsyncInterval)
	w.must(err)
	t.Cleanup(func() { _ = cluster.Stop() })
	onCluster, err := nats.Connect(cluster.URL(), jetstream.ConnectOptions("test")...)
	w.must(err)
	t.Cleanup(onCluster.Close)
	for _, to := range []struct {
		name     string
		nc       *nats.Conn
		replicas int
	}{{"a node", newNode(t), 1}, {"a cluster", onCluster, 3}} {
		t.Run(to.name, func(t *testing.T) {
			w := &fixture{T: t, ctx: w.ctx}
			_, err := Restore(w.ctx, to.nc, dir, jetstream.Topology{Replicas: to.replicas, Fsync: jetstream.FsyncInterval}, func(string, uint64, uint64) {})
			w.must(err)
			w = newFixture(t, to.nc)
			w.checkRestored(source, last, before)
			report, err := audit.VerifyLedger(w.ctx, w.b, func(uint64, uint64) {})
			w.must(err)
			if report.Found != 0 {
				t.Errorf("%+v", report.Problems)
			}
			profile, err := w.b.Profile(w.ctx, "clerk")
			w.must(err)
			if profile.Description != "files things" {
				t.Errorf("the agent is %+v", profile)
			}
			is, err := w.b.LedgerInfo(w.ctx)
			w.must(err)
			if !is.Created.After(was.Created) || !is.Began.Equal(was.Began) {
				t.Errorf("the ledger was %+v and is %+v: it must be another one, and know its age", was, is)
			}
			streams, err := jetstream.ReadTopology(w.ctx, to.nc)
			w.must(err)
			if streams.Replicas != to.replicas || streams.Fsync != jetstream.FsyncInterval {
				t.Errorf("the topology is %+v", streams)
			}
			w.checkInUse()
			if _, err := Restore(w.ctx, to.nc, dir, jetstream.Topology{}, nil); !errors.Is(err, &protocol.Error{Code: protocol.CodeConflict}) {
				t.Errorf("a second restore: %v", err)
			}
		})
	}
}

// submitInBackground submits large handoffs until stop is called.
func (w *fixture) submitInBackground() (stop func()) {
	ended := make(chan struct{})
	var writers sync.WaitGroup
	for range 4 {
		writers.Go(func() {
			for {
				select {
				case <-ended:
					return
				default:
				}
				if _, err := w.submit(large); err != nil {
					w.Error(err)
					return
				}
			}
		})
	}
	return func() { close(ended); writers.Wait() }
}

// checkRestored checks that the ledger is source up to last, and has the packages of tickets.
func (w *fixture) checkRestored(source map[uint64]string, last uint64, tickets []string) {
	w.Helper()
	got := w.entries()
	if len(got) != int(last) {
		w.Fatalf("%d entries are restored of %d", len(got), last)
	}
	for seq, entry := range got {
		if entry != source[seq] {
			w.Fatalf("entry %d is restored as another", seq)
		}
	}
	for _, ticket := range tickets {
		if _, err := w.b.Package(w.ctx, ticket); err != nil {
			w.Error(err)
		}
	}
}

// checkInUse checks that a handoff can be submitted and its offer pulled.
func (w *fixture) checkInUse() {
	w.Helper()
	_, err := w.submit("after the restore")
	w.must(err)
	offers, err := w.b.Pull(w.ctx, "clerk", 1, 10*time.Second)
	w.must(err)
	if len(offers) != 1 {
		w.Error("no offer")
	}
}

// TestPartitions checks a backup, an export and a verification of a ledger of four partitions.
func TestPartitions(t *testing.T) {
	nc := newNode(t)
	if err := jetstream.EnsureTopology(t.Context(), nc, jetstream.Topology{Partitions: 4}); err != nil {
		t.Fatal(err)
	}
	w := newFixture(t, nc)
	w.must(w.b.PutProfile(w.ctx, protocol.Profile{ID: "clerk", Description: "files things"}))
	exports := filepath.Join(t.TempDir(), "exports")
	var tickets []string
	for range 3 {
		for i := range 20 {
			ticket, err := w.submit(fmt.Sprint("no. ", i))
			w.must(err)
			tickets = append(tickets, ticket)
		}
		done, err := audit.ExportDir(w.ctx, w.b, exports, nil)
		w.must(err)
		if done.File == "" {
			t.Fatal("nothing was exported")
		}
	}
	if done, err := audit.ExportDir(w.ctx, w.b, exports, nil); err != nil || done.File != "" {
		t.Errorf("exported %+v again (%v)", done, err)
	}
	ledger, err := w.b.LedgerInfo(w.ctx)
	w.must(err)
	for p, part := range ledger.Partitions() {
		if part.Messages == 0 {
			t.Errorf("partition %d has no entry", p)
		}
	}
	verified := func(w *fixture) {
		t.Helper()
		report, err := audit.VerifyAgainst(w.ctx, exports, w.b, nil)
		w.must(err)
		if report.Found != 0 || report.Compared != len(w.entries()) {
			t.Errorf("%d entries were compared of %d: %+v", report.Compared, len(w.entries()), report.Problems)
		}
		report, err = audit.VerifyLedger(w.ctx, w.b, nil)
		w.must(err)
		if report.Found != 0 || int(report.Entries) != len(w.entries()) || report.Handoffs != len(tickets) {
			t.Errorf("%+v", report)
		}
	}
	verified(w)
	dir := filepath.Join(t.TempDir(), "copy")
	_, err = Write(w.ctx, nc, dir, func(string, uint64, uint64) {})
	w.must(err)
	source := w.entries()
	to := newNode(t)
	_, err = Restore(w.ctx, to, dir, jetstream.Topology{}, func(string, uint64, uint64) {})
	w.must(err)
	w = newFixture(t, to)
	w.checkRestored(source, uint64(len(source)), tickets)
	verified(w)
	w.checkInUse()
	if again, err := w.b.LedgerInfo(w.ctx); err != nil || len(again.Others) != 3 {
		t.Errorf("%d partitions were restored (%v)", len(again.Others)+1, err)
	}
	w.must(os.RemoveAll(filepath.Join(dir, "HANDOFF_LEDGER_2")))
	if _, err := check(dir); err == nil {
		t.Error("a backup without a partition is whole")
	}
}

// TestIncompleteBackup checks that an invalid backup changes nothing.
func TestIncompleteBackup(t *testing.T) {
	w := newFixtureInUse(t)
	_, err := w.submit("this")
	w.must(err)
	to := newNode(t)
	for _, c := range []struct {
		name   string
		damage func(dir string) error
		code   protocol.Code
	}{
		{"no manifest", func(dir string) error { return os.Remove(filepath.Join(dir, manifestFile)) }, protocol.CodeInvalid},
		{"no JSON", func(dir string) error { return os.WriteFile(filepath.Join(dir, manifestFile), []byte("{"), 0o600) }, protocol.CodeMalformed},
		{"a newer format", func(dir string) error {
			return os.WriteFile(filepath.Join(dir, manifestFile), []byte(`{"format":2}`), 0o600)
		}, protocol.CodeVersion},
		{"no streams", func(dir string) error {
			return os.WriteFile(filepath.Join(dir, manifestFile), []byte(`{"format":1}`), 0o600)
		}, protocol.CodeMalformed},
		{"a file elsewhere", func(dir string) error {
			path := filepath.Join(dir, manifestFile)
			raw, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			return os.WriteFile(path, []byte(strings.Replace(string(raw), `"stream.arc.s2"`, `"../stream.arc.s2"`, 1)), 0o600)
		}, protocol.CodeMalformed},
		{"a file cut short", func(dir string) error {
			return os.Truncate(filepath.Join(dir, jetstream.LedgerStream, "stream.arc.s2"), 10)
		}, protocol.CodeInvalid},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "copy")
			if _, err := Write(w.ctx, w.nc, dir, func(string, uint64, uint64) {}); err != nil {
				t.Fatal(err)
			}
			if err := c.damage(dir); err != nil {
				t.Fatal(err)
			}
			if _, err := Restore(w.ctx, to, dir, jetstream.Topology{}, func(string, uint64, uint64) {}); !errors.Is(err, &protocol.Error{Code: c.code}) {
				t.Errorf("restored with %v, want a refusal with %s", err, c.code)
			}
			if _, err := jetstream.Open(t.Context(), to, jetstream.Config{}); !errors.Is(err, broker.ErrNoTopology) {
				t.Errorf("the engine has streams now: %v", err)
			}
		})
	}
}

// TestCancelledBackup checks that a cancelled backup has no manifest.
func TestCancelledBackup(t *testing.T) {
	w := newFixtureInUse(t)
	for range 50 {
		_, err := w.submit(large)
		w.must(err)
	}
	ctx, cancel := context.WithCancel(w.ctx)
	dir := filepath.Join(t.TempDir(), "copy")
	_, err := Write(ctx, w.nc, dir, func(string, uint64, uint64) { cancel() })
	if !errors.Is(err, context.Canceled) {
		t.Fatalf("cancelled: %v", err)
	}
	if _, err := check(dir); !errors.Is(err, &protocol.Error{Code: protocol.CodeInvalid}) {
		t.Errorf("checked: %v", err)
	}
}
