package protocol

import (
	"cmp"
	"encoding/json"
	"maps"
	"slices"
	"time"
)

// Version is the protocol version that this code writes, "major.minor". A package of another major
// version is refused, a newer minor one is accepted.
const Version = "1.0"

// Type is how responsibility moves.
type Type string

const (
	Sequential Type = "sequential" // ownership passes to the target for good
	Delegation Type = "delegation" // the source keeps ownership and expects a return
	Broadcast  Type = "broadcast"  // one package to several agents
	Escalation Type = "escalation" // up the chain of authority
)

// Trigger is why a handoff began.
type Trigger string

const (
	TriggerTaskCompletion     Trigger = "task_completion"
	TriggerCapabilityMismatch Trigger = "capability_mismatch"
	TriggerEscalation         Trigger = "escalation"
	TriggerTimeout            Trigger = "timeout"
	TriggerExplicitRequest    Trigger = "explicit_request"
)

// Priority orders the lanes of an agent's queue, critical first.
type Priority string

const (
	Critical Priority = "critical"
	High     Priority = "high"
	Normal   Priority = "normal"
	Low      Priority = "low"
)

// Priorities lists all priorities, most urgent first.
var Priorities = []Priority{Critical, High, Normal, Low}

// Risk is a level of risk.
type Risk string

const (
	RiskLow    Risk = "low"
	RiskMedium Risk = "medium"
	RiskHigh   Risk = "high"
)

// Human is the reserved agent at the end of every escalation chain: a person. It exists without a
// profile, serves no workers of ours and is never absent.
const Human = "human"

// Package is the work that one agent hands to another. It is immutable once submitted; an Answer
// may add a supplement.
type Package struct {
	Version string `json:"version,omitempty"` // protocol version; empty means Version
	Key     string `json:"key,omitempty" flag:"key" doc:"idempotency {KEY}: the same source, key and package are the same handoff"`
	Type    Type   `json:"type,omitempty" flag:"type" doc:"{TYPE}: sequential (default), delegation, broadcast or escalation (needs no target)"`
	// Trigger is explicit_request by default.
	Trigger   Trigger  `json:"trigger,omitempty" flag:"trigger" doc:"{WHAT} set it off: {}"`
	Source    string   `json:"source"`          // agent that hands off
	Target    Target   `json:"target,omitzero"` // agent, capability, or several agents; see Members and Escalation
	Reason    string   `json:"reason" redact:"text" flag:"reason" doc:"{WHY} this handoff"`
	Priority  Priority `json:"priority,omitempty" flag:"priority" doc:"{PRIORITY}: critical, high, normal (default) or low"`
	Parent    string   `json:"parent,omitempty"` // ticket this one follows from
	CreatedAt Time     `json:"created_at,omitzero"`
	// StartAt is when it is first offered; absent, or up to startSkewMS ago, is at once. It is at most
	// 89 days ahead and before the deadline. The clocks of the handoff run from it.
	StartAt Time `json:"start_at,omitzero"`

	Task                 Task                 `json:"task" flag:""`
	Context              Context              `json:"context,omitzero" flag:""`
	Constraints          Constraints          `json:"constraints,omitzero" flag:""`
	Expectations         Expectations         `json:"expectations,omitzero" flag:""`
	RequiredCapabilities []RequiredCapability `json:"required_capabilities,omitempty"`
	AutonomyBudget       *AutonomyBudget      `json:"autonomy_budget,omitempty"`
	Approval             *Approval            `json:"approval,omitempty" flag:""`
	Return               *ReturnProtocol      `json:"return,omitempty" flag:""`
	Audit                Audit                `json:"audit,omitzero" flag:""`
	Policy               PolicyOverrides      `json:"policy,omitzero" flag:""`
	Limits               *Limits              `json:"limits,omitempty" flag:""` // of it and everything that follows from it
	Routing              *RoutingRules        `json:"routing,omitempty" flag:""`
	Bids                 *Bids                `json:"bids,omitempty" flag:""` // agents with target.capability bid for it
	Next                 []NextRule           `json:"next,omitempty"`         // rules for a result without a command

	// Workspace names the workflow whose limits, locks and variables it shares; the default is
	// context.workflow_id, if such a workspace was opened. Locks are held from before its offer until
	// its end.
	Workspace string `json:"workspace,omitempty" flag:"workspace" doc:"{NAME} of the workflow that it has a place in (default: the workflow of its context, if that was opened)"`
	Locks     *Locks `json:"locks,omitempty" flag:""`

	// Members makes this a group of different packages: each is this one, merged with the member's own
	// target and fields. The type is broadcast, without a target of its own.
	Members []Member `json:"members,omitempty"`

	// Returned is the content of a return: the end of a handoff that this package's target had handed
	// off. Origin is the handoff that this one redrives. Only Handoff writes both.
	Returned *Return `json:"returned,omitempty"`
	Origin   string  `json:"origin,omitempty"`

	// TraceParent and TraceState put the handoff into a trace (W3C Trace Context). They are moved from
	// the package to State.Trace at the submission.
	TraceParent string `json:"traceparent,omitempty"`
	TraceState  string `json:"tracestate,omitempty"`

	// Extra holds the top-level fields of a newer minor version, which this code does not know and
	// keeps unchanged.
	Extra map[string]json.RawMessage `json:"-"`
}

