package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"os"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/explain"
	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/protocol/lifecycle"
)

// claimLease is the default lease of a claim from the command line: whoever
// polls thinks between two commands, and so beats more seldom than a worker.
const claimLease = 10 * time.Minute

func newClaim(a *app) *cobra.Command {
	var (
		agent       string
		wait, lease time.Duration
		answer      answering
	)
	cmd := &cobra.Command{
		Use:   "claim --agent AGENT",
		Short: "Take the next handoff from an agent's queue",
		Long: `Claim takes the most urgent handoff offered to an agent (of every 8, one is the turn of
the less urgent, so that nothing waits for ever) and prints a LEASE and the package.
The LEASE is the proof that it is yours: ack, heartbeat, progress, complete, fail,
release, return and escalate need it. Whoever has it is the holder, so keep it.

An agent that polls goes through these steps:

  claim --agent A          the offer is yours to judge
  ack LEASE accepted       the work is yours to do (claim --accept does both)
  heartbeat LEASE          well before --lease has passed, again and again
  complete LEASE -f FILE   or fail, release, return, escalate

and hands work on with submit --under LEASE, and await LEASE.

Its agent counts as present while the LEASE lives, and for its patience after each
claim, also one that finds nothing (poll_patience_ms in its profile, 5 min): what is
offered to it meanwhile waits for its next claim.

An offer that is not acknowledged in time goes back to the queue, whatever heartbeats
there are: within 30 s, or the ack_timeout_ms of the handoff's policy. An agent that thinks
before it accepts asks for more with --ack-within. Nothing is charged, and the LEASE
is worth nothing any more.

Without a heartbeat for as long as --lease, the handoff goes to somebody else and
the LEASE is worth nothing any more (exit code 7). Every one of the commands
above counts as a heartbeat.

The text form begins with lines of a word and a value (LEASE, TICKET, AGENT,
ATTEMPT, EXPIRES, ACKNOWLEDGE (by when, unless it is accepted), LIMIT (when the first
clock takes it away, and which one: work, return, deadline, …), a SUPPLEMENT for each answer given so far, a TRAIL for each
refusal, question, escalation and failure on the way, a RETURN for each end that was
waited for with "handoff await"), then an empty line, then the package as JSON. With
-o json it is one object: lease, ticket, agent, attempt, expires, acknowledge_by, limit,
limit_clock, supplements, trail,
returns, traceparent (the span that the work is; see "handoff heartbeat"), package.

A message in the queue that is no offer is removed, and a handoff whose package is gone
or damaged is refused as unreadable; both are said on stderr, and the next offer is
claimed.

An agent with max_concurrency has no more than that in hand, its claims and its workers'
handoffs together: over it nothing is claimed, and the reason is at_capacity.

Exit codes: 0 claimed; 8 nothing to claim (the message says at_capacity where that is
why); 9 no such agent.`,
		Example: `  handoff claim --agent reviewer --wait 30s > claimed
  LEASE=$(sed -n 's/^LEASE //p' claimed)
  handoff claim --agent reviewer --accept -o json | jq -r .package.task.description`,
		Args: takes(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			agent = cmp.Or(agent, a.env("HANDOFF_AGENT"))
			if err := protocol.CheckAgent("agent", agent); err != nil {
				return usagef("claim needs --agent AGENT: %v", err)
			}
			if err := checkLease(lease); err != nil {
				return err
			}
			if err := answer.check(); err != nil {
				return err
			}
			b, done, err := a.connectWith(cmd.Context(), broker.Config{Log: a.log(false)}) // what is removed from the queue
			if err != nil {
				return err
			}
			defer done()
			if err := claimable(cmd.Context(), b, agent); err != nil {
				return err
			}
			claim, err := a.takeOne(cmd.Context(), b, newPoller(agent, lease), wait, answer)
			if err != nil {
				return err
			}
			return a.claimed(cmd.Context(), b, claim)
		},
	}
	cmd.Flags().StringVar(&agent, "agent", "", "the agent to claim for (default $HANDOFF_AGENT)")
	durationVar(cmd.Flags(), &wait, "wait", 0, "wait this long for an offer (default: take what is there)")
	durationVar(cmd.Flags(), &lease, "lease", claimLease, "how long the claim lives without a heartbeat")
	cmd.Flags().BoolVar(&answer.accept, "accept", false, "accept at once and begin, without a separate ack")
	fieldVar(cmd.Flags(), &answer.within, "ack-within", "acknowledge within this, at most 1h (default: the handoff's ack_timeout_ms, 30s; 1h for human)")
	a.agentFlags(cmd, "agent")
	return cmd
}

