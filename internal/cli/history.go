package cli

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
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

func newWhy(a *app) *cobra.Command {
	return &cobra.Command{
		Use:     "why TICKET",
		Aliases: []string{"explain"},
		Short:   "Explain why a handoff waits, and its next step",
		Long: `Why explains in a few sentences why a handoff waits, its next step and when that comes
if nothing else happens, and your choices. The next step is no guess: the rules of the
supervisors compute it.

Times are in UTC. With -o json there are ticket, phase, closed, waiting_for (one
word), sentences, next (at, event, to, words) and commands. The words of waiting_for:
approval, limit (a place under a key), agent (none is fit), person, worker (none is
running), resume (the agent is paused), slot (all are busy), taker (a worker that is
free), acknowledgement, start, work, answer, time, children, members, stop (of the
worker, since the end was asked for), decision (of a supervisor), nothing (it is
closed).

Exit codes: 0 the handoff exists, however it went; 3 no such ticket.`,
		Example: `  handoff why 5f0c…
  handoff why 5f0c… -o json | jq -r .next.at`,
		Args: takes("a TICKET"),
		RunE: a.onTicket(func(ctx context.Context, s *source, ticket string) error {
			explanation, err := s.session.Why(ctx, ticket, time.UTC)
			if err != nil {
				return err
			}
			return a.explanation(explanation)
		}),
	}
}

// hasClock matches a time of day.
var hasClock = regexp.MustCompile(`\b[0-9]{2}:[0-9]{2}\b`)

// whyView is an explanation with its actions as command lines.
type whyView struct {
	explain.Explanation
	Zone     string        `json:"zone"` // of the clocks in the sentences
	Commands []commandView `json:"commands,omitempty"`
}

// commandView is an action that the reader may take.
type commandView struct {
	To  string `json:"to"` // in words: start a worker
	Run string `json:"run"`
}

// explanation prints an explanation.
func (a *app) explanation(e explain.Explanation) error {
	v := whyView{Explanation: e, Zone: time.UTC.String()}
	for _, action := range e.Actions {
		v.Commands = append(v.Commands, commandView{To: action.To, Run: commandLine(action)})
	}
	if !a.text() {
		return a.value(v)
	}
	for _, sentence := range e.Sentences {
		a.paragraph(sentence)
	}
	if slices.ContainsFunc(e.Sentences, hasClock.MatchString) {
		a.printf("Times are in %s.\n", v.Zone)
	}
	if len(v.Commands) == 0 {
		return nil
	}
	a.printf("\n")
	var rows []string
	for _, c := range v.Commands {
		rows = append(rows, "to "+c.To, c.Run)
	}
	a.commands(rows...)
	return nil
}
