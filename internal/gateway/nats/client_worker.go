package natsgateway

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"

	"github.com/agenthandoff/handoff/api"
	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/worker"
)

var (
	_ worker.Transport = (*Client)(nil)
	_ api.Source       = (*Client)(nil)
	_ api.Holder       = (*Client)(nil)
	_ api.Approver     = (*Client)(nil)
	_ api.Decider      = (*Client)(nil)
)

// NewHolder implements worker.Transport. The id is made of the agent and of a key that
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

// checkAgent refuses what a gateway would: this client speaks for one agent.
func (c *Client) checkAgent(agent string) error {
	if agent != c.agent {
		return forbidden("agent", "is %s, and this client is of %s", agent, c.agent)
	}
	return nil
}

// Register implements worker.Transport.
func (c *Client) Register(ctx context.Context, p protocol.Profile) (protocol.Profile, error) {
	return c.register(ctx, p, false)
}

// ReplaceProfile changes the profile that is there, where the gateway allows it.
func (c *Client) ReplaceProfile(ctx context.Context, p protocol.Profile) (protocol.Profile, error) {
	return c.register(ctx, p, true)
}

func (c *Client) register(ctx context.Context, p protocol.Profile, replace bool) (protocol.Profile, error) {
	if err := c.checkAgent(p.ID); err != nil {
		return p, err
	}
	raw, err := protocol.Marshal(p)
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

// Lease returns the default lease of workers on this engine, or 0 where it is not known. A
// gateway sends it when the agent is registered.
func (c *Client) Lease() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return time.Duration(c.leaseMS) * time.Millisecond
}

// Paused implements worker.Transport: what the last pull or beat said. Only of an agent
// that was paused then a gateway is asked.
func (c *Client) Paused(ctx context.Context, _ string) bool {
	if !c.isPaused() {
		return false
	}
	var answer profileAnswer
	if _, err := c.call(ctx, "", verbProfile, false, 0, &empty{}, &answer); err != nil {
		return true // as it was
	}
	c.setPaused(answer.Profile.Paused)
	return answer.Profile.Paused
}

// isPaused tells what a gateway said last.
func (c *Client) isPaused() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.paused
}

func (c *Client) setPaused(paused bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.paused = paused
}

// Beat implements worker.Transport.
func (c *Client) Beat(ctx context.Context, h protocol.Holder) error {
	key, err := c.key(h.ID)
	if err != nil {
		return err
	}
	return c.present(ctx, key, h)
}

// present makes the holder of a key present.
func (c *Client) present(ctx context.Context, key string, h protocol.Holder) error {
	request := &presenceRequest{Holder: key, LeaseMS: h.LeaseMS, Slots: h.Slots, Busy: h.Busy, Draining: h.Draining, Polling: h.Polling,
		Host: protocol.CutText(h.Host, protocol.NameBytesMax), PID: h.PID, StartedAt: h.StartedAt}
	var answer presenceAnswer
	if _, err := c.call(ctx, "", verbBeat, false, 0, request, &answer); err != nil {
		return err
	}
	c.setPaused(answer.Paused)
	return nil
}

// Leave implements worker.Transport.
func (c *Client) Leave(ctx context.Context, h protocol.Holder) error {
	key, err := c.key(h.ID)
	if err != nil {
		return err
	}
	_, err = c.call(ctx, "", verbLeave, false, 0, &presenceRequest{Holder: key}, &empty{})
	return err
}

// Pull implements worker.Transport. When ctx ends, what comes all the same is given
// back, until Close. Should an answer be lost, the offers in it come again after 15 s.
func (c *Client) Pull(ctx context.Context, agent string, most int, wait time.Duration) ([]worker.Offer, error) {
	if err := c.checkAgent(agent); err != nil {
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
			_ = offer.Release() // else it comes again a little later
		}
	})
	return nil, ctx.Err()
}

