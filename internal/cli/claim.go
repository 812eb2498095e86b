package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/agenthandoff/handoff/api"
	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/dossier"
	"github.com/agenthandoff/handoff/internal/explain"
	"github.com/agenthandoff/handoff/internal/lifecycle"
	"github.com/agenthandoff/handoff/protocol"
)

// claimLease is the default lease of a claim from the command line: an
// agent that polls thinks between two commands, and so beats more seldom than a worker.
const claimLease = 10 * time.Minute

func newClaim(a *app) *cobra.Command {
	request := api.Claim{Lease: claimLease}
	cmd := &cobra.Command{
		Use:   "claim --agent AGENT",
		Short: "Take the next handoff from an agent's queue",
		Long: `Claim takes the most urgent handoff offered to an agent (of every 8, one is the turn of
the less urgent, so that nothing waits for ever) and prints a LEASE and the package.
The LEASE is the proof that it is yours: ack, heartbeat, progress, complete, fail,
release, rollback and escalate need it. The agent that has it is the holder, so keep it.

An agent that polls goes through these steps:

  claim --agent A          the offer is yours to judge
  ack LEASE accepted       the work is yours to do (claim --accept does both)
  heartbeat LEASE          well before --lease has passed, again and again
  complete LEASE -f FILE   or fail, release, rollback, escalate

and hands off work with submit --under LEASE, and await LEASE.

Its agent counts as present while the LEASE lives, and for its patience after each
claim, also one that finds nothing (poll_patience_ms in its profile, 5 min): offers
meanwhile wait for its next claim.

An offer that is not acknowledged in time goes back to the queue, whatever heartbeats
there are: within 30 s, or the ack_timeout_ms of the handoff's policy. An agent that thinks
before it accepts asks for more with --ack-within. Nothing is charged, and the
LEASE has expired.

Without a heartbeat for as long as --lease, the handoff goes to another worker and the
LEASE has expired (exit code 7). Each of the commands above counts as a heartbeat.

The text form begins with lines of a word and a value (LEASE, TICKET, AGENT,
ATTEMPT, EXPIRES, ACKNOWLEDGE (by when, unless it is accepted), LIMIT (when the first
clock takes it away, and which one: work, return, deadline, …), a SUPPLEMENT for each answer given so far, a TRAIL for each
refusal, question, escalation and failure on the way, a RETURN for each end that was
waited for with "handoff await"), then an empty line, then the package as JSON. With
-o json it is one object: lease, ticket, agent, attempt, expires, acknowledge_by, limit,
limit_clock, supplements, trail,
returns, traceparent (the span that the work is; see "handoff heartbeat"), package.

A message in the queue that is no offer is removed, and a handoff whose package is gone
or damaged is refused as unreadable; stderr has a line about each, and the next offer is
claimed.

An agent has at most max_concurrency handoffs, its claims and those of its workers
together: beyond that nothing is claimed, and the reason is at_capacity.

--gateway (or HANDOFF_GATEWAY=1) goes through a gateway, with --accept. Commands that
are given its LEASE go through a gateway, too.

Exit codes: 0 claimed; 8 nothing to claim (the message has at_capacity if that is why);
9 no such agent.`,
		Example: `  handoff claim --agent reviewer --wait 30s > claimed
  LEASE=$(sed -n 's/^LEASE //p' claimed)
  handoff claim --agent reviewer --accept -o json | jq -r .package.task.description`,
		Args: takes(),
		RunE: func(cmd *cobra.Command, _ []string) error { return a.claim(cmd, request) },
	}
	bind(cmd.Flags(), &request)
	a.gatewayFlag(cmd)
	return cmd
}

// claim takes an offer and prints it.
func (a *app) claim(cmd *cobra.Command, request api.Claim) error {
	ctx := cmd.Context()
	if err := a.throughGateway(cmd, "ack-within"); err != nil {
		return err
	}
	request.Agent, request.Host = cmp.Or(request.Agent, a.programOf(), a.env("HANDOFF_AGENT")), hostname()
	if err := protocol.CheckAgent("agent", request.Agent); err != nil {
		return usagef("claim needs --agent AGENT: %v", err)
	}
	if request.Accept && request.AckWithin != 0 {
		return usagef("--ack-within is for a claim that is acknowledged later, and --accept does it at once")
	}
	if err := request.Validate(); err != nil {
		return err
	}
	request.Skipped = func(ticket string, refused bool, err error) {
		a.notef("handoff: %s %s: %v\n", map[bool]string{true: "refused", false: "skipped"}[refused], ticket, err)
	}
	if a.through && !request.Accept {
		return usagef("claim --gateway needs --accept: an offer that is not accepted stays with one gateway")
	}
	s, done, err := a.sourceWith(ctx, a.through, request.Agent, broker.Config{Log: a.log(false)}) // logs the entries removed from the queue
	if err != nil {
		return err
	}
	defer done()
	held, err := s.Claim(ctx, request)
	err = advise(err, protocol.CodeUnknownAgent, "agent", explain.OpRegister, "agent", request.Agent)
	return a.held(held, advise(err, protocol.CodeNothingToClaim, "agent", explain.OpResume, "agent", request.Agent))
}

