package api_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/agenthandoff/handoff/api"
	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/brokertest"
	"github.com/agenthandoff/handoff/protocol"
)

var errCut = errors.New("cut")

// TestChanges: a reader that is cut off behind each change goes on without a gap or a repetition.
func TestChanges(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	s, lead := watched(t)
	state, err := lead.Submit(ctx, packageFor("coder", "one"))
	if err != nil {
		t.Fatal(err)
	}
	hints, stop, err := s.As(api.Agent("coder")).Hints(ctx, api.HintFilter{Source: []string{"lead"}})
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	hidden, stopHidden, err := s.As(api.Agent("stranger")).Hints(ctx, api.HintFilter{})
	if err != nil {
		t.Fatal(err)
	}
	defer stopHidden()
	if _, err := lead.Cancel(ctx, api.Cancel{Ticket: state.Ticket}); err != nil {
		t.Fatal(err)
	}
	if hint := <-hints; hint.Ticket != state.Ticket || hint.Seq <= 0 {
		t.Errorf("hint %+v", hint)
	}
	if len(hidden) > 0 {
		t.Error("a stranger gets a hint")
	}
	var whole, parts []uint64
	if _, err := lead.Changes(ctx, api.Watch{Ticket: state.Ticket}, func(c protocol.Change) error {
		whole = append(whole, c.Seq)
		return nil
	}); err != nil || len(whole) < 2 {
		t.Fatalf("%v changes, %v", whole, err)
	}
	for watch := (api.Watch{Ticket: state.Ticket}); ; {
		_, err := lead.Changes(ctx, watch, func(c protocol.Change) error {
			parts, watch.After, watch.AfterSeq = append(parts, c.Seq), state.Ticket, c.Seq
			return errCut
		})
		if err == nil {
			break
		}
		if !errors.Is(err, errCut) {
			t.Fatal(err)
		}
	}
	if len(parts) != len(whole) {
		t.Errorf("%v in parts, and %v", parts, whole)
	}
	for name, watch := range map[string]api.Watch{
		"the future":      {Ticket: state.Ticket, After: state.Ticket, AfterSeq: whole[len(whole)-1] + 1},
		"another handoff": {Ticket: state.Ticket, After: protocol.NewTicket(), AfterSeq: 1},
	} {
		if _, err := lead.Changes(ctx, watch, nil); !errors.Is(err, &protocol.Error{Code: protocol.CodeInvalid}) {
			t.Errorf("from %s: %v", name, err)
		}
	}
	if _, err := s.As(api.Agent("stranger")).Changes(ctx, api.Watch{Ticket: state.Ticket}, nil); !errors.Is(err, &protocol.Error{Code: protocol.CodeNotFound}) {
		t.Errorf("by a stranger: %v", err)
	}
}

// TestPast: the parts of a handoff's changes, from the last one back, are the whole, in a ledger with the
// entries of others between.
func TestPast(t *testing.T) {
	s, lead := watched(t)
	state, err := lead.Submit(t.Context(), packageFor("coder", "one"))
	if err != nil {
		t.Fatal(err)
	}
	coder := s.As(api.Agent("coder"))
	held, err := coder.Claim(t.Context(), api.Claim{Agent: "coder", Wait: time.Minute, Lease: time.Minute, Accept: true})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 20 {
		if _, err := coder.Progress(t.Context(), held.Lease, protocol.Progress{Message: "on"}); err != nil {
			t.Fatal(err)
		}
		if _, err := lead.Submit(t.Context(), packageFor("stranger", fmt.Sprint(i))); err != nil {
			t.Fatal(err)
		}
	}
	whole, earlier, err := lead.Past(t.Context(), state.Ticket, 0, 100)
	if err != nil || earlier || len(whole) < 22 {
		t.Fatalf("%d changes, earlier %v, %v", len(whole), earlier, err)
	}
	for _, most := range []int{1, 3, 7, len(whole) - 1, len(whole)} {
		var parts []protocol.Change
		for before := uint64(0); ; before = parts[0].Seq {
			part, earlier, err := lead.Past(t.Context(), state.Ticket, before, most)
			if err != nil || len(part) > most || earlier && len(part) < most {
				t.Fatalf("at most %d before %d: %d, earlier %v, %v", most, before, len(part), earlier, err)
			}
			if parts = slices.Concat(part, parts); !earlier {
				break
			}
		}
		if !slices.EqualFunc(parts, whole, func(a, b protocol.Change) bool { return a.Seq == b.Seq }) {
			t.Errorf("%d at a time: %d changes, want %d", most, len(parts), len(whole))
		}
	}
}

// TestInboxIsScoped: an agent reads its own inbox, and no other.
func TestInboxIsScoped(t *testing.T) {
	s, lead := watched(t)
	if _, err := lead.Inbox(t.Context(), "coder"); !errors.Is(err, &protocol.Error{Code: protocol.CodeForbidden}) {
		t.Errorf("of another: %v", err)
	}
	if _, err := lead.Inbox(t.Context(), ""); err != nil && !errors.Is(err, broker.ErrNoAnswer) {
		t.Errorf("its own: %v", err)
	}
	if _, err := s.As(api.Local("human")).Inbox(t.Context(), "lead"); err != nil {
		t.Errorf("by an admin: %v", err)
	}
}

// watched is a service with three agents, and a session of the first.
func watched(t *testing.T) (*api.Service, *api.Session) {
	b := brokertest.Over(t, brokertest.NewMemory())
	brokertest.Register(t, b, "lead", "coder", "stranger")
	s := api.New(b, api.Config{})
	return s, s.As(api.Agent("lead"))
}

func packageFor(agent, key string) protocol.Package {
	return protocol.Package{Target: protocol.Target{Agent: agent}, Key: key, Reason: "the plan is ready", Task: protocol.Task{Description: "write it"}}
}
