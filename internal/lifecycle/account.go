package lifecycle

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	p "github.com/agenthandoff/handoff/protocol"
)

// Next is a hand-off by a holder: the event that records it, and the limits it asks for.
type Next struct {
	p.HandedOff
	Asks    *p.Limits // limits of its package or its class; nil: none
	Members int       // of a group; 0: not a group
	Refused *p.Error  // refusal regardless of the remaining limits; nil: allowed
	// FailBarred fails the attempt if a limit or a rule refuses this hand-off together with the
	// result.
	FailBarred bool
}

// resolveLimits returns the limits of a handoff: those it asks for, within those of the fleet if no
// other account covers it. nil means no limits.
func resolveLimits(s p.Summary, d *Directory) *p.Limits {
	limits := AskedLimits(s, d)
	if isSubmitted(&s) {
		limits = limits.Within(d.fleet().Limits)
	}
	return limits
}

// classify sets the complexity class of a submission without one, by the first rule of the fleet
// that fits. A handoff made under a lease uses part of its parent's limits and has no class.
func classify(s p.Summary, f *p.Fleet) p.Summary {
	if len(f.Complexity) == 0 || s.Class != "" { // usual case
		return s
	}
	if !isSubmitted(&s) || s.CallOf != "" || s.Type == p.Escalation {
		return s
	}
	for i, rule := range f.Complexity {
		if fitsRule(rule.If, &s, s.Target.Agent) {
			s.Class, s.Classified = rule.Class, fmt.Sprintf("%s/rule %d", rule.Class, i+1)
			return s
		}
	}
	return s
}

// AskedLimits returns the limits that a handoff asks for: its package's, over those of its class.
// nil means no limits.
func AskedLimits(s p.Summary, d *Directory) *p.Limits {
	if s.Class == "" {
		return s.Limits
	}
	limits, there := d.fleet().Classes[s.Class]
	if !there {
		limits = p.DefaultClasses(s.Class)
	}
	return s.Limits.Over(limits)
}

// isSubmitted reports whether a handoff was created without a lease and by no other handoff. It
// opens its own account, whatever its parent and lineage.
func isSubmitted(s *p.Summary) bool { return s.N == 0 && s.Group == "" && s.ReturnOf == "" }

// Available returns the remaining amount of each limit of a handoff; 0 for a dimension without a
// limit.
func Available(s p.State) p.Amounts {
	if s.Account == nil {
		return p.Amounts{}
	}
	return s.Limits.Granted().Plus(s.Account.Raised).Minus(s.Account.Total())
}

// openAccount gives a handoff with limits an account. A submitted handoff counts its own agents;
// all others are counted at their hand-off.
func openAccount(s *p.State) {
	if s.Limits == nil {
		return
	}
	s.Account = &p.Account{}
	size := int64(1)
	if s.Aggregate != nil {
		size = int64(s.Aggregate.Size)
		s.Account.Reserved = s.Limits.Bounded(memberLimits(*s).Granted()).Times(size)
	}
	if isSubmitted(&s.Summary) {
		s.Account.Used = s.Limits.Bounded(p.Amounts{Agents: size})
	}
	countOver(s) // a promised group may have more members than agents allowed
}

// memberLimits returns the limits of each member of a group: an equal part of the remaining limits.
func memberLimits(group p.State) *p.Limits {
	if group.Limits == nil {
		return nil
	}
	member := *group.Limits
	size := int64(group.Aggregate.Size)
	own := int64(0) // members of a submitted group are its agents
	if isSubmitted(&group.Summary) {
		own = size
	}
	member.MaxHandoffs, member.MaxTokens, member.MaxCostMicros = part(member.MaxHandoffs, size), part(member.MaxTokens, size), part(member.MaxCostMicros, size)
	if member.MaxAgents != nil {
		left := max(0, *member.MaxAgents-own)
		member.MaxAgents = part(&left, size)
	}
	return &member
}

func part(limit *int64, size int64) *int64 {
	if limit == nil {
		return nil
	}
	each := max(0, *limit) / size
	return &each
}

