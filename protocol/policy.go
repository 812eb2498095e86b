package protocol

import (
	"encoding/json"

	"github.com/agenthandoff/handoff/protocol/internal/wirejson"
)

// OnNoTaker is what happens to a handoff that no agent takes.
type OnNoTaker string

const (
	NoTakerEscalate OnNoTaker = "escalate"
	NoTakerQueue    OnNoTaker = "queue"
	NoTakerReturn   OnNoTaker = "return"
	NoTakerClose    OnNoTaker = "close"
)

// Policy is resolved: every number that Decide needs, none absent. It stands
// in the State of a handoff from its submission on. As JSON it has only the fields
// that differ from DefaultPolicy, as a rule none.
type Policy struct {
	AckTimeoutMS       int64     `json:"ack_timeout_ms"`   // claim to acknowledgement; and an agent without a live holder is absent after this
	QueueTimeoutMS     int64     `json:"queue_timeout_ms"` // offer to acknowledge; 0 is none
	WorkTimeoutMS      int64     `json:"work_timeout_ms"`  // accept to complete
	ReminderPercent    int       `json:"reminder_percent"` // of the work timeout
	OnTimeout          OnTimeout `json:"on_timeout"`
	MaxAttempts        int       `json:"max_attempts"` // at one agent
	BackoffBaseMS      int64     `json:"backoff_base_ms"`
	BackoffCapMS       int64     `json:"backoff_cap_ms"`
	BackoffSpreadPct   int       `json:"backoff_spread_percent"` // ± of the delay
	MaxReroutes        int       `json:"max_reroutes"`
	OnNoTaker          OnNoTaker `json:"on_no_taker"`
	MaxEscalations     int       `json:"max_escalations"`
	ConditionTimeoutMS int64     `json:"condition_timeout_ms"` // for an answer
	MaxConditions      int       `json:"max_conditions"`       // rounds
	CancelGraceMS      int64     `json:"cancel_grace_ms"`      // from asking a holder to forcing

	ProgressTimeoutMS int64      `json:"progress_timeout_ms,omitempty"` // from one sign of progress to the next; 0 is none
	ReturnTimeoutMS   int64      `json:"return_timeout_ms,omitempty"`   // submission to result; 0 is none
	OnReturnTimeout   OnTimeout  `json:"on_return_timeout"`
	LateResult        LateResult `json:"late_result"`

	// StrictCapabilities says that a partial match of the required capabilities is none.
	StrictCapabilities bool `json:"strict_capabilities,omitempty"`

	OnDeadline            OnDeadline  `json:"on_deadline"`
	InterventionTimeoutMS int64       `json:"intervention_timeout_ms"` // for an authority: from the deadline to the end, and of the return's clock
	OnExhausted           OnExhausted `json:"on_exhausted"`
	OnMalformed           OnMalformed `json:"on_malformed"`
}

// OnDeadline is what follows the deadline.
type OnDeadline string

const (
	DeadlineEscalate OnDeadline = "escalate" // an authority may still reassign it or intervene
	DeadlineClose    OnDeadline = "close"
)

// OnExhausted is what follows the last attempt at an agent.
type OnExhausted string

const (
	ExhaustedEscalate OnExhausted = "escalate" // attempts are counted anew at the authority
	ExhaustedFail     OnExhausted = "fail"
)

// OnMalformed is what follows a result that is malformed.
type OnMalformed string

const (
	MalformedFail  OnMalformed = "fail"  // the handoff fails, and its output is kept
	MalformedRetry OnMalformed = "retry" // it is a failed attempt as any other
)

// LateResult is what becomes of a result whose holder had lost its lease.
type LateResult string

const (
	LateIgnore LateResult = "ignore" // it stays in the history
	LateUse    LateResult = "use"    // it completes a handoff that has no attempts left
)

