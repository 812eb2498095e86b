// Package jetstream is the engine of package broker on NATS JetStream: the ledger, the queues, the
// timers, the directory, the bodies and the questions, as streams and consumers of one account. It
// makes no decisions.
package jetstream

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/agenthandoff/handoff/broker"
)

// Config configures the engine. The zero value is the
// default.
type Config struct {
	// AckWait is how long an offer is reserved for the worker that it was delivered to; 0 is AckWait
	// (30 s), or the time that KeepOffers has set. For wake-ups, announcements and ledger entries,
	// FollowWait is the maximum. Only tests set it.
	AckWait time.Duration
	// Timeout is how long requests to the engine are retried: to open it, to read, to put offers and
	// beats. It should be longer than an election. 0 is TimeoutDefault (12 s); TimeoutMin (1 s) to
	// TimeoutMax (10 min). Append, and methods documented as waiting, retry until their context ends.
	Timeout time.Duration
	// MapAge is how long a reading of the partitions may be used to begin a promised handoff; 0 is 90 s.
	// Only tests set it.
	MapAge time.Duration
	// Log receives messages that need a person's attention and that no caller gets as an error; nil
	// discards.
	Log *slog.Logger
}

// Engine is the engine on NATS JetStream. Its streams must exist (EnsureTopology); it recreates
// those that may be lost when they are deleted while it runs (see recreatedStreams). Close ends it.
type Engine struct {
	nc    *nats.Conn
	owned bool // Close closes nc
	js    jetstream.JetStream
	cfg   Config

	acks    *acks
	commits [broker.PartitionsMax]*committer // of the partitions of the ledger
	parts   atomic.Pointer[partitionMap]
	clock   engineClock

	announcer *broker.Announcer
	hints     *hints

	signalConsumer jetstream.Consumer // nil until signals are pulled; mu guards it

	denied denials
	bodies knownBodies

	closing         context.Context // ends with Close
	end             context.CancelFunc
	wg              sync.WaitGroup    // every goroutine of this engine; see start
	heal            sync.Mutex        // one recreate at a time
	mayNotMake      map[string]uint64 // by stream: the connection under which creating it was denied, plus 1; recreate's own
	connectionCount atomic.Uint64     // counts connections; a request under an older one is lost
	lastBeat        atomic.Int64      // Unix ns of the last confirmed beat
	holderEpoch     atomic.Uint64     // of the last write to the holders' bucket, see holderEpochOf
	leftServerAt    atomic.Int64      // Unix ns when we last switched servers; see switchServerAfter

	lanes           [broker.PartitionsMax]atomic.Pointer[lanesKnown] // of the last Queues
	manyOffers      [broker.PartitionsMax]atomic.Bool                // see recordOfferCount
	removeCheckedOn [broker.PartitionsMax]uint64                     // under which connection; watchIdentity's own

	starting sync.Mutex // of start, which may be called with any other lock held
	ended    bool       // by Close: start refuses

	mu                sync.Mutex
	closed            bool
	link              chan struct{} // closed and replaced at every change of the connection
	partsChanged      chan struct{} // closed and replaced when partitions are added
	watching          bool          // see watchIdentity
	pullers           map[string][]*puller
	taken             map[string]*atomic.Int64 // by agent, see takenCount
	configDriftWarned map[string]bool          // consumers that warnConfigDrift has warned of
	ackWaits          map[string]time.Duration // by agent, see KeepOffers
	createdAt         map[string]time.Time     // when the streams that may be lost were created, see recordCreated
	dir               *directoryWatch

	reconnected listeners[struct{}]
}

var _ broker.Engine = (*Engine)(nil)

// Open opens the engine over a connection that the caller keeps, and closes after Close. Use
// ConnectOptions for it. Open takes at most Config.Timeout.
func Open(ctx context.Context, nc *nats.Conn, cfg Config) (*Engine, error) {
	if err := broker.CheckTimeout("timeout", cfg.Timeout); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, cmp.Or(cfg.Timeout, broker.TimeoutDefault))
	defer cancel()
	return open(ctx, nc, cfg)
}

