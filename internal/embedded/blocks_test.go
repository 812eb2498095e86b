package embedded

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/agenthandoff/handoff/broker"
	handoffjs "github.com/agenthandoff/handoff/internal/jetstream"
)

const (
	blockEntries = 400 // in some four blocks
	entryBytes   = 40 << 10
)

// writeLedger makes a ledger in small blocks on a node, and stops it.
func writeLedger(t *testing.T, dir string, change func(*jetstream.StreamConfig), then func(jetstream.JetStream)) {
	t.Helper()
	node, err := Start(t.Context(), Config{Dir: dir, DontListen: true, Fsync: FsyncInterval})
	if err != nil {
		t.Fatal(err)
	}
	nc, err := node.Conn()
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	cfg := jetstream.StreamConfig{Name: handoffjs.LedgerStream, Subjects: []string{handoffjs.LedgerSubjectPrefix + ">"}, MaxMsgsPerSubject: 1 << 40,
		Metadata: map[string]string{"handoff_accepted_loss": `[{"from":7,"to":9}]`}}
	if change != nil {
		change(&cfg)
	}
	if _, err := js.CreateOrUpdateStream(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	then(js)
	if err := node.Stop(); err != nil {
		t.Fatal(err)
	}
}

func appendEntries(t *testing.T, n int) func(jetstream.JetStream) {
	return func(js jetstream.JetStream) {
		for i := range n {
			subject := handoffjs.LedgerSubjectPrefix + uuid.NewSHA1(uuid.Nil, fmt.Append(nil, i)).String()
			if _, err := js.Publish(t.Context(), subject, []byte(strings.Repeat("x", entryBytes))); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// TestBlocksOfTheServer reads what the server has written. It fails where the format of the server
// changes.
func TestBlocksOfTheServer(t *testing.T) {
	dir := t.TempDir()
	writeLedger(t, dir, nil, appendEntries(t, blockEntries))
	f, err := ReadLedgerFiles(dir, 0, nil, func(created time.Time) []uint64 {
		if created.IsZero() {
			t.Error("asked for the entries of no ledger")
		}
		return []uint64{blockEntries}
	})
	if err != nil {
		t.Fatal(err)
	}
	if f.Broken != "" || f.First != 1 || f.Last != blockEntries || len(f.Missing) > 0 || len(f.Blocks) < 3 || f.Created.IsZero() ||
		f.Sums[blockEntries] != f.LastSum || f.LastSum == "" || len(f.Accepted) != 1 || f.LastAt.Before(f.FirstAt) || f.FirstAt.IsZero() {
		t.Fatalf("%+v", f)
	}
	again, err := ReadLedgerFiles(dir, 0, f.Blocks, nil)
	if err != nil {
		t.Fatal(err)
	}
	if last := f.Blocks[len(f.Blocks)-1]; again.Read != last.Bytes || again.Last != f.Last || len(again.Missing) > 0 {
		t.Errorf("read %d bytes of unchanged blocks, the last has %d: %+v", again.Read, last.Bytes, again)
	}

	path := func(n uint32) string {
		return filepath.Join(streamDir(dir, handoffjs.LedgerStream), "msgs", fmt.Sprintf("%d.blk", n))
	}
	one, two, end := f.Blocks[0], f.Blocks[1], f.Blocks[len(f.Blocks)-1]
	for _, c := range []struct {
		name   string
		damage func(*testing.T)
		want   []broker.Range
		last   uint64
	}{
		{"a flipped byte in a body", func(t *testing.T) { flip(t, path(one.Number), one.Bytes/2) }, nil, blockEntries},
		{"a flipped length", func(t *testing.T) { flip(t, path(two.Number), 1) }, []broker.Range{{From: two.First, To: two.First}}, blockEntries},
		{"a flipped sequence", func(t *testing.T) { flip(t, path(two.Number), 5) }, []broker.Range{{From: two.First, To: two.First}}, blockEntries},
		{"a removed block", func(t *testing.T) { remove(t, path(two.Number)) }, []broker.Range{{From: two.First, To: two.Last}}, blockEntries},
		{"a cut block", func(t *testing.T) { truncate(t, path(two.Number), 0) }, []broker.Range{{From: two.First, To: two.Last}}, blockEntries},
		{"a cut end", func(t *testing.T) { truncate(t, path(end.Number), 0) }, nil, end.First - 1},
		{"an end cut within an entry", func(t *testing.T) { truncate(t, path(end.Number), end.Bytes-3) }, nil, blockEntries - 1},
		{"swapped blocks", func(t *testing.T) {
			swap(t, path(one.Number), path(two.Number))
		}, nil, blockEntries},
	} {
		t.Run(c.name, func(t *testing.T) {
			keep := map[string][]byte{}
			for _, b := range f.Blocks {
				body, err := os.ReadFile(path(b.Number))
				if err != nil {
					t.Fatal(err)
				}
				keep[path(b.Number)] = body
			}
			defer func() {
				for path, body := range keep {
					if err := os.WriteFile(path, body, 0o600); err != nil {
						t.Error(err)
					}
				}
			}()
			c.damage(t)
			got, err := ReadLedgerFiles(dir, 0, f.Blocks, nil)
			if err != nil {
				t.Fatal(err)
			}
			if got.Last != c.last {
				t.Errorf("it ends at %d, want %d", got.Last, c.last)
			}
			switch {
			case c.want != nil:
				if fmt.Sprint(got.Missing) != fmt.Sprint(c.want) {
					t.Errorf("missing %v, want %v", got.Missing, c.want)
				}
			case c.last == blockEntries && len(got.Missing) == 0 && got.First == 1:
				t.Error("nothing is missing")
			}
		})
	}
}

// TestBlocksDropTheirFront: a ledger that drops entries for their age, all of them at last, misses
// none between its first and its last.
func TestBlocksDropTheirFront(t *testing.T) {
	dir := t.TempDir()
	writeLedger(t, dir, func(c *jetstream.StreamConfig) { c.MaxAge = 100 * time.Millisecond }, func(js jetstream.JetStream) {
		appendEntries(t, 150)(js)
		s, err := js.Stream(t.Context(), handoffjs.LedgerStream)
		if err != nil {
			t.Fatal(err)
		}
		for {
			info, err := s.Info(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if info.State.Msgs == 0 {
				break
			}
		}
	})
	f, err := ReadLedgerFiles(dir, 0, nil, nil)
	if err != nil || f.Last != 150 || len(f.Missing) > 0 {
		t.Fatalf("%+v, %v", f, err)
	}
}

func TestNoLedger(t *testing.T) {
	f, err := ReadLedgerFiles(t.TempDir(), 0, nil, nil)
	if err != nil || f.Broken != "" || !f.Created.IsZero() || f.Last != 0 {
		t.Fatalf("%+v, %v", f, err)
	}
	dir := t.TempDir()
	writeLedger(t, dir, nil, appendEntries(t, 3))
	truncate(t, filepath.Join(streamDir(dir, handoffjs.LedgerStream), "meta.inf"), 5)
	f, err = ReadLedgerFiles(dir, 0, nil, nil)
	if err != nil || f.Broken == "" || !f.Created.IsZero() || f.Last != 3 {
		t.Fatalf("%+v, %v", f, err)
	}
}

func flip(t *testing.T, path string, at int64) {
	t.Helper()
	body, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	body[at] ^= 0x55
	if err := os.WriteFile(path, body, 0o600); err != nil {
		t.Fatal(err)
	}
}

func remove(t *testing.T, path string) {
	t.Helper()
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
}

func truncate(t *testing.T, path string, to int64) {
	t.Helper()
	if err := os.Truncate(path, to); err != nil {
		t.Fatal(err)
	}
}

func swap(t *testing.T, a, b string) {
	t.Helper()
	for _, move := range [][2]string{{a, a + ".x"}, {b, a}, {a + ".x", b}} {
		if err := os.Rename(move[0], move[1]); err != nil {
			t.Fatal(err)
		}
	}
}
