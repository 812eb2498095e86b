package protocol

import (
	"reflect"
	"strings"
)

// PolicyField is a row of the table of policies: its limits, its default, the JSON
// Schemas, the documentation and the merging of overrides derive from it.
type PolicyField struct {
	Name     string   // in JSON, of Policy and of PolicyOverrides
	Default  any      // int64, string or bool
	Min, Max int64    // of a number, both allowed
	Words    []string // of a choice
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

// PolicyFields are the rows, in the order of the JSON Schemas. The defaults are
// those of version 1 of the protocol for good: records leave them out.
var PolicyFields = []PolicyField{
	number("ack_timeout_ms", 30*second, 1, AckTimeoutMaxMS, "Claim to acknowledgement; and an agent without a live holder is absent after this."),
	number("queue_timeout_ms", 0, 0, QueueTimeoutMaxMS, "Offer to acknowledgement; 0 is none."),
	number("work_timeout_ms", hour, 1, WorkTimeoutMaxMS, "Accept to complete."),
	number("reminder_percent", 80, 0, ReminderPercentMax, "Of the work timeout."),
	choice("on_timeout", OnTimeoutRetry, OnTimeouts, ""),
	number("max_attempts", 3, 1, AttemptsMax, "At one agent."),
	number("backoff_base_ms", 2*second, 1, BackoffBaseMaxMS, ""),
	number("backoff_cap_ms", 5*minute, 1, BackoffCapMaxMS, ""),
	number("backoff_spread_percent", 20, 0, BackoffSpreadMaxPct, "Plus or minus, of the delay."),
	number("max_reroutes", 3, 0, ReroutesMax, ""),
	choice("on_no_taker", NoTakerEscalate, OnNoTakers, ""),
	number("max_escalations", 3, 0, EscalationsMax, ""),
	number("condition_timeout_ms", hour, 1, ConditionTimeoutMaxMS, "For an answer."),
	number("max_conditions", 5, 0, ConditionsMax, "Rounds."),
	number("cancel_grace_ms", 30*second, 0, CancelGraceMaxMS, "From asking a holder to forcing."),
	number("progress_timeout_ms", 0, 0, ProgressTimeoutMaxMS, "From one sign of progress to the next; 0 is none."),
	number("return_timeout_ms", 0, 0, ReturnTimeoutMaxMS, "Submission to result, of what expects a return; 0 is none."),
	choice("on_return_timeout", OnTimeoutFail, OnTimeouts, ""),
	choice("on_deadline", DeadlineEscalate, OnDeadlines, "What follows the deadline: an authority may intervene, or it closes."),
	number("intervention_timeout_ms", day, 1, InterventionTimeoutMaxMS, "From the deadline to the end, for an authority."),
	choice("on_exhausted", ExhaustedEscalate, OnExhausteds, "What follows the last attempt at an agent."),
	choice("on_malformed", MalformedFail, OnMalformeds, "What follows a result that is malformed. Its output is kept either way."),
	choice("late_result", LateIgnore, LateResults, "What becomes of a result whose holder had lost its lease."),
	{Name: "strict_capabilities", Default: false, Doc: "A partial match of the required capabilities is none."},
}

// policyPlaces are the indexes of each row's field in Policy and in PolicyOverrides.
var policyPlaces = func() (places [][2]int) {
	resolved, overrides := fieldsByName(reflect.TypeFor[Policy]()), fieldsByName(reflect.TypeFor[PolicyOverrides]())
	for _, f := range PolicyFields {
		places = append(places, [2]int{resolved[f.Name], overrides[f.Name]})
	}
	return places
}()

// fieldsByName are the indexes of a struct's fields by their names in JSON.
func fieldsByName(of reflect.Type) map[string]int {
	byName := make(map[string]int, of.NumField())
	for i := range of.NumField() {
		name, _, _ := strings.Cut(of.Field(i).Tag.Get("json"), ",")
		byName[name] = i
	}
	return byName
}

// DefaultPolicy is what holds where no package, profile or fleet says otherwise.
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
	if o == (PolicyOverrides{}) { // as a rule
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

// Over returns the overrides with those of a base where they say nothing themselves.
func (o PolicyOverrides) Over(base PolicyOverrides) PolicyOverrides {
	if base == (PolicyOverrides{}) { // as a rule
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

// Validate checks the overrides against the table. prefix is the path of the field
// that holds them.
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

// check holds a value against its row.
func (f *PolicyField) check(prefix string, value reflect.Value) *Error {
	switch {
	case value.CanInt():
		return between(prefix+f.Name, value.Int(), f.Min, f.Max)
	case f.Words != nil:
		return chosen(prefix+f.Name, value.String(), f.Words)
	}
	return nil
}

// CheckPolicy checks a resolved policy against the table. prefix is the path of the
// field that holds it. The base of the back-off may be a package's and its cap an
// agent's: which is larger is no error here.
func CheckPolicy(prefix string, p *Policy) error {
	if *p == defaultPolicy { // as a rule
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