// hostname names this machine for people, if it has a name.
func hostname() string {
	host, _ := os.Hostname()
	return host
}

// claimView is a claim for programs.
type claimView struct {
	Lease       string            `json:"lease"`
	Ticket      string            `json:"ticket"`
	Agent       string            `json:"agent"`
	Attempt     int               `json:"attempt"` // of the work; 0 until it is accepted
	Accepted    bool              `json:"accepted"`
	Expires     time.Time         `json:"expires"`                 // without a heartbeat
	AckBy       time.Time         `json:"acknowledge_by,omitzero"` // unless it is accepted
	Limit       time.Time         `json:"limit,omitzero"`          // when the first clock takes it away
	LimitClock  protocol.Clock    `json:"limit_clock,omitempty"`
	Supplements []protocol.Answer `json:"supplements"` // answers to conditions, oldest first

	Trail   []protocol.TrailEntry `json:"trail"`   // its earlier life, oldest first
	Returns []protocol.Return     `json:"returns"` // the ends of the handoffs that it waited for
	// Children are those that it has handed off, in earlier attempts too.
	Children []broker.HandedOff `json:"children,omitempty"`
	Trace    string             `json:"traceparent"` // of the work, or, until it is accepted, of the handoff
	Package  json.RawMessage    `json:"package"`     // as it was submitted
}

// held prints a claim, or returns the error of the claim.
func (a *app) held(h api.Held, err error) error {
	if err != nil {
		return err
	}
	if h.ReturnsErr != nil { // it is claimed all the same, and they can be read by their tickets
		a.notef("handoff: the answer could not be read: %v\n", h.ReturnsErr)
	}
	v := claimView{
		Lease: h.Lease, Ticket: h.State.Ticket, Agent: h.Agent, Attempt: h.State.Attempt, Accepted: h.State.Fence != 0,
		Expires: h.Expires, Supplements: orEmpty(h.Answers), Trail: orEmpty(h.Trail), Returns: orEmpty(h.Returns), Children: h.Children, Package: h.Package,
		Trace: a.traces.WorkContext(*h.State).Parent, AckBy: lifecycle.ClaimDue(*h.State).UTC().Truncate(time.Second),
	}
	limit, clock := lifecycle.Limit(*h.State)
	v.Limit, v.LimitClock = limit.UTC().Truncate(time.Second), clock
	if !a.text() {
		return a.value(v)
	}
	a.printf("LEASE %s\nTICKET %s\nAGENT %s\nATTEMPT %d\nEXPIRES %s\n", v.Lease, v.Ticket, v.Agent, v.Attempt, v.Expires.Format(time.RFC3339))
	if !v.AckBy.IsZero() {
		a.printf("ACKNOWLEDGE %s\n", v.AckBy.Format(time.RFC3339))
	}
	a.printf("LIMIT %s %s\n", v.Limit.Format(time.RFC3339), v.LimitClock)
	if err := errors.Join(headLines(a, "SUPPLEMENT", v.Supplements), headLines(a, "TRAIL", v.Trail), headLines(a, "RETURN", v.Returns), headLines(a, "CHILD", v.Children)); err != nil {
		return err
	}
	a.printf("\n")
	return a.document(v.Package)
}

// headLines writes a word and a value as JSON, a line each.
func headLines[T any](a *app, word string, values []T) error {
	for _, value := range values {
		line, err := encode(value, false)
		if err != nil {
			return err
		}
		a.printf("%s %s\n", word, string(line[:len(line)-1]))
	}
	return nil
}

// leaseCommand is a command that reports on the handoff of a LEASE, and prints its state
// after that.
func (a *app) leaseCommand(use, short, long, example string, args []string, report func(ctx context.Context, s api.AgentOperations, lease string) (protocol.State, error)) *cobra.Command {
	return &cobra.Command{
		Use: use, Short: short, Example: example,
		Long: long + `

A LEASE is printed by "handoff claim". Exit code 7: another worker has the handoff by
now, or the LEASE was never issued; nothing was changed.`,
		Args: takes(args...),
		RunE: a.onLease(report),
	}
}

// onLease is the RunE of a command that reports on the handoff of a LEASE.
func (a *app) onLease(report func(ctx context.Context, s api.AgentOperations, lease string) (protocol.State, error)) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		return a.onHolder(cmd.Context(), args[0], func(ctx context.Context, s *source) error {
			state, err := report(ctx, s, args[0])
			if err != nil {
				return leaseRefusal(args[0], err)
			}
			return a.line(dossier.StateOf(state), "%s  %s\n", state.Ticket, a.phase(state))
		})
	}
}

