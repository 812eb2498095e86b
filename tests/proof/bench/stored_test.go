//go:build proof

package bench

import (
	"cmp"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/jetstream"
)

// handoffs is how many handoffs a test is to store; without HANDOFF_BENCH=1 it
// is skipped.
func handoffs(t *testing.T) int {
	t.Helper()
	if os.Getenv("HANDOFF_BENCH") != "1" {
		t.Skip("set HANDOFF_BENCH=1")
	}
	text := os.Getenv("HANDOFF_BENCH_HANDOFFS")
	if text == "" {
		return handoffsDefault
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1_000 {
		t.Fatalf("HANDOFF_BENCH_HANDOFFS: %q is no number of at least 1000", text)
	}
	return n
}

// partitions is the number of partitions of a stored ledger: HANDOFF_BENCH_PARTITIONS, 1 by default.
func partitions() int {
	n, err := strconv.Atoi(cmp.Or(os.Getenv("HANDOFF_BENCH_PARTITIONS"), "1"))
	if err != nil || n < 1 || n > broker.PartitionsMax {
		panic("HANDOFF_BENCH_PARTITIONS is not 1 to 16")
	}
	return n
}

// stored is a directory with a ledger of so many handoffs, of one kind. Where
// HANDOFF_BENCH_DIR names a directory it is kept there for the next run.
func stored(t *testing.T, kind string, n int, write func(url string)) (dir string) {
	t.Helper()
	kept := os.Getenv("HANDOFF_BENCH_DIR")
	if kept == "" {
		kept = t.TempDir()
	}
	dir = filepath.Join(kept, kind+"-"+strconv.Itoa(n)+"-"+strconv.Itoa(partitions()))
	filled := dir + ".filled"
	if _, err := os.Stat(filled); err == nil {
		return dir
	}
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	url, engine := startEngine(t, dir)
	began := time.Now()
	write(url)
	t.Logf("%d handoffs (%s) written in %v", n, kind, time.Since(began).Round(time.Second))
	engine.stop()
	if err := os.WriteFile(filled, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}

// known is a handoff in the ledger.
type known struct {
	ticket string
	at     time.Time // of its submission
}

// tickets reads all that the ledger has, by their last entries.
func tickets(t *testing.T, engine *jetstream.Engine) (all []known) {
	t.Helper()
	began := time.Now()
	err := engine.Heads(t.Context(), func(e broker.Entry) error {
		head, err := broker.HeadOf(e)
		all = append(all, known{e.Ticket, head.State.SubmittedAt})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d heads read in %v", len(all), time.Since(began).Round(10*time.Millisecond))
	return all
}

// TestStore writes what other tests use, where HANDOFF_BENCH_DIR says.
func TestStore(t *testing.T) {
	n := handoffs(t)
	if os.Getenv("HANDOFF_BENCH_DIR") == "" {
		t.Skip("HANDOFF_BENCH_DIR names no directory to keep it in")
	}
	stored(t, "closed", n, func(url string) { writeLedger(t, url, n) })
	stored(t, "open", n, func(url string) { writeOpen(t, url, n) })
}
