package supervisor_test

import (
	"context"
	"maps"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/brokertest"
	"github.com/agenthandoff/handoff/internal/jetstream"
	"github.com/agenthandoff/handoff/internal/schedule"
	"github.com/agenthandoff/handoff/internal/supervisor"
	"github.com/agenthandoff/handoff/internal/testworld"
	"github.com/agenthandoff/handoff/protocol"
)

// TestSchedulesOnJetStream: two supervisors on connections of their own look at the same time, over
// the change of the clock in October, and some looks are cut off. Each instant is one handoff.
func TestSchedulesOnJetStream(t *testing.T) {
	url, own := testworld.Engine(t)
	var now atomic.Int64
	begun := time.Date(2030, 10, 26, 12, 0, 30, 0, time.UTC)
	now.Store(begun.UnixNano())
	over := func(e broker.Engine) *broker.Broker {
		b, err := broker.New(e, broker.Config{Now: func() time.Time { return time.Unix(0, now.Load()).UTC() }})
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	b := over(own)
	brokertest.Register(t, b, "coder")
	put, err := b.Schedules().Put(t.Context(), protocol.Schedule{Name: "hourly", Cron: "0 * * * *", Zone: "Europe/Berlin", Overlap: protocol.OverlapAllow, Missed: protocol.MissedAll},
		protocol.Package{Target: protocol.Target{Agent: "coder"}, Reason: "r", Task: protocol.Task{Description: "d"}})
	if err != nil {
		t.Fatal(err)
	}
	rule, err := schedule.Of(&put)
	if err != nil {
		t.Fatal(err)
	}
	var looks [2]func(context.Context)
	for i := range looks {
		e, err := jetstream.Dial(t.Context(), jetstream.DialConfig{URL: url})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = e.Close() })
		s, err := supervisor.New(over(e), e, supervisor.Config{})
		if err != nil {
			t.Fatal(err)
		}
		looks[i] = s.Looker()
	}
	want := map[string]bool{}
	dice := rand.New(rand.NewPCG(1, 1))
	for at := rule.Next(begun); len(want) < 48; at = rule.Next(at) {
		want[protocol.TicketForKey(protocol.ScheduleSource, protocol.ScheduleKey("hourly", at))] = true
		for now.Store(at.UnixNano()); ; now.Add(int64(time.Second)) {
			var both sync.WaitGroup
			for _, look := range looks {
				ctx, cancel := context.WithCancel(t.Context())
				if dice.IntN(3) == 0 {
					time.AfterFunc(time.Duration(dice.IntN(4000))*time.Microsecond, cancel)
				}
				both.Go(func() { look(ctx); cancel() })
			}
			both.Wait()
			if s, _, err := b.Schedules().Get(t.Context(), "hourly"); err != nil {
				t.Fatal(err)
			} else if !s.DecidedTo.Before(at) && len(s.Firing) == 0 {
				break
			}
		}
	}
	made := map[string]bool{}
	if err := own.Heads(t.Context(), func(e broker.Entry) error { made[e.Ticket] = true; return nil }); err != nil {
		t.Fatal(err)
	}
	s, _, err := b.Schedules().Get(t.Context(), "hourly")
	if err != nil || s.FiredCount != len(want) || s.MissedCount+s.SkippedCount+s.RefusedCount > 0 || !maps.Equal(made, want) {
		t.Errorf("%d handoffs, want %d: %+v, %v", len(made), len(want), s, err)
	}
}
