package worker

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/google/uuid"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/protocol/lifecycle"
)

// Broker has the broker's methods that a worker calls. *broker.Broker satisfies it.
type Broker interface {
	EnsureQueue(ctx context.Context, agent string) error
	KeepOffers(ctx context.Context, agent string, wait time.Duration) error
	Pull(ctx context.Context, agent string, most int, wait time.Duration) ([]*broker.Offer, error)
	Profile(ctx context.Context, agent string) (protocol.Profile, error)
	PutProfile(ctx context.Context, p protocol.Profile) error
	Directory(ctx context.Context) (*lifecycle.Directory, error)
	Beat(ctx context.Context, h protocol.Holder) error
	RemoveHolder(ctx context.Context, id string) error
	Reconnected(ctx context.Context) <-chan struct{}

	// Children of a handoff.
	Wait(ctx context.Context, ticket string, until func(protocol.State) bool) (protocol.State, error)
	Return(ctx context.Context, ticket string) (protocol.Return, error)
	// Context reads the context that a package refers to.
	Context(ctx context.Context, ticket string) (protocol.Context, error)
}

// Transport connects a worker to the broker: the broker itself (New), or something
// between the two that relays its reports (NewOver), such as a gateway's client.
// A transport returns the errors of broker.Offer, broker.Claim and broker.Broker. All methods are
// safe for concurrent use.
type Transport interface {
	// NewHolder makes the id, a UUID, under which a worker of the agent holds
	// handoffs.
	NewHolder(agent string) string
	// Register makes the queue of the agent p.ID, which keeps an offer from others for a lease
	// if a worker is silent about it, and its profile if there is none. It returns the
	// profile that counts.
	Register(ctx context.Context, p protocol.Profile, lease time.Duration) (protocol.Profile, error)
	// Paused reports whether the agent's offers are to wait. It is asked before
	// each pull, so that it should cost no request; not to know is false.
	Paused(ctx context.Context, agent string) bool
	// Pull is broker.Broker's.
	Pull(ctx context.Context, agent string, most int, wait time.Duration) ([]Offer, error)
	// Beat registers a holder, or prolongs its presence by its lease.
	Beat(ctx context.Context, h protocol.Holder) error
	// Leave ends a holder's presence at once.
	Leave(ctx context.Context, h protocol.Holder) error
	// Reconnected receives, coalesced, after the connection came back.
	Reconnected(ctx context.Context) <-chan struct{}
	// Context returns the whole context of a handoff, also where it went by reference.
	Context(ctx context.Context, ticket string) (protocol.Context, error)
	// End blocks until the end of a handoff is there that its parent gets, and returns it.
	End(ctx context.Context, ticket string) (protocol.Return, error)
}

// Offer is a handoff that the queue has put into a worker's hands: see broker.Offer.
type Offer interface {
	Ticket() string
	Sequence() uint64 // the offer's id
	// State is as of the offer, and is not to be changed.
	State() *protocol.State
	Inline() bool
	Package(ctx context.Context) (json.RawMessage, error)
	Answers() []protocol.Answer
	Trail() []protocol.TrailEntry
	Release() error
	Extend() error
	// Acknowledge returns no claim unless the answer was accepted.
	Acknowledge(ctx context.Context, holder protocol.Holder, ack protocol.Ack, start bool) (Claim, error)
}

// Claim is a handoff in a worker's hands: see broker.Claim.
type Claim interface {
	LastState() *protocol.State // not to be changed
	Beat(ctx context.Context) (broker.Signal, error)
	Acknowledge(ctx context.Context, ack protocol.Ack, start bool) error
	Progress(ctx context.Context, progress protocol.Progress) error
	Spend(ctx context.Context, usage protocol.Usage) error
	Decide(ctx context.Context, decision protocol.WorkDecision) error
	Extend(ctx context.Context, by time.Duration, reason string) error
	Complete(ctx context.Context, result protocol.Result, children ...broker.Child) error
	Fail(ctx context.Context, f broker.Failure) error
	Release(ctx context.Context, reason string, partial *protocol.Result) error
	HandOff(ctx context.Context, child broker.Child) (ticket string, err error)
	Suspend(ctx context.Context, children ...int) (suspended bool, err error)
	Escalate(ctx context.Context, rationale, assessment string) error
	Answer(ctx context.Context, answer protocol.Answer) error
	RollBack(ctx context.Context, reason string, partial *protocol.Result) error
	// WorkerLease is the lease of the program that the worker runs; empty where it has none.
	WorkerLease() string
	Lock(ctx context.Context, wait time.Duration, paths ...protocol.LockPath) (seq uint64, err error)
	Unlock(ctx context.Context, paths ...protocol.LockPath) error
	SetVariables(ctx context.Context, set lifecycle.Setting) (protocol.Workspace, error)
	Workspace(ctx context.Context) (protocol.Workspace, error)
	// Returns returns the ends of its children that came with the claim.
	Returns(ctx context.Context) ([]protocol.Return, error)
}

