package protocol

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"
)

// System is the reserved name under which Handoff itself hands off: the source
// of a return whose handoff had no agent of its own. No profile and no package
// of others may have it.
const System = "handoff"

// ReturnBytesMax is how much of a result a return carries: body, variables,
// artifacts. Of a larger one these are left out, and the notes say how to read it.
const ReturnBytesMax = PackageBytesMax / 2

// ReturnOf makes the return of a closed handoff. It is made of its state
// after the end, its result if it has one, its trail, and the last report of its work.
// progress may be nil: then it is the state's own. It is kept only where the work was not
// finished. The members of a group are for the caller to fill in.
func ReturnOf(state State, result *Result, trail []TrailEntry, progress *Progress) Return {
	r := Return{
		HandoffID: state.Ticket, FromAgent: returnSource(state), ToAgent: state.Source,
		Status: ReturnStatusOf(state.Outcome), Outcome: state.Outcome, Reason: state.Reason, Message: state.Message,
		Audit: ReturnAudit{CompletionTime: state.ClosedAt, TokensConsumed: state.Usage.Total().Tokens},
		Trail: trail, PackageDigest: state.Digest,
	}
	if state.Outcome == OutcomeRolledBack {
		r.RollbackReason, r.RollbackBy = cmp.Or(state.CancelReason, state.Message), state.CancelBy
	}
	if state.Outcome != OutcomeSuccess {
		if r.Progress = progress; progress == nil {
			r.Progress = state.Progress
		}
	}
	if result == nil {
		return r
	}
	r.Audit.Notes = result.Notes
	if r.Audit.TokensConsumed == 0 && result.Usage != nil {
		r.Audit.TokensConsumed = result.Usage.Tokens
	}
	body := ReturnResult{ContentType: result.ContentType, Body: result.Body, Summary: result.Summary}
	updates := ContextUpdates{VariablesChanged: result.Variables, ArtifactsProduced: result.Artifacts}
	if size := sizeOf(*result); size > ReturnBytesMax {
		body.Body, updates = nil, ContextUpdates{}
		left := fmt.Sprintf("the result is %s and was left out; read the result of %s", Size(int64(size)), state.Ticket)
		if r.Audit.Notes != "" {
			left = r.Audit.Notes + "\n" + left
		}
		r.Audit.Notes = left
	}
	if body.ContentType != "" || body.Body != nil || body.Summary != "" {
		r.Result = &body
	}
	if len(updates.VariablesChanged) > 0 || !updates.ArtifactsProduced.IsZero() {
		r.ContextUpdates = &updates
	}
	return r
}

// WithMembers gives the return of a group the ends of its members. It names the variables of which
// they returned different values.
func (r *Return) WithMembers(members []MemberReturn) {
	r.Members = members
	values, said, differ := map[string][]byte{}, map[string][]string{}, map[string]bool{}
	for _, m := range members {
		if m.Result == nil {
			continue
		}
		for name, value := range m.Result.Variables {
			var compact bytes.Buffer
			_ = json.Compact(&compact, value) // it was decoded from JSON
			if first, is := values[name]; is && !bytes.Equal(first, compact.Bytes()) {
				differ[name] = true
			} else if !is {
				values[name] = compact.Bytes()
			}
			said[name] = append(said[name], m.Ticket)
		}
	}
	if len(differ) == 0 {
		return
	}
	if r.ContextUpdates == nil {
		r.ContextUpdates = &ContextUpdates{}
	}
	for _, name := range slices.Sorted(maps.Keys(differ)) {
		if len(r.ContextUpdates.Conflicts) < ConflictsMax {
			r.ContextUpdates.Conflicts = append(r.ContextUpdates.Conflicts, VariableConflict{name, said[name]})
		}
	}
}

// OfChain makes the return of a chain of that of its last handoff. first is the handoff that
// began the chain.
func (r *Return) OfChain(first State) {
	r.LastID = r.HandoffID
	r.HandoffID, r.ToAgent, r.PackageDigest = first.Ticket, first.Source, first.Digest
	if r.FromAgent == first.Source {
		r.FromAgent = System
	}
}

// sizeOf is about how many bytes the free parts of a result are.
func sizeOf(r Result) int {
	size := len(r.Body)
	for name, value := range r.Variables {
		size += len(name) + len(value)
	}
	return size + r.Artifacts.size()
}

