package explain

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/agenthandoff/handoff/internal/lifecycle"
	"github.com/agenthandoff/handoff/protocol"
)

// Barred describes the refusal of a hand-off by a limit or a rule; it is empty without a refusal.
func Barred(s protocol.State) string {
	b := s.Barred
	if b == nil {
		return ""
	}
	words := fmt.Sprintf("a hand-off to %s was refused (%s)", cmp.Or(b.To, "another agent"), refusedBy(b.Code, b.Field))
	if b.FellBack {
		words = fmt.Sprintf("the hand-off to %s was refused (%s), and it closed with its own result", cmp.Or(b.To, "another agent"), refusedBy(b.Code, b.Field))
	}
	if b.Count > 1 {
		words += fmt.Sprintf("; %d were refused", b.Count)
	}
	return words
}

// refusedBy returns the limit that refused a hand-off, or else the code of the rule.
func refusedBy(code protocol.Code, field string) string {
	if strings.HasPrefix(field, "limits.") {
		return field
	}
	return string(code)
}

// barredText describes the event of a refused hand-off.
func barredText(e *protocol.Barred) string {
	where := refusedBy(e.Code, e.Field)
	if e.FellBack {
		return Join(fmt.Sprintf("its hand-off to %s was refused (%s), and its own result counts", e.To, where), e.Words)
	}
	return Join(fmt.Sprintf("a hand-off to %s was refused (%s)", e.To, where), e.Words)
}

// counted are the dimensions of limits that are numbers of things.
var counted = []struct{ name, what string }{{"max_handoffs", "handoffs"}, {"max_agents", "agents"}, {"max_tokens", "tokens"}}

// Limits returns the remaining and the total amount of each limit; it is empty without limits.
func Limits(s protocol.State) string {
	if s.Limits == nil || s.Account == nil {
		return ""
	}
	left, raised := lifecycle.Available(s), s.Account.Raised
	var words []string
	for _, dim := range counted {
		if limit, bounded := s.Limits.Of(dim.name); bounded {
			words = append(words, fmt.Sprintf("%d of %d %s", max(0, left.Of(dim.name)), limit+raised.Of(dim.name), dim.what))
		}
	}
	if limit, bounded := s.Limits.Of("max_cost_micros"); bounded {
		words = append(words, fmt.Sprintf("%s of %s cost", Cost(max(0, left.CostMicros)), Cost(limit+raised.CostMicros)))
	}
	if d := s.Limits.MaxDepth; d != nil {
		words = append(words, fmt.Sprintf("%d levels", *d))
	}
	if len(words) == 0 {
		return ""
	}
	text := "left: " + strings.Join(words, ", ")
	if next, goesOn := lifecycle.NextInChain(s); s.Closed && goesOn {
		text += "; the remaining budget passed to " + next
	}
	return text
}

// Depth returns the depth of a handoff in its lineage; it is empty for the first of a lineage.
func Depth(s protocol.State) string {
	if d := s.Lineage.DepthOf(); d > 0 {
		return Count(d, "hand-off") + " deep"
	}
	return ""
}

// limits adds refused hand-offs and the remaining limits.
func (x *explainer) limits() {
	s := x.State
	if words := Barred(s); words != "" {
		x.say("%s.", capital(words))
	}
	if words := Limits(s); words != "" && !s.Closed {
		x.say("Of its limits there is %s.", words)
	}
	if s.Lineage.DepthOf() >= protocol.LineageDepthWarning {
		x.say("It is %d hand-offs deep in its lineage, and at most %d may be: that looks like a loop.", s.Lineage.Depth, protocol.LineageDepthMax)
		x.suggest("see what led to it", OpTree, "ticket", s.Ticket)
	}
}

// amountsText lists amounts: 2 handoffs, 500 tokens.
func amountsText(a protocol.Amounts) string {
	var words []string
	for _, dim := range counted {
		if n := a.Of(dim.name); n != 0 {
			words = append(words, fmt.Sprintf("%d %s", n, dim.what))
		}
	}
	if a.CostMicros != 0 {
		words = append(words, "a cost of "+Cost(a.CostMicros))
	}
	return strings.Join(words, ", ")
}

// Usage formats usage: "1200 tokens, cost 0.03, 2 calls". It is empty for no usage.
func Usage(u protocol.Usage) string {
	var parts []string
	if u.Tokens > 0 {
		parts = append(parts, Count(int(u.Tokens), "token"))
	}
	if u.CostMicros > 0 {
		parts = append(parts, "cost "+Cost(u.CostMicros))
	}
	if u.Calls > 0 {
		parts = append(parts, Count(int(u.Calls), "call"))
	}
	if u.TimeMS > 0 {
		parts = append(parts, "worked "+Millis(u.TimeMS))
	}
	return strings.Join(parts, ", ")
}

// Cost formats millionths of the fleet's currency with 2 to 6 decimals: 0.03, 1.50, 0.000125.
func Cost(micros int64) string {
	text := fmt.Sprintf("%d.%06d", micros/1_000_000, micros%1_000_000)
	for strings.HasSuffix(text, "0") && len(text)-strings.IndexByte(text, '.') > 3 {
		text = text[:len(text)-1]
	}
	return text
}

// used is Usage of a pointer that may be nil.
func used(u *protocol.Usage) string {
	if u == nil {
		return ""
	}
	return Usage(*u)
}
