package cli

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/spf13/cobra"

	"github.com/agenthandoff/handoff/api"
	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/dossier"
	"github.com/agenthandoff/handoff/internal/explain"
	"github.com/agenthandoff/handoff/internal/lifecycle"
	"github.com/agenthandoff/handoff/protocol"
)

// ledgerWithin is how long a command may take that reads every handoff's head:
// a million of them take some seconds.
const ledgerWithin = 5 * time.Minute

// onLedger does something with an engine that may take as long as reading all
// of the ledger's heads.
func (a *app) onLedger(ctx context.Context, do func(context.Context, *source) error) error {
	s, done, err := a.source(ctx, false, "")
	if err != nil {
		return err
	}
	defer done()
	ctx, cancel := context.WithTimeout(ctx, ledgerWithin)
	defer cancel()
	return do(ctx, s)
}

func newInbox(a *app) *cobra.Command {
	var agent string
	var watch bool
	cmd := &cobra.Command{
		Use:   "inbox",
		Short: "List the handoffs that wait for a person, or an agent",
		Long: `Inbox lists the handoffs that wait for an agent or a person, and why: approvals first, then
the most urgent.

  approval    it waits for their word whether an agent may have it: handoff approve or
              deny TICKET
  budget_exhausted  it goes on once its budget is raised: handoff raise TICKET
  question    an agent asks for context or a permission: handoff answer TICKET
  escalation  it was passed up to them: handoff answer, take, reroute or rollback it
  offer       it is in their queue: handoff take TICKET, or handoff claim
  held        they have it in their hands: go on with their LEASE
  look        it closed in a way that they should see (the work ran out of time, or
              came back undone): handoff dead redrive TICKET, or handoff dismiss TICKET

A person (human) gets questions whose source is not a registered agent, and everything
escalated to the top.

Handoffs that are here only because their agent is offline come last, grouped by agent:
they go back by themselves when a worker of that agent starts, unless a person has taken
or answered them.

It asks an index (handoff index; handoff dev has one), and reads the head of every handoff
where none answers. With -o json or jsonl each entry is the handoff's state with why,
since and words added; an absence (why is "absence") has absent, since, words and its
entries in handoffs.

--watch prints the inbox, and then each new entry, until Ctrl-C; a terminal rings its bell
with each of these.

Exit codes: 0 here it is, empty or not; 9 no such agent.`,
		Example: `  handoff inbox
  handoff inbox --watch
  handoff inbox --agent lead -o jsonl | jq -r 'select(.why == "question") | .ticket'`,
		Args: takes(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			agent = cmp.Or(agent, a.me())
			if err := protocol.CheckID("agent", agent); err != nil {
				return err
			}
			if watch && a.format == formatJSON {
				return usagef("--watch has no end, so it is no document; use -o jsonl")
			}
			if watch {
				return a.watchInbox(cmd.Context(), agent)
			}
			return a.onLedger(cmd.Context(), func(ctx context.Context, s *source) error {
				if agent != protocol.Human {
					if _, err := s.session.Profile(ctx, agent); err != nil {
						return err
					}
				}
				inbox, err := inboxOf(ctx, s.session, agent)
				return printedList(a, inboxValues(inbox), err, func([]any) error { return a.inbox(agent, inbox) })
			})
		},
	}
	cmd.Flags().StringVar(&agent, "agent", "", "the `AGENT` whose inbox it is (default $HANDOFF_AGENT, else human)")
	cmd.Flags().BoolVar(&watch, "watch", false, "print each new entry, too, and ring the bell of a terminal")
	return cmd
}

// inboxValues are the entries of an inbox for programs, and then its absences.
func inboxValues(inbox dossier.Inbox) []any {
	var values []any
	for _, e := range inbox.Entries {
		values = append(values, e)
	}
	for _, of := range inbox.Absences {
		values = append(values, of)
	}
	return values
}

func (a *app) inbox(agent string, inbox dossier.Inbox) error {
	if len(inbox.Entries)+len(inbox.Absences) == 0 {
		a.notef("handoff: nothing waits for %s\n", agent)
		return nil
	}
	if len(inbox.Entries) > 0 {
		if err := a.inboxTable(inbox.Entries); err != nil {
			return err
		}
	}
	for i, of := range inbox.Absences {
		if i > 0 || len(inbox.Entries) > 0 {
			a.printf("\n")
		}
		a.printf("%s; this goes back when one is there:\n", of.Words)
		if err := a.inboxTable(of.Handoffs); err != nil {
			return err
		}
	}
	return nil
}

