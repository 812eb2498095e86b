//go:build proof

package sim

import (
	"bytes"

	"github.com/agenthandoff/handoff/protocol"
)

// Planted bugs of places in a workflow.
const (
	placeUnkept bug = "a child handed off whose place in the workflow was never kept"
	placeLeaked bug = "a place kept for a child that never came, and never given back"
)

func init() { bugs = append(bugs, placeUnkept, placeLeaked) }

// losesPlace reports whether an append of a workspace is acknowledged, and not stored.
func (e *engine) losesPlace(body []byte) bool {
	return e.l.bug == placeUnkept && bytes.Contains(body, []byte(`"type":"reserved"`)) || e.l.bug == placeLeaked && bytes.Contains(body, []byte(`"type":"returned"`))
}

// checkReturned: no place is given back of a handoff that an agent has had; that of one which went
// to a person at once counts.
func (j *judge) checkReturned(e protocol.WorkspaceEvent, name string) {
	again := j.sharing.settled[e.Ticket]
	switch {
	case e.Type == protocol.WorkspaceSettled:
		j.sharing.drawn[e.Ticket], j.sharing.settled[e.Ticket] = true, true
	case e.Type == protocol.WorkspaceReserved && again: // by a late attempt, for a child that has closed: it counts twice
		j.sharing.twice[name]++
	case e.Type == protocol.WorkspaceReturned && again:
		j.sharing.twice[name]--
	}
	if e.Type != protocol.WorkspaceReturned || again {
		return
	}
	if s := j.heads[e.Ticket].state; s.Joined || s.AttemptsTotal > 0 {
		j.faultLocked("the place of %s in %s is given back, and it has begun", e.Ticket, name)
	}
	delete(j.sharing.drawn, e.Ticket)
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
		if w.Drawn != drawn[w.Name]+j.sharing.twice[w.Name] {
			j.faultLocked("workspace %s counts %d handoffs, and %d had a place", w.Name, w.Drawn, drawn[w.Name])
		}
	}
}
