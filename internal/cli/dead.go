package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/agenthandoff/handoff/api"
	"github.com/agenthandoff/handoff/internal/dossier"
	"github.com/agenthandoff/handoff/internal/explain"
	"github.com/agenthandoff/handoff/internal/index/ask"
	"github.com/agenthandoff/handoff/protocol"
)

// unsuccessful are the outcomes that a dead letter may have.
var unsuccessful = []string{"failed", "timeout", "rejected", "cancelled", "rolled_back"}

func newDead(a *app) *cobra.Command {
	return group(&cobra.Command{
		Use:     "dead",
		Aliases: []string{"dead-letters"},
		Short:   "List handoffs that closed without success, and redrive them",
		Long: `Dead letters are handoffs that closed without success: failed, timeout, rejected,
cancelled, rolled_back. They are a view of the ledger, not a queue of their own, and
they need no action.`,
	}, newDeadList(a), newDeadShow(a), newDeadRedrive(a))
}

// deadFilterFlags are the flags of ask.DeadQuery.
var deadFilterFlags = []string{"agent", "source", "outcome", "since", "limit"}

func checkDead(q ask.DeadQuery) error {
	for field, agent := range map[string]string{"agent": q.Agent, "source": q.Source} {
		if agent == "" {
			continue
		}
		if err := checkAgents(field, []string{agent}); err != nil {
			return err
		}
	}
	if q.Outcome != "" && !slices.Contains(unsuccessful, string(q.Outcome)) {
		return usagef("--outcome %s: must be %s", q.Outcome, strings.Join(unsuccessful, ", "))
	}
	if q.Limit < 0 {
		return usagef("--limit %d is negative", q.Limit)
	}
	return nil
}

func newDeadList(a *app) *cobra.Command {
	var o struct {
		ask.DeadQuery `flag:""`
		Too           bool `flag:"redriven" doc:"list those that were redriven, too"`
	}
	cmd := &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List the handoffs that closed without success",
		Long: `List shows the handoffs that closed without success, the last to close at the end.
Those that were redriven are left out: they live on under another ticket. With -o
json or jsonl each is the handoff's state.

It asks an index (handoff index; handoff dev has one), and reads the head of every handoff
where none answers.`,
		Example: `  handoff dead list --since 1d
  handoff dead list --agent reviewer --outcome failed -o jsonl | jq -r .ticket`,
		Args:    takes(),
		PreRunE: func(*cobra.Command, []string) error { return checkDead(o.DeadQuery) },
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.onLedger(cmd.Context(), func(ctx context.Context, s *source) error {
				o.Redriven = o.Too
				states, err := s.session.DeadLetters(ctx, o.DeadQuery)
				if err != nil {
					return err
				}
				return a.deadLetters(states)
			})
		},
	}
	bind(cmd.Flags(), &o)
	return cmd
}

func (a *app) deadLetters(states []protocol.State) error {
	if !a.text() {
		views := make([]dossier.StateView, len(states))
		for i, s := range states {
			views[i] = dossier.StateOf(s)
		}
		return list(a, views)
	}
	if len(states) == 0 {
		a.notef("handoff: no dead letters\n")
		return nil
	}
	now := a.now()
	return a.table(rowsOf("TICKET|OUTCOME|CLOSED|FROM|TO|ATTEMPTS|WORDS", states, func(s protocol.State) []any {
		return []any{s.Ticket, s.Outcome, explain.Ago(s.ClosedAt, now) + " ago", s.From(), cmp.Or(s.Agent, s.TargetWords()),
			s.AttemptsTotal, explain.Join(deadWords(s), explain.Kept(s, explain.KeptAsDeadLetter))}
	}))
}

// deadWords is why a handoff closed without success, without the outcome.
func deadWords(s protocol.State) string {
	text := s.Message
	switch {
	case s.Reason == string(s.Outcome) || s.Reason == "":
	case text == "":
		text = s.Reason
	default:
		text = s.Reason + ": " + text
	}
	if s.RedrivenAs != "" {
		text = "redriven as " + s.RedrivenAs + "; " + text
	}
	return text
}

