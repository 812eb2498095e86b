package broker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// JetStreamConfig configures the engine that ships. The zero value is the
// default.
type JetStreamConfig struct {
	// AckWait is how long an offer, a ledger entry or a wake-up stays with
	// whom it was delivered to; 0 is AckWait (30 s). Consumers that exist keep
	// theirs. Only tests set it.
	AckWait time.Duration
	// Log receives what is worth a person's attention and has no caller to go
	// to; nil discards.
	Log *slog.Logger
}

// DialConfig says where the engine is and who we are.
type DialConfig struct {
	// URL is one or more servers, comma-separated; "" is nats://127.0.0.1:4222.
	URL string
	// Creds is the path of a credentials file.
	Creds string
	// TLSCA is the path of a PEM file with the authority to trust.
	TLSCA string
	// Name is shown in the server's list of connections.
	Name string
	// Options are applied last.
	Options []nats.Option

	JetStreamConfig
}

// ErrNoTopology says that a server is there, and was not set up for Handoff.
var ErrNoTopology = errors.New("this server has not the streams of Handoff")

// DefaultURL is where handoff dev listens.
const DefaultURL = nats.DefaultURL

const (
	// dialPatience is how long Dial looks for a server in all.
	dialPatience = 3 * time.Second
	// askPatience is how long a single question to the engine is repeated
	// before it is ErrUnreachable: longer than most elections of a leader.
	askPatience = 5 * time.Second
	// tryTimeout is how long one try of it may take.
	tryTimeout = 2 * time.Second
)

// JetStream is the Engine on NATS JetStream. Its streams have to exist
// (EnsureTopology); the work and timer streams it makes again when they are
// deleted under it. Close ends it.
type JetStream struct {
	nc    *nats.Conn
	owned bool // Close closes nc
	js    jetstream.JetStream
	cfg   JetStreamConfig

	life  context.Context // ends with Close
	end   context.CancelFunc
	wg    sync.WaitGroup // every goroutine of this engine; see run
	heal  sync.Mutex     // one healing at a time
	epoch atomic.Uint64  // counts connections; what was asked under an older one is lost
	beat  atomic.Int64   // Unix ns of the last beat that was confirmed

	mu        sync.Mutex
	closed    bool
	link      chan struct{} // closed and replaced at every change of the connection
	listeners map[int]chan struct{}
	key       int
	watching  bool // see watchIdentity
	pullers   map[string][]*puller
	taken     map[string]*atomic.Int64 // by agent, see takenBy
	foreign   map[string]bool          // consumers that tellForeign has spoken of
	dir       *directoryWatch
}

var _ Engine = (*JetStream)(nil)

// ConnectOptions are those of every connection to the engine: it comes back by
// itself for as long as the process lives, and while it is gone a request
// fails instead of being kept for later, when nobody may want it any more.
func ConnectOptions(name string) []nats.Option {
	return []nats.Option{
		nats.Name(name),
		nats.MaxReconnects(-1),
		nats.IgnoreAuthErrorAbort(),
		nats.ReconnectWait(100 * time.Millisecond),
		nats.ReconnectJitter(100*time.Millisecond, 500*time.Millisecond),
		nats.ReconnectBufSize(-1),
		nats.PingInterval(10 * time.Second),
		nats.MaxPingsOutstanding(2),
		nats.Timeout(dialPatience - 500*time.Millisecond),
		// Errors of subscriptions reach those who wait on them; the default
		// handler prints to stderr.
		nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}),
	}
}

// Dial connects and opens the engine. It gives up within 3 s with an error
// that wraps ErrUnreachable and says where it looked. A connection that was
// made once comes back for ever.
func Dial(ctx context.Context, cfg DialConfig) (*JetStream, error) {
	ctx, cancel := context.WithTimeout(ctx, dialPatience)
	defer cancel()
	nc, err := Connect(cfg)
	if err != nil {
		return nil, err
	}
	j, err := open(ctx, nc, cfg.JetStreamConfig)
	if err != nil {
		nc.Close()
		return nil, fmt.Errorf("at %s: %w", withoutSecrets(cmp.Or(cfg.URL, DefaultURL)), err)
	}
	j.owned = true
	return j, nil
}

