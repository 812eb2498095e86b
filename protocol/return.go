package protocol

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"
)

// System is the reserved name under which Handoff itself hands off: the source of a return whose
// handoff had no agent of its own. No other profile or package may use it.
const System = "handoff"

// ReturnBytesMax is the largest result in a return: body, variables, artifacts. A larger result
// omits these, and the notes explain how to read it.
const ReturnBytesMax = PackageBytesMax / 2

// ReturnOf returns the return of a closed handoff. It is made from its final state, its result if
// any, its trail, and the last report of its work. A nil progress is taken from the state. It is
// kept only for unfinished work. The caller fills in the members of a group.
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

// WithMembers adds the ends of its members to the return of a group. It lists the variables for
// which they returned different values.
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
		if len(r.ContextUpdates.Conflicts) < conflictsMax {
			r.ContextUpdates.Conflicts = append(r.ContextUpdates.Conflicts, VariableConflict{name, said[name]})
		}
	}
}

// OfChain turns the return of the last handoff of a chain into that of the chain. first is the
// handoff that began the chain.
func (r *Return) OfChain(first State) {
	r.LastID = r.HandoffID
	r.HandoffID, r.ToAgent, r.PackageDigest = first.Ticket, first.Source, first.Digest
	if r.FromAgent == first.Source {
		r.FromAgent = System
	}
}

// sizeOf returns the approximate size of the free parts of a result in bytes.
func sizeOf(r Result) int {
	size := len(r.Body)
	for name, value := range r.Variables {
		size += len(name) + len(value)
	}
	return size + r.Artifacts.size()
}

// returnSource returns the agent that a return comes from: the last agent of the handoff, or System
// for a group and if only its source had it.
func returnSource(state State) string {
	if state.Aggregate != nil || state.Agent == "" || state.Agent == state.Source {
		return System
	}
	return state.Agent
}

// ReturnPackage returns the package that delivers a return to the source of its handoff. The source
// claims and acknowledges it like work. It passes ValidateOwn and expects no return itself. It
// waits for its agent without limit: no other agent needs it, so it is neither rerouted nor
// escalated, and stays in the queue until taken. Its ticket is ReturnTicket.
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

// endWords describe ends for the source.
var endWords = map[Outcome]string{
	OutcomeSuccess:    "It succeeded.",
	OutcomePartial:    "It succeeded in part.",
	OutcomeFailed:     "It failed. It is among the dead letters.",
	OutcomeTimeout:    "It ran out of time. It is among the dead letters.",
	OutcomeRejected:   "No agent took it. It is among the dead letters.",
	OutcomeCancelled:  "It was cancelled.",
	OutcomeRolledBack: "It was given back before it was finished.",
}

// returnWords describes the end of a handoff for its source.
func returnWords(state State, ret Return) string {
	who := state.TargetWords()
	if state.Aggregate == nil && state.Agent != "" {
		who = state.Agent
	}
	words := fmt.Sprintf("Take in the return of handoff %s, which %s handed to %s. ", state.Ticket, state.Source, who)
	if ret.LastID != "" {
		words += fmt.Sprintf("It continued as %s. ", ret.LastID)
	}
	words += cmp.Or(endWords[ret.Outcome], "It failed.")
	if ret.RollbackReason != "" && ret.RollbackReason != ret.Message {
		words += fmt.Sprintf(" %s had asked for that: %s", cmp.Or(ret.RollbackBy, "Its source"), CutText(ret.RollbackReason, trailWordsBytesMax))
	}
	if ret.Outcome != OutcomeSuccess && ret.Message != "" {
		words += " " + CutText(ret.Message, trailWordsBytesMax)
	}
	return words
}

