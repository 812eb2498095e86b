//go:build proof

package sim

import (
	"bytes"
	"context"
	"encoding/json"

	"github.com/agenthandoff/handoff/internal/lifecycle"
	"github.com/agenthandoff/handoff/protocol"
)

// Planted bugs of places in a workflow.
const (
	placeUnkept bug = "a child handed off whose place in the workflow was never kept"
	placeLeaked bug = "a place kept for a child that never came, and never given back"
	placeAgain  bug = "a place kept for a child that has closed"
)

func init() { bugs = append(bugs, placeUnkept, placeLeaked, placeAgain) }

// losesPlace reports whether an append of a workspace is acknowledged, and not stored.
func (e *engine) losesPlace(body []byte) bool {
	return e.l.bug == placeUnkept && bytes.Contains(body, []byte(`"type":"reserved"`)) || e.l.bug == placeLeaked && bytes.Contains(body, []byte(`"type":"returned"`))
}

// reservesLate reserves places again of handoffs that have just left their workspace, as an attempt
// would that has lost its lease and asks nobody whether its child is handed off.
func (e *engine) reservesLate(ctx context.Context, id string, seq uint64, body []byte) {
	var left protocol.WorkspaceRecord
	if e.l.bug != placeAgain || json.Unmarshal(body, &left) != nil {
		return
	}
	for _, event := range left.Events {
		parent := e.l.judge.parentOf(event.Ticket)
		if event.Type != protocol.WorkspaceSettled || parent == "" {
			continue
		}
		late := lifecycle.Reservation{Tickets: []string{event.Ticket}, For: parent, Child: event.Ticket, Fence: 1, By: "late"}
		step, err := lifecycle.ReservePlaces(left.State, left.State.Name, late, protocol.State{Ticket: parent, Fence: 1}, left.State.UpdatedAt)
		if err != nil || len(step.Events) == 0 {
			continue
		}
		record, err := json.Marshal(protocol.WorkspaceRecord{ID: left.ID + " late", Events: step.Events, State: step.State})
		if err != nil {
			panic(err)
		}
		if seq, err = e.Memory.AppendWorkspace(ctx, id, seq, left.ID+" late", record); err == nil {
			e.l.judge.workspaceAppended(id, seq, record)
		}
		return
	}
}

// parentOf is the handoff that handed a ticket off, or empty.
func (j *judge) parentOf(ticket string) string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.heads[ticket].state.Parent
}

// checkReturned: no place is given back of a handoff that an agent has had; that of one which went
// to a person at once counts. None is kept again for one whose place has ended.
func (j *judge) checkReturned(e protocol.WorkspaceEvent, name string) {
	switch {
	case e.Type == protocol.WorkspaceSettled:
		j.sharing.drawn[e.Ticket], j.sharing.settled[e.Ticket] = true, true
	case e.Type == protocol.WorkspaceReserved && j.sharing.settled[e.Ticket]:
		j.faultLocked("%s gets a second place in %s, after the end of its first", e.Ticket, name)
	case e.Type == protocol.WorkspaceReturned:
		if s := j.heads[e.Ticket].state; s.Joined || s.AttemptsTotal > 0 {
			j.faultLocked("the place of %s in %s is given back, and it has begun", e.Ticket, name)
		}
		delete(j.sharing.drawn, e.Ticket)
	}
}

// checkPlaceKept: what was handed off has its place in the workflow from before. Of a group that was
// submitted each member asks for its own.
func (j *judge) checkPlaceKept(after protocol.State, events []protocol.Event) {
	if after.Group != "" && j.heads[after.Group].state.N == 0 {
		return
	}
	for _, e := range events {
		if end, ok := e.(*protocol.Closed); ok && after.N > 0 && end.Reason == string(protocol.CodeLimitExceeded) {
			j.faultLocked("%s was handed off, and has no place in %s: %s", after.Ticket, after.Workspace, end.Message)
		}
	}
}

// checkPlaces: at the end each workspace counts the handoffs that had a place, and no other.
func (j *judge) checkPlaces() {
	drawn := map[string]int{}
	for ticket := range j.sharing.drawn {
		drawn[j.heads[ticket].state.Workspace]++
	}
	for _, w := range j.sharing.states {
		if w.Drawn != drawn[w.Name] {
			j.faultLocked("workspace %s counts %d handoffs, and %d had a place", w.Name, w.Drawn, drawn[w.Name])
		}
	}
}
