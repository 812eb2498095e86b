//go:build proof

package sim

import (
	"bytes"
	"context"
	"regexp"
	"slices"
	"time"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/brokertest"
	"github.com/agenthandoff/handoff/internal/lifecycle"
	"github.com/agenthandoff/handoff/protocol"
)

// engine is the engine of one process: each operation waits for the scheduler, and fails once the
// process is dead.
type engine struct {
	*brokertest.Memory
	p *process
	l *simulation

	announcer *broker.Announcer
}

// Settled is of the process's own memory.
func (e *engine) Settled(ticket string, seq uint64) {
	e.announcer.Settled(ticket, seq)
	e.l.judge.answered(ticket, seq)
}

var _ broker.Engine = (*engine)(nil)

// reasons finds what a promise says of why it cannot be delivered.
var reasons = regexp.MustCompile(`,"undelivered":"[^"]*no agent[^"]*"`)

// exclusions finds what a promise says of the agents that refused.
var exclusions = regexp.MustCompile(`,"excluded":\[[^\]]*\]`)

// await is called first by every operation.
func (e *engine) await(ctx context.Context, what string) error { return e.p.s.await(ctx, e.p, what) }

// Append may kill its process, before or after the append is stored.
func (e *engine) Append(ctx context.Context, ticket string, after uint64, id string, attention lifecycle.Attention, body []byte) (uint64, error) {
	if err := e.await(ctx, "append "+ticket); err != nil {
		return 0, err
	}
	if e.l.dies(e.p, ticket, after, "before") {
		return 0, e.p.gone()
	}
	if e.l.bug == phantomAppend && after == 0 && dice(e.l.seed, "phantom", ticket)%8 == 0 {
		return 1 << 40, nil
	}
	if e.l.bug == assignLost && bytes.Contains(body, []byte(`"type":"assigned"`)) {
		return 1 << 40, nil
	}
	if e.l.bug == endTwice {
		body = tellsTwice(body)
	}
	if err := e.l.refusesVariant(after, body); err != nil {
		return 0, err
	}
	body = e.l.spoilVariant(ticket, after, e.l.misjudge(e.l.spoilLimits(body)))
	body = e.l.moveUsage(e.l.withoutOverride(body))
	if e.l.bug == freeTakeOver {
		body = withoutCharge(body)
	}
	if e.l.bug == countsTwice {
		body = countTwice(body)
	}
	if e.l.bug == resultMixed {
		body = e.l.mixUp(body)
	}
	if e.forgetsGrant(body) {
		return 1 << 40, nil
	}
	body, dies := e.l.spoilAccount(body)
	if !dies {
		body, dies = e.l.hideCircle(ticket, body)
	}
	if e.l.bug == nobodyTold && bytes.Contains(body, []byte(`"type":"handed_off"`)) {
		if found := reasons.FindIndex(body); found != nil {
			body, dies = slices.Delete(bytes.Clone(body), found[0], found[1]), true
		}
	}
	if e.l.bug == refusalLost && bytes.Contains(body, []byte(`"type":"handed_off"`)) {
		if found := exclusions.FindAllIndex(body, -1); len(found) == 1 {
			body, dies = slices.Delete(bytes.Clone(body), found[0][0], found[0][1]), true
		}
	}
	seq, err := e.Memory.AppendSilently(ctx, ticket, after, id, body)
	if err != nil && (e.l.bug == noFence || e.l.bug == grantStale && bytes.Contains(body, []byte(`"type":"handed_off"`))) {
		if last, there := e.Last(ctx, ticket, 0); there == nil {
			seq, err = e.Memory.AppendSilently(ctx, ticket, last.Seq, id, body)
		}
	}
	if err != nil {
		ticket, body, seq, err = e.appendAgain(ctx, ticket, after, id, body, err)
	}
	if err != nil {
		return seq, err
	}
	e.l.appended(e.p, ticket, seq, body)
	e.l.judge.called(e.p, ticket, seq, attention)
	e.awardAgain(ctx, ticket, seq, id, body)
	e.l.killSupervisorAfter(ticket, seq)
	if dies { // another process submits the promised child
		e.p.kill()
		return 0, e.p.gone()
	}
	if e.l.dies(e.p, ticket, after, "behind") {
		return 0, e.p.gone()
	}
	if e.l.bug != announceLost {
		e.announcer.Appended(ctx, ticket, seq, attention)
	}
	return seq, nil
}