// RedrivePackage returns the package with which a closed handoff is submitted again under
// RedriveTicket: the same work for the same target, with the handoff as its origin. It passes
// ValidateOwn. It has no key, since the key's ticket is the origin's, and keeps only a future
// start and deadline. A member of a group is redriven alone: its target is the member's own, and its end goes
// to no group; a group is redriven as a whole.
func RedrivePackage(state State, pkg Package, now Time) Package {
	pkg.Key, pkg.Origin, pkg.CreatedAt = "", state.Ticket, time.Time{}
	if !pkg.Constraints.Deadline.After(now) {
		pkg.Constraints.Deadline = time.Time{}
	}
	if !pkg.StartAt.After(now) {
		pkg.StartAt = time.Time{}
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

// ReturnStatus is the status of the work in a return.
type ReturnStatus string

const (
	ReturnSuccess ReturnStatus = "success"
	ReturnPartial ReturnStatus = "partial"
	ReturnFailed  ReturnStatus = "failed" // also rejected, cancelled, rolled back: see Outcome
	ReturnTimeout ReturnStatus = "timeout"
)

// ReturnStatusOf returns the status of a return for an outcome.
func ReturnStatusOf(o Outcome) ReturnStatus {
	switch o {
	case OutcomeSuccess, OutcomePartial, OutcomeTimeout:
		return ReturnStatus(o)
	}
	return ReturnFailed
}

// Return is the end of a handoff for its source.
type Return struct {
	HandoffID      string          `json:"handoff_id"`
	FromAgent      string          `json:"from_agent"`
	ToAgent        string          `json:"to_agent"`
	LastID         string          `json:"last_id,omitempty"` // the last handoff of its chain, if different
	Status         ReturnStatus    `json:"status"`
	Result         *ReturnResult   `json:"result,omitempty"`
	ContextUpdates *ContextUpdates `json:"context_updates,omitempty"`
	Audit          ReturnAudit     `json:"audit,omitzero"`

	Outcome Outcome `json:"outcome"`
	Reason  string  `json:"reason,omitempty" redact:"text"`  // the code of the outcome
	Message string  `json:"message,omitempty" redact:"text"` // the same in words
	// RollbackReason is why the handoff was rolled back, and RollbackBy the requester, unless it was
	// its holder. Message has the holder's own words.
	RollbackReason string `json:"rollback_reason,omitempty" redact:"text"`
	RollbackBy     string `json:"rollback_by,omitempty"`
	// PackageDigest is the digest of the handed-off package.
	PackageDigest string `json:"package_digest,omitempty"`
	// Progress is the last report of unfinished work.
	Progress *Progress `json:"progress,omitempty"`
	// Trail lists the refusals, questions, escalations and failures before the end.
	Trail []TrailEntry `json:"trail,omitempty"`
	// Members lists the ends of a group's members, in the order of its recipients.
	Members []MemberReturn `json:"members,omitempty"`
}

// ReturnResult is the result in a return.
type ReturnResult struct {
	ContentType string          `json:"content_type,omitempty"`
	Body        json.RawMessage `json:"body,omitempty" redact:"free"`
	Summary     string          `json:"summary,omitempty" redact:"text"`
}

// ContextUpdates are the changes and products of the work.
type ContextUpdates struct {
	VariablesChanged  map[string]json.RawMessage `json:"variables_changed,omitempty" redact:"free"`
	ArtifactsProduced Artifacts                  `json:"artifacts_produced,omitzero"`
	// Conflicts lists variables for which the members of a group returned different values; the source
	// resolves them. At most conflictsMax are listed, by name.
	Conflicts []VariableConflict `json:"conflicts,omitempty"`
}

// conflictsMax is how many conflicting variables the return of a group names.
const conflictsMax = 64

// VariableConflict is a variable for which members of a group returned different values.
type VariableConflict struct {
	Name    string   `json:"name"`
	Tickets []string `json:"tickets"` // of the members that returned one, in order
}

// ReturnAudit is the cost of the work.
type ReturnAudit struct {
	CompletionTime Time   `json:"completion_time,omitzero"`
	TokensConsumed int64  `json:"tokens_consumed,omitempty"`
	Notes          string `json:"notes,omitempty" redact:"text"`
}

// MemberReturn is the end of one member of a group. Without Closed it had not ended when the
// group's outcome was certain.
type MemberReturn struct {
	Agent  string       `json:"agent"`
	Ticket string       `json:"ticket"`
	LastID string       `json:"last_id,omitempty"` // as in Return
	Closed bool         `json:"closed"`
	Status ReturnStatus `json:"status,omitempty"`
	// Outcome distinguishes the ends that Status calls failed: a cancelled member, say.
	Outcome Outcome `json:"outcome,omitempty"`
	// Result is omitted if all results together exceed MemberResultsBytesMax: then read it by Ticket.
	Result *Result `json:"result,omitempty"`
}

// MemberResultsBytesMax is the total size of members' results in the return of a group, in bytes of
// JSON.
const MemberResultsBytesMax = 4 << 20

// TrailEntry is one event in the history of a handoff before its present agent. It has only the
// parts that the next agent needs.
type TrailEntry struct {
	At    Time      `json:"at"`
	Event EventType `json:"event"` // rejected, conditioned, answered, escalated, rerouted, timed_out, lease_lost, failed, redriven
	Agent string    `json:"agent,omitempty"`
	To    string    `json:"to,omitempty"`
	Code  string    `json:"code,omitempty"` // reason code, clock, failure code
	Words string    `json:"words,omitempty" redact:"text"`
	// Assessment is the findings of an agent that escalated.
	Assessment string `json:"assessment,omitempty" redact:"text"`
	Level      int    `json:"level,omitempty"`
	// Progress is the last report of the attempt that ended with this entry.
	Progress *Progress `json:"progress,omitempty"`
}

// trailMax is how many entries a trail has at most: the newest are kept.
const trailMax = 100

// Previous is the result of the handoff that a package follows from by goto: of the previous link
// of a chain only. An empty result makes none.
type Previous struct {
	Agent   string          `json:"agent"`
	Ticket  string          `json:"ticket"`
	Summary string          `json:"summary,omitempty" redact:"text"` // cut at PreviousSummaryBytesMax
	Body    json.RawMessage `json:"body,omitempty" redact:"free"`
	// BodyDigest and BodyBytes replace a body over PreviousBodyBytesMax: the Digest of its JSON in the
	// result of Ticket, and its length.
	BodyDigest string    `json:"body_digest,omitempty"`
	BodyBytes  int64     `json:"body_bytes,omitempty"`
	Artifacts  Artifacts `json:"artifacts,omitzero"` // none if they exceed PreviousArtifactsBytesMax
}

// previousOf returns the part of a result for the next agent; nil if the result is empty.
func previousOf(agent, ticket string, result Result) *Previous {
	if len(result.Body) == 0 && result.Summary == "" && result.Artifacts.IsZero() {
		return nil
	}
	p := &Previous{Agent: agent, Ticket: ticket, Body: result.Body, Summary: CutText(result.Summary, previousSummaryBytesMax)}
	if size := len(result.Body); size > PreviousBodyBytesMax {
		p.Body, p.BodyDigest, p.BodyBytes = nil, Digest(result.Body), int64(size)
	}
	if result.Artifacts.size() <= previousArtifactsBytesMax {
		p.Artifacts = result.Artifacts
	}
	return p
}

func checkPrevious(p *Previous) *Error {
	if p == nil {
		return nil
	}
	const field = "context.previous"
	if err := checkID(field+".agent", p.Agent); err != nil {
		return err
	}
	switch _, err := ParseTicket(p.Ticket); {
	case err != nil:
		return Errorf(CodeInvalid, field+".ticket", "is not a ticket; it is that of the handoff that had the result")
	case len(p.Body) > 0 && p.BodyDigest != "":
		return Errorf(CodeConflict, field+".body_digest", "replaces an omitted body, but the body is present")
	}
	return cmp.Or(between(field+".body_bytes", p.BodyBytes, 0, ResultBytesMax), checkArtifacts(field+".artifacts", p.Artifacts))
}

// DigestPrefix begins every digest, so that another hash can be added.
const DigestPrefix = "sha256:"

// Digest returns the digest of a body.
func Digest(body []byte) string {
	sum := sha256.Sum256(body)
	var text [len(DigestPrefix) + 2*sha256.Size]byte
	hex.Encode(text[copy(text[:], DigestPrefix):], sum[:])
	return string(text[:])
}
