package service

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/worker"
)

var _ worker.Relay = (*Client)(nil)

// NewHolder implements worker.Relay. The id is made of the agent and of a key that
// this client keeps to itself.
func (c *Client) NewHolder(agent string) string {
	key := uuid.NewString()
	id := HolderID(agent, key)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.keys[id] = key
	return id
}

func (c *Client) key(id string) (string, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	key, ok := c.keys[id]
	if !ok {
		return "", fmt.Errorf("the holder %s was not made by NewHolder of this client", id)
	}
	return key, nil
}

// mine refuses what a door would: this client speaks for one agent.
func (c *Client) mine(agent string) error {
	if agent != c.agent {
		return forbidden("agent", "is %s, and this client is of %s", agent, c.agent)
	}
	return nil
}

// Register implements worker.Relay.
func (c *Client) Register(ctx context.Context, p protocol.Profile) (protocol.Profile, error) {
	return c.register(ctx, p, false)
}

// ReplaceProfile changes the profile that is there, where the door allows it.
func (c *Client) ReplaceProfile(ctx context.Context, p protocol.Profile) (protocol.Profile, error) {
	return c.register(ctx, p, true)
}

func (c *Client) register(ctx context.Context, p protocol.Profile, replace bool) (protocol.Profile, error) {
	if err := c.mine(p.ID); err != nil {
		return p, err
	}
	raw, err := encode(p)
	if err != nil {
		return p, err
	}
	var answer profileAnswer
	if _, err := c.call(ctx, "", verbRegister, false, 0, &registerRequest{Profile: raw, Replace: replace}, &answer); err != nil {
		return p, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.paused, c.leaseMS = answer.Profile.Paused, answer.LeaseMS
	return answer.Profile, nil
}

// Lease is what workers on this engine have by default, as a door said when the
// agent was registered; 0 is not known.
func (c *Client) Lease() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return time.Duration(c.leaseMS) * time.Millisecond
}

// Paused implements worker.Relay: what the last pull or beat said. Only of an agent
// that was paused then a door is asked.
func (c *Client) Paused(ctx context.Context, _ string) bool {
	c.mu.Lock()
	paused := c.paused
	c.mu.Unlock()
	if !paused {
		return false
	}
	var answer profileAnswer
	if _, err := c.call(ctx, "", verbProfile, false, 0, &empty{}, &answer); err != nil {
		return true // as it was
	}
	c.setPaused(answer.Profile.Paused)
	return answer.Profile.Paused
}

func (c *Client) setPaused(paused bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.paused = paused
}

// Beat implements worker.Relay.
func (c *Client) Beat(ctx context.Context, h protocol.Holder) error {
	key, err := c.key(h.ID)
	if err != nil {
		return err
	}
	request := &presenceRequest{Holder: key, LeaseMS: h.LeaseMS, Slots: h.Slots, Busy: h.Busy, Draining: h.Draining, Polling: h.Polling,
		Host: protocol.CutText(h.Host, protocol.NameBytesMax), PID: h.PID, StartedAt: h.StartedAt}
	var answer presenceAnswer
	if _, err := c.call(ctx, "", verbBeat, false, 0, request, &answer); err != nil {
		return err
	}
	c.setPaused(answer.Paused)
	return nil
}

// Leave implements worker.Relay.
func (c *Client) Leave(ctx context.Context, h protocol.Holder) error {
	key, err := c.key(h.ID)
	if err != nil {
		return err
	}
	_, err = c.call(ctx, "", verbLeave, false, 0, &presenceRequest{Holder: key}, &empty{})
	return err
}

// Pull implements worker.Relay. When ctx ends, what comes all the same is given
// back, until Close. Should an answer be lost, the offers in it come again after 15 s.
func (c *Client) Pull(ctx context.Context, agent string, most int, wait time.Duration) ([]worker.Offer, error) {
	if err := c.mine(agent); err != nil {
		return nil, err
	}
	type pulled struct {
		offers []worker.Offer
		err    error
	}
	came := make(chan pulled, 1)
	c.wg.Go(func() {
		offers, err := c.pull(c.life, most, min(wait, WaitMax))
		came <- pulled{offers, err}
	})
	select {
	case p := <-came:
		return p.offers, p.err
	case <-ctx.Done():
	}
	c.wg.Go(func() {
		for _, offer := range (<-came).offers {
			_ = offer.GiveBack() // else it comes again a little later
		}
	})
	return nil, ctx.Err()
}

