package protocol

import (
	"encoding/json"
	"reflect"
	"strings"

	"github.com/agenthandoff/handoff/internal/wirejson"
)

// OnNoTaker is the treatment of a handoff that no agent takes.
type OnNoTaker string

const (
	NoTakerEscalate OnNoTaker = "escalate"
	NoTakerQueue    OnNoTaker = "queue"
	NoTakerReturn   OnNoTaker = "return"
	NoTakerClose    OnNoTaker = "close"
)

// Policy is a resolved policy: every number that Decide needs, none absent. The State of a handoff
// has it from its submission on. Its JSON has only the fields that differ from DefaultPolicy,
// usually none.
type Policy struct {
	AckTimeoutMS       int64     `json:"ack_timeout_ms"`   // claim to acknowledgement; an agent without a live holder is absent after this
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
	CancelGraceMS      int64     `json:"cancel_grace_ms"`      // from the request to a holder until its end is forced

	ProgressTimeoutMS int64      `json:"progress_timeout_ms,omitempty"` // from one sign of progress to the next; 0 is none
	ReturnTimeoutMS   int64      `json:"return_timeout_ms,omitempty"`   // submission to result; 0 is none
	OnReturnTimeout   OnTimeout  `json:"on_return_timeout"`
	LateResult        LateResult `json:"late_result"`

	// StrictCapabilities rejects a partial match of the required capabilities.
	StrictCapabilities bool `json:"strict_capabilities,omitempty"`

	OnDeadline            OnDeadline  `json:"on_deadline"`
	InterventionTimeoutMS int64       `json:"intervention_timeout_ms"` // for an authority: from the deadline to the end, and as its time under the return's clock
	OnExhausted           OnExhausted `json:"on_exhausted"`
	OnMalformed           OnMalformed `json:"on_malformed"`
}

// OnDeadline is the action after the deadline.
type OnDeadline string

const (
	DeadlineEscalate OnDeadline = "escalate" // an authority may still reassign it or intervene
	DeadlineClose    OnDeadline = "close"
)

// OnExhausted is the action after the last attempt at an agent.
type OnExhausted string

const (
	ExhaustedEscalate OnExhausted = "escalate" // the authority starts with fresh attempts
	ExhaustedFail     OnExhausted = "fail"
)

// OnMalformed is the action after a malformed result.
type OnMalformed string

const (
	MalformedFail  OnMalformed = "fail"  // the handoff fails, and its output is kept
	MalformedRetry OnMalformed = "retry" // it is a failed attempt like any other
)

// LateResult is the treatment of a result whose holder had lost its lease.
type LateResult string

const (
	LateIgnore LateResult = "ignore" // it stays in the history
	LateUse    LateResult = "use"    // it completes a handoff that has no attempts left
)

// PolicyOverrides are the fields of Policy that a package, a profile or the fleet may set. Absent
// ones keep the default. A package's take precedence over a profile's, and those over the fleet's.
type PolicyOverrides struct {
	AckTimeoutMS       *int64     `json:"ack_timeout_ms,omitempty"`
	QueueTimeoutMS     *int64     `json:"queue_timeout_ms,omitempty"`
	WorkTimeoutMS      *int64     `json:"work_timeout_ms,omitempty"`
	ReminderPercent    *int       `json:"reminder_percent,omitempty"`
	OnTimeout          *OnTimeout `json:"on_timeout,omitempty" flag:"on-timeout" doc:"{WHAT} follows the work timeout: retry (default), escalate or fail"`
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

	ProgressTimeoutMS *int64      `json:"progress_timeout_ms,omitempty" flag:"progress-timeout" doc:"from one sign of progress to the next (default: none is asked for)"`
	ReturnTimeoutMS   *int64      `json:"return_timeout_ms,omitempty"`
	OnReturnTimeout   *OnTimeout  `json:"on_return_timeout,omitempty"`
	LateResult        *LateResult `json:"late_result,omitempty" flag:"late-result" doc:"{WHAT} becomes of a late result when no attempt is left: ignore (default) or use"`

	OnDeadline            *OnDeadline  `json:"on_deadline,omitempty"`
	InterventionTimeoutMS *int64       `json:"intervention_timeout_ms,omitempty"`
	OnExhausted           *OnExhausted `json:"on_exhausted,omitempty"`
	OnMalformed           *OnMalformed `json:"on_malformed,omitempty"`

	StrictCapabilities *bool `json:"strict_capabilities,omitempty" flag:"strict-capabilities" doc:"refuse an agent that has only a part of the required capabilities (default: accept it with a warning)"`
}

const (
	second = int64(1000)
	minute = 60 * second
	hour   = 60 * minute
	day    = 24 * hour
)

// MarshalJSON omits the values of DefaultPolicy.
func (p Policy) MarshalJSON() ([]byte, error) {
	w := wirejson.NewWriter()
	defer w.Free()
	if err := w.Object(policyShape, &p); err != nil {
		return nil, WireError(err.Below("policy"))
	}
	return w.Written(), nil
}

