package dossier

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/explain"
	"github.com/agenthandoff/handoff/internal/index/ask"
	"github.com/agenthandoff/handoff/internal/lifecycle"
	"github.com/agenthandoff/handoff/protocol"
)

// Tree is a family of handoffs.
type Tree struct {
	Ticket   string   `json:"ticket"` // the requested one
	Handoffs int      `json:"handoffs"`
	Notes    []string `json:"notes,omitempty"` // about handoffs that may be missing
	Root     *Node    `json:"root"`

	Actions []explain.Action `json:"-"` // for finding them
}

// Relation is the relation of a handoff to its parent in a tree.
type Relation string

// The relations of a handoff to its parent in a tree.
const (
	Root      Relation = "root"
	HandedOff Relation = "handed_off" // by its worker, as number N
	HandedOn  Relation = "handed_on"  // by goto: the parent continues as this handoff
	Member    Relation = "member"     // number N of a group
	Return    Relation = "return"
	Redrive   Relation = "redrive"
	Follows   Relation = "follows" // its package names the parent, which did not hand it off
)

// Node is one handoff of a family.
type Node struct {
	Ticket      string           `json:"ticket"`
	Relation    Relation         `json:"relation"`
	N           int              `json:"n,omitempty"` // its number among those of its relation, from 1
	Type        protocol.Type    `json:"type,omitempty"`
	Source      string           `json:"source,omitempty"`
	Agent       string           `json:"agent,omitempty"` // has or had it, or else its target
	Phase       protocol.Phase   `json:"phase"`           // empty while it is about to be submitted
	Closed      bool             `json:"closed"`
	Outcome     protocol.Outcome `json:"outcome"`
	SubmittedAt time.Time        `json:"submitted_at,omitzero"`
	StartAt     time.Time        `json:"start_at,omitzero"` // while it waits for its start
	TookMS      int64            `json:"took_ms"`           // to its end, or to now
	Description string           `json:"description,omitempty"`
	ChainEnd    bool             `json:"chain_end,omitempty"` // the last of a chain, which has ended if this is closed
	Children    []*Node          `json:"children,omitempty"`

	state protocol.State
}

// From returns the source, or the schedule or rule that submitted it, as protocol.Summary.From.
func (n *Node) From() string { return cmp.Or(n.state.From(), n.Source) }

// Bounds of a tree: its handoffs, and the steps up to its root.
const (
	treeMax   = ask.FamilyMax
	ascentMax = treeMax / 2
)

type treeBuilder struct {
	r       Reader
	known   map[string]*Node
	notes   []string
	actions []explain.Action
	words   map[string]string // descriptions by ticket, from the index
}

// TreeOf reads the family of a handoff and returns it from the root.
func TreeOf(ctx context.Context, r Reader, ticket string) (Tree, error) {
	f, root, err := familyOf(ctx, r, ticket)
	if err != nil {
		return Tree{}, err
	}
	if err := f.describe(ctx); err != nil {
		return Tree{}, err
	}
	root.sort(time.Now())
	return Tree{Ticket: ticket, Handoffs: len(f.known), Notes: f.notes, Root: root, Actions: f.actions}, nil
}

// familyOf reads the states of a handoff's family, and returns the root.
func familyOf(ctx context.Context, r Reader, ticket string) (f *treeBuilder, root *Node, err error) {
	f = &treeBuilder{r: r, known: map[string]*Node{}, words: map[string]string{}}
	if root, err = f.ascend(ctx, ticket); err == nil {
		err = f.descend(ctx, []*Node{root})
	}
	if err == nil {
		err = f.askIndex(ctx, ticket)
	}
	return f, root, err
}

// ascend goes up to the root of the family, or to a handoff whose parent the ledger has dropped.
func (f *treeBuilder) ascend(ctx context.Context, ticket string) (*Node, error) {
	node, err := f.read(ctx, ticket)
	if err != nil {
		return nil, err
	}
	if node.Phase == "" {
		return nil, protocol.Errorf(protocol.CodeNotFound, "ticket", "no handoff has the ticket %s", ticket)
	}
	f.known[ticket] = node
	for range ascentMax {
		up := parentTicket(node.state)
		if up == "" || f.known[up] != nil {
			return node, nil
		}
		parent, err := f.read(ctx, up)
		if err != nil {
			return nil, err
		}
		if parent.Phase == "" {
			f.notes = append(f.notes, fmt.Sprintf("%s follows from %s, which is no longer in the ledger", node.Ticket, up))
			return node, nil
		}
		f.add(parent, node)
		f.known[up], node = parent, parent
	}
	f.notes = append(f.notes, fmt.Sprintf("it goes up further than %d handoffs; %s is not the first", ascentMax, node.Ticket))
	return node, nil
}

// parentTicket returns the ticket of a handoff's parent in the tree; it is empty for the root.
func parentTicket(s protocol.State) string { return cmp.Or(s.ReturnOf, s.Origin, s.Parent) }

