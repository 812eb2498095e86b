package lifecycle

import (
	"cmp"
	"slices"
	"strings"
	"time"

	p "github.com/agenthandoff/handoff/protocol"
)

// Approvals: who is asked before an agent gets a handoff, who may answer, and what silence is. An
// approval holds for one handoff and one agent. Silence is never an approval, and no denial.

// approvalsAbove bounds the way up from an approver.
const approvalsAbove = 16

// What asks for an approval, beside the rules of the fleet, which have names of their own.
const (
	RulePackage = "package" // it says so
	RuleSource  = "source"  // the risk is over the highest that the source may take by itself
	RuleTarget  = "target"  // the profile of the agent that gets it says so
)

// approvalTerms returns what a handoff to an agent waits for where that needs an approval which it
// does not have; nil else. What goes up asks for none: an escalation, the return to a source, what
// a person gets.
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

// approvalRules returns the names of all that asks for an approval, and the first rule of the fleet
// among them that names an approver.
func approvalRules(s *p.Summary, profile *p.Profile, d *Directory) (names []string, by p.ApprovalRule) {
	if s.Approval != nil && s.Approval.Required {
		names = append(names, RulePackage)
	}
	if source, known := d.Agent(s.Source); known && exceeds(s.Risk, source.MaxRisk) {
		names = append(names, RuleSource)
	}
	switch own := profile.Approve; own {
	case "", p.ApproveNever:
	case p.ApproveAlways:
		names = append(names, RuleTarget)
	default:
		if reaches(s.Risk, p.Risk(own)) {
			names = append(names, RuleTarget)
		}
	}
	if d == nil || d.Fleet == nil {
		return names, by
	}
	for _, rule := range d.Fleet.Approvals {
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

// reaches reports whether a gate that asks from some risk on asks about a handoff of a risk. It asks
// about one that has none, so that silence passes no gate.
func reaches(risk, least p.Risk) bool { return risk == "" || riskLevel(risk) >= riskLevel(least) }

// fitsRule tells whether a rule of the fleet is about a handoff to an agent.
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

// approves tells whether approvals hold for an agent.
func approves(given []p.ApprovalGiven, agent string) bool {
	return slices.ContainsFunc(given, func(a p.ApprovalGiven) bool { return a.Agent == agent || a.Agent == p.AnyAgent })
}

// authorityOf is the agent above another one, a person where none is.
func authorityOf(agent string, d *Directory) string {
	profile, known := d.Agent(agent)
	if !known {
		return p.Human
	}
	return cmp.Or(profile.EscalatesTo, p.Human)
}

// eligible is the approver, or the first one above it that may decide about a handoff from a source
// to an agent: neither of them may, unless it is a person.
func eligible(approver, source, agent string, d *Directory) string {
	for range approvalsAbove {
		if approver == p.Human || approver != source && approver != agent {
			return approver
		}
		approver = authorityOf(approver, d)
	}
	return p.Human
}

// lapseAt is when an approver that is asked now has let it lapse; zero is never: a person has until
// the deadline, unless the handoff is to end then.
func lapseAt(terms p.GateTerms, now time.Time) time.Time {
	if terms.Approver == p.Human && terms.OnTimeout != p.ApprovalClose {
		return time.Time{}
	}
	return now.Add(millis(cmp.Or(terms.TimeoutMS, p.ApprovalTimeoutDefaultMS)))
}

// stepLapse follows the silence of an approver.
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

// ApprovalAnswer is what an approver says to a gate.
type ApprovalAnswer struct {
	By string
	// Agent is the one that the approver was asked about: of another gate of the same handoff, this
	// is no answer. Any says that an approval holds for every agent.
	Agent  string
	Any    bool
	Reason string // of a denial; a comment else
}

// Approve says that the agent which a gate names may have the handoff, and decides what follows.
func Approve(s p.State, d *Directory, v ApprovalAnswer, now time.Time) (Step, error) {
	if err := mayDecide(s, d, v); err != nil {
		return Step{}, err
	}
	agent := s.Gate.Agent
	if v.Any {
		agent = p.AnyAgent
	}
	return decideAfter(s, d, &p.Approved{Meta: p.Meta{At: now, By: v.By}, Agent: agent, Comment: v.Reason})
}

// Deny says that the agent which a gate names may not have the handoff, and ends it.
func Deny(s p.State, d *Directory, v ApprovalAnswer, now time.Time) (Step, error) {
	if err := mayDecide(s, d, v); err != nil {
		return Step{}, err
	}
	if strings.TrimSpace(v.Reason) == "" {
		return Step{}, p.Errorf(p.CodeMissing, "reason", "is missing or empty: a denial says why")
	}
	return decideAfter(s, d, &p.Denied{Meta: p.Meta{At: now, By: v.By}, Agent: s.Gate.Agent, Reason: v.Reason})
}

// answerGate is the verdict on a gate that an answer gives: it permits, or denies.
func answerGate(s p.State, d *Directory, answer p.Answer, now time.Time) (Step, error) {
	said := ApprovalAnswer{By: answer.By, Reason: answer.Text}
	switch {
	case answer.Deny:
		said.Reason = cmp.Or(answer.DenyReason, answer.Text)
		return Deny(s, d, said, now)
	case !answer.Permit:
		return Step{}, p.Errorf(p.CodeMissing, "permit", "%s asks whether %s may have it: permit or deny it", s.Ticket, s.Gate.Agent)
	}
	return Approve(s, d, said, now)
}

// mayDecide refuses an answer to what asks for none, and of an agent that may not give it.
func mayDecide(s p.State, d *Directory, v ApprovalAnswer) error {
	if err := mustNotBeEnding(s); err != nil {
		return err
	}
	gate := s.Gate
	switch {
	case gate.First() == p.GateBudget:
		return wantsRaise(s)
	case gate.First() != p.GateApproval:
		return p.Errorf(p.CodeIllegal, "ticket", "%s is %s and asks for no approval", s.Ticket, s.Phase)
	case v.Agent != "" && v.Agent != gate.Agent:
		return p.Errorf(p.CodeConflict, "agent", "%s asks for an approval of %s by now, not of %s", s.Ticket, gate.Agent, v.Agent)
	}
	return maySettle(s, v.By, d)
}

// answersFor tells whether an agent is an approver, or above it.
func answersFor(by, approver string, d *Directory) bool {
	for range approvalsAbove {
		if approver == by {
			return true
		}
		approver = authorityOf(approver, d)
	}
	return false
}

// ApproversBelow returns the agents below one, by their names: it may answer what they are asked.
// A person is above all of them, and has none.
func ApproversBelow(agent string, d *Directory) []string {
	if d == nil || agent == p.Human {
		return nil
	}
	var below []string
	for id := range d.Agents {
		if id != agent && answersFor(agent, id, d) {
			below = append(below, id)
		}
	}
	slices.Sort(below)
	return below
}

// closeUnapproved ends a handoff that no agent had. A person hears of it where the work that it
// follows from is done.
func closeUnapproved(s p.State, meta p.Meta, outcome p.Outcome, why reason) p.Event {
	inbox := ""
	if wasPromised(s) {
		inbox = p.Human
	}
	end := closed(meta, outcome, why, inbox)
	if s.Gate.DenyReason != "" {
		end.Message += ": " + s.Gate.DenyReason
	}
	return end
}

func staleApproved(s *p.State, e *p.Approved) string {
	switch {
	case s.Gate.First() != p.GateApproval:
		return "no approval is asked for"
	case e.Agent != p.AnyAgent && e.Agent != s.Gate.Agent:
		return "the approval of another agent is asked for"
	}
	return ""
}

func staleDenied(s *p.State, e *p.Denied) string {
	switch {
	case s.Gate.First() != p.GateApproval:
		return "no approval is asked for"
	case e.Agent != s.Gate.Agent:
		return "the approval of another agent is asked for"
	}
	return ""
}

func applyApproved(s *p.State, e *p.Approved) error {
	given := append(slices.Clone(s.Approvals), p.ApprovalGiven{Agent: e.Agent, By: cutTo(e.By, p.IDBytesMax), At: e.At})
	if len(given) > p.ApprovalsMax {
		given = given[len(given)-p.ApprovalsMax:]
	}
	s.Approvals = given
	openFirst(s, e.At)
	s.Gate.Approver, s.Gate.Level = "", 0
	return nil
}

func applyDenied(s *p.State, e *p.Denied) error {
	gate := gateOf(s)
	gate.Denied, gate.DenyReason = cutCode(cmp.Or(e.By, p.Human)), cut(e.Reason)
	return nil
}

func applyLapsed(s *p.State, e *p.Lapsed) error {
	gate := gateOf(s)
	gate.Approver, gate.Level, gate.Until = e.To, e.Level, e.Until
	return nil
}
