package protocol

import (
	"cmp"
	"strings"
)

// GateKind is a condition of a gate.
type GateKind string

const (
	GateBids      GateKind = "bids"      // bids of agents
	GateApproval  GateKind = "approval"  // by a person or an agent, for its agent
	GateBudget    GateKind = "budget"    // an increase of its limits
	GateStart     GateKind = "start"     // its start (Summary.StartAt)
	GateBreaker   GateKind = "breaker"   // the recovery of its agent
	GateWorkspace GateKind = "workspace" // a place, or locks, in its workspace
	GateLimit     GateKind = "limit"     // a place under a key with a limit (Gate.Key)
)

// GateKinds lists all kinds, in the order in which they open. No lock, place or probe is held while
// a person thinks or before the start, because later kinds wait until the earlier ones are open. Bids
// come first, and alone: the other conditions depend on the agent that wins. A start before bids has
// a gate of its own. So has a limit, which a worker meets that claims the offer.
var GateKinds = []GateKind{GateBids, GateApproval, GateBudget, GateStart, GateBreaker, GateWorkspace, GateLimit}

// GateTerms are the conditions of an offer, and the offer that follows them.
type GateTerms struct {
	Waits  []GateKind `json:"waits,omitempty" redact:"-"` // in the order of GateKinds; the first is the one that may open now
	Agent  string     `json:"agent,omitempty" redact:"-"` // that gets the offer
	Offer  string     `json:"offer,omitempty" redact:"-"` // reason of that offer: submitted, retry, reroute, …
	Why    string     `json:"why,omitempty" redact:"text"`
	Until  Time       `json:"until,omitzero"`              // when the first of them lapses, or may be met
	Reason string     `json:"reason,omitempty" redact:"-"` // the code of the reroute to Agent
	Facts  *Facts     `json:"facts,omitempty" redact:"-"`  // of Reason
	Key    string     `json:"key,omitempty" redact:"-"`    // of the limit that it waits for
	Rules  []string   `json:"rules,omitempty" redact:"-"`  // the rules that require the approval: package, source, target, or a rule of the fleet

	Approver  string          `json:"approver,omitempty" redact:"-"`
	TimeoutMS int64           `json:"timeout_ms,omitempty"` // of each approver
	OnTimeout ApprovalTimeout `json:"on_timeout,omitempty" redact:"-"`
}

// Gate delays the next offer of a handoff (phase awaiting_approval).
type Gate struct {
	GateTerms
	Since Time `json:"since,omitzero"`
	Level int  `json:"level,omitempty"` // number of lapses of approvers
	// Question is the number of the question that an approver is asked.
	Question int `json:"question,omitempty"`
	// Denied names who denied it, and DenyReason the reason: the handoff closes.
	Denied     string `json:"denied,omitempty"`
	DenyReason string `json:"deny_reason,omitempty"`
}

// ApprovalGiven is an approval, with the agent that may have the handoff; AnyAgent is all.
type ApprovalGiven struct {
	Agent string `json:"agent"`
	By    string `json:"by"`
	At    Time   `json:"at"`
}

// AnyAgent means all agents, in an approval.
const AnyAgent = "*"

// ApprovalTimeout is the action if an approver does not answer.
type ApprovalTimeout string

const (
	ApprovalEscalate ApprovalTimeout = "escalate" // the authority above is asked, finally a person
	ApprovalClose    ApprovalTimeout = "close"    // the handoff ends
)

// First returns the condition that a gate waits for now; empty if none.
func (g *Gate) First() GateKind {
	if g == nil || len(g.Waits) == 0 {
		return ""
	}
	return g.Waits[0]
}

// Approve is the set of handoffs to an agent that a person or an authority approves first: all,
// none, or those of at least a risk. A handoff without a risk is included.
type Approve string

const (
	ApproveAlways Approve = "always"
	ApproveLow    Approve = Approve(RiskLow)
	ApproveMedium Approve = Approve(RiskMedium)
	ApproveHigh   Approve = Approve(RiskHigh)
	ApproveNever  Approve = "never" // none; absent is the same
)