func (c *Client) pull(ctx context.Context, most int, wait time.Duration) ([]worker.Offer, error) {
	var answer pullAnswer
	door, err := c.call(ctx, "", verbPull, false, max(wait, time.Millisecond), &pullRequest{Most: min(most, OffersMax), WaitMS: wait.Milliseconds()}, &answer)
	if err != nil {
		return nil, err
	}
	c.setPaused(answer.Paused)
	offers := make([]worker.Offer, len(answer.Offers))
	for i := range answer.Offers {
		offers[i] = newOffer(c, door, &answer.Offers[i])
	}
	return offers, nil
}

// Reconnected implements worker.Relay.
func (c *Client) Reconnected(ctx context.Context) <-chan struct{} {
	again := make(chan struct{}, 1)
	status := c.nc.StatusChanged(nats.CONNECTED)
	c.wg.Go(func() {
		defer c.nc.RemoveStatusListener(status)
		for {
			select {
			case <-ctx.Done():
				return
			case <-c.life.Done():
				return
			case _, ok := <-status:
				if !ok {
					return
				}
			}
			select {
			case again <- struct{}{}:
			default: // one is waiting to be read: that will do
			}
		}
	})
	return again
}

// End implements worker.Relay.
func (c *Client) End(ctx context.Context, ticket string) (protocol.Return, error) {
	if _, err := c.Wait(ctx, ticket, "closed"); err != nil {
		return protocol.Return{}, err
	}
	return c.Return(ctx, ticket)
}

// Submit hands over a package of this agent's, which must have a key: of that the
// ticket is made, so that it may be submitted again. It returns the handoff as it
// stands.
func (c *Client) Submit(ctx context.Context, pkg protocol.Package) (protocol.State, error) {
	raw, err := protocol.EncodePackage(pkg)
	if err != nil {
		return protocol.State{}, err
	}
	var answer ticketAnswer
	_, err = c.call(ctx, "", verbSubmit, false, 0, &submitRequest{Package: raw}, &answer)
	return answer.State, err
}

// Status reads where a handoff stands that this agent has to do with. Others are
// not found.
func (c *Client) Status(ctx context.Context, ticket string) (protocol.State, error) {
	var answer ticketAnswer
	_, err := c.call(ctx, "", verbStatus, false, 0, &ticketRequest{Ticket: ticket}, &answer)
	return answer.State, err
}

// Wait blocks until a handoff is closed, or accepted, or ctx ends; then it returns
// the last state that it has, and ctx's error.
func (c *Client) Wait(ctx context.Context, ticket, until string) (last protocol.State, err error) {
	for {
		var answer ticketAnswer
		_, err := c.call(ctx, "", verbStatus, false, WaitMax, &ticketRequest{Ticket: ticket, Until: until, WaitMS: WaitMax.Milliseconds()}, &answer)
		if err == nil {
			last = answer.State
		}
		if err != nil || answer.Ready {
			return last, err
		}
	}
}

// Result reads the result of a handoff. Without one the error is broker.ErrNotFound,
// and the state says how the handoff stands.
func (c *Client) Result(ctx context.Context, ticket string) (protocol.Result, protocol.State, error) {
	var answer ticketAnswer
	if _, err := c.call(ctx, "", verbResult, false, 0, &ticketRequest{Ticket: ticket}, &answer); err != nil {
		return protocol.Result{}, answer.State, err
	}
	if answer.Result == nil {
		return protocol.Result{}, answer.State, fmt.Errorf("result of %s: %w", ticket, broker.ErrNotFound)
	}
	return *answer.Result, answer.State, nil
}

// Return is the end of a closed handoff as its source gets it.
func (c *Client) Return(ctx context.Context, ticket string) (protocol.Return, error) {
	var answer ticketAnswer
	if _, err := c.call(ctx, "", verbReturn, false, 0, &ticketRequest{Ticket: ticket}, &answer); err != nil {
		return protocol.Return{}, err
	}
	if answer.Return == nil {
		return protocol.Return{}, fmt.Errorf("return of %s: %w", ticket, broker.ErrNotFound)
	}
	return *answer.Return, nil
}

// raw writes what a request carries as JSON.
func raw(v any) (json.RawMessage, error) { return encode(v) }
