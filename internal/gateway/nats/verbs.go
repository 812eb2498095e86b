package natsgateway

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"time"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/protocol"
)

// verbs are those for workers, who ask for the rest by the names of operations. The verbs for the
// chunks of large bodies are no part of them.
var verbs = map[string]verb{
	verbRegister: typed((*Gateway).register),
	verbProfile:  typed((*Gateway).profile),
	verbBeat:     typed((*Gateway).beat),
	verbLeave:    typed((*Gateway).leave),

	verbPull:         typed((*Gateway).pull),
	verbPackage:      typed((*Gateway).pkg),
	verbExtend:       typed((*Gateway).extend),
	verbReleaseOffer: typed((*Gateway).releaseOffer),
	verbAcknowledge:  typed((*Gateway).acknowledge),
}

// Verbs returns all that an agent may ask a gateway for beyond the operations, in the order of their
// names.
func Verbs() []string {
	return slices.Sorted(func(yield func(string) bool) {
		for verb := range verbs {
			if !yield(verb) {
				return
			}
		}
		_ = yield(verbPut) && yield(verbRead)
	})
}

// register makes the agent's queue, and its profile as far as the gateway allows it.
func (g *Gateway) register(ctx context.Context, agent string, request *registerRequest) (any, error) {
	wanted := protocol.Profile{ID: agent}
	if len(request.Profile) > 0 {
		var err error
		if wanted, err = protocol.DecodeProfile(request.Profile); err != nil {
			return nil, err
		}
		if wanted.ID != "" && wanted.ID != agent {
			return nil, forbidden("profile.id", "is %s, and %s asks", wanted.ID, agent)
		}
		wanted.ID = agent
	}
	there, err := g.b.Profile(ctx, agent)
	isNew := errors.Is(err, broker.ErrNotFound) && agent != protocol.Human
	switch {
	case err != nil && !errors.Is(err, broker.ErrNotFound):
		return nil, err
	case isNew && g.cfg.Profiles == ProfilesKeep:
		return nil, forbidden("profile", "%s is not registered, and this gateway registers no agents; it is registered inside", agent)
	case request.Replace && g.cfg.Profiles != ProfilesReplace:
		return nil, forbidden("replace", "this gateway changes no profile that is there; that of %s is changed inside", agent)
	case agent == protocol.Human && err != nil: // a person exists without a profile
		there = wanted
	case isNew || request.Replace:
		wanted.RegisteredByWork = true
		wanted.UpdatedAt = time.Now().UTC().Truncate(time.Microsecond)
		if err := wanted.Validate(); err != nil {
			return nil, err
		}
		if err := g.b.PutProfile(ctx, wanted); err != nil {
			return nil, err
		}
		there = wanted
	}
	if err := errors.Join(g.b.EnsureQueue(ctx, agent), g.b.KeepOffers(ctx, agent, broker.AckWait)); err != nil {
		return nil, err
	}
	return &profileAnswer{Profile: there, LeaseMS: g.leaseMS()}, nil
}

// registeredProfile is the profile of the agent, which must have one: a
// made-up name gets no queue.
func (g *Gateway) registeredProfile(ctx context.Context, agent string) (protocol.Profile, error) {
	directory, err := g.b.Directory(ctx)
	if err != nil {
		return protocol.Profile{}, err
	}
	if profile, ok := directory.Agent(agent); ok {
		return profile, nil
	}
	profile, err := g.b.Profile(ctx, agent) // the snapshot may lag behind its registration
	if errors.Is(err, broker.ErrNotFound) {
		return profile, protocol.Errorf(protocol.CodeUnknownAgent, "agent", "%s is not registered; ask for %s first", agent, verbRegister)
	}
	return profile, err
}

func (g *Gateway) profile(ctx context.Context, agent string, _ *empty) (any, error) {
	profile, err := g.registeredProfile(ctx, agent)
	if err != nil {
		return nil, err
	}
	return &profileAnswer{Profile: profile, LeaseMS: g.leaseMS()}, nil
}

// holder makes the holder of a request: the agent's, whatever it says.
func holder(agent, key string, leaseMS int64) (protocol.Holder, error) {
	if err := protocol.CheckID("holder", key); err != nil {
		return protocol.Holder{}, err
	}
	switch {
	case len(key) < holderKeyMin:
		return protocol.Holder{}, invalid("holder", "is %d characters long, must be %d to %d that cannot be guessed", len(key), holderKeyMin, protocol.IDBytesMax)
	case leaseMS < protocol.LeaseMinMS || leaseMS > protocol.LeaseMaxMS:
		return protocol.Holder{}, invalid("lease_ms", "is %d, must be %d to %d", leaseMS, protocol.LeaseMinMS, protocol.LeaseMaxMS)
	}
	return protocol.Holder{ID: HolderID(agent, key), Agent: agent, LeaseMS: leaseMS}, nil
}