// Approves lists all values.
var Approves = []Approve{ApproveAlways, ApproveLow, ApproveMedium, ApproveHigh, ApproveNever}

// ApprovalRule is a rule of the fleet: the handoffs that it matches need an approval before an
// agent gets them.
type ApprovalRule struct {
	Name      string          `json:"name"`
	If        ApprovalWhen    `json:"if,omitzero"`  // all conditions; empty matches every handoff
	By        string          `json:"by,omitempty"` // the approver; absent is the package's
	TimeoutMS int64           `json:"timeout_ms,omitempty"`
	OnTimeout ApprovalTimeout `json:"on_timeout,omitempty"`
}

// ApprovalWhen is the condition of a rule.
type ApprovalWhen struct {
	MinRisk    Risk   `json:"min_risk,omitempty"`
	Source     string `json:"source,omitempty"` // the id of an agent, or a prefix of ids: prefix*
	Target     string `json:"target,omitempty"` // the same, of the receiving agent
	Capability string `json:"capability,omitempty"`
	Type       Type   `json:"type,omitempty"`
	Complexity string `json:"complexity,omitempty"` // the class of the package
	// MinTokens matches a handoff that may use so many tokens: its limit is not lower, or absent.
	MinTokens int64 `json:"min_tokens,omitempty"`
}

// Fits reports whether a rule matches a hand-off from source to target.
func (w *ApprovalWhen) Fits(source, target string) bool {
	return (w.Source == "" || matchesAny([]string{w.Source}, source)) && (w.Target == "" || matchesAny([]string{w.Target}, target))
}

// checkApproval checks the approval of a package.
func checkApproval(a *Approval) *Error {
	if a == nil {
		return nil
	}
	if err := cmp.Or(optionalID("approval.by", a.By), notLonger("approval.question", a.Question, questionBytesMax)); err != nil {
		return err
	}
	if i := strings.IndexFunc(a.Question, func(r rune) bool { return r < ' ' && r != '\n' && r != '\t' && r != 0 }); i >= 0 { // the state keeps it
		return Errorf(CodeInvalid, "approval.question", "has a control character at byte %d", i)
	}
	return checkApprovalTime("approval.", a.TimeoutMS, a.OnTimeout)
}

func checkApprovalTime(field string, ms int64, on ApprovalTimeout) *Error {
	return cmp.Or(zeroOrBetween(field+"timeout_ms", ms, approvalTimeoutMinMS, ApprovalTimeoutMaxMS), oneOf(field+"on_timeout", on, ApprovalTimeouts))
}

func checkApprovalRules(rules []ApprovalRule) *Error {
	return checkNamed("approvals", rules, approvalRulesMax, "lists %d rules", (*ApprovalRule).check, ".name", func(r *ApprovalRule) string { return r.Name })
}

// check checks the condition of a rule. at is the prefix of its fields.
func (w *ApprovalWhen) check(at string) *Error {
	optionalPattern := func(field, value string) *Error {
		if value == "" {
			return nil
		}
		return checkPattern(at+field, value)
	}
	return cmp.Or(
		oneOf(at+"min_risk", w.MinRisk, Risks),
		optionalPattern("source", w.Source),
		optionalPattern("target", w.Target),
		optionalID(at+"capability", w.Capability),
		oneOf(at+"type", w.Type, Types),
		oneOf(at+"complexity", w.Complexity, Complexities),
		between(at+"min_tokens", w.MinTokens, 0, TokensMax),
	)
}

func (r *ApprovalRule) check() *Error {
	return cmp.Or(checkID("name", r.Name), r.If.check("if."), optionalID("by", r.By), checkApprovalTime("", r.TimeoutMS, r.OnTimeout))
}

