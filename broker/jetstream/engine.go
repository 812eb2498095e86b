// Package jetstream is the engine of package broker on NATS JetStream: the ledger, the queues, the timers, the
// directory, the bodies and the questions, as streams and consumers of one account. It decides nothing.
package jetstream

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
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
	// AckWait is how long an offer stays with whom it was delivered to; 0 is
	// AckWait (30 s). Wake-ups, announcements and ledger entries stay no longer than FollowWait.
	// Queues that exist keep theirs. Only tests set it.
	AckWait time.Duration
	// Timeout is how long whatever is asked of the engine is tried: to open it, to
	// read, to put offers and beats. Elections are bridged within it. 0 is
	// TimeoutDefault (12 s); TimeoutMin (1 s) to TimeoutMax (10 min). Append, and what
	// says that it waits, goes on until its context ends.
	Timeout time.Duration
	// Log receives what is worth a person's attention and has no caller to go
	// to; nil discards.
	Log *slog.Logger
}

// Engine is the engine on NATS JetStream. Its streams have to exist
// (EnsureTopology); the work and timer streams it makes again when they are
// deleted under it. Close ends it.
type Engine struct {
	nc    *nats.Conn
	owned bool // Close closes nc
	js    jetstream.JetStream
	cfg   Config

	acks    *acks
	commits *committer // of the ledger
	clock   engineClock

	announcer *broker.Announcer
	hints     *hints

	denied denials
	bodies knownBodies

	closing         context.Context // ends with Close
	end             context.CancelFunc
	wg              sync.WaitGroup // every goroutine of this engine; see start
	heal            sync.Mutex     // one healing at a time
	connectionCount atomic.Uint64  // counts connections; what was asked under an older one is lost
	lastBeat        atomic.Int64   // Unix ns of the last beat that was confirmed
	leftServerAt    atomic.Int64   // Unix ns when we last left a server; see switchServerAfter

	manyOffers      atomic.Bool // see recordOfferCount
	removeCheckedOn uint64      // under which connection; watchIdentity's own

	mu                sync.Mutex
	closed            bool
	link              chan struct{} // closed and replaced at every change of the connection
	listeners         map[int]chan struct{}
	key               int
	watching          bool // see watchIdentity
	pullers           map[string][]*puller
	taken             map[string]*atomic.Int64 // by agent, see takenCount
	configDriftWarned map[string]bool          // consumers that warnConfigDrift has warned of
	createdAt         map[string]time.Time     // when the outbox streams were made, see recordCreated
	dir               *directoryWatch
}

var _ broker.Engine = (*Engine)(nil)

// Open opens the engine over a connection that the caller keeps and
// closes, after Close. ConnectOptions suit it. It takes at most Config.Timeout.
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
	cfg.Log = cmp.Or(cfg.Log, slog.New(slog.DiscardHandler))
	j := &Engine{
		nc: nc, js: js, cfg: cfg, acks: newAcks(nc), link: make(chan struct{}),
		listeners: map[int]chan struct{}{}, pullers: map[string][]*puller{}, taken: map[string]*atomic.Int64{}, configDriftWarned: map[string]bool{}, createdAt: map[string]time.Time{},
	}
	j.commits = newCommitter(j)
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

// checkStreams tells whether the streams are there that cannot be made again.
// They are asked for until ctx ends: a cluster that has just started elects first.
func (j *Engine) checkStreams(ctx context.Context, began time.Time) error {
	for _, name := range []string{LedgerStream, agentStream, holderStream, blobStream} {
		err := j.retry(ctx, func(ctx context.Context) error {
			asked := time.Now()
			stream, err := j.js.Stream(ctx, name)
			if err == nil && name == LedgerStream {
				j.clock.adopt(readingOf(asked, stream.CachedInfo().TimeStamp))
				j.commits.readConfig(stream.CachedInfo().Config)
			}
			return err
		})
		switch {
		case errors.Is(err, jetstream.ErrStreamNotFound):
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
	}
	return nil
}

// Close ends the engine and waits for all that it runs. Whatever waits in one
// of its methods returns with ErrUnreachable.
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

// Conn is the connection underneath, for a caller that needs the engine itself.
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
		j.start(j.commits.rereadConfig)
		j.readClock() // the server may be another, or this machine have slept
		j.notifyReconnected()
	}
}

