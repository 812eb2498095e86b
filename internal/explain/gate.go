package explain

import (
	"fmt"
	"slices"
	"strings"

	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/protocol/lifecycle"
)

// Gates: what stands between a handoff and its next offer, in words.

// GateWords says what a gate waits for now.
func GateWords(s protocol.State) string {
	gate := s.Gate
	switch gate.First() {
	case protocol.GateApproval:
		return fmt.Sprintf("%s to say whether %s may have it", Person(gate.Approver), Person(gate.Agent))
	case protocol.GateBudget:
		return "its limits to be raised"
	case protocol.GateBids:
		if s.Bidding == nil { // no entry that is read has that
			return "bids"
		}
		return fmt.Sprintf("the bids of %s, until %s", enumerate(s.Bidding.Calls), Instant(s.Bidding.Until))
	case protocol.GateBreaker:
		return fmt.Sprintf("%s to work again", gate.Agent)
	case protocol.GateWorkspace:
		if s.Locks != nil {
			return "its locks in the workflow " + s.Workspace
		}
		return "its place in the workflow " + s.Workspace
	}
	return "a supervisor to offer it"
}

// GateRules says what asks for an approval: risk high; rule "prod".
func GateRules(s protocol.State) string {
	var words []string
	switch {
	case s.Risk != "":
		words = append(words, "risk "+string(s.Risk))
	case slices.Contains(s.Gate.Rules, lifecycle.RuleTarget):
		words = append(words, "no risk given")
	}
	for _, rule := range s.Gate.Rules {
		switch rule {
		case lifecycle.RulePackage:
			words = append(words, "its package asks")
		case lifecycle.RuleSource:
			words = append(words, s.Source+" may not take that risk by itself")
		case lifecycle.RuleTarget:
			words = append(words, s.Gate.Agent+" has such handoffs approved")
		default:
			words = append(words, fmt.Sprintf("rule %q", rule))
		}
	}
	return strings.Join(words, "; ")
}

// AgentGates returns which handoffs to an agent are approved first: by its profile, and by rules of
// the fleet, whose source, type and the like may narrow them.
func AgentGates(agent protocol.Profile, fleet *protocol.Fleet) (gates []string) {
	switch agent.Approve {
	case "", protocol.ApproveNever:
	case protocol.ApproveAlways:
		gates = append(gates, "approved first: every handoff to it (approve)")
	default:
		gates = append(gates, "approved first: "+fromRisk(protocol.Risk(agent.Approve))+" (approve)")
	}
	if fleet == nil {
		return gates
	}
	for _, rule := range fleet.Approvals {
		if !rule.If.Fits(rule.If.Source, agent.ID) {
			continue
		}
		words := []string{}
		for _, part := range []struct{ of, value string }{{"from ", rule.If.Source}, {"with the capability ", rule.If.Capability},
			{"of the type ", string(rule.If.Type)}, {"of the class ", rule.If.Complexity}} {
			if part.value != "" {
				words = append(words, part.of+part.value)
			}
		}
		if rule.If.MinRisk != "" {
			words = append(words, fromRisk(rule.If.MinRisk))
		}
		if rule.If.MinTokens > 0 {
			words = append(words, fmt.Sprintf("that may use %d tokens", rule.If.MinTokens))
		}
		if len(words) == 0 {
			words = append(words, "every handoff to it")
		}
		gates = append(gates, fmt.Sprintf("approved first: %s (rule %q of the fleet)", strings.Join(words, ", "), rule.Name))
	}
	return gates
}

// fromRisk names the handoffs of a risk or a higher one, to which those without a risk belong.
func fromRisk(least protocol.Risk) string {
	if least == protocol.RiskHigh {
		return "a high risk, or none given"
	}
	return "a " + string(least) + " risk and above, or none given"
}

// gate says what a handoff waits for before it is offered.
func (x *explainer) gate() {
	s := x.State
	if len(s.Refused) > 0 {
		x.say("%s refused it before.", enumerate(s.Refused))
	}
	gate := s.Gate
	if gate.First() != protocol.GateApproval {
		why := ""
		if gate != nil && gate.Why != "" {
			why = ": " + gate.Why
		}
		x.say("It waits for %s%s.", GateWords(s), why)
		for _, b := range x.Blockers {
			x.say("%s.", blockerWords(b))
		}
		if gate.First() == protocol.GateBudget {
			x.e.Actions = append(x.e.Actions, raiseBudget(s))
		}
		return
	}
	words := fmt.Sprintf("It awaits the approval of %s, that %s may have it", Person(gate.Approver), Person(gate.Agent))
	if rules := GateRules(s); rules != "" {
		words += " (" + rules + ")"
	}
	x.say("%s; asked %s.", words, x.at(gate.Since))
	x.suggest("approve it", OpApprove, "ticket", s.Ticket)
	x.suggest("deny it", OpDeny, "ticket", s.Ticket, "reason", "")
	if gate.Level > 0 {
		x.say("The question has gone up %s, since it was not answered.", times(gate.Level))
	}
}

// raiseBudget is what a person does for a handoff whose budget has run out.
func raiseBudget(s protocol.State) Action {
	return NewAction("raise its limit", OpRaise, "ticket", s.Ticket, "limit", lifecycle.ExhaustedBudget(s))
}

// blockerWords says which handoff is in the way of another's locks.
func blockerWords(b lifecycle.Blocker) string {
	if b.Waits {
		return fmt.Sprintf("%s asked for %s before it", b.Ticket, b.Path)
	}
	return fmt.Sprintf("It waits for the lock on %s that %s holds", b.Path, b.Ticket)
}

func times(n int) string {
	switch n {
	case 1:
		return "once"
	case 2:
		return "twice"
	}
	return fmt.Sprintf("%d times", n)
}

// describeGate is Event for the events of a gate.
func describeGate(e protocol.Event) (by, detail string) {
	switch e := e.(type) {
	case *protocol.Gated:
		kinds := make([]string, len(e.Waits))
		for i, kind := range e.Waits {
			kinds[i] = string(kind)
		}
		asked := ""
		if e.Approver != "" {
			asked = e.Approver + " is asked"
		}
		if len(e.Calls) > 0 {
			return e.By, fmt.Sprintf("before the first offer: %s asked for a bid, until %s", are(e.Calls), Instant(e.Until))
		}
		return e.By, Join("before "+e.Agent+": "+strings.Join(kinds, ", "), asked, strings.Join(e.Rules, ", "), e.Why)
	case *protocol.GateOpened:
		return e.By, string(e.Gate)
	case *protocol.Awarded:
		winner := "the best bid"
		if len(e.Bids) > 0 {
			winner = e.Bids[0].Agent
		}
		return e.By, Join(winner+" gets it", bids(e.AwardTerms))
	case *protocol.Unawarded:
		return e.By, Join("no agent gets it by a bid", bids(e.AwardTerms))
	case *protocol.BidAnswered:
		return e.By, BidAnswer(e.Answer, e.Agent)
	case *protocol.Decided:
		return e.By, Join(e.Description, "risk "+string(e.Risk), e.Rationale)
	case *protocol.Approved:
		agent := e.Agent
		if agent == protocol.AnyAgent {
			agent = "any agent"
		}
		return e.By, Join("for "+agent, e.Comment)
	case *protocol.Denied:
		return e.By, Join("for "+e.Agent, e.Reason)
	case *protocol.Lapsed:
		return e.By, fmt.Sprintf("%s did not answer; %s is asked", e.From, e.To)
	}
	return describeFamily(e)
}