func (c *Client) pull(ctx context.Context, most int, wait time.Duration) ([]worker.Offer, error) {
	var answer pullAnswer
	gateway, err := c.call(ctx, "", verbPull, false, max(wait, time.Millisecond), &pullRequest{Most: min(most, OffersMax), WaitMS: wait.Milliseconds()}, &answer)
	if err != nil {
		return nil, err
	}
	c.setPaused(answer.Paused)
	offers := make([]worker.Offer, len(answer.Offers))
	for i := range answer.Offers {
		offers[i] = newOffer(c, gateway, &answer.Offers[i])
	}
	return offers, nil
}

// Reconnected implements worker.Transport.
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

// End implements worker.Transport.
func (c *Client) End(ctx context.Context, ticket string) (protocol.Return, error) {
	if _, err := c.Wait(ctx, ticket, api.UntilEnded); err != nil {
		return protocol.Return{}, err
	}
	return c.Return(ctx, ticket)
}

// Submit implements api.Source. A package without a key gets a random one, so that it may
// be sent again: until a gateway answers or ctx ends, unless no gateway is there at all.
func (c *Client) Submit(ctx context.Context, pkg protocol.Package) (protocol.State, error) {
	pkg.Key = cmp.Or(pkg.Key, uuid.NewString())
	raw, err := protocol.EncodePackage(pkg)
	if err != nil {
		return protocol.State{}, err
	}
	var answer ticketAnswer
	for { // the key makes that harmless
		_, err = c.call(ctx, "", verbSubmit, false, 0, &submitRequest{Package: raw}, &answer)
		if !errors.Is(err, broker.ErrUnreachable) || errors.Is(err, ErrNobody) || ctx.Err() != nil || c.life.Err() != nil {
			return answer.State, err
		}
	}
}

// Status implements api.Source.
func (c *Client) Status(ctx context.Context, ticket string) (protocol.State, error) {
	return c.status(ctx, ticketRequest{Ticket: ticket})
}

// LastOfChain implements api.Source.
func (c *Client) LastOfChain(ctx context.Context, ticket string) (protocol.State, error) {
	return c.status(ctx, ticketRequest{Ticket: ticket, Of: protocol.ReturnOfChain})
}

func (c *Client) status(ctx context.Context, request ticketRequest) (protocol.State, error) {
	var answer ticketAnswer
	_, err := c.call(ctx, "", verbStatus, false, 0, &request, &answer)
	return answer.State, err
}

// Wait implements api.Source. Silence after the first answer is waited for, unless no
// gateway is there at all.
func (c *Client) Wait(ctx context.Context, ticket string, until api.Until) (protocol.State, error) {
	return c.wait(ctx, ticketRequest{Ticket: ticket}, until)
}

// WaitChain implements api.Source, as Wait does.
func (c *Client) WaitChain(ctx context.Context, ticket string, until api.Until) (protocol.State, error) {
	return c.wait(ctx, ticketRequest{Ticket: ticket, Of: protocol.ReturnOfChain}, until)
}

func (c *Client) wait(ctx context.Context, request ticketRequest, until api.Until) (protocol.State, error) {
	last, err := c.status(ctx, request) // which finds out at once whether there is a gateway
	if err != nil {
		return last, err
	}
	for {
		if isReady(last, until, request.Of == protocol.ReturnOfChain) {
			return last, nil
		}
		var answer ticketAnswer
		waiting := request
		waiting.Until, waiting.WaitMS = until, WaitMax.Milliseconds()
		_, err := c.call(ctx, "", verbStatus, false, WaitMax, &waiting, &answer)
		switch {
		case err == nil:
			last = answer.State
		case ctx.Err() != nil:
			return last, ctx.Err()
		case !errors.Is(err, broker.ErrUnreachable) || errors.Is(err, ErrNobody) || c.life.Err() != nil:
			return last, err
		}
	}
}

// Result implements api.Source.
func (c *Client) Result(ctx context.Context, ticket string) (protocol.Result, protocol.State, error) {
	return c.result(ctx, ticketRequest{Ticket: ticket})
}