func open(ctx context.Context, nc *nats.Conn, cfg Config) (*Engine, error) {
	began := time.Now()
	cfg.Timeout = cmp.Or(cfg.Timeout, broker.TimeoutDefault)
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, fmt.Errorf("open JetStream: %w", err)
	}
	cfg.AckWait = cmp.Or(cfg.AckWait, broker.AckWait)
	cfg.MapAge = cmp.Or(cfg.MapAge, mapAge)
	cfg.Log = cmp.Or(cfg.Log, slog.New(slog.DiscardHandler))
	j := &Engine{
		nc: nc, js: js, cfg: cfg, acks: newAcks(nc), link: make(chan struct{}), partsChanged: make(chan struct{}),
		pullers: map[string][]*puller{}, taken: map[string]*atomic.Int64{}, configDriftWarned: map[string]bool{}, createdAt: map[string]time.Time{}, ackWaits: map[string]time.Duration{}, mayNotMake: map[string]uint64{},
	}
	for p := range j.commits {
		j.commits[p] = newCommitter(j)
	}
	j.announcer = broker.NewAnnouncer(j, cfg.Log)
	j.hints = newHints(nc)
	j.denied.follow(nc) // as long as the connection lives
	j.closing, j.end = context.WithCancel(context.Background())
	if err := j.checkStreams(ctx, began); err != nil {
		j.end()
		return nil, err
	}
	status := nc.StatusChanged(nats.CONNECTED, nats.RECONNECTING, nats.DISCONNECTED, nats.CLOSED)
	j.start(func() { j.watchConnection(status) })
	return j, nil
}

// checkStreams checks that the streams exist. It retries until ctx ends: a newly started cluster
// elects first, and a lost stream is recreated, by this process or by a supervisor.
func (j *Engine) checkStreams(ctx context.Context, began time.Time) error {
	names := []string{LedgerStream, agentStream, holderStream, blobStream}
	for i := 0; i < len(names); i++ {
		name, lost := names[i], false
		err := j.retry(ctx, func(ctx context.Context) error {
			asked := time.Now()
			stream, err := j.js.Stream(ctx, name)
			switch {
			case err == nil && name == LedgerStream:
				j.adoptLedger(asked, stream.CachedInfo())
			case errors.Is(err, jetstream.ErrStreamNotFound) && slices.Contains(recreatedStreams, name):
				lost = true
				_ = j.recreate(ctx)
				err = fmt.Errorf("%w: %v", broker.ErrUnreachable, err)
			}
			return j.explainSilence(err)
		})
		switch {
		case isError[*diskError](err):
			return err
		case err != nil && lost:
			return fmt.Errorf("%w: stream %s is missing: handoff dev and handoff supervise recreate it, and none has; handoff topology ensure recreates it, too", broker.ErrNoTopology, name)
		case errors.Is(err, jetstream.ErrStreamNotFound): // and no other process creates it
			return fmt.Errorf("%w: stream %s does not exist: handoff dev makes the streams on a server of its own, handoff topology ensure on yours", broker.ErrNoTopology, name)
		case errors.Is(err, jetstream.ErrJetStreamNotEnabled), errors.Is(err, jetstream.ErrJetStreamNotEnabledForAccount):
			return fmt.Errorf("%w: the server has JetStream switched off, or this user's account has no part in it (docs/operations/security.md): %w", broker.ErrUnreachable, err)
		case errors.Is(err, broker.ErrNotAllowed):
			return err
		case err != nil && errors.Is(ctx.Err(), context.DeadlineExceeded):
			return &broker.SilenceError{After: time.Since(began).Round(100 * time.Millisecond), Last: fmt.Errorf("stream %s: %w", name, err)}
		case err != nil:
			return fmt.Errorf("%w: stream %s: %w", broker.ErrUnreachable, name, err)
		}
		if name == LedgerStream {
			names = append(names, ledgerStreams[1:j.partitions()]...)
		}
	}
	return nil
}

