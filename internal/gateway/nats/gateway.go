package natsgateway

import (
	"cmp"
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

	"github.com/agenthandoff/handoff/api"
	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/protocol"
)

// Defaults and limits of Config.
const (
	ClaimsDefault      = 16_384
	RequestsDefault    = 4_096
	MemoryBytesDefault = 512 << 20
	// MemoryBytesMin is enough for one agent with the largest body: a third of it.
	MemoryBytesMin = 3 * CallBytesMax
	// workingMax is how many requests a gateway works on at once, beside the first one of
	// each agent. Those that wait for something to happen do not count.
	workingMax = 64
)

// Config configures a Gateway. The zero value is the default. Half of each limit is
// the most that one agent may have. Within an equal share for each agent that has
// something, an agent gets its request; beyond it, the rest that the others leave. Else
// it is refused with CodeBusy, which clients repeat.
type Config struct {
	// Profiles is the rule by which agents register themselves; "" is api.ProfilesNew.
	Profiles api.Profiles
	// Lease is the engine's default, for workers; 0 is none.
	Lease time.Duration
	// Claims is how many claims the gateway caches, default ClaimsDefault. A report on another claim
	// costs two reads.
	Claims int
	// Requests is how many requests are under way at once, default RequestsDefault:
	// those that it works on, those that wait for their turn, and those that wait for
	// something to happen. Each worker has one that waits for work.
	Requests int
	// MemoryBytes bounds its memory: two thirds for bodies that come or go in chunks, one third for
	// the requests under way. Default MemoryBytesDefault, at least MemoryBytesMin. Reading and writing
	// a body takes up to three times its size in addition to that, and the packages of cached claims
	// 64 MiB.
	MemoryBytes int64
	// Log receives one line for each refusal (debug) and fault (warn);
	// nil discards.
	Log *slog.Logger
}

// Validate checks a Config. New calls it.
func (c Config) Validate() error {
	switch {
	case c.Profiles != "" && c.Profiles != api.ProfilesNew && c.Profiles != api.ProfilesKeep && c.Profiles != api.ProfilesReplace:
		return invalid("profiles", "is %q, must be %s, %s or %s", c.Profiles, api.ProfilesKeep, api.ProfilesNew, api.ProfilesReplace)
	case c.Claims < 0:
		return invalid("claims", "is %d, must be positive, or 0 for the default", c.Claims)
	case c.Requests < 0:
		return invalid("requests", "is %d, must be positive, or 0 for the default", c.Requests)
	case c.MemoryBytes != 0 && c.MemoryBytes < MemoryBytesMin:
		return invalid("memory_bytes", "is %d, must be at least %d, or 0 for the default", c.MemoryBytes, MemoryBytesMin)
	}
	return nil
}

// Gateway answers the requests of agents that are not trusted. Make it with New; it
// is used for one Run.
type Gateway struct {
	b      *broker.Broker
	api    *api.Service
	nc     *nats.Conn
	cfg    Config
	id     string
	log    *slog.Logger
	chunks chunkStore

	calls calls

	requests, messages, bodies *budget

	answered, refused, failed atomic.Int64

	ctx    context.Context // of all answers
	waits  context.Context // of their waits: it ends first
	mu     sync.Mutex
	closed bool
	wg     sync.WaitGroup // of those under way
}

// New returns a Gateway to a broker. The connection is one of the broker's account;
// the caller closes it, after Run.
func New(b *broker.Broker, nc *nats.Conn, cfg Config) (*Gateway, error) {
	if b == nil || nc == nil {
		return nil, errors.New("gateway: a broker and a connection are needed")
	}
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg.Profiles = cmp.Or(cfg.Profiles, api.ProfilesNew)
	cfg.Claims = cmp.Or(cfg.Claims, ClaimsDefault)
	cfg.Requests = cmp.Or(cfg.Requests, RequestsDefault)
	cfg.MemoryBytes = cmp.Or(cfg.MemoryBytes, MemoryBytesDefault)
	cfg.Log = cmp.Or(cfg.Log, slog.New(slog.DiscardHandler))
	g := &Gateway{b: b, nc: nc, cfg: cfg, id: newToken(), log: cfg.Log}
	g.makeLimits()
	g.api = api.New(b, api.Config{KeyRequired: true, Remote: true, Gateway: g.id, Profiles: cfg.Profiles, LeaseMS: g.leaseMS(),
		Pause: g.idle, RereadInterval: rereadInterval, Claims: cfg.Claims})
	return g, nil
}

// makeLimits makes the caches and budgets of the gateway.
func (g *Gateway) makeLimits() {
	g.chunks = chunkStore{g: g, all: map[string]*chunk{}}
	g.calls = calls{g: g, turns: newTurns(workingMax), all: map[string]map[*call]struct{}{}}
	third := g.cfg.MemoryBytes / 3
	g.requests = newBudget(limitRequests, int64(g.cfg.Requests), retryRequestsAfter, func(agent string) bool { return g.calls.reclaim(agent, false) })
	g.messages = newBudget(limitMessages, third, retryRequestsAfter, func(agent string) bool { return g.calls.reclaim(agent, true) })
	g.bodies = newBudget(limitBodies, 2*third, retryHeldAfter, g.chunks.reclaim)
}