// Target names the recipient of the work. Exactly one field is set.
type Target struct {
	Agent      string   `json:"agent,omitempty"`
	Capability string   `json:"capability,omitempty"`
	Agents     []string `json:"agents,omitempty"` // broadcast
}

// Task is the work item.
type Task struct {
	ID           string   `json:"id,omitempty" flag:"task-id" doc:"{ID} of the task, your own"`
	Type         string   `json:"type,omitempty" flag:"task-type" doc:"{KIND} of task, your own word"`
	Description  string   `json:"description" redact:"text" flag:"task" doc:"{WHAT} is to be done, in words"`
	Requirements []string `json:"requirements,omitempty" redact:"text" flag:"requirement" doc:"{WORDS} that the work must meet (repeatable)"`
}

// Context is the knowledge that the target needs to continue without finding it out again.
type Context struct {
	OriginalRequest string `json:"original_request,omitempty" redact:"text" flag:"request" doc:"the user's original {REQUEST}, verbatim"`
	// UserIntent and ConversationID may be absent, but not empty: hence the pointers.
	UserIntent *string `json:"user_intent,omitempty" redact:"text" flag:"intent" doc:"{WHAT} the user wants in the end"`
	// ConversationID is the session_id of other systems.
	ConversationID *string `json:"conversation_id,omitempty" flag:"conversation" doc:"{ID} of the conversation it belongs to"`
	WorkflowID     string  `json:"workflow_id,omitempty" flag:"workflow" doc:"{ID} of the workflow it belongs to"`
	UserID         string  `json:"user_id,omitempty"`
	CorrelationID  string  `json:"correlation_id,omitempty"`
	TraceID        string  `json:"trace_id,omitempty"` // harness_trace_id in some systems

	Phase          string            `json:"phase,omitempty"` // workflow phase, not the handoff's
	NextPhase      string            `json:"next_phase,omitempty"`
	CompletedSteps []json.RawMessage `json:"completed_steps,omitempty" redact:"free"` // words or objects
	RemainingSteps []json.RawMessage `json:"remaining_steps,omitempty" redact:"free"`

	Summary    string   `json:"summary,omitempty" redact:"text"`
	KeyPoints  []string `json:"key_points,omitempty" redact:"text"`
	ContextURL string   `json:"context_url,omitempty" redact:"text"` // reference transfer: the address of the rest

	// ConversationHistory holds opaque messages: objects with role, name, content and other fields,
	// kept unchanged.
	ConversationHistory []Message       `json:"conversation_history,omitempty" redact:"free"`
	HistoryTransfer     HistoryTransfer `json:"history_transfer,omitzero" flag:""`

	Previous            *Previous                  `json:"previous,omitempty"` // the previous result, in a handoff that follows by goto
	Variables           map[string]json.RawMessage `json:"variables,omitempty" redact:"free"`
	Decisions           []Decision                 `json:"decisions,omitempty"`
	IntermediateResults map[string]json.RawMessage `json:"intermediate_results,omitempty" redact:"free"`
	RelevantFiles       []FileReference            `json:"relevant_files,omitempty" redact:"text" flag:"relevant-file" doc:"{PATH} of a file to read first (repeatable)"`
	FilesInProgress     []FileLock                 `json:"files_in_progress,omitempty"`
	Artifacts           Artifacts                  `json:"artifacts,omitzero"`
	Constraints         []string                   `json:"constraints,omitempty" redact:"text"` // in words
	WhenStuck           []string                   `json:"when_stuck,omitempty" redact:"text"`
	Metrics             map[string]json.RawMessage `json:"metrics,omitempty" redact:"free"`
	Metadata            map[string]json.RawMessage `json:"metadata,omitempty" redact:"free"`
}

