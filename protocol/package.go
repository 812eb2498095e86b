package protocol

import (
	"encoding/json"
	"time"
)

// Version is the protocol version this code writes, "major.minor". A package
// of another major version is refused, a newer minor one is accepted.
const Version = "1.0"

// Type is how responsibility moves.
type Type string

const (
	Sequential Type = "sequential" // ownership passes to the target for good
	Delegation Type = "delegation" // the source keeps ownership and expects a return
	Broadcast  Type = "broadcast"  // one package to several agents
	Escalation Type = "escalation" // up the chain of authority
)

// Trigger is why a handoff was begun.
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

// Priorities are all priorities, the most urgent first.
var Priorities = []Priority{Critical, High, Normal, Low}

// Risk is a level of risk.
type Risk string

const (
	RiskLow    Risk = "low"
	RiskMedium Risk = "medium"
	RiskHigh   Risk = "high"
)

// Human is the reserved agent that ends every escalation chain: a person.
// It exists without a profile, serves no workers of ours and is never absent.
const Human = "human"

// Package is what one agent hands to another. It is immutable once submitted;
// an Answer may add a supplement to it.
type Package struct {
	Version   string   `json:"version,omitempty"` // protocol version; empty means Version
	Key       string   `json:"key,omitempty"`     // idempotency key: same source and key, same ticket
	Type      Type     `json:"type,omitempty"`    // default sequential
	Trigger   Trigger  `json:"trigger,omitempty"` // default explicit_request
	Source    string   `json:"source"`            // agent that hands off
	Target    Target   `json:"target,omitzero"`   // agent, capability, or several agents; see Members and Escalation
	Reason    string   `json:"reason"`            // why this handoff
	Priority  Priority `json:"priority,omitempty"`
	Parent    string   `json:"parent,omitempty"` // ticket this one follows from
	CreatedAt Time     `json:"created_at,omitzero"`

	Task                 Task                 `json:"task"`
	Context              Context              `json:"context,omitzero"`
	Constraints          Constraints          `json:"constraints,omitzero"`
	Expectations         Expectations         `json:"expectations,omitzero"`
	RequiredCapabilities []RequiredCapability `json:"required_capabilities,omitempty"`
	AutonomyBudget       *AutonomyBudget      `json:"autonomy_budget,omitempty"`
	Approval             *Approval            `json:"approval,omitempty"`
	Return               *ReturnProtocol      `json:"return,omitempty"`
	Audit                Audit                `json:"audit,omitzero"`
	Policy               PolicyOverrides      `json:"policy,omitzero"`
	Limits               *Limits              `json:"limits,omitempty"` // of it and all that follows from it
	Routing              *RoutingRules        `json:"routing,omitempty"`
	Bids                 *Bids                `json:"bids,omitempty"` // the agents with target.capability bid for it
	Next                 []NextRule           `json:"next,omitempty"` // what follows on a result without a command

	// Workspace is the workflow whose limits, locks and variables it has a part in; the default is
	// context.workflow_id, where such a workspace was opened. Locks are those that it has from
	// before its offer to its end.
	Workspace string `json:"workspace,omitempty"`
	Locks     *Locks `json:"locks,omitempty"`

	// Members makes this a group of different packages: each is this one with
	// its own target, and whatever else it says, laid over it. Type broadcast,
	// and no target of its own.
	Members []Member `json:"members,omitempty"`

	// Returned is what a return carries: the end of a handoff that this package's
	// target had handed off. Origin is the handoff that this one redrives. Both
	// are written by Handoff alone.
	Returned *Return `json:"returned,omitempty"`
	Origin   string  `json:"origin,omitempty"`

	// TraceParent and TraceState put the handoff into a trace (W3C Trace
	// Context). They are taken out of the package when it is submitted, and kept
	// beside it: State.Trace.
	TraceParent string `json:"traceparent,omitempty"`
	TraceState  string `json:"tracestate,omitempty"`

	// Extra holds the top-level fields of a newer minor version, which this
	// code does not know and keeps unchanged.
	Extra map[string]json.RawMessage `json:"-"`
}

// Target names who shall do the work. Exactly one field is set.
type Target struct {
	Agent      string   `json:"agent,omitempty"`
	Capability string   `json:"capability,omitempty"`
	Agents     []string `json:"agents,omitempty"` // broadcast
}

// Task is the work item.
type Task struct {
	ID           string   `json:"id,omitempty"`
	Type         string   `json:"type,omitempty"`
	Description  string   `json:"description"`
	Requirements []string `json:"requirements,omitempty"`
}