func (g *Gateway) beat(ctx context.Context, agent string, r *presenceRequest) (any, error) {
	h, err := holder(agent, r.Holder, r.LeaseMS)
	if err != nil {
		return nil, err
	}
	switch {
	case r.Slots < 0 || r.Slots > protocol.ConcurrencyMax:
		return nil, invalid("slots", "is %d, must be 0 to %d", r.Slots, protocol.ConcurrencyMax)
	case r.Busy < 0 || r.Busy > protocol.ConcurrencyMax:
		return nil, invalid("busy", "is %d, must be 0 to %d", r.Busy, protocol.ConcurrencyMax)
	case len(r.Host) > protocol.NameBytesMax:
		return nil, protocol.Errorf(protocol.CodeTooLarge, "host", "%s", protocol.OverSize(len(r.Host), protocol.NameBytesMax))
	}
	profile, err := g.registeredProfile(ctx, agent)
	if err != nil {
		return nil, err
	}
	h.Slots, h.Busy, h.Draining, h.Program, h.Polling = r.Slots, r.Busy, r.Draining, r.Program, r.Polling
	h.Host, h.PID, h.StartedAt = r.Host, r.PID, r.StartedAt
	if err := g.b.Beat(ctx, h); err != nil {
		return nil, err
	}
	return &presenceAnswer{Holder: h.ID, Paused: profile.Paused}, nil
}

func (g *Gateway) leave(ctx context.Context, agent string, r *presenceRequest) (any, error) {
	h, err := holder(agent, r.Holder, max(r.LeaseMS, protocol.LeaseMinMS))
	if err != nil {
		return nil, err
	}
	return &empty{}, g.b.RemoveHolder(ctx, h.ID)
}

// pull takes offers for an agent, as many as it may have cached.
func (g *Gateway) pull(ctx context.Context, agent string, r *pullRequest) (any, error) {
	wait, err := waitOf(r.WaitMS)
	if err != nil {
		return nil, err
	}
	if r.Most < 1 || r.Most > offersMax {
		return nil, invalid("most", "is %d, must be 1 to %d", r.Most, offersMax)
	}
	profile, err := g.registeredProfile(ctx, agent)
	if err != nil || profile.Paused {
		return &pullAnswer{Paused: profile.Paused}, err
	}
	if directory, err := g.b.Directory(ctx); err == nil {
		if live, _, _ := directory.Load(agent); live == 0 { // it is no worker that beats
			if err := g.b.RecordPoll(ctx, profile); err != nil {
				return nil, err
			}
		}
	}
	inHand, ofPackages := g.offers.freeFor(agent), g.packages.freeFor(agent)/(2*protocol.InlineBytesMax)
	switch {
	case inHand < 1:
		return nil, g.offers.busyError(agent)
	case ofPackages < 1:
		return nil, g.packages.busyError(agent)
	}
	// The wait is the engine's, and ends with an empty answer. Only a gateway that stops
	// ends it sooner, or an agent that has not got its share of the gateway.
	var offers []*broker.Offer
	ended := false
	g.idle(ctx, func(idle context.Context) {
		limited, cancel := context.WithTimeout(idle, wait+answerTimeMax/2)
		defer cancel()
		offers, err = g.b.Pull(limited, agent, int(min(int64(r.Most), inHand, ofPackages)), wait)
		ended = idle.Err() != nil
	})
	switch {
	case err == nil:
		return g.deliver(agent, offers), nil
	case ended && ctx.Err() == nil:
		return &pullAnswer{}, nil
	}
	return nil, err
}

// deliver puts offers into hand. Their packages go along as far as the message has
// room for them.
func (g *Gateway) deliver(agent string, offers []*broker.Offer) *pullAnswer {
	answer := &pullAnswer{}
	// A state is 32 KiB at most, and two as a rule: what is left is for packages.
	room := g.chunkMax()/2 - len(offers)*4<<10
	for _, offer := range offers {
		size := 0
		if offer.Inline() {
			size = inlineSize(offer)
		}
		e, err := g.cache.add(agent, offer, size+offer.Bytes())
		if err != nil {
			_ = offer.Release() // else it comes again after the ack wait
			continue
		}
		wire := wireOffer{Token: e.token, Ticket: offer.Ticket, Offer: offer.Sequence, State: offer.State}
		if offer.Inline() && size <= room {
			room -= size
			if pkg, err := offer.Package(g.ctx); err == nil { // which asks nothing
				wire.Whole, wire.content = true, content{pkg, offer.Answers(), offer.Trail()}
			}
		}
		answer.Offers = append(answer.Offers, wire)
	}
	return answer
}

// inlineSize is about how much an offer's package, answers and trail are on the wire.
func inlineSize(offer *broker.Offer) int {
	pkg, _ := offer.Package(context.Background()) // it is inline
	size := len(pkg)
	for _, a := range offer.Answers() {
		size += 256 + len(a.Text) + len(a.DenyReason)
		for name, value := range a.Variables {
			size += len(name) + len(value)
		}
	}
	for _, t := range offer.Trail() {
		if raw, err := json.Marshal(t); err == nil {
			size += len(raw)
		}
	}
	return size
}

