//go:build proof

package sim

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/lifecycle"
	"github.com/agenthandoff/handoff/internal/record"
	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/tests/verify"
	"github.com/agenthandoff/handoff/worker"
)

// Planted bugs of workspaces.
const (
	drawnTwice     bug = "a place in a workspace counted twice"
	drawSkipped    bug = "a handoff offered whose place was never made"
	grantForgotten bug = "a lock granted, and its handoff never looked at"
	placeKept      bug = "a close that gives no place and no lock back"
	waitRenewed    bug = "a request for locks that outlasts the gate of its handoff"
	zombieLocks    bug = "a lock under a fence that was lost"
)

// The workspaces of a simulation: one with a limit that is reached, one with locks.
const (
	boundedFlow = "bounded"
	lockedFlow  = "locked"
)

var lockedPaths = []string{"a", "dir/a", "dir/", "b"}

// openWorkspaces opens the one that has a limit.
func (l *simulation) openWorkspaces() {
	b, err := broker.New(l.m, broker.Config{})
	if err == nil {
		most := 4 + int(l.seed%8)
		_, err = b.OpenWorkspace(l.ctx, boundedFlow, protocol.WorkspaceLimits{MaxHandoffs: &most}, protocol.Human)
		l.judge.sawWorkspaces(l.m)
	}
	if err != nil && l.ctx.Err() == nil {
		l.judge.fault("open a workflow: %v", err)
	}
}

// planWorkspace gives some submissions a part in a workspace.
func (l *simulation) planWorkspace(p *protocol.Package, d uint64) {
	switch d % 4 {
	case 0:
		p.Context.WorkflowID = boundedFlow
	case 1:
		p.Workspace = lockedFlow
		if p.Type == protocol.Broadcast || d>>8%3 == 0 {
			return
		}
		wait := int64(1000 + d>>16%1_200_000)
		mode := protocol.LockModes[d>>40%2]
		p.Locks = &protocol.Locks{Paths: []protocol.LockPath{{Path: lockedPaths[d>>44%4], Mode: mode}}, WaitMS: &wait}
	}
}

// isTurnedAway tells whether a submission had no place: it is as it should be.
func isTurnedAway(err error) bool {
	return hasAnyCode(err, protocol.CodeLimitExceeded, protocol.CodeLockBusy)
}

func hasAnyCode(err error, codes ...protocol.Code) bool {
	for _, code := range codes {
		if errors.Is(err, &protocol.Error{Code: code}) {
			return true
		}
	}
	return false
}

type fenceKey struct{}

// lockSome asks for a lock in the work, and sets a variable.
func (h *handler) lockSome(ctx context.Context, of worker.Handoff, d uint64) {
	if !of.State().Joined || d%3 == 0 && h.l.bug != zombieLocks {
		return
	}
	if h.l.bug == zombieLocks {
		ctx = context.WithValue(ctx, fenceKey{}, of.Fence)
	}
	_, _ = of.Lock(ctx, time.Duration(d>>8%3)*time.Second, lockedPaths[d>>16%4])
	_ = of.SetVariables(ctx, map[string]json.RawMessage{"last": json.RawMessage(`"` + of.Agent + `"`)}, nil)
	if d>>24%2 == 0 {
		_ = of.Unlock(ctx)
	}
}

// asHeld is the last entry in which a handoff was held under a fence, for one who believes that it is.
func (e *engine) asHeld(entry broker.Entry, fence uint64) broker.Entry {
	for at := entry; ; {
		if made, err := record.Decode(bytes.Clone(at.Body), at.Seq); err == nil && made.State.Fence == fence {
			return at
		}
		before := e.l.entryBefore(e.Memory, at)
		if before.Seq == at.Seq {
			return entry
		}
		at = before
	}
}

func (e *engine) WorkspaceHead(ctx context.Context, id string) (broker.WorkspaceEntry, error) {
	if err := e.await(ctx, "workspace"); err != nil {
		return broker.WorkspaceEntry{}, err
	}
	return e.Memory.WorkspaceHead(ctx, id)
}

