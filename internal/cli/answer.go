package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/agenthandoff/handoff/api"
	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/dossier"
	"github.com/agenthandoff/handoff/internal/explain"
	"github.com/agenthandoff/handoff/internal/index/ask"
	"github.com/agenthandoff/handoff/internal/lifecycle"
	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/worker"
)

// me returns the agent or person that this command line acts for. Inside of a program that works on a
// handoff it is the agent of the lease; no flag changes that.
func (a *app) me() string {
	return cmp.Or(a.programOf(), a.env("HANDOFF_AGENT"), protocol.Human)
}

// programOf is the agent whose program this command line runs in; empty outside of the work.
func (a *app) programOf() string {
	held, err := broker.ParseLease(a.env(worker.EnvLease))
	if err != nil {
		return ""
	}
	return held.Agent
}

// checkActor refuses a name in a field that is not the agent whose program this is.
func (a *app) checkActor(field, name string) error {
	if agent := a.programOf(); agent != "" && name != "" && name != agent {
		return protocol.Errorf(protocol.CodeForbidden, field, "is %s, and this program acts for %s alone, whose lease is in %s", name, agent, worker.EnvLease)
	}
	return nil
}

// actorFlags are the flags that name for whom a command acts, by its name; "" is every other command.
var actorFlags = map[string]string{"": "from", "take": "agent", "claim": "agent", "conversation": ""}

// checkActorFlag is checkActor for the flag of a command.
func (a *app) checkActorFlag(cmd *cobra.Command) error {
	name, known := actorFlags[a.command]
	if !known {
		name = actorFlags[""]
	}
	flag := cmd.Flags().Lookup(name)
	if flag == nil || !flag.Changed {
		return nil
	}
	return a.checkActor(name, flag.Value.String())
}

func newAnswer(a *app) *cobra.Command {
	var (
		file          string
		set           []string
		given, answer protocol.Answer
		flags         *binding
	)
	cmd := a.act(&cobra.Command{
		Use:   "answer TICKET",
		Short: "Answer the question of an agent, or of an escalated handoff",
		Long: `Answer meets the conditions of an agent that took a handoff conditionally: with
context (--set, --text, -f), a permission (--permit), or a no (--deny). "handoff
status TICKET" shows the question, "handoff inbox" all that wait for you.

Each question has a number, which both show. --question N answers that one alone: where
another one is asked by now, the answer is refused and changes nothing. Without it the
question is answered that is open when the command begins.

The source may answer, an authority above the agent that asks, and a person (human); never
the agent itself. An escalated handoff is for the authority that has it, one above that, and
a person. In a program of "handoff work" the command line is its agent, whatever --from is.

A handoff that was escalated is answered the same way, whether it is claimed or
not: it goes back to the agent that escalated it, with the answer. To keep it,
"handoff take TICKET".

--deny is final: the handoff closes as rejected (permission_denied). Where the
package names autonomy_budget.deciders, it goes to them first, in their order.
--deny --let-others makes it a refusal by the agent that asked: another fit agent
gets the handoff, or the next authority.

-f reads an answer object: question, text, variables, permit, deny, deny_reason, let_others.

Exit codes: 0 answered; 9 the handoff asks nothing, or something else by now, the answer is
incomplete, or you may not give it.`,
		Example: `  handoff answer 5f0c… --set branch=main --set retries=3
  handoff answer 5f0c… --question 2 --text "the one from Monday"
  handoff answer 5f0c… --permit --text "go ahead, but not on Friday"
  handoff answer 5f0c… --deny --reason "that table stays"
  handoff answer 5f0c… --deny --let-others --reason "ask the owner"`,
		PreRunE: func(*cobra.Command, []string) error {
			if file != "" {
				var err error
				if answer, err = readAs(a, file, protocol.DecodeAnswer); err != nil {
					return err
				}
			}
			if err := a.checkActor("by", answer.By); err != nil {
				return err
			}
			a.from = cmp.Or(a.from, answer.By)
			flags.over(&answer)
			return addVariables(&answer.Variables, "--set", set)
		},
	}, func(ctx context.Context, s *api.Session, ticket string) (protocol.State, error) {
		if answer.Question == 0 {
			asking, err := s.Status(ctx, ticket)
			if err != nil {
				return asking, err
			}
			answer.Question = lifecycle.QuestionOf(asking).N
			if answer.Question > 1 {
				a.notef("handoff: this answers %s\n", explain.Asks(asking))
			}
		}
		state, err := s.Answer(ctx, ticket, answer)
		return state, adviseRaise(err, ticket)
	})
	fs := cmd.Flags()
	flags = bind(fs, &given)
	fs.StringVarP(&file, "file", "f", "", "read the answer from a JSON file, or stdin with -")
	fs.StringArrayVar(&set, "set", nil, "variable `NAME=VALUE`; the value is JSON if it parses, else text (repeatable)")
	a.fromFlag(cmd, "who answers")
	return cmd
}