func (f *treeBuilder) add(parent, child *Node) {
	if slices.Contains(parent.Children, child) {
		return
	}
	child.Relation, child.N = relationOf(parent.state, child.state)
	parent.Children = append(parent.Children, child)
}

func relationOf(parent, child protocol.State) (Relation, int) {
	switch {
	case child.ReturnOf == parent.Ticket:
		return Return, 0
	case child.Origin == parent.Ticket:
		return Redrive, 0
	case child.Group == parent.Ticket:
		return Member, child.N
	case child.N > 0:
		return handedOffOrOn(parent, child.N), child.N
	}
	return Follows, 0
}

// handedOffOrOn returns whether the parent handed off its child n or continues as it. The child is
// not a member of a group.
func handedOffOrOn(parent protocol.State, n int) Relation {
	if lifecycle.GoesOn(parent) && parent.Children.Next == n {
		return HandedOn
	}
	return HandedOff
}

// read reads a handoff. Its phase is empty if the ledger does not have it.
func (f *treeBuilder) read(ctx context.Context, ticket string) (*Node, error) {
	node := &Node{Ticket: ticket, Relation: Root}
	s, err := readState(ctx, f.r, ticket)
	if err != nil || s.Ticket == "" {
		node.Phase = s.Phase
		return node, err
	}
	node.state = s
	node.Type, node.Source, node.Phase, node.Closed, node.Outcome = s.Type, s.Source, s.Phase, s.Closed, s.Outcome
	node.Agent, node.SubmittedAt = agentOf(s), s.SubmittedAt
	if s.Gate.First() == protocol.GateStart && !s.Closed {
		node.StartAt = s.StartAt
	}
	return node, nil
}

// descend adds the descendants of these nodes, level by level. Their tickets are derived from the
// states of the parents, so it needs no index.
func (f *treeBuilder) descend(ctx context.Context, level []*Node) error {
	for len(level) > 0 {
		var next []*Node
		var unread []*Node
		for _, parent := range level {
			for _, below := range relatives(parent.state) {
				if node := f.known[below.Ticket]; node != nil { // ascend has read it
					if !slices.Contains(next, node) {
						next = append(next, node)
					}
					continue
				}
				if len(f.known) >= treeMax {
					f.noteTruncated()
					continue
				}
				promised := &Node{Ticket: below.Ticket, Relation: below.Relation, N: below.N}
				f.known[promised.Ticket] = promised
				parent.Children = append(parent.Children, promised)
				unread = append(unread, promised)
			}
			for _, child := range parent.Children { // children that only ascend has found
				if !slices.Contains(next, child) && !slices.Contains(unread, child) {
					next = append(next, child)
				}
			}
		}
		if err := f.readNodes(ctx, unread); err != nil {
			return err
		}
		level = append(next, unread...)
	}
	return nil
}

func (f *treeBuilder) noteTruncated() {
	note := fmt.Sprintf("there are more than %d; the rest is not shown", treeMax)
	if !slices.Contains(f.notes, note) {
		f.notes = append(f.notes, note)
	}
}

// relative is a handoff that the state of another names.
type relative struct {
	Ticket   string
	Relation Relation
	N        int // its number among those of its relation, from 1
}

// relatives returns the handoffs that a state names as its own, submitted or announced.
func relatives(s protocol.State) []relative {
	var all []relative
	if s.Children != nil {
		for _, n := range s.Children.Made.Numbers() {
			is := handedOffOrOn(s, n+1)
			if s.Aggregate != nil {
				is = Member
			}
			all = append(all, relative{s.ChildTicket(n), is, n + 1})
		}
	}
	if s.ReturnTicket != "" {
		all = append(all, relative{Ticket: s.ReturnTicket, Relation: Return})
	}
	if s.RedrivenAs != "" {
		all = append(all, relative{Ticket: s.RedrivenAs, Relation: Redrive})
	}
	return all
}

// readNodes reads the handoffs of nodes that are in the tree already, in parallel.
func (f *treeBuilder) readNodes(ctx context.Context, nodes []*Node) error {
	return InParallel(ctx, len(nodes), func(ctx context.Context, i int) error {
		node := nodes[i]
		read, err := f.read(ctx, node.Ticket)
		if err == nil {
			read.Relation, read.N = node.Relation, node.N
			*node = *read
		}
		return err
	})
}

const mayBeMissing = "handoffs that merely name one of these as their parent may be missing"

