package brokertest

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/lifecycle"
	"github.com/agenthandoff/handoff/protocol"
)

// The engine in memory has to run under a fake clock: hours pass in no time
// and nothing keeps the bubble from ending.
func TestMemoryRunsOnAFakeClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := NewMemory()
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 2)
		var entries, dues int
		go func() { ended <- m.Follow(ctx, func(_ broker.Entry, done func()) { entries++; done() }) }()
		go func() { ended <- m.Due(ctx, func(_ broker.WakeUp, done func()) { dues++; done() }) }()
		synctest.Wait()

		begin := time.Now()
		if _, err := m.Append(ctx, "t", 0, "a", lifecycle.AttentionNone, []byte("x")); err != nil {
			t.Fatal(err)
		}
		if err := m.Arm(ctx, "t", 1, begin.Add(time.Hour)); err != nil {
			t.Fatal(err)
		}
		key := broker.OfferKey{Agent: "a", Lane: protocol.Normal, Ticket: "t", Sequence: 1}
		if err := m.PutOffer(ctx, key, nil); err != nil {
			t.Fatal(err)
		}
		for range 2 { // the second time by redelivery
			if got, err := m.Pull(ctx, "a", 5, time.Hour); err != nil || len(got) != 1 {
				t.Fatalf("pull: %v, %v", got, err)
			}
		}
		if waited := time.Since(begin); waited != broker.AckWait {
			t.Errorf("the offer came again after %v, want the ack wait", waited)
		}

		gone, err := m.Departures(ctx)
		if err != nil {
			t.Fatal(err)
		}
		beat := time.Now()
		if err := m.Beat(ctx, protocol.Holder{ID: "h", Agent: "a", LeaseMS: 1500}); err != nil {
			t.Fatal(err)
		}
		if h := <-gone; h.ID != "h" || time.Since(beat) != 2*time.Second {
			t.Errorf("%v left after %v, want h after 2 s", h, time.Since(beat))
		}

		time.Sleep(2 * time.Hour) // fake
		synctest.Wait()
		if entries != 1 || dues != 1 {
			t.Errorf("%d entries and %d wake-ups, want one of each", entries, dues)
		}
		cancel()
		<-ended
		<-ended
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
}