// Close ends the engine and waits for all its goroutines. Calls that wait in its methods return
// with ErrUnreachable.
func (j *Engine) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), tryTimeout)
	if !j.nc.IsConnected() {
		cancel()
	}
	j.announcer.Close(ctx)
	cancel()
	j.mu.Lock()
	j.closed = true
	j.mu.Unlock()
	j.starting.Lock()
	j.ended = true
	j.starting.Unlock()
	j.end()
	j.closePullers()
	j.wg.Wait()
	j.hints.close()
	if j.owned {
		j.nc.Close()
		j.acks.disconnected()
	}
	j.acks.close()
	return nil
}

// Conn returns the underlying connection, for a caller that needs NATS itself.
func (j *Engine) Conn() *nats.Conn { return j.nc }

// watchConnection follows the connection. One goroutine, until Close.
func (j *Engine) watchConnection(status chan nats.Status) {
	defer j.nc.RemoveStatusListener(status)
	for {
		select {
		case <-j.closing.Done():
			return
		case s := <-status:
			if s == nats.CLOSED {
				j.acks.disconnected()
			}
			j.connectionChanged(s == nats.CONNECTED)
		}
	}
}

func (j *Engine) connectionChanged(up bool) {
	j.mu.Lock()
	if up {
		j.connectionCount.Add(1)
	}
	close(j.link)
	j.link = make(chan struct{})
	j.mu.Unlock()
	if up {
		j.readClock() // the server may be another or have another configuration, or this machine may have slept
		j.notifyReconnected()
	}
}

// connectionChange returns a channel that is closed when the connection breaks or comes back.
func (j *Engine) connectionChange() <-chan struct{} {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.link
}

// Reconnected implements broker.Engine. The channel is not closed when ctx ends.
func (j *Engine) Reconnected(ctx context.Context) <-chan struct{} {
	j.mu.Lock()
	defer j.mu.Unlock()
	if !j.watching && !j.closed {
		j.watching = true
		j.wg.Go(j.watchIdentity)
	}
	return j.reconnected.add(ctx, 1)
}

func (j *Engine) notifyReconnected() { j.reconnected.notify(struct{}{}) }

// listeners are channels of callers, each until its context ends.
type listeners[T any] struct {
	mu   sync.Mutex
	each map[chan T]bool
}

func (l *listeners[T]) add(ctx context.Context, room int) <-chan T {
	ch := make(chan T, room)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.each == nil {
		l.each = map[chan T]bool{}
	}
	l.each[ch] = true
	context.AfterFunc(ctx, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.each, ch)
	})
	return ch
}

// notify sends to each listener that has room: the others have something to read already.
func (l *listeners[T]) notify(v T) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for ch := range l.each {
		select {
		case ch <- v:
		default:
		}
	}
}

// start starts a goroutine that Close waits for, unless the engine is closed.
func (j *Engine) start(fn func()) bool {
	j.starting.Lock()
	defer j.starting.Unlock()
	if !j.ended {
		j.wg.Go(fn)
	}
	return !j.ended
}

func (j *Engine) isClosed() bool { return j.closing.Err() != nil }

// NodeSubject is the subject on which a single node of handoff dev reports its health. Other
// servers do not answer there.
const NodeSubject = "handoff.node"

// NodeHealth is the answer of a node to a request for its health.
type NodeHealth struct {
	Problem string `json:"problem,omitempty"` // why its disk refuses writes
}

// nodePatience is the timeout for a node's answer, which needs no work.
const nodePatience = 250 * time.Millisecond

// AskNode returns why the disk of the node behind a connection refuses writes. It is empty if the
// node is healthy, does not answer, or is not a server of handoff dev.
func AskNode(ctx context.Context, nc *nats.Conn) string {
	if nc.ConnectedClusterName() != "" {
		return ""
	}
	ctx, cancel := context.WithTimeout(ctx, nodePatience)
	defer cancel()
	reply, err := nc.RequestWithContext(ctx, NodeSubject, nil)
	if err != nil {
		return ""
	}
	var health NodeHealth
	if err := json.Unmarshal(reply.Data, &health); err != nil {
		return ""
	}
	return health.Problem
}