// returnSource is the agent that a return comes from: who had the handoff last,
// or System for a group and where no agent but its source had it.
func returnSource(state State) string {
	if state.Aggregate != nil || state.Agent == "" || state.Agent == state.Source {
		return System
	}
	return state.Agent
}

// ReturnPackage is the package that delivers a return to the source of its handoff. The
// source claims and acknowledges it like work. It passes ValidateOwn and expects no return
// itself. It waits for its agent as long as that takes: no other agent wants it, so it is
// neither rerouted nor escalated, and a handoff that no agent takes stays in the queue.
// Its ticket is ReturnTicket's.
func ReturnPackage(state State, ret Return, now Time) Package {
	queue, none := NoTakerQueue, 0
	pkg := Package{
		Type: Sequential, Trigger: TriggerTaskCompletion,
		Source: ret.FromAgent, Target: Target{Agent: state.Source},
		Reason:   fmt.Sprintf("return of %s: %s", state.Ticket, ret.Outcome),
		Priority: state.Priority, Parent: state.Parent,
		Task:     Task{ID: state.TaskID, Description: returnWords(state, ret)},
		Context:  Context{WorkflowID: state.WorkflowID},
		Policy:   PolicyOverrides{OnNoTaker: &queue, MaxReroutes: &none, MaxEscalations: &none},
		Returned: &ret,
	}
	if ret.Status == ReturnTimeout {
		pkg.Trigger = TriggerTimeout
	}
	if state.ConversationID != "" {
		id := state.ConversationID
		pkg.Context.ConversationID = &id
	}
	pkg.Normalize(now)
	return pkg
}

// returnWords tell the source of a handoff how it ended.
func returnWords(state State, ret Return) string {
	who := state.TargetWords()
	if state.Aggregate == nil && state.Agent != "" {
		who = state.Agent
	}
	words := fmt.Sprintf("Take in the return of handoff %s, which %s handed to %s. ", state.Ticket, state.Source, who)
	if ret.LastID != "" {
		words += fmt.Sprintf("It was handed on, and ended as %s. ", ret.LastID)
	}
	switch ret.Outcome {
	case OutcomeSuccess:
		words += "It succeeded."
	case OutcomePartial:
		words += "It succeeded in part."
	case OutcomeTimeout:
		words += "It ran out of time."
	case OutcomeRejected:
		words += "No agent took it."
	case OutcomeCancelled:
		words += "It was cancelled."
	case OutcomeRolledBack:
		words += "It was given back before it was finished."
	default:
		words += "It failed."
	}
	switch ret.Outcome {
	case OutcomeFailed, OutcomeTimeout, OutcomeRejected:
		words += " It is among the dead letters."
	}
	if ret.RollbackReason != "" && ret.RollbackReason != ret.Message {
		words += fmt.Sprintf(" %s had asked for that: %s", cmp.Or(ret.RollbackBy, "Its source"), CutText(ret.RollbackReason, TrailWordsBytesMax))
	}
	if ret.Outcome != OutcomeSuccess && ret.Message != "" {
		words += " " + CutText(ret.Message, TrailWordsBytesMax)
	}
	return words
}

// RedrivePackage is the package of a closed handoff as it is submitted again
// under RedriveTicket: the same work for the same target, with the handoff named
// as its origin. It passes ValidateOwn. It has no key, since the key's ticket is
// the origin's, and a deadline only if that still lies ahead. A member of a group
// is redriven alone: its target is the member's own, and its end goes to no one agent's
// group; a group is redriven whole.
func RedrivePackage(state State, pkg Package, now Time) Package {
	pkg.Key, pkg.Origin, pkg.CreatedAt = "", state.Ticket, time.Time{}
	if !pkg.Constraints.Deadline.After(now) {
		pkg.Constraints.Deadline = time.Time{}
	}
	if state.Group != "" {
		pkg.Type, pkg.Target, pkg.Members = Sequential, state.Target, nil
		if pkg.Return != nil {
			own := *pkg.Return
			own.Aggregation, own.From, own.CancelRest = "", nil, false
			pkg.Return = &own
		}
	}
	pkg.Normalize(now)
	return pkg
}