// onReader reads about many handoffs over one connection. agents are those by which they
// are selected.
func (a *app) onReader(ctx context.Context, agents []string, do func(context.Context, *api.Session) error) error {
	b, done, err := a.connect(ctx)
	if err != nil {
		return err
	}
	defer done()
	a.noteUnknown(ctx, b, agents)
	return do(ctx, a.session(b))
}

// answersOf asks over an engine, each question within --timeout, and reports the silence meanwhile.
// Where no index answers, the error names the next step.
func (a *app) answersOf(b *broker.Broker) ask.Answers {
	return ask.Client{Asker: asker{engine: b, timeout: a.timeout(), silent: func() (stop func()) { return a.tellSilence("the index") }}}
}

type asker struct {
	engine  ask.Asker
	timeout time.Duration
	silent  func() (stop func()) // nil: silence is not reported
}

// Ask implements ask.Asker.
func (a asker) Ask(ctx context.Context, verb string, question []byte) ([]byte, error) {
	if a.silent != nil {
		defer a.silent()()
	}
	limited, cancel := context.WithTimeout(ctx, a.timeout)
	defer cancel()
	answer, err := a.engine.Ask(limited, verb, question)
	var refused *protocol.Error
	switch {
	case errors.As(err, &refused): // the flags have the names of the fields
		refused.Field = strings.TrimPrefix(refused.Field, "filter.")
		return nil, refused
	case errors.Is(err, broker.ErrNoAnswer):
		return nil, fmt.Errorf("%w; start an index: handoff index (handoff dev has one)", broker.ErrNoAnswer)
	case err != nil && limited.Err() != nil && ctx.Err() == nil:
		return nil, fmt.Errorf("%w: the index has given no answer for %s in %v; --timeout waits longer", broker.ErrNoAnswer, verb, a.timeout)
	}
	return answer, err
}

// behind is an answer that lacks something.
func behind(s ask.Position) error {
	how := "does not know at the moment if it has everything"
	if s.Behind > 0 {
		how = fmt.Sprintf("has read %d of %d entries of the ledger", s.Seq, s.Seq+s.Behind)
	}
	return &behindError{"the index " + how + "; ask again when it has caught up, or read its present state with --stale"}
}

// freshness is how much of the ledger an answer must have.
type freshness struct {
	Stale bool `flag:"stale" doc:"answer even if the index has not read all of the ledger"`
}

// ask returns a question of this freshness. With --stale the answer does not wait for more.
func (f freshness) ask() ask.Question {
	if f.Stale {
		return ask.Question{WaitMS: -1}
	}
	return ask.Question{}
}

// check refuses an answer that is not fresh enough.
func (f freshness) check(s ask.Position) error {
	if s.Complete || f.Stale {
		return nil
	}
	return behind(s)
}

// standView is the position of an answer in the ledger, for programs that read lines.
type standView struct {
	ask.Position
	Cursor string `json:"cursor,omitempty"`
}

