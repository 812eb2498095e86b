package lifecycle

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	p "github.com/agenthandoff/handoff/protocol"
)

// Approvals: the approver that is asked before an agent gets a handoff, the agents that may answer,
// and the effect of silence. An approval covers one handoff and one agent. Silence neither approves
// nor denies.

// approvalsAbove bounds the way up from an approver.
const approvalsAbove = 16

// Causes of an approval in addition to the rules of the fleet, which have their own names.
const (
	RulePackage = "package" // the package requires it
	RuleSource  = "source"  // the risk exceeds the source's own limit
	RuleTarget  = "target"  // the profile of the receiving agent requires it
)

// approvalTerms returns the terms of the gate if a handoff to an agent still needs an approval;
// otherwise nil. Escalations, returns to a source, and handoffs to a person need none.
func approvalTerms(s *p.Summary, given []p.ApprovalGiven, profile *p.Profile, d *Directory, now time.Time) *p.GateTerms {
	if s.ReturnOf != "" || s.CallOf != "" || s.Type == p.Escalation || profile.ID == p.Human {
		return nil
	}
	rules, by := approvalRules(s, profile, d)
	if len(rules) == 0 || approves(given, profile.ID) {
		return nil
	}
	if own := s.Approval; own != nil {
		by = p.ApprovalRule{By: cmp.Or(by.By, own.By), TimeoutMS: cmp.Or(by.TimeoutMS, own.TimeoutMS), OnTimeout: cmp.Or(by.OnTimeout, own.OnTimeout)}
	}
	if by.By == "" {
		by.By = authorityOf(s.Source, d)
	}
	terms := p.GateTerms{Waits: []p.GateKind{p.GateApproval}, Rules: rules, Approver: eligible(by.By, s.Source, profile.ID, d),
		TimeoutMS: cmp.Or(by.TimeoutMS, p.ApprovalTimeoutDefaultMS), OnTimeout: cmp.Or(by.OnTimeout, p.ApprovalEscalate)}
	terms.Until = lapseAt(terms, now)
	return &terms
}

// approvalRules returns the names of all rules that require an approval, and the first rule of the
// fleet among them that names an approver.
func approvalRules(s *p.Summary, profile *p.Profile, d *Directory) (names []string, by p.ApprovalRule) {
	if s.Approval != nil && s.Approval.Required {
		names = append(names, RulePackage)
	}
	if source, known := d.Agent(s.Source); known && exceeds(s.Risk, source.MaxRisk) {
		names = append(names, RuleSource)
	}
	own := profile.Approve
	if own == p.ApproveAlways || own != "" && own != p.ApproveNever && reaches(s.Risk, p.Risk(own)) {
		names = append(names, RuleTarget)
	}
	for _, rule := range d.fleet().Approvals {
		when := rule.If
		if when.MinRisk != "" && reaches(s.Risk, when.MinRisk) {
			when.MinRisk = ""
		}
		if fitsRule(when, s, profile.ID) {
			names = append(names, rule.Name)
			if by.By == "" && rule.By != "" {
				by = rule
			}
		}
	}
	return names, by
}

// reaches reports whether a gate with a lowest risk applies to a handoff. It applies to a handoff
// without a risk, so that leaving out the risk passes no gate.
func reaches(risk, least p.Risk) bool { return risk == "" || riskLevel(risk) >= riskLevel(least) }

// fitsRule reports whether a rule of the fleet applies to a handoff to an agent.
func fitsRule(when p.ApprovalWhen, s *p.Summary, agent string) bool {
	most, bounded := s.Limits.Of("max_tokens")
	switch {
	case when.MinRisk != "" && riskLevel(s.Risk) < riskLevel(when.MinRisk):
	case !when.Fits(s.Source, agent):
	case when.Type != "" && when.Type != s.Type:
	case when.Complexity != "" && when.Complexity != s.Class:
	case bounded && most < when.MinTokens:
	case when.Capability != "" && when.Capability != s.Target.Capability &&
		!slices.ContainsFunc(s.Requires, func(r p.RequiredCapability) bool { return r.ID == when.Capability }):
	default:
		return true
	}
	return false
}

// approves reports whether approvals cover an agent.
func approves(given []p.ApprovalGiven, agent string) bool {
	return slices.ContainsFunc(given, func(a p.ApprovalGiven) bool { return a.Agent == agent || a.Agent == p.AnyAgent })
}

// authorityOf returns the agent above another one, or a person if there is none.
func authorityOf(agent string, d *Directory) string {
	profile, known := d.Agent(agent)
	if !known {
		return p.Human
	}
	return cmp.Or(profile.EscalatesTo, p.Human)
}

