package lifecycle

import (
	"fmt"
	"strings"

	p "github.com/agenthandoff/handoff/protocol"
)

// The words of the scenarios about gates.

// atGate is what an approver says to a gate, or what the gate learns from outside.
func (g *stage) atGate(word string, args []string) (step Step, known bool, err error) {
	g.t.Helper()
	s := g.state
	switch word {
	case "approve":
		step, err = Approve(s, g.query(), ApprovalAnswer{By: args[0], Any: len(args) > 1})
	case "approve_of":
		step, err = Approve(s, g.query(), ApprovalAnswer{By: args[1], Agent: args[0]})
	case "disapprove":
		step, err = Deny(s, g.query(), ApprovalAnswer{By: args[0], Reason: "not that"})
	case "gate":
		terms := p.GateTerms{Agent: args[1], Offer: OfferRetry}
		for _, kind := range strings.Split(args[0], ",") {
			terms.Waits = append(terms.Waits, p.GateKind(kind))
		}
		step, err = StepOf(s, &p.Gated{Meta: p.Meta{At: g.now, By: By}, GateTerms: terms})
	case "open":
		step, err = OpenGate(s, g.query(), Fact{Gate: p.GateKind(args[0])})
	case "await_key":
		step, err = AwaitKey(s, args[0], By, g.now)
	case "refuse_gate":
		step, err = RefuseGate(s, p.GateKind(args[0]), &p.Error{Code: "limit_exceeded", Message: "5 of 5 are used"}, g.now)
	case "award":
		step, err = Award(s, g.query(), g.calls(args))
	case "bid_answer":
		step, err = AnswerBid(s, g.caller(args[0]), g.now)
	case "decide":
		made := p.Decided{Description: "so", Risk: p.Risk(args[0])}
		if len(args) > 1 {
			made.ID = args[1]
		}
		step, err = DecideAlone(s, g.query(), s.Holder, made)
	default:
		return step, false, nil
	}
	return step, true, err
}

// fleet sets the settings of the fleet; rules are NAME[:KEY=VALUE]….
func (g *stage) fleet(args []string) {
	g.t.Helper()
	policy, settings := map[string]any{}, &p.Fleet{}
	for _, arg := range args {
		key, value, _ := strings.Cut(arg, "=")
		switch key {
		case "rules":
		case "experiment": // TARGET>AGENT, or TARGET>+CAPABILITY: all that is for one goes to the other
			from, to, _ := strings.Cut(value, ">")
			variant := p.Variant{Name: "new", Weight: 1, Target: p.Target{Agent: to}}
			if capability, is := strings.CutPrefix(to, "+"); is {
				variant.Target = p.Target{Capability: capability}
			}
			settings.Experiments = append(settings.Experiments, p.Experiment{Name: "ab", When: p.ApprovalWhen{Target: from}, Variants: []p.Variant{variant}})
			continue
		case "complexity": // CLASS:KEY=VALUE…,…
			for _, text := range strings.Split(value, ",") {
				class, rest, _ := strings.Cut(text, ":")
				rule := p.ComplexityRule{Class: class}
				for part := range strings.SplitSeq(rest, ":") {
					switch key, value, _ := strings.Cut(part, "="); key {
					case "target":
						rule.If.Target = value
					case "min_risk":
						rule.If.MinRisk = p.Risk(value)
					case "":
					default:
						g.t.Fatalf("rule %s: no key %s", text, key)
					}
				}
				settings.Complexity = append(settings.Complexity, rule)
			}
			continue
		case "handoffs":
			settings.Handoffs = p.HandoffMode(value)
			continue
		case "limits":
			settings.Limits = g.limits(value)
			continue
		case "edge_repeats":
			settings.Loops = &p.Loops{EdgeRepeats: ptr(int64(g.numbers([]string{value})[0]))}
			continue
		default:
			policy[key] = g.value(value)
			continue
		}
		for _, text := range strings.Split(value, ",") {
			parts := strings.Split(text, ":")
			rule := p.ApprovalRule{Name: parts[0]}
			for _, part := range parts[1:] {
				switch key, value, _ := strings.Cut(part, "="); key {
				case "by":
					rule.By = value
				case "min_risk":
					rule.If.MinRisk = p.Risk(value)
				case "source":
					rule.If.Source = value
				case "target":
					rule.If.Target = value
				case "class":
					rule.If.Complexity = value
				case "min_tokens":
					rule.If.MinTokens = int64(g.numbers([]string{value})[0])
				default:
					g.t.Fatalf("rule %s: no key %s", text, key)
				}
			}
			settings.Approvals = append(settings.Approvals, rule)
		}
	}
	g.override(&settings.Policy, policy)
	g.d.Fleet = settings
}

// approval reads what a package says of its approval.
func (g *stage) approval(s *p.Summary, key, value string) {
	if s.Approval == nil {
		s.Approval = &p.Approval{}
	}
	switch key {
	case "approval":
		s.Approval.Required = value == "required"
	case "approver":
		s.Approval.By = value
	case "approval_timeout":
		s.Approval.TimeoutMS = g.duration(value).Milliseconds()
	case "approval_on_timeout":
		s.Approval.OnTimeout = p.ApprovalTimeout(value)
	}
}

// briefOfGate says the events of a gate, and of decisions, in few words.
func briefOfGate(e p.Event) string {
	switch e := e.(type) {
	case *p.Decided:
		return " " + e.ID
	case *p.Gated:
		kinds := make([]string, len(e.Waits))
		for i, kind := range e.Waits {
			kinds[i] = string(kind)
		}
		return strings.TrimSuffix(" "+strings.Join(kinds, ",")+" "+e.Agent, " ")
	case *p.GateOpened:
		return " " + string(e.Gate)
	case *p.Awarded:
		return briefOfAward(e.AwardTerms)
	case *p.Unawarded:
		return briefOfAward(e.AwardTerms)
	case *p.BidAnswered:
		return fmt.Sprintf(" %s (%s)", e.Answer, e.Agent)
	case *p.Approved:
		return " " + e.Agent
	case *p.Lapsed:
		return fmt.Sprintf(" %d %s>%s", e.Level, e.From, e.To)
	}
	return ""
}
