package cli

import (
	"cmp"
	"context"

	"github.com/spf13/cobra"

	"github.com/agenthandoff/handoff/api"
	"github.com/agenthandoff/handoff/protocol"
)

// me is who this command line acts for.
func (a *app) me() string { return cmp.Or(a.env("HANDOFF_AGENT"), protocol.Human) }

func newAnswer(a *app) *cobra.Command {
	var (
		file, text, reason, from string
		set                      []string
		permit, deny, letOthers  bool
	)
	var answer protocol.Answer
	cmd := a.act(&cobra.Command{
		Use:   "answer TICKET",
		Short: "Give an agent, or an escalated handoff, what it asks for",
		Long: `Answer gives an agent that took a handoff only on a condition what it needs:
context (--set, --text, -f), a permission (--permit), or a no (--deny). "handoff
status TICKET" shows what is asked for, "handoff inbox" what waits for you.

A handoff that was escalated is answered the same way, whether it is claimed or
not: it goes back to the agent that escalated it, with the answer. To keep it,
"handoff take TICKET".

--deny is final: the handoff closes as rejected (permission_denied). Where the
package names autonomy_budget.deciders, it goes to them first, in their order.
--deny --let-others makes it a refusal by the agent that asked: another fit agent
gets the handoff, or the next authority.

-f reads an answer object: text, variables, permit, deny, deny_reason, let_others.

Exit codes: 0 answered; 9 the handoff asks nothing, or the answer is incomplete.`,
		Example: `  handoff answer 5f0c… --set branch=main --set retries=3
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
			from = cmp.Or(from, answer.By)
			answer.Text = cmp.Or(text, answer.Text)
			answer.DenyReason = cmp.Or(reason, answer.DenyReason)
			answer.Permit, answer.Deny = answer.Permit || permit, answer.Deny || deny
			answer.LetOthers = answer.LetOthers || letOthers
			return addVariables(&answer.Variables, "--set", set)
		},
	}, &from, func(ctx context.Context, s *api.Session, ticket string) (protocol.State, error) {
		state, err := s.Answer(ctx, ticket, answer)
		return state, adviseRaise(err, ticket)
	})
	fs := cmd.Flags()
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