// eligible returns the first of the approver and those above it that may decide about a handoff:
// neither its source nor its target, unless that is a person.
func eligible(approver, source, agent string, d *Directory) string {
	for range approvalsAbove {
		if approver == p.Human || approver != source && approver != agent {
			return approver
		}
		approver = authorityOf(approver, d)
	}
	return p.Human
}

// lapseAt returns when an approver that is asked now loses its turn. Zero is never: a person has
// until the deadline, unless the policy closes the handoff.
func lapseAt(terms p.GateTerms, now time.Time) time.Time {
	if terms.Approver == p.Human && terms.OnTimeout != p.ApprovalClose {
		return time.Time{}
	}
	return now.Add(millis(cmp.Or(terms.TimeoutMS, p.ApprovalTimeoutDefaultMS)))
}

// stepLapse decides the next step when an approver has not answered.
func stepLapse(s p.State, d *Directory, meta p.Meta) []p.Event {
	gate := s.Gate
	if gate.OnTimeout == p.ApprovalClose || gate.Approver == p.Human {
		why := reason{ReasonApprovalTimeout, p.Facts{Agent: gate.Approver}}.withLimit(millis(cmp.Or(gate.TimeoutMS, p.ApprovalTimeoutDefaultMS)))
		return []p.Event{closed(meta, p.OutcomeTimeout, why, p.Human)}
	}
	next := gate.GateTerms
	next.Approver = p.Human
	if gate.Level+1 < approvalsAbove {
		next.Approver = eligible(authorityOf(gate.Approver, d), s.Source, gate.Agent, d)
	}
	if next.Approver == gate.Approver { // two that escalate to each other, and one may not decide
		next.Approver = p.Human
	}
	return []p.Event{&p.Lapsed{Meta: meta, From: gate.Approver, To: next.Approver, Level: gate.Level + 1, Until: lapseAt(next, meta.At)}}
}

// ApprovalAnswer is the answer of an approver at a gate.
type ApprovalAnswer struct {
	By string
	// Agent names the agent of the question; an answer for another gate of the same handoff does not
	// count. Any extends an approval to every agent.
	Agent  string
	Any    bool
	Reason string // reason of a denial, or comment of an approval
}

// Approve permits the agent of a gate to have the handoff, and decides the next step.
func Approve(s p.State, q Query, v ApprovalAnswer) (Step, error) {
	if err := mayDecide(s, q.Directory, v); err != nil {
		return Step{}, err
	}
	agent := s.Gate.Agent
	if v.Any {
		agent = p.AnyAgent
	}
	return decideAfter(s, q, &p.Approved{Meta: p.Meta{At: q.Now, By: v.By}, Agent: agent, Comment: v.Reason})
}

// Deny refuses the agent of a gate, and ends the handoff.
func Deny(s p.State, q Query, v ApprovalAnswer) (Step, error) {
	if err := mayDecide(s, q.Directory, v); err != nil {
		return Step{}, err
	}
	if strings.TrimSpace(v.Reason) == "" {
		return Step{}, p.Errorf(p.CodeMissing, "reason", "is missing or empty: a denial needs a reason")
	}
	return decideAfter(s, q, &p.Denied{Meta: p.Meta{At: q.Now, By: v.By}, Agent: s.Gate.Agent, Reason: v.Reason})
}

// answerGate applies an answer to a gate as an approval or a denial.
func answerGate(s p.State, q Query, answer p.Answer) (Step, error) {
	said := ApprovalAnswer{By: answer.By, Reason: answer.Text}
	switch {
	case answer.LetOthers:
		return Step{}, p.Errorf(p.CodeConflict, "let_others", "is for a question; a denied approval ends %s. To send it to another agent, reroute it", s.Ticket)
	case answer.Deny:
		said.Reason = cmp.Or(answer.DenyReason, answer.Text)
		return Deny(s, q, said)
	case !answer.Permit:
		return Step{}, p.Errorf(p.CodeMissing, "permit", "%s asks whether %s may have it: permit or deny it", s.Ticket, s.Gate.Agent)
	}
	return Approve(s, q, said)
}

