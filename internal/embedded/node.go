// Package embedded runs a NATS server in this process: a single node, or a node of a cluster. It is
// the only importer of nats-server.
//
// A node owns a directory, which only one process can use at a time. A single node that was not
// stopped cleanly empties the streams that may have lost their end, advances their sequences, and
// lets the caller refill them, before it serves any client.
package embedded

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/filelock"
	handoffjs "github.com/agenthandoff/handoff/internal/jetstream"
)

// Fsync is when a write becomes durable.
type Fsync string

const (
	// FsyncAlways syncs every write of the ledger before it is acknowledged. It is the default.
	// Work and timers may persist asynchronously (broker.Topology.AsyncWork).
	FsyncAlways Fsync = "always"
	// FsyncInterval syncs every second: a power cut loses up to the last second of acknowledged
	// writes. A killed process loses none.
	FsyncInterval Fsync = "interval"
)

// Config configures a Node. Dir is required; all other fields have defaults.
type Config struct {
	// Dir is the directory of the node's streams; it is created if it is missing.
	Dir string
	// Host and Port are the address to listen on; "" is 127.0.0.1, port 0 a free one.
	Host string
	Port int
	// Fsync is FsyncAlways if empty.
	Fsync Fsync
	// Name of the server; "" is handoff. In a cluster each needs its own.
	Name string
	// DontListen serves only this process, through Conn. Not for clusters.
	DontListen bool
	// Cluster makes the node part of a cluster.
	Cluster *ClusterConfig
	// Log receives the server's warnings and errors; nil discards.
	Log *slog.Logger
	// Check is called on a single node before the server starts and before anything in Dir is
	// changed. Its error ends the start. It may be nil.
	Check func() error
	// Prepare is called on a single node before it serves clients. It creates the streams. unclean
	// reports that the node was not stopped cleanly: its outbox streams are empty then, and
	// Prepare fills them from the heads of the ledger. It may be nil.
	Prepare func(ctx context.Context, nc *nats.Conn, unclean bool) error
}

// ClusterConfig is a node's place in a cluster.
type ClusterConfig struct {
	Name   string // of the cluster; "" is handoff
	Host   string // "" is the node's Host
	Port   int    // for routes
	Routes []string
}

// Node is a running server. It restarts the server after a disk that refused writes accepts them
// again (see disk.go).
type Node struct {
	cfg     Config
	log     *logger
	lock    *filelock.Lock
	unclean bool
	staging []staged // see stageInMemory

	halt        func(*server.Server) // stops a server and waits until it has stopped
	haltTimeout time.Duration

	mu      sync.RWMutex
	current *server.Server
	port    int   // of the listener
	diskErr error // why the disk refuses writes
	hung    error // the server does not stop

	failed chan struct{} // closed when hung is set

	watchDone  chan struct{} // closed when watchDisk returns
	stopWatch  context.CancelFunc
	healthConn *nats.Conn // answers broker.AskNode
}

// server returns the current server; nil before the first start.
func (n *Node) server() *server.Server {
	n.mu.RLock()
	defer n.mu.RUnlock()
	return n.current
}

const (
	lockFile   = "handoff.lock"    // flock; holds the pid
	markerFile = "handoff.running" // exists while the node runs, and after a crash
	storeDir   = "jetstream"

	// startTimeout is how long the recovery of the store may take.
	startTimeout = 2 * time.Minute
	// readyPollTimeout is how long one check for readiness may take.
	readyPollTimeout = 100 * time.Millisecond
	memoryBytesMax   = 1 << 30 // only consumers are in memory
	// stopTimeout is how long a server may take to stop.
	stopTimeout = 30 * time.Second
)

