package lifecycle

import (
	"fmt"
	"strings"

	p "github.com/agenthandoff/handoff/protocol"
)

// The words of scenarios for limits: handoffs:2,depth:1,agents:3,tokens:1000,cost:5,share:50.

func (g *stage) limits(text string) *p.Limits {
	g.t.Helper()
	l := &p.Limits{}
	fields := map[string]**int64{"handoffs": &l.MaxHandoffs, "depth": &l.MaxDepth, "agents": &l.MaxAgents,
		"tokens": &l.MaxTokens, "cost": &l.MaxCostMicros, "share": &l.SharePercent, "time": &l.MaxTimeMS}
	for _, one := range strings.Split(text, ",") {
		name, value, _ := strings.Cut(one, ":")
		if name == "exhausted" {
			l.OnExhausted = p.BudgetAction(value)
			continue
		}
		if fields[name] == nil {
			g.t.Fatalf("no limit %q", name)
		}
		n := int64(g.numbers([]string{value})[0])
		*fields[name] = &n
	}
	return l
}

// lineage reads a>b#1,b>a#2.1: hops with the hashes of their work, and of reason and previous result.
func lineage(text string) (l *p.Lineage) {
	for _, one := range strings.Split(text, ",") {
		from, rest, _ := strings.Cut(one, ">")
		to, context, _ := strings.Cut(rest, "#")
		l = l.Then(p.NewHop(from, to, contextHash(context)))
	}
	return l
}

// contextHash is that of WORK or WORK.REASON.
func contextHash(text string) string {
	work, reason, _ := strings.Cut(text, ".")
	return fmt.Sprintf("%06s%08s", work, reason)
}

// next is a child that the holder hands off: to=AGENT context=N type=TYPE members=N limits=… used=TOKENS.
func (g *stage) next(e p.HandedOff, options ...string) Next {
	g.t.Helper()
	e.Ticket, e.Type, e.Target, e.Hash = p.ChildTicketN(ticket, e.N), cmpType(e), "b", contextHash("")
	n := Next{HandedOff: e}
	for _, option := range options {
		key, value, _ := strings.Cut(option, "=")
		switch key {
		case "to":
			n.Target = value
		case "context":
			n.Hash = contextHash(value)
		case "type":
			n.Type = p.Type(value)
		case "block":
			n.Returns = true
		case "members":
			n.Members = g.numbers([]string{value})[0]
		case "limits":
			n.Asks = g.limits(value)
		case "used": // by the attempt that hands it off
		default:
			g.t.Fatalf("no option %q", option)
		}
	}
	return n
}

func cmpType(e p.HandedOff) p.Type {
	if e.Goto || e.After {
		return p.Sequential
	}
	return p.Delegation
}

// uses is the end of a child's account: it had what its event says, and has used so many tokens.
func (g *stage) uses(c *p.ChildClosed, tokens string) {
	grant := g.grants[c.N].Granted()
	commit := p.Amounts{Tokens: int64(g.numbers([]string{tokens})[0])}
	c.Grant, c.Commit = &grant, &commit
}

// accountInWords says what has become of limits, and what is left.
func accountInWords(s p.State) string {
	if s.Account == nil {
		return "none"
	}
	var words []string
	for _, part := range []struct {
		name string
		of   p.Amounts
	}{{"used", s.Account.Used}, {"reserved", s.Account.Reserved}, {"spent", s.Account.Spent}, {"over", s.Account.Over}, {"left", Available(s)}} {
		for i, name := range []string{"handoffs", "agents", "tokens", "cost"} {
			if n := part.of.Of(p.Dimensions[i]); n != 0 {
				words = append(words, fmt.Sprintf("%s %d %s", part.name, n, name))
			}
		}
	}
	return strings.Join(words, ", ")
}
