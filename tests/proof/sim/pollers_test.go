//go:build proof

package sim

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/protocol"
)

// pollingAgent is the agent that polls: it has no worker, and claims one handoff at a time.
const pollingAgent = "desk"

const (
	pollLease = 15 * time.Second
	pollBeat  = 4 * time.Second
)

// keepPoller keeps a program that claims, acknowledges and completes, again and again. A mute
// one claims and beats and never acknowledges, for as long as there is trouble: it
// keeps what it has claimed then until it is told that it has lost it.
func (l *simulation) keepPoller(agent string, i int, mute bool) {
	l.keepRunning(fmt.Sprint("poller of ", agent, " ", i), &l.pollers, false, func(ctx context.Context, _ *engine, b *broker.Broker) error {
		for n := 0; ctx.Err() == nil; n++ {
			id := uuid.NewSHA1(uuid.NameSpaceOID, fmt.Appendln(nil, l.seed, agent, i, l.since(), n)).String()
			holder := protocol.Holder{ID: id, Agent: agent, LeaseMS: pollLease.Milliseconds(), Slots: 1, Busy: 1, Polling: true}
			err := l.pollOnce(ctx, b, holder, mute && l.faultsOn())
			if err != nil && !errors.Is(err, broker.ErrUnreachable) && !errors.Is(err, broker.ErrLeaseLost) && ctx.Err() == nil {
				return err
			}
			l.sleep(time.Second)
		}
		return nil
	})
}

// pollOnce claims one offer, if there is one, and sees to it.
func (l *simulation) pollOnce(ctx context.Context, b *broker.Broker, holder protocol.Holder, mute bool) error {
	if err := b.Beat(ctx, holder); err != nil {
		return err
	}
	defer func() { _ = b.RemoveHolder(context.WithoutCancel(ctx), holder.ID) }()
	offers, err := b.Pull(ctx, holder.Agent, 1, pollBeat)
	if err != nil || len(offers) == 0 {
		return err
	}
	d := dice(l.seed, "poll", offers[0].Ticket, holder.ID)
	claim, err := offers[0].Claim(ctx, holder, time.Duration(d%2)*time.Minute)
	if errors.Is(err, broker.ErrOfferGone) {
		return nil
	}
	if err != nil {
		return err
	}
	thinks := time.Duration(d>>8%40_000) * time.Millisecond
	if !l.faultsOn() {
		thinks = 0
	}
	for done := time.Now().Add(thinks); mute || time.Now().Before(done); l.sleep(pollBeat) {
		if err := b.Beat(ctx, holder); err != nil {
			return err
		}
		if _, err := claim.Beat(ctx); err != nil {
			return err
		}
	}
	if err := claim.Acknowledge(ctx, protocol.Ack{Status: protocol.AckAccepted}, true); err != nil {
		return err
	}
	if d>>24%3 == 0 { // the next step, which begins with the result
		if _, err := claim.HandOff(ctx, broker.Child{Package: l.newPackage(1, other(holder.Agent, d>>28))}); err != nil && !isBarred(err) {
			return err
		}
		l.sleep(time.Duration(d>>32%8_000) * time.Millisecond)
		if l.faultsOn() && d>>40%3 == 0 {
			return claim.Fail(ctx, broker.Failure{Code: "sim", Message: "no luck", Retryable: true})
		}
	}
	return claim.Complete(ctx, protocol.Result{Body: []byte(`"done"`)})
}