func (e *engine) Last(ctx context.Context, ticket string, min uint64) (broker.Entry, error) {
	if err := e.await(ctx, "last "+ticket); err != nil {
		return broker.Entry{}, err
	}
	entry, err := e.Memory.Last(ctx, ticket, min)
	if fence, believes := ctx.Value(fenceKey{}).(uint64); believes && err == nil {
		return e.asHeld(entry, fence), nil
	}
	if err == nil && e.l.bug == staleRead && dice(e.l.seed, "stale", e.p.name, ticket, entry.Seq)%4 == 0 {
		return e.l.entryBefore(e.Memory, entry), nil
	}
	return entry, err
}

func (e *engine) Next(ctx context.Context, ticket string, after uint64) (broker.Entry, error) {
	if err := e.await(ctx, "next "+ticket); err != nil {
		return broker.Entry{}, err
	}
	return e.Memory.Next(ctx, ticket, after)
}

func (e *engine) Heads(ctx context.Context, fn func(broker.Entry) error) error {
	if err := e.await(ctx, "heads"); err != nil {
		return err
	}
	return e.Memory.Heads(ctx, func(entry broker.Entry) error {
		if e.p.isDead() {
			return e.p.gone()
		}
		return fn(entry)
	})
}

func (e *engine) Entries(ctx context.Context, from broker.Cursor, fn func(broker.Entry) error) error {
	if err := e.await(ctx, "entries"); err != nil {
		return err
	}
	return e.Memory.Entries(ctx, from, func(entry broker.Entry) error {
		if e.p.isDead() {
			return e.p.gone()
		}
		return fn(entry)
	})
}

func (e *engine) Follow(ctx context.Context, fn func(broker.Entry, func())) error {
	return e.Memory.Follow(ctx, func(entry broker.Entry, done func()) {
		if !e.p.isDead() {
			e.p.s.trace("%s hears of %d", e.p.name, entry.Seq)
			fn(entry, e.once(done))
		}
	})
}

func (e *engine) Due(ctx context.Context, fn func(broker.WakeUp, func())) error {
	return e.Memory.Due(ctx, func(w broker.WakeUp, done func()) {
		if !e.p.isDead() {
			e.p.s.trace("%s is woken for %s, armed under %d", e.p.name, w.Ticket, w.Seq)
			fn(w, func() {
				e.once(done)()
				e.l.judge.doneWith(e.p, w)
			})
		}
	})
}

// once is done for as long as the process lives.
func (e *engine) once(done func()) func() {
	return func() {
		if !e.p.isDead() {
			done()
		}
	}
}

func (e *engine) OffersBetween(ctx context.Context, from, until time.Time, fn func(broker.OfferKey, time.Time) error) error {
	if err := e.await(ctx, "offers that stand"); err != nil || e.l.bug == standingLost {
		return err
	}
	return e.Memory.OffersBetween(ctx, from, until, func(key broker.OfferKey, at time.Time) error {
		if e.p.isDead() {
			return e.p.gone()
		}
		e.l.judge.readOffer(key)
		return fn(key, at)
	})
}

func (e *engine) PutOffer(ctx context.Context, key broker.OfferKey, body []byte) error {
	if err := e.await(ctx, "offer "+key.Ticket); err != nil {
		return err
	}
	return e.Memory.PutOffer(ctx, key, body)
}

func (e *engine) RemoveOffer(ctx context.Context, key broker.OfferKey) error {
	if err := e.await(ctx, "remove offer "+key.Ticket); err != nil {
		return err
	}
	return e.Memory.RemoveOffer(ctx, key)
}

func (e *engine) Offers(ctx context.Context, agent string, fn func(broker.OfferKey) error) error {
	if err := e.await(ctx, "offers"); err != nil {
		return err
	}
	return e.Memory.Offers(ctx, agent, fn)
}

func (e *engine) Pull(ctx context.Context, agent string, most int, wait time.Duration) ([]broker.Delivery, error) {
	if err := e.await(ctx, "pull for "+agent); err != nil {
		return nil, err
	}
	all, err := e.Memory.Pull(ctx, agent, most, wait)
	if err == nil && e.p.isDead() {
		return nil, e.p.gone()
	}
	for i, d := range all {
		all[i] = &delivery{d, e}
	}
	return all, err
}

func (e *engine) Arm(ctx context.Context, ticket string, seq uint64, at time.Time) error {
	if err := e.await(ctx, "arm "+ticket); err != nil {
		return err
	}
	err := e.Memory.Arm(ctx, ticket, seq, at)
	if err == nil {
		e.l.judge.armed(ticket)
	}
	return err
}