// HistoryTransfer controls how much of the conversation is handed off, and records how much was.
type HistoryTransfer struct {
	Mode TransferMode `json:"mode,omitempty" flag:"transfer" doc:"{HOW} much of the conversation goes: full, relevant_only, summary or reference (default: summary for a delegation, full for an escalation, else relevant_only)"`
	// MaxMessages 0 is no limit.
	MaxMessages int `json:"max_messages,omitempty" flag:"max-messages" doc:"of the conversation, at most {N} messages: the first request, the newest, and those about the task"`
	// MaxTokens bounds the estimated tokens (Tokens) of the messages, and of a summary made from them;
	// 0 is no limit.
	MaxTokens int      `json:"max_tokens,omitempty" flag:"max-context-tokens" doc:"of the conversation, at most {N} tokens, as estimated"`
	Include   *Include `json:"include,omitempty"`

	// The cuts since the conversation was first handed off: Omitted messages, and of OriginalTokens
	// the remaining Tokens. By is the author of the summary that replaces them.
	Omitted        int       `json:"omitted,omitempty"`
	OriginalTokens int       `json:"original_tokens,omitempty"`
	Tokens         int       `json:"tokens,omitempty"`
	By             SummaryBy `json:"by,omitempty"`
}

// SummaryBy is the author of the summary that replaces a conversation.
type SummaryBy string

const (
	SummaryBySource  SummaryBy = "source"  // the agent that hands off
	SummaryByExtract SummaryBy = "extract" // Handoff, by extracts
	SummaryByCommand SummaryBy = "command" // a summarizer that the source has configured
	SummaryByModel   SummaryBy = "model"   // a model behind an endpoint that the source has configured
)

// TransferMode is a context transfer strategy (documents 1 and 4).
type TransferMode string

const (
	TransferFull         TransferMode = "full"
	TransferSummary      TransferMode = "summary"
	TransferRelevantOnly TransferMode = "relevant_only"
	TransferReference    TransferMode = "reference"
)

// Include omits kinds of message: those whose flag is false. A kind without a flag is sent. A call
// of a tool without its result, or a result without its call, is sent as a text: a model refuses
// one without the other.
type Include struct {
	SystemMessages *bool `json:"system_messages,omitempty"`
	ToolCalls      *bool `json:"tool_calls,omitempty"`
	ToolResults    *bool `json:"tool_results,omitempty"`
	AgentReasoning *bool `json:"agent_reasoning,omitempty"`
}

// Decision is a decision made earlier in the workflow.
type Decision struct {
	ID          string `json:"id,omitempty"`
	Description string `json:"description" redact:"text"`
	Rationale   string `json:"rationale,omitempty" redact:"text"`
	MadeBy      string `json:"made_by,omitempty"`
	At          Time   `json:"at,omitzero"`
}