func (a *app) inboxTable(entries []dossier.InboxEntry) error {
	now := a.now()
	return a.table(rowsOf("WHY|TICKET|PRIORITY|AGE|FROM|WITH|WORDS", entries, func(v dossier.InboxEntry) []any {
		asks := ""
		if v.Absent == nil || v.Reason != lifecycle.ReasonAcknowledgeTimeout { // else it goes back by itself
			asks = explain.Asks(v.State)
		}
		return []any{v.Why, v.Ticket, v.Priority, explain.Ago(v.Since, now), v.From(), v.Agent,
			explain.Join(explain.OverdueMark(v.State, now), v.Words, explain.Kept(v.State, explain.KeptInInbox), asks)}
	}))
}

// inboxEvery is the time between two looks into an inbox.
const inboxEvery = time.Second

// bell is BEL, which has a terminal ring or blink.
const bell = styled("\a")

// watchInbox prints an inbox, and each new entry, until ctx ends. It waits for an engine that stops.
func (a *app) watchInbox(ctx context.Context, agent string) error {
	s, done, err := a.source(ctx, false, "")
	if err != nil {
		return err
	}
	defer done()
	tick := time.NewTicker(inboxEvery)
	defer tick.Stop()
	var seen map[string]bool
	for {
		entries, err := inboxNow(ctx, s.session, agent)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil && (seen == nil || !errors.Is(err, broker.ErrUnreachable) && !errors.Is(err, context.DeadlineExceeded)):
			return err
		case err == nil:
			if seen, err = a.showNew(entries, seen); err != nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}

func inboxOf(ctx context.Context, s *api.Session, agent string) (dossier.Inbox, error) {
	waiting, err := s.Inbox(ctx, agent)
	if err != nil {
		return dossier.Inbox{}, err
	}
	return dossier.InboxOf(ctx, s, waiting)
}

func inboxNow(ctx context.Context, s *api.Session, agent string) ([]dossier.InboxEntry, error) {
	ctx, cancel := context.WithTimeout(ctx, ledgerWithin)
	defer cancel()
	inbox, err := inboxOf(ctx, s, agent)
	entries := inbox.Entries
	for _, absence := range inbox.Absences {
		entries = append(entries, absence.Handoffs...)
	}
	return entries, err
}

// showNew prints the entries that were not seen before, and returns those that are seen now. An entry
// that waits anew for something is new.
func (a *app) showNew(entries []dossier.InboxEntry, seen map[string]bool) (map[string]bool, error) {
	now, rings := map[string]bool{}, seen != nil
	for _, e := range entries {
		key := e.Ticket + " " + string(e.Why) + " " + e.Since.String()
		now[key] = true
		switch {
		case seen[key]:
			continue
		case !a.text():
			if err := a.value(e); err != nil {
				return nil, err
			}
			continue
		}
		ticket := a.shortens(e.Ticket)(e.Ticket)
		line := explain.Instant(e.Since) + "  " + string(e.Why) + "  " + ticket + "  " + e.From() + "  " + e.Words
		if a.fitTo() > 0 {
			line = cutColumns(line, a.fitTo())
		}
		if rings && a.terminal {
			a.printf("%s", bell)
		}
		a.printf("%s\n", line)
	}
	return now, nil
}

func newDismiss(a *app) *cobra.Command {
	var note string
	cmd := a.actOnEach(&cobra.Command{
		Use:   "dismiss TICKET…",
		Short: "Take closed handoffs out of the inbox",
		Long: `Dismiss marks handoffs that closed without success as seen: they leave the inbox, and
stay in "handoff dead list". Dismissing twice is harmless.

Exit codes: 0 they are in no inbox; 9 one is still open, and waits for an act.`,
		Example: `  handoff dismiss 5f0c… --note "known outage"
  handoff inbox -o jsonl | jq -r 'select(.why == "look") | .ticket' | xargs handoff dismiss`,
		PreRunE: func(*cobra.Command, []string) error { return checkWords("note", note) },
	}, func(ctx context.Context, s *api.Session, ticket string) error {
		state, err := s.Dismiss(ctx, ticket, note)
		if err != nil {
			return err
		}
		return a.line(dossier.StateOf(state), "%s  dismissed\n", state.Ticket)
	})
	cmd.Flags().StringVar(&note, "note", "", "a remark for the history")
	a.fromFlag(cmd, "who dismisses it")
	return cmd
}