// Start starts a node and returns when it serves clients. ctx bounds only the start.
func Start(ctx context.Context, cfg Config) (*Node, error) {
	if err := cfg.applyDefaults(); err != nil {
		return nil, err
	}
	lock, err := lockDir(cfg.Dir)
	if err != nil {
		return nil, err
	}
	if cfg.Check != nil {
		if err := cfg.Check(); err != nil {
			return nil, errors.Join(err, lock.Close())
		}
	}
	n := &Node{cfg: cfg, lock: lock, log: newLogger(cfg.Log), port: cfg.Port, halt: haltServer, haltTimeout: stopTimeout, failed: make(chan struct{})}
	err = n.start(ctx)
	if err == nil {
		err = n.serveHealth()
	}
	if err != nil {
		if stopErr := n.stopServer(nil); stopErr != nil {
			return nil, fmt.Errorf("start a node in %s: %w", cfg.Dir, errors.Join(err, stopErr))
		}
		n.removeStaging()
		if !n.unclean { // it served no client, so the stop is clean
			_ = os.Remove(filepath.Join(cfg.Dir, markerFile))
		}
		_ = lock.Close()
		return nil, fmt.Errorf("start a node in %s: %w", cfg.Dir, err)
	}
	watching, stop := context.WithCancel(context.WithoutCancel(ctx))
	n.stopWatch, n.watchDone = stop, make(chan struct{})
	go func() { // joined by shutdown
		defer close(n.watchDone)
		n.watchDisk(watching)
	}()
	return n, nil
}

func (c *Config) applyDefaults() error {
	if c.Dir == "" {
		return errors.New("embedded: Config.Dir is required")
	}
	c.Host = cmp.Or(c.Host, "127.0.0.1")
	c.Name = cmp.Or(c.Name, "handoff")
	switch c.Fsync {
	case "":
		c.Fsync = FsyncAlways
	case FsyncAlways, FsyncInterval:
	default:
		return fmt.Errorf("embedded: fsync is %q, and can be %s or %s", c.Fsync, FsyncAlways, FsyncInterval)
	}
	c.Log = cmp.Or(c.Log, slog.New(slog.DiscardHandler))
	if c.Cluster != nil && c.DontListen {
		return errors.New("embedded: a node of a cluster has to listen")
	}
	return os.MkdirAll(c.Dir, 0o700)
}

func (n *Node) options() (*server.Options, error) {
	o := &server.Options{
		ServerName: n.cfg.Name, Host: n.cfg.Host, Port: n.port,
		// The program handles signals; the server would exit by itself.
		NoSigs: true,
		// Most subjects are used once (tickets, replies, acknowledgements): a cache of their
		// subscribers would only be filled and evicted.
		NoSublistCache: true,
		// A single node listens after prepare (see listen). In a cluster the routes wait for the
		// listener, so it listens at once.
		DontListen: n.cfg.Cluster == nil,
		JetStream:  true, StoreDir: filepath.Join(n.cfg.Dir, storeDir),
		JetStreamMaxMemory: memoryBytesMax,
		JetStreamMaxStore:  1 << 60, // the default is three quarters of the space that is free now
		SyncAlways:         n.cfg.Fsync == FsyncAlways, SyncInterval: time.Second,
	}
	if n.port == 0 {
		o.Port = server.RANDOM_PORT
	}
	c := n.cfg.Cluster
	if c == nil {
		return o, nil
	}
	o.Cluster = server.ClusterOpts{Name: cmp.Or(c.Name, "handoff"), Host: cmp.Or(c.Host, n.cfg.Host), Port: c.Port}
	for _, r := range c.Routes {
		u, err := url.Parse(r)
		if err != nil {
			return nil, fmt.Errorf("route %q: %w", r, err)
		}
		o.Routes = append(o.Routes, u)
	}
	return o, nil
}