// ChainResult implements api.Source.
func (c *Client) ChainResult(ctx context.Context, ticket string) (protocol.Result, protocol.State, error) {
	return c.result(ctx, ticketRequest{Ticket: ticket, Of: protocol.ReturnOfChain})
}

func (c *Client) result(ctx context.Context, request ticketRequest) (protocol.Result, protocol.State, error) {
	var answer ticketAnswer
	if _, err := c.call(ctx, "", verbResult, false, 0, &request, &answer); err != nil {
		return protocol.Result{}, answer.State, err
	}
	if answer.Result == nil {
		return protocol.Result{}, answer.State, fmt.Errorf("result of %s: %w", answer.Ticket, broker.ErrNotFound)
	}
	return *answer.Result, answer.State, nil
}

// Context implements api.Source, and worker.Transport.
func (c *Client) Context(ctx context.Context, ticket string) (protocol.Context, error) {
	return readOfTicket(ctx, c, verbContext, ticket, func(answer *ticketAnswer) *protocol.Context { return answer.Context })
}

// readOfTicket asks for a part of a handoff. An answer without the part is broker.ErrNotFound.
func readOfTicket[T any](ctx context.Context, c *Client, verb, ticket string, part func(*ticketAnswer) *T) (none T, err error) {
	var answer ticketAnswer
	if _, err := c.call(ctx, "", verb, false, 0, &ticketRequest{Ticket: ticket}, &answer); err != nil {
		return none, err
	}
	found := part(&answer)
	if found == nil {
		return none, fmt.Errorf("%s of %s: %w", verb, ticket, broker.ErrNotFound)
	}
	return *found, nil
}

// Return implements api.Source.
func (c *Client) Return(ctx context.Context, ticket string) (protocol.Return, error) {
	return readOfTicket(ctx, c, verbReturn, ticket, func(answer *ticketAnswer) *protocol.Return { return answer.Return })
}

// Cancel implements api.Source.
func (c *Client) Cancel(ctx context.Context, r api.Cancel) (protocol.State, error) {
	var answer ticketAnswer
	_, err := c.call(ctx, "", verbCancel, false, 0, &cancelRequest{Ticket: r.Ticket, Reason: r.Reason, Children: r.Children}, &answer)
	return answer.State, err
}

// Approve implements api.Approver.
func (c *Client) Approve(ctx context.Context, v api.Verdict) (protocol.State, error) {
	return c.decide(ctx, verbApprove, v)
}

// Deny implements api.Approver.
func (c *Client) Deny(ctx context.Context, v api.Verdict) (protocol.State, error) {
	return c.decide(ctx, verbDeny, v)
}

func (c *Client) decide(ctx context.Context, verb string, v api.Verdict) (protocol.State, error) {
	var answer ticketAnswer
	_, err := c.call(ctx, "", verb, false, 0, &verdictRequest{Ticket: v.Ticket, Agent: v.Agent, Any: v.Any, Reason: v.Reason}, &answer)
	return answer.State, err
}

// Approvals implements api.Approver.
func (c *Client) Approvals(ctx context.Context) ([]protocol.State, error) {
	var answer waitingAnswer
	_, err := c.call(ctx, "", verbWaiting, false, 0, &empty{}, &answer)
	return answer.Handoffs, err
}

// Answer implements api.Source.
func (c *Client) Answer(ctx context.Context, ticket string, a protocol.Answer) (protocol.State, error) {
	if err := a.Validate(); err != nil {
		return protocol.State{}, err
	}
	a.By = "" // the gateway knows the caller
	said, err := protocol.Marshal(a)
	if err != nil {
		return protocol.State{}, err
	}
	var answer ticketAnswer
	_, err = c.call(ctx, "", verbAnswer, false, 0, &answerRequest{Ticket: ticket, Answer: said}, &answer)
	return answer.State, err
}