// FileReference points at a file and its relevant sections. A bare string is read as a path.
type FileReference struct {
	Path     string   `json:"path" redact:"text"`
	Sections []string `json:"sections,omitempty" redact:"text"`
}

// FileLock is a file that an agent works on. Handoff transports it, but does not enforce it.
type FileLock struct {
	Path     string `json:"path" redact:"text"`
	Owner    string `json:"owner,omitempty"`
	LockType string `json:"lock_type,omitempty"` // exclusive or shared
}

// Artifact refers to a product of the work.
type Artifact struct {
	ID          string `json:"id,omitempty"`
	Name        string `json:"name,omitempty" redact:"text"`
	Type        string `json:"type,omitempty"`               // file, code, document, test_result, review_comment, …
	Path        string `json:"path,omitempty" redact:"text"` // path or URI
	Status      string `json:"status,omitempty"`
	CreatedBy   string `json:"created_by,omitempty"`
	CreatedAt   Time   `json:"created_at,omitzero"`
	Description string `json:"description,omitempty" redact:"text"`
}

// Artifacts are a list, or a map from name to path. In a map null is an artifact that does not
// exist yet. Either form is kept.
type Artifacts struct {
	List   []Artifact
	ByName map[string]*string
}

// Constraints limit the work.
type Constraints struct {
	Budget     *float64 `json:"budget,omitempty"` // in the fleet's own unit, usually tokens
	Deadline   Time     `json:"deadline,omitzero"`
	Complexity string   `json:"complexity,omitempty" flag:"complexity" doc:"{CLASS} that sets limits which are not given: simple, medium, complex, or auto (what assists classifies it; default the rules of the fleet)"`
	// ComplexityBy names the classifier that the source used; absent is the source itself.
	ComplexityBy Classifier `json:"complexity_by,omitempty"`
}

// Classifier classifies the tasks of a source: a command or a model.
type Classifier string

const (
	ClassifiedByCommand Classifier = "command"
	ClassifiedByModel   Classifier = "model"
)

// Expectations describe a good result.
type Expectations struct {
	OutputSchema    json.RawMessage `json:"output_schema,omitempty"` // JSON Schema of Result.Body
	SuccessCriteria []string        `json:"success_criteria,omitempty" redact:"text" flag:"criterion" doc:"{WORDS} by which the result is judged (repeatable)"`
	TimeoutMS       int64           `json:"timeout_ms,omitempty" flag:"work-timeout" doc:"from acceptance to completion (default: the agent's, else 1h)"`
	MaxIterations   int             `json:"max_iterations,omitempty"`
}

// RequiredCapability is a capability that the target must have. A bare string is read as an id.
type RequiredCapability struct {
	ID             string  `json:"id"`
	MinProficiency float64 `json:"min_proficiency,omitempty"` // 0 to 1
}

// AutonomyBudget is how far the target may act alone.
type AutonomyBudget struct {
	MaxRisk Risk     `json:"max_risk,omitempty"`
	Amount  *float64 `json:"amount,omitempty"`
	// Deciders lists the agents, or a person, who may still decide after a denial, in order: at most
	// DecidersMax. Without them a denial is final.
	Deciders []string `json:"deciders,omitempty"`
}

// Approval configures the approval before an agent gets the handoff. Required asks in any case; the
// rest also applies if a profile or a rule of the fleet asks.
type Approval struct {
	Required bool `json:"required,omitempty"`
	// By is the approver; absent is the source's escalates_to, else a person.
	By       string `json:"by,omitempty" flag:"approve-by" doc:"the {AGENT}, or human, that approves it before its target gets it"`
	Question string `json:"question,omitempty" redact:"text" flag:"approval-question" doc:"{WHAT} the approver is asked"`
	// TimeoutMS bounds the wait for each approver; absent is ApprovalTimeoutDefaultMS.
	TimeoutMS int64           `json:"timeout_ms,omitempty" flag:"approval-timeout" doc:"an approver has so long to answer, then the authority above is asked (default 24h)"`
	OnTimeout ApprovalTimeout `json:"on_timeout,omitempty" flag:"on-approval-timeout" doc:"{WHAT} follows where an approver does not answer: escalate (default) or close"`
}