func checkLease(lease time.Duration) error {
	if ms := lease.Milliseconds(); ms < protocol.LeaseMinMS || ms > protocol.LeaseMaxMS {
		return protocol.Errorf(protocol.CodeInvalid, "lease", "is %v; a lease is between %v and %v",
			explain.Duration(lease), explain.Millis(protocol.LeaseMinMS), explain.Millis(protocol.LeaseMaxMS))
	}
	return nil
}

// answering is how a claim is acknowledged: at once, or by a later command.
type answering struct {
	accept bool
	within time.Duration // 0 is the acknowledge timeout
}

func (w answering) check() error {
	if w.accept && w.within != 0 {
		return usagef("--ack-within is for a claim that is acknowledged later, and --accept does it at once")
	}
	return protocol.CheckAckWithin(w.within.Milliseconds())
}

// newPoller is the presence of one claim. Its id is the secret of the LEASE.
func newPoller(agent string, lease time.Duration) protocol.Holder {
	host, _ := os.Hostname() // for people only
	return protocol.Holder{
		ID: uuid.NewString(), Agent: agent, LeaseMS: lease.Milliseconds(), Slots: 1, Busy: 1, Polling: true,
		Host: host, StartedAt: time.Now().UTC(),
	}
}

// claimable refuses an agent that is not registered, which is a slip of the pen, and
// one that is paused, of which nothing may be claimed. Either way an agent that is
// registered has polled.
func claimable(ctx context.Context, b *broker.Broker, agent string) error {
	if agent == protocol.Human {
		return nil
	}
	profile, err := b.Profile(ctx, agent)
	switch {
	case errors.Is(err, broker.ErrNotFound):
		return protocol.Errorf(protocol.CodeUnknownAgent, "agent", "no agent is called %s; register it: handoff agents put %s", agent, agent)
	case err != nil:
		return err
	}
	if err := b.NotePoll(ctx, profile); err != nil {
		return err
	}
	if profile.Paused {
		return protocol.Errorf(protocol.CodeNothingToClaim, "agent", "%s is paused; its offers wait for: handoff agents resume %s", agent, agent)
	}
	return nil
}

// takeOne claims one offer for a holder. Presence comes first, so that nobody
// can judge the holder gone before it began, and goes when nothing was claimed.
func (a *app) takeOne(ctx context.Context, b *broker.Broker, holder protocol.Holder, wait time.Duration, answer answering) (claim *broker.Claim, err error) {
	if err := b.Beat(ctx, holder); err != nil {
		return nil, err
	}
	defer func() {
		if claim == nil {
			leave(ctx, b, holder)
		}
	}()
	if err := b.EnsureQueue(ctx, holder.Agent); err != nil {
		return nil, err
	}
	// Only the most urgent would ever be taken by commands that each begin to
	// count. One that cannot count takes what is most urgent.
	_ = a.engine.CountOn(ctx, holder.Agent)
	for until := time.Now().Add(wait); ; {
		offers, err := b.Pull(ctx, holder.Agent, 1, pullFor(holder, time.Until(until)))
		if err != nil {
			return nil, err
		}
		for _, offer := range offers {
			claim, err := take(ctx, offer, holder, answer)
			if err == nil || !a.skips(ctx, offer, holder, err) {
				return claim, err
			}
		}
		if len(offers) == 0 && time.Now().After(until) {
			return nil, nothingFor(ctx, b, holder.Agent)
		}
		if err := b.Beat(ctx, holder); err != nil { // a long wait outlives a short lease
			return nil, err
		}
	}
}

// skips tells whether a claim goes on behind an offer that it could not take, and says
// on stderr why that was. A package that is gone, or was damaged, is refused for its
// agent; a person has nobody behind, and is offered it again after the ack wait, as is
// everything else that is skipped.
func (a *app) skips(ctx context.Context, offer *broker.Offer, holder protocol.Holder, err error) bool {
	switch {
	case errors.Is(err, broker.ErrOfferGone):
		return true
	case ctx.Err() != nil || exitFor(err).code == exitUnreachable || errors.Is(err, broker.ErrNotAllowed):
		return false
	}
	skipped := "skipped"
	if errors.Is(err, broker.ErrNotFound) && holder.Agent != protocol.Human {
		ack := lifecycle.UnreadablePackage(err)
		if _, refusal := offer.Acknowledge(ctx, holder, ack, false); refusal == nil {
			skipped = "refused"
		}
	}
	a.notef("handoff: %s %s: %v\n", skipped, offer.Ticket, err)
	return true
}