// connectionChange is closed when the connection breaks or comes back.
func (j *Engine) connectionChange() <-chan struct{} {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.link
}

// Reconnected implements broker.Engine. The channel is not closed when ctx ends.
func (j *Engine) Reconnected(ctx context.Context) <-chan struct{} {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.key++
	key, ch := j.key, make(chan struct{}, 1)
	j.listeners[key] = ch
	context.AfterFunc(ctx, func() {
		j.mu.Lock()
		defer j.mu.Unlock()
		delete(j.listeners, key)
	})
	if !j.watching && !j.closed {
		j.watching = true
		j.wg.Go(j.watchIdentity)
	}
	return ch
}

func (j *Engine) notifyReconnected() {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, ch := range j.listeners {
		select {
		case ch <- struct{}{}:
		default: // one is waiting to be read: that will do
		}
	}
}

// identityInterval is how often the outbox streams are checked to be the
// ones they were.
const identityInterval = 3 * time.Second

// watchIdentity looks whether the work and timer streams are still the same,
// makes them again when they are gone, and tells Reconnected. One goroutine,
// from the first call of Reconnected until Close.
func (j *Engine) watchIdentity() {
	tick := time.NewTicker(identityInterval)
	defer tick.Stop()
	for {
		found := map[string]time.Time{}
		for _, name := range []string{WorkStream, TimerStream} {
			created, err := j.streamCreated(name)
			if err != nil {
				continue // not reachable, or not ours to see; the next tick asks again
			}
			found[name] = created
		}
		j.recordCreated(found, false)
		select {
		case <-j.closing.Done():
			return
		case <-tick.C:
		}
	}
}

// recordCreated takes note of when outbox streams were made. Where one is another than
// it was, or anew says that these were made just now, Reconnected is told, once:
// filling a million handoffs' outbox entries takes a minute, and once is enough.
func (j *Engine) recordCreated(created map[string]time.Time, anew bool) {
	lost := false
	j.mu.Lock()
	for name, at := range created {
		was, known := j.createdAt[name]
		if j.createdAt[name] = at; anew || known && !was.Equal(at) {
			lost = true
			j.cfg.Log.Warn("stream was made anew; its outbox entries are lost and made again", "stream", name)
		}
	}
	j.mu.Unlock()
	if lost {
		j.notifyReconnected()
	}
}

// streamCreated is when an outbox stream was made. It makes one that is missing.
func (j *Engine) streamCreated(name string) (time.Time, error) {
	ctx, cancel := context.WithTimeout(j.closing, tryTimeout)
	defer cancel()
	stream, err := j.js.Stream(ctx, name)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		if err := j.makeOutboxStreams(ctx); err != nil {
			return time.Time{}, err
		}
		stream, err = j.js.Stream(ctx, name)
	}
	if err != nil {
		return time.Time{}, err
	}
	if name == WorkStream {
		j.recordOfferCount(ctx, stream.CachedInfo())
	}
	return stream.CachedInfo().Created, nil
}

// makeOutboxStreams makes the work and timer streams again if they are missing, and tells
// Reconnected then.
func (j *Engine) makeOutboxStreams(ctx context.Context) error {
	j.heal.Lock()
	defer j.heal.Unlock()
	made, err := ensureOutboxStreams(ctx, j.js)
	j.recordCreated(made, true)
	return err
}

// start starts a goroutine that Close waits for, unless the engine is closed.
func (j *Engine) start(fn func()) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	if !j.closed {
		j.wg.Go(fn)
	}
	return !j.closed
}

func (j *Engine) isClosed() bool { return j.closing.Err() != nil }
