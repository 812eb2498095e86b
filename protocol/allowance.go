package protocol

// Limits bound a handoff and everything that follows from it: its lineage. A limit that is absent
// does not bound; 0 is nothing left (documents 0, 1 and 3).
type Limits struct {
	MaxHandoffs   *int64 `json:"max_handoffs,omitempty"`    // handed off below it
	MaxDepth      *int64 `json:"max_depth,omitempty"`       // levels below it
	MaxAgents     *int64 `json:"max_agents,omitempty"`      // that have a part in it, its own included
	MaxTokens     *int64 `json:"max_tokens,omitempty"`      // used by it and below
	MaxCostMicros *int64 `json:"max_cost_micros,omitempty"` // millionths of the fleet's currency
	MaxTimeMS     *int64 `json:"max_time_ms,omitempty"`     // from its submission: becomes its deadline
	// SharePercent is what a child gets of what is left, if it asks for nothing; absent is
	// SharePercentDefault. A handoff that is handed on with a result gets all.
	SharePercent *int64 `json:"share_percent,omitempty"`
	// OnExhausted is what follows when a budget has run out; absent is return.
	OnExhausted BudgetAction `json:"on_exhausted,omitempty"`
}

// BudgetAction is what follows when a budget has run out in the work.
type BudgetAction string

const (
	BudgetReturn BudgetAction = "return" // the holder is asked to stop, and hands back what it has
	BudgetAsk    BudgetAction = "ask"    // a person is asked before the next attempt
)

// Amounts are how much of each dimension was used, or is set aside.
type Amounts struct {
	Handoffs   int64 `json:"handoffs,omitempty"`
	Agents     int64 `json:"agents,omitempty"`
	Tokens     int64 `json:"tokens,omitempty"`
	CostMicros int64 `json:"cost_micros,omitempty"`
}

// Account is what has become of the limits of a handoff. It exists where the handoff has limits.
type Account struct {
	Used     Amounts `json:"used,omitzero"`     // by its own work, and the handoffs that it made
	Reserved Amounts `json:"reserved,omitzero"` // granted to children that are open
	Spent    Amounts `json:"spent,omitzero"`    // by children that have closed
	Over     Amounts `json:"over,omitzero"`     // of used and spent: what is beyond the limits
	Raised   Amounts `json:"raised,omitzero"`   // added to the limits by a person
}

// Plus is the sum of two amounts.
func (a Amounts) Plus(b Amounts) Amounts {
	return Amounts{a.Handoffs + b.Handoffs, a.Agents + b.Agents, a.Tokens + b.Tokens, a.CostMicros + b.CostMicros}
}

// Minus is a without b.
func (a Amounts) Minus(b Amounts) Amounts {
	return Amounts{a.Handoffs - b.Handoffs, a.Agents - b.Agents, a.Tokens - b.Tokens, a.CostMicros - b.CostMicros}
}

// Max is the larger of both in each dimension.
func (a Amounts) Max(b Amounts) Amounts {
	return Amounts{max(a.Handoffs, b.Handoffs), max(a.Agents, b.Agents), max(a.Tokens, b.Tokens), max(a.CostMicros, b.CostMicros)}
}

// Times is n times a.
func (a Amounts) Times(n int64) Amounts {
	return Amounts{a.Handoffs * n, a.Agents * n, a.Tokens * n, a.CostMicros * n}
}

// IsZero tells whether nothing is in it.
func (a Amounts) IsZero() bool { return a == Amounts{} }

// Granted are the amounts that the limits bound; what is unlimited is 0.
func (l *Limits) Granted() Amounts {
	if l == nil {
		return Amounts{}
	}
	return Amounts{deref(l.MaxHandoffs), deref(l.MaxAgents), deref(l.MaxTokens), deref(l.MaxCostMicros)}
}

func deref(n *int64) int64 {
	if n == nil {
		return 0
	}
	return *n
}

// Dimensions are what limits bound, by the names that Amounts.Of and Limits.Of take.
var Dimensions = []string{"max_handoffs", "max_agents", "max_tokens", "max_cost_micros"}

// Of is the amount of a dimension.
func (a Amounts) Of(dimension string) int64 {
	switch dimension {
	case "max_handoffs":
		return a.Handoffs
	case "max_agents":
		return a.Agents
	case "max_tokens":
		return a.Tokens
	}
	return a.CostMicros
}

// Of is the limit of a dimension, if there is one.
func (l *Limits) Of(dimension string) (limit int64, bounded bool) {
	if l == nil {
		return 0, false
	}
	limits := map[string]*int64{"max_handoffs": l.MaxHandoffs, "max_agents": l.MaxAgents, "max_tokens": l.MaxTokens, "max_cost_micros": l.MaxCostMicros}
	if n := limits[dimension]; n != nil {
		return *n, true
	}
	return 0, false
}

