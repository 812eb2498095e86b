// Package embedded runs the NATS server inside this process: one node by
// itself, or one of a cluster. It is the only importer of nats-server.
//
// It owns a directory: no two processes can use the same one. A single node
// that was not stopped cleanly empties the streams that may have lost their
// end, moves their sequences on, and lets the caller fill them again, all
// before it listens to anybody.
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
	handoffjs "github.com/agenthandoff/handoff/broker/jetstream"
	"github.com/agenthandoff/handoff/internal/filelock"
)

// Fsync says when what is written is on the disk for good.
type Fsync string

const (
	// FsyncAlways syncs every write of the ledger before it is acknowledged.
	// It is the default. Work and timers may be told to persist asynchronously
	// (broker.Topology.AsyncWork).
	FsyncAlways Fsync = "always"
	// FsyncInterval syncs every second: a power cut takes up to the last
	// second of acknowledged writes. A killed process loses none.
	FsyncInterval Fsync = "interval"
)

// Config configures a Node. Dir is required; otherwise the zero value is the
// default.
type Config struct {
	// Dir is where the node keeps its streams; it is made if it is missing.
	Dir string
	// Host and Port are where it listens; "" is 127.0.0.1, port 0 picks one.
	Host string
	Port int
	// Fsync is FsyncAlways if empty.
	Fsync Fsync
	// Name of the server; "" is handoff. In a cluster each needs its own.
	Name string
	// DontListen serves this process only, through Conn. Not for clusters.
	DontListen bool
	// Cluster makes it one node of a cluster.
	Cluster *ClusterConfig
	// Log receives the server's warnings and errors; nil discards.
	Log *slog.Logger
	// Prepare is called on a single node before it listens: no other client is
	// served yet. It makes the streams. unclean tells that the node had not
	// been stopped cleanly: its outbox streams were emptied then, and Prepare
	// puts back what the heads of the ledger call for. nil does nothing.
	Prepare func(ctx context.Context, nc *nats.Conn, unclean bool) error
}

// ClusterConfig places a node in a cluster.
type ClusterConfig struct {
	Name   string // the same for all; "" is handoff
	Host   string // "" is the node's Host
	Port   int    // for the other nodes
	Routes []string
}

// Node is a running server. It starts its server anew by itself after a disk that
// refused writes takes them again (see disk.go).
type Node struct {
	cfg     Config
	log     *logger
	lock    *filelock.Lock
	unclean bool
	staging string // see stageInMemory

	mu      sync.RWMutex
	current *server.Server
	port    int   // where it listens
	failing error // why the disk refuses writes

	repairing chan struct{} // closed when watchDisk has ended
	stop      context.CancelFunc
	answering *nats.Conn // answers broker.AskNode
}

// server is the one that runs now; nil before the first start.
func (n *Node) server() *server.Server {
	n.mu.RLock()
	defer n.mu.RUnlock()
	return n.current
}

const (
	lockFile   = "handoff.lock"    // flock; holds the pid
	markerFile = "handoff.running" // there while the node runs, and after a crash
	storeDir   = "jetstream"

	// startPatience is how long recovery of the store may take.
	startPatience = 2 * time.Minute
	// readyStep is how long one question may take whether the server is ready.
	readyStep = 100 * time.Millisecond
	memoryMax = 1 << 30 // bytes: only consumers live there
)

// Start starts a node and returns when it serves. ctx bounds the start alone.
func Start(ctx context.Context, cfg Config) (*Node, error) {
	if err := cfg.complete(); err != nil {
		return nil, err
	}
	lock, err := lockDir(cfg.Dir)
	if err != nil {
		return nil, err
	}
	n := &Node{cfg: cfg, lock: lock, log: newLogger(cfg.Log), port: cfg.Port}
	err = n.start(ctx)
	if err == nil {
		err = n.answer()
	}
	if err != nil {
		n.halt()
		n.unstage()
		if !n.unclean { // nor is what was stopped before it served
			_ = os.Remove(filepath.Join(cfg.Dir, markerFile))
		}
		_ = lock.Close()
		return nil, fmt.Errorf("start a node in %s: %w", cfg.Dir, err)
	}
	watching, stop := context.WithCancel(context.WithoutCancel(ctx))
	n.stop, n.repairing = stop, make(chan struct{})
	go func() { // joined by end
		defer close(n.repairing)
		n.watchDisk(watching)
	}()
	return n, nil
}

