package main

import (
	"context"
	"errors"
	"time"

	"github.com/spf13/cobra"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/index"
	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/protocol/lifecycle"
)

func newWhy(a *app) *cobra.Command {
	return &cobra.Command{
		Use:     "why TICKET",
		Aliases: []string{"explain"},
		Short:   "Say in plain words what a handoff waits for, and what happens next",
		Long: `Why says in a few sentences what a handoff is waiting for, what will happen to it
if nothing else does, and when; and what you can do. What happens next is not a
guess: the rules that the supervisors follow are asked what they will decide.

Times are those of your clock and your time zone. With -o json there are ticket,
phase, closed, waiting_for (one word), sentences, next (at, event, to, words) and
commands. The words of waiting_for: approval, agent (none is fit), person, worker
(none is running), resume (the agent is paused), slot (all are busy), taker (a
worker that is free), acknowledgement, start, work, answer, time, children,
members, stop (of the worker, since the end was asked for), decision (of a
supervisor), nothing (it is closed).

Exit codes: 0 the handoff exists, however it went; 3 no such ticket.`,
		Example: `  handoff why 5f0c…
  handoff why 5f0c… -o json | jq -r .next.at
  TZ=UTC handoff why 5f0c…`,
		Args: takes("a TICKET"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.onTicket(cmd.Context(), args[0], func(ctx context.Context, b *broker.Broker, ticket string) error {
				situation, err := situationOf(ctx, b, ticket)
				if err != nil {
					return err
				}
				return a.explanation(explain(situation))
			})
		},
	}
}

// situation is all that an explanation is made of.
type situation struct {
	state     protocol.State
	directory *lifecycle.Directory
	now       time.Time
	zone      *time.Location
	ahead     int64      // handoffs that its agent's workers get before it; -1 where nobody could tell
	inHand    int        // handoffs that its agent has in hand, where it has max_concurrency
	depth     int        // handoffs that wait for its agent, or that it works on; -1 likewise
	open      []relative // what it waits for: open members, or what it has handed on
}

// relative is a handoff that another waits for, as far as somebody wants to know.
type relative struct {
	ticket string
	n      int            // its number, from 1
	state  protocol.State // zero until it is submitted
}

// indexPatience is how long a command waits for the index to tell it what it can
// do without.
const indexPatience = 500 * time.Millisecond

// relativesRead is how many of those that a handoff waits for are looked up.
const relativesRead = 5

// situationOf reads what there is to know about a handoff. It fails only where
// the ledger does: what else cannot be read is left out of the explanation.
func situationOf(ctx context.Context, b *broker.Broker, ticket string) (situation, error) {
	head, err := b.Head(ctx, ticket, 0)
	if errors.Is(err, broker.ErrNotFound) {
		err = protocol.Errorf(protocol.CodeNotFound, "ticket", "no handoff has the ticket %s", ticket)
	}
	if err != nil {
		return situation{}, err
	}
	s := situation{state: head.State, now: time.Now(), zone: time.Local, ahead: -1, depth: -1}
	for _, at := range []time.Time{head.At, head.State.UpdatedAt} {
		if at.After(s.now) { // our clock is slow
			s.now = at
		}
	}
	if s.directory, err = observed(ctx, b, head.State); err != nil {
		return situation{}, err
	}
	if s.open, err = openRelatives(ctx, b, head.State); err != nil {
		return situation{}, err
	}
	if lifecycle.DutiesOf(head.State).Offer && head.State.Agent != protocol.Human {
		if ahead, ok := aheadOf(ctx, b, ticket); ok {
			s.ahead = ahead
		} else if depth, err := b.QueueDepth(ctx, head.State.Agent); err == nil {
			s.depth = depth
		}
		if inHand, _, err := b.Capacity(ctx, head.State.Agent); err == nil {
			s.inHand = inHand
		}
	}
	return s, nil
}

// observed is the directory as a supervisor sees it that has been there for
// long. A snapshot may lag behind a holder that has just begun: one that seems
// gone is asked for.
func observed(ctx context.Context, b *broker.Broker, s protocol.State) (*lifecycle.Directory, error) {
	directory, err := b.DirectoryOf(ctx, s)
	if err != nil {
		return nil, err
	}
	if s.Held() && !directory.Present(s.Holder) {
		if holder, err := b.Holder(ctx, s.Holder); err == nil {
			directory = directory.With(holder)
		}
	}
	long := *directory
	long.ConnectedSince = s.SubmittedAt.Add(-time.Duration(protocol.LeaseMaxMS) * time.Millisecond)
	return &long, nil
}

// openRelatives looks up the first of those that a handoff waits for.
func openRelatives(ctx context.Context, b *broker.Broker, s protocol.State) ([]relative, error) {
	var open []relative
	for _, n := range openOrdinals(s) {
		if len(open) == relativesRead {
			break
		}
		r := relative{ticket: protocol.ChildTicketN(s.Ticket, n), n: n + 1}
		head, err := b.Head(ctx, r.ticket, 0)
		if err != nil && !errors.Is(err, broker.ErrNotFound) && !broker.Unreadable(err) {
			return nil, err
		}
		r.state = head.State
		open = append(open, r)
	}
	return open, nil
}

// openOrdinals are the members, or the children, that an open handoff waits for.
func openOrdinals(s protocol.State) []int {
	switch {
	case s.Children == nil || s.Closed:
		return nil
	case s.Aggregate != nil:
		return s.Children.Made.Without(s.Children.Closed).Numbers()
	}
	return s.Children.Awaited.Without(s.Children.Closed).Numbers()
}

// aheadOf asks the index how many handoffs an agent's workers get before this
// one; false where none answers, or not for certain.
func aheadOf(ctx context.Context, b *broker.Broker, ticket string) (int64, bool) {
	ctx, cancel := context.WithTimeout(ctx, indexPatience)
	defer cancel()
	answer, err := index.Client{Asker: b}.Ahead(ctx, index.AheadQuery{Ask: index.Ask{WaitMS: indexPatience.Milliseconds() / 2}, Ticket: ticket})
	return answer.Ahead, err == nil && answer.Complete && answer.Waiting
}

// explanation prints what explain has found out.
func (a *app) explanation(e explanation) error {
	if !a.text() {
		return a.value(e)
	}
	for _, sentence := range e.Sentences {
		lines := []string{sentence}
		if a.width > 0 { // a terminal, which would break words
			lines = wrapWords(protocol.Printable(sentence), a.width)
		}
		for _, line := range lines {
			a.printf("%s\n", line)
		}
	}
	if len(e.Commands) == 0 {
		return nil
	}
	a.printf("\n")
	rows := make([][]string, len(e.Commands))
	for i, c := range e.Commands {
		rows[i] = []string{"to " + c.To, c.Run}
	}
	return a.table(rows)
}