// Bounded is the part of a that the limits bound.
func (l *Limits) Bounded(a Amounts) Amounts {
	if l == nil || l.MaxHandoffs == nil {
		a.Handoffs = 0
	}
	if l == nil || l.MaxAgents == nil {
		a.Agents = 0
	}
	if l == nil || l.MaxTokens == nil {
		a.Tokens = 0
	}
	if l == nil || l.MaxCostMicros == nil {
		a.CostMicros = 0
	}
	return a
}

// Total is what a handoff has taken of its limits: used, set aside and spent.
func (a *Account) Total() Amounts { return a.Used.Plus(a.Reserved).Plus(a.Spent) }

// Bounds of limits, and the defaults of what they say.
const (
	MaxHandoffsMax      = 1_000
	MaxDepthMax         = 64
	MaxAgentsMax        = 1_000
	MaxTimeMinMS        = 1
	MaxTimeMaxMS        = DeadlineMaxMS
	MaxCostMicrosMax    = 1_000_000_000_000_000
	SharePercentDefault = 50
	// LineageDepthMax is how deep a lineage is at most, whatever its limits say.
	LineageDepthMax = 250
	// LineageDepthWarning is the depth from which on a lineage is told of.
	LineageDepthWarning = 25
)

// validate checks limits that a package or the fleet sets.
func (l *Limits) validate(field string) *Error {
	if l == nil {
		return nil
	}
	for _, limit := range []struct {
		name       string
		value      *int64
		least, top int64
	}{
		{"max_handoffs", l.MaxHandoffs, 0, MaxHandoffsMax},
		{"max_depth", l.MaxDepth, 0, MaxDepthMax},
		{"max_agents", l.MaxAgents, 1, MaxAgentsMax},
		{"max_tokens", l.MaxTokens, 0, TokensMax},
		{"max_cost_micros", l.MaxCostMicros, 0, MaxCostMicrosMax},
		{"max_time_ms", l.MaxTimeMS, MaxTimeMinMS, MaxTimeMaxMS},
		{"share_percent", l.SharePercent, 0, 100},
	} {
		if limit.value == nil {
			continue
		}
		if err := between(field+"."+limit.name, *limit.value, limit.least, limit.top); err != nil {
			return err
		}
	}
	return oneOf(field+".on_exhausted", l.OnExhausted, BudgetActions)
}

// Over returns each limit of l, or of other where l has none: a package's over those of its class.
func (l *Limits) Over(other *Limits) *Limits {
	if l == nil || other == nil {
		if l == nil {
			return other
		}
		return l
	}
	both := *l
	for _, f := range []struct{ own, other **int64 }{
		{&both.MaxHandoffs, &other.MaxHandoffs}, {&both.MaxDepth, &other.MaxDepth}, {&both.MaxAgents, &other.MaxAgents},
		{&both.MaxTokens, &other.MaxTokens}, {&both.MaxCostMicros, &other.MaxCostMicros}, {&both.MaxTimeMS, &other.MaxTimeMS},
		{&both.SharePercent, &other.SharePercent},
	} {
		if *f.own == nil {
			*f.own = *f.other
		}
	}
	if both.OnExhausted == "" {
		both.OnExhausted = other.OnExhausted
	}
	return &both
}

// Within returns the tighter of both in each limit.
func (l *Limits) Within(cap *Limits) *Limits {
	if l == nil || cap == nil {
		return l.Over(cap)
	}
	both := *l.Over(cap)
	for _, f := range []struct{ own, cap **int64 }{
		{&both.MaxHandoffs, &cap.MaxHandoffs}, {&both.MaxDepth, &cap.MaxDepth}, {&both.MaxAgents, &cap.MaxAgents},
		{&both.MaxTokens, &cap.MaxTokens}, {&both.MaxCostMicros, &cap.MaxCostMicros}, {&both.MaxTimeMS, &cap.MaxTimeMS},
	} {
		if *f.cap != nil && **f.cap < **f.own {
			*f.own = *f.cap
		}
	}
	return &both
}

// checkLimits checks the limits of a package. Its budget says the same as its limit of tokens.
func checkLimits(p *Package) *Error {
	if err := p.Limits.validate("limits"); err != nil {
		return err
	}
	if l, budget := p.Limits, p.Constraints.Budget; l != nil && l.MaxTokens != nil && budget != nil && *budget != float64(*l.MaxTokens) {
		return Errorf(CodeConflict, "limits.max_tokens", "is %d and constraints.budget is %g; they mean the same, give one", *l.MaxTokens, *budget)
	}
	return nil
}