// diskError reports that the engine's disk refuses writes. Retrying may help.
type diskError struct{ problem string }

func (e *diskError) Error() string { return "the engine cannot write: " + e.problem }
func (e *diskError) Unwrap() error { return broker.ErrUnreachable }

// explainSilence returns why a write got no answer: a server whose disk refuses writes does not
// answer, and its node knows the reason.
func (j *Engine) explainSilence(err error) error {
	if !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, nats.ErrTimeout) {
		return err
	}
	if problem := AskNode(j.closing, j.nc); problem != "" {
		return &diskError{problem}
	}
	return err
}

const (
	// clockEvery is how long a process uses the last reading of the engine's clock. Two clocks differ
	// by milliseconds after that.
	clockEvery = time.Minute
	// clockWithin bounds the round trip of a usable reading: the engine stamped the answer at some time
	// between the request and its arrival.
	clockWithin = time.Second
)

// engineClock is the engine's clock as measured by this process. It advances the last reading by
// the monotonic clock of this machine, so that this machine's time of day, which an operator may
// set, has no influence.
type engineClock struct {
	last   atomic.Pointer[reading]
	asking atomic.Bool
}

// reading is the engine's time at the local time local.
type reading struct {
	local  time.Time // with its monotonic part
	engine time.Time
	within time.Duration // plus or minus
}

// readingOf returns the reading from an answer that arrives now, to a request sent at asked.
func readingOf(asked, engine time.Time) reading {
	took := time.Since(asked)
	return reading{local: asked.Add(took / 2), engine: engine.UTC(), within: max(took/2, 1)}
}

// adopt stores a reading, unless the current one is better.
func (c *engineClock) adopt(r reading) {
	old := c.last.Load()
	if !r.engine.IsZero() && (old == nil || r.within < clockWithin/2 || r.within < old.within) {
		c.last.Store(&r)
	}
}

// Now implements broker.Engine.
func (j *Engine) Now() time.Time {
	r := j.clock.last.Load()
	if r == nil {
		return time.Now().UTC()
	}
	since := time.Since(r.local)
	if since > min(clockEvery, cmp.Or(j.cfg.MapAge, mapAge)*2/3) || r.within >= clockWithin/2 {
		j.readClock()
	}
	return r.engine.Add(since)
}

// readClock requests the engine's time, and does not wait for the answer.
func (j *Engine) readClock() {
	if !j.clock.asking.CompareAndSwap(false, true) {
		return
	}
	if !j.start(func() {
		defer j.clock.asking.Store(false)
		ctx, cancel := context.WithTimeout(j.closing, tryTimeout)
		defer cancel()
		if j.readLedger(ctx) == nil {
			return
		}
		// Keep the old reading: otherwise every use of the clock would send a request.
		if r := j.clock.last.Load(); r != nil {
			again := *r
			again.engine, again.local = r.engine.Add(time.Since(r.local)), time.Now()
			again.within = min(again.within, clockWithin/2-1)
			j.clock.last.CompareAndSwap(r, &again)
		}
	}) {
		j.clock.asking.Store(false)
	}
}

// readLedger reads the first ledger stream from the server that leads it, because that stamps the
// entries.
func (j *Engine) readLedger(ctx context.Context) error {
	asked := time.Now()
	stream, err := j.js.Stream(ctx, LedgerStream)
	if err == nil {
		j.adoptLedger(asked, stream.CachedInfo())
	}
	return err
}

// adoptLedger adopts the time of an answer about the first ledger stream, whether appends are to be
// grouped, and the map of the partitions.
func (j *Engine) adoptLedger(asked time.Time, info *jetstream.StreamInfo) {
	j.clock.adopt(readingOf(asked, info.TimeStamp))
	j.readConfig(info.Config)
	j.adoptPartitions(partitionsIn(info.Config.Metadata, asked))
}