// Connect makes the connection of Dial, and asks nothing of the server: it may
// have no JetStream and no streams. The caller closes it.
func Connect(cfg DialConfig) (*nats.Conn, error) {
	where := cmp.Or(cfg.URL, DefaultURL)
	options := ConnectOptions(cfg.Name)
	servers := strings.Count(where, ",") + 1
	options = append(options, nats.Timeout((dialPatience-500*time.Millisecond)/time.Duration(servers)))
	if cfg.Creds != "" {
		options = append(options, nats.UserCredentials(cfg.Creds))
	}
	if cfg.TLSCA != "" {
		options = append(options, nats.RootCAs(cfg.TLSCA))
	}
	nc, err := nats.Connect(where, append(options, cfg.Options...)...)
	switch {
	case errors.Is(err, nats.ErrAuthorization), errors.Is(err, nats.ErrAuthExpired), errors.Is(err, nats.ErrAuthRevoked):
		return nil, fmt.Errorf("%w: the server at %s does not let us in: %w", ErrUnreachable, withoutSecrets(where), err)
	case err != nil:
		return nil, fmt.Errorf("%w: no NATS server answers at %s (%w); start one: handoff dev", ErrUnreachable, withoutSecrets(where), err)
	}
	return nc, nil
}

// withoutSecrets returns a list of server URLs as it may be shown.
func withoutSecrets(servers string) string {
	list := strings.Split(servers, ",")
	for i, server := range list {
		scheme, rest, ok := strings.Cut(server, "://")
		if !ok {
			scheme, rest = "nats", server
		}
		if at := strings.LastIndexByte(rest, '@'); at >= 0 {
			rest = rest[at+1:]
		}
		list[i] = strings.TrimSpace(scheme) + "://" + rest
	}
	return strings.Join(list, ",")
}

// OpenJetStream opens the engine over a connection that the caller keeps and
// closes, after Close. ConnectOptions suit it. It takes at most 3 s.
func OpenJetStream(nc *nats.Conn, cfg JetStreamConfig) (*JetStream, error) {
	ctx, cancel := context.WithTimeout(context.Background(), dialPatience)
	defer cancel()
	return open(ctx, nc, cfg)
}

func open(ctx context.Context, nc *nats.Conn, cfg JetStreamConfig) (*JetStream, error) {
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, fmt.Errorf("open JetStream: %w", err)
	}
	if cfg.AckWait == 0 {
		cfg.AckWait = AckWait
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	j := &JetStream{
		nc: nc, js: js, cfg: cfg, link: make(chan struct{}),
		listeners: map[int]chan struct{}{}, pullers: map[string][]*puller{}, taken: map[string]*atomic.Int64{}, foreign: map[string]bool{},
	}
	j.life, j.end = context.WithCancel(context.Background())
	if err := j.checkStreams(ctx); err != nil {
		j.end()
		return nil, err
	}
	status := nc.StatusChanged(nats.CONNECTED, nats.RECONNECTING, nats.DISCONNECTED, nats.CLOSED)
	j.run(func() { j.watchLink(status) })
	return j, nil
}

// checkStreams tells whether the streams are there that cannot be made again.
// They are asked for until ctx ends: a cluster that has just started elects first.
func (j *JetStream) checkStreams(ctx context.Context) error {
	for _, name := range []string{LedgerStream, agentStream, holderStream, blobStream} {
		err := j.again(ctx, func(ctx context.Context) error {
			_, err := j.js.Stream(ctx, name)
			return err
		})
		switch {
		case errors.Is(err, jetstream.ErrStreamNotFound):
			return fmt.Errorf("%w: stream %s does not exist: handoff dev makes the streams on a server of its own, broker.EnsureTopology on yours", ErrNoTopology, name)
		case errors.Is(err, jetstream.ErrJetStreamNotEnabled), errors.Is(err, jetstream.ErrJetStreamNotEnabledForAccount):
			return fmt.Errorf("%w: the server has JetStream switched off: %w", ErrUnreachable, err)
		case err != nil:
			return fmt.Errorf("%w: stream %s: %w", ErrUnreachable, name, err)
		}
	}
	return nil
}

