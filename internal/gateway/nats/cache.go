package natsgateway

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/agenthandoff/handoff/broker"
)

// offerCache has the offers that agents got through this gateway and have not answered. It has
// nothing that the queue does not have: an evicted offer comes again.
type offerCache struct {
	g   *Gateway
	mu  sync.Mutex
	all map[string]*entry // by token
}

// firstContactTimeout is how soon an agent must ask something about a new offer. Else the
// answer with the offer was lost, it seems, and the offer is released: a worker asks
// something about each of its offers every 10 s at least.
const firstContactTimeout = broker.AckWait / 2

// entry is an offer. It is forgotten one AckWait after the last request about it.
type entry struct {
	token, agent string
	bytes        int64 // of the memory that it has taken

	// turn serialises the requests about the offer.
	locked chan struct{}
	offer  *broker.Offer

	// Guarded by offerCache.mu.
	until   time.Time
	pins    int  // requests about it now
	wasUsed bool // there was one
}

// add caches an offer.
func (c *offerCache) add(agent string, offer *broker.Offer, bytes int) (*entry, error) {
	e := &entry{token: newToken(), agent: agent, bytes: int64(bytes), locked: make(chan struct{}, 1), offer: offer, until: time.Now().Add(firstContactTimeout)}
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
	return e, nil
}

// byToken finds an agent's entry, and keeps it until done is called.
func (c *offerCache) byToken(agent, token string) (e *entry, done func(), ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e = c.all[token]
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
func (c *offerCache) reserveBytes(ctx context.Context, e *entry, bytes int64) error {
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

// evict evicts an entry. Requests that work with it go on.
func (c *offerCache) evict(e *entry) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.remove(e)
}

func (c *offerCache) remove(e *entry) {
	if c.all[e.token] != e {
		return
	}
	delete(c.all, e.token)
	c.g.offers.release(e.agent, 1)
	c.g.packages.release(e.agent, e.bytes)
}

// reclaim evicts the entry of an agent that was used least recently, among those without
// a request. sized looks for entries with packages.
func (c *offerCache) reclaim(agent string, sized bool) bool {
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

// evictAndRelease evicts an entry, and releases its offer.
func (c *offerCache) evictAndRelease(e *entry) {
	_ = e.offer.Release() // else it comes again after the ack wait
	c.remove(e)
}

func (c *offerCache) sweep(now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, e := range c.all {
		if e.pins > 0 || now.Before(e.until) {
			continue
		}
		if !e.wasUsed {
			_ = e.offer.Release() // else it comes again after the ack wait, as what was heard of does
		}
		c.remove(e)
	}
}

// releaseAll releases all offers.
func (c *offerCache) releaseAll() {
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