// Context is what the target needs to know to go on without finding it out again.
type Context struct {
	OriginalRequest string `json:"original_request,omitempty"`
	// UserIntent and ConversationID may be absent, but not present and empty: hence the pointers.
	UserIntent     *string `json:"user_intent,omitempty"`
	ConversationID *string `json:"conversation_id,omitempty"` // documents 3: session_id
	WorkflowID     string  `json:"workflow_id,omitempty"`
	UserID         string  `json:"user_id,omitempty"`
	CorrelationID  string  `json:"correlation_id,omitempty"`
	TraceID        string  `json:"trace_id,omitempty"` // harness_trace_id in some systems

	Phase          string            `json:"phase,omitempty"` // workflow phase, not the handoff's
	NextPhase      string            `json:"next_phase,omitempty"`
	CompletedSteps []json.RawMessage `json:"completed_steps,omitempty"` // words or objects
	RemainingSteps []json.RawMessage `json:"remaining_steps,omitempty"`

	Summary    string   `json:"summary,omitempty"`
	KeyPoints  []string `json:"key_points,omitempty"`
	ContextURL string   `json:"context_url,omitempty"` // reference transfer: where the rest lies

	// ConversationHistory holds opaque messages: objects with role, name and
	// content and whatever else they hold, kept as they came.
	ConversationHistory []Message       `json:"conversation_history,omitempty"`
	HistoryTransfer     HistoryTransfer `json:"history_transfer,omitzero"`

	Previous            *Previous                  `json:"previous,omitempty"` // what follows by goto has the result before
	Variables           map[string]json.RawMessage `json:"variables,omitempty"`
	Decisions           []Decision                 `json:"decisions,omitempty"`
	IntermediateResults map[string]json.RawMessage `json:"intermediate_results,omitempty"`
	RelevantFiles       []FileReference            `json:"relevant_files,omitempty"`
	FilesInProgress     []FileLock                 `json:"files_in_progress,omitempty"`
	Artifacts           Artifacts                  `json:"artifacts,omitzero"`
	Constraints         []string                   `json:"constraints,omitempty"` // in words
	WhenStuck           []string                   `json:"when_stuck,omitempty"`
	Metrics             map[string]json.RawMessage `json:"metrics,omitempty"`
	Metadata            map[string]json.RawMessage `json:"metadata,omitempty"`
}

// HistoryTransfer says how much of the conversation is handed off, and was.
type HistoryTransfer struct {
	Mode        TransferMode `json:"mode,omitempty"`
	MaxMessages int          `json:"max_messages,omitempty"` // 0 is no limit
	// MaxTokens bounds the estimated tokens (Tokens) of the messages, and of a summary that is
	// made of them; 0 is no limit.
	MaxTokens int      `json:"max_tokens,omitempty"`
	Include   *Include `json:"include,omitempty"`

	// What was left out since the conversation was first handed off: Omitted messages, of
	// OriginalTokens of which Tokens are left. By says who wrote the summary that stands for them.
	Omitted        int       `json:"omitted,omitempty"`
	OriginalTokens int       `json:"original_tokens,omitempty"`
	Tokens         int       `json:"tokens,omitempty"`
	By             SummaryBy `json:"by,omitempty"`
}

// SummaryBy is who wrote the summary that stands for a conversation.
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

// Include leaves kinds of message out: those whose flag is false. A kind that is absent goes on. Calls
// of tools and their results go on together, or not at all: a model refuses one without the other.
type Include struct {
	SystemMessages *bool `json:"system_messages,omitempty"`
	ToolCalls      *bool `json:"tool_calls,omitempty"`
	ToolResults    *bool `json:"tool_results,omitempty"`
	AgentReasoning *bool `json:"agent_reasoning,omitempty"`
}

// Decision is one made earlier in the workflow.
type Decision struct {
	ID          string `json:"id,omitempty"`
	Description string `json:"description"`
	Rationale   string `json:"rationale,omitempty"`
	MadeBy      string `json:"made_by,omitempty"`
	At          Time   `json:"at,omitzero"`
}

// FileReference points at a file and what in it matters. A bare string is
// read as a path.
type FileReference struct {
	Path     string   `json:"path"`
	Sections []string `json:"sections,omitempty"`
}

// FileLock is a file that an agent works on. Handoff carries
// it; it does not enforce it.
type FileLock struct {
	Path     string `json:"path"`
	Owner    string `json:"owner,omitempty"`
	LockType string `json:"lock_type,omitempty"` // exclusive or shared
}

// Artifact refers to something produced on the way.
type Artifact struct {
	ID          string `json:"id,omitempty"`
	Name        string `json:"name,omitempty"`
	Type        string `json:"type,omitempty"` // file, code, document, test_result, review_comment, …
	Path        string `json:"path,omitempty"` // path or URI
	Status      string `json:"status,omitempty"`
	CreatedBy   string `json:"created_by,omitempty"`
	CreatedAt   Time   `json:"created_at,omitzero"`
	Description string `json:"description,omitempty"`
}

// Artifacts are given as a list, or as a map from name to path. In a map null
// is something not made yet. Either form is kept.
type Artifacts struct {
	List   []Artifact
	ByName map[string]*string
}