// Close ends the engine and waits for all that it runs. Whatever waits in one
// of its methods returns with ErrUnreachable.
func (j *JetStream) Close() error {
	j.mu.Lock()
	j.closed = true
	j.mu.Unlock()
	j.end()
	j.closePullers()
	j.wg.Wait()
	if j.owned {
		j.nc.Close()
	}
	return nil
}

// Conn is the connection underneath, for whoever needs the engine itself.
func (j *JetStream) Conn() *nats.Conn { return j.nc }

// watchLink follows the connection. One goroutine, until Close.
func (j *JetStream) watchLink(status chan nats.Status) {
	defer j.nc.RemoveStatusListener(status)
	for {
		select {
		case <-j.life.Done():
			return
		case s := <-status:
			j.linkChanged(s == nats.CONNECTED)
		}
	}
}

func (j *JetStream) linkChanged(up bool) {
	j.mu.Lock()
	if up {
		j.epoch.Add(1)
	}
	close(j.link)
	j.link = make(chan struct{})
	j.mu.Unlock()
	if up {
		j.tellReconnected()
	}
}

// linkChange is closed when the connection breaks or comes back.
func (j *JetStream) linkChange() <-chan struct{} {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.link
}

// Reconnected implements Engine. The channel is not closed when ctx ends.
func (j *JetStream) Reconnected(ctx context.Context) <-chan struct{} {
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

func (j *JetStream) tellReconnected() {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, ch := range j.listeners {
		select {
		case ch <- struct{}{}:
		default: // one is waiting to be read: that will do
		}
	}
}

// identityInterval is how often the streams of hints are checked to be the
// ones they were.
const identityInterval = 3 * time.Second

// watchIdentity looks whether the work and timer streams are still the same,
// makes them again when they are gone, and tells Reconnected. One goroutine,
// from the first call of Reconnected until Close.
func (j *JetStream) watchIdentity() {
	tick := time.NewTicker(identityInterval)
	defer tick.Stop()
	born := map[string]time.Time{}
	for {
		for _, name := range []string{WorkStream, TimerStream} {
			created, err := j.created(name)
			if err != nil {
				continue // not reachable, or not ours to see; the next tick asks again
			}
			if was, ok := born[name]; ok && !was.Equal(created) {
				j.cfg.Log.Warn("stream was made anew; its hints are lost and made again", "stream", name)
				j.tellReconnected()
			}
			born[name] = created
		}
		select {
		case <-j.life.Done():
			return
		case <-tick.C:
		}
	}
}

// created is when a stream of hints was made. It makes one that is missing.
func (j *JetStream) created(name string) (time.Time, error) {
	ctx, cancel := context.WithTimeout(j.life, tryTimeout)
	defer cancel()
	stream, err := j.js.Stream(ctx, name)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		if err := j.makeHints(ctx); err != nil {
			return time.Time{}, err
		}
		stream, err = j.js.Stream(ctx, name)
	}
	if err != nil {
		return time.Time{}, err
	}
	return stream.CachedInfo().Created, nil
}

// makeHints makes the work and timer streams again if they are missing.
func (j *JetStream) makeHints(ctx context.Context) error {
	j.heal.Lock()
	defer j.heal.Unlock()
	return ensureHints(ctx, j.js)
}

// run starts a goroutine that Close waits for, unless the engine is closed.
func (j *JetStream) run(fn func()) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	if !j.closed {
		j.wg.Go(fn)
	}
	return !j.closed
}

func (j *JetStream) isClosed() bool { return j.life.Err() != nil }
