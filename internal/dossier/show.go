package dossier

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/brief"
	"github.com/agenthandoff/handoff/internal/explain"
	"github.com/agenthandoff/handoff/internal/lifecycle"
	"github.com/agenthandoff/handoff/internal/record"
	"github.com/agenthandoff/handoff/protocol"
)

// Handoff has all that the ledger has about one handoff.
type Handoff struct {
	Ticket  string          `json:"ticket"`
	State   StateView       `json:"state"`
	Package json.RawMessage `json:"package,omitempty"` // absent if the ledger has dropped it
	Entries []LedgerEntry   `json:"entries"`
	Timeline
	Result      *protocol.Result    `json:"result,omitempty"`
	LateResults []broker.LateResult `json:"late_results,omitempty"`

	Parent     *Reference  `json:"parent,omitempty"`
	Group      *Reference  `json:"group,omitempty"`
	Children   []Reference `json:"children,omitempty"` // its children, or the members of a group
	Return     *Reference  `json:"return,omitempty"`   // the handoff that returns its result
	ReturnOf   *Reference  `json:"return_of,omitempty"`
	RedriveOf  *Reference  `json:"redrive_of,omitempty"`
	RedrivenAs *Reference  `json:"redriven_as,omitempty"`

	Decoded *protocol.Package `json:"-"`
	Changes []protocol.Change `json:"-"`
}

// LedgerEntry is a ledger entry whose events have no bodies: the fields Package and Result of
// Handoff have them.
type LedgerEntry struct {
	Seq    uint64            `json:"seq"`
	At     time.Time         `json:"at"` // the engine's time stamp
	Hash   string            `json:"hash"`
	Events []json.RawMessage `json:"events"`
}

// Reference is a handoff that another one names.
type Reference struct {
	Ticket  string           `json:"ticket"`
	N       int              `json:"n,omitempty"` // its number among the children, from 1
	Agent   string           `json:"agent,omitempty"`
	Phase   protocol.Phase   `json:"phase"` // empty while it is about to be submitted
	Closed  bool             `json:"closed"`
	Outcome protocol.Outcome `json:"outcome"`
	// Goto reports that one of the two continues as the other.
	Goto bool `json:"goto,omitempty"`
}

// String returns the ticket, the agent and the phase.
func (k Reference) String() string {
	switch {
	case k.Phase == "":
		return k.Ticket + ", about to be submitted"
	case k.Closed:
		return explain.Join(k.Ticket, k.Agent, fmt.Sprintf("%s (%s)", k.Phase, k.Outcome))
	}
	return explain.Join(k.Ticket, k.Agent, string(k.Phase))
}

// Show reads a whole handoff.
func Show(ctx context.Context, r Reader, ticket string) (Handoff, error) {
	changes, err := r.History(ctx, ticket)
	if err != nil {
		return Handoff{}, err
	}
	last := changes[len(changes)-1].Record.State
	v := Handoff{Ticket: ticket, State: StateOf(last), Changes: changes, Timeline: TimelineOf(changes, time.Now())}
	if v.Entries, err = entryViews(changes); err != nil {
		return Handoff{}, err
	}
	if v.Package, err = r.Package(ctx, ticket); err != nil && !errors.Is(err, broker.ErrNotFound) {
		return Handoff{}, err
	}
	if pkg, err := protocol.DecodePackage(v.Package); err == nil {
		v.Decoded = &pkg
	}
	if last.ResultSeq != 0 {
		result, _, err := r.Result(ctx, ticket)
		if err != nil {
			return Handoff{}, err
		}
		v.Result = &result
	}
	if len(last.LateFences) > 0 {
		if v.LateResults, err = r.LateResults(ctx, ticket); err != nil {
			return Handoff{}, err
		}
	}
	return v, v.readReferences(ctx, r)
}

