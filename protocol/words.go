package protocol

// The words that a field may hold, each list in the order of the documents.
// The JSON Schemas hold the same lists.
var (
	Types            = []Type{Sequential, Delegation, Broadcast, Escalation}
	Triggers         = []Trigger{TriggerTaskCompletion, TriggerCapabilityMismatch, TriggerEscalation, TriggerTimeout, TriggerExplicitRequest}
	Risks            = []Risk{RiskLow, RiskMedium, RiskHigh}
	TransferModes    = []TransferMode{TransferFull, TransferSummary, TransferRelevantOnly, TransferReference}
	SummaryBys       = []SummaryBy{SummaryBySource, SummaryByExtract, SummaryByCommand, SummaryByModel}
	ApprovalTimeouts = []ApprovalTimeout{ApprovalEscalate, ApprovalClose}
	OnTimeouts       = []OnTimeout{OnTimeoutRetry, OnTimeoutEscalate, OnTimeoutFail}
	OnNoTakers       = []OnNoTaker{NoTakerEscalate, NoTakerQueue, NoTakerReturn, NoTakerClose}
	LateResults      = []LateResult{LateIgnore, LateUse}
	OnDeadlines      = []OnDeadline{DeadlineEscalate, DeadlineClose}
	OnExhausteds     = []OnExhausted{ExhaustedEscalate, ExhaustedFail}
	OnMalformeds     = []OnMalformed{MalformedFail, MalformedRetry}
	Aggregations     = []Aggregation{AggregateAll, AggregateAny, AggregateMajority}
	Outcomes         = []Outcome{OutcomeSuccess, OutcomePartial, OutcomeFailed, OutcomeTimeout, OutcomeRejected, OutcomeCancelled, OutcomeRolledBack}
	Clocks           = []Clock{ClockAcknowledge, ClockQueue, ClockWork, ClockProgress, ClockCondition, ClockReturn, ClockDeadline} // that can run out
	ReturnStatuses   = []ReturnStatus{ReturnSuccess, ReturnPartial, ReturnFailed, ReturnTimeout}
	TrailEvents      = []EventType{EventRejected, EventConditioned, EventAnswered, EventEscalated, EventRerouted, EventTimedOut, EventLeaseLost, EventFailed, EventRedriven}
	ResultStatuses   = []ResultStatus{Success, Partial}
	ContentTypes     = []string{ContentText, ContentJSON, ContentArtifact}
	AckStatuses      = []AckStatus{AckAccepted, AckRejected, AckConditional}
	ReturnScopes     = []ReturnScope{ReturnOfChain, ReturnOfHandoff}
	Waits            = []string{WaitBlock, WaitContinue} // of a return
	BudgetActions    = []BudgetAction{BudgetReturn, BudgetAsk}
	Complexities     = []string{"simple", "medium", "complex"}
	Classifiers      = []Classifier{ClassifiedByCommand, ClassifiedByModel}
	LockTypes        = []string{"exclusive", "shared"}
	ArtifactStatuses = []string{"draft", "final", "superseded"}
)

// What a source does while it waits for a return.
const (
	WaitBlock    = "block"
	WaitContinue = "continue"
	// WaitSlot is Summary.Wait of a child for which its parent's program waits in its slot.
	WaitSlot = "slot"
)