// ReturnProtocol controls whether and how the result returns to the source.
type ReturnProtocol struct {
	Expected  bool      `json:"expected"`
	TimeoutMS int64     `json:"timeout_ms,omitempty" flag:"return-timeout" doc:"a result is expected back within this; required for a delegation"`
	OnTimeout OnTimeout `json:"on_timeout,omitempty" flag:"on-return-timeout" doc:"{WHAT} follows the return timeout: fail (default), retry or escalate"`
	Wait      string    `json:"wait,omitempty" flag:"await" doc:"{WHAT} a parent that hands this off does meanwhile: continue (default), or block until it has ended. The program of a worker is run again then"`
	// Of selects the end that is returned: that of the chain, which is the default, or of this handoff
	// alone. For a group it applies to each member.
	Of ReturnScope `json:"of,omitempty" flag:"return-of" doc:"{WHOSE} end is the return: chain, with all that is handed on by goto (default), or handoff"`

	// For a group: how the ends of its members determine its own (default all), which of them count
	// (default all), and whether the others are cancelled once its outcome is certain.
	Aggregation Aggregation `json:"aggregation,omitempty" flag:"aggregate" doc:"a group has succeeded when {WHO} of it has: all (default), any or majority"`
	From        []string    `json:"from,omitempty" flag:"count-from" doc:"the {AGENT} of a group whose end counts (repeatable; default: all of them)"`
	CancelRest  bool        `json:"cancel_rest,omitempty" flag:"cancel-rest" doc:"cancel the other members once the group's outcome is certain"`
}

// ReturnScope selects whose end is returned. A chain is the handoffs that follow from one by goto.
type ReturnScope string

const (
	ReturnOfChain   ReturnScope = "chain"   // of the last handoff of the chain
	ReturnOfHandoff ReturnScope = "handoff" // of the handoff itself, regardless of what follows
)

// Aggregation is how the ends of a group's members determine its own.
type Aggregation string

const (
	AggregateAll      Aggregation = "all"      // every one succeeds
	AggregateAny      Aggregation = "any"      // one succeeds
	AggregateMajority Aggregation = "majority" // more than half of the recipients succeed
)

// Member is one recipient of a group, with its changes to the group's package.
type Member struct {
	Target    Target                     `json:"target"`
	Reason    string                     `json:"reason,omitempty" redact:"text"`
	Priority  Priority                   `json:"priority,omitempty"`
	Task      *Task                      `json:"task,omitempty"`
	Variables map[string]json.RawMessage `json:"variables,omitempty" redact:"free"` // merged over context.variables
	Artifacts Artifacts                  `json:"artifacts,omitzero"`                // added to context.artifacts
}

// OnTimeout is the action after a work timeout.
type OnTimeout string

const (
	OnTimeoutRetry    OnTimeout = "retry"
	OnTimeoutEscalate OnTimeout = "escalate"
	OnTimeoutFail     OnTimeout = "fail"
)

// Audit sets fields of this handoff's audit records.
type Audit struct {
	DecisionRationale string `json:"decision_rationale,omitempty" redact:"text" flag:"rationale" doc:"{WHY} it was decided so; required for an escalation"`
	RiskLevel         Risk   `json:"risk_level,omitempty" flag:"risk" doc:"{RISK}: low, medium or high"`
}

// Time is an instant on the wire: RFC 3339 in UTC. Zero is absent.
type Time = time.Time

// Message is one opaque message of a conversation, unchanged.
type Message = json.RawMessage

// Parent is a handoff from which others follow: its state and its package.
type Parent struct {
	State   State
	Package Package
}

