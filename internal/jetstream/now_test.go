package jetstream_test

import (
	"context"
	"testing"
	"time"

	"github.com/agenthandoff/handoff/internal/testworld"
)

// TestTimeUnderALock: the engine's time may be asked for with the engine's lock held, and by a pull, when
// its last reading is too old: both begin another reading.
func TestTimeUnderALock(t *testing.T) {
	_, e := testworld.Engine(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := e.EnsureQueue(ctx, "clerk"); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		e.AgeClock()
		e.Locked(func() { e.Now() })
		e.AgeClock()
		_, err := e.Pull(ctx, "clerk", 1, time.Millisecond)
		done <- err
	}()
	select {
	case err := <-done:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(time.Minute):
		t.Fatal("it waits for itself")
	}
}
