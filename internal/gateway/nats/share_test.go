package natsgateway

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agenthandoff/handoff/protocol"
)

// One agent may have half of a budget, and others may use what it releases.
func TestBudget(t *testing.T) {
	b := newBudget("things", 10, time.Second, nil)
	refused := func(agent string, n int64) bool {
		return errors.Is(b.reserve(agent, n), &protocol.Error{Code: protocol.CodeBusy, Field: "things"})
	}
	if refused("a", 5) || !refused("a", 1) || refused("b", 4) || refused("c", 1) || !refused("c", 1) {
		t.Errorf("%+v", b.agents)
	}
	b.release("a", 5)
	if b.inUse() != 5 || len(b.agents) != 2 {
		t.Errorf("%+v", b.agents)
	}
}

// However many agents have taken all that there is, each further one gets an equal
// share, to the last unit, and nobody loses any of its own.
func TestEachGetsItsShare(t *testing.T) {
	const most = 1000
	var b *budget
	b = newBudget("things", most, time.Second, func(agent string) bool {
		b.release(agent, 1)
		return true
	})
	for n := int64(1); n <= 100; n++ {
		agent := fmt.Sprint("agent ", n)
		share := most / max(2, n)
		for range share {
			if err := b.reserve(agent, 1); err != nil {
				t.Fatalf("the %dth agent, which has %d of %d: %v", n, b.agents[agent], share, err)
			}
		}
		if n > 1 {
			if err := b.reserve(agent, most/n+1); err == nil {
				t.Fatalf("the %dth agent takes another's share", n)
			}
		}
		for other, has := range b.agents {
			if has < share {
				t.Fatalf("beside %d others %s has %d, and its share is %d", n-1, other, has, share)
			}
			for b.reserve(other, 1) == nil { // all take what they can get
			}
		}
		if b.used > most {
			t.Fatalf("%d of %d", b.used, most)
		}
	}
}

// Within its share an agent waits for what others are at work on; beyond it, it does
// not, and in the end it is refused.
func TestWhatIsInUseIsWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBudget("things", 12, time.Second, func(string) bool { return false })
		for _, agent := range []string{"a", "b"} {
			if err := b.reserve(agent, 6); err != nil {
				t.Fatal(err)
			}
		}
		begun := time.Now()
		if err := b.awaitFree(t.Context(), "c", 5); err == nil || time.Since(begun) != 0 {
			t.Errorf("beyond its share: %v after %v", err, time.Since(begun))
		}
		if err := b.awaitFree(t.Context(), "c", 4); err == nil || time.Since(begun) != shareTimeout {
			t.Errorf("what is never released: %v after %v", err, time.Since(begun))
		}
		got := make(chan error, 1)
		go func() { got <- b.awaitFree(t.Context(), "c", 4) }()
		synctest.Wait()
		b.release("a", 1)
		synctest.Wait()
		b.release("b", 3)
		if err := <-got; err != nil || b.inUse() != 12 {
			t.Errorf("%v, %d in use", err, b.inUse())
		}
	})
}

// The first request of each agent is worked on at once, and the slots go round.
func TestTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		turns := newTurns(2)
		begun := make(chan string, 100)
		ask := func(ctx context.Context, agent string) {
			go func() {
				if turns.enter(ctx, agent) == nil {
					begun <- agent
				}
			}()
			synctest.Wait()
		}
		said := func() (all string) {
			for {
				synctest.Wait()
				select {
				case agent := <-begun:
					all += agent
				default:
					return all
				}
			}
		}
		gone, leave := context.WithCancel(t.Context())
		for range 6 {
			ask(t.Context(), "a")
		}
		ask(gone, "a")
		for range 3 {
			ask(t.Context(), "b")
		}
		ask(t.Context(), "c")
		if got := said(); got != "aaabc" {
			t.Errorf("at once: %s", got)
		}
		leave()
		for i, want := range []string{"a", "b", "a", "b", "a", "", ""} {
			if turns.leave("a"); said() != want {
				t.Errorf("turn %d", i)
			}
			if i == 5 {
				break
			}
		}
		for _, agent := range []string{"b", "b", "b", "c"} {
			turns.leave(agent)
		}
		for range 9 {
			if turns.agents["a"] == nil {
				break
			}
			turns.leave("a")
		}
		if len(turns.agents) != 0 || turns.free != 2 || len(turns.rotation) != 0 {
			t.Errorf("in the end %+v", turns)
		}
	})
}