// Inherit fills in the fields that a package takes from its parent. The package's own values stay.
// It takes conversation, workflow, user, the user's intent, correlation, trace, priority and risk,
// and the workspace unless it is an escalation. Call it before Normalize, which fills in defaults.
//
// The deadline of an open parent is an upper bound of the package's own, since a child is useless
// once its parent has ended. There are two exceptions: a deadline that has passed, since a person
// has to intervene; and the default deadline, for a sequential handoff, which outlives its parent.
func (p *Package) Inherit(parent Parent, now Time) {
	c, from := &p.Context, &parent.Package.Context
	c.ConversationID, c.UserIntent = cmp.Or(c.ConversationID, from.ConversationID), cmp.Or(c.UserIntent, from.UserIntent)
	c.WorkflowID, c.UserID = cmp.Or(c.WorkflowID, from.WorkflowID), cmp.Or(c.UserID, from.UserID)
	c.CorrelationID, c.TraceID = cmp.Or(c.CorrelationID, from.CorrelationID), cmp.Or(c.TraceID, from.TraceID)
	p.Priority = cmp.Or(p.Priority, parent.Package.Priority)
	p.Audit.RiskLevel = cmp.Or(p.Audit.RiskLevel, parent.Package.Audit.RiskLevel)
	if p.Workspace == "" && p.Type != Escalation {
		p.Workspace = parent.State.Workspace
	}
	limit := parent.State.Deadline
	isDefault := limit.Equal(parent.State.SubmittedAt.Add(time.Duration(DeadlineDefaultMS) * time.Millisecond))
	isSequential := p.Type == Sequential || p.Type == "" && p.GroupSize() == 0
	if parent.State.Closed || !limit.After(now) || isDefault && isSequential {
		return
	}
	if own := p.Constraints.Deadline; own.IsZero() || own.After(limit) {
		p.Constraints.Deadline = limit
	}
}

// All returns the artifacts of either form as a list; those of a map are named and sorted by name.
// An artifact that does not exist yet has no path.
func (a Artifacts) All() []Artifact {
	if a.ByName == nil {
		return a.List
	}
	list := slices.Clone(a.List)
	for _, name := range slices.Sorted(maps.Keys(a.ByName)) {
		artifact := Artifact{Name: name}
		if path := a.ByName[name]; path != nil {
			artifact.Path = *path
		}
		list = append(list, artifact)
	}
	return list
}

// size returns the approximate size of the artifacts in bytes.
func (a Artifacts) size() (size int) {
	for _, a := range a.All() {
		size += len(a.ID) + len(a.Name) + len(a.Type) + len(a.Path) + len(a.CreatedBy) + len(a.Description)
	}
	return size
}

// With returns these artifacts merged with the later ones. Neither argument is changed.
//
// Two maps are merged to a map: a later path replaces an earlier one of the same name, and a null
// (not made yet) replaces none. If either is a list, the result is a list. The entries of a map
// then become artifacts with a name and perhaps a path, sorted by name. A later artifact replaces
// the earlier one in its place, and keeps the earlier values of fields that it leaves empty; new
// ones are appended. Two artifacts are the same if they agree in the first of id, name and path
// that both have.
func (a Artifacts) With(later Artifacts) Artifacts {
	switch {
	case later.IsZero():
		return a
	case a.IsZero():
		return later
	case a.ByName != nil && later.ByName != nil:
		both := maps.Clone(a.ByName)
		for name, path := range later.ByName {
			if path != nil || both[name] == nil {
				both[name] = path
			}
		}
		return Artifacts{ByName: both}
	}
	nothing := func(a Artifact) bool { return len(a.handles()) == 0 } // from a map, without a name
	list := slices.DeleteFunc(slices.Clone(a.All()), nothing)
	known := map[string]int{} // id, name and path to the first artifact that has it
	note := func(i int) {
		for _, handle := range list[i].handles() {
			if _, there := known[handle]; !there {
				known[handle] = i
			}
		}
	}
	for i := range list {
		note(i)
	}
	for _, artifact := range later.All() {
		if nothing(artifact) {
			continue
		}
		at := len(list)
		for _, handle := range artifact.handles() {
			if i, there := known[handle]; there && list[i].same(artifact) {
				at = i
				break
			}
		}
		if at == len(list) {
			list = append(list, artifact)
		} else {
			list[at] = list[at].with(artifact)
		}
		note(at)
	}
	return Artifacts{List: list}
}

