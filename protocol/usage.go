package protocol

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
)

const (
	// UsageMax bounds each figure of a Usage.
	UsageMax = TokensMax
	// UsageModelBytesMax bounds the name of a model.
	UsageModelBytesMax = 128
	// AttemptsUsageMax is how many attempts a state remembers the usage of: as many as may have
	// a late result, and the current one.
	AttemptsUsageMax = LateResultsMax + 1
)

// Usage is what an attempt has used so far. It is cumulative: a report that is lost or repeated
// changes nothing, the next one makes up for it.
type Usage struct {
	TokensIn  int64 `json:"tokens_in,omitempty"`
	TokensOut int64 `json:"tokens_out,omitempty"`
	Tokens    int64 `json:"tokens,omitempty"` // in all; at least in and out together
	// CostMicros is the cost, in millionths of the fleet's currency.
	CostMicros int64  `json:"cost_micros,omitempty"`
	Calls      int64  `json:"calls,omitempty"`            // of models
	TimeMS     int64  `json:"time_ms,omitempty"`          // that the program says it has worked
	Model      string `json:"model,omitempty" redact:"-"` // letters, digits and ._:/@+-
}

// meterCommand takes the usage of a result from update.metrics of its command: tokens_used, and
// time_elapsed in seconds. Of each figure that is in usage too the larger one counts.
func (r *Result) meterCommand() {
	if r.Command == nil || !bytes.Contains(r.Command.Update, []byte(`"metrics"`)) {
		return
	}
	var update struct {
		Metrics struct {
			Tokens  any `json:"tokens_used"`
			Elapsed any `json:"time_elapsed"`
		} `json:"metrics"`
	}
	if json.Unmarshal(r.Command.Update, &update) != nil {
		return
	}
	figure := func(value any, scale float64) int64 { // any other value is the program's own affair
		n, _ := value.(float64)
		if n *= scale; n > 0 && n <= UsageMax {
			return int64(n)
		}
		return 0
	}
	said := Usage{Tokens: figure(update.Metrics.Tokens, 1), TimeMS: figure(update.Metrics.Elapsed, 1000)}
	if said.IsZero() {
		return
	}
	if r.Usage != nil {
		said = r.Usage.Max(said)
	}
	r.Usage = &said
}

// UsageSource is where a report of usage comes from.
type UsageSource string

const (
	UsageResult   UsageSource = "result"   // the output of a program
	UsageProgress UsageSource = "progress" // a report of progress
	UsageReport   UsageSource = "report"   // a report of usage alone
	UsageEstimate UsageSource = "estimate" // of a lost attempt that had reported nothing
)

// Normalize completes the total. One that cannot be stays as it is.
func (u *Usage) Normalize() {
	if u.Tokens >= 0 {
		u.Tokens = max(u.Tokens, u.TokensIn+u.TokensOut)
	}
}

// figures are the counts of a usage, by name.
func (u *Usage) figures() []struct {
	name  string
	value *int64
} {
	return []struct {
		name  string
		value *int64
	}{{"tokens_in", &u.TokensIn}, {"tokens_out", &u.TokensOut}, {"tokens", &u.Tokens}, {"cost_micros", &u.CostMicros}, {"calls", &u.Calls}, {"time_ms", &u.TimeMS}}
}

// Validate checks a usage: each figure is from 0 to UsageMax, and one of them is more than 0.
func (u Usage) Validate() error {
	if u.IsZero() {
		return Errorf(CodeMissing, "usage", "says nothing: give tokens, cost_micros, calls or time_ms")
	}
	if err := u.validate("usage"); err != nil {
		return err
	}
	return nil
}

func (u *Usage) validate(field string) *Error {
	if u == nil {
		return nil
	}
	for _, f := range u.figures() {
		if err := between(field+"."+f.name, *f.value, 0, UsageMax); err != nil {
			return err
		}
	}
	if u.Model != "" && !IsModel(u.Model) {
		return Errorf(CodeInvalid, field+".model", "must be at most %d letters, digits and ._:/@+-, not %q", UsageModelBytesMax, CutText(u.Model, UsageModelBytesMax))
	}
	return nil
}

// IsModel tells whether a text can be the name of a model. It is no free text, which may hold
// secrets.
func IsModel(name string) bool {
	if name == "" || len(name) > UsageModelBytesMax {
		return false
	}
	for _, c := range []byte(name) {
		if (c|0x20 < 'a' || c|0x20 > 'z') && (c < '0' || c > '9') && !strings.ContainsRune("._:/@+-", rune(c)) {
			return false
		}
	}
	return true
}

// IsZero tells whether it counts nothing.
func (u Usage) IsZero() bool {
	u.Model = ""
	return u == Usage{}
}

// Beyond returns what a report has more than another of the same attempt, figure by figure.
func (u Usage) Beyond(said Usage) Usage {
	more, before := u.figures(), said.figures()
	for i := range more {
		*more[i].value = max(0, min(*more[i].value, UsageMax)-*before[i].value)
	}
	return u
}

// Plus adds what more has. The model is that of the later report.
func (u Usage) Plus(more Usage) Usage {
	sum, added := u.figures(), more.figures()
	for i := range sum {
		*sum[i].value += *added[i].value
	}
	if IsModel(more.Model) {
		u.Model = more.Model
	}
	return u
}

// Max returns the larger figure of two reports of one attempt, for each.
func (u Usage) Max(other Usage) Usage { return u.Plus(other.Beyond(u)) }

