package broker_test

import (
	"testing"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/brokertest"
	"github.com/agenthandoff/handoff/protocol"
)

func TestRoomForResult(t *testing.T) {
	for name, c := range map[string]struct {
		made []int
		want int
	}{
		"none":                           {nil, 0},
		"those of an earlier result":     {[]int{0, 1}, 2},
		"one behind the room":            {[]int{64}, 0},
		"one within it":                  {[]int{63}, 64},
		"one behind it, and two used up": {[]int{0, 1, 64}, 65},
	} {
		children := &protocol.Children{Made: protocol.Bits("").With(c.made...)}
		if c.made == nil {
			children = nil
		}
		if got := broker.RoomForResult(children); got != c.want {
			t.Errorf("%s: the room begins at %d, want %d", name, got, c.want)
		}
	}
}

// Two processes with one lease hand off two handoffs, where each has not seen the other's. What the
// result of the holder hands off then has an ordinal of its own.
func TestHandOffNextIsNew(t *testing.T) {
	ctx := t.Context()
	b, err := broker.New(brokertest.NewMemory(), broker.Config{})
	if err != nil {
		t.Fatal(err)
	}
	for _, agent := range []string{"lead", "coder"} {
		if err := b.PutProfile(ctx, protocol.Profile{ID: agent}); err != nil {
			t.Fatal(err)
		}
	}
	pkg := func(to string) protocol.Package {
		return protocol.Package{Source: "human", Target: protocol.Target{Agent: to}, Reason: "r", Task: protocol.Task{Description: "d"}}
	}
	in, err := b.Prepare(ctx, pkg("lead"))
	if err == nil {
		_, err = b.Submit(ctx, in)
	}
	if err != nil {
		t.Fatal(err)
	}
	holder := claim(t, b, protocol.Holder{ID: protocol.NewTicket(), Agent: "lead", LeaseMS: 60_000, Slots: 1})
	var programs [2]*broker.Claim
	for i := range programs {
		if programs[i], err = b.Resume(ctx, holder.WorkerLease()); err != nil {
			t.Fatal(err)
		}
		if programs[i].Holder.Polling {
			t.Error("the lease of a worker makes it one that polls")
		}
	}
	tickets := map[string]bool{}
	for _, program := range programs {
		ticket, err := program.HandOffNext(ctx, broker.Child{Package: pkg("coder"), AtOnce: true})
		if err != nil {
			t.Fatal(err)
		}
		tickets[ticket] = true
		if child := headOf(t, b, ticket); child.State.Phase != protocol.Pending || child.State.Parent != holder.Ticket || child.State.Source != "lead" {
			t.Errorf("handed off at once: %s from %s, parent %s", child.State.Phase, child.State.Source, child.State.Parent)
		}
	}
	if err := holder.Complete(ctx, protocol.Result{Command: &protocol.Command{Goto: []byte(`"coder"`)}}); err != nil {
		t.Fatal(err)
	}
	state := headOf(t, b, holder.Ticket).State
	if made := state.Children.Made.Numbers(); len(tickets) != 2 || len(made) != 3 || state.Children.Next != 1 {
		t.Errorf("%d tickets; children %v, and the chain goes on with %d", len(tickets), made, state.Children.Next)
	}
}