func (e *engine) PublishOutbox(ctx context.Context, entries []broker.OutboxEntry) []error {
	if err := e.await(ctx, "hints"); err != nil {
		return slices.Repeat([]error{err}, len(entries))
	}
	errs := e.Memory.PublishOutbox(ctx, entries)
	for i, entry := range entries {
		if entry.WakeUp.Attention != "" && errs[i] == nil {
			e.l.judge.answered(entry.WakeUp.Ticket, entry.WakeUp.Seq)
		}
	}
	return errs
}

func (e *engine) PutProfile(ctx context.Context, p protocol.Profile) error {
	if err := e.await(ctx, "register "+p.ID); err != nil {
		return err
	}
	return e.Memory.PutProfile(ctx, p)
}

func (e *engine) Profile(ctx context.Context, agent string) (protocol.Profile, error) {
	if err := e.await(ctx, "profile "+agent); err != nil {
		return protocol.Profile{}, err
	}
	p, err := e.Memory.Profile(ctx, agent)
	return e.l.seenProfile(p), err
}

func (e *engine) Fleet(ctx context.Context) (protocol.Fleet, uint64, error) {
	if err := e.await(ctx, "settings of the fleet"); err != nil {
		return protocol.Fleet{}, 0, err
	}
	if e.l.bug == fleetUnread {
		return protocol.Fleet{}, 0, nil
	}
	fleet, rev, err := e.Memory.Fleet(ctx)
	return e.l.seenFleet(fleet), rev, err
}

func (e *engine) Beat(ctx context.Context, h protocol.Holder) error {
	if err := e.await(ctx, "beat"); err != nil {
		return err
	}
	err := e.Memory.Beat(ctx, h)
	if err == nil {
		e.l.holderBeat(h)
	}
	return err
}

func (e *engine) Slots(ctx context.Context, agent string) (protocol.Slots, uint64, error) {
	if err := e.await(ctx, "slots of "+agent); err != nil {
		return nil, 0, err
	}
	slots, rev, err := e.Memory.Slots(ctx, agent)
	if e.l.bug == slotsUnread {
		return nil, rev, err
	}
	return slots, rev, err
}

func (e *engine) PutSlots(ctx context.Context, agent string, slots protocol.Slots, rev uint64) (uint64, error) {
	if err := e.await(ctx, "put slots of "+agent); err != nil {
		return 0, err
	}
	next, err := e.Memory.PutSlots(ctx, agent, slots, rev)
	if err == nil {
		e.l.judge.recordSlots(slots)
	}
	return next, err
}

func (e *engine) Holder(ctx context.Context, id string) (protocol.Holder, error) {
	if err := e.await(ctx, "holder"); err != nil {
		return protocol.Holder{}, err
	}
	if e.l.bug == earlyLeaseLoss {
		return protocol.Holder{}, broker.ErrNotFound
	}
	return e.Memory.Holder(ctx, id)
}

func (e *engine) RemoveHolder(ctx context.Context, id string) error {
	if err := e.await(ctx, "leave"); err != nil {
		return err
	}
	e.l.holderLeft(id)
	return e.Memory.RemoveHolder(ctx, id)
}

func (e *engine) Directory(ctx context.Context) (*lifecycle.Directory, error) {
	d, err := e.Memory.Directory(ctx)
	if err == nil && e.l.bug == earlyLeaseLoss { // it judges before it has seen any holder
		blind := *d
		blind.Holders, blind.ConnectedSince = nil, epoch.Add(-time.Hour)
		blind.Count()
		return &blind, nil
	}
	if err != nil {
		return d, err
	}
	return e.l.seenDirectory(d), nil
}

// delivery is an offer that a process has. The acknowledgements of a dead process are dropped.
type delivery struct {
	broker.Delivery
	e *engine
}

func (d *delivery) say(what func() error) error {
	if d.e.p.isDead() {
		return d.e.p.gone()
	}
	return what()
}

// Remove is neither confirmed nor repeated: now and then it is lost.
func (d *delivery) Remove() error {
	return d.say(func() error {
		if d.e.l.faultsOn() && dice(d.e.l.seed, "removal", d.Key())%20 == 0 {
			return nil
		}
		return d.Delivery.Remove()
	})
}

func (d *delivery) Release() error { return d.say(d.Delivery.Release) }
func (d *delivery) Extend() error  { return d.say(d.Delivery.Extend) }
