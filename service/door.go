package service

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/protocol"
)

// Profiles says whether agents may register themselves through a door.
type Profiles string

const (
	// ProfilesNew (the default): an agent that has no profile may make one.
	ProfilesNew Profiles = "new"
	// ProfilesKeep: who has none is refused. Somebody who is trusted registers agents.
	ProfilesKeep Profiles = "keep"
	// ProfilesReplace: an agent may change its own, too.
	ProfilesReplace Profiles = "replace"
)

// Defaults and limits of Config.
const (
	OffersHeldDefault  = 16_384
	RequestsDefault    = 4_096
	MemoryBytesDefault = 512 << 20
	// MemoryBytesMin is enough for one agent to have a package as large as it may
	// be, and to hand in a result as large: a fifth of it is for each.
	MemoryBytesMin = 5 * CallBytesMax
	// WorkingMax is how many requests a door works on at once, beside the first one of
	// each agent. Those that wait for something to happen do not count.
	WorkingMax = 64
)

// Config configures a Door. The zero value is the default. Half of each limit is
// the most that one agent may have. Within an equal share for each agent that has
// something, an agent gets what it asks for; beyond it, what the others leave. Else
// it is refused with CodeBusy, which clients repeat.
type Config struct {
	// Profiles says whether agents may register themselves; "" is ProfilesNew.
	Profiles Profiles
	// Lease is what workers are told to be the engine's default; 0 is nothing.
	Lease time.Duration
	// Offers is how many offers and handoffs in hand the door keeps, default
	// OffersHeldDefault. What goes on without it costs two reads a request.
	Offers int
	// Requests is how many requests are under way at once, default RequestsDefault:
	// those that it works on, those that wait for their turn, and those that wait for
	// something to happen. Each worker has one that waits for offers.
	Requests int
	// MemoryBytes bounds what it keeps: two fifths of it the packages of what is in
	// hand, two fifths bodies that come or go in parts, one fifth the requests under
	// way. So an agent with much in hand can always report. Default MemoryBytesDefault,
	// at least MemoryBytesMin. Reading and writing a body takes up to three times its
	// size beside that.
	MemoryBytes int64
	// Log receives one line for each refusal (debug) and what went wrong (warn);
	// nil discards.
	Log *slog.Logger
}

// Validate says what is wrong with a Config. New calls it.
func (c Config) Validate() error {
	switch {
	case c.Profiles != "" && c.Profiles != ProfilesNew && c.Profiles != ProfilesKeep && c.Profiles != ProfilesReplace:
		return invalid("profiles", "is %q, must be %s, %s or %s", c.Profiles, ProfilesKeep, ProfilesNew, ProfilesReplace)
	case c.Offers < 0:
		return invalid("offers", "is %d, must be positive, or 0 for the default", c.Offers)
	case c.Requests < 0:
		return invalid("requests", "is %d, must be positive, or 0 for the default", c.Requests)
	case c.MemoryBytes != 0 && c.MemoryBytes < MemoryBytesMin:
		return invalid("memory_bytes", "is %d, must be at least %d, or 0 for the default", c.MemoryBytes, MemoryBytesMin)
	}
	return nil
}

// Door answers the requests of agents that are not trusted. Make it with New; it
// is used for one Run.
type Door struct {
	b    *broker.Broker
	nc   *nats.Conn
	cfg  Config
	id   string
	log  *slog.Logger
	hand hands
	kept parts

	calls calls

	requests, messages, bodies, offers, packages *budget

	answered, refused, failed atomic.Int64

	ctx    context.Context // of all answers
	waits  context.Context // of what they wait for: it ends first
	mu     sync.Mutex
	closed bool
	wg     sync.WaitGroup // of those under way
}

