package explain

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/agenthandoff/handoff/internal/lifecycle"
	"github.com/agenthandoff/handoff/protocol"
)

// gateWords returns the condition that a gate waits for.
func gateWords(s protocol.State) string {
	gate := s.Gate
	switch gate.First() {
	case protocol.GateApproval:
		return fmt.Sprintf("%s to decide if %s may have it", Person(gate.Approver), Person(gate.Agent))
	case protocol.GateBudget:
		if lifecycle.ExhaustedBudget(s) == "" {
			return "its open children to end, or its limits to be raised"
		}
		return "its limits to be raised"
	case protocol.GateBids:
		if s.Bidding == nil { // such an entry cannot be read
			return "bids"
		}
		return fmt.Sprintf("the bids of %s, until %s", enumerate(s.Bidding.Calls), Instant(s.Bidding.Until))
	case protocol.GateStart:
		return "its start, at " + Instant(s.StartAt)
	case protocol.GateBreaker:
		return fmt.Sprintf("%s to work again", gate.Agent)
	case protocol.GateWorkspace:
		if s.Locks != nil {
			return "its locks in the workflow " + s.Workspace
		}
		return "its place in the workflow " + s.Workspace
	case protocol.GateLimit:
		return "its limit " + gate.Key
	}
	return "a supervisor to offer it"
}

// keyWords returns the use of the key that a handoff waits for, as a sentence each: the places, its
// position, and the pause.
func keyWords(u protocol.KeyUse, ticket string, now time.Time, instant func(time.Time) string) (words []string) {
	before := slices.IndexFunc(u.Waiting, func(w protocol.KeyWait) bool { return w.Ticket == ticket })
	if before < 0 {
		return nil // its turn has come
	}
	w := u.Waiting[before]
	limit := protocol.KeyLimit{Key: u.Key, MaxConcurrency: w.MaxConcurrency, Rate: w.Rate, PerMS: w.PerMS}
	facts := []string{fmt.Sprintf("%d in work", len(u.Places))}
	if limit.Rate > 0 {
		facts = append(facts, fmt.Sprintf("%d begun in the last %s", lifecycle.KeyStatusOf(u, limit, now).Begun, Millis(limit.PerMS)))
	}
	words = append(words, fmt.Sprintf("%s allows %s: %s, and %d before it", u.Key, lifecycle.KeyLimitWords(limit), strings.Join(facts, ", "), before))
	switch next := lifecycle.NextKeyTurn(u, now); {
	case lifecycle.KeyPaused(u, now):
		words = append(words, fmt.Sprintf("%s is paused, and may begin again %s: %s reported that its provider throttles", u.Key, instant(u.PausedUntil), u.PausedBy))
	case next.After(now):
		words = append(words, "The next may begin "+instant(next))
	}
	return words
}

// GateRules lists the reasons for an approval: risk high; rule "prod".
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

// AgentGates lists the handoffs to an agent that need approval: by its profile, and by rules of the
// fleet, with the conditions of each rule.
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

// fromRisk names the handoffs with this risk or a higher one; they include those without a risk.
func fromRisk(least protocol.Risk) string {
	if least == protocol.RiskHigh {
		return "a high risk, or none given"
	}
	return "a " + string(least) + " risk and above, or none given"
}

// gate explains why a handoff waits before it is offered.
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
		x.say("It waits for %s%s.", gateWords(s), why)
		for _, b := range x.Blockers {
			x.say("%s.", blockerWords(b))
		}
		for _, words := range keyWords(x.KeyUse, s.Ticket, x.Now, x.at) {
			x.say("%s.", words)
		}
		x.addActions(gateActions(s)...)
		return
	}
	approver := gate.Approver
	if approver == protocol.Human {
		approver = capital(Person(approver))
	}
	words := fmt.Sprintf("%s must approve before %s gets it", approver, Person(gate.Agent))
	if rules := GateRules(s); rules != "" {
		words += " (" + rules + ")"
	}
	x.say("%s; asked %s.", words, x.at(gate.Since))
	x.addActions(gateActions(s)...)
	if gate.Level > 0 {
		x.say("The question has gone up %s, since it was not answered.", times(gate.Level))
	}
}

// gateActions returns the actions that open the gate of a handoff, or close it for good.
func gateActions(s protocol.State) []Action {
	switch s.Gate.First() {
	case protocol.GateApproval:
		return []Action{onTicket(s, "approve it", OpApprove), onTicket(s, "deny it", OpDeny, "reason")}
	case protocol.GateBudget:
		return []Action{NewAction("raise its limit", OpRaise, "ticket", s.Ticket, "limit", lifecycle.ExhaustedBudget(s))}
	}
	return nil
}

// blockerWords names a handoff that blocks the locks of another.
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

// KeyHeld returns how many handoffs are in work under a key, and of how many: 3/8.
func KeyHeld(v lifecycle.KeyStatus) string {
	if v.MaxConcurrency == 0 {
		return fmt.Sprint(v.Held)
	}
	return fmt.Sprintf("%d/%d", v.Held, v.MaxConcurrency)
}

// KeyBegun returns how many attempts began in the span of a rate: 12/60 in 1m. It is empty without a rate.
func KeyBegun(v lifecycle.KeyStatus) string {
	if v.Rate == 0 {
		return ""
	}
	return fmt.Sprintf("%d/%d in %s", v.Begun, v.Rate, Millis(v.PerMS))
}

// KeyPause returns until when a key is paused, in the words of clock. It is empty if it is not.
func KeyPause(v lifecycle.KeyStatus, clock func(time.Time) string) string {
	if v.PausedUntil.IsZero() {
		return ""
	}
	return "until " + clock(v.PausedUntil)
}

// SortKeys puts the paused keys first, then those for which most handoffs wait.
func SortKeys(all []lifecycle.KeyStatus) {
	paused := func(v lifecycle.KeyStatus) int {
		if v.PausedUntil.IsZero() {
			return 1
		}
		return 0
	}
	slices.SortFunc(all, func(a, b lifecycle.KeyStatus) int {
		return cmp.Or(paused(a)-paused(b), b.Waiting-a.Waiting, b.Held-a.Held, cmp.Compare(a.Key, b.Key))
	})
}