// Limits bound a handoff and everything that follows from it: its lineage. An absent limit does not
// bound; 0 means that nothing is left (documents 0, 1 and 3).
type Limits struct {
	MaxHandoffs *int64 `json:"max_handoffs,omitempty" flag:"max-handoffs" doc:"at most {N} handoffs below this one"`
	MaxDepth    *int64 `json:"max_depth,omitempty" flag:"max-depth" doc:"at most {N} levels of handoffs below this one"`
	MaxAgents   *int64 `json:"max_agents,omitempty" flag:"max-agents" doc:"at most {N} agents have a part in it, its own included"`
	MaxTokens   *int64 `json:"max_tokens,omitempty" flag:"max-tokens" doc:"at most {N} tokens for it and all that follows from it"`
	// MaxCostMicros is in millionths of the fleet's currency.
	MaxCostMicros *int64 `json:"max_cost_micros,omitempty" flag:"max-cost" doc:"at most this cost for it and all that follows from it, in the fleet's currency: 1.50"`
	MaxTimeMS     *int64 `json:"max_time_ms,omitempty" flag:"max-time" doc:"at most this long until its end; it becomes the deadline"`
	// SharePercent is a child's share of the remaining limits, if it asks for none; absent is
	// SharePercentDefault. A handoff that continues from a result gets all.
	SharePercent *int64 `json:"share_percent,omitempty" flag:"share" doc:"{PERCENT} of what is left that a handoff below gets, if it asks for nothing (default 50)"`
	// OnExhausted is the action when a budget has run out; absent is return.
	OnExhausted BudgetAction `json:"on_exhausted,omitempty" flag:"on-exhausted" doc:"{WHAT} follows when a budget has run out: return (default; the worker returns a partial result) or ask (a person, before the next attempt)"`
}

// BudgetAction is the action when a budget has run out during the work.
type BudgetAction string

const (
	BudgetReturn BudgetAction = "return" // the holder is asked to stop, and returns its work so far
	BudgetAsk    BudgetAction = "ask"    // a person is asked before the next attempt
)

// Amounts are the used or reserved amounts of each dimension.
type Amounts struct {
	Handoffs   int64 `json:"handoffs,omitempty" flag:"handoffs" doc:"{N} handoffs more below it"`
	Agents     int64 `json:"agents,omitempty" flag:"agents" doc:"{N} agents more"`
	Tokens     int64 `json:"tokens,omitempty" flag:"tokens" doc:"{N} tokens more"`
	CostMicros int64 `json:"cost_micros,omitempty" flag:"cost" doc:"as much more cost, as 0.50"`
}

// Account records the use of a handoff's limits. It is nil without limits.
type Account struct {
	Used     Amounts `json:"used,omitzero"`     // by its own work, and the handoffs that it made
	Reserved Amounts `json:"reserved,omitzero"` // granted to children that are open
	Spent    Amounts `json:"spent,omitzero"`    // by children that have closed
	Over     Amounts `json:"over,omitzero"`     // the part of used and spent that exceeds the limits
	Raised   Amounts `json:"raised,omitzero"`   // added to the limits by a person
}

// Plus returns the sum of two amounts.
func (a Amounts) Plus(b Amounts) Amounts {
	return Amounts{a.Handoffs + b.Handoffs, a.Agents + b.Agents, a.Tokens + b.Tokens, a.CostMicros + b.CostMicros}
}

// Minus returns a minus b.
func (a Amounts) Minus(b Amounts) Amounts {
	return Amounts{a.Handoffs - b.Handoffs, a.Agents - b.Agents, a.Tokens - b.Tokens, a.CostMicros - b.CostMicros}
}

// Max returns the larger amount in each dimension.
func (a Amounts) Max(b Amounts) Amounts {
	return Amounts{max(a.Handoffs, b.Handoffs), max(a.Agents, b.Agents), max(a.Tokens, b.Tokens), max(a.CostMicros, b.CostMicros)}
}

// Times returns n times a.
func (a Amounts) Times(n int64) Amounts {
	return Amounts{a.Handoffs * n, a.Agents * n, a.Tokens * n, a.CostMicros * n}
}

// IsZero reports whether all amounts are 0.
func (a Amounts) IsZero() bool { return a == Amounts{} }

// Granted returns the amounts of the limits; 0 for an unlimited dimension.
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

