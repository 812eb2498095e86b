package lifecycle

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	p "github.com/agenthandoff/handoff/protocol"
)

// Next is a handoff that a holder hands off: the event that records it, and what it asks for.
type Next struct {
	p.HandedOff
	Asks    *p.Limits // that its package or its class says; nil is none
	Members int       // of a group; 0 is none
	Refused *p.Error  // why it may not be handed off, whatever is left; nil is that it may
	// FailBarred fails the attempt where a limit or a rule refuses it with the result.
	FailBarred bool
}

// resolveLimits are the limits of a handoff: what it asks for, within those of the fleet where it is
// on no other account. nil is none.
func resolveLimits(s p.Summary, d *Directory) *p.Limits {
	limits := AskedLimits(s, d)
	if isSubmitted(&s) && d != nil && d.Fleet != nil {
		limits = limits.Within(d.Fleet.Limits)
	}
	return limits
}

// classify gives a submission that names no class of complexity the one of the first rule of the fleet
// that fits it. What is handed off under a lease has its part of its parent's limits, and is in none.
func classify(s p.Summary, f *p.Fleet) p.Summary {
	if f == nil || len(f.Complexity) == 0 || s.Class != "" { // as a rule
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

func (d *Directory) classify(s p.Summary) p.Summary {
	if d == nil {
		return s
	}
	return classify(s, d.Fleet)
}

// AskedLimits are the limits that a handoff asks for: its package's, over those of its class. nil is
// none.
func AskedLimits(s p.Summary, d *Directory) *p.Limits {
	if s.Class == "" {
		return s.Limits
	}
	return s.Limits.Over(classLimits(s.Class, d))
}

// isSubmitted tells whether a handoff was made under no lease, and by no other handoff. It begins an
// account of its own, whatever parent it names and whatever lineage it has from that.
func isSubmitted(s *p.Summary) bool { return s.N == 0 && s.Group == "" && s.ReturnOf == "" }

func classLimits(class string, d *Directory) *p.Limits {
	if d != nil && d.Fleet != nil {
		if limits, there := d.Fleet.Classes[class]; there {
			return limits
		}
	}
	return p.DefaultClasses(class)
}

// Available is what is left of each limit of a handoff. What is not limited is 0 there.
func Available(s p.State) p.Amounts {
	if s.Account == nil {
		return p.Amounts{}
	}
	return s.Limits.Granted().Plus(s.Account.Raised).Minus(s.Account.Total())
}

// openAccount gives a handoff with limits an account. One that was submitted counts its own
// agents; those of all others are counted where they were handed off.
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
	countOver(s) // a group that was promised may have more members than it may have agents
}

// memberLimits are the limits of each member of a group: an equal part of what is left.
func memberLimits(group p.State) *p.Limits {
	if group.Limits == nil {
		return nil
	}
	member := *group.Limits
	size := int64(group.Aggregate.Size)
	own := int64(0) // members of a group that was submitted are its agents
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

// grant decides whether what is left of the limits of s suffices for a handoff, and sets what that
// costs and gets. A *protocol.Error says which limit it does not keep.
func (n *Next) grant(s *p.State) *p.Error {
	if n.Refused != nil {
		return n.Refused
	}
	limits := s.Limits
	if limits == nil {
		n.Grant = n.Asks
		return nil
	}
	free := n.Type == p.Escalation // the way up
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
		if budget && !free && gets < max(1, int64(n.Members)) { // none begins with nothing to work with
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

// nothingLeft refuses a handoff for which nothing of a limit of s is left.
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

// cost is what a handoff takes for itself: one handoff, and one agent where its target has had no
// part in what led to it, as far as that is remembered. Each member of a group costs as much.
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

// counted is a number of things: 1 handoff, 2 handoffs. many has an s in its plural alone.
func counted(n int64, many string) string {
	if n == 1 {
		many = strings.Replace(many, "s", "", 1)
	}
	return fmt.Sprintf("%d %s", n, many)
}

// wayOut says what a holder, or a person, can do about a limit.
func wayOut(ticket, limit string) string {
	if limit == "max_agents" || limit == "max_handoffs" {
		return fmt.Sprintf("finish the work, escalate, or have the limit of %s raised", ticket)
	}
	return fmt.Sprintf("finish with what there is, or have the budget of %s raised", ticket)
}

// setAside records at the parent what a handoff costs and gets.
func setAside(s *p.State, e *p.HandedOff) {
	if s.Account == nil {
		return
	}
	account := *s.Account
	if e.Cost != nil {
		account.Used = account.Used.Plus(*e.Cost)
	}
	account.Reserved = account.Reserved.Plus(s.Limits.Bounded(e.Grant.Granted()))
	s.Account = &account
}

// settleChild records at the parent what a child has used of what it got.
func settleChild(s *p.State, c p.ChildClosed) {
	if s.Account == nil || s.Closed || c.Grant == nil {
		return
	}
	account := *s.Account
	account.Reserved = account.Reserved.Minus(s.Limits.Bounded(*c.Grant))
	if c.Commit != nil {
		account.Spent = account.Spent.Plus(s.Limits.Bounded(*c.Commit))
	}
	s.Account = &account
	countOver(s)
}

// countOver records what was used beyond the limits. No grant adds to it.
func countOver(s *p.State) {
	excess := Available(*s).Times(-1)
	over := &s.Account.Over
	over.Handoffs, over.Agents = max(over.Handoffs, excess.Handoffs), max(over.Agents, excess.Agents)
	over.Tokens, over.CostMicros = max(over.Tokens, excess.Tokens), max(over.CostMicros, excess.CostMicros)
}

// accountOfChild is what the parent of a handoff learns of its account at its end: what it had got,
// and what it, its chain and all below have used, or may still use. What is left of a budget goes to
// the handoff that returns it, if there is one, and then not to its parent as well.
func accountOfChild(s p.State) (grant, commit *p.Amounts) {
	if s.Account == nil {
		return nil, nil
	}
	granted, rest := s.Limits.Granted(), leftBehind(s)
	total := granted.Plus(s.Account.Raised).Minus(rest)
	if keepsRest(&s) { // handoffs and agents go back to a parent that is open
		total = total.Max(p.Amounts{Tokens: granted.Tokens, CostMicros: granted.CostMicros})
	}
	if total = total.Max(p.Amounts{}); !total.IsZero() {
		commit = &total
	}
	return &granted, commit
}

// leftBehind returns the rest of the limits of a closed handoff and its chain; below 0 is overrun.
func leftBehind(s p.State) p.Amounts {
	if s.ChainEnd != nil {
		return s.ChainEnd.Left
	}
	return Available(s)
}

// keepsRest reports whether what is left to a closed handoff is for the handoff that returns it.
func keepsRest(s *p.State) bool {
	return s.ReturnOf == "" && (s.ReturnExpected || s.Outcome == p.OutcomeRolledBack) && !wakesParent(*s) && s.Source != p.Human
}

// restOf are the limits of the handoff that returns another one: what that, or its chain, has left.
// What a child had left that its parent waited for may have gone back there, so nothing is. Handoffs
// and agents go back to a parent that is open.
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

// Raise adds to the limits of an open handoff, and opens a gate that waits for that. What is not
// limited cannot be raised.
func Raise(s p.State, d *Directory, by string, more p.Amounts, now p.Time) (Step, error) {
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
		return Step{}, p.Errorf(p.CodeInvalid, "limits", "names nothing, or what %s does not limit", s.Ticket)
	}
	step, err := StepOf(s, &p.Raised{Meta: p.Meta{At: now, By: by}, Limits: more})
	if err != nil || exhaustedBudget(&step.State) != "" {
		return step, err
	}
	opened, err := OpenGate(step.State, d, Fact{Gate: p.GateBudget}, now)
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
	account := *s.Account
	account.Raised = account.Raised.Plus(m)
	s.Account = &account
	return nil
}

// bar makes the event of a hand-off that is refused.
func (n *Next) bar(meta p.Meta, fence uint64, why *p.Error, fellBack bool) *p.Barred {
	return &p.Barred{Meta: meta, Fence: fence, Code: why.Code, Field: why.Field, To: n.Target, Type: n.Type,
		Words: p.CutText(why.Message, p.FailureBytesMax), FellBack: fellBack}
}

// RecordBar records that a holder was refused a hand-off. The step is empty where as many are
// recorded as may be, or the holder is not at work.
func RecordBar(s p.State, by string, n Next, why *p.Error, now p.Time) (Step, error) {
	if s.Fence == 0 || s.Barred != nil && s.Barred.Count >= p.BarsMax {
		return Step{}, nil
	}
	return StepOf(s, n.bar(p.Meta{At: now, By: by}, s.Fence, why, false))
}

func applyBarred(s *p.State, e *p.Barred) error {
	bar := p.Bar{Count: 1, Code: e.Code, Field: e.Field, To: e.To, FellBack: e.FellBack}
	if s.Barred != nil {
		bar.Count = min(s.Barred.Count+1, p.BarsMax)
	}
	s.Barred = &bar
	return nil
}

// barredReason is the reason of a result that was kept without the hand-off that was refused.
func barredReason(code p.Code) string {
	if code == p.CodeBudget {
		return ReasonBudgetExhausted
	}
	return string(code)
}

// BarCodes are the refusals of a hand-off by a limit or a rule.
var BarCodes = []p.Code{p.CodeLimitExceeded, p.CodeBudget, p.CodeCircular, p.CodeForbidden, p.CodeHandoffsOff, p.CodeContract}

// Bars tells whether a refusal is one by a limit or a rule: the hand-off would be refused again, so
// a result stands without it.
func Bars(code p.Code) bool { return slices.Contains(BarCodes, code) }

// checkAccount: no dimension is taken twice, and limits hold but for what work has overrun.
func checkAccount(before, after p.State) error {
	switch {
	case (after.Limits == nil) != (after.Account == nil):
		return fmt.Errorf("limits %v, account %v", after.Limits, after.Account)
	case after.Account == nil:
		return nil
	case before.Closed && *before.Account != *after.Account:
		return fmt.Errorf("account %+v became %+v after it closed", *before.Account, *after.Account)
	}
	a := after.Account
	for _, name := range p.Dimensions {
		used, reserved, spent, over, raised := a.Used.Of(name), a.Reserved.Of(name), a.Spent.Of(name), a.Over.Of(name), a.Raised.Of(name)
		if used < 0 || reserved < 0 || spent < 0 || over < 0 || raised < 0 {
			return fmt.Errorf("account %+v: %s is under 0", *a, name)
		}
		if limit, bounded := after.Limits.Of(name); bounded && used+reserved+spent > limit+raised+over {
			return fmt.Errorf("account %+v: %s is over the limit of %d", *a, name, limit)
		}
		if before.Account != nil && before.Account.Raised.Of(name) > raised {
			return fmt.Errorf("%s was raised by %d, and then by %d", name, before.Account.Raised.Of(name), raised)
		}
	}
	return nil
}

// checkSettled: an open handoff sets nothing aside without an open child.
func checkSettled(s p.State) error {
	c := s.Children
	if s.Account != nil && !s.Closed && !s.Account.Reserved.IsZero() && (c == nil || c.Made.Without(c.Closed) == "") {
		return fmt.Errorf("account %+v: set aside, and no child is open", *s.Account)
	}
	return nil
}
