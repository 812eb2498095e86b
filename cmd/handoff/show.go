package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/protocol"
)

func newShow(a *app) *cobra.Command {
	var full bool
	cmd := &cobra.Command{
		Use:   "show TICKET",
		Short: "Show everything there is to know about one handoff",
		Long: `Show reads one handoff whole from the ledger: what was handed over, by whom and
why; which agents had it, and how they were chosen; every attempt, question and
answer; the result, and what came too late; the handoffs that belong to it; how
long it spent where; and every event with who caused it.

Of the package it prints the task and counts the context; --full prints its body
too, and that of the result. With -o json it is all one document, both bodies included:
state, package, entries, way, trail, routings, attempts, questions, stages_ms, result,
late_results, parent, group, children, return, redriven_as, redrive_of.

Exit codes: 0 the handoff exists, however it went; 3 no such ticket.`,
		Example: `  handoff show 5f0c…
  handoff show 5f0c… --full | less
  handoff show 5f0c… -o json | jq .attempts`,
		Args: takes("a TICKET"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.onTicket(cmd.Context(), args[0], func(ctx context.Context, b *broker.Broker, ticket string) error {
				v, err := showOf(ctx, b, ticket)
				if err != nil {
					return err
				}
				if !a.text() {
					return a.value(v)
				}
				return a.whole(v, full)
			})
		},
	}
	cmd.Flags().BoolVar(&full, "full", false, "print the bodies of the package and of the result too")
	return cmd
}

// showView is one handoff whole.
type showView struct {
	Ticket  string          `json:"ticket"`
	State   stateView       `json:"state"`
	Package json.RawMessage `json:"package,omitempty"` // absent where the ledger has let go of it
	Entries []entryView     `json:"entries"`
	dossier
	Result      *protocol.Result    `json:"result,omitempty"`
	LateResults []broker.LateResult `json:"late_results,omitempty"`

	Parent     *kinView  `json:"parent,omitempty"`
	Group      *kinView  `json:"group,omitempty"`
	Children   []kinView `json:"children,omitempty"` // what it handed on, or the members of a group
	Return     *kinView  `json:"return,omitempty"`   // the handoff that delivers its end
	ReturnOf   *kinView  `json:"return_of,omitempty"`
	RedriveOf  *kinView  `json:"redrive_of,omitempty"`
	RedrivenAs *kinView  `json:"redriven_as,omitempty"`

	pkg     *protocol.Package
	changes []protocol.Change
}

// entryView is an entry of the ledger. Bodies are left out of its events: those
// of the package and of the result stand beside it, those of others at theirs.
type entryView struct {
	Seq    uint64            `json:"seq"`
	At     time.Time         `json:"at"` // the engine's time stamp
	Hash   string            `json:"hash"`
	Events []json.RawMessage `json:"events"`
}

// kinView is a handoff that another is tied to.
type kinView struct {
	Ticket  string           `json:"ticket"`
	N       int              `json:"n,omitempty"` // its number among the children, from 1
	Agent   string           `json:"agent,omitempty"`
	Phase   protocol.Phase   `json:"phase"` // empty while it is about to be submitted
	Closed  bool             `json:"closed"`
	Outcome protocol.Outcome `json:"outcome"`
}

func (k kinView) String() string {
	switch {
	case k.Phase == "":
		return k.Ticket + ", about to be submitted"
	case k.Closed:
		return join(k.Ticket, k.Agent, fmt.Sprintf("%s (%s)", k.Phase, k.Outcome))
	}
	return join(k.Ticket, k.Agent, string(k.Phase))
}

// stuckWord is in place of the phase of a handoff whose head cannot be read.
const stuckWord = "stuck"

// kin reads where a handoff stands that another names.
func kin(ctx context.Context, b *broker.Broker, ticket string) (kinView, error) {
	v := kinView{Ticket: ticket}
	head, err := b.Head(ctx, ticket, 0)
	switch s := head.State; {
	case errors.Is(err, broker.ErrNotFound): // about to be submitted, or so old that it is no more
		return v, nil
	case broker.Unreadable(err):
		v.Phase = stuckWord
		return v, nil
	case err != nil:
		return v, err
	default:
		v.Agent, v.Phase, v.Closed, v.Outcome = s.Agent, s.Phase, s.Closed, s.Outcome
		if v.Agent == "" {
			v.Agent = s.TargetWords()
		}
	}
	return v, nil
}

func showOf(ctx context.Context, b *broker.Broker, ticket string) (showView, error) {
	changes, err := b.History(ctx, ticket)
	if err != nil {
		return showView{}, err
	}
	last := changes[len(changes)-1].Record.State
	v := showView{Ticket: ticket, State: view(last), changes: changes, dossier: dossierOf(changes, time.Now())}
	if v.Entries, err = entryViews(changes); err != nil {
		return showView{}, err
	}
	if v.Package, err = b.Package(ctx, ticket); err != nil && !errors.Is(err, broker.ErrNotFound) {
		return showView{}, err
	}
	if pkg, err := protocol.DecodePackage(v.Package); err == nil {
		v.pkg = &pkg
	}
	if last.ResultSeq != 0 {
		result, _, err := b.Result(ctx, ticket)
		if err != nil {
			return showView{}, err
		}
		v.Result = &result
	}
	if len(last.LateFences) > 0 {
		if v.LateResults, err = b.LateResults(ctx, ticket); err != nil {
			return showView{}, err
		}
	}
	return v, v.readKin(ctx, b)
}

// readKin fills in the handoffs that belong to this one.
func (v *showView) readKin(ctx context.Context, b *broker.Broker) error {
	s := v.State
	single := []struct {
		ticket string
		into   **kinView
	}{
		{s.Parent, &v.Parent}, {s.Group, &v.Group}, {s.ReturnTicket, &v.Return},
		{s.ReturnOf, &v.ReturnOf}, {s.Origin, &v.RedriveOf}, {s.RedrivenAs, &v.RedrivenAs},
	}
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(readsAtOnce)
	for _, one := range single {
		if one.ticket == "" {
			continue
		}
		group.Go(func() error {
			k, err := kin(ctx, b, one.ticket)
			*one.into = &k
			return err
		})
	}
	if s.Children != nil {
		ordinals := s.Children.Made.Numbers()
		v.Children = make([]kinView, len(ordinals))
		for i, n := range ordinals {
			group.Go(func() (err error) {
				v.Children[i], err = kin(ctx, b, protocol.ChildTicketN(s.Ticket, n))
				v.Children[i].N = n + 1
				return err
			})
		}
	}
	return group.Wait()
}

func entryViews(changes []protocol.Change) ([]entryView, error) {
	views := make([]entryView, len(changes))
	for i, c := range changes {
		views[i] = entryView{Seq: c.Seq, At: c.At.UTC(), Hash: c.Hash}
		for _, e := range c.Record.Events {
			raw, err := protocol.EncodeEvent(withoutBody(e))
			if err != nil {
				return nil, err
			}
			views[i].Events = append(views[i].Events, raw)
		}
	}
	return views, nil
}

// withoutBody is an event without the package or the result that it carries.
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
