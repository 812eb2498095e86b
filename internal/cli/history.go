package cli

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/dossier"
	"github.com/agenthandoff/handoff/internal/explain"
	"github.com/agenthandoff/handoff/protocol"
)

func newHistory(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "history TICKET",
		Short: "Show everything that happened to a handoff",
		Long: `History reads the ledger's entries of one handoff, oldest first: when, how long after
the event before, the event, and by whom. With -o json or jsonl it is complete: each
entry with its sequence, its hash, its events and the state after them.`,
		Example: `  handoff history 5f0c…
  handoff history 5f0c… -o jsonl | jq -r '.events[].type'`,
		Args: takes("a TICKET"),
		RunE: a.onTicket(func(ctx context.Context, s *source, ticket string) error {
			changes, unread := s.session.History(ctx, ticket)
			if len(changes) == 0 || unread != nil && !broker.Unreadable(unread) {
				return unread
			}
			if a.text() {
				return errors.Join(a.history(changes), unread)
			}
			views, err := dossier.History(changes)
			if err != nil {
				return err
			}
			return errors.Join(list(a, views), unread)
		}),
	}
}

// history prints one line for each event.
func (a *app) history(changes []protocol.Change) error {
	if len(changes) == 0 {
		return nil
	}
	last := changes[len(changes)-1].Record.State
	day := changes[0].Record.Events[0].When().UTC().Format(time.DateOnly)
	a.printf("%s  %s -> %s  %s  %s\n", a.shortens(last.Ticket)(last.Ticket), last.From(), last.TargetWords(), a.phase(last), day)
	rows := [][]string{{"TIME (UTC)", "AFTER", "EVENT", "BY", "DETAIL"}}
	var before time.Time
	for _, c := range changes {
		for _, e := range c.Record.Events {
			at := e.When().UTC()
			stamp, after := at.Format("15:04:05.000"), ""
			if today := at.Format(time.DateOnly); today != day {
				stamp, day = at.Format("2006-01-02 15:04:05.000"), today
			}
			if !before.IsZero() {
				after = "+" + explain.Duration(at.Sub(before))
			}
			by, detail := explain.Event(e)
			rows = append(rows, []string{stamp, after, string(e.EventType()), explain.By(by), detail})
			before = at
		}
	}
	if err := a.table(rows); err != nil {
		return err
	}
	if last.Closed {
		a.paragraph(fmt.Sprintf("%s after %s, attempts: %d", explain.Ending(last), explain.Duration(explain.Took(last.SubmittedAt, last.ClosedAt)), last.AttemptsTotal))
	} else {
		a.paragraph(fmt.Sprintf("open for %s; waits for %s", explain.Duration(explain.Took(last.SubmittedAt, a.now())), phrase(explain.WaitingFor(last))))
	}
	return nil
}