// mayDecide refuses an answer if no approval is asked for, or if the agent may not give it.
func mayDecide(s p.State, d *Directory, v ApprovalAnswer) error {
	if err := mustNotBeEnding(s); err != nil {
		return err
	}
	gate := s.Gate
	switch {
	case gate.First() == p.GateBudget:
		return wantsRaise(s)
	case gate.First() == p.GateStart:
		return p.Errorf(p.CodeIllegal, "ticket", "%s starts at %s, and asks for no approval now", s.Ticket, instant(s.StartAt))
	case gate.First() != p.GateApproval:
		return p.Errorf(p.CodeIllegal, "ticket", "%s is %s and asks for no approval", s.Ticket, s.Phase)
	case v.Agent != "" && v.Agent != gate.Agent:
		return p.Errorf(p.CodeConflict, "agent", "%s now asks for an approval of %s, not of %s", s.Ticket, gate.Agent, v.Agent)
	}
	return maySettle(s, v.By, d)
}

// answersFor reports whether an agent is the approver, or above it.
func answersFor(by, approver string, d *Directory) bool {
	for range approvalsAbove {
		if approver == by {
			return true
		}
		approver = authorityOf(approver, d)
	}
	return false
}

// ApproversBelow returns the agents below an agent, sorted by name: it may answer their questions.
// A person is above all of them, so the list for a person is empty.
func ApproversBelow(agent string, d *Directory) []string {
	if d == nil || agent == p.Human {
		return nil
	}
	return d.agentsWhere(func(id string) bool { return id != agent && answersFor(agent, id, d) })
}

// closeUnapproved ends a handoff that no agent had. It is listed for a person if the work before it
// is done.
func closeUnapproved(s p.State, meta p.Meta, outcome p.Outcome, why reason) p.Event {
	end := closed(meta, outcome, why, personIf(wasPromised(s)))
	if s.Gate.DenyReason != "" {
		end.Message += ": " + s.Gate.DenyReason
	}
	return end
}

func staleApproved(s *p.State, e *p.Approved) string {
	if e.Agent == p.AnyAgent && s.Gate.First() == p.GateApproval {
		return ""
	}
	return staleVerdict(s, e.Agent)
}

func staleDenied(s *p.State, e *p.Denied) string { return staleVerdict(s, e.Agent) }

func staleVerdict(s *p.State, agent string) string {
	switch {
	case s.Gate.First() != p.GateApproval:
		return "no approval is asked for"
	case agent != s.Gate.Agent:
		return "the approval of another agent is asked for"
	}
	return ""
}

func applyApproved(s *p.State, e *p.Approved) {
	s.Approvals = appendLast(s.Approvals, p.ApprovalGiven{Agent: e.Agent, By: cutTo(e.By, p.IDBytesMax), At: e.At}, p.ApprovalsMax)
	openFirst(s, e.At)
	s.Gate.Approver, s.Gate.Level = "", 0
}

func applyDenied(s *p.State, e *p.Denied) {
	gate := own(&s.Gate)
	gate.Denied, gate.DenyReason = cutCode(cmp.Or(e.By, p.Human)), cut(e.Reason)
}

func applyLapsed(s *p.State, e *p.Lapsed) {
	gate := own(&s.Gate)
	gate.Approver, gate.Level, gate.Until = e.To, e.Level, e.Until
}

// giveAuthorityTime restarts the return's clock for an authority that gets a handoff because a
// clock over the work ran out, its agent asked too often, or its source escalates when the return
// is late. The clock gets the intervention timeout, and at least the return's own timeout.
func giveAuthorityTime(s *p.State, e *p.Escalated) {
	ranOut := s.TimedOut == p.ClockWork || s.TimedOut == p.ClockProgress || s.TimedOut == p.ClockReturn || s.TimedOut == p.ClockCondition ||
		e.ReasonCode == ReasonConditionsExhausted
	if s.ReturnSince.IsZero() || s.Policy.ReturnTimeoutMS <= 0 || !ranOut && s.Policy.OnReturnTimeout != p.OnTimeoutEscalate {
		return
	}
	s.ReturnSince, s.ReturnMS = e.At, max(s.Policy.ReturnTimeoutMS, s.Policy.InterventionTimeoutMS)
}

// takeAuthorityTime restarts the return's clock with its own timeout when a handoff leaves an
// authority.
func takeAuthorityTime(s *p.State, at p.Time) {
	if s.ReturnMS != 0 {
		s.ReturnSince, s.ReturnMS = at, 0
	}
}

// Autonomy: how far an agent may act alone. Beyond that an authority decides.

// overAutonomy reports whether a package asks for more autonomy than an agent has.
func overAutonomy(profile *p.Profile, s *p.Summary) bool {
	return s.Autonomy != nil && s.Autonomy.Amount != nil && profile.AutonomyBudget != nil && *profile.AutonomyBudget < *s.Autonomy.Amount
}

