package protocol

import "github.com/agenthandoff/handoff/protocol/internal/wirejson"

// Limits of what is read from outside. Everything has one; beyond it the input
// is refused with CodeTooLarge (sizes and counts) or CodeInvalid (numbers), and
// the message states the limit. Limits of durations and of counts that steer
// the lifecycle stand in policy.go.
const (
	// PackageBytesMax is the largest package, in bytes of JSON. Larger work
	// goes into files, handed off as artifacts.
	PackageBytesMax = 64 << 20
	// ResultBytesMax is the largest result, in bytes of JSON.
	ResultBytesMax = 64 << 20
	// InlineBytesMax is the largest package or result that travels inside an append or an
	// offer. Beyond it the body lies in the object store.
	InlineBytesMax = 256 << 10
	// PreviousBodyBytesMax is the largest body of a result that the next agent of a chain gets
	// with its package: half of what travels inside an append. A larger one is named by digest.
	PreviousBodyBytesMax = InlineBytesMax / 2
	// PreviousSummaryBytesMax is how much of the summary it gets, and
	// PreviousArtifactsBytesMax the largest artifacts, beside those of the context.
	PreviousSummaryBytesMax   = 16 << 10
	PreviousArtifactsBytesMax = 64 << 10
	// AnswerBytesMax is the largest answer, in bytes of JSON: it travels
	// inside an append.
	AnswerBytesMax = InlineBytesMax
	// AckBytesMax is the largest acknowledgement, in bytes of JSON.
	AckBytesMax = 64 << 10
	// ProgressBytesMax is the largest progress report, in bytes of JSON.
	ProgressBytesMax = 64 << 10
	// ProfileBytesMax is the largest profile of an agent, in bytes of JSON.
	ProfileBytesMax = 64 << 10
	// FleetBytesMax is the largest record of a fleet's settings, in bytes of JSON.
	FleetBytesMax = 64 << 10
	// DepthMax is how deep lists and objects may be nested.
	DepthMax = wirejson.DepthMax

	// AgentsMax is how many agents one package may name.
	AgentsMax = 1000
	// KeyBytesMax is the longest idempotency key.
	KeyBytesMax = 256
	// NameBytesMax is the longest name or foreign id: of a task, a workflow, a
	// conversation, a user, a trace. The state keeps some of them.
	NameBytesMax = 256
	// RequiredCapabilitiesMax is how many capabilities one package may require.
	RequiredCapabilitiesMax = 32
	// TokensMax and IterationsMax bound what may be counted and asked for.
	TokensMax     = 1_000_000_000_000
	IterationsMax = 1_000_000
	// HistoryMessagesMax bounds history_transfer.max_messages.
	HistoryMessagesMax = 1_000_000
	// BudgetMax bounds a budget, in whatever unit the fleet counts.
	BudgetMax = 1e15

	// ExperimentsMax is how many experiments a fleet has, VariantsMax how many variants each, and
	// VariantWeightMax the largest weight of one.
	ExperimentsMax   = 16
	VariantsMax      = 8
	VariantWeightMax = 1000
	// RankedMax is how many agents a package may name besides its target.
	RankedMax = 8
	// ApprovalsMax is how many approvals a state keeps, and ApprovalRulesMax how many rules the
	// fleet has.
	ApprovalsMax     = 8
	ApprovalRulesMax = 16
	// ComplexityRulesMax is how many rules of complexity the fleet has.
	ComplexityRulesMax = 16
	// QuestionBytesMax is the longest question to an approver.
	QuestionBytesMax = 1 << 10
	// ApprovalTimeoutDefaultMS is how long an approver has where nothing says otherwise.
	ApprovalTimeoutDefaultMS = 24 * 3_600_000
	ApprovalTimeoutMinMS     = 1_000
	ApprovalTimeoutMaxMS     = 30 * 24 * 3_600_000
	// DecisionsMax is how many decisions of the work a state keeps.
	DecisionsMax = 8
	// DecisionIDBytesMax is the longest id of a decision, which the state keeps whole.
	DecisionIDBytesMax = 128
	// DecidersMax is how many agents a package names to decide after a denial.
	DecidersMax = 16
	// ReasonBytesMax is the longest reason of an acknowledgement or a denial.
	ReasonBytesMax = 16 << 10
	// FailureBytesMax is how much of a failure's message an event keeps.
	FailureBytesMax = 16 << 10
	// ProgressMessageBytesMax is the longest message of a progress report.
	ProgressMessageBytesMax = 4 << 10
	// NeedsMax is how many things of one kind a conditional may ask for, and
	// NeedBytesMax is the longest of them.
	NeedsMax     = 64
	NeedBytesMax = 1 << 10

	// CapabilitiesMax and ExamplesMax bound the lists of a profile.
	CapabilitiesMax = 256
	ExamplesMax     = 64
	// PatternsMax bounds each list of patterns of agents in a profile.
	PatternsMax = 64
	// DeadlockMax is how many handoffs of a circle its event names.
	DeadlockMax = 16
	// ConcurrencyMax is the most that one agent, or one worker, may do at once.
	ConcurrencyMax = 10_000
	// PollPatienceDefaultMS, PollPatienceMinMS and PollPatienceMaxMS bound how long
	// one poll keeps its agent present.
	PollPatienceDefaultMS = 5 * 60_000
	PollPatienceMinMS     = 1_000
	PollPatienceMaxMS     = LeaseMaxMS
	// GotoMax is how many agents a command may name.
	GotoMax = AgentsMax
	// AwaitMax is how many handoffs one result may wait for.
	AwaitMax = 64
	// AwaitTimeoutMS is how long a result waits for a delegation that says nothing of it.
	AwaitTimeoutMS = 3_600_000

	// ReturnTimeoutMaxMS bounds how long a delegation waits for its return.
	ReturnTimeoutMaxMS = WorkTimeoutMaxMS
	// EstimateMaxMS bounds an estimated completion.
	EstimateMaxMS = DeadlineMaxMS
)
