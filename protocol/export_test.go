package protocol

// The names that package protocol_test needs.
const (
	AckTimeoutMaxMS           = ackTimeoutMaxMS
	AnswerBytesMax            = answerBytesMax
	ApprovalTimeoutMinMS      = approvalTimeoutMinMS
	BackoffCapMaxMS           = backoffCapMaxMS
	BackoffSpreadMaxPct       = backoffSpreadMaxPct
	BidWindowDefaultMS        = bidWindowDefaultMS
	CapabilitiesMax           = capabilitiesMax
	ConditionsMax             = conditionsMax
	ExamplesMax               = examplesMax
	GotoMax                   = gotoMax
	InterventionTimeoutMaxMS  = interventionTimeoutMaxMS
	KeyPointsMax              = keyPointsMax
	LockWaitDefaultMS         = lockWaitDefaultMS
	NeedsMax                  = needsMax
	NextRulesMax              = nextRulesMax
	NextValuesMax             = nextValuesMax
	PreviousArtifactsBytesMax = previousArtifactsBytesMax
	PreviousSummaryBytesMax   = previousSummaryBytesMax
	ProfileBytesMax           = profileBytesMax
	ProgressTimeoutMaxMS      = progressTimeoutMaxMS
	QuestionBytesMax          = questionBytesMax
	QueueTimeoutMaxMS         = queueTimeoutMaxMS
	ReminderPercentMax        = reminderPercentMax
	TrailMax                  = trailMax
	TrailWordsBytesMax        = trailWordsBytesMax
)

var Reserved = reserved
