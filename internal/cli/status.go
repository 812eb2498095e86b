package cli

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/dossier"
	"github.com/agenthandoff/handoff/internal/explain"
	"github.com/agenthandoff/handoff/internal/lifecycle"
	"github.com/agenthandoff/handoff/protocol"
)

func newStatus(a *app) *cobra.Command {
	var withPackage, chain bool
	cmd := &cobra.Command{
		Use:     "status TICKET",
		Aliases: []string{"info"},
		Short:   "Show the state of a handoff, and why it waits",
		Long: `Status shows the present state of a handoff: phase, agent, attempt, and the reason why
it waits. It asks the ledger's leader: right after submit, from anywhere, it finds the
ticket. Of a group it lists the members; with -o json all of them. Of one that continues
by goto it shows the next agent, and the last handoff of the chain; with -o json
"handed_on" has "next", "last" and "ended".

` + gatewayHelp + ` It shows only handoffs that the agent in $HANDOFF_AGENT takes part in.

Exit codes: 0 the handoff exists, however it went; 3 no such ticket.`,
		Example: `  handoff status 5f0c…
  handoff status 5f0c… -o json | jq -r .phase
  handoff status 5f0c… --chain -o json | jq .closed    # is all of it done?
  handoff status 5f0c… --package`,
		Args: takes("a TICKET"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := a.throughGateway(cmd, "package"); err != nil {
				return err
			}
			return a.onSource(cmd.Context(), args[0], func(ctx context.Context, s *source, ticket string) error {
				if withPackage { // of the handoff itself
					body, err := s.session.Package(ctx, ticket)
					return printed(a, json.RawMessage(body), err, a.document)
				}
				state, err := s.status(ctx, ticket, chain)
				if err != nil {
					return err
				}
				if !a.text() {
					return a.valueWithMembers(ctx, s, state)
				}
				next, err := dossier.ChainOf(ctx, s, state)
				if err != nil {
					return err
				}
				views, err := dossier.Members(ctx, s.session, state)
				if err != nil {
					return err
				}
				if err := errors.Join(a.stateText(state, next), a.memberTable(views)); err != nil {
					return err
				}
				a.whyWaiting(ctx, s.b, state)
				return nil
			})
		},
	}
	a.gatewayFlag(cmd)
	chainFlag(cmd, &chain, "show the handoff that the chain has come to")
	cmd.Flags().BoolVar(&withPackage, "package", false, "print the package, as JSON, instead")
	return cmd
}

// state prints a state in the format asked for, or returns the error of the state.
func (a *app) state(s protocol.State, err error) error {
	return printed(a, dossier.StateOf(s), err, func(dossier.StateView) error { return a.stateText(s, nil) })
}

// stateText prints a state, and the state of its chain where that was read.
func (a *app) stateText(s protocol.State, chain *dossier.Chain) error {
	a.headline(s)
	waiting, deadline := phrase(explain.WaitingFor(s)), explain.Instant(s.Deadline)
	if s.Closed {
		waiting, deadline = "", ""
	}
	a.fields(
		"waits for", waiting,
		"asks", explain.Asks(s),
		"ended", explain.Ended(s),
		"from", s.From(),
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
		"handed on", handedOn(s, chain),
		"return", phrase(explain.OpenReturn(s, lastOf(chain))),
		"refused", explain.Barred(s),
		"bids", explain.Bidding(s),
		"calls", openBids(s),
		"call of", s.CallOf,
		"bid", explain.BidAnswer(s.BidAnswer, ""),
		"limits", explain.Limits(s),
		"lineage", explain.Depth(s),
		"warning", phrase(explain.Warning(s)),
		"late results", phrase(explain.LateResults(s)),
		"inbox", phrase(explain.Inbox(s)),
		"priority", string(s.Priority),
		"parent", s.Parent,
		"return of", s.ReturnOf,
		"redrive of", s.Origin,
		"redriven as", s.RedrivenAs,
		"workflow", s.WorkflowID,
		"conversation", s.ConversationID,
		"variant", s.Variant,
		"complexity", explain.Complexity(s),
		"submitted", explain.Instant(s.SubmittedAt),
		"deadline", deadline,
		"overdue", explain.Overdue(s),
		"kept in", explain.Kept(s, ""),
		"stuck", s.StuckReason,
	)
	return nil
}

// openBids are the calls for bids of a handoff that waits for them.
func openBids(s protocol.State) string {
	if !lifecycle.AwaitsBids(s) {
		return ""
	}
	return strings.Join(explain.Calls(s), ", ")
}

func handedOn(s protocol.State, chain *dossier.Chain) string {
	if chain == nil {
		chain = &dossier.Chain{}
	}
	return explain.HandedOn(s, chain.NextState, chain.LastState)
}

// warn names the output that is not in the result.
func (a *app) warn(s protocol.State) {
	if words := phrase(explain.Warning(s)); words != "" {
		a.notef("handoff: warning: %s: %s\n", s.Ticket, words)
	}
}

// whyWaiting prints, for people, a fact that the ledger does not have: why no worker takes a
// handoff.
func (a *app) whyWaiting(ctx context.Context, b *broker.Broker, s protocol.State) {
	if b == nil || s.Closed || s.Phase != protocol.Pending || s.Held() || s.Agent == protocol.Human || s.Agent == "" {
		return
	}
	directory, err := b.Directory(ctx)
	if err != nil { // the status is valid without it
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
