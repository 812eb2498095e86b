package service

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/protocol"
)

// hands are the offers and handoffs that agents have got through this door. They
// save reads, and hold nothing that the ledger and the queue do not have: what is
// forgotten here comes again if it was not accepted, and goes on by its lease if it was.
type hands struct {
	d      *Door
	mu     sync.Mutex
	all    map[string]*held // by token
	leases map[string]*held // those that are accepted
}

// firstWord is how soon somebody must say something about an offer that he was
// given. Else he has not got it, it seems, and it is given back: a worker says
// something about what is in its hands every 10 s at least.
const firstWord = broker.AckWait / 2

// held is one of them. It is forgotten one AckWait after the last request about it.
type held struct {
	token, agent string
	bytes        int64 // of the memory that it has taken

	// turn is had by whom works with the offer, which is nobody's to use at the
	// same time, and by whom accepts it.
	turn  chan struct{}
	offer *broker.Offer // nil: resumed from a lease

	// Guarded by hands.mu.
	claim *broker.Claim // nil until accepted
	lease string        // of claim
	until time.Time
	users int  // requests about it that are under way
	heard bool // there was one
}

// take puts an offer, or a claim, into hand.
func (h *hands) take(agent string, offer *broker.Offer, claim *broker.Claim, bytes int) (*held, error) {
	it := &held{token: newToken(), agent: agent, bytes: int64(bytes), turn: make(chan struct{}, 1), offer: offer, claim: claim, until: time.Now().Add(firstWord)}
	if err := h.d.offers.take(agent, 1); err != nil {
		return nil, err
	}
	if err := h.d.packages.take(agent, it.bytes); err != nil {
		h.d.offers.give(agent, 1)
		return nil, err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.all[it.token] = it
	if claim != nil {
		it.lease = claim.Lease()
		h.leases[it.lease] = it
	}
	return it, nil
}

// of finds an offer that an agent has in hand, and keeps it while it is used.
func (h *hands) of(agent, token string) (it *held, done func(), ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.use(agent, h.all[token])
}

// under finds what it has in hand by its lease.
func (h *hands) under(agent, lease string) (it *held, done func(), ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.use(agent, h.leases[lease])
}

// use has the lock.
func (h *hands) use(agent string, it *held) (_ *held, done func(), ok bool) {
	if it == nil || it.agent != agent {
		return nil, nil, false
	}
	it.users++
	it.heard = true
	return it, func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		it.users--
		it.until = time.Now().Add(broker.AckWait)
	}, true
}

// grow takes memory for a package that is fetched, and gives it back where bytes
// are negative.
func (h *hands) grow(ctx context.Context, it *held, bytes int64) error {
	if err := h.d.packages.await(ctx, it.agent, bytes); err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.all[it.token] != it { // forgotten meanwhile, with what it had
		h.d.packages.give(it.agent, bytes)
		return nil
	}
	it.bytes += bytes
	return nil
}

func (h *hands) claimOf(it *held) *broker.Claim {
	h.mu.Lock()
	defer h.mu.Unlock()
	return it.claim
}

func (h *hands) accepted(it *held, claim *broker.Claim) {
	h.mu.Lock()
	defer h.mu.Unlock()
	it.claim, it.lease = claim, claim.Lease()
	if h.all[it.token] == it {
		h.leases[it.lease] = it
	}
}

// forget lets go of one. Whoever is at work with it goes on.
func (h *hands) forget(it *held) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.remove(it)
}

func (h *hands) remove(it *held) {
	if h.all[it.token] != it {
		return
	}
	delete(h.all, it.token)
	if h.leases[it.lease] == it {
		delete(h.leases, it.lease)
	}
	h.d.offers.give(it.agent, 1)
	h.d.packages.give(it.agent, it.bytes)
}

// reclaim lets go of what an agent has not spoken of for longest, and that no request
// is about. sized looks for those with packages.
func (h *hands) reclaim(agent string, sized bool) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	var oldest *held
	for _, it := range h.all {
		if it.agent == agent && it.users == 0 && !(sized && it.bytes == 0) && (oldest == nil || it.until.Before(oldest.until)) {
			oldest = it
		}
	}
	if oldest == nil {
		return false
	}
	h.drop(oldest)
	return true
}

// drop forgets one, and gives its offer back if that was not accepted.
func (h *hands) drop(it *held) {
	if it.offer != nil && it.claim == nil {
		_ = it.offer.GiveBack() // else it comes again after the ack wait
	}
	h.remove(it)
}

func (h *hands) sweep(now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, it := range h.all {
		if it.users > 0 || now.Before(it.until) {
			continue
		}
		if it.offer != nil && !it.heard {
			_ = it.offer.GiveBack() // else it comes again after the ack wait, as what was heard of does
		}
		h.remove(it)
	}
}

// letGo gives back at the end what nobody has accepted. What was accepted goes on
// through another door.
func (h *hands) letGo() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, it := range h.all {
		h.drop(it)
	}
}

// begin waits for the turn to use an offer.
func (it *held) begin(ctx context.Context) error {
	select {
	case it.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%w: an earlier request about the offer: %w", broker.ErrUnreachable, ctx.Err())
	}
}

func (it *held) end() { <-it.turn }

// claimed finds the claim that a request is about: in hand, or by its lease. The
// agent, the lease and the fence must be those of the handoff as the ledger has it.
// done is to be called when the request is over.
func (d *Door) claimed(ctx context.Context, agent string, ref *claimRef) (it *held, claim *broker.Claim, done func(), err error) {
	if _, err := d.leaseOf(agent, ref); err != nil {
		return nil, nil, nil, err
	}
	if it, done, ok := d.hand.under(agent, ref.Lease); ok {
		if claim := d.hand.claimOf(it); sameFence(claim, ref.Fence) == nil {
			return it, claim, done, nil
		}
		done() // its holder may have it again by now, through another door: the ledger tells
	}
	if claim, err = d.b.Resume(ctx, ref.Lease); err != nil {
		return nil, nil, nil, err
	}
	if err := sameFence(claim, ref.Fence); err != nil {
		return nil, nil, nil, err
	}
	if it, err = d.hand.take(agent, nil, claim, len(claim.Package)); err != nil {
		return nil, claim, func() {}, nil // as full as it may be, and a report is let through all the same
	}
	_, done, ok := d.hand.of(agent, it.token)
	if !ok { // forgotten at once: the door ends
		done = func() {}
	}
	return it, claim, done, nil
}

// leaseOf refuses the leases of other agents, before anything is read.
func (d *Door) leaseOf(agent string, ref *claimRef) (broker.LeaseToken, error) {
	lease, err := broker.ParseLease(ref.Lease)
	if err == nil && lease.Agent != agent {
		err = protocol.Errorf(protocol.CodeLeaseInvalid, "lease", "is another agent's than %s", agent)
	}
	return lease, err
}

func sameFence(claim *broker.Claim, fence uint64) error {
	if is := claim.Fence(); is != fence {
		return fmt.Errorf("handoff %s has fence %d, the request says %d: %w", claim.Ticket, is, fence, broker.ErrLeaseLost)
	}
	return nil
}