// UnmarshalJSON takes omitted values from DefaultPolicy.
func (p *Policy) UnmarshalJSON(text []byte) error {
	type plain Policy
	*p = defaultPolicy
	return json.Unmarshal(text, (*plain)(p))
}

// Limits of requested values. Beyond them a package or profile is refused.
const (
	ackTimeoutMaxMS       = day
	ExtensionMaxMS        = WorkTimeoutMaxMS // of one attempt, and never past the return's clock and the deadline
	AckWithinMaxMS        = hour             // of a claim with its own time to acknowledge
	queueTimeoutMaxMS     = 90 * day
	WorkTimeoutMaxMS      = 30 * day
	reminderPercentMax    = 100
	AttemptsMax           = 100
	BackoffBaseMaxMS      = hour
	backoffCapMaxMS       = day
	backoffSpreadMaxPct   = 50
	ReroutesMax           = 20
	EscalationsMax        = 3
	ConditionTimeoutMaxMS = 30 * day
	conditionsMax         = 20
	CancelGraceMaxMS      = hour
	progressTimeoutMaxMS  = WorkTimeoutMaxMS
	// interventionTimeoutMaxMS is a week. DeadlineMaxMS bounds a handoff beyond that.
	interventionTimeoutMaxMS = 7 * day
	// EscalationsTotalMax is how often one handoff may be escalated in total, including escalations
	// that were answered.
	EscalationsTotalMax = 10
	// LateResultsMax is how many late results one handoff keeps.
	LateResultsMax = 10
	// AssignmentsMax is how many agents a group may give its members to without naming them: a state
	// has room for that many names of maximum length.
	AssignmentsMax = 200
	// ChildrenMax is how many handoffs one may hand off, and the most members of a group.
	ChildrenMax       = AgentsMax
	DeadlineDefaultMS = 30 * day
	DeadlineMaxMS     = 90 * day
	// startMaxMS leaves a day until the latest deadline.
	startMaxMS = 89 * day
	// startSkewMS is how far in the past the start of a package may be, for clocks that differ.
	startSkewMS     = 60_000
	RetryAfterMaxMS = day
	LeaseMinMS      = second
	LeaseMaxMS      = day
	LeaseDefaultMS  = 30 * second
)

// PolicyField is a row of the table of policies. Limits, defaults, JSON Schemas, documentation and
// the merging of overrides derive from it.
type PolicyField struct {
	Name     string   // in JSON, of Policy and of PolicyOverrides
	Default  any      // int64, string or bool
	Min, Max int64    // of a number, both allowed
	Words    []string // allowed values of a choice
	Doc      string   // a sentence
}

func number(name string, standard, least, most int64, doc string) PolicyField {
	return PolicyField{Name: name, Default: standard, Min: least, Max: most, Doc: doc}
}

func choice[W ~string](name string, standard W, words []W, doc string) PolicyField {
	f := PolicyField{Name: name, Default: string(standard), Doc: doc}
	for _, w := range words {
		f.Words = append(f.Words, string(w))
	}
	return f
}

// PolicyFields lists the rows, in the order of the JSON Schemas. The defaults are permanently those
// of version 1 of the protocol: records omit them.
var PolicyFields = []PolicyField{
	number("ack_timeout_ms", 30*second, 1, ackTimeoutMaxMS, "Claim to acknowledgement; an agent without a live worker is absent after this."),
	number("queue_timeout_ms", 0, 0, queueTimeoutMaxMS, "Offer to acknowledgement; 0 is none."),
	number("work_timeout_ms", hour, 1, WorkTimeoutMaxMS, "Accept to complete."),
	number("reminder_percent", 80, 0, reminderPercentMax, "Of the work timeout."),
	choice("on_timeout", OnTimeoutRetry, OnTimeouts, ""),
	number("max_attempts", 3, 1, AttemptsMax, "At one agent."),
	number("backoff_base_ms", 2*second, 1, BackoffBaseMaxMS, ""),
	number("backoff_cap_ms", 5*minute, 1, backoffCapMaxMS, ""),
	number("backoff_spread_percent", 20, 0, backoffSpreadMaxPct, "Plus or minus, of the delay."),
	number("max_reroutes", 3, 0, ReroutesMax, ""),
	choice("on_no_taker", NoTakerEscalate, OnNoTakers, ""),
	number("max_escalations", 3, 0, EscalationsMax, ""),
	number("condition_timeout_ms", hour, 1, ConditionTimeoutMaxMS, "For an answer."),
	number("max_conditions", 5, 0, conditionsMax, "Rounds."),
	number("cancel_grace_ms", 30*second, 0, CancelGraceMaxMS, "From the request to a worker until the end is forced."),
	number("progress_timeout_ms", 0, 0, progressTimeoutMaxMS, "From one sign of progress to the next; 0 is none."),
	number("return_timeout_ms", 0, 0, ReturnTimeoutMaxMS, "Submission to result, if a return is expected; 0 is none."),
	choice("on_return_timeout", OnTimeoutFail, OnTimeouts, ""),
	choice("on_deadline", DeadlineEscalate, OnDeadlines, "The action at the deadline: an authority may intervene, or it closes."),
	number("intervention_timeout_ms", day, 1, interventionTimeoutMaxMS, "From the deadline to the end, for an authority."),
	choice("on_exhausted", ExhaustedEscalate, OnExhausteds, "The action after the last attempt at an agent."),
	choice("on_malformed", MalformedFail, OnMalformeds, "The action at a malformed result. Its output is kept either way."),
	choice("late_result", LateIgnore, LateResults, "The use of a result whose worker had lost its lease."),
	{Name: "strict_capabilities", Default: false, Doc: "Reject a partial match of the required capabilities."},
}