// grant checks that the remaining limits of s suffice for a handoff, and sets its cost and its
// grant. A *protocol.Error names the limit that it would exceed.
func (n *Next) grant(s *p.State) *p.Error {
	if n.Refused != nil {
		return n.Refused
	}
	limits := s.Limits
	if limits == nil {
		n.Grant = n.Asks
		return nil
	}
	free := n.Type == p.Escalation // escalations cost nothing
	asks := p.Limits{}
	if n.Asks != nil {
		asks = *n.Asks
	}
	grant := p.Limits{MaxTimeMS: asks.MaxTimeMS, OnExhausted: cmp.Or(asks.OnExhausted, limits.OnExhausted), SharePercent: asks.SharePercent}
	if grant.SharePercent == nil {
		grant.SharePercent = limits.SharePercent
	}
	if err := n.grantDepth(s, &grant, asks.MaxDepth, free); err != nil {
		return err
	}
	cost := p.Amounts{}
	if !free {
		cost = limits.Bounded(n.cost(s))
	}
	left := Available(*s).Minus(cost)
	for _, dim := range []struct {
		limit, asks *int64
		gets        **int64
		left        int64
		code        p.Code
		name, what  string
	}{
		{limits.MaxHandoffs, asks.MaxHandoffs, &grant.MaxHandoffs, left.Handoffs, p.CodeLimitExceeded, "max_handoffs", "handoffs"},
		{limits.MaxAgents, asks.MaxAgents, &grant.MaxAgents, left.Agents, p.CodeLimitExceeded, "max_agents", "agents"},
		{limits.MaxTokens, asks.MaxTokens, &grant.MaxTokens, left.Tokens, p.CodeBudget, "max_tokens", "tokens"},
		{limits.MaxCostMicros, asks.MaxCostMicros, &grant.MaxCostMicros, left.CostMicros, p.CodeBudget, "max_cost_micros", "millionths of cost"},
	} {
		budget := dim.code == p.CodeBudget
		switch {
		case dim.limit == nil:
			*dim.gets = dim.asks
			continue
		case !free && dim.left < 0:
			return n.nothingLeft(s, dim.code, dim.name, dim.what, *dim.limit)
		case !free && dim.asks != nil && *dim.asks > dim.left:
			return p.Errorf(dim.code, "limits."+dim.name, "it asks for %s, with %d of %d left to %s; ask for less, or %s", counted(*dim.asks, dim.what),
				dim.left, *dim.limit, s.Ticket, wayOut(s.Ticket, dim.name))
		}
		gets := max(0, dim.left)
		switch {
		case dim.asks != nil:
			gets = min(gets, *dim.asks)
		case !n.Goto:
			gets = gets * share(limits) / 100
		}
		if budget && !free && gets < max(1, int64(n.Members)) { // each must begin with some budget
			return n.nothingLeft(s, dim.code, dim.name, dim.what, *dim.limit)
		}
		*dim.gets = &gets
	}
	n.Grant = &grant
	if n.Cost = nil; !cost.IsZero() {
		n.Cost = &cost
	}
	return nil
}

// nothingLeft returns the refusal of a handoff because a limit of s is used up.
func (n *Next) nothingLeft(s *p.State, code p.Code, limit, things string, most int64) *p.Error {
	return p.Errorf(code, "limits."+limit, "at most %s for %s and below, with %d left; %s", counted(most, things), s.Ticket,
		max(0, Available(*s).Of(limit)), wayOut(s.Ticket, limit))
}

func (n *Next) grantDepth(s *p.State, grant *p.Limits, asked *int64, free bool) *p.Error {
	grant.MaxDepth = asked
	if s.Limits.MaxDepth == nil {
		return nil
	}
	depth := *s.Limits.MaxDepth - 1
	if depth < 0 && !free {
		return p.Errorf(p.CodeLimitExceeded, "limits.max_depth", "%s hands off nothing: its lineage is as deep as it may be; answer, escalate or do it yourself", s.Ticket)
	}
	if depth = max(0, depth); asked != nil {
		depth = min(depth, *asked)
	}
	grant.MaxDepth = &depth
	return nil
}

// cost returns the handoffs and agents that a handoff uses. The agent costs nothing if it is
// already on the recorded path to s. Each member of a group costs one handoff and one agent.
func (n *Next) cost(s *p.State) p.Amounts {
	size := max(1, int64(n.Members))
	cost := p.Amounts{Handoffs: size, Agents: size}
	if n.Members == 0 && onPath(s, n.Target) {
		cost.Agents = 0
	}
	return cost
}