// onHolder does something short with a LEASE, through a gateway if one was claimed through.
func (a *app) onHolder(ctx context.Context, lease string, do func(context.Context, *source) error) error {
	token, err := broker.ParseLease(lease)
	return a.on(ctx, err == nil && token.Remote, token.Agent, do)
}

// leaseRefusal explains a lost lease: the present state of its handoff.
func leaseRefusal(lease string, err error) error {
	lost := func(format string, args ...any) error {
		return protocol.Errorf(protocol.CodeLeaseLost, "lease", format, args...)
	}
	token, _ := broker.ParseLease(lease)
	ticket := token.Ticket
	var late *api.LateResultError
	switch {
	case errors.As(err, &late) && late.Unkept != nil:
		return fmt.Errorf("%w; the result could not be kept either: %w", leaseRefusal(lease, late.Lost), late.Unkept)
	case errors.As(err, &late):
		return lost("has expired: the handoff is closed or another worker has it, and is unchanged; your result was kept: handoff result %s --late", ticket)
	case errors.Is(err, broker.ErrDeadlinePassed):
		return lost("has ended: the deadline passed, and the handoff is closed or with an authority; nothing was changed")
	case broker.ClockOf(err) != "":
		return lost("has ended: %v; nothing was changed", broker.LostTo(broker.ClockOf(err)))
	case errors.Is(err, broker.ErrLeaseLost):
		return lost("has expired: the handoff is closed or another worker has it; nothing was changed")
	}
	return err
}

func newBid(a *app) *cobra.Command {
	var (
		given, bid   protocol.Bid
		file, refuse string
	)
	cmd := a.leaseCommand("bid LEASE",
		"Answer a call for bids, or refuse to bid",
		`Bid answers a call for bids, which "handoff claim" gives like any other handoff: the
variable "call" of its context has the work and the end of the call. Give one of --cost,
--eta and --confidence, or several; do not do the work. The best bid gets it, as an offer
of its own. "handoff status" of the call shows if the bid won, or lost to another.

With --refuse there is no bid, and the others decide.`,
		`  handoff bid "$LEASE" --cost 0.05 --eta 10m --confidence 0.9
  handoff bid "$LEASE" --eta 2h --valid 1h --condition "no tests of the browser"
  handoff bid "$LEASE" --refuse "this is Rust"
  ./estimate.sh | handoff bid "$LEASE" -f -`,
		[]string{"a LEASE"},
		func(ctx context.Context, s api.AgentOperations, lease string) (protocol.State, error) {
			if err := checkCall(ctx, s, lease); err != nil {
				return protocol.State{}, err
			}
			if refuse != "" {
				return s.Acknowledge(ctx, lease, protocol.Ack{Status: protocol.AckRejected, Reason: refuse})
			}
			return completeCall(ctx, s, lease, bid)
		})
	fs := cmd.Flags()
	fs.SortFlags = false // the flags that make a bid come first
	flags := bind(fs, &given)
	fs.StringVarP(&file, "file", "f", "", "read the bid from a JSON `FILE`, or stdin with -; flags replace its fields")
	fs.StringVar(&refuse, "refuse", "", "make no bid, for the reason `WHY`")
	// The bid is made before the engine is asked for anything.
	cmd.PreRunE = func(cmd *cobra.Command, _ []string) error {
		if cmd.Flags().Changed("refuse") {
			if refuse == "" {
				return usagef("--refuse needs a reason")
			}
			return nil
		}
		if file != "" {
			var err error
			if bid, err = readAs(a, file, protocol.DecodeBid); err != nil {
				return err
			}
		}
		flags.over(&bid)
		return bid.Validate()
	}
	return cmd
}

// checkCall refuses a LEASE of work: the bid would be taken for its result.
func checkCall(ctx context.Context, s api.AgentOperations, lease string) error {
	beat, err := s.Heartbeat(ctx, api.Heartbeat{Lease: lease})
	if err == nil && beat.State.CallOf == "" {
		return protocol.Errorf(protocol.CodeConflict, "lease", "is of work, not of a call for bids: accept it, refuse it or complete it")
	}
	return err
}

// completeCall accepts a call, which may be claimed only, and completes it with a bid.
func completeCall(ctx context.Context, s api.AgentOperations, lease string, bid protocol.Bid) (protocol.State, error) {
	body, err := protocol.Marshal(bid)
	if err != nil {
		return protocol.State{}, err
	}
	state, err := s.Acknowledge(ctx, lease, protocol.Ack{Status: protocol.AckAccepted})
	if err != nil {
		return state, err
	}
	return s.Complete(ctx, lease, protocol.Result{Body: body})
}