func newDeadShow(a *app) *cobra.Command {
	return &cobra.Command{
		Use:     "show TICKET",
		Aliases: []string{"info"},
		Short:   "Show one of them: its end, its trail, its package",
		Long: `Show prints the facts for a decision: how the handoff ended, who refused, asked and
failed on the way, and the package. With -o json it is
one object: state, trail, package.

Exit codes: 0 here it is; 9 it is open, or closed with success; 3 no such ticket.`,
		Example: `  handoff dead show 5f0c…
  handoff dead show 5f0c… -o json | jq .trail`,
		Args: takes("a TICKET"),
		RunE: a.onTicket(a.deadLetter),
	}
}

func (a *app) deadLetter(ctx context.Context, s *source, ticket string) error {
	changes, err := s.session.History(ctx, ticket)
	if err != nil {
		return err
	}
	state, trail := changes[len(changes)-1].Record.State, protocol.TrailOf(changes)
	if !is[*outcomeError](failed(state)) {
		return protocol.Errorf(protocol.CodeIllegal, "ticket", "%s is no dead letter: %s", ticket, cmp.Or(explain.Ending(state), phrase(explain.WaitingFor(state))))
	}
	body, err := s.session.Package(ctx, ticket)
	if err != nil {
		return err
	}
	if !a.text() {
		return a.value(struct {
			State   dossier.StateView     `json:"state"`
			Trail   []protocol.TrailEntry `json:"trail"`
			Package json.RawMessage       `json:"package"`
		}{dossier.StateOf(state), orEmpty(trail), body})
	}
	if err := a.stateText(state, nil); err != nil {
		return err
	}
	if err := a.tables(rowsOf("TIME (UTC)|TRAIL|WHO|WORDS", trail, func(e protocol.TrailEntry) []any {
		return []any{e.At, e.Event, trailWho(e), explain.Join(e.Code, e.Words, e.Assessment)}
	})); err != nil {
		return err
	}
	a.printf("\n")
	return a.document(body)
}

func trailWho(entry protocol.TrailEntry) string {
	if entry.To == "" {
		return entry.Agent
	}
	return entry.Agent + " -> " + entry.To
}

// redriveOptions are the flags of dead redrive.
type redriveOptions struct {
	ask.DeadQuery `flag:""`
	All           bool   `flag:"all" doc:"redrive every dead letter that the filters leave"`
	Yes           bool   `flag:"yes" doc:"with --all: do it"`
	To            string `flag:"to" doc:"send them to this {AGENT} instead"`
	Again         bool   `flag:"again" doc:"offer them to the agents that refused them, too"`
}

func newDeadRedrive(a *app) *cobra.Command {
	var o redriveOptions
	cmd := &cobra.Command{
		Use:   "redrive TICKET… | --all --yes",
		Short: "Submit them again, as new handoffs that name their origin",
		Long: `Redrive submits the package of a handoff that closed without success again. It gets a
ticket of its own, which is printed next to the old one, and names its origin; its worker
sees the trail. It leaves the inbox and the list of dead letters. A handoff that was
redriven already is refused.

A group is redriven whole, all of its members; a member of one alone. The agents that
refused it are left out, unless --again is given, or --to names them.

--all means every dead letter that the filters of "handoff dead list" leave, but for
the members of groups that are among them. It needs --yes; without that they are
listed, and nothing is done. Each is printed when it is done; one that cannot be
redriven does not keep the others from it.

Exit codes: 0 all were redriven; 9 one was refused, and the message names it.`,
		Example: `  handoff dead redrive 5f0c…
  handoff dead redrive 5f0c… --to expert
  handoff dead redrive --all --agent reviewer --since 2h --yes`,
		Args: o.args,
		PreRunE: func(*cobra.Command, []string) error {
			if o.To != "" {
				if err := protocol.CheckAgent("to", o.To); err != nil {
					return err
				}
			}
			return checkDead(o.DeadQuery)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			tickets, err := a.parseTickets(cmd.Context(), args)
			if err != nil {
				return err
			}
			return a.onLedger(cmd.Context(), func(ctx context.Context, s *source) error {
				if o.All {
					if tickets, err = a.toRedrive(ctx, s.session, &o); err != nil {
						return err
					}
				}
				return a.redrive(ctx, s.session, tickets, o.To, o.Again)
			})
		},
	}
	bind(cmd.Flags(), &o)
	a.fromFlag(cmd, "who redrives")
	return cmd
}