// nothingFor says why there is nothing to claim: the queue is empty, or the agent is
// at capacity.
func nothingFor(ctx context.Context, b *broker.Broker, agent string) error {
	inHand, limit, err := b.Capacity(ctx, agent)
	if err == nil && limit > 0 && inHand >= limit {
		return protocol.Errorf(protocol.CodeNothingToClaim, "max_concurrency", "%s: %s has %s in hand, and takes no more at a time", protocol.ReasonAtCapacity, agent, explain.Count(inHand, "handoff"))
	}
	return protocol.Errorf(protocol.CodeNothingToClaim, "", "nothing to claim for %s", agent)
}

const (
	// pullMin lets an offer that is there arrive, for a claim that does not wait.
	pullMin = 500 * time.Millisecond
	// pullMax is often enough to see that an offer was not to be had.
	pullMax = 5 * time.Second
)

// pullFor is how long to wait for an offer before the next beat is due.
func pullFor(holder protocol.Holder, left time.Duration) time.Duration {
	beat := time.Duration(holder.LeaseMS) * time.Millisecond / 3
	return max(min(left, beat, pullMax), pullMin)
}

func take(ctx context.Context, offer *broker.Offer, holder protocol.Holder, answer answering) (*broker.Claim, error) {
	if answer.accept {
		return offer.Acknowledge(ctx, holder, protocol.Ack{Status: protocol.AckAccepted}, true)
	}
	return offer.Claim(ctx, holder, answer.within)
}

// leave ends a holder's presence, also when Ctrl-C has ended everything else.
func leave(ctx context.Context, b *broker.Broker, holder protocol.Holder) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	_ = b.LeavePolling(ctx, holder) // else it expires with its lease
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

	Trail   []protocol.TrailEntry `json:"trail"`       // what happened to it before, oldest first
	Returns []protocol.Return     `json:"returns"`     // the ends of what it has handed off and waited for
	Trace   string                `json:"traceparent"` // of the work, or, until it is accepted, of the handoff
	Package json.RawMessage       `json:"package"`     // as it was submitted
}

func (a *app) claimed(ctx context.Context, b *broker.Broker, claim *broker.Claim) error {
	returns, err := b.ChildReturns(ctx, claim.State())
	if err != nil { // it is claimed all the same, and they can be read by their tickets
		a.notef("handoff: what came back could not be read: %v\n", err)
	}
	expires := time.Now().Add(time.Duration(claim.Holder.LeaseMS) * time.Millisecond).UTC().Truncate(time.Second)
	v := claimView{
		Lease: claim.Lease(), Ticket: claim.Ticket, Agent: claim.Agent, Attempt: claim.Attempt(), Accepted: claim.Fence() != 0,
		Expires: expires, Supplements: claim.Answers, Trail: claim.Trail, Returns: returns, Package: claim.Package,
		Trace: a.traces.Work(claim.State()).Parent, AckBy: lifecycle.ClaimDue(claim.State()).UTC().Truncate(time.Second),
	}
	limit, clock := lifecycle.Limit(claim.State())
	v.Limit, v.LimitClock = limit.UTC().Truncate(time.Second), clock
	if !a.text() {
		if v.Supplements == nil {
			v.Supplements = []protocol.Answer{}
		}
		if v.Trail == nil {
			v.Trail = []protocol.TrailEntry{}
		}
		if v.Returns == nil {
			v.Returns = []protocol.Return{}
		}
		return a.value(v)
	}
	a.printf("LEASE %s\nTICKET %s\nAGENT %s\nATTEMPT %d\nEXPIRES %s\n", v.Lease, v.Ticket, v.Agent, v.Attempt, v.Expires.Format(time.RFC3339))
	if !v.AckBy.IsZero() {
		a.printf("ACKNOWLEDGE %s\n", v.AckBy.Format(time.RFC3339))
	}
	a.printf("LIMIT %s %s\n", v.Limit.Format(time.RFC3339), v.LimitClock)
	for _, answer := range v.Supplements {
		if err := a.headLine("SUPPLEMENT", answer); err != nil {
			return err
		}
	}
	for _, entry := range v.Trail {
		if err := a.headLine("TRAIL", entry); err != nil {
			return err
		}
	}
	for _, ret := range v.Returns {
		if err := a.headLine("RETURN", ret); err != nil {
			return err
		}
	}
	a.printf("\n")
	return a.document(v.Package)
}

// headLine writes a word and a value as JSON.
func (a *app) headLine(word string, value any) error {
	line, err := encode(value, false)
	if err != nil {
		return err
	}
	a.printf("%s %s\n", word, string(line[:len(line)-1]))
	return nil
}
