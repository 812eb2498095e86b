package cli

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/explain"
	"github.com/agenthandoff/handoff/protocol"
)

func newResult(a *app) *cobra.Command {
	var late, asReturn, withPackage bool
	var gateway, chain bool
	cmd := &cobra.Command{
		Use:   "result TICKET",
		Short: "Print the result of a handoff",
		Long:  resultHelp,
		Example: `  handoff result 5f0c… > report.md
  handoff result 5f0c… -o json | jq .artifacts
  handoff result 5f0c… --return | jq .context_updates
  handoff result 5f0c… --late
  handoff result 5f0c… --chain`,
		Args: takes("a TICKET"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if late && asReturn {
				return usagef("--late and --return are two things; choose one")
			}
			if chain && (late || asReturn) {
				return usagef("--chain prints a result; --late and --return are of one handoff")
			}
			if withPackage && !asReturn {
				return usagef("--package goes with --return; alone it is: handoff status %s --package", args[0])
			}
			through, err := a.throughGateway(cmd, gateway, "late", "package")
			if err != nil {
				return err
			}
			print := a.resultOf
			switch {
			case chain:
				print = a.chainResult
			case late:
				print = a.lateResults
			case asReturn:
				print = func(ctx context.Context, s *source, ticket string) error {
					return a.returnOf(ctx, s, ticket, withPackage)
				}
			}
			return a.onSource(cmd.Context(), through, args[0], print)
		},
	}
	gatewayFlag(cmd, &gateway)
	chainFlag(cmd, &chain, "print the result of the last handoff of the chain")
	cmd.Flags().BoolVar(&late, "late", false, "print the results of workers that were stopped, or had lost their lease")
	cmd.Flags().BoolVar(&asReturn, "return", false, "print the return that the source gets")
	cmd.Flags().BoolVar(&withPackage, "package", false, "with --return: print what had been handed off, too")
	return cmd
}

func (a *app) resultOf(ctx context.Context, s *source, ticket string) error {
	return a.printResult(ctx, s, s.Result, ticket)
}

// chainResult prints the result of the last handoff of a chain.
func (a *app) chainResult(ctx context.Context, s *source, ticket string) error {
	return a.printResult(ctx, s, s.ChainResult, ticket)
}

// resultReader is api.Source.Result, or ChainResult.
type resultReader func(ctx context.Context, ticket string) (protocol.Result, protocol.State, error)

// printResult prints the result that read returns of a ticket.
func (a *app) printResult(ctx context.Context, s *source, read resultReader, ticket string) error {
	result, state, err := read(ctx, ticket)
	switch {
	case errors.Is(err, broker.ErrNotFound) && state.Aggregate != nil && s.b != nil:
		return a.groupResults(ctx, s.b, state)
	case errors.Is(err, broker.ErrNotFound) && state.Ticket != "":
		return failed(state)
	}
	if err = printed(a, result, err, a.result); err == nil && result.Malformed != "" {
		err = failed(state)
	} else if err == nil && a.text() {
		a.warn(state)
		a.noteChain(state, "result")
	}
	return err
}

// result prints what a person wants of a result: its body, or else its summary.
func (a *app) result(r protocol.Result) error {
	if text, ok := jsonString(r.Body); ok {
		return a.body([]byte(text))
	}
	if len(r.Body) > 0 && string(r.Body) != "null" {
		return a.document(r.Body)
	}
	return a.body([]byte(r.Summary))
}

// heading tells one of several results from the next, as head and tail do.
func (a *app) heading(words ...string) { a.printf("==> %s <==\n", explain.Join(words...)) }

func (a *app) groupResults(ctx context.Context, b *broker.Broker, state protocol.State) error {
	members, err := b.Members(ctx, state)
	if err != nil {
		return err
	}
	if !a.text() {
		return errors.Join(list(a, members), failed(state))
	}
	for i, m := range members {
		end := string(m.Outcome)
		if !m.Closed {
			end = "still open"
		}
		a.heading(fmt.Sprint(i+1), m.Agent, end, m.Ticket)
		if m.Result == nil {
			continue
		}
		if err := a.result(*m.Result); err != nil {
			return err
		}
	}
	return failed(state)
}

func (a *app) lateResults(ctx context.Context, s *source, ticket string) error {
	all, err := s.b.LateResults(ctx, ticket)
	err = printedList(a, all, err, func(all []broker.LateResult) error {
		for _, late := range all {
			a.heading(fmt.Sprintf("attempt %d", late.Attempt), explain.By(late.Holder), explain.Instant(late.At), late.Result.Malformed)
			if err := a.result(late.Result); err != nil {
				return err
			}
		}
		return nil
	})
	if err == nil && len(all) == 0 {
		err = &noResultError{"no result of " + ticket + " came late"}
	}
	return err
}