// Dimensions lists the dimensions of limits, by the names that Amounts.Of and Limits.Of take.
var Dimensions = []string{"max_handoffs", "max_agents", "max_tokens", "max_cost_micros"}

// Of returns the amount of a dimension.
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

// Of returns the limit of a dimension, if there is one.
func (l *Limits) Of(dimension string) (limit int64, bounded bool) {
	if l == nil {
		return 0, false
	}
	limits := map[string]*int64{"max_handoffs": l.MaxHandoffs, "max_agents": l.MaxAgents, "max_tokens": l.MaxTokens, "max_cost_micros": l.MaxCostMicros}
	n := limits[dimension]
	return deref(n), n != nil
}

// Bounded returns the part of a that the limits bound.
func (l *Limits) Bounded(a Amounts) Amounts {
	if l == nil {
		return Amounts{}
	}
	bounded := func(amount int64, limit *int64) int64 {
		if limit == nil {
			return 0
		}
		return amount
	}
	return Amounts{bounded(a.Handoffs, l.MaxHandoffs), bounded(a.Agents, l.MaxAgents), bounded(a.Tokens, l.MaxTokens), bounded(a.CostMicros, l.MaxCostMicros)}
}

// Total returns how much of its limits a handoff has taken: used, reserved and spent.
func (a *Account) Total() Amounts { return a.Used.Plus(a.Reserved).Plus(a.Spent) }

// Bounds and defaults of limits.
const (
	MaxHandoffsMax      = 1_000
	MaxDepthMax         = 64
	MaxAgentsMax        = 1_000
	MaxTimeMinMS        = 1
	MaxTimeMaxMS        = DeadlineMaxMS
	MaxCostMicrosMax    = 1_000_000_000_000_000
	SharePercentDefault = 50
	// LineageDepthMax is the greatest depth of a lineage, whatever its limits.
	LineageDepthMax = 250
	// LineageDepthWarning is the depth from which a lineage is reported.
	LineageDepthWarning = 25
)

// validate checks limits that a package or the fleet sets.
func (l *Limits) validate(field string) *Error {
	if l == nil {
		return nil
	}
	return cmp.Or(
		optionalBetween(field+".max_handoffs", l.MaxHandoffs, 0, MaxHandoffsMax),
		optionalBetween(field+".max_depth", l.MaxDepth, 0, MaxDepthMax),
		optionalBetween(field+".max_agents", l.MaxAgents, 1, MaxAgentsMax),
		optionalBetween(field+".max_tokens", l.MaxTokens, 0, TokensMax),
		optionalBetween(field+".max_cost_micros", l.MaxCostMicros, 0, MaxCostMicrosMax),
		optionalBetween(field+".max_time_ms", l.MaxTimeMS, MaxTimeMinMS, MaxTimeMaxMS),
		optionalBetween(field+".share_percent", l.SharePercent, 0, 100),
		oneOf(field+".on_exhausted", l.OnExhausted, BudgetActions),
	)
}

// bounds returns the limits but the share.
func (l *Limits) bounds() []**int64 {
	return []**int64{&l.MaxHandoffs, &l.MaxDepth, &l.MaxAgents, &l.MaxTokens, &l.MaxCostMicros, &l.MaxTimeMS}
}

// Over returns each limit of l, or of other if l has none: a package's over those of its class.
func (l *Limits) Over(other *Limits) *Limits {
	if l == nil || other == nil {
		return cmp.Or(l, other)
	}
	both := *l
	theirs := other.bounds()
	for i, own := range both.bounds() {
		*own = cmp.Or(*own, *theirs[i])
	}
	both.SharePercent, both.OnExhausted = cmp.Or(l.SharePercent, other.SharePercent), cmp.Or(l.OnExhausted, other.OnExhausted)
	return &both
}

// Within returns the tighter of both limits in each dimension.
func (l *Limits) Within(cap *Limits) *Limits {
	if l == nil || cap == nil {
		return l.Over(cap)
	}
	both := *l.Over(cap)
	caps := cap.bounds()
	for i, own := range both.bounds() {
		if cap := *caps[i]; cap != nil && *cap < **own {
			*own = cap
		}
	}
	return &both
}