func (o *redriveOptions) args(cmd *cobra.Command, args []string) error {
	switch {
	case o.All && len(args) > 0:
		return usagef("redrive takes TICKETs or --all, not both")
	case !o.All && len(args) == 0:
		return usagef("redrive needs a TICKET, or --all; see %s --help", cmd.CommandPath())
	case !o.All && slices.ContainsFunc(deadFilterFlags, cmd.Flags().Changed):
		return usagef("--agent, --source, --outcome, --since and --limit go with --all")
	}
	return nil
}

// toRedrive are the dead letters that the filters leave. Without --yes it lists them instead.
func (a *app) toRedrive(ctx context.Context, s *api.Session, o *redriveOptions) ([]string, error) {
	states, err := s.DeadLetters(ctx, o.DeadQuery)
	if err != nil {
		return nil, err
	}
	states = withoutMembers(states)
	switch {
	case len(states) == 0:
		a.notef("handoff: no dead letters\n")
	case !o.Yes:
		return nil, errors.Join(a.deadLetters(states), usagef("these %d would be redriven; do it with --yes", len(states)))
	}
	tickets := make([]string, len(states))
	for i, s := range states {
		tickets[i] = s.Ticket
	}
	return tickets, nil
}

// withoutMembers leaves out the members of groups that are redriven whole: else
// each would be submitted twice.
func withoutMembers(states []protocol.State) []protocol.State {
	groups := map[string]bool{}
	for _, s := range states {
		groups[s.Ticket] = s.Aggregate != nil
	}
	return slices.DeleteFunc(states, func(s protocol.State) bool { return groups[s.Group] })
}

// redriveView is one redriven handoff for programs.
type redriveView struct {
	Origin string `json:"origin"`
	Ticket string `json:"ticket"`
	Agent  string `json:"agent"`
}

// redrivesAtOnce is how many are redriven side by side.
const redrivesAtOnce = 16

// redrive redrives all of them, and prints each as it is done.
func (a *app) redrive(ctx context.Context, s *api.Session, tickets []string, to string, again bool) error {
	var (
		mu      sync.Mutex // guards the fields below, and the output
		done    = make([]redriveView, len(tickets))
		ended   int
		refused []error
		tell    = a.progress()
	)
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(redrivesAtOnce)
	for i, ticket := range tickets {
		group.Go(func() error {
			state, err := s.Redrive(ctx, api.Redrive{Ticket: ticket, To: to, Again: again})
			err = advise(err, protocol.CodeNoAgent, "target.agent", explain.OpRedrive, "ticket", ticket, "again", "")
			mu.Lock()
			defer mu.Unlock()
			ended++
			tell("handoff: %d of %d\n", ended, len(tickets))
			switch {
			case is[*protocol.Error](err):
				refused = append(refused, err)
				if len(tickets) > 1 {
					a.notef("handoff: %s was not redriven: %s\n", ticket, err)
				}
				return nil
			case err != nil:
				return fmt.Errorf("redrive %s: %w", ticket, err)
			}
			done[i] = redriveView{ticket, state.Ticket, cmp.Or(state.Agent, state.TargetWords())}
			if a.format == formatJSON { // one document, at the end
				return nil
			}
			return a.line(done[i], "%s -> %s  %s\n", ticket, done[i].Ticket, done[i].Agent)
		})
	}
	err := group.Wait()
	done = slices.DeleteFunc(done, func(v redriveView) bool { return v.Ticket == "" })
	if a.format == formatJSON && (len(done) > 0 || len(refused) == 0 && err == nil) {
		err = errors.Join(list(a, done), err)
	}
	return errors.Join(err, notRedriven(refused, len(tickets)))
}

func notRedriven(refused []error, of int) error {
	switch {
	case len(refused) == 0:
		return nil
	case of == 1:
		return refused[0]
	}
	var first *protocol.Error
	errors.As(refused[0], &first)
	return protocol.Errorf(first.Code, first.Field, "%d of %d were not redriven; one of them: %s", len(refused), of, first.Message)
}
