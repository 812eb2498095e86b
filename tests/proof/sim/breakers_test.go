//go:build proof

package sim

import (
	"context"
	"time"

	"github.com/agenthandoff/handoff/protocol"
)

// frail is an agent that has a breaker, in every other simulation. It fails whatever it gets from
// frailFrom to frailUntil.
const (
	frail          = "a"
	frailThreshold = 2
	frailFrom      = 20 * time.Second
	frailUntil     = 80 * time.Second
)

// Planted bugs of breakers.
const (
	probeUnreserved bug = "a probe without a place that was kept for it"
	probeForgiven   bug = "a probe that failed, and a breaker that stays half-open"
	probeUncompared bug = "a place for a probe written over the one of another"
	countsAttempts  bug = "failures counted by the attempt, and not by the handoff"
)

func (l *simulation) hasBreaker() bool { return l.seed%2 == 0 && l.bug != overrideLost }

// isFrail tells whether the agent fails just now.
func (l *simulation) isFrail(agent string) bool {
	return agent == frail && l.hasBreaker() && l.since() > frailFrom && l.since() < frailUntil
}

// giveBreaker gives the frail agent its breaker.
func (l *simulation) giveBreaker(p *protocol.Profile) {
	if p.ID == frail && l.hasBreaker() {
		threshold, open := frailThreshold, int64(5000)
		p.Breaker = &protocol.Breaker{Threshold: &threshold, OpenMS: &open}
	}
}

func (e *engine) Health(ctx context.Context, agent string) (protocol.Health, uint64, error) {
	if err := e.await(ctx, "health of "+agent); err != nil {
		return protocol.Health{}, 0, err
	}
	return e.Memory.Health(ctx, agent)
}

func (e *engine) PutHealth(ctx context.Context, agent string, h protocol.Health, rev uint64) (uint64, error) {
	if err := e.await(ctx, "put health of "+agent); err != nil {
		return 0, err
	}
	before, _, err := e.l.m.Health(ctx, agent)
	if err != nil {
		return 0, err
	}
	h, stored := e.l.spoilHealth(before, h)
	if !stored {
		return rev, nil
	}
	next, err := e.Memory.PutHealth(ctx, agent, h, rev)
	if err != nil && e.l.bug == probeUncompared {
		if _, rev, err = e.l.m.Health(ctx, agent); err == nil {
			next, err = e.Memory.PutHealth(ctx, agent, h, rev)
		}
	}
	if err == nil {
		e.l.judge.checkHealth(before, h)
	}
	return next, err
}

// spoilHealth is the health that a planted bug writes, and whether it is written.
func (l *simulation) spoilHealth(before, h protocol.Health) (protocol.Health, bool) {
	switch l.bug {
	case probeUnreserved:
		return h, len(h.Probes) <= len(before.Probes)
	case probeForgiven:
		if before.Trips > 0 && h.Trips > before.Trips {
			h.OpenUntil, h.Trips = before.OpenUntil, before.Trips
		}
	case countsAttempts:
		if h.LastFailure != nil && before.LastFailure != nil && h.LastFailure.Ticket == before.LastFailure.Ticket && !h.LastFailure.At.Equal(before.LastFailure.At) && h.OpenUntil.IsZero() {
			h.Failures = append(h.Failures, h.Failures[len(h.Failures)-1])
			if len(h.Failures) >= frailThreshold {
				h.OpenedAt, h.OpenUntil, h.Trips = h.At, h.At.Add(5*time.Second), 1
			}
		}
	}
	return h, true
}

// checkHealth: a breaker opens when as many different handoffs failed as its threshold says, a probe
// that fails opens it again, and there is one probe at a time.
func (j *judge) checkHealth(before, after protocol.Health) {
	j.mu.Lock()
	defer j.mu.Unlock()
	different := map[string]bool{}
	for _, f := range after.Failures {
		different[f.Ticket] = true
	}
	if before.OpenUntil.IsZero() && !after.OpenUntil.IsZero() {
		if len(different) < frailThreshold {
			j.faultLocked("the breaker of %s opened after %d different handoffs failed", after.Agent, len(different))
		}
	}
	if len(after.Probes) > 1 {
		j.faultLocked("%s has %d probes at once", after.Agent, len(after.Probes))
	}
	for _, p := range before.Probes {
		if taken := len(after.Probes) > 0 && after.Probes[0].Ticket != p.Ticket; taken && time.Now().Before(p.Until) {
			j.faultLocked("%s has two probes at once: %s, and %s, whose place was kept until %v", after.Agent, after.Probes[0].Ticket, p.Ticket, p.Until)
		}
		if lastFenceOf(after, p.Ticket) > lastFenceOf(before, p.Ticket) && !(after.Trips > before.Trips && after.OpenUntil.After(before.OpenUntil)) {
			j.faultLocked("a probe of %s failed, and its breaker does not open again", after.Agent)
		}
	}
	if j.reserved == nil {
		j.reserved = map[string]bool{}
	}
	j.breakerClosed = after.OpenUntil.IsZero()
	for _, p := range after.Probes {
		j.reserved[p.Ticket] = true
	}
}

// lastFenceOf is the fence of the last failure of a handoff that counts.
func lastFenceOf(h protocol.Health, ticket string) uint64 {
	for _, f := range h.Failures {
		if f.Ticket == ticket {
			return f.Fence
		}
	}
	return 0
}

// checkProbe: an offer that is a probe has a place that was kept for it, unless the breaker has been
// closed meanwhile.
func (j *judge) checkProbe(after protocol.State, events []protocol.Event) {
	for _, e := range events {
		if offered, ok := e.(*protocol.Offered); ok && offered.Breaker == protocol.BreakerProbe {
			if !j.reserved[after.Ticket] && !j.breakerClosed {
				j.faultLocked("%s is a probe of %s, and no place was kept for it", after.Ticket, offered.Agent)
			}
		}
	}
}