// riskAlone returns the highest risk that the agent of a handoff may decide alone, by its profile
// and the package.
func riskAlone(s p.State, d *Directory) p.Risk {
	profile, _ := d.Agent(s.Agent)
	most := cmp.Or(profile.MaxRisk, p.RiskHigh)
	if s.Autonomy != nil && riskLevel(cmp.Or(s.Autonomy.MaxRisk, p.RiskHigh)) < riskLevel(most) {
		most = s.Autonomy.MaxRisk
	}
	return most
}

// DecideAlone records a decision that the holder made during the work. A decision beyond its own
// limits returns an error with the code autonomy_exceeded and is not recorded: the holder
// escalates. The step is empty if a decision with that id is already recorded.
func DecideAlone(s p.State, q Query, holder string, decision p.Decided) (Step, error) {
	if err := mustNotBeEnding(s); err != nil {
		return Step{}, err
	}
	if s.Fence == 0 {
		return Step{}, p.Errorf(p.CodeIllegal, "ticket", "%s is %s; only an agent that has accepted it decides", s.Ticket, s.Phase)
	}
	if most := riskAlone(s, q.Directory); riskLevel(decision.Risk) > riskLevel(most) {
		return Step{}, p.Errorf(p.CodeAutonomy, "risk", "%s may decide about a risk of at most %s by itself, this is %s; escalate it", s.Agent, most, decision.Risk)
	}
	if hasDecided(&s, decision.ID) {
		return Step{}, nil
	}
	decision.Meta, decision.Fence = p.Meta{At: q.Now, By: holder}, s.Fence
	return StepOf(s, &decision)
}

func hasDecided(s *p.State, id string) bool {
	id = decisionID(id)
	return slices.ContainsFunc(s.Decisions, func(d p.Decision) bool { return d.ID == id })
}

func staleDecided(s *p.State, e *p.Decided) string {
	if hasDecided(s, e.ID) {
		return "that was decided already"
	}
	return staleFence(s, e.Fence)
}

// decisionID returns the part of a decision's id that the state keeps. It keeps a valid id whole, since
// each of its bytes takes at most two in JSON.
func decisionID(id string) string { return cutTo(id, 2*p.DecisionIDBytesMax) }

// decisionBytesMax is how much of a decision's text the state keeps, counted in JSON.
const decisionBytesMax = 512

func applyDecided(s *p.State, e *p.Decided) {
	s.Decisions = appendLast(s.Decisions, p.Decision{ID: decisionID(e.ID), Description: cutTo(e.Description, decisionBytesMax),
		Rationale: cutTo(e.Rationale, decisionBytesMax), MadeBy: s.Agent, At: e.At}, p.DecisionsMax)
}

// The questions of open handoffs, and the agents that may answer them. No agent grants itself a
// permission. Answers, denials, approvals, and other acts that settle a question (a take, a
// reroute) all use MayAnswer.

// QuestionKind is the kind of a question.
type QuestionKind string

const (
	AsksNothing    QuestionKind = ""
	AsksContext    QuestionKind = "context"    // an agent needs to know something before it begins
	AsksPermission QuestionKind = "permission" // an agent asks whether it may
	AsksApproval   QuestionKind = "approval"   // a gate asks whether an agent may have the handoff
	asksAuthority  QuestionKind = "escalation" // it was passed up, or its deadline has passed
)

// Question is a question of an open handoff.
type Question struct {
	Kind QuestionKind
	// N is its number, from 1, unique within the handoff.
	N int
}

// QuestionOf returns the current question of a handoff.
func QuestionOf(s p.State) Question {
	switch {
	case s.Closed:
	case s.Gate.First() == p.GateApproval:
		return Question{AsksApproval, s.Gate.Question}
	case s.Phase == p.Conditional && s.Conditions != nil:
		if len(s.Conditions.NeedsPermission) > 0 {
			return Question{AsksPermission, s.Conditions.Question}
		}
		return Question{AsksContext, s.Conditions.Question}
	case escalated(s):
		return Question{asksAuthority, s.EscalationQuestion}
	}
	return Question{}
}

// AsksInWords reports whether a handoff was passed up because of a question, or for a decision.
// Others were passed up because an agent was absent, or could not do the work.
func AsksInWords(s p.State) bool {
	if QuestionOf(s).Kind != asksAuthority {
		return false
	}
	switch s.Reason {
	case reasonEscalated, ReasonConditionTimeout, ReasonConditionsExhausted, ReasonDenied:
		return true
	}
	return false
}

// ask counts one more question, and returns its number.
func ask(s *p.State) int {
	s.Questions++
	return s.Questions
}

// askAuthority asks the authority that now has a handoff; without one it asks nothing.
func askAuthority(s *p.State) {
	s.EscalationQuestion = 0
	if len(s.Chain) > 0 {
		s.EscalationQuestion = ask(s)
	}
}