func (n *Node) start(ctx context.Context) error {
	marker := filepath.Join(n.cfg.Dir, markerFile)
	_, err := os.Stat(marker)
	n.mu.Lock()
	n.unclean = err == nil
	n.mu.Unlock()
	if err := writeSynced(marker, strconv.Itoa(os.Getpid())); err != nil {
		return err
	}
	for _, stale := range n.staleStaging() {
		defer func() { _ = os.RemoveAll(stale) }()
	}
	options, err := n.options()
	if err != nil {
		return err
	}
	srv, err := server.NewServer(options)
	if err != nil {
		return err
	}
	n.mu.Lock()
	n.current = srv
	n.mu.Unlock()
	srv.SetLoggerV2(n.log, false, false, false)
	srv.Start()
	if err := n.awaitReady(ctx); err != nil {
		return err
	}
	if !srv.JetStreamEnabled() {
		return n.log.withCause(errors.New("JetStream did not start"))
	}
	if n.cfg.Cluster != nil {
		return nil // the other nodes have the lost messages
	}
	if err := n.prepare(ctx); err != nil {
		return err
	}
	n.stageInMemory()
	return n.listen()
}

// awaitReady returns when the server is ready, or as soon as it has failed for good: a single
// check would wait for the whole timeout.
func (n *Node) awaitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	for ctx.Err() == nil && n.log.fatalErr() == nil {
		if n.server().ReadyForConnections(readyPollTimeout) {
			return nil
		}
	}
	return n.log.withCause(errors.New("the server did not get ready"))
}

// listen opens the listener for clients.
func (n *Node) listen() error {
	if n.cfg.DontListen {
		return nil
	}
	n.server().AcceptLoop(make(chan struct{}))
	addr, ok := n.server().Addr().(*net.TCPAddr)
	if !ok {
		return n.log.withCause(fmt.Errorf("%w: cannot listen on %s", ErrPort, net.JoinHostPort(n.cfg.Host, strconv.Itoa(n.port))))
	}
	n.port = addr.Port // for a restart
	return nil
}

// prepare empties the outbox streams after an unclean stop, and calls Config.Prepare. No client is
// served yet.
func (n *Node) prepare(ctx context.Context) error {
	if !n.unclean && n.cfg.Prepare == nil {
		return nil
	}
	nc, err := n.Conn()
	if err != nil {
		return err
	}
	defer nc.Close()
	if err := n.removeLostConsumers(ctx, nc); err != nil {
		return err
	}
	if n.unclean {
		js, err := jetstream.New(nc)
		if err != nil {
			return err
		}
		if err := handoffjs.ResetOutbox(ctx, js); err != nil {
			return fmt.Errorf("after a stop that was not clean: %w", err)
		}
	}
	if n.cfg.Prepare == nil {
		return nil
	}
	if err := n.cfg.Prepare(ctx, nc, n.unclean); err != nil {
		return fmt.Errorf("prepare the streams: %w", err)
	}
	return nil
}

// Unclean reports whether the node was not stopped cleanly before this start.
func (n *Node) Unclean() bool {
	n.mu.RLock()
	defer n.mu.RUnlock()
	return n.unclean
}

// ClientURL returns the URL for clients; "" if the node does not listen.
func (n *Node) ClientURL() string {
	if n.cfg.DontListen {
		return ""
	}
	return n.server().ClientURL()
}

// Conn opens a connection within this process, with half the latency of a socket. The caller
// closes it.
func (n *Node) Conn(options ...nats.Option) (*nats.Conn, error) {
	all := append(handoffjs.ConnectOptions(n.cfg.Name), nats.InProcessServer(inProcess{n}))
	nc, err := nats.Connect("", append(all, options...)...)
	if err != nil {
		return nil, fmt.Errorf("connect within the process: %w: %w", broker.ErrUnreachable, err)
	}
	return nc, nil
}

// inProcess connects to the node's current server.
type inProcess struct{ n *Node }

// InProcessConn implements nats.InProcessConnProvider.
func (p inProcess) InProcessConn() (net.Conn, error) { return p.n.server().InProcessConn() }

// writeSynced writes a small file durably.
func writeSynced(path, text string) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	err = errors.Join(err, f.Sync(), f.Close())
	if err != nil {
		return err
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}