// direct is the broker as a Transport. It, its offers and its claims are no more than
// pointers: to go this way costs nothing.
type direct struct{ b Broker }

func (d direct) NewHolder(string) string { return uuid.NewString() }

func (d direct) Register(ctx context.Context, p protocol.Profile, lease time.Duration) (protocol.Profile, error) {
	if err := errors.Join(d.b.EnsureQueue(ctx, p.ID), d.b.KeepOffers(ctx, p.ID, lease)); err != nil {
		return p, err
	}
	there, err := d.b.Profile(ctx, p.ID)
	if !errors.Is(err, broker.ErrNotFound) {
		return there, err
	}
	if p.ID == protocol.Human { // a person exists without a profile
		return p, nil
	}
	p.UpdatedAt = time.Now().UTC().Truncate(time.Microsecond)
	return p, d.b.PutProfile(ctx, p)
}

// Paused asks the snapshot in this process: no request is made.
func (d direct) Paused(ctx context.Context, agent string) bool {
	directory, err := d.b.Directory(ctx)
	if err != nil {
		return false // the pull will find out
	}
	profile, _ := directory.Agent(agent)
	return profile.Paused
}

func (d direct) Pull(ctx context.Context, agent string, most int, wait time.Duration) ([]Offer, error) {
	pulled, err := d.b.Pull(ctx, agent, most, wait)
	if len(pulled) == 0 {
		return nil, err
	}
	offers := make([]Offer, len(pulled))
	for i, o := range pulled {
		offers[i] = directOffer{o}
	}
	return offers, err
}

func (d direct) Beat(ctx context.Context, h protocol.Holder) error { return d.b.Beat(ctx, h) }
func (d direct) Leave(ctx context.Context, h protocol.Holder) error {
	return d.b.RemoveHolder(ctx, h.ID)
}
func (d direct) Reconnected(ctx context.Context) <-chan struct{} { return d.b.Reconnected(ctx) }

func (d direct) Context(ctx context.Context, ticket string) (protocol.Context, error) {
	return d.b.Context(ctx, ticket)
}

func (d direct) End(ctx context.Context, ticket string) (protocol.Return, error) {
	if _, err := d.b.Wait(ctx, ticket, lifecycle.HasEnded); err != nil {
		return protocol.Return{}, err
	}
	return d.b.Return(ctx, ticket)
}

type directOffer struct{ o *broker.Offer }

func (d directOffer) Ticket() string               { return d.o.Ticket }
func (d directOffer) Sequence() uint64             { return d.o.Sequence }
func (d directOffer) State() *protocol.State       { return &d.o.State }
func (d directOffer) Inline() bool                 { return d.o.Inline() }
func (d directOffer) Answers() []protocol.Answer   { return d.o.Answers() }
func (d directOffer) Trail() []protocol.TrailEntry { return d.o.Trail() }
func (d directOffer) Release() error               { return d.o.Release() }
func (d directOffer) Extend() error                { return d.o.Extend() }

func (d directOffer) Package(ctx context.Context) (json.RawMessage, error) { return d.o.Package(ctx) }

func (d directOffer) Acknowledge(ctx context.Context, holder protocol.Holder, ack protocol.Ack, start bool) (Claim, error) {
	claim, err := d.o.Acknowledge(ctx, holder, ack, start)
	if claim == nil {
		return nil, err // and no Claim that holds a nil
	}
	return claim, err
}

// Both ways are kept to the same methods.
var (
	_ Broker    = (*broker.Broker)(nil)
	_ Transport = direct{}
	_ Offer     = directOffer{}
	_ Claim     = (*broker.Claim)(nil)
)