func (g *Gateway) offerEntry(ctx context.Context, agent, token string) (*entry, func(), error) {
	e, done, ok := g.cache.byToken(agent, token)
	if !ok {
		return nil, nil, protocol.Errorf(protocol.CodeGone, "token", "is of no offer here: it was cached for %v, accepted elsewhere, or never given out to %s; pull the next one", broker.AckWait, agent)
	}
	if err := e.lock(ctx); err != nil {
		done()
		return nil, nil, err
	}
	return e, func() { e.unlock(); done() }, nil
}

// pkg returns what is handed off, and what was said about it.
func (g *Gateway) pkg(ctx context.Context, agent string, r *offerRequest) (any, error) {
	e, done, err := g.offerEntry(ctx, agent, r.Token)
	if err != nil {
		return nil, err
	}
	defer done()
	body, err := g.fetch(ctx, e)
	if err != nil {
		return nil, err
	}
	return &content{body, e.offer.Answers(), e.offer.Trail()}, nil
}

// fetch reads a large package, once there is memory for it. The turn is ours.
func (g *Gateway) fetch(ctx context.Context, e *entry) (json.RawMessage, error) {
	size := e.offer.Size()
	if size == 0 {
		return e.offer.Package(ctx)
	}
	if err := g.cache.reserveBytes(ctx, e, size); err != nil {
		return nil, err
	}
	body, err := e.offer.Package(ctx)
	if err != nil { // what was fetched of it is asked for again
		_ = g.cache.reserveBytes(ctx, e, e.offer.Size()*-1)
	}
	return body, err
}

func (g *Gateway) extend(_ context.Context, agent string, r *offerRequest) (any, error) {
	e, done, ok := g.cache.byToken(agent, r.Token)
	if !ok {
		return nil, protocol.Errorf(protocol.CodeGone, "token", "is of no offer here; pull the next one")
	}
	defer done()
	return &empty{}, e.offer.Extend()
}

func (g *Gateway) releaseOffer(ctx context.Context, agent string, r *offerRequest) (any, error) {
	e, done, err := g.offerEntry(ctx, agent, r.Token)
	if err != nil {
		return nil, err
	}
	defer done()
	g.cache.evict(e)
	return &empty{}, e.offer.Release()
}

// acknowledge answers an offer. One that this gateway does not have may have been
// accepted before, through a gateway that is gone: the ledger tells.
func (g *Gateway) acknowledge(ctx context.Context, agent string, r *acknowledgeRequest) (any, error) {
	ack, err := protocol.DecodeAck(r.Ack)
	if err != nil {
		return nil, err
	}
	h, err := holder(agent, r.Holder, r.LeaseMS)
	if err != nil {
		return nil, err
	}
	e, done, gone := g.offerEntry(ctx, agent, r.Token)
	if errors.Is(gone, &protocol.Error{Code: protocol.CodeGone}) {
		return g.acknowledgedBefore(ctx, agent, r, ack, h, gone)
	}
	if gone != nil {
		return nil, gone
	}
	defer done()
	if ack.Status == protocol.AckAccepted { // a package that is gone can still be refused
		if _, err := g.fetch(ctx, e); err != nil {
			return nil, err
		}
	}
	claim, err := e.offer.Acknowledge(ctx, h, ack, r.Start)
	switch {
	case errors.Is(err, broker.ErrOfferGone):
		g.cache.evict(e)
		return g.acknowledgedBefore(ctx, agent, r, ack, h, err)
	case err != nil:
		return nil, err
	case claim == nil:
		g.cache.evict(e)
		return &claimAnswer{}, nil
	}
	g.cache.evict(e)
	return g.accepted(ctx, claim), nil
}

// acknowledgedBefore finds the claim of an acceptance whose answer was lost with
// its gateway. Otherwise the error is gone.
func (g *Gateway) acknowledgedBefore(ctx context.Context, agent string, r *acknowledgeRequest, ack protocol.Ack, h protocol.Holder, gone error) (any, error) {
	ticket, err := protocol.ParseTicket(r.Ticket)
	if err != nil || r.Offer == 0 || ack.Status != protocol.AckAccepted {
		return nil, gone
	}
	_, limit, err := g.b.Capacity(ctx, agent)
	if err != nil {
		return nil, err
	}
	lease := broker.LeaseToken{Ticket: ticket, Agent: agent, Offer: r.Offer, Holder: h.ID, Slot: limit > 0, Suited: true, Worker: true}
	claim, err := g.b.Resume(ctx, lease.String())
	if err != nil || claim.Fence() == 0 {
		if errors.Is(err, broker.ErrUnreachable) {
			return nil, err
		}
		return nil, gone
	}
	return g.accepted(ctx, claim), nil
}

// accepted keeps a claim for the reports of its worker, which are operations.
func (g *Gateway) accepted(ctx context.Context, claim *broker.Claim) *claimAnswer {
	held := g.api.Hold(ctx, claim)
	return &claimAnswer{Lease: held.Lease, State: &held.State, Returns: held.Returns, Children: held.Children}
}

// rereadInterval is how often a request that waits reads the head without a hint.
const rereadInterval = 5 * time.Second
