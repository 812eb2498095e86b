package dossier

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/explain"
	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/protocol/lifecycle"
	"github.com/agenthandoff/handoff/protocol/record"
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
	Children   []Reference `json:"children,omitempty"` // what it handed off, or the members of a group
	Return     *Reference  `json:"return,omitempty"`   // the handoff that returns its result
	ReturnOf   *Reference  `json:"return_of,omitempty"`
	RedriveOf  *Reference  `json:"redrive_of,omitempty"`
	RedrivenAs *Reference  `json:"redriven_as,omitempty"`

	Decoded *protocol.Package `json:"-"`
	Changes []protocol.Change `json:"-"`
}

// LedgerEntry is a ledger entry with events without bodies: Handoff has package and result in
// fields of their own.
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
	// Goto says that the chain goes on from one of the two to the other.
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

// readReference reads the handoff that another one names.
func readReference(ctx context.Context, r Reader, ticket string) (Reference, error) {
	s, err := readState(ctx, r, ticket)
	return referenceTo(ticket, s), err
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

// readReferences reads the handoffs that this one names.
func (v *Handoff) readReferences(ctx context.Context, r Reader) error {
	s := v.State.State
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(ReadsAtOnce)
	one := func(ticket string, into **Reference) {
		if ticket == "" {
			return
		}
		group.Go(func() error {
			k, err := readReference(ctx, r, ticket)
			*into = &k
			return err
		})
	}
	if s.Parent != "" {
		group.Go(func() error {
			parent, err := readState(ctx, r, s.Parent)
			k := referenceTo(s.Parent, parent)
			next, _ := lifecycle.NextInChain(parent)
			k.Goto = next == s.Ticket
			v.Parent = &k
			return err
		})
	}
	group.Go(func() (err error) {
		v.State.HandedOn, err = ChainOf(ctx, r, s)
		return err
	})
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
		group.Go(func() (err error) {
			v.Children[i], err = readReference(ctx, r, child.Ticket)
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
			raw, err := record.EncodeEvent(withoutBody(e))
			if err != nil {
				return nil, err
			}
			views[i].Events = append(views[i].Events, raw)
		}
	}
	return views, nil
}

// withoutBody returns an event without its package or result.
func withoutBody(event protocol.Event) protocol.Event {
	switch e := event.(type) {
	case *protocol.Submitted:
		own := *e
		own.Package = nil
		return &own
	case *protocol.HandedOff:
		own := *e
		own.Package = nil
		return &own
	case *protocol.Completed:
		own := *e
		own.Result = nil
		return &own
	case *protocol.Failed:
		own := *e
		own.Result = nil
		return &own
	case *protocol.ResultParked:
		own := *e
		own.Result = nil
		return &own
	case *protocol.RolledBack:
		own := *e
		own.Result = nil
		return &own
	}
	return event
}