// askIndex adds the handoffs whose packages name one of these as their parent.
func (f *treeBuilder) askIndex(ctx context.Context, ticket string) error {
	patient, cancel := context.WithTimeout(ctx, explain.IndexPatience)
	defer cancel()
	answer, err := f.r.Family(patient, ask.FamilyQuery{
		Question: ask.Question{WaitMS: explain.IndexPatience.Milliseconds() / 2}, Ticket: ticket})
	switch {
	case err != nil && ctx.Err() != nil:
		return err
	case errors.Is(err, broker.ErrNoAnswer) || err != nil && patient.Err() != nil:
		f.notes = append(f.notes, "no index answers: "+mayBeMissing)
		f.actions = append(f.actions, explain.NewAction("start an index", explain.OpIndex))
		return nil
	case err != nil:
		f.notes = append(f.notes, fmt.Sprintf("the index failed (%v): %s", err, mayBeMissing))
		return nil
	case !answer.Complete:
		f.notes = append(f.notes, fmt.Sprintf("the index is %d entries behind: %s", answer.Behind, mayBeMissing))
	}
	for _, row := range answer.Handoffs {
		f.words[row.Ticket] = row.Description
	}
	for _, row := range answer.Handoffs { // the answer has every parent before its children
		up := f.known[cmp.Or(row.ReturnOf, row.Origin, row.Parent)]
		if f.known[row.Ticket] != nil || up == nil {
			continue
		}
		if len(f.known) >= treeMax {
			f.noteTruncated()
			return nil
		}
		node, err := f.read(ctx, row.Ticket)
		if err != nil {
			return err
		}
		if node.Phase == "" {
			continue
		}
		f.known[node.Ticket] = node
		f.add(up, node)
		if err := f.descend(ctx, []*Node{node}); err != nil {
			return err
		}
	}
	if answer.More {
		f.noteTruncated()
	}
	return nil
}

// describe reads the tasks of all handoffs, once for each package.
func (f *treeBuilder) describe(ctx context.Context) error {
	of := map[string][]*Node{} // by the digest of their package
	for _, node := range f.known {
		if node.Description = f.words[node.Ticket]; node.Description == "" && node.Phase != "" {
			of[node.state.Digest] = append(of[node.state.Digest], node)
		}
	}
	same := slices.Collect(maps.Values(of))
	return InParallel(ctx, len(same), func(ctx context.Context, i int) error {
		words, err := taskWords(ctx, f.r, same[i][0].Ticket)
		for _, node := range same[i] {
			node.Description = words
		}
		return err
	})
}

// sort sorts the children of all nodes: those handed off by number, then the return, then the
// redrive. It also computes the duration of each handoff, and marks the ends of chains.
func (n *Node) sort(now time.Time) {
	n.ChainEnd = n.Relation == HandedOn && n.Phase != "" && !lifecycle.GoesOn(n.state)
	if n.Phase != "" {
		end := now
		if n.Closed {
			end = n.state.ClosedAt
		}
		n.TookMS = explain.Took(n.SubmittedAt, end).Milliseconds()
	}
	rank := []Relation{Member, HandedOff, HandedOn, Follows, Return, Redrive}
	slices.SortStableFunc(n.Children, func(x, y *Node) int {
		return cmp.Or(cmp.Compare(slices.Index(rank, x.Relation), slices.Index(rank, y.Relation)), cmp.Compare(x.N, y.N),
			x.SubmittedAt.Compare(y.SubmittedAt), cmp.Compare(x.Ticket, y.Ticket))
	})
	for _, child := range n.Children {
		child.sort(now)
	}
}

// Child is a handoff that another one handed off: a part of the work, a member of a group, or the
// next one of its chain.
type Child struct {
	Ticket string
	N      int // its number, from 1
	Parent protocol.State
}

// ChildrenOf returns the children that a state names, submitted or announced. It excludes returns
// and redrives.
func ChildrenOf(s protocol.State) []Child {
	var all []Child
	for _, below := range relatives(s) {
		if below.Relation != Return && below.Relation != Redrive {
			all = append(all, Child{Ticket: below.Ticket, N: below.N, Parent: s})
		}
	}
	return all
}

// promisedMax is how long after the end of its parent an announced child may still be submitted.
const promisedMax = time.Hour

// Gone reports whether the ledger has dropped a child that it does not contain. Otherwise the child
// is about to be submitted.
func (c Child) Gone(now time.Time) bool {
	p := c.Parent
	return p.Children != nil && p.Children.Closed.Has(c.N-1) || p.Closed && now.Sub(p.ClosedAt) > promisedMax
}

// OpenBelow returns the open handoffs among a handoff and its descendants.
func OpenBelow(ctx context.Context, r ChainReader, ticket string) ([]Reference, error) {
	root, err := r.Status(ctx, ticket)
	if err != nil {
		return nil, err
	}
	var open []Reference
	if !root.Closed {
		open = append(open, referenceTo(ticket, root))
	}
	for level := ChildrenOf(root); len(level) > 0; {
		states := make([]protocol.State, len(level))
		if err := InParallel(ctx, len(level), func(ctx context.Context, i int) (err error) {
			states[i], err = readState(ctx, r, level[i].Ticket)
			return err
		}); err != nil {
			return nil, err
		}
		var next []Child
		for i, child := range level {
			s := states[i]
			if !s.Closed && (s.Phase != "" || !child.Gone(time.Now())) {
				open = append(open, referenceTo(child.Ticket, s))
			}
			next = append(next, ChildrenOf(s)...)
		}
		level = next
	}
	return open, nil
}