// PolicyOverrides are the fields of Policy that a package, a profile or the fleet may set. Absent
// ones keep the default. A package's win over a profile's, and those over the fleet's.
type PolicyOverrides struct {
	AckTimeoutMS       *int64     `json:"ack_timeout_ms,omitempty"`
	QueueTimeoutMS     *int64     `json:"queue_timeout_ms,omitempty"`
	WorkTimeoutMS      *int64     `json:"work_timeout_ms,omitempty"`
	ReminderPercent    *int       `json:"reminder_percent,omitempty"`
	OnTimeout          *OnTimeout `json:"on_timeout,omitempty"`
	MaxAttempts        *int       `json:"max_attempts,omitempty"`
	BackoffBaseMS      *int64     `json:"backoff_base_ms,omitempty"`
	BackoffCapMS       *int64     `json:"backoff_cap_ms,omitempty"`
	BackoffSpreadPct   *int       `json:"backoff_spread_percent,omitempty"`
	MaxReroutes        *int       `json:"max_reroutes,omitempty"`
	OnNoTaker          *OnNoTaker `json:"on_no_taker,omitempty"`
	MaxEscalations     *int       `json:"max_escalations,omitempty"`
	ConditionTimeoutMS *int64     `json:"condition_timeout_ms,omitempty"`
	MaxConditions      *int       `json:"max_conditions,omitempty"`
	CancelGraceMS      *int64     `json:"cancel_grace_ms,omitempty"`

	ProgressTimeoutMS *int64      `json:"progress_timeout_ms,omitempty"`
	ReturnTimeoutMS   *int64      `json:"return_timeout_ms,omitempty"`
	OnReturnTimeout   *OnTimeout  `json:"on_return_timeout,omitempty"`
	LateResult        *LateResult `json:"late_result,omitempty"`

	OnDeadline            *OnDeadline  `json:"on_deadline,omitempty"`
	InterventionTimeoutMS *int64       `json:"intervention_timeout_ms,omitempty"`
	OnExhausted           *OnExhausted `json:"on_exhausted,omitempty"`
	OnMalformed           *OnMalformed `json:"on_malformed,omitempty"`

	StrictCapabilities *bool `json:"strict_capabilities,omitempty"`
}

const (
	second = int64(1000)
	minute = 60 * second
	hour   = 60 * minute
	day    = 24 * hour
)

// MarshalJSON leaves out what is as in DefaultPolicy.
func (p Policy) MarshalJSON() ([]byte, error) {
	w := wirejson.NewWriter()
	defer w.Free()
	if err := w.Object(policyShape, &p); err != nil {
		return nil, WireError(err.Below("policy"))
	}
	return w.Written(), nil
}

// UnmarshalJSON takes what is left out from DefaultPolicy.
func (p *Policy) UnmarshalJSON(text []byte) error {
	type plain Policy
	*p = defaultPolicy
	return json.Unmarshal(text, (*plain)(p))
}

// Limits of what may be asked for. Beyond them a package or profile is refused.
const (
	AckTimeoutMaxMS       = day
	ExtensionMaxMS        = WorkTimeoutMaxMS // of one attempt, and never past the return's clock and the deadline
	AckWithinMaxMS        = hour             // of a claim that asks for its own time to acknowledge
	QueueTimeoutMaxMS     = 90 * day
	WorkTimeoutMaxMS      = 30 * day
	ReminderPercentMax    = 100
	AttemptsMax           = 100
	BackoffBaseMaxMS      = hour
	BackoffCapMaxMS       = day
	BackoffSpreadMaxPct   = 50
	ReroutesMax           = 20
	EscalationsMax        = 3
	ConditionTimeoutMaxMS = 30 * day
	ConditionsMax         = 20
	CancelGraceMaxMS      = hour
	ProgressTimeoutMaxMS  = WorkTimeoutMaxMS
	// InterventionTimeoutMaxMS is a week. DeadlineMaxMS bounds a handoff beyond that.
	InterventionTimeoutMaxMS = 7 * day
	// EscalationsTotalMax is how often one handoff may be escalated in all,
	// answers that sent it back down included.
	EscalationsTotalMax = 10
	// LateResultsMax is how many late results one handoff keeps.
	LateResultsMax = 10
	// AssignmentsMax is how many agents that it does not name a group gives its members
	// to: names of the greatest length leave room in a state.
	AssignmentsMax = 200
	// ChildrenMax is how many handoffs one may hand off, and the most members of a group.
	ChildrenMax       = AgentsMax
	DeadlineDefaultMS = 30 * day
	DeadlineMaxMS     = 90 * day
	RetryAfterMaxMS   = day
	LeaseMinMS        = second
	LeaseMaxMS        = day
	LeaseDefaultMS    = 30 * second
)
