package main

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/spf13/cobra"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/protocol"
)

// stateView is a State for programs, in which outcome is always there to be
// tested, empty while the handoff is open.
type stateView struct {
	protocol.State
	Outcome protocol.Outcome `json:"outcome"`
	Members []memberView     `json:"members,omitempty"` // of a group, where they were asked for
}

func view(s protocol.State) stateView { return stateView{State: s, Outcome: s.Outcome} }

func newStatus(a *app) *cobra.Command {
	var withPackage bool
	var via string
	cmd := &cobra.Command{
		Use:     "status TICKET",
		Aliases: []string{"info"},
		Short:   "Show where a handoff stands, and what it waits for",
		Long: `Status shows where a handoff stands now: phase, agent, attempt, and what it is
waiting for. It asks the ledger's leader: right after submit, from anywhere, it
finds the ticket. Of a group it lists the members; with -o json all of them.

` + viaHelp + ` It tells of handoffs that the agent in
$HANDOFF_AGENT has to do with, and of none else.

Exit codes: 0 the handoff exists, however it went; 3 no such ticket.`,
		Example: `  handoff status 5f0c…
  handoff status 5f0c… -o json | jq -r .phase
  handoff status 5f0c… --package`,
		Args: takes("a TICKET"),
		RunE: func(cmd *cobra.Command, args []string) error {
			outside, err := a.throughDoor(via)
			if err != nil {
				return err
			}
			if outside {
				if err := notThroughDoor(cmd, "package"); err != nil {
					return err
				}
				return a.statusThroughDoor(cmd.Context(), args[0])
			}
			return a.onTicket(cmd.Context(), args[0], func(ctx context.Context, b *broker.Broker, ticket string) error {
				if withPackage {
					body, err := b.Package(ctx, ticket)
					if err != nil {
						return err
					}
					if !a.text() {
						return a.value(json.RawMessage(body))
					}
					return a.document(body)
				}
				state, err := b.Status(ctx, ticket)
				if err != nil {
					return err
				}
				if !a.text() {
					return a.valueWithMembers(ctx, b, state)
				}
				views, err := members(ctx, b, state)
				if err != nil {
					return err
				}
				if err := errors.Join(a.state(state), a.memberTable(views)); err != nil {
					return err
				}
				a.whyWaiting(ctx, b, state)
				return nil
			})
		},
	}
	viaFlag(cmd, &via)
	cmd.Flags().BoolVar(&withPackage, "package", false, "print what was handed over, as JSON, instead")
	return cmd
}

// onTicket does something short with a ticket and an engine.
func (a *app) onTicket(ctx context.Context, text string, do func(context.Context, *broker.Broker, string) error) error {
	ticket, err := protocol.ParseTicket(text)
	if err != nil {
		return err
	}
	return a.onEngine(ctx, func(ctx context.Context, b *broker.Broker) error { return do(ctx, b, ticket) })
}

// state prints a state in the format asked for.
func (a *app) state(s protocol.State) error {
	if !a.text() {
		return a.value(view(s))
	}
	a.printf("%s  %s\n", s.Ticket, a.phase(s))
	waiting := waitingFor(s)
	if s.Closed {
		waiting = ""
	}
	return a.fields(
		"waits for", waiting,
		"ended", endedText(s),
		"from", s.Source,
		"to", toText(s),
		"type", typeText(s),
		"group", groupText(s),
		"succeeds", aggregationText(s),
		"member of", memberText(s),
		"attempt", attemptText(s),
		"progress", progressText(s),
		"estimate", estimateText(s),
		"last error", lastError(s),
		"asked to end", endRequestText(s),
		"escalated", escalationText(s),
		"handed off", handedOffText(s),
		"return", returnText(s),
		"late results", lateText(s),
		"inbox", inboxText(s),
		"priority", string(s.Priority),
		"parent", s.Parent,
		"return of", s.ReturnOf,
		"redrive of", s.Origin,
		"redriven as", s.RedrivenAs,
		"workflow", s.WorkflowID,
		"conversation", s.ConversationID,
		"submitted", when(s.SubmittedAt),
		"deadline", openOnly(s, when(s.Deadline)),
		"overdue", overdueText(s),
		"kept in", keptText(s, ""),
		"stuck", s.StuckReason,
	)
}

// whyWaiting says for people what the ledger does not know: why nobody takes a
// handoff that anybody might wonder about.
func (a *app) whyWaiting(ctx context.Context, b *broker.Broker, s protocol.State) {
	if s.Closed || s.Phase != protocol.Pending || s.Held() || s.Agent == protocol.Human || s.Agent == "" {
		return
	}
	directory, err := b.Directory(ctx)
	if err != nil { // the status stands without it
		return
	}
	profile, known := directory.Agent(s.Agent)
	polled, polls := directory.Polled(s.Agent)
	live, _, _ := directory.Load(s.Agent)
	switch {
	case known && profile.Paused:
		a.notef("handoff: %s is paused: handoff agents resume %s\n", s.Agent, s.Agent)
	case live == 0 && polls:
		a.notef("handoff: %s %s\n", s.Agent, pollsWords(polled, time.Now()))
	case live == 0:
		a.notef("handoff: no worker serves %s: handoff work --agent %s -- CMD\n", s.Agent, s.Agent)
	}
}
