package natsgateway

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/protocol"
)

// claimCache has the offers and claims that agents got through this gateway. It saves
// reads, and has nothing that the ledger and the queue do not have: an evicted offer comes
// again, and an evicted claim goes on by its lease.
type claimCache struct {
	g      *Gateway
	mu     sync.Mutex
	all    map[string]*entry // by token
	leases map[string]*entry // those that are accepted
}

// firstContactTimeout is how soon an agent must ask something about a new offer. Else the
// answer with the offer was lost, it seems, and the offer is released: a worker asks
// something about each of its offers every 10 s at least.
const firstContactTimeout = broker.AckWait / 2

// entry is an offer or a claim. It is forgotten one AckWait after the last request about it.
type entry struct {
	token, agent string
	bytes        int64 // of the memory that it has taken

	// turn serialises the requests about the offer.
	locked chan struct{}
	offer  *broker.Offer // nil: resumed from a lease

	// Guarded by claimCache.mu.
	claim   *broker.Claim // nil until accepted
	lease   string        // of claim
	until   time.Time
	pins    int  // requests about it now
	wasUsed bool // there was one
}

// add caches an offer, or a claim.
func (c *claimCache) add(agent string, offer *broker.Offer, claim *broker.Claim, bytes int) (*entry, error) {
	e := &entry{token: newToken(), agent: agent, bytes: int64(bytes), locked: make(chan struct{}, 1), offer: offer, claim: claim, until: time.Now().Add(firstContactTimeout)}
	if err := c.g.offers.reserve(agent, 1); err != nil {
		return nil, err
	}
	if err := c.g.packages.reserve(agent, e.bytes); err != nil {
		c.g.offers.release(agent, 1)
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.all[e.token] = e
	if claim != nil {
		e.lease = claim.Lease()
		c.leases[e.lease] = e
	}
	return e, nil
}

// byToken finds an agent's entry, and keeps it until done is called.
func (c *claimCache) byToken(agent, token string) (e *entry, done func(), ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.pin(agent, c.all[token])
}

// byLease is byToken for an accepted handoff.
func (c *claimCache) byLease(agent, lease string) (e *entry, done func(), ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.pin(agent, c.leases[lease])
}

// pin keeps an entry until done is called. The caller has the lock.
func (c *claimCache) pin(agent string, e *entry) (_ *entry, done func(), ok bool) {
	if e == nil || e.agent != agent {
		return nil, nil, false
	}
	e.pins++
	e.wasUsed = true
	return e, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		e.pins--
		e.until = time.Now().Add(broker.AckWait)
	}, true
}

// reserveBytes takes memory for a package that is fetched, and frees it where bytes
// are negative.
func (c *claimCache) reserveBytes(ctx context.Context, e *entry, bytes int64) error {
	if err := c.g.packages.awaitFree(ctx, e.agent, bytes); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.all[e.token] != e { // forgotten meanwhile, with what it had
		c.g.packages.release(e.agent, bytes)
		return nil
	}
	e.bytes += bytes
	return nil
}

func (c *claimCache) claimOf(e *entry) *broker.Claim {
	c.mu.Lock()
	defer c.mu.Unlock()
	return e.claim
}

func (c *claimCache) setClaim(e *entry, claim *broker.Claim) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e.claim, e.lease = claim, claim.Lease()
	if c.all[e.token] == e {
		c.leases[e.lease] = e
	}
}

// evict evicts an entry. Requests that work with it go on.
func (c *claimCache) evict(e *entry) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.remove(e)
}

func (c *claimCache) remove(e *entry) {
	if c.all[e.token] != e {
		return
	}
	delete(c.all, e.token)
	if c.leases[e.lease] == e {
		delete(c.leases, e.lease)
	}
	c.g.offers.release(e.agent, 1)
	c.g.packages.release(e.agent, e.bytes)
}

// reclaim evicts the entry of an agent that was used least recently, among those without
// a request. sized looks for entries with packages.
func (c *claimCache) reclaim(agent string, sized bool) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	var oldest *entry
	for _, e := range c.all {
		if e.agent == agent && e.pins == 0 && !(sized && e.bytes == 0) && (oldest == nil || e.until.Before(oldest.until)) {
			oldest = e
		}
	}
	if oldest == nil {
		return false
	}
	c.evictAndRelease(oldest)
	return true
}

// evictAndRelease evicts an entry, and releases its offer if that was not accepted.
func (c *claimCache) evictAndRelease(e *entry) {
	if e.offer != nil && e.claim == nil {
		_ = e.offer.Release() // else it comes again after the ack wait
	}
	c.remove(e)
}

func (c *claimCache) sweep(now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, e := range c.all {
		if e.pins > 0 || now.Before(e.until) {
			continue
		}
		if e.offer != nil && !e.wasUsed {
			_ = e.offer.Release() // else it comes again after the ack wait, as what was heard of does
		}
		c.remove(e)
	}
}

// releaseAll releases all offers that were not accepted. Claims go on through another
// gateway.
func (c *claimCache) releaseAll() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, e := range c.all {
		c.evictAndRelease(e)
	}
}

// lock waits until no other request uses the offer.
func (e *entry) lock(ctx context.Context) error {
	select {
	case e.locked <- struct{}{}:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%w: an earlier request about the offer: %w", broker.ErrUnreachable, ctx.Err())
	}
}

func (e *entry) unlock() { <-e.locked }

// claimOfRequest finds the claim that a request is about: cached, or by its lease. The agent, the
// lease and the fence must be those of the handoff in the ledger. done is to be called
// when the request is over.
func (g *Gateway) claimOfRequest(ctx context.Context, agent string, ref *claimRef) (e *entry, claim *broker.Claim, done func(), err error) {
	if _, err := g.leaseOf(agent, ref); err != nil {
		return nil, nil, nil, err
	}
	if e, done, ok := g.cache.byLease(agent, ref.Lease); ok {
		if claim := g.cache.claimOf(e); sameFence(claim, ref.Fence) == nil {
			return e, claim, done, nil
		}
		done() // its holder may have it again by now, through another gateway: the ledger tells
	}
	if claim, err = g.b.Resume(ctx, ref.Lease); err != nil {
		return nil, nil, nil, err
	}
	if err := sameFence(claim, ref.Fence); err != nil {
		return nil, nil, nil, err
	}
	if e, err = g.cache.add(agent, nil, claim, len(claim.Package)); err != nil {
		return nil, claim, func() {}, nil // as full as it may be, and a report is let through all the same
	}
	_, done, ok := g.cache.byToken(agent, e.token)
	if !ok { // forgotten at once: the gateway ends
		done = func() {}
	}
	return e, claim, done, nil
}

// leaseOf refuses the leases of other agents, before anything is read.
func (g *Gateway) leaseOf(agent string, ref *claimRef) (broker.LeaseToken, error) {
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
