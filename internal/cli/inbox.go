package cli

import (
	"cmp"
	"context"
	"time"

	"github.com/spf13/cobra"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/dossier"
	"github.com/agenthandoff/handoff/internal/explain"
	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/protocol/lifecycle"
)

// ledgerWithin is how long a command may take that reads every handoff's head:
// a million of them take some seconds.
const ledgerWithin = 5 * time.Minute

// onLedger does something with an engine that may take as long as reading all
// of the ledger's heads.
func (a *app) onLedger(ctx context.Context, do func(context.Context, *broker.Broker) error) error {
	b, done, err := a.connect(ctx)
	if err != nil {
		return err
	}
	defer done()
	ctx, cancel := context.WithTimeout(ctx, ledgerWithin)
	defer cancel()
	return do(ctx, b)
}

func newInbox(a *app) *cobra.Command {
	var agent string
	cmd := &cobra.Command{
		Use:   "inbox",
		Short: "List what waits for a person, or an agent",
		Long: `Inbox lists what waits for an agent or a person, and says why: first what waits for their
approval, then the most urgent.

  approval    it waits for their word whether an agent may have it: handoff approve or
              deny TICKET
  budget      its budget has run out, and it goes on once that is raised: handoff budget
              raise TICKET
  question    an agent asks for context or a permission: handoff answer TICKET
  escalation  it was passed up to them: handoff answer, take, reroute or rollback it
  offer       it stands in their queue: handoff take TICKET, or handoff claim
  held        they have it in their hands: go on with their LEASE
  look        it closed in a way that they should see (the work ran out of time, or
              came back undone): handoff dead redrive TICKET, or handoff dismiss TICKET

A person (human) is asked what no agent can be: the questions of agents whose
source is no registered agent, and what is escalated to the end.

What only the absence of an agent has brought there stands last, below a line for each
agent that says since when: it goes back by itself when a worker of that agent is there,
unless a person has taken or answered it.

It asks an index (handoff index; handoff dev has one), and reads the head of every handoff
where none answers. With -o json or jsonl each entry is the handoff's state with why,
since and words added; an absence (why is "absence") has absent, since, words and its
entries in handoffs.

Exit codes: 0 here it is, empty or not; 9 no such agent.`,
		Example: `  handoff inbox
  handoff inbox --agent lead -o jsonl | jq -r 'select(.why == "question") | .ticket'`,
		Args: takes(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			agent = cmp.Or(agent, a.me())
			if err := protocol.CheckID("agent", agent); err != nil {
				return err
			}
			return a.onLedger(cmd.Context(), func(ctx context.Context, b *broker.Broker) error {
				if agent != protocol.Human {
					if _, err := a.session(b, "").Profile(ctx, agent); err != nil {
						return err
					}
				}
				waiting, err := a.session(b, "").Inbox(ctx, agent)
				if err != nil {
					return err
				}
				inbox, err := dossier.InboxOf(ctx, a.reader(b), waiting)
				return printedList(a, inboxValues(inbox), err, func([]any) error { return a.inbox(agent, inbox) })
			})
		},
	}
	cmd.Flags().StringVar(&agent, "agent", "", "the `AGENT` whose inbox it is (default $HANDOFF_AGENT, else human)")
	a.agentFlags(cmd, "agent")
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
	now := time.Now()
	rows := [][]string{{"WHY", "TICKET", "PRIORITY", "AGE", "FROM", "WITH", "WORDS"}}
	for _, v := range entries {
		asks := ""
		if v.Absent == nil || v.Reason != lifecycle.ReasonAcknowledgeTimeout { // else it goes back by itself
			asks = explain.Asks(v.State)
		}
		rows = append(rows, []string{string(v.Why), v.Ticket, string(v.Priority), explain.Ago(v.Since, now), v.Source, v.Agent, explain.Join(explain.OverdueMark(v.State, now), v.Words, explain.Kept(v.State, explain.KeptInInbox), asks)})
	}
	return a.tableFit(rows, columnPaint(rows, 0, inboxColour))
}
