//go:build proof

package bench

import (
	"testing"
	"time"
)

// TestHeadsMillion reads the heads of a ledger that the engine has not touched
// since its start, and once more.
func TestHeadsMillion(t *testing.T) {
	n := handoffs(t)
	dir := stored(t, "closed", n, func(url string) { writeLedger(t, url, n) })
	began := time.Now()
	url, engine := startEngine(t, dir)
	t.Logf("the engine was ready after %v", time.Since(began).Round(10*time.Millisecond))
	asker, _, err := dial(t.Context(), url, "asker")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = asker.Close() })
	engine.reportMemory("after its start")
	for range 2 {
		if all := tickets(t, asker); len(all) != n {
			t.Errorf("%d heads, want %d", len(all), n)
		}
		engine.reportMemory("after a pass")
	}
}
