package protocol

// limit is one number of a policy, and what it may be.
type limit struct {
	field       string
	value       *int64
	least, most int64
}

// limits lists the numbers of the overrides with their bounds, both allowed.
func (o PolicyOverrides) limits() []limit {
	wide := func(n *int) *int64 {
		if n == nil {
			return nil
		}
		w := int64(*n)
		return &w
	}
	return []limit{
		{"ack_timeout_ms", o.AckTimeoutMS, 1, AckTimeoutMaxMS},
		{"queue_timeout_ms", o.QueueTimeoutMS, 0, QueueTimeoutMaxMS},
		{"work_timeout_ms", o.WorkTimeoutMS, 1, WorkTimeoutMaxMS},
		{"reminder_percent", wide(o.ReminderPercent), 0, ReminderPercentMax},
		{"max_attempts", wide(o.MaxAttempts), 1, AttemptsMax},
		{"backoff_base_ms", o.BackoffBaseMS, 1, BackoffBaseMaxMS},
		{"backoff_cap_ms", o.BackoffCapMS, 1, BackoffCapMaxMS},
		{"backoff_spread_percent", wide(o.BackoffSpreadPct), 0, BackoffSpreadMaxPct},
		{"max_reroutes", wide(o.MaxReroutes), 0, ReroutesMax},
		{"max_escalations", wide(o.MaxEscalations), 0, EscalationsMax},
		{"condition_timeout_ms", o.ConditionTimeoutMS, 1, ConditionTimeoutMaxMS},
		{"max_conditions", wide(o.MaxConditions), 0, ConditionsMax},
		{"cancel_grace_ms", o.CancelGraceMS, 0, CancelGraceMaxMS},
		{"progress_timeout_ms", o.ProgressTimeoutMS, 0, ProgressTimeoutMaxMS},
		{"return_timeout_ms", o.ReturnTimeoutMS, 0, ReturnTimeoutMaxMS},
		{"intervention_timeout_ms", o.InterventionTimeoutMS, 1, InterventionTimeoutMaxMS},
	}
}

// Validate checks the overrides against the limits above. prefix is the path
// of the field that holds them.
func (o PolicyOverrides) Validate(prefix string) error {
	if err := o.validate(prefix); err != nil {
		return err
	}
	return nil
}

func (o PolicyOverrides) validate(prefix string) *Error {
	if o == (PolicyOverrides{}) { // as a rule
		return nil
	}
	if prefix != "" {
		prefix += "."
	}
	for _, l := range o.limits() {
		if l.value == nil {
			continue
		}
		if err := between(prefix+l.field, *l.value, l.least, l.most); err != nil {
			return err
		}
	}
	if o.BackoffBaseMS != nil && o.BackoffCapMS != nil && *o.BackoffBaseMS > *o.BackoffCapMS {
		return Errorf(CodeConflict, prefix+"backoff_cap_ms", "is %d, less than backoff_base_ms (%d)", *o.BackoffCapMS, *o.BackoffBaseMS)
	}
	if o.OnTimeout != nil {
		if err := chosen(prefix+"on_timeout", *o.OnTimeout, OnTimeouts); err != nil {
			return err
		}
	}
	if o.OnNoTaker != nil {
		if err := chosen(prefix+"on_no_taker", *o.OnNoTaker, OnNoTakers); err != nil {
			return err
		}
	}
	if o.OnReturnTimeout != nil {
		if err := chosen(prefix+"on_return_timeout", *o.OnReturnTimeout, OnTimeouts); err != nil {
			return err
		}
	}
	if o.OnDeadline != nil {
		if err := chosen(prefix+"on_deadline", *o.OnDeadline, OnDeadlines); err != nil {
			return err
		}
	}
	if o.OnExhausted != nil {
		if err := chosen(prefix+"on_exhausted", *o.OnExhausted, OnExhausteds); err != nil {
			return err
		}
	}
	if o.LateResult != nil {
		return chosen(prefix+"late_result", *o.LateResult, LateResults)
	}
	return nil
}

// CheckPolicy checks a resolved policy against the limits of its numbers and the words
// of its choices. prefix is the path of the field that holds it.
func CheckPolicy(prefix string, p *Policy) error {
	if *p == usualPolicy { // as a rule
		return nil
	}
	o := PolicyOverrides{
		AckTimeoutMS: &p.AckTimeoutMS, QueueTimeoutMS: &p.QueueTimeoutMS, WorkTimeoutMS: &p.WorkTimeoutMS, ReminderPercent: &p.ReminderPercent,
		MaxAttempts: &p.MaxAttempts, BackoffBaseMS: &p.BackoffBaseMS, BackoffCapMS: &p.BackoffCapMS, BackoffSpreadPct: &p.BackoffSpreadPct,
		MaxReroutes: &p.MaxReroutes, MaxEscalations: &p.MaxEscalations, ConditionTimeoutMS: &p.ConditionTimeoutMS, MaxConditions: &p.MaxConditions,
		CancelGraceMS: &p.CancelGraceMS, ProgressTimeoutMS: &p.ProgressTimeoutMS, ReturnTimeoutMS: &p.ReturnTimeoutMS, InterventionTimeoutMS: &p.InterventionTimeoutMS,
		OnTimeout: &p.OnTimeout, OnNoTaker: &p.OnNoTaker, OnReturnTimeout: &p.OnReturnTimeout, OnDeadline: &p.OnDeadline, OnExhausted: &p.OnExhausted, LateResult: &p.LateResult,
	}
	// The base may be a package's and the cap an agent's: which is larger is no error here.
	if p.BackoffBaseMS > p.BackoffCapMS {
		o.BackoffBaseMS = nil
		if err := between(prefix+".backoff_base_ms", p.BackoffBaseMS, 1, BackoffBaseMaxMS); err != nil {
			return err
		}
	}
	return o.Validate(prefix)
}

// With returns the policy with the overrides that are set.
func (p Policy) With(o PolicyOverrides) Policy {
	override(&p.AckTimeoutMS, o.AckTimeoutMS)
	override(&p.QueueTimeoutMS, o.QueueTimeoutMS)
	override(&p.WorkTimeoutMS, o.WorkTimeoutMS)
	override(&p.ReminderPercent, o.ReminderPercent)
	override(&p.OnTimeout, o.OnTimeout)
	override(&p.MaxAttempts, o.MaxAttempts)
	override(&p.BackoffBaseMS, o.BackoffBaseMS)
	override(&p.BackoffCapMS, o.BackoffCapMS)
	override(&p.BackoffSpreadPct, o.BackoffSpreadPct)
	override(&p.MaxReroutes, o.MaxReroutes)
	override(&p.OnNoTaker, o.OnNoTaker)
	override(&p.MaxEscalations, o.MaxEscalations)
	override(&p.ConditionTimeoutMS, o.ConditionTimeoutMS)
	override(&p.MaxConditions, o.MaxConditions)
	override(&p.CancelGraceMS, o.CancelGraceMS)
	override(&p.ProgressTimeoutMS, o.ProgressTimeoutMS)
	override(&p.ReturnTimeoutMS, o.ReturnTimeoutMS)
	override(&p.OnReturnTimeout, o.OnReturnTimeout)
	override(&p.LateResult, o.LateResult)
	override(&p.OnDeadline, o.OnDeadline)
	override(&p.InterventionTimeoutMS, o.InterventionTimeoutMS)
	override(&p.OnExhausted, o.OnExhausted)
	override(&p.StrictCapabilities, o.StrictCapabilities)
	return p
}

func override[T any](value *T, by *T) {
	if by != nil {
		*value = *by
	}
}