func onPath(s *p.State, agent string) bool {
	if agent == s.Agent {
		return true
	}
	for _, hop := range s.Lineage.All() {
		if hop.Names(agent) {
			return true
		}
	}
	return false
}

func share(l *p.Limits) int64 {
	if l.SharePercent == nil {
		return p.SharePercentDefault
	}
	return *l.SharePercent
}

// counted formats a number of things: 1 handoff, 2 handoffs. many is the plural, with one "s".
func counted(n int64, many string) string {
	if n == 1 {
		many = strings.Replace(many, "s", "", 1)
	}
	return fmt.Sprintf("%d %s", n, many)
}

// wayOut returns advice for a holder or a person about a limit.
func wayOut(ticket, limit string) string {
	if limit == "max_agents" || limit == "max_handoffs" {
		return fmt.Sprintf("finish the work, escalate, or have the limit of %s raised", ticket)
	}
	return fmt.Sprintf("finish with the work done so far, or have the budget of %s raised", ticket)
}

// setAside records at the parent the cost and the grant of a handoff.
func setAside(s *p.State, e *p.HandedOff) {
	if s.Account == nil {
		return
	}
	account := own(&s.Account)
	if e.Cost != nil {
		account.Used = account.Used.Plus(*e.Cost)
	}
	account.Reserved = account.Reserved.Plus(s.Limits.Bounded(e.Grant.Granted()))
}

// settleChild records at the parent how much of its grant a child has used.
func settleChild(s *p.State, c p.ChildClosed) {
	if s.Account == nil || s.Closed || c.Grant == nil {
		return
	}
	account := own(&s.Account)
	account.Reserved = account.Reserved.Minus(s.Limits.Bounded(*c.Grant))
	if c.Commit != nil {
		account.Spent = account.Spent.Plus(s.Limits.Bounded(*c.Commit))
	}
	countOver(s)
}

// countOver records usage beyond the limits. No grant adds to it.
func countOver(s *p.State) {
	excess := Available(*s).Times(-1)
	s.Account.Over = s.Account.Over.Max(excess)
}

// accountOfChild returns the account of a handoff as its parent gets it at the end: the grant,
// and the amount used, or still available, to the handoff, its chain and everything below. If
// another handoff delivers the return, the rest of the budget goes to that handoff, not to the
// parent.
func accountOfChild(s p.State) (grant, commit *p.Amounts) {
	if s.Account == nil {
		return nil, nil
	}
	granted, rest := s.Limits.Granted(), leftBehind(s)
	total := granted.Plus(s.Account.Raised).Minus(rest)
	if keepsRest(&s) { // handoffs and agents go back to an open parent
		total = total.Max(p.Amounts{Tokens: granted.Tokens, CostMicros: granted.CostMicros})
	}
	if total = total.Max(p.Amounts{}); !total.IsZero() {
		commit = &total
	}
	return &granted, commit
}

// leftBehind returns the unused limits of a closed handoff and its chain; below 0 is an overrun.
func leftBehind(s p.State) p.Amounts {
	if s.ChainEnd != nil {
		return s.ChainEnd.Left
	}
	return Available(s)
}

// keepsRest reports whether the unused limits of a closed handoff go to the handoff that returns
// it.
func keepsRest(s *p.State) bool {
	return s.ReturnOf == "" && (s.ReturnExpected || s.Outcome == p.OutcomeRolledBack) && !wakesParent(*s) && s.Source != p.Human
}

// restOf returns the limits of the handoff that returns another one: the unused limits of that one
// or of its chain. They are none if a waiting parent may have got them back. Handoffs and agents go
// back to an open parent.
func restOf(s p.State, parentOpen bool) *p.Limits {
	if s.Limits == nil || s.Account == nil {
		return nil
	}
	rest, left := *s.Limits, leftBehind(s)
	if wakesParent(s) {
		left = p.Amounts{}
	} else if parentOpen {
		left.Handoffs, left.Agents = 0, 0
	}
	for _, f := range []struct {
		limit **int64
		left  int64
	}{{&rest.MaxHandoffs, left.Handoffs}, {&rest.MaxAgents, left.Agents}, {&rest.MaxTokens, left.Tokens}, {&rest.MaxCostMicros, left.CostMicros}} {
		if *f.limit != nil {
			n := max(0, f.left)
			*f.limit = &n
		}
	}
	rest.MaxTimeMS = nil
	return &rest
}

