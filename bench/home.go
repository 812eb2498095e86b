package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/broker/embedded"
	"github.com/agenthandoff/handoff/broker/jetstream"
)

// home is where the handoffs of a round live: nodes of our own, or an engine
// that is there.
type home struct {
	cfg     Config
	dir     string
	remove  bool // dir, with the home
	relaxed bool // fsync at an interval, whatever the configuration says: it is being filled
	node    *embedded.Node
	cluster *embedded.Cluster
	next    int // of the cluster's nodes, to connect to
}

// openHome starts what is to be started. dir "" is a temporary directory, removed by
// close.
func openHome(ctx context.Context, cfg Config, dir string) (_ *home, err error) {
	h := &home{cfg: cfg, dir: dir}
	if cfg.Connect != nil {
		return h, nil
	}
	if dir == "" {
		if h.dir, err = os.MkdirTemp("", "handoff-bench-"); err != nil {
			return nil, err
		}
		h.remove = true
	}
	if err := h.start(ctx); err != nil {
		return nil, errors.Join(err, h.close())
	}
	return h, nil
}

func (h *home) start(ctx context.Context) (err error) {
	// As handoff dev has it: where every write of the ledger is synced, what is
	// derived from it need not be.
	topology := jetstream.Topology{Replicas: h.cfg.Replicas, AsyncWork: h.cfg.Fsync == embedded.FsyncAlways}
	if h.cfg.Replicas > 1 {
		if h.cluster, err = embedded.StartCluster(ctx, h.cfg.Replicas, h.dir, h.fsync()); err != nil {
			return err
		}
		return ensureTopology(ctx, h.cluster.Nodes[0], topology)
	}
	if h.node, err = embedded.Start(ctx, embedded.Config{Dir: h.dir, Fsync: h.fsync(), DontListen: h.cfg.Processes == 0, Log: h.cfg.Log}); err != nil {
		return err
	}
	return ensureTopology(ctx, h.node, topology)
}

func ensureTopology(ctx context.Context, node *embedded.Node, t jetstream.Topology) error {
	nc, err := node.Conn()
	if err != nil {
		return err
	}
	defer nc.Close()
	return jetstream.EnsureTopology(ctx, nc, t)
}

// nodes are those of our own.
func (h *home) nodes() []*embedded.Node {
	switch {
	case h.node != nil:
		return []*embedded.Node{h.node}
	case h.cluster != nil:
		return h.cluster.Nodes
	}
	return nil
}

// url is where processes of ours find the engine; "" where it is another's.
func (h *home) url() string {
	switch {
	case h.node != nil:
		return h.node.ClientURL()
	case h.cluster != nil:
		return h.cluster.URL()
	}
	return ""
}

// connect makes a connection of its own and an engine over it.
func (h *home) connect(ctx context.Context) (broker.Engine, func(), error) {
	if h.cfg.Connect != nil {
		return h.cfg.Connect(ctx)
	}
	nodes := h.nodes()
	node := nodes[h.next%len(nodes)]
	h.next++
	nc, err := node.Conn()
	if err != nil {
		return nil, nil, err
	}
	engine, err := jetstream.Open(ctx, nc, jetstream.Config{Log: h.cfg.Log})
	if err != nil {
		nc.Close()
		return nil, nil, err
	}
	return engine, func() { _ = engine.Close(); nc.Close() }, nil
}

func (h *home) close() error {
	var err error
	switch {
	case h.node != nil:
		err = h.node.Stop()
	case h.cluster != nil:
		err = h.cluster.Stop()
	}
	if h.remove {
		err = errors.Join(err, os.RemoveAll(h.dir))
	}
	return err
}

// standing is what an engine has stored and moved, at an instant.
type standing struct {
	streams    map[string]jetstream.StreamStatus
	deliveries jetstream.Deliveries
	node       embedded.Figures // of all nodes of our own together
}

// look reads it. The engine is asked before or after what is measured, never within.
func (h *home) look(ctx context.Context, engine broker.Engine, agents string) (standing, error) {
	ctx, cancel := context.WithTimeout(ctx, lookPatience)
	defer cancel()
	s := standing{streams: map[string]jetstream.StreamStatus{}}
	js, ok := engine.(*jetstream.Engine)
	if !ok {
		return s, fmt.Errorf("bench: an engine of kind %T counts nothing", engine)
	}
	streams, err := js.Streams(ctx)
	if err != nil {
		return s, err
	}
	for _, status := range streams {
		s.streams[status.Name] = status
	}
	if s.deliveries, err = js.Deliveries(ctx, agents); err != nil {
		return s, err
	}
	for _, node := range h.nodes() {
		f, err := node.Figures()
		if err != nil {
			return s, err
		}
		s.node.InMessages += f.InMessages
		s.node.OutMessages += f.OutMessages
		s.node.InBytes += f.InBytes
		s.node.OutBytes += f.OutBytes
	}
	return s, nil
}

const lookPatience = 30 * time.Second