// Constraints limit the work.
type Constraints struct {
	Budget     *float64 `json:"budget,omitempty"` // in the fleet's own unit, tokens as a rule
	Deadline   Time     `json:"deadline,omitzero"`
	Complexity string   `json:"complexity,omitempty"` // simple, medium or complex
	// ComplexityBy is what the source had classify it; absent is the source.
	ComplexityBy Classifier `json:"complexity_by,omitempty"`
}

// Classifier classifies the tasks of a source: a command or a model.
type Classifier string

const (
	ClassifiedByCommand Classifier = "command"
	ClassifiedByModel   Classifier = "model"
)

// Expectations say what a good result is.
type Expectations struct {
	OutputSchema    json.RawMessage `json:"output_schema,omitempty"` // JSON Schema of Result.Body
	SuccessCriteria []string        `json:"success_criteria,omitempty"`
	TimeoutMS       int64           `json:"timeout_ms,omitempty"` // work timeout: accept to complete
	MaxIterations   int             `json:"max_iterations,omitempty"`
}

// RequiredCapability is one the target must have. A bare
// string is read as an id.
type RequiredCapability struct {
	ID             string  `json:"id"`
	MinProficiency float64 `json:"min_proficiency,omitempty"` // 0 to 1
}

// AutonomyBudget is how far the target may go on its own.
type AutonomyBudget struct {
	MaxRisk Risk     `json:"max_risk,omitempty"`
	Amount  *float64 `json:"amount,omitempty"`
	// Deciders are the agents, or a person, who may still decide after a denial, in this
	// order: at most DecidersMax. Without them a denial is final.
	Deciders []string `json:"deciders,omitempty"`
}

// Approval says who is asked before an agent gets the handoff. Required asks in any case; the rest
// holds also where a profile or a rule of the fleet asks.
type Approval struct {
	Required  bool            `json:"required,omitempty"`
	By        string          `json:"by,omitempty"`         // the approver; absent is the source's escalates_to, else a person
	Question  string          `json:"question,omitempty"`   // to the approver
	TimeoutMS int64           `json:"timeout_ms,omitempty"` // of each approver; absent is ApprovalTimeoutDefaultMS
	OnTimeout ApprovalTimeout `json:"on_timeout,omitempty"` // default escalate
}

// ReturnProtocol says whether and how the result goes back to the source.
type ReturnProtocol struct {
	Expected  bool      `json:"expected"`
	TimeoutMS int64     `json:"timeout_ms,omitempty"` // submission to result; the work has its own
	OnTimeout OnTimeout `json:"on_timeout,omitempty"`
	Wait      string    `json:"wait,omitempty"` // block or continue, which is the default
	// Of is whose end the return has: that of the chain, which is the default, or of this
	// handoff alone. Of a group it says the same of the members.
	Of ReturnScope `json:"of,omitempty"`

	// Of a group: how the ends of its members become its own (default all),
	// which of them count (default all), and whether the others are cancelled
	// once its outcome is certain.
	Aggregation Aggregation `json:"aggregation,omitempty"`
	From        []string    `json:"from,omitempty"`
	CancelRest  bool        `json:"cancel_rest,omitempty"`
}

// ReturnScope is whose end a return has. A chain is the handoffs that follow from one by goto.
type ReturnScope string

const (
	ReturnOfChain   ReturnScope = "chain"   // that of the last handoff of the chain
	ReturnOfHandoff ReturnScope = "handoff" // its own, whatever follows
)

// Aggregation is how the ends of a group's members become its own.
type Aggregation string

const (
	AggregateAll      Aggregation = "all"      // every one succeeds
	AggregateAny      Aggregation = "any"      // one succeeds
	AggregateMajority Aggregation = "majority" // more than half of the recipients succeed
)

// Member is one recipient of a group, and what of the group's package is
// different for it.
type Member struct {
	Target    Target                     `json:"target"`
	Reason    string                     `json:"reason,omitempty"`
	Priority  Priority                   `json:"priority,omitempty"`
	Task      *Task                      `json:"task,omitempty"`
	Variables map[string]json.RawMessage `json:"variables,omitempty"` // laid over context.variables
	Artifacts Artifacts                  `json:"artifacts,omitzero"`  // added to context.artifacts
}

// OnTimeout is what follows a work timeout.
type OnTimeout string

const (
	OnTimeoutRetry    OnTimeout = "retry"
	OnTimeoutEscalate OnTimeout = "escalate"
	OnTimeoutFail     OnTimeout = "fail"
)

// Audit is what the audit trail shall say of this handoff.
type Audit struct {
	DecisionRationale string `json:"decision_rationale,omitempty"`
	RiskLevel         Risk   `json:"risk_level,omitempty"`
}

// Time is an instant as the wire has it: RFC 3339 in UTC. Zero is absent.
type Time = time.Time

// Message is one opaque message of a conversation, as it came.
type Message = json.RawMessage