// Raise adds to the limits of an open handoff, and opens a gate that waits for the increase. A
// dimension without a limit cannot be raised.
func Raise(s p.State, q Query, by string, more p.Amounts) (Step, error) {
	for _, f := range []struct {
		name    string
		n, most int64
	}{{"handoffs", more.Handoffs, p.MaxHandoffsMax}, {"agents", more.Agents, p.MaxAgentsMax}, {"tokens", more.Tokens, p.TokensMax}, {"cost_micros", more.CostMicros, p.MaxCostMicrosMax}} {
		if f.n < 0 || f.n > f.most {
			return Step{}, p.Errorf(p.CodeInvalid, f.name, "must be raised by 0 to %d, not %d", f.most, f.n)
		}
	}
	switch {
	case s.Closed:
		return Step{}, p.Errorf(p.CodeClosed, "ticket", "%s is closed (%s)", s.Ticket, s.Outcome)
	case s.Account == nil:
		return Step{}, p.Errorf(p.CodeIllegal, "ticket", "%s has no limits", s.Ticket)
	case s.Limits.Bounded(more) != more || more.IsZero():
		return Step{}, p.Errorf(p.CodeInvalid, "limits", "names no limit, or one that %s does not have", s.Ticket)
	}
	if err := mayRaise(s, by, q.Directory); err != nil {
		return Step{}, err
	}
	step, err := StepOf(s, &p.Raised{Meta: p.Meta{At: q.Now, By: by}, Limits: more})
	if err != nil || emptyBudget(&step.State) != "" {
		return step, err
	}
	opened, err := OpenGate(step.State, q, Fact{Gate: p.GateBudget})
	if err != nil || len(opened.Events) == 0 {
		return step, err
	}
	return step.Then(opened), nil
}

func applyRaised(s *p.State, e *p.Raised) error {
	m := e.Limits
	if s.Account == nil || min(m.Handoffs, m.Agents, m.Tokens, m.CostMicros) < 0 {
		return fmt.Errorf("%w: raised by %+v, and it has no limits, or they would shrink", ErrIllegal, m)
	}
	account := own(&s.Account)
	account.Raised = account.Raised.Plus(m)
	return nil
}

// bar returns the event for a refused hand-off.
func (n *Next) bar(meta p.Meta, fence uint64, why *p.Error, fellBack bool) *p.Barred {
	return &p.Barred{Meta: meta, Fence: fence, Code: why.Code, Field: why.Field, To: n.Target, Type: n.Type,
		Words: p.CutText(why.Message, p.FailureBytesMax), FellBack: fellBack}
}

// RecordBar records that a holder was refused a hand-off. The step is empty if the maximum is
// already recorded, or if the holder is not working.
func RecordBar(s p.State, by string, n Next, why *p.Error, now p.Time) (Step, error) {
	if s.Fence == 0 || s.Barred != nil && s.Barred.Count >= p.BarsMax {
		return Step{}, nil
	}
	return StepOf(s, n.bar(p.Meta{At: now, By: by}, s.Fence, why, false))
}

func applyBarred(s *p.State, e *p.Barred) {
	bar := p.Bar{Count: 1, Code: e.Code, Field: e.Field, To: e.To, FellBack: e.FellBack}
	if s.Barred != nil {
		bar.Count = min(s.Barred.Count+1, p.BarsMax)
	}
	s.Barred = &bar
}

// barredReason returns the reason of a result that was kept without the refused hand-off.
func barredReason(code p.Code) string {
	if code == p.CodeBudget {
		return ReasonBudgetExhausted
	}
	return string(code)
}

// BarCodes lists the codes by which a limit or a rule refuses a hand-off.
var BarCodes = []p.Code{p.CodeLimitExceeded, p.CodeBudget, p.CodeCircular, p.CodeForbidden, p.CodeHandoffsOff, p.CodeContract}

// Bars reports whether a limit or a rule is the cause of a refusal. The hand-off would be refused
// again, so the result is kept without it.
func Bars(code p.Code) bool { return slices.Contains(BarCodes, code) }

