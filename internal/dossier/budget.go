package dossier

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/agenthandoff/handoff/internal/explain"
	"github.com/agenthandoff/handoff/protocol"
)

// Budget is what a handoff and its family have used.
type Budget struct {
	Ticket string         `json:"ticket"`
	Own    protocol.Usage `json:"used"` // by its own attempts
	// Limits are what was granted to it, and Account what has become of that; nil is no limit.
	Limits  *protocol.Limits  `json:"limits,omitempty"`
	Account *protocol.Account `json:"account,omitempty"`
	// Left says in words what is left.
	Left     string           `json:"left,omitempty"`
	Family   protocol.Usage   `json:"family_used"`
	Handoffs []HandoffUsage   `json:"handoffs"` // of the family, the first first
	Agents   []AgentUsage     `json:"agents"`   // those that have used the most first
	Notes    []string         `json:"notes,omitempty"`
	Actions  []explain.Action `json:"-"`
}

// HandoffUsage is what a handoff of a family has used.
type HandoffUsage struct {
	Ticket   string           `json:"ticket"`
	Relation Relation         `json:"relation"`
	Depth    int              `json:"depth"` // below the first of the family
	Agent    string           `json:"agent,omitempty"`
	Phase    protocol.Phase   `json:"phase"`
	Closed   bool             `json:"closed"`
	Outcome  protocol.Outcome `json:"outcome"`
	Used     protocol.Usage   `json:"used"`
	// Limits and Account are those of this handoff; nil is no limit.
	Limits  *protocol.Limits  `json:"limits,omitempty"`
	Account *protocol.Account `json:"account,omitempty"`

	State protocol.State `json:"-"`
}

// AgentUsage is the usage of an agent, including that for handoffs that others have by now.
type AgentUsage struct {
	Agent    string         `json:"agent"`
	Handoffs int            `json:"handoffs"`
	Used     protocol.Usage `json:"used"`
}

// BudgetOf reads what a handoff and its family have used.
func BudgetOf(ctx context.Context, r Reader, ticket string) (Budget, error) {
	f, root, err := familyOf(ctx, r, ticket)
	if err != nil {
		return Budget{}, err
	}
	root.sort(time.Now())
	b := Budget{Ticket: ticket, Agents: []AgentUsage{}, Notes: f.notes, Actions: f.actions}
	b.add(root, 0)
	slices.SortStableFunc(b.Agents, func(x, y AgentUsage) int {
		return cmp.Or(cmp.Compare(y.Used.Tokens, x.Used.Tokens), cmp.Compare(y.Used.CostMicros, x.Used.CostMicros), cmp.Compare(x.Agent, y.Agent))
	})
	return b, nil
}

func (b *Budget) add(n *Node, depth int) {
	used := n.state.Usage.Total()
	if n.Phase != "" {
		b.Handoffs = append(b.Handoffs, HandoffUsage{n.Ticket, n.Relation, depth, n.Agent, n.Phase, n.Closed, n.Outcome, used, n.state.Limits, n.state.Account, n.state})
		b.Family = b.Family.Plus(used)
		all := n.state.Usage.ByAgent(n.Agent)
		if !slices.ContainsFunc(all, func(by protocol.UsedBy) bool { return by.Agent == n.Agent }) {
			all = append(all, protocol.UsedBy{Agent: n.Agent})
		}
		for _, by := range all {
			b.ofAgent(by.Agent, by.Usage)
		}
	}
	if n.Ticket == b.Ticket {
		b.Own, b.Limits, b.Account, b.Left = used, n.state.Limits, n.state.Account, explain.Limits(n.state)
	}
	for _, child := range n.Children {
		b.add(child, depth+1)
	}
}

func (b *Budget) ofAgent(agent string, used protocol.Usage) {
	if agent == "" {
		return
	}
	i := slices.IndexFunc(b.Agents, func(a AgentUsage) bool { return a.Agent == agent })
	if i < 0 {
		i = len(b.Agents)
		b.Agents = append(b.Agents, AgentUsage{Agent: agent})
	}
	b.Agents[i].Handoffs++
	b.Agents[i].Used = b.Agents[i].Used.Plus(used)
}