// New returns a Door to a broker. The connection is one of the broker's account;
// the caller closes it, after Run.
func New(b *broker.Broker, nc *nats.Conn, cfg Config) (*Door, error) {
	if b == nil || nc == nil {
		return nil, errors.New("service: a broker and a connection are needed")
	}
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if cfg.Profiles == "" {
		cfg.Profiles = ProfilesNew
	}
	if cfg.Offers == 0 {
		cfg.Offers = OffersHeldDefault
	}
	if cfg.Requests == 0 {
		cfg.Requests = RequestsDefault
	}
	if cfg.MemoryBytes == 0 {
		cfg.MemoryBytes = MemoryBytesDefault
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	d := &Door{b: b, nc: nc, cfg: cfg, id: newToken(), log: cfg.Log}
	d.limit()
	return d, nil
}

// limit makes what the door keeps, and its budgets.
func (d *Door) limit() {
	d.hand = hands{d: d, all: map[string]*held{}, leases: map[string]*held{}}
	d.kept = parts{d: d, all: map[string]*part{}}
	d.calls = calls{d: d, turns: newTurns(WorkingMax), all: map[string]map[*call]struct{}{}}
	fifth := d.cfg.MemoryBytes / 5
	d.requests = newBudget(limitRequests, int64(d.cfg.Requests), againSoon, func(agent string) bool { return d.calls.reclaim(agent, false) })
	d.messages = newBudget(limitMessages, fifth, againSoon, func(agent string) bool { return d.calls.reclaim(agent, true) })
	d.bodies = newBudget(limitBodies, 2*fifth, againLater, d.kept.reclaim)
	d.offers = newBudget(limitOffers, int64(d.cfg.Offers), againLater, func(agent string) bool { return d.hand.reclaim(agent, false) })
	d.packages = newBudget(limitPackages, 2*fifth, againLater, func(agent string) bool { return d.hand.reclaim(agent, true) })
}

func (d *Door) budgets() []*budget {
	return []*budget{d.requests, d.messages, d.bodies, d.offers, d.packages}
}

// ID is the name of this door among others; it is no secret to those it answers,
// and cannot be guessed by others.
func (d *Door) ID() string { return d.id }

// newToken makes a name that nobody guesses.
func newToken() string {
	var raw [16]byte
	_, _ = rand.Read(raw[:]) // which does not fail
	return hex.EncodeToString(raw[:])
}

const (
	// startPatience is how long the server may take to know what we subscribe to.
	startPatience = 10 * time.Second
	// drainPatience is how long the end of Run waits for answers under way.
	drainPatience = 5 * time.Second
	// sweepEvery is how often the door looks for what it has kept long enough.
	sweepEvery = time.Second
	// againSoon and againLater are when a refused agent asks again: requests end
	// sooner than what is in hand.
	againSoon  = 200 * time.Millisecond
	againLater = time.Second
	// roomPatience is how long an agent waits for its share where requests of others
	// are at work on it.
	roomPatience = 5 * time.Second
)

// Run answers until ctx ends, and then lets what is under way be answered, for
// 5 s at most, and gives back the offers that nobody has accepted. ready, if not nil,
// is called once it answers. It survives reconnects.
func (d *Door) Run(ctx context.Context, ready func()) error {
	work, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	waits, endWaits := context.WithCancel(work)
	defer endWaits()
	d.ctx, d.waits = work, waits
	fail := func(err error) error { return fmt.Errorf("serve %s: %w", prefix, err) }
	// The first snapshot takes a moment: before the first question, not within it.
	if _, err := d.b.Directory(ctx); err != nil {
		return fail(err)
	}
	service, err := micro.AddService(d.nc, micro.Config{
		Name: Name, Version: serviceVersion, QueueGroup: Name,
		Description: "relays handoffs of agents outside of the engine's account",
		Metadata:    map[string]string{"door": d.id},
	})
	if err != nil {
		return fail(fmt.Errorf("%w: %w", broker.ErrUnreachable, err))
	}
	handler := micro.HandlerFunc(func(r micro.Request) { d.receive(r) })
	err = errors.Join(
		service.AddEndpoint("any", handler, micro.WithEndpointSubject(prefix+"*.*")),
		service.AddEndpoint("this", handler, micro.WithEndpointSubject(prefix+"*.at."+d.id+".*"), micro.WithEndpointQueueGroupDisabled()),
	)
	if err == nil {
		err = d.nc.FlushTimeout(startPatience) // behind it the server has the subscriptions
	}
	if err == nil {
		if ready != nil {
			ready()
		}
		d.sweepUntil(ctx)
	}
	if ctx.Err() != nil {
		err = nil // it was told to end
	}
	if stopErr := service.Stop(); stopErr == nil {
		_ = d.nc.FlushTimeout(time.Second) // behind it no more come; a connection that is gone brings none either
	}
	endWaits()
	d.drain(stop)
	if err != nil {
		return fail(err)
	}
	return nil
}

func (d *Door) sweepUntil(ctx context.Context) {
	tick := time.NewTicker(sweepEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			d.hand.sweep(now)
			d.kept.sweep(now)
		}
	}
}

// drain lets what is under way be answered.
func (d *Door) drain(stop func()) {
	d.mu.Lock()
	d.closed = true
	d.mu.Unlock()
	late := time.AfterFunc(drainPatience, stop)
	defer late.Stop()
	d.wg.Wait()
	d.hand.letGo()
	_ = d.nc.FlushTimeout(time.Second)
}

// Load is how much the door has to do: for figures.
type Load struct {
	Offers   int64 // offers and handoffs in hand
	Requests int64 // under way
	Bytes    int64 // of Config.MemoryBytes

	Answered int64 // requests, since the start
	Refused  int64 // for what they say, or for all that there is to do
	Failed   int64 // for what is the door's trouble, or the engine's

	// Busy counts the requests that were refused by the limit that was reached, and
	// Reclaimed what an agent lost because another needed its share.
	Busy, Reclaimed map[string]int64
}

// Load returns it. It is safe to call at any time.
func (d *Door) Load() Load {
	load := Load{Offers: d.offers.inUse(), Requests: d.requests.inUse(), Bytes: d.packages.inUse() + d.messages.inUse() + d.bodies.inUse(),
		Answered: d.answered.Load(), Refused: d.refused.Load(), Failed: d.failed.Load(), Busy: map[string]int64{}, Reclaimed: map[string]int64{}}
	for _, b := range d.budgets() {
		load.Busy[b.limit], load.Reclaimed[b.limit] = b.refused.Load(), b.reclaimed.Load()
	}
	return load
}

// leaseMS is what register tells.
func (d *Door) leaseMS() int64 {
	if ms := d.cfg.Lease.Milliseconds(); ms >= protocol.LeaseMinMS && ms <= protocol.LeaseMaxMS {
		return ms
	}
	return 0
}