// checkAccount checks that no amount is used twice, and that limits hold except for overruns of
// work.
func checkAccount(s p.State) error {
	a := s.Account
	switch {
	case (s.Limits == nil) != (a == nil):
		return fmt.Errorf("limits %v, account %v", s.Limits, a)
	case a == nil:
		return nil
	}
	for _, name := range p.Dimensions {
		used, reserved, spent, over, raised := a.Used.Of(name), a.Reserved.Of(name), a.Spent.Of(name), a.Over.Of(name), a.Raised.Of(name)
		if used < 0 || reserved < 0 || spent < 0 || over < 0 || raised < 0 {
			return fmt.Errorf("account %+v: %s is under 0", *a, name)
		}
		if limit, bounded := s.Limits.Of(name); bounded && used+reserved+spent > limit+raised+over {
			return fmt.Errorf("account %+v: %s is over the limit of %d", *a, name, limit)
		}
	}
	return nil
}

// When a budget has run out, the holder is asked to return its work so far, and no agent begins a
// further attempt. The spending of children counts. Open children may return part of their grants:
// that stops no running attempt, but none begins until they do, or a person raises the budget. A
// delivery to an agent (a return, an answer) waits for more budget, or for a person, who needs
// none. A further attempt ends or waits, as the limits require.

// budgets lists the limits that work uses up.
var budgets = []string{"max_tokens", "max_cost_micros"}

// taken returns how much of a budget is used, and its total.
func taken(s *p.State, budget string) (used, limit int64, bounded bool) {
	if s.Account == nil {
		return 0, 0, false
	}
	limit, bounded = s.Limits.Of(budget)
	return s.Account.Used.Of(budget) + s.Account.Spent.Of(budget), limit + s.Account.Raised.Of(budget), bounded
}

// exhaustedBudget returns the budget that has run out, or an empty name.
func exhaustedBudget(s *p.State) string {
	if s.Account == nil || s.Aggregate != nil {
		return ""
	}
	for _, budget := range budgets {
		if used, limit, bounded := taken(s, budget); bounded && used >= limit {
			return budget
		}
	}
	return ""
}

// emptyBudget returns a budget with nothing left to begin an attempt: it has run out, or open
// children have the rest. The name is empty if there is none.
func emptyBudget(s *p.State) string {
	if budget := exhaustedBudget(s); budget != "" || s.Account == nil || s.Aggregate != nil {
		return budget
	}
	left := Available(*s)
	for _, budget := range budgets {
		if _, bounded := s.Limits.Of(budget); bounded && left.Of(budget) <= 0 {
			return budget
		}
	}
	return ""
}

// ExhaustedBudget returns the limit that has run out (max_tokens or max_cost_micros), or an empty
// name.
func ExhaustedBudget(s p.State) string { return exhaustedBudget(&s) }

// wantsRaise refuses an answer to a handoff that waits for its budget: it asks no question.
func wantsRaise(s p.State) error {
	return p.Errorf(p.CodeIllegal, "limits."+ExhaustedBudget(s), "%s waits for more budget, not for an answer; raise the limit, or cancel it", s.Ticket)
}

// exhaustion returns the reason for events that follow from a used-up budget.
func exhaustion(s *p.State, budget string) reason {
	used, limit, _ := taken(s, budget)
	why := reason{code: ReasonBudgetExhausted}.withCount(int(used), int(limit))
	why.facts.Budget = budget
	return why
}

// BudgetLeft returns the rest of each bounded budget, once the budgets are nearly used up, for
// the holder. nil means that enough is left, or nothing is bounded.
func BudgetLeft(s p.State) *p.BudgetLeft {
	var left p.BudgetLeft
	near := false
	for _, budget := range budgets {
		used, limit, bounded := taken(&s, budget)
		if !bounded {
			continue
		}
		rest := max(0, limit-used)
		near = near || used*100 >= limit*budgetNearPercent
		if budget == "max_tokens" {
			left.Tokens = &rest
		} else {
			left.CostMicros = &rest
		}
	}
	if !near {
		return nil
	}
	return &left
}

// budgetNearPercent is the used part of a budget at which its holder is warned.
const budgetNearPercent = 80

// stopAtBudget asks a holder that has used up its budget to return its work so far.
func stopAtBudget(s *p.State, now p.Time) []p.Event {
	budget := exhaustedBudget(s)
	if budget == "" || s.Fence == 0 || s.EscalationLevel > 0 || s.Agent == p.Human || s.CancelRequested || s.Limits.OnExhausted == p.BudgetAsk {
		return nil
	}
	return []p.Event{&p.CancelRequested{Meta: p.Meta{At: now, By: By}, Return: true,
		Reason: ReasonBudgetExhausted + ": " + usedWords(exhaustion(s, budget).facts)}}
}

