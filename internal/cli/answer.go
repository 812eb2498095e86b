package cli

import (
	"cmp"
	"context"

	"github.com/spf13/cobra"

	"github.com/agenthandoff/handoff/api"
	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/explain"
	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/protocol/lifecycle"
	"github.com/agenthandoff/handoff/worker"
)

// me is who this command line acts for. Inside of a program that works on a handoff it is the
// agent of its lease, whatever else is said.
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

// actorFlags are the flags that say for whom a command acts, by its name; "" is every other command.
var actorFlags = map[string]string{"": "from", "take": "agent", "claim": "agent", "conversation": "", "audit archive": ""}

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
		file, text, reason, from string
		set                      []string
		permit, deny, letOthers  bool
		question                 int
	)
	var answer protocol.Answer
	cmd := a.act(&cobra.Command{
		Use:   "answer TICKET",
		Short: "Give an agent, or an escalated handoff, what it asks for",
		Long: `Answer gives an agent that took a handoff only on a condition what it needs:
context (--set, --text, -f), a permission (--permit), or a no (--deny). "handoff
status TICKET" shows what is asked for, "handoff inbox" what waits for you.

Each question has a number, which both show. --question N answers that one alone: where
another one is asked by now, the answer is refused and changes nothing. Without it the
question is answered that stands when the command begins.

The source may answer, an authority above the agent that asks, and a person (human); never
the agent itself. What was escalated is for the authority that has it, one above that, and a
person. In a program of "handoff work" the command line is its agent, whatever --from says.

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
				body, err := a.read(file)
				if err != nil {
					return err
				}
				if answer, err = protocol.DecodeAnswer(body); err != nil {
					return err
				}
			}
			if err := a.checkActor("by", answer.By); err != nil {
				return err
			}
			from = cmp.Or(from, answer.By)
			answer.Question = cmp.Or(question, answer.Question)
			answer.Text = cmp.Or(text, answer.Text)
			answer.DenyReason = cmp.Or(reason, answer.DenyReason)
			answer.Permit, answer.Deny = answer.Permit || permit, answer.Deny || deny
			answer.LetOthers = answer.LetOthers || letOthers
			return addVariables(&answer.Variables, "--set", set)
		},
	}, &from, func(ctx context.Context, s *api.Session, ticket string) (protocol.State, error) {
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
	fs.IntVar(&question, "question", 0, "the number `N` of the question that it answers (default: the one that stands)")
	fs.StringVarP(&file, "file", "f", "", "read the answer from a JSON file, or stdin with -")
	fs.StringArrayVar(&set, "set", nil, "variable `NAME=VALUE`; the value is JSON if it parses, else text (repeatable)")
	fs.StringVar(&text, "text", "", "the answer in words")
	fs.BoolVar(&permit, "permit", false, "give the permission that is asked for")
	fs.BoolVar(&deny, "deny", false, "deny what is asked for, for good")
	fs.BoolVar(&letOthers, "let-others", false, "with --deny: another agent, or the next authority, may decide")
	fs.StringVar(&reason, "reason", "", "why it is denied")
	fromFlag(cmd, &from, "who answers")
	return cmd
}
