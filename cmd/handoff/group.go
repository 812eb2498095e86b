package main

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sync/errgroup"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/protocol"
)

// memberView is a member of a group for programs.
type memberView struct {
	N       int              `json:"n"` // from 1, in the order of the recipients
	Ticket  string           `json:"ticket"`
	Agent   string           `json:"agent"`
	Phase   protocol.Phase   `json:"phase"` // empty until it is submitted
	Closed  bool             `json:"closed"`
	Outcome protocol.Outcome `json:"outcome"`
}

// readsAtOnce is how many members are read side by side.
const readsAtOnce = 16

// members reads where the members of a group stand; none of what is no group.
func members(ctx context.Context, b *broker.Broker, s protocol.State) ([]memberView, error) {
	if s.Aggregate == nil {
		return nil, nil
	}
	views := make([]memberView, s.Aggregate.Size)
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(readsAtOnce)
	for n := range views {
		group.Go(func() error {
			v := memberView{N: n + 1, Ticket: protocol.ChildTicketN(s.Ticket, n)}
			head, err := b.Head(ctx, v.Ticket, 0)
			switch m := head.State; {
			case errors.Is(err, broker.ErrNotFound): // the ledger promises it; a supervisor submits it
			case broker.Unreadable(err):
				v.Phase = stuckWord
			case err != nil:
				return err
			default:
				v.Agent, v.Phase, v.Closed, v.Outcome = m.Agent, m.Phase, m.Closed, m.Outcome
				if v.Agent == "" {
					v.Agent = m.TargetWords()
				}
			}
			views[n] = v
			return nil
		})
	}
	return views, group.Wait()
}

// promisedMembers are the members that a package would have.
func promisedMembers(prepared broker.Prepared) ([]memberView, error) {
	var views []memberView
	for n := range prepared.Package.GroupSize() {
		m, err := prepared.Package.MemberAt(prepared.Ticket, n)
		if err != nil {
			return nil, err
		}
		views = append(views, memberView{N: n + 1, Ticket: m.Ticket, Agent: m.Target.String()})
	}
	return views, nil
}

// viewWithMembers is view with what a group's own state does not hold.
func viewWithMembers(ctx context.Context, b *broker.Broker, s protocol.State) (stateView, error) {
	v := view(s)
	var err error
	v.Members, err = members(ctx, b, s)
	return v, err
}

// valueWithMembers prints a state for programs, with the members of a group.
func (a *app) valueWithMembers(ctx context.Context, b *broker.Broker, s protocol.State) error {
	// Also where a wait has just run out, or Ctrl-C ended it.
	ctx, cancel := a.asking(context.WithoutCancel(ctx))
	defer cancel()
	v, err := viewWithMembers(ctx, b, s)
	if err != nil {
		return err
	}
	return a.value(v)
}

// membersShown is how many members people are shown; programs get all.
const membersShown = 20

func (a *app) memberTable(views []memberView) error {
	if len(views) == 0 {
		return nil
	}
	rows := [][]string{{"#", "MEMBER", "AGENT", "PHASE"}}
	for _, v := range views[:min(len(views), membersShown)] {
		phase := string(v.Phase)
		switch {
		case v.Closed:
			phase = fmt.Sprintf("%s (%s)", v.Phase, v.Outcome)
		case v.Phase == "":
			phase = "about to be submitted"
		}
		rows = append(rows, []string{fmt.Sprint(v.N), v.Ticket, v.Agent, phase})
	}
	if err := a.table(rows); err != nil {
		return err
	}
	if more := len(views) - membersShown; more > 0 {
		a.printf("and %d more: handoff status -o json lists all\n", more)
	}
	return nil
}