// MayAnswer returns nil if by may settle the question of a handoff, in any way. Only this function
// decides this. A person may; so may, for each kind,
//
//   - context, permission: the source, and each authority above the agent that asks;
//   - approval: the approver, and each authority above it; not the source, nor the agent that would
//     get the handoff;
//   - escalation, deadline: the authority that has it, and each above that; not an agent that passed
//     it up.
func MayAnswer(s p.State, by string, d *Directory) error {
	var may bool
	var who string
	switch QuestionOf(s).Kind {
	case AsksContext, AsksPermission:
		may = by == s.Source || answersFor(by, authorityOf(s.Agent, d), d)
		may = may && by != s.Agent
		who = fmt.Sprintf("its source %s, an authority above %s, or a person (human); never %s, which asks", s.Source, s.Agent, s.Agent)
	case AsksApproval:
		may = by != s.Source && by != s.Gate.Agent && answersFor(by, s.Gate.Approver, d)
		who = fmt.Sprintf("%s, an authority above it, or a person (human); never its source or its target", s.Gate.Approver)
	case asksAuthority:
		may = !slices.Contains(s.Chain, by) && answersFor(by, s.Agent, d)
		who = fmt.Sprintf("%s, which has it, an authority above that, or a person (human); never an agent that passed it up", s.Agent)
	default:
		return p.Errorf(p.CodeIllegal, "ticket", "%s is %s and asks nothing; only a conditional or an escalated handoff can be answered", s.Ticket, s.Phase)
	}
	if by == p.Human || may && by != "" {
		return nil
	}
	return p.Errorf(p.CodeForbidden, "by", "%s may not decide about %s: that is for %s", by, s.Ticket, who)
}

// mayRaise returns nil if by may add to the limits of a handoff: a person, an authority above its
// agent, or the source of a submission, which could have given it more. A handoff under a lease
// uses the account of the handoff above it; a raise by its source would bypass that account. The
// agent that works on the handoff never may.
func mayRaise(s p.State, by string, d *Directory) *p.Error {
	may := answersFor(by, authorityOf(s.Agent, d), d)
	who := fmt.Sprintf("an authority above %s, or a person (human)", cmp.Or(s.Agent, "its agent"))
	if isSubmitted(&s.Summary) {
		may = may || by == s.Source
		who = fmt.Sprintf("its source %s, ", s.Source) + who
	}
	if by == p.Human || may && by != "" && by != s.Agent {
		return nil
	}
	return p.Errorf(p.CodeForbidden, "by", "%s may not raise the limits of %s: that is for %s; never the agent that has it", by, s.Ticket, who)
}

// maySettle refuses a take or a reroute that would settle an open question, if by may not answer
// it.
func maySettle(s p.State, by string, d *Directory) error {
	if QuestionOf(s).Kind == AsksNothing {
		return nil
	}
	return MayAnswer(s, by, d)
}

// checkQuestion refuses an answer that names no question, or not the open one.
func checkQuestion(s p.State, n int) error {
	switch asks := QuestionOf(s); {
	case n == 0:
		return p.Errorf(p.CodeMissing, "question", "is missing: an answer names its question; %s now asks question %d (%s)", s.Ticket, asks.N, asks.Kind)
	case n != asks.N:
		return p.Errorf(p.CodeConflict, "question", "%s now asks question %d (%s), not %d; nothing was answered", s.Ticket, asks.N, asks.Kind, n)
	}
	return nil
}

func staleAnswered(s *p.State, e *p.Answered) string {
	asks := QuestionOf(*s)
	switch {
	case asks.Kind == AsksNothing || asks.Kind == AsksApproval:
		return "nothing is asked"
	case e.Answer.Question == 0 || e.Answer.Question != asks.N:
		return fmt.Sprintf("it answers question %d, the current one is %d", e.Answer.Question, asks.N)
	}
	return ""
}

// checkQuestions checks that each question's number was given, and is unique.
func checkQuestions(s p.State) error {
	numbers := []int{s.EscalationQuestion}
	if s.Conditions != nil {
		numbers = append(numbers, s.Conditions.Question)
	}
	if s.Gate.First() == p.GateApproval {
		numbers = append(numbers, s.Gate.Question)
	}
	for i, n := range numbers {
		if n < 0 || n > s.Questions || n == 0 && i > 0 || n != 0 && slices.Contains(numbers[:i], n) {
			return fmt.Errorf("questions %v of %d", numbers, s.Questions)
		}
	}
	return nil
}