// policyPlaces holds the indexes of each row's field in Policy and in PolicyOverrides.
var policyPlaces = func() (places [][2]int) {
	resolved, overrides := fieldsByName(reflect.TypeFor[Policy]()), fieldsByName(reflect.TypeFor[PolicyOverrides]())
	for _, f := range PolicyFields {
		places = append(places, [2]int{resolved[f.Name], overrides[f.Name]})
	}
	return places
}()

// fieldsByName returns the indexes of a struct's fields by their JSON names.
func fieldsByName(of reflect.Type) map[string]int {
	byName := make(map[string]int, of.NumField())
	for i := range of.NumField() {
		name, _, _ := strings.Cut(of.Field(i).Tag.Get("json"), ",")
		byName[name] = i
	}
	return byName
}

// DefaultPolicy returns the values that no package, profile or fleet overrides.
func DefaultPolicy() Policy { return defaultPolicy }

var defaultPolicy = func() (p Policy) {
	all := reflect.ValueOf(&p).Elem()
	for i, f := range PolicyFields {
		field := all.Field(policyPlaces[i][0])
		field.Set(reflect.ValueOf(f.Default).Convert(field.Type()))
	}
	return p
}()

// With returns the policy with the overrides that are set.
func (p Policy) With(o PolicyOverrides) Policy {
	if o == (PolicyOverrides{}) { // usual case
		return p
	}
	return p.overridden(o)
}

func (p Policy) overridden(o PolicyOverrides) Policy {
	resolved, overrides := reflect.ValueOf(&p).Elem(), reflect.ValueOf(&o).Elem()
	for _, at := range policyPlaces {
		if by := overrides.Field(at[1]); !by.IsNil() {
			resolved.Field(at[0]).Set(by.Elem())
		}
	}
	return p
}

// Over returns the overrides, with those of a base for the fields that they leave unset.
func (o PolicyOverrides) Over(base PolicyOverrides) PolicyOverrides {
	if base == (PolicyOverrides{}) { // usual case
		return o
	}
	own, below := reflect.ValueOf(&o).Elem(), reflect.ValueOf(&base).Elem()
	for _, at := range policyPlaces {
		if own.Field(at[1]).IsNil() {
			own.Field(at[1]).Set(below.Field(at[1]))
		}
	}
	return o
}

// Validate checks the overrides against the table. prefix is the path of the field that holds them.
func (o PolicyOverrides) Validate(prefix string) error {
	return o.validate(prefix).orNil()
}

func (o PolicyOverrides) validate(prefix string) *Error {
	if o == (PolicyOverrides{}) { // usual case
		return nil
	}
	if prefix != "" {
		prefix += "."
	}
	overrides := reflect.ValueOf(o)
	for i, f := range PolicyFields {
		if value := overrides.Field(policyPlaces[i][1]); !value.IsNil() {
			if err := f.check(prefix, value.Elem()); err != nil {
				return err
			}
		}
	}
	if o.BackoffBaseMS != nil && o.BackoffCapMS != nil && *o.BackoffBaseMS > *o.BackoffCapMS {
		return Errorf(CodeConflict, prefix+"backoff_cap_ms", "is %d, less than backoff_base_ms (%d)", *o.BackoffCapMS, *o.BackoffBaseMS)
	}
	return nil
}

// check checks a value against its row.
func (f *PolicyField) check(prefix string, value reflect.Value) *Error {
	switch {
	case value.CanInt():
		return between(prefix+f.Name, value.Int(), f.Min, f.Max)
	case f.Words != nil:
		return chosen(prefix+f.Name, value.String(), f.Words)
	}
	return nil
}

// CheckPolicy checks a resolved policy against the table. prefix is the path of the field that
// holds it. The base of the back-off may come from a package and its cap from an agent: either may
// be larger.
func CheckPolicy(prefix string, p *Policy) error {
	if *p == defaultPolicy { // usual case
		return nil
	}
	resolved := reflect.ValueOf(p).Elem()
	for i, f := range PolicyFields {
		if err := f.check(prefix+".", resolved.Field(policyPlaces[i][0])); err != nil {
			return err
		}
	}
	return nil
}