// readReferences reads the handoffs that the state names.
func (v *Handoff) readReferences(ctx context.Context, r Reader) error {
	s := v.State.State
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(ReadsAtOnce)
	one := func(ticket string, into **Reference) {
		if ticket == "" {
			return
		}
		group.Go(func() error {
			other, err := readState(ctx, r, ticket)
			k := referenceTo(ticket, other)
			next, _ := lifecycle.NextInChain(other)
			k.Goto = next == s.Ticket // so it does if it is the parent
			*into = &k
			return err
		})
	}
	group.Go(func() (err error) {
		v.State.HandedOn, err = ChainOf(ctx, r, s)
		return err
	})
	one(s.Parent, &v.Parent)
	one(s.Group, &v.Group)
	one(s.ReturnOf, &v.ReturnOf)
	one(s.Origin, &v.RedriveOf)
	var children []relative
	for _, below := range relatives(s) {
		switch below.Relation {
		case Return:
			one(below.Ticket, &v.Return)
		case Redrive:
			one(below.Ticket, &v.RedrivenAs)
		default:
			children = append(children, below)
		}
	}
	v.Children = make([]Reference, len(children))
	for i, child := range children {
		group.Go(func() error {
			below, err := readState(ctx, r, child.Ticket)
			v.Children[i] = referenceTo(child.Ticket, below)
			v.Children[i].N, v.Children[i].Goto = child.N, child.Relation == HandedOn
			return err
		})
	}
	return group.Wait()
}

func entryViews(changes []protocol.Change) ([]LedgerEntry, error) {
	views := make([]LedgerEntry, len(changes))
	for i, c := range changes {
		views[i] = LedgerEntry{Seq: c.Seq, At: c.At.UTC(), Hash: c.Hash}
		for _, e := range c.Record.Events {
			raw, err := record.EncodeEventOnly(e)
			if err != nil {
				return nil, err
			}
			views[i].Events = append(views[i].Events, raw)
		}
	}
	return views, nil
}

// Budget has the usage of a handoff and its family.
type Budget struct {
	Ticket string         `json:"ticket"`
	Own    protocol.Usage `json:"used"` // of its own attempts
	// Limits are the granted limits, and Account their use; nil is no limit.
	Limits  *protocol.Limits  `json:"limits,omitempty"`
	Account *protocol.Account `json:"account,omitempty"`
	// Left lists the remaining limits in words.
	Left     string           `json:"left,omitempty"`
	Family   protocol.Usage   `json:"family_used"`
	Handoffs []HandoffUsage   `json:"handoffs"` // of the family, the root first
	Agents   []AgentUsage     `json:"agents"`   // the highest usage first
	Notes    []string         `json:"notes,omitempty"`
	Actions  []explain.Action `json:"-"`
}

// HandoffUsage has the usage of one handoff of a family.
type HandoffUsage struct {
	Ticket   string           `json:"ticket"`
	Relation Relation         `json:"relation"`
	Depth    int              `json:"depth"` // below the root of the family
	Agent    string           `json:"agent,omitempty"`
	Phase    protocol.Phase   `json:"phase"`
	Closed   bool             `json:"closed"`
	Outcome  protocol.Outcome `json:"outcome"`
	Used     protocol.Usage   `json:"used"`
	// Limits and Account belong to this handoff; nil is no limit.
	Limits  *protocol.Limits  `json:"limits,omitempty"`
	Account *protocol.Account `json:"account,omitempty"`

	State protocol.State `json:"-"`
}

// AgentUsage is the usage of an agent, including handoffs that other agents have by now.
type AgentUsage struct {
	Agent    string         `json:"agent"`
	Handoffs int            `json:"handoffs"`
	Used     protocol.Usage `json:"used"`
}

// BudgetOf reads the usage of a handoff and its family.
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

// Instructions has a handoff as instructions for the agent that works on it.
type Instructions struct {
	Ticket string `json:"ticket"`
	Agent  string `json:"agent,omitempty"`
	Brief  string `json:"brief"` // Markdown
}

// InstructionsOf reads a handoff as instructions. It fails with CodeNotFound if the handoff does
// not exist, or the ledger has dropped its package.
func InstructionsOf(ctx context.Context, r Reader, ticket string) (Instructions, error) {
	v, err := Show(ctx, r, ticket)
	if err != nil {
		return Instructions{}, err
	}
	if v.Decoded == nil {
		return Instructions{}, protocol.Errorf(protocol.CodeNotFound, "ticket", "the ledger has dropped the package of %s", ticket)
	}
	since := brief.Since{Trail: v.Trail}
	for _, change := range v.Changes {
		for _, event := range change.Record.Events {
			if answered, is := event.(*protocol.Answered); is {
				since.Answers = append(since.Answers, answered.Answer)
			}
		}
	}
	return Instructions{Ticket: v.Ticket, Agent: v.State.Agent, Brief: brief.Markdown(v.Decoded, v.State.State, since)}, nil
}