func (g *Gateway) budgets() []*budget {
	return []*budget{g.requests, g.messages, g.bodies}
}

// ID returns the name of this gateway among others. Agents that it answers know the name;
// others cannot guess it.
func (g *Gateway) ID() string { return g.id }

// newToken returns a name that cannot be guessed.
func newToken() string {
	var raw [16]byte
	_, _ = rand.Read(raw[:]) // which does not fail
	return hex.EncodeToString(raw[:])
}

const (
	// startTimeout bounds the time until the server knows the subscriptions.
	startTimeout = 10 * time.Second
	// drainTimeout is how long the end of Run waits for answers under way.
	drainTimeout = 5 * time.Second
	// sweepInterval is how often expired chunks are evicted.
	sweepInterval = time.Second
	// An agent with too many requests may try again after retryRequestsAfter, one whose bodies hold
	// too many bytes after retryHeldAfter: requests end sooner.
	retryRequestsAfter = 200 * time.Millisecond
	retryHeldAfter     = time.Second
	// rereadInterval is how often a request that waits reads the head without a hint.
	rereadInterval = 5 * time.Second
	// shareTimeout is how long an agent waits for its share where requests of others
	// are at work on it.
	shareTimeout = 5 * time.Second
)

// Run answers requests until ctx ends. Then it answers those that are under way, for 5 s at
// most. ready, if not nil, is called once
// it answers. It survives reconnects.
func (g *Gateway) Run(ctx context.Context, ready func()) error {
	work, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	waits, endWaits := context.WithCancel(work)
	defer endWaits()
	g.ctx, g.waits = work, waits
	fail := func(err error) error { return fmt.Errorf("serve %s: %w", prefix, err) }
	// The first snapshot takes a moment: before the first question, not within it.
	if _, err := g.b.Directory(ctx); err != nil {
		return fail(err)
	}
	service, err := micro.AddService(g.nc, micro.Config{
		Name: name, Version: serviceVersion, QueueGroup: name,
		Description: "relays handoffs of agents outside of the engine's account",
		Metadata:    map[string]string{"gateway": g.id},
	})
	if err != nil {
		return fail(fmt.Errorf("%w: %w", broker.ErrUnreachable, err))
	}
	handler := micro.HandlerFunc(func(r micro.Request) { g.receive(r) })
	err = errors.Join(
		service.AddEndpoint("any", handler, micro.WithEndpointSubject(prefix+"*.*")),
		service.AddEndpoint("this", handler, micro.WithEndpointSubject(prefix+"*.at."+g.id+".*"), micro.WithEndpointQueueGroupDisabled()),
	)
	if err == nil {
		err = g.nc.FlushTimeout(startTimeout) // behind it the server has the subscriptions
	}
	if err == nil {
		if ready != nil {
			ready()
		}
		g.sweepUntil(ctx)
	}
	if ctx.Err() != nil {
		err = nil // the caller ended it
	}
	if stopErr := service.Stop(); stopErr == nil {
		_ = g.nc.FlushTimeout(time.Second) // behind it no more come; a connection that is gone brings none either
	}
	endWaits()
	g.drain(stop)
	if err != nil {
		return fail(err)
	}
	return nil
}

func (g *Gateway) sweepUntil(ctx context.Context) {
	tick := time.NewTicker(sweepInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			g.chunks.sweep(now)
		}
	}
}

// drain waits for the answers to requests under way.
func (g *Gateway) drain(stop func()) {
	g.mu.Lock()
	g.closed = true
	g.mu.Unlock()
	late := time.AfterFunc(drainTimeout, stop)
	defer late.Stop()
	g.wg.Wait()
	_ = g.nc.FlushTimeout(time.Second)
}

// Load is the work of a gateway, for metrics.
type Load struct {
	Requests int64 // under way
	Bytes    int64 // of Config.MemoryBytes

	Answered int64 // requests, since the start
	Refused  int64 // for their content, or for the load
	Failed   int64 // through a fault of the gateway or the engine

	// Busy counts the requests that were refused by the limit that was reached, and
	// Reclaimed the losses of an agent because another needed its share.
	Busy, Reclaimed map[string]int64
}

// Load returns it. It is safe to call at any time.
func (g *Gateway) Load() Load {
	load := Load{Requests: g.requests.inUse(), Bytes: g.messages.inUse() + g.bodies.inUse(),
		Answered: g.answered.Load(), Refused: g.refused.Load(), Failed: g.failed.Load(), Busy: map[string]int64{}, Reclaimed: map[string]int64{}}
	for _, b := range g.budgets() {
		load.Busy[b.limit], load.Reclaimed[b.limit] = b.refused.Load(), b.reclaimed.Load()
	}
	return load
}

// leaseMS returns the default lease for register.
func (g *Gateway) leaseMS() int64 {
	if ms := g.cfg.Lease.Milliseconds(); ms >= protocol.LeaseMinMS && ms <= protocol.LeaseMaxMS {
		return ms
	}
	return 0
}