// handles returns the keys of an artifact, the most reliable first.
func (a Artifact) handles() []string {
	var all []string
	for _, h := range []struct{ kind, value string }{{"id:", a.ID}, {"name:", a.Name}, {"path:", a.Path}} {
		if h.value != "" {
			all = append(all, h.kind+h.value)
		}
	}
	return all
}

// same reports whether two artifacts are the same, by the first of id, name and path that both
// have.
func (a Artifact) same(b Artifact) bool {
	switch {
	case a.ID != "" && b.ID != "":
		return a.ID == b.ID
	case a.Name != "" && b.Name != "":
		return a.Name == b.Name
	}
	return a.Path != "" && a.Path == b.Path
}

// with returns the artifact, updated with the fields of later.
func (a Artifact) with(later Artifact) Artifact {
	created := later.CreatedAt
	if created.IsZero() {
		created = a.CreatedAt
	}
	return Artifact{ID: cmp.Or(later.ID, a.ID), Name: cmp.Or(later.Name, a.Name), Type: cmp.Or(later.Type, a.Type),
		Path: cmp.Or(later.Path, a.Path), Status: cmp.Or(later.Status, a.Status), CreatedBy: cmp.Or(later.CreatedBy, a.CreatedBy),
		CreatedAt: created, Description: cmp.Or(later.Description, a.Description)}
}

// Normalize fills in the defaults of a package: version, type (broadcast for several agents or
// members, else sequential), trigger (escalation for an escalation, else explicit_request),
// priority normal, and now as the time of creation. A delegation and an escalation always expect a
// return. Instants become UTC.
func (p *Package) Normalize(now time.Time) {
	if p.Version == "" {
		p.Version = Version
	}
	if p.Type == "" {
		p.Type = Sequential
		if p.GroupSize() > 0 {
			p.Type = Broadcast
		}
	}
	if p.Trigger == "" {
		p.Trigger = TriggerExplicitRequest
		if p.Type == Escalation {
			p.Trigger = TriggerEscalation
		}
	}
	if p.Priority == "" {
		p.Priority = Normal
	}
	if p.CreatedAt.IsZero() {
		p.CreatedAt = now.Truncate(time.Millisecond) // comparable in logs, and without the monotonic clock
	}
	p.CreatedAt, p.StartAt = p.CreatedAt.UTC(), p.StartAt.UTC()
	if !p.Constraints.Deadline.IsZero() {
		p.Constraints.Deadline = p.Constraints.Deadline.UTC()
	}
	p.expectReturn()
	if p.Parent != "" {
		if parent, err := ParseTicket(p.Parent); err == nil {
			p.Parent = parent
		}
	}
	tidyPackage(p)
}

// expectReturn sets the return that the type implies. It leaves a delegation without a return
// protocol unchanged, since the package has no timeout for it.
func (p *Package) expectReturn() {
	switch {
	case p.Return != nil && p.Return.Expected, p.Type != Delegation && p.Type != Escalation:
	case p.Return != nil:
		own := *p.Return // the caller's stays unchanged
		own.Expected = true
		p.Return = &own
	case p.Type == Escalation:
		p.Return = &ReturnProtocol{Expected: true}
	}
}