// stand reports an answer's position in the ledger on stderr: to people who asked for --stale, and
// to programs that read lines. A JSON document contains it.
func (a *app) stand(f freshness, s ask.Position, cursor string) error {
	switch {
	case a.format == formatJSONL:
		line, err := encode(standView{s, cursor}, false)
		if err != nil {
			return err
		}
		_, err = a.err.Write(escapeJSON(line))
		return err
	case a.format == formatJSON || !f.Stale:
	case s.Complete:
		a.notef("handoff: as of entry %d of the ledger: nothing is missing\n", s.Seq)
	case s.Behind > 0:
		a.notef("handoff: as of entry %d of the ledger: %d more are not in it yet\n", s.Seq, s.Behind)
	default:
		a.notef("handoff: as of entry %d of the ledger: whether more are there is not known\n", s.Seq)
	}
	return nil
}

func newApprove(a *app) *cobra.Command {
	var verdict api.Verdict
	cmd := a.verdictCommand(&cobra.Command{
		Use:   "approve TICKET…",
		Short: "Let an agent have a handoff that waits for an approval",
		Long: `Approve lets the agent of a handoff have it: it is offered to that agent. "handoff
inbox" lists the handoffs that wait for you, and "handoff why TICKET" explains who is
asked, and why.

An approval holds for this handoff and this agent. Should the agent refuse it, the next
one is asked for anew; a retry is not. --any approves every agent. --agent names the one
that you were asked about: where it is another one by now, nothing is approved.

The approver may approve it, an agent above the approver, and a person; never its source
or the agent that gets it, unless that is a person.

Exit codes: 0 approved; 9 it does not wait for an approval, or not for yours.`,
		Example: `  handoff approve 5f0c…
  handoff approve 5f0c… --agent deployer --comment "after the freeze"
  handoff inbox -o jsonl | jq -r 'select(.why == "approval") | .ticket' | xargs handoff approve`,
	}, &verdict, "approved", (*api.Session).Approve)
	cmd.Flags().BoolVar(&verdict.Any, "any", false, "approve every agent that gets it")
	cmd.Flags().StringVar(&verdict.Reason, "comment", "", "a remark for the history")
	return cmd
}

func newDeny(a *app) *cobra.Command {
	var verdict api.Verdict
	cmd := a.verdictCommand(&cobra.Command{
		Use:   "deny TICKET…",
		Short: "End a handoff that waits for an approval",
		Long: `Deny keeps a handoff from the agent that it is for: the handoff closes
as rejected (approval_denied), and its source gets that as its return, if it expects one.
To have another agent do it, hand it off again to that one.

The approver may deny it, an agent above the approver, and a person; never its source or
the agent that would get it, unless that is a person.

To deny the question of an agent during its work: "handoff answer TICKET --deny".

Exit codes: 0 denied; 9 it does not wait for an approval, or not for yours.`,
		Example: `  handoff deny 5f0c… --reason "not before the release"`,
	}, &verdict, "denied", (*api.Session).Deny)
	cmd.Flags().StringVar(&verdict.Reason, "reason", "", "why; required")
	return cmd
}

// verdictCommand gives a verdict on each ticket.
func (a *app) verdictCommand(cmd *cobra.Command, verdict *api.Verdict, done string,
	decide func(*api.Session, context.Context, api.Verdict) (protocol.State, error)) *cobra.Command {
	cmd.PreRunE = func(*cobra.Command, []string) error { return checkWords("reason", verdict.Reason) }
	a.actOnEach(cmd, func(ctx context.Context, s *api.Session, ticket string) error {
		verdict.Ticket = ticket
		state, err := decide(s, ctx, *verdict)
		if err != nil {
			return adviseRaise(err, ticket)
		}
		now := "it waits for " + explain.WaitingFor(state).Words
		if state.Closed {
			now = "it is closed"
		}
		return a.line(dossier.StateOf(state), "%s  %s; %s\n", state.Ticket, done, now)
	})
	cmd.Flags().StringVar(&verdict.Agent, "agent", "", "the `AGENT` that you were asked about (default: the one that is asked about now)")
	a.fromFlag(cmd, "who decides")
	return cmd
}