func (c *Config) complete() error {
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
		// Signals are the program's business; the server would exit by itself.
		NoSigs: true,
		// Nearly every subject is used once (tickets, replies, acknowledgements): a
		// cache of who listens to them is only filled and swept.
		NoSublistCache: true,
		// The node listens when it is ready to, see serve. The routes of a
		// cluster wait for the listener, so that there it does so at once.
		DontListen: n.cfg.Cluster == nil,
		JetStream:  true, StoreDir: filepath.Join(n.cfg.Dir, storeDir),
		JetStreamMaxMemory: memoryMax,
		JetStreamMaxStore:  1 << 60, // the server would take three quarters of what is free now
		SyncAlways:         n.cfg.Fsync == FsyncAlways, SyncInterval: time.Second,
	}
	if n.port == 0 {
		o.Port = server.RANDOM_PORT
	}
	c := n.cfg.Cluster
	if c == nil {
		return o, nil
	}
	o.Cluster = server.ClusterOpts{Name: c.Name, Host: c.Host, Port: c.Port}
	if c.Name == "" {
		o.Cluster.Name = "handoff"
	}
	if c.Host == "" {
		o.Cluster.Host = n.cfg.Host
	}
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
	if stale := n.staleStaging(); stale != "" {
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
		return n.log.because(errors.New("JetStream did not start"))
	}
	if n.cfg.Cluster != nil {
		return nil // the others have what this node lost
	}
	if err := n.prepare(ctx); err != nil {
		return err
	}
	n.stageInMemory()
	return n.serve()
}

// awaitReady returns when the server is ready, and as soon as it has said why
// it never will be: asked just once, it would let the whole patience go by.
func (n *Node) awaitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startPatience)
	defer cancel()
	for ctx.Err() == nil && n.log.said() == nil {
		if n.server().ReadyForConnections(readyStep) {
			return nil
		}
	}
	return n.log.because(errors.New("the server did not get ready"))
}

// serve opens the listener.
func (n *Node) serve() error {
	if n.cfg.DontListen {
		return nil
	}
	n.server().AcceptLoop(make(chan struct{}))
	addr, ok := n.server().Addr().(*net.TCPAddr)
	if !ok {
		return n.log.because(fmt.Errorf("%w: cannot listen on %s", ErrPort, net.JoinHostPort(n.cfg.Host, strconv.Itoa(n.port))))
	}
	n.port = addr.Port // a restart listens there again
	return nil
}

// prepare empties the outbox streams after a stop that was not clean, and
// lets the caller make and fill what it needs. No client is served yet.
func (n *Node) prepare(ctx context.Context) error {
	if !n.unclean && n.cfg.Prepare == nil {
		return nil
	}
	nc, err := n.Conn()
	if err != nil {
		return err
	}
	defer nc.Close()
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

// Unclean tells whether the node had not been stopped cleanly before this start.
func (n *Node) Unclean() bool {
	n.mu.RLock()
	defer n.mu.RUnlock()
	return n.unclean
}

// ClientURL is where clients find the node; "" if it does not listen.
func (n *Node) ClientURL() string {
	if n.cfg.DontListen {
		return ""
	}
	return n.server().ClientURL()
}

// Conn makes a connection within this process: half the latency of a socket's.
// The caller closes it.
func (n *Node) Conn(options ...nats.Option) (*nats.Conn, error) {
	all := append(handoffjs.ConnectOptions(n.cfg.Name), nats.InProcessServer(inProcess{n}))
	nc, err := nats.Connect("", append(all, options...)...)
	if err != nil {
		return nil, fmt.Errorf("connect within the process: %w: %w", broker.ErrUnreachable, err)
	}
	return nc, nil
}

// inProcess connects to whichever server the node runs.
type inProcess struct{ n *Node }

// InProcessConn implements nats.InProcessConnProvider.
func (p inProcess) InProcessConn() (net.Conn, error) { return p.n.server().InProcessConn() }

// Stop stops the node cleanly and waits until all is on the disk.
func (n *Node) Stop() error {
	n.end()
	n.unstage()
	err := os.Remove(filepath.Join(n.cfg.Dir, markerFile))
	return errors.Join(err, n.lock.Close())
}

// end stops the server for good, and leaves the marks of a running one.
func (n *Node) end() {
	n.stop()
	<-n.repairing
	n.answering.Close()
	n.halt()
}

// halt stops the server that runs now, if one does.
func (n *Node) halt() {
	if srv := n.server(); srv != nil {
		srv.Shutdown()
		srv.WaitForShutdown()
	}
}

// Kill stops the node as a crash would, as far as the next start can tell: for
// tests.
func (n *Node) Kill() error {
	n.end()
	return n.lock.Close()
}

// writeSynced writes a small file that is there after a power cut.
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