// stoppedAtBudget reports whether the end of a handoff was requested because its budget had run
// out.
func stoppedAtBudget(s *p.State) bool {
	return s.CancelReturn && s.CancelBy == By && strings.HasPrefix(s.CancelReason, ReasonBudgetExhausted)
}

// withinBudget returns the events of a decision up to the one that would begin an attempt without
// budget; a gate or the end replaces that one.
func withinBudget(s p.State, events []p.Event, now p.Time) []p.Event {
	if s.Account == nil || s.Closed {
		return events
	}
	if len(events) == 0 {
		if budget := emptyBudget(&s); budget != "" && offerUntouched(&s) && s.Phase == p.Pending && s.Agent != p.Human && !s.CancelRequested {
			return []p.Event{noAttempt(s, nil, budget, p.Meta{At: now, By: By})}
		}
		return stopAtBudget(&s, now)
	}
	for i, e := range events {
		if budget := barsAttempt(&s, e); budget != "" {
			return append(slices.Clone(events[:i]), noAttempt(s, events[i:], budget, p.Meta{At: now, By: By}))
		}
		if applyAll(&s, []p.Event{e}) != nil {
			return events // a bug: it shows as an illegal event
		}
	}
	return events
}

// barsAttempt returns the budget whose lack prevents the attempt that an event would begin, or an
// empty name.
func barsAttempt(s *p.State, e p.Event) string {
	switch e := e.(type) {
	case *p.RetryScheduled:
		if s.Agent != p.Human {
			return exhaustedBudget(s)
		}
	case *p.Rerouted:
		if e.ReasonCode != ReasonAgentBack && e.To != p.Human {
			return exhaustedBudget(s)
		}
	case *p.Offered:
		if e.Agent != p.Human {
			return emptyBudget(s)
		}
	}
	return ""
}

// delivers reports whether an offer only brings an agent another agent's message, and repeats no
// work.
func delivers(s *p.State, offer string) bool {
	return offer == OfferReturn || offer == offerAnswer || offer == OfferEscalation || s.Type == p.Escalation && s.AttemptsTotal == 0 || s.ReturnOf != "" && s.AttemptsTotal == 0
}

// standingFor returns the purpose of the current offer, as far as it decides whether the offer
// delivers.
func standingFor(s *p.State) string {
	switch {
	case s.EscalationLevel > 0:
		return OfferEscalation
	case s.Children != nil && s.Children.Closed.And(s.Children.Returning).Without(s.Children.Received) != "":
		return OfferReturn
	}
	return OfferRetry
}

// endsAtBudget reports whether a handoff that waits for its budget ends instead: the budget has run
// out while it waited for the grants of open children.
func endsAtBudget(s *p.State) bool {
	return s.Gate.First() == p.GateBudget && exhaustedBudget(s) != "" && s.Limits.OnExhausted != p.BudgetAsk && !delivers(s, s.Gate.Offer)
}

// noAttempt ends a handoff that has no budget to work with, or lets a person decide. A delivery
// waits for the person, whatever the limits are. A handoff whose open children have the rest waits
// too, and continues when they return some. Without events it is about the current offer.
func noAttempt(s p.State, instead []p.Event, budget string, meta p.Meta) p.Event {
	why := exhaustion(&s, budget)
	terms := p.GateTerms{Waits: []p.GateKind{p.GateBudget}, Agent: s.Agent, Offer: standingFor(&s), Why: why.words(), Approver: p.Human}
	waits := s.Limits.OnExhausted == p.BudgetAsk
	if exhaustedBudget(&s) == "" {
		waits, terms.Why = true, "open children have the rest of its budget: "+usedWords(why.facts)
	}
	for _, e := range instead {
		switch e := e.(type) {
		case *p.Offered:
			terms.Agent, terms.Offer = e.Agent, e.Reason
		case *p.Rerouted:
			terms.Agent, terms.Reason, terms.Facts = e.To, e.ReasonCode, e.Facts
		}
	}
	if gated := (&p.Gated{Meta: meta, GateTerms: terms}); Legal(s.Phase, false, p.EventGated) && (waits || delivers(&s, terms.Offer)) {
		return gated
	}
	if late := lateResult(s, meta); late != nil && Legal(s.Phase, false, late.EventType()) {
		return late
	}
	return closed(meta, p.OutcomeFailed, why, p.Human)
}