// AppendWorkspace may kill its process, before or after the append is stored.
func (e *engine) AppendWorkspace(ctx context.Context, id string, after uint64, record string, body []byte) (uint64, error) {
	if err := e.await(ctx, "append to a workspace"); err != nil {
		return 0, err
	}
	drawn := bytes.Contains(body, []byte(`"type":"drawn"`))
	if e.l.dies(e.p, id, after, "before") {
		return 0, e.p.gone()
	}
	if e.losesPlace(body) {
		return 1 << 40, nil
	}
	if e.l.bug == drawSkipped && drawn && dice(e.l.seed, "skipped", after)%4 == 0 {
		return 1 << 40, nil
	}
	switch {
	case e.l.bug == drawnTwice && drawn:
		body = withOneMore(body)
	case e.l.bug == waitRenewed:
		body = withLongerWait(body)
	}
	seq, err := e.Memory.AppendWorkspace(ctx, id, after, record, body)
	if err != nil {
		return seq, err
	}
	e.l.judge.workspaceAppended(id, seq, body)
	e.reservesLate(ctx, id, seq, body)
	if e.l.dies(e.p, id, after, "behind") {
		return 0, e.p.gone()
	}
	return seq, nil
}

func withOneMore(body []byte) []byte {
	var made protocol.WorkspaceRecord
	if err := json.Unmarshal(body, &made); err != nil {
		return body
	}
	made.State.Drawn++
	body, _ = json.Marshal(made)
	return body
}

// withLongerWait has a request for declared locks end later than the gate of its handoff.
func withLongerWait(body []byte) []byte {
	var made protocol.WorkspaceRecord
	if err := json.Unmarshal(body, &made); err != nil {
		return body
	}
	for i, e := range made.Events {
		if wait := made.State.WaitOf(e.Ticket); e.Type == protocol.WorkspaceQueued && e.Fence == 0 && wait != nil {
			made.Events[i].Until = e.Until.Add(time.Minute)
			wait.Until = made.Events[i].Until
		}
	}
	body, _ = json.Marshal(made)
	return body
}

func (e *engine) EachWorkspace(ctx context.Context, fn func(string) error) error {
	if err := e.await(ctx, "workspaces"); err != nil {
		return err
	}
	return e.Memory.EachWorkspace(ctx, fn)
}

// forgetsGrant tells whether a supervisor forgets to open the gate of a handoff.
func (e *engine) forgetsGrant(body []byte) bool {
	return e.l.bug == grantForgotten && strings.HasPrefix(e.p.name, "supervisor") && bytes.Contains(body, []byte(`"gate":"workspace"`)) && bytes.Contains(body, []byte(`"gate_opened"`))
}

func (f *faultyBroker) EnsureWorkspace(ctx context.Context, head broker.Head) (broker.Head, error) {
	if f.bug == placeKept && head.State.Closed {
		return head, nil
	}
	return f.Broker.EnsureWorkspace(ctx, head)
}

func (f *faultyBroker) SweepWorkspaces(ctx context.Context) error {
	if f.bug == placeKept {
		return nil
	}
	return f.Broker.SweepWorkspaces(ctx)
}

// sharing is what the judge knows of workspaces.
type sharing struct {
	states  map[string]protocol.Workspace
	last    map[string]int  // how many appends the ledger had at the last append of each
	drawn   map[string]bool // the handoffs that ever had a place
	settled map[string]bool // those of them whose place has ended
	lost    map[fenceOf]int // how many appends the ledger had when a fence was lost
}

type fenceOf struct {
	ticket string
	fence  uint64
}

func newSharing() sharing {
	return sharing{map[string]protocol.Workspace{}, map[string]int{}, map[string]bool{}, map[string]bool{}, map[fenceOf]int{}}
}

// sawWorkspaces takes note of workspaces that were made without a process.
func (j *judge) sawWorkspaces(m interface{ WorkspaceAppends(string) [][]byte }) {
	for _, body := range m.WorkspaceAppends(protocol.WorkspaceID(boundedFlow)) {
		j.workspaceAppended(protocol.WorkspaceID(boundedFlow), 0, body)
	}
}

