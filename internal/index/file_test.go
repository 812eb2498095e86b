package index

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/brokertest"
	"github.com/agenthandoff/handoff/internal/index/ask"
	"github.com/agenthandoff/handoff/internal/testworld"
	"github.com/agenthandoff/handoff/protocol"
)

// total asks for the count of everything, and fails if the answer is not whole.
func total(t testing.TB, ix *Index) int64 {
	t.Helper()
	a, err := ix.Count(t.Context(), ask.CountQuery{Question: ask.Question{WaitMS: 30_000}})
	if err != nil {
		t.Fatal(err)
	}
	if !a.Complete {
		t.Fatalf("incomplete after half a minute: %+v", a.Position)
	}
	return a.Count
}

func rebuilds(t testing.TB, ix *Index) int64 {
	t.Helper()
	a, err := ix.Position(t.Context(), ask.PositionQuery{})
	if err != nil {
		t.Fatal(err)
	}
	return a.Rebuilds
}

// TestOwnWrites: what was appended before the question is in the answer, on the
// real engine, and an index that is opened again goes on where it was.
func TestOwnWrites(t *testing.T) {
	_, engine := testworld.Engine(t)
	w := newWorld(t, engine, 1)
	path := filepath.Join(t.TempDir(), "index.db")
	ix, stop := keep(t, path, engine)
	for range 3 {
		for range 30 {
			k := w.submit()
			w.step(k)
			a, err := ix.List(t.Context(), ask.ListQuery{Filter: ask.Filter{Ticket: []string{k.Ticket}}})
			if err != nil || !a.Complete || len(a.Handoffs) != 1 || a.Handoffs[0].Seq != k.seq {
				t.Fatalf("%+v, %v, want one at %d", a, err, k.seq)
			}
			w.compareRow(a.Handoffs[0])
		}
		w.compare(ix, ask.Filter{})
		if n := rebuilds(t, ix); n != 0 {
			t.Errorf("made again %d times", n)
		}
		stop()
		w.live(20, 50) // while the index is closed
		read := &counted{Engine: engine}
		ix, stop = keep(t, path, read)
		if n := total(t, ix); n != int64(len(w.heads)) {
			t.Errorf("%d handoffs, want %d", n, len(w.heads))
		}
		if read.first < 30 {
			t.Errorf("it read the ledger again from %d on", read.first)
		}
	}
}

// counted notes from where on the ledger is read.
type counted struct {
	broker.Engine
	first uint64
}

func (c *counted) Tail(ctx context.Context, from broker.Cursor, fn func(broker.Entry) error) error {
	c.first = from.Next(0)
	return c.Engine.Tail(ctx, from, fn)
}

// TestDamageUnderWay: files that are deleted, cut or overwritten while handoffs
// come and questions are asked. Every complete answer is right.
func TestDamageUnderWay(t *testing.T) {
	harm := []struct {
		name string
		do   func(path string) error
	}{
		{"deleted", os.Remove},
		{"cut to nothing", func(path string) error { return os.Truncate(path, 0) }},
		{"cut in half", func(path string) error {
			info, err := os.Stat(path)
			if err != nil {
				return err
			}
			return os.Truncate(path, info.Size()/2)
		}},
		{"its log deleted", func(path string) error { return os.Remove(path + "-wal") }},
		{"its log cut", func(path string) error { return os.Truncate(path+"-wal", 0) }},
		{"its shared memory deleted", func(path string) error { return os.Remove(path + "-shm") }},
		{"replaced by another file", func(path string) error {
			if err := os.Rename(path, path+".old"); err != nil {
				return err
			}
			return os.WriteFile(path, []byte("nothing of the kind"), 0o600)
		}},
		{"all deleted", removeFiles},
	}
	for _, h := range harm {
		t.Run(h.name, func(t *testing.T) {
			engine := brokertest.NewMemory()
			t.Cleanup(func() { _ = engine.Close() })
			w := newWorld(t, engine, 7)
			w.live(300, 600)
			path := filepath.Join(t.TempDir(), "index.db")
			ix, _ := keep(t, path, engine)
			if n := total(t, ix); n != 300 {
				t.Fatalf("%d handoffs", n)
			}
			if err := ix.checkpointed(t.Context()); err != nil { // so that there is something in the file itself
				t.Fatal(err)
			}
			ctx, stop := context.WithCancel(t.Context())
			var asking sync.WaitGroup
			for range 3 {
				asking.Go(func() { askOn(t, ctx, ix) })
			}
			if err := h.do(path); err != nil {
				t.Fatal(err)
			}
			for i := range 200 {
				w.submit(func(p *protocol.Package) { p.Key = strings.Repeat("k", 1+i%7) })
			}
			if n := total(t, ix); n != 500 {
				t.Errorf("%d handoffs, want 500", n)
			}
			for rebuilds(t, ix) == 0 { // noticed within a moment, asked or not
				if t.Context().Err() != nil {
					t.Fatal("never made again")
				}
			}
			stop()
			asking.Wait()
			w.compare(ix, ask.Filter{})
			w.compare(ix, ask.Filter{Text: "login"})
		})
	}
}