// Used is what a handoff has used, all of its attempts together. Attempts has what the current one
// has said, and those that were lost.
type Used struct {
	Usage
	Attempts []AttemptUsage `json:"attempts,omitempty"`
	// Others is the usage of agents that do not have the handoff now.
	Others []UsedBy `json:"others,omitempty"`
}

// UsedBy is the usage of one agent.
type UsedBy struct {
	Agent string `json:"agent"`
	Usage
}

// UsedByMax is how many agents a state keeps apart that have used something; what more of them have
// used counts for the last.
const UsedByMax = 16

// ByAgent returns what each agent has used, where agent has the handoff, or had it last.
func (u *Used) ByAgent(agent string) []UsedBy {
	if u == nil || u.IsZero() {
		return nil
	}
	all, rest := slices.Clone(u.Others), u.own()
	if i := slices.IndexFunc(all, func(o UsedBy) bool { return o.Agent == agent }); i >= 0 {
		all[i].Usage = all[i].Plus(rest)
	} else if !rest.IsZero() {
		all = append(all, UsedBy{agent, rest})
	}
	return all
}

// own returns the usage of the agent that has the handoff.
func (u *Used) own() Usage {
	own := u.Usage
	for _, other := range u.Others {
		own = own.Beyond(other.Usage)
	}
	return own
}

// Leaves returns what was used once an agent has the handoff no longer: what it has used is its own.
func (u *Used) Leaves(agent string) *Used {
	if u == nil || agent == "" {
		return u
	}
	return u.credit(agent, u.own())
}

// credit counts more for an agent that does not have the handoff.
func (u *Used) credit(agent string, more Usage) *Used {
	if more.IsZero() {
		return u
	}
	next := *u
	next.Others = slices.Clone(u.Others)
	more.Model = ""
	i := slices.IndexFunc(next.Others, func(o UsedBy) bool { return o.Agent == agent })
	switch {
	case i < 0 && len(next.Others) < UsedByMax:
		next.Others = append(next.Others, UsedBy{agent, more})
		return &next
	case i < 0:
		i = UsedByMax - 1
	}
	next.Others[i].Usage = next.Others[i].Plus(more)
	return &next
}

// AttemptUsage is what the attempt of a fence has said that it used.
type AttemptUsage struct {
	Fence uint64 `json:"fence"`
	Usage
}

// Total is what was used in all; nil is nothing.
func (u *Used) Total() Usage {
	if u == nil {
		return Usage{}
	}
	return u.Usage
}

// Said is what the attempt of a fence has said so far.
func (u *Used) Said(fence uint64) Usage {
	if u != nil {
		for _, a := range u.Attempts {
			if a.Fence == fence {
				return a.Usage
			}
		}
	}
	return Usage{}
}

// AddFor is Add for an attempt of an agent that does not have the handoff now.
func (u *Used) AddFor(agent string, fence uint64, report Usage) (*Used, Usage) {
	sum, more := u.Add(fence, report)
	if more.IsZero() || agent == "" {
		return sum, more
	}
	return sum.credit(agent, more), more
}

// Add returns what was used after a report of an attempt, and what that report adds. The receiver
// stays as it is.
func (u *Used) Add(fence uint64, report Usage) (*Used, Usage) {
	report.Normalize()
	said := u.Said(fence)
	more := report.Beyond(said)
	if more.IsZero() {
		return u, more
	}
	sum := &Used{Usage: u.Total().Plus(more)}
	if u != nil {
		sum.Others = u.Others
	}
	said = said.Plus(more)
	said.Model = ""
	sum.Attempts = append(u.without(fence), AttemptUsage{Fence: fence, Usage: said})
	sum.Attempts = sum.Attempts[max(0, len(sum.Attempts)-AttemptsUsageMax):]
	return sum, more
}

// Forget returns what was used without the attempt of a fence, which has ended and says no more.
func (u *Used) Forget(fence uint64) *Used {
	if u == nil {
		return nil
	}
	return &Used{Usage: u.Usage, Attempts: u.without(fence), Others: u.Others}
}

// without returns the attempts but that of a fence, in a slice of their own.
func (u *Used) without(fence uint64) []AttemptUsage {
	if u == nil {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(u.Attempts), func(a AttemptUsage) bool { return a.Fence == fence })
}

// BudgetLeft is what is left of the budgets that bound a handoff; nil is not bounded.
type BudgetLeft struct {
	Tokens     *int64 `json:"tokens,omitempty"`
	CostMicros *int64 `json:"cost_micros,omitempty"`
}

// Price is what an agent's model costs, in millionths of the fleet's currency for a million tokens.
type Price struct {
	InMicros  int64 `json:"in_micros_per_mtok,omitempty"`
	OutMicros int64 `json:"out_micros_per_mtok,omitempty"`
}

func (p *Price) validate(field string) *Error {
	if p == nil {
		return nil
	}
	if err := between(field+".in_micros_per_mtok", p.InMicros, 0, UsageMax); err != nil {
		return err
	}
	return between(field+".out_micros_per_mtok", p.OutMicros, 0, UsageMax)
}

// Of returns a usage with its cost, where it has tokens and none. Tokens of which is not known
// whether they went in or out cost the higher price.
func (p *Price) Of(u Usage) Usage {
	if p == nil || u.CostMicros != 0 {
		return u
	}
	u.Normalize()
	rest := u.Tokens - u.TokensIn - u.TokensOut
	cost := float64(u.TokensIn)*float64(p.InMicros) + float64(u.TokensOut)*float64(p.OutMicros) + float64(rest)*float64(max(p.InMicros, p.OutMicros))
	u.CostMicros = int64(min(cost/1e6, UsageMax))
	return u
}