// estimate returns the charge for a lost attempt that has reported nothing: it has read its
// package.
func estimate(s *p.State, meta p.Meta) []p.Event {
	if s.Account == nil || s.Fence == 0 || s.Meter == 0 || s.Limits.MaxTokens == nil || !s.Usage.Said(s.Fence).IsZero() {
		return nil
	}
	return []p.Event{&p.Spent{Meta: meta, Fence: s.Fence, Usage: p.Usage{Tokens: s.Meter}, Source: p.UsageEstimate}}
}

// charge counts the usage of an attempt against the limits.
func charge(s *p.State, more p.Usage) {
	if s.Account == nil || s.Closed {
		return
	}
	account := own(&s.Account)
	account.Used = account.Used.Plus(s.Limits.Bounded(p.Amounts{Tokens: more.Tokens, CostMicros: more.CostMicros}))
	countOver(s)
}

// budgetWords describes the budget that has run out. A return has a limit of 0 if its lineage has
// nothing left.
func budgetWords(f p.Facts) string {
	switch {
	case f.Limit == 0 && f.Budget == "max_cost_micros":
		return "its budget has run out: no cost is left for it"
	case f.Limit == 0:
		return "its budget has run out: no tokens are left for it"
	}
	return "its budget has run out: " + usedWords(f)
}

func usedWords(f p.Facts) string {
	if f.Budget == "max_cost_micros" {
		return fmt.Sprintf("%d of %d millionths of cost are used", f.Count, f.Limit)
	}
	return fmt.Sprintf("%d of %d tokens are used", f.Count, f.Limit)
}

// Usage of the attempts of a handoff, as their holders report it.

// Spend records the usage of an attempt so far. The step is empty if it is already reported.
func Spend(s p.State, holder string, usage p.Usage, source p.UsageSource, now time.Time) (Step, error) {
	if _, more := s.Usage.Add(s.Fence, usage); more.IsZero() {
		return Step{}, nil
	}
	return reported(s, &p.Spent{Meta: p.Meta{At: now, By: holder}, Fence: s.Fence, Usage: usage, Source: source})
}

// reported returns a report from within the work. If it uses up the budget, the same append asks
// the holder to stop.
func reported(s p.State, report p.Event) (Step, error) {
	t, err := StepOf(s, report)
	if err == nil && t.State.Account != nil {
		err = t.add(stopAtBudget(&t.State, report.When())...)
	}
	return t, err
}

// chargeFirst begins the append of a result with the usage of its attempt, so that its hand-offs
// are granted from the remaining budget. A handoff without limits, or without hand-offs, is charged
// with the result itself.
func chargeFirst(s p.State, usage *p.Usage, handOffs []Next, meta p.Meta) (Step, error) {
	if s.Account == nil || usage == nil || len(handOffs) == 0 {
		return Step{State: s}, nil
	}
	if _, more := s.Usage.Add(s.Fence, *usage); more.IsZero() {
		return Step{State: s}, nil
	}
	return StepOf(s, &p.Spent{Meta: meta, Fence: s.Fence, Usage: *usage, Source: p.UsageResult})
}

// use counts the reported usage of an attempt beyond its previous report.
func use(s *p.State, fence uint64, usage *p.Usage) {
	if usage == nil || fence == 0 {
		return
	}
	var more p.Usage
	s.Usage, more = s.Usage.Add(fence, *usage)
	charge(s, more)
}

// useLast is use for the last report of an attempt: it has ended by itself, and no late result of
// it follows.
func useLast(s *p.State, fence uint64, usage *p.Usage) {
	use(s, fence, usage)
	s.Usage = s.Usage.Forget(fence)
}

func applySpent(s *p.State, e *p.Spent) {
	use(s, e.Fence, &e.Usage)
}

func staleSpent(s *p.State, e *p.Spent) string {
	if why := staleFence(s, e.Fence); why != "" {
		return why
	}
	if _, more := s.Usage.Add(e.Fence, e.Usage); more.IsZero() {
		return "the attempt has already reported that"
	}
	return ""
}