// workspaceAppended checks an append of a workspace: what it makes of the state before, that no
// handoff has two places, and that no fence locks that was lost before the workspace was read.
func (j *judge) workspaceAppended(id string, seq uint64, body []byte) {
	j.mu.Lock()
	defer j.mu.Unlock()
	var made protocol.WorkspaceRecord
	if err := json.Unmarshal(body, &made); err != nil {
		j.faultLocked("a workspace does not decode: %v", err)
		return
	}
	var words []string
	for _, e := range made.Events {
		words = append(words, fmt.Sprint(e.Type, " ", e.Ticket, e.Locks, e.Fence))
	}
	j.l.sched.trace("%v workspace %s at %d: %s", j.l.since(), made.State.Name, seq, strings.Join(words, ", "))
	before := j.sharing.states[id]
	folded := before
	for _, e := range made.Events {
		var err error
		if folded, err = lifecycle.ApplyWorkspace(folded, e); err != nil {
			j.faultLocked("workspace %s: %v", made.State.Name, err)
			return
		}
		j.checkReturned(e, made.State.Name)
		if e.Type == protocol.WorkspaceDrawn {
			if j.sharing.drawn[e.Ticket] {
				j.faultLocked("%s has a second place in %s", e.Ticket, made.State.Name)
			}
			j.sharing.drawn[e.Ticket] = true
		}
		gate := j.heads[e.Ticket].state.Gate
		if e.Type == protocol.WorkspaceQueued && e.Fence == 0 && gate.First() == protocol.GateWorkspace && e.Until.After(gate.Until) {
			j.faultLocked("%s waits for its locks until %v, and its gate says %v", e.Ticket, e.Until, gate.Until)
		}
		if at, lost := j.sharing.lost[fenceOf{e.Ticket, e.Fence}]; (e.Type == protocol.WorkspaceLocked || e.Type == protocol.WorkspaceQueued) && e.Fence != 0 && lost && at < j.sharing.last[id] {
			j.faultLocked("%s locks under the fence %d, which it had lost before", e.Ticket, e.Fence)
		}
	}
	if err := verify.Workspace(before, made.State); err != nil {
		j.faultLocked("workspace %s: %v", made.State.Name, err)
	}
	if folded.Drawn != made.State.Drawn || len(folded.Locks) != len(made.State.Locks) || len(folded.Waiting) != len(made.State.Waiting) {
		j.faultLocked("workspace %s: the events make %d places, the state says %d", made.State.Name, folded.Drawn, made.State.Drawn)
	}
	j.sharing.states[id], j.sharing.last[id] = made.State, j.appends
}

// checkPlace: no handoff of a workspace is offered that never had a place there.
func (j *judge) checkPlace(before, after protocol.State, events []protocol.Event) {
	if before.Fence != 0 && after.Fence != before.Fence {
		j.sharing.lost[fenceOf{after.Ticket, before.Fence}] = j.appends
	}
	j.checkPlaceKept(after, events)
	for _, e := range events {
		if offered, ok := e.(*protocol.Offered); ok && offered.Reason == lifecycle.OfferSubmitted && after.Workspace != "" &&
			after.Type != protocol.Escalation && after.ReturnOf == "" && !j.sharing.drawn[after.Ticket] {
			j.faultLocked("%s is offered, and has no place in %s", after.Ticket, after.Workspace)
		}
	}
}

// settledWorkspaces tells whether no workspace has anything of a handoff that has closed.
func (j *judge) settledWorkspaces() bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, w := range j.sharing.states {
		if len(w.Draws)+len(w.Locks)+len(w.Waiting) > 0 {
			return false
		}
	}
	return true
}

// awaitWorkspaces waits until supervisors have ended the places of what has closed.
func (l *simulation) awaitWorkspaces() {
	for range 60 {
		if l.judge.settledWorkspaces() {
			return
		}
		l.sleep(time.Second)
	}
}

// checkWorkspaces: after the end of all handoffs no place, no lock and no request is left.
func (j *judge) checkWorkspaces() {
	for _, w := range j.sharing.states {
		if len(w.Draws)+len(w.Locks)+len(w.Waiting) > 0 {
			j.faultLocked("workspace %s has %d places, %d locks and %d requests, and all has closed", w.Name, len(w.Draws), len(w.Locks), len(w.Waiting))
		}
	}
	j.checkPlaces()
}