// checkLimits checks the limits of a package. Its budget must equal its limit of tokens.
func checkLimits(p *Package) *Error {
	if err := p.Limits.validate("limits"); err != nil {
		return err
	}
	if l, budget := p.Limits, p.Constraints.Budget; l != nil && l.MaxTokens != nil && budget != nil && *budget != float64(*l.MaxTokens) {
		return Errorf(CodeConflict, "limits.max_tokens", "is %d and constraints.budget is %g; they mean the same, give one", *l.MaxTokens, *budget)
	}
	return nil
}

// The events of a gate, which delays the offer of a handoff.
const (
	EventGated      EventType = "gated"
	EventGateOpened EventType = "gate_opened"
	EventApproved   EventType = "approved"
	EventDenied     EventType = "denied"
	EventLapsed     EventType = "lapsed"
)

var gateEvents = []func() Event{
	empty[Gated], empty[GateOpened], empty[Approved], empty[Denied], empty[Lapsed],
}

// Gated creates a gate before the next offer.
type Gated struct {
	Meta
	GateTerms
	Routing *Routing `json:"routing,omitempty" redact:"-"` // if the agent was chosen
	Calls   []string `json:"calls,omitempty" redact:"-"`   // the agents that are asked for bids
}

func (*Gated) EventType() EventType { return EventGated }

func (e *Gated) outline() Outline {
	o := Outline{Audit: AuditDeferred, To: e.Agent, Code: "gated"}
	words := make([]string, len(e.Waits))
	for i, kind := range e.Waits {
		words[i] = string(kind)
	}
	if len(e.Waits) > 0 {
		o.Gate = e.Waits[0]
	}
	o.Words = colons(strings.Join(words, ", "), cmp.Or(e.Why, e.Key, strings.Join(e.Rules, ", ")))
	return o
}

// GateOpened records that a condition of a gate is met. After the last one the offer follows in the
// append.
type GateOpened struct {
	Meta
	Gate  GateKind `json:"gate" redact:"-" words:"%"`
	Agent string   `json:"agent,omitempty" redact:"-"` // that gets the offer, if the gate chose it
	Seq   uint64   `json:"seq,omitempty"`              // of the entry that records the condition, in another stream
	Probe bool     `json:"probe,omitempty"`            // the offer tests whether its agent works again
}

func (*GateOpened) EventType() EventType { return EventGateOpened }

func (e *GateOpened) outline() Outline { return Outline{Gate: e.Gate} }

// Approved permits an agent to have the handoff; AnyAgent permits all.
type Approved struct {
	Meta
	Agent   string `json:"agent" redact:"-" words:"for %"`
	Comment string `json:"comment,omitempty" redact:"text" words:"%"`
}

func (*Approved) EventType() EventType { return EventApproved }

func (e *Approved) outline() Outline { return Outline{Gate: GateApproval, Words: e.Comment} }

// Denied refuses the agent of the gate, and ends the handoff.
type Denied struct {
	Meta
	Agent  string `json:"agent,omitempty" redact:"-" words:"for %"`
	Reason string `json:"reason" redact:"text" words:"%"`
}

func (*Denied) EventType() EventType { return EventDenied }

func (e *Denied) outline() Outline {
	return Outline{Audit: AuditRejected, Agent: e.Agent, Gate: GateApproval, Code: "denied", Words: e.Reason}
}

// Lapsed passes on the question of a gate that its approver has not answered.
type Lapsed struct {
	Meta
	From  string `json:"from" redact:"-" words:"% did not answer"`
	To    string `json:"to" redact:"-" words:"% is asked"`
	Level int    `json:"level"`          // number of lapses, including this one
	Until Time   `json:"until,omitzero"` // when it lapses again; zero is never
}

func (*Lapsed) EventType() EventType { return EventLapsed }

func (*Lapsed) outline() Outline { return Outline{Gate: GateApproval} }
