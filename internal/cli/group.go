package cli

import (
	"context"
	"fmt"

	"github.com/agenthandoff/handoff/internal/dossier"
	"github.com/agenthandoff/handoff/protocol"
)

// valueWithMembers prints a state for programs, with the members of a group, or the chain.
func (a *app) valueWithMembers(ctx context.Context, from *source, s protocol.State) error {
	// Also where a wait has just run out, or Ctrl-C ended it.
	ctx, cancel := a.asking(context.WithoutCancel(ctx))
	defer cancel()
	v, err := a.viewOf(ctx, from, s)
	if err != nil {
		return err
	}
	return a.value(v)
}

func (a *app) viewOf(ctx context.Context, from *source, s protocol.State) (dossier.StateView, error) {
	v, err := dossier.StateWithMembers(ctx, a.reader(from.b), s)
	if err == nil {
		v.HandedOn, err = dossier.ChainOf(ctx, from, s)
	}
	return v, err
}

// membersShown is how many members people are shown; programs get all.
const membersShown = 20

func (a *app) memberTable(views []dossier.MemberState) error {
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
