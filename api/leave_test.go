package api_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/agenthandoff/handoff/api"
	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/brokertest"
	"github.com/agenthandoff/handoff/protocol"
)

// hangsUp ends the call of its caller once the presence of its holder is stored.
type hangsUp struct {
	broker.Engine
	caller context.CancelFunc
}

func (e *hangsUp) Beat(ctx context.Context, h protocol.Holder) error {
	if err := e.Engine.Beat(ctx, h); err != nil || h.IsPoll() {
		return err
	}
	e.caller()
	return ctx.Err()
}

// TestCallerHangsUpInItsFirstBeat: no presence stays of a claim that has claimed nothing.
func TestCallerHangsUpInItsFirstBeat(t *testing.T) {
	memory := brokertest.NewMemory()
	b := brokertest.Over(t, memory)
	brokertest.Register(t, b, "coder")
	for name, call := range map[string]func(context.Context, *api.Session) error{
		"claim": func(ctx context.Context, s *api.Session) error {
			_, err := s.Claim(ctx, api.Claim{Agent: "coder", Lease: time.Minute, Wait: time.Minute})
			return err
		},
		"take": func(ctx context.Context, s *api.Session) error {
			_, err := s.Take(ctx, api.Take{Ticket: protocol.NewTicket(), Agent: "coder", Lease: time.Minute})
			return err
		},
	} {
		ctx, cancel := context.WithCancel(t.Context())
		s := api.New(brokertest.Over(t, &hangsUp{memory, cancel}), api.Config{}).As(api.Local("human"))
		if err := call(ctx, s); !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v, want the end of the call", name, err)
		}
		d, err := b.Directory(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, h := range d.Holders {
			if !h.IsPoll() { // that the agent was heard of is recorded
				t.Errorf("%s: holder %s is present", name, h.ID)
			}
		}
	}
}
