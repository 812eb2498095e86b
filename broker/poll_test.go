package broker_test

import (
	"errors"
	"testing"
	"time"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/protocol"
)

// TestNotePoll: a poll keeps its agent present for its patience, and is written down
// no more often than every ten seconds.
func TestNotePoll(t *testing.T) {
	r := newRemembering(t, "clerk")
	ctx := t.Context()
	note := func(p protocol.Profile, want time.Time) {
		t.Helper()
		if err := r.RecordPoll(ctx, p); err != nil {
			t.Fatal(err)
		}
		d, err := r.Directory(ctx)
		if err != nil {
			t.Fatal(err)
		}
		last, polls := d.Polled("clerk")
		if !polls || !last.Equal(want.UTC().Truncate(time.Millisecond)) || !d.Attended("clerk") {
			t.Errorf("polls %v, last at %v, want %v", polls, last, want)
		}
	}
	clerk := protocol.Profile{ID: "clerk"}
	first := r.now
	note(clerk, first)
	r.now = first.Add(9 * time.Second)
	note(clerk, first)
	r.now = first.Add(10 * time.Second)
	note(clerk, r.now)
	clerk.PollPatienceMS = 2_000 // a change is written at once
	r.now = r.now.Add(time.Millisecond)
	note(clerk, r.now)
	h, err := r.Holder(ctx, protocol.PollerID("clerk"))
	if err != nil || h.LeaseMS != 2_000 || !h.IsPoll() {
		t.Errorf("noted as %+v, %v", h, err)
	}
	if err := r.RecordPoll(ctx, protocol.Profile{ID: protocol.Human}); err != nil {
		t.Error(err)
	}
	if _, err := r.Holder(ctx, protocol.PollerID(protocol.Human)); !errors.Is(err, broker.ErrNotFound) {
		t.Errorf("a person's poll is noted: %v", err)
	}
	if err := r.RemoveProfile(ctx, "clerk"); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Holder(ctx, h.ID); !errors.Is(err, broker.ErrNotFound) {
		t.Errorf("the poll of an agent that was removed: %v", err)
	}
}

// TestLeavePolling: an agent whose claim has ended is present for its patience.
func TestLeavePolling(t *testing.T) {
	r := newRemembering(t, "clerk")
	ctx := t.Context()
	claim := protocol.Holder{ID: protocol.NewTicket(), Agent: "clerk", LeaseMS: 60_000, Slots: 1, Busy: 1, Polling: true}
	if err := r.Beat(ctx, claim); err != nil {
		t.Fatal(err)
	}
	if err := r.EndPolling(ctx, claim); err != nil {
		t.Fatal(err)
	}
	d, err := r.Directory(ctx)
	if err != nil || !d.Attended("clerk") || d.Present(claim.ID) {
		t.Errorf("attended %v, the claim is present %v, %v", d.Attended("clerk"), d.Present(claim.ID), err)
	}
	if _, gone := d.LastPresent["clerk"]; gone {
		t.Error("an agent that is present is said to have gone")
	}
}
