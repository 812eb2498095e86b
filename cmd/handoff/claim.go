package main

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
	"github.com/agenthandoff/handoff/protocol"
)

// claimLease is the default lease of a claim from the command line: whoever
// polls thinks between two commands, and so beats more seldom than a worker.
const claimLease = 10 * time.Minute

func newClaim(a *app) *cobra.Command {
	var (
		agent       string
		wait, lease time.Duration
		accept      bool
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

Without a heartbeat for as long as --lease, the handoff goes to somebody else and
the LEASE is worth nothing any more (exit code 7). Every one of the commands
above counts as a heartbeat.

The text form begins with lines of a word and a value (LEASE, TICKET, AGENT,
ATTEMPT, EXPIRES, a SUPPLEMENT for each answer given so far, a TRAIL for each
refusal, question, escalation and failure on the way, a RETURN for each end that was
waited for with "handoff await"), then an empty line, then the package as JSON. With
-o json it is one object: lease, ticket, agent, attempt, expires, supplements, trail,
returns, traceparent (the span that the work is; see "handoff heartbeat"), package.

Exit codes: 0 claimed; 8 nothing to claim; 9 no such agent.`,
		Example: `  handoff claim --agent reviewer --wait 30s > claimed
  LEASE=$(sed -n 's/^LEASE //p' claimed)
  handoff claim --agent reviewer --accept -o json | jq -r .package.task.description`,
		Args: takes(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			agent = cmp.Or(agent, a.env("HANDOFF_AGENT"))
			if err := protocol.CheckID("agent", agent); err != nil {
				return usagef("claim needs --agent AGENT: %v", err)
			}
			if err := checkLease(lease); err != nil {
				return err
			}
			b, done, err := a.connect(cmd.Context())
			if err != nil {
				return err
			}
			defer done()
			if err := claimable(cmd.Context(), b, agent); err != nil {
				return err
			}
			claim, err := takeOne(cmd.Context(), b, newPoller(agent, lease), wait, accept)
			if err != nil {
				return err
			}
			return a.claimed(cmd.Context(), b, claim)
		},
	}
	cmd.Flags().StringVar(&agent, "agent", "", "the agent to claim for (default $HANDOFF_AGENT)")
	durationVar(cmd.Flags(), &wait, "wait", 0, "wait this long for an offer (default: take what is there)")
	durationVar(cmd.Flags(), &lease, "lease", claimLease, "how long the claim lives without a heartbeat")
	cmd.Flags().BoolVar(&accept, "accept", false, "accept at once and begin, without a separate ack")
	a.agentFlags(cmd, "agent")
	return cmd
}

func checkLease(lease time.Duration) error {
	if ms := lease.Milliseconds(); ms < protocol.LeaseMinMS || ms > protocol.LeaseMaxMS {
		return protocol.Errorf(protocol.CodeInvalid, "lease", "is %v; a lease is between %v and %v",
			shortDuration(lease), millis(protocol.LeaseMinMS), millis(protocol.LeaseMaxMS))
	}
	return nil
}

// newPoller is the presence of one claim. Its id is the secret of the LEASE.
func newPoller(agent string, lease time.Duration) protocol.Holder {
	host, _ := os.Hostname() // for people only
	return protocol.Holder{
		ID: uuid.NewString(), Agent: agent, LeaseMS: lease.Milliseconds(), Slots: 1, Busy: 1, Polling: true,
		Host: host, StartedAt: time.Now().UTC(),
	}
}

// claimable refuses an agent that nobody can hand anything to, which is a slip
// of the pen, and one that is paused, of which nothing may be claimed.
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
	case profile.Paused:
		return protocol.Errorf(protocol.CodeNothingToClaim, "agent", "%s is paused; its offers wait for: handoff agents resume %s", agent, agent)
	}
	return nil
}

// takeOne claims one offer for a holder. Presence comes first, so that nobody
// can judge the holder gone before it began, and goes when nothing was claimed.
func takeOne(ctx context.Context, b *broker.Broker, holder protocol.Holder, wait time.Duration, accept bool) (claim *broker.Claim, err error) {
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
	if engine, ok := b.Engine.(*broker.JetStream); ok {
		// Only the most urgent would ever be taken by commands that each begin to
		// count. One that cannot count takes what is most urgent.
		_ = engine.CountOn(ctx, holder.Agent)
	}
	for until := time.Now().Add(wait); ; {
		offers, err := b.Pull(ctx, holder.Agent, 1, pullFor(holder, time.Until(until)))
		if err != nil {
			return nil, err
		}
		for _, offer := range offers {
			claim, err := take(ctx, offer, holder, accept)
			if err == nil || !errors.Is(err, broker.ErrOfferGone) {
				return claim, err
			}
		}
		if len(offers) == 0 && time.Now().After(until) {
			return nil, protocol.Errorf(protocol.CodeNothingToClaim, "", "nothing to claim for %s", holder.Agent)
		}
		if err := b.Beat(ctx, holder); err != nil { // a long wait outlives a short lease
			return nil, err
		}
	}
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

func take(ctx context.Context, offer *broker.Offer, holder protocol.Holder, accept bool) (*broker.Claim, error) {
	if accept {
		return offer.Acknowledge(ctx, holder, protocol.Ack{Status: protocol.AckAccepted}, true)
	}
	return offer.Claim(ctx, holder)
}

// leave ends a holder's presence, also when Ctrl-C has ended everything else.
func leave(ctx context.Context, b *broker.Broker, holder protocol.Holder) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	_ = b.RemoveHolder(ctx, holder.ID) // else it expires with its lease
}

// claimView is a claim for programs.
type claimView struct {
	Lease       string            `json:"lease"`
	Ticket      string            `json:"ticket"`
	Agent       string            `json:"agent"`
	Attempt     int               `json:"attempt"` // of the work; 0 until it is accepted
	Accepted    bool              `json:"accepted"`
	Expires     time.Time         `json:"expires"`     // without a heartbeat
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
		Trace: a.traces.Work(claim.State()).Parent,
	}
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