// Summarize returns the part of a normalized package that the core uses. The package's own times
// override the policy, each clock separately: the work time is policy.work_timeout_ms, else
// expectations.timeout_ms; the return's is policy.return_timeout_ms, else return.timeout_ms; the
// action at the return timeout is policy.on_return_timeout, else return.on_timeout.
//
// The summary of a group has an Aggregate and no Target: a state must stay small with a thousand
// recipients. MemberHandoff makes those of its members.
func (p Package) Summarize(digest string) Summary {
	s := Summary{
		Type: p.Type, Source: p.Source, Target: p.Target, Priority: p.Priority,
		Deadline: p.Constraints.Deadline, StartAt: p.StartAt, Parent: p.Parent,
		WorkflowID: p.Context.WorkflowID, TaskID: p.Task.ID,
		Requires: p.RequiredCapabilities, Risk: p.Audit.RiskLevel,
		Digest: digest, Origin: p.Origin, Aggregate: p.aggregate(), Overrides: p.Policy, Class: p.Constraints.Complexity,
	}
	if s.Limits = p.Limits; p.Constraints.Budget != nil {
		tokens := min(int64(*p.Constraints.Budget), TokensMax)
		s.Limits = p.Limits.Over(&Limits{MaxTokens: &tokens})
	}
	if by := p.Constraints.ComplexityBy; by != "" {
		s.Classified = s.Class + "/" + string(by)
	}
	s.Schedule, s.Rule = ScheduleOf(p.Source, p.Key), RuleOf(p.Source, p.Key)
	p.Routing.summarize(&s)
	s.Bids = p.Bids
	s.Workspace, s.Locks = p.Workspace, p.lockSummary()
	if s.Locks != nil && s.Workspace == "" {
		s.Workspace = p.Context.WorkflowID
	}
	if p.AutonomyBudget != nil {
		s.Deciders = p.AutonomyBudget.Deciders
		if own := p.AutonomyBudget; own.MaxRisk != "" || own.Amount != nil {
			s.Autonomy = &AutonomyBudget{MaxRisk: own.MaxRisk, Amount: own.Amount}
		}
	}
	if a := p.Approval; a != nil { // the question stays in the package, which the approver reads
		own := *a
		own.Question = ""
		if own != (Approval{}) {
			s.Approval = &own
		}
	}
	if s.Aggregate != nil {
		s.Target = Target{}
	}
	if p.Returned != nil {
		s.ReturnOf = p.Returned.HandoffID
	}
	if p.Context.ConversationID != nil {
		s.ConversationID = *p.Context.ConversationID
	}
	o := &s.Overrides
	if timeout := p.Expectations.TimeoutMS; o.WorkTimeoutMS == nil && timeout > 0 {
		o.WorkTimeoutMS = new(int64) // a pointer into the package would keep all of it alive
		*o.WorkTimeoutMS = timeout
	}
	if r := p.Return; r != nil {
		if r.Of == ReturnOfHandoff {
			s.EndOf = r.Of
		}
		if s.ReturnExpected = r.Expected; r.Expected {
			s.Wait = cmp.Or(r.Wait, WaitContinue)
		}
		if o.ReturnTimeoutMS == nil && r.TimeoutMS > 0 {
			timeout := r.TimeoutMS
			o.ReturnTimeoutMS = &timeout
		}
		if o.OnReturnTimeout == nil && r.OnTimeout != "" {
			action := r.OnTimeout
			o.OnReturnTimeout = &action
		}
	}
	return s
}

// Normalize fills in the defaults of a result: the status success, and the content type by the
// body: text for a JSON string, artifact_ref for artifacts without a body, else json.
func (r *Result) Normalize() {
	if r.Status == "" {
		r.Status = Success
	}
	r.meterCommand()
	if r.Usage != nil {
		r.Usage.Normalize()
	}
	if string(r.Body) == "null" {
		r.Body = nil
	}
	if r.ContentType != "" {
		return
	}
	switch {
	case first(r.Body) == '"':
		r.ContentType = ContentText
	case len(r.Body) > 0:
		r.ContentType = ContentJSON
	case !r.Artifacts.IsZero():
		r.ContentType = ContentArtifact
	}
}

// Content types of a result.
const (
	ContentText     = "text"
	ContentJSON     = "json"
	ContentArtifact = "artifact_ref"
)
