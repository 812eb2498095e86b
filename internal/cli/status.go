package cli

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/spf13/cobra"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/dossier"
	"github.com/agenthandoff/handoff/explain"
	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/protocol/lifecycle"
)

func newStatus(a *app) *cobra.Command {
	var withPackage bool
	var gateway bool
	cmd := &cobra.Command{
		Use:     "status TICKET",
		Aliases: []string{"info"},
		Short:   "Show where a handoff stands, and what it waits for",
		Long: `Status shows where a handoff stands now: phase, agent, attempt, and what it is
waiting for. It asks the ledger's leader: right after submit, from anywhere, it
finds the ticket. Of a group it lists the members; with -o json all of them.

` + gatewayHelp + ` It tells of handoffs that the agent in
$HANDOFF_AGENT has to do with, and of none else.

Exit codes: 0 the handoff exists, however it went; 3 no such ticket.`,
		Example: `  handoff status 5f0c…
  handoff status 5f0c… -o json | jq -r .phase
  handoff status 5f0c… --package`,
		Args: takes("a TICKET"),
		RunE: func(cmd *cobra.Command, args []string) error {
			through, err := a.throughGateway(cmd, gateway, "package")
			if err != nil {
				return err
			}
			return a.onSource(cmd.Context(), through, args[0], func(ctx context.Context, s *source, ticket string) error {
				if withPackage {
					body, err := s.b.Package(ctx, ticket)
					return printed(a, json.RawMessage(body), err, a.document)
				}
				state, err := s.Status(ctx, ticket)
				if err != nil {
					return err
				}
				if !a.text() {
					return a.valueWithMembers(ctx, s.b, state)
				}
				views, err := dossier.Members(ctx, a.reader(s.b), state)
				if err != nil {
					return err
				}
				if err := errors.Join(a.stateText(state), a.memberTable(views)); err != nil {
					return err
				}
				a.whyWaiting(ctx, s.b, state)
				return nil
			})
		},
	}
	gatewayFlag(cmd, &gateway)
	cmd.Flags().BoolVar(&withPackage, "package", false, "print what was handed off, as JSON, instead")
	return cmd
}

// onTicket is the RunE of a command that does something short with a TICKET and an engine.
func (a *app) onTicket(do func(context.Context, *broker.Broker, string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		ticket, err := protocol.ParseTicket(args[0])
		if err != nil {
			return err
		}
		return a.onEngine(cmd.Context(), func(ctx context.Context, b *broker.Broker) error { return do(ctx, b, ticket) })
	}
}

// state prints a state in the format asked for, or returns the error of what it comes from.
func (a *app) state(s protocol.State, err error) error {
	return printed(a, dossier.StateOf(s), err, func(dossier.StateView) error { return a.stateText(s) })
}

func (a *app) stateText(s protocol.State) error {
	a.printf("%s  %s\n", s.Ticket, a.phase(s))
	waiting := phrase(explain.WaitingFor(s))
	if s.Closed {
		waiting = ""
	}
	return a.fields(
		"waits for", waiting,
		"ended", explain.Ended(s),
		"from", s.Source,
		"to", explain.To(s),
		"type", explain.Type(s),
		"group", explain.Group(s),
		"succeeds", explain.Aggregation(s),
		"member of", explain.Member(s),
		"attempt", explain.Attempt(s),
		"progress", explain.Progress(s),
		"estimate", explain.Estimate(s),
		"last error", explain.LastError(s),
		"asked to end", explain.EndRequest(s),
		"escalated", explain.Escalation(s),
		"handed off", explain.HandedOff(s),
		"return", phrase(explain.Return(s)),
		"late results", phrase(explain.LateResults(s)),
		"inbox", phrase(explain.Inbox(s)),
		"priority", string(s.Priority),
		"parent", s.Parent,
		"return of", s.ReturnOf,
		"redrive of", s.Origin,
		"redriven as", s.RedrivenAs,
		"workflow", s.WorkflowID,
		"conversation", s.ConversationID,
		"submitted", explain.Instant(s.SubmittedAt),
		"deadline", openOnly(s, explain.Instant(s.Deadline)),
		"overdue", explain.Overdue(s),
		"kept in", explain.Kept(s, ""),
		"stuck", s.StuckReason,
	)
}

// whyWaiting says for people what the ledger does not know: why no worker takes a
// handoff.
func (a *app) whyWaiting(ctx context.Context, b *broker.Broker, s protocol.State) {
	if b == nil || s.Closed || s.Phase != protocol.Pending || s.Held() || s.Agent == protocol.Human || s.Agent == "" {
		return
	}
	directory, err := b.Directory(ctx)
	if err != nil { // the status stands without it
		return
	}
	profile, _ := directory.Agent(s.Agent)
	why, _ := directory.Unavailable(profile)
	polled, polls := directory.Polled(s.Agent)
	live, _, _ := directory.Load(s.Agent)
	switch {
	case why == lifecycle.UnfitPaused:
		a.notef("handoff: %s is paused: handoff agents resume %s\n", s.Agent, s.Agent)
	case live == 0 && polls:
		a.notef("handoff: %s %s\n", s.Agent, explain.Polls(polled, time.Now()))
	case why == lifecycle.UnfitAbsent:
		a.notef("handoff: no worker serves %s: handoff work --agent %s -- CMD\n", s.Agent, s.Agent)
	}
}

func openOnly(s protocol.State, text string) string {
	if s.Closed {
		return ""
	}
	return text
}