// askOn asks how many there are until ctx ends. The ledger had 300 before the
// first question, and none is ever taken away: a complete answer with fewer is wrong.
func askOn(t *testing.T, ctx context.Context, ix *Index) {
	for ctx.Err() == nil {
		a, err := ix.Count(ctx, ask.CountQuery{Filter: ask.Filter{Until: time.Now().Add(time.Hour)}, By: []ask.By{ask.BySource}})
		if err != nil {
			if !errors.Is(err, ask.ErrRebuilding) && ctx.Err() == nil {
				t.Errorf("count: %v", err)
			}
			continue
		}
		if a.Complete && a.Count < 300 || a.Count > 500 {
			t.Errorf("%d handoffs at %+v", a.Count, a.Position)
		}
	}
}

// checkpointed copies the log into the file.
func (ix *Index) checkpointed(ctx context.Context) error {
	st, _ := ix.current()
	defer st.release()
	return st.checkpoint(ctx, 0)
}

// TestFilesOfOthers: what this program must not touch stays byte for byte.
func TestFilesOfOthers(t *testing.T) {
	engine := brokertest.NewMemory()
	defer func() { _ = engine.Close() }()
	newWorld(t, engine, 3).live(50, 100)
	prepare := func(change func(header []byte)) string {
		path := filepath.Join(t.TempDir(), "index.db")
		ix, stop := keep(t, path, engine)
		total(t, ix)
		stop()
		body, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		change(body)
		if err := os.WriteFile(path, body, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	version := func(n uint32) func([]byte) { return func(header []byte) { binary.BigEndian.PutUint32(header[60:], n) } }
	for _, c := range []struct {
		name string
		path string
		want error
	}{
		{"newer", prepare(version(schemaVersion + 1)), errNewer},
		{"another program's", prepare(func(header []byte) { binary.BigEndian.PutUint32(header[68:], 77) }), errForeign},
	} {
		before, err := os.ReadFile(c.path)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := Open(c.path, nil); !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.path) {
			t.Errorf("%s: %v, want %v and the path", c.name, err, c.want)
		}
		after, err := os.ReadFile(c.path)
		if err != nil || !bytes.Equal(before, after) {
			t.Errorf("%s: the file was touched, %v", c.name, err)
		}
	}
	for name, path := range map[string]string{
		"older":             prepare(version(schemaVersion - 1)),
		"with broken pages": prepare(func(body []byte) { clear(body[4096:]) }),
		"no database":       prepare(func(body []byte) { copy(body, "my notes, dear to me") }),
	} {
		ix, stop := keep(t, path, engine)
		if n := total(t, ix); n != 50 {
			t.Errorf("%s: %d handoffs, want 50", name, n)
		}
		stop()
		if _, err := os.Stat(path + ".damaged"); (err == nil) != (name == "no database") {
			t.Errorf("%s: put aside? %v", name, err)
		}
	}
}

// TestNewerInItsPlace: a newer version's file that is put where a running index
// had its own ends it, and stays.
func TestNewerInItsPlace(t *testing.T) {
	engine := brokertest.NewMemory()
	defer func() { _ = engine.Close() }()
	path := filepath.Join(t.TempDir(), "index.db")
	ix, err := Open(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = ix.Close() }()
	body, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	binary.BigEndian.PutUint32(body[60:], schemaVersion+1)
	if err := os.WriteFile(path+".new", body, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
	if err := ix.Run(t.Context(), engine); !errors.Is(err, errNewer) {
		t.Errorf("Run: %v", err)
	}
	if _, err := ix.Count(t.Context(), ask.CountQuery{}); !errors.Is(err, errNewer) {
		t.Errorf("a question after that: %v", err)
	}
	if after, err := os.ReadFile(path); err != nil || !bytes.Equal(after, body) {
		t.Errorf("the file was touched, %v", err)
	}
}

func TestTwoAtOnePath(t *testing.T) {
	path := filepath.Join(t.TempDir(), "deep", "down", "index.db")
	ix, err := Open(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Open(path, nil); !errors.Is(err, ErrInUse) || !strings.Contains(err.Error(), path) {
		t.Errorf("a second one: %v", err)
	}
	if err := ix.Close(); err != nil {
		t.Fatal(err)
	}
	again, err := Open(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	_ = again.Close()
}

// TestAnotherLedger: an index of one ledger is made again from another.
func TestAnotherLedger(t *testing.T) {
	engine := brokertest.NewMemory()
	defer func() { _ = engine.Close() }()
	path := filepath.Join(t.TempDir(), "index.db")
	ix, _ := keep(t, path, engine)
	newWorld(t, engine, 3).live(50, 100)
	if n := total(t, ix); n != 50 {
		t.Fatalf("%d handoffs", n)
	}
	engine.ReplaceLedger()
	newWorld(t, engine, 4).live(20, 10)
	if n := total(t, ix); n != 20 {
		t.Errorf("%d handoffs, want the 20 of the new ledger", n)
	}
	if n := rebuilds(t, ix); n == 0 {
		t.Error("it was not made again")
	}
}

// TestWithoutAnEngine: what there is is answered, marked as incomplete.
func TestWithoutAnEngine(t *testing.T) {
	engine := brokertest.NewMemory()
	newWorld(t, engine, 3).live(30, 60)
	path := filepath.Join(t.TempDir(), "index.db")
	ix, stop := keep(t, path, engine)
	total(t, ix)
	stop()
	_ = engine.Close()
	ix, _ = keep(t, path, engine)
	a, err := ix.Count(t.Context(), ask.CountQuery{Question: ask.Question{WaitMS: 50}})
	if err != nil || a.Complete || a.Count != 30 || a.Seq == 0 {
		t.Errorf("%+v, %v; want an incomplete answer of 30", a, err)
	}
}

// TestAfterAKill: what a process leaves that was killed is gone on with.
func TestAfterAKill(t *testing.T) {
	engine := brokertest.NewMemory()
	defer func() { _ = engine.Close() }()
	w := newWorld(t, engine, 13)
	from, to := filepath.Join(t.TempDir(), "index.db"), filepath.Join(t.TempDir(), "index.db")
	ix, _ := keep(t, from, engine)
	w.live(100, 200)
	total(t, ix)
	if err := ix.checkpointed(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.live(50, 100)
	total(t, ix)
	for _, suffix := range []string{"", "-wal"} { // the files of a moment, as a kill leaves them
		body, err := os.ReadFile(from + suffix)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(to+suffix, body, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	w.live(10, 30)
	read := &counted{Engine: engine}
	again, _ := keep(t, to, read)
	w.compare(again, ask.Filter{})
	if read.first < 100 || rebuilds(t, again) != 0 {
		t.Errorf("it read the ledger again from %d on", read.first)
	}
}

// TestPrune: what the ledger has dropped is forgotten, everywhere.
func TestPrune(t *testing.T) {
	w, ix := memoryWorld(t, 14)
	w.live(700, 900)
	total(t, ix)
	st, _ := ix.current()
	defer st.release()
	first, kept := w.heads[600].seq, 0
	for range 3 {
		if _, err := st.prune(t.Context(), broker.LedgerInfo{First: first}); err != nil {
			t.Fatal(err)
		}
	}
	var left []*subject
	for _, k := range w.heads {
		if k.seq >= first {
			left, kept = append(left, k), kept+1
		}
	}
	if n := total(t, ix); n != int64(kept) || kept == 700 {
		t.Errorf("%d handoffs, want %d", n, kept)
	}
	var orphans int
	if err := st.db.QueryRow("SELECT count(*) FROM past WHERE handoff NOT IN (SELECT id FROM handoff)").Scan(&orphans); err != nil || orphans > 0 {
		t.Errorf("%d agents of forgotten handoffs are left (%v)", orphans, err)
	}
	w.heads = left
	w.compare(ix, ask.Filter{Text: "login"})
	w.compare(ix, ask.Filter{})
	if n, err := st.prune(t.Context(), broker.LedgerInfo{First: first}); n != 0 || err != nil {
		t.Errorf("%d more were forgotten, %v", n, err)
	}
}

// TestOddPaths: names that mean something to an URI are names.
func TestOddPaths(t *testing.T) {
	engine := brokertest.NewMemory()
	defer func() { _ = engine.Close() }()
	newWorld(t, engine, 15).live(5, 5)
	for _, name := range []string{"a b", "50%20", "what?mode=ro", "x#y", "größe", "a&b;c", "'quoted'"} {
		path := filepath.Join(t.TempDir(), name, "index.db")
		ix, stop := keep(t, path, engine)
		if n := total(t, ix); n != 5 {
			t.Errorf("%s: %d handoffs", name, n)
		}
		stop()
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 || info.Size() == 0 {
			t.Errorf("%s: %v, %v", name, info, err)
		}
	}
}

// TestStrangeEntries: what the ledger should not hold stops nothing: a handoff
// that begins twice, an entry that is no record, one of another handoff, one of events
// of no known index.
func TestStrangeEntries(t *testing.T) {
	w, ix := memoryWorld(t, 16)
	w.live(10, 10)
	total(t, ix)
	first := w.heads[0]
	entry, err := w.engine.Next(t.Context(), first.Ticket, 0)
	if err != nil {
		t.Fatal(err)
	}
	put := func(ticket string, after uint64, body []byte) uint64 {
		seq, err := w.engine.Append(t.Context(), ticket, after, uuid.NewString(), "", body)
		if err != nil {
			t.Fatal(err)
		}
		return seq
	}
	again := put(first.Ticket, first.seq, entry.Body)
	put(protocol.NewTicket(), 0, []byte("no record"))
	put(protocol.NewTicket(), 0, entry.Body) // it is another handoff's
	other := protocol.NewTicket()
	known := put(other, 0, bytes.ReplaceAll(bytes.ReplaceAll(entry.Body, []byte(first.Ticket), []byte(other)), []byte(`"type":"offered"`), []byte(`"type":"invented"`)))
	if n := total(t, ix); n != 11 {
		t.Errorf("%d handoffs, want the 10 and one of unknown events", n)
	}
	a, err := ix.List(t.Context(), ask.ListQuery{Filter: ask.Filter{Ticket: []string{first.Ticket}}})
	if err != nil || len(a.Handoffs) != 1 || a.Handoffs[0].Seq != again || a.Seq != known {
		t.Errorf("%+v, %v", a, err)
	}
	if n := rebuilds(t, ix); n != 0 {
		t.Errorf("made again %d times", n)
	}
}

// TestFill: a fill from the beginning, which makes its indexes at the end, is
// interrupted and gone on with; what it answers meanwhile is right as far as it says.
func TestFill(t *testing.T) {
	engine := brokertest.NewMemory()
	defer func() { _ = engine.Close() }()
	w := newWorld(t, engine, 17)
	w.live(700, 4_000)
	ledger, err := engine.LedgerInfo(t.Context())
	if err != nil || ledger.Last < 1_500 {
		t.Fatalf("the ledger has %d entries, %v", ledger.Last, err)
	}
	path := filepath.Join(t.TempDir(), "index.db")
	soon := func(ix *Index) { ix.fillBehind = 100 }
	ix, stop := keep(t, path, engine, soon)
	for {
		a, err := ix.Count(t.Context(), ask.CountQuery{Question: ask.Question{WaitMS: -1}, Filter: ask.Filter{Until: w.now.Add(time.Hour)}})
		if err != nil {
			t.Fatal(err)
		}
		if a.Complete != (a.Seq == ledger.Last) || a.Seq+a.Behind != ledger.Last || a.Count > 700 {
			t.Fatalf("%+v of %d", a, ledger.Last)
		}
		if a.Seq > 0 {
			break
		}
	}
	stop()
	read := &counted{Engine: engine}
	ix, _ = keep(t, path, read, soon)
	w.submit() // so that it must read on
	if n := total(t, ix); n != 701 || read.first == 0 {
		t.Errorf("%d handoffs, read from %d on", n, read.first)
	}
	for range 20 {
		w.compare(ix, w.randomFilter())
	}
}
