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

// deployment is the engine of a round: nodes of our own, or an existing engine.
type deployment struct {
	cfg       Config
	dir       string
	removeDir bool // dir, with the home
	loading   bool // fsync at an interval, whatever the configuration says: it is being filled
	node      *embedded.Node
	cluster   *embedded.Cluster
	nextNode  int // of the cluster's nodes, to connect to
}

// openDeployment starts nodes of our own, if the configuration has no engine. dir "" is a
// temporary directory, which close removes.
func openDeployment(ctx context.Context, cfg Config, dir string) (_ *deployment, err error) {
	d := &deployment{cfg: cfg, dir: dir}
	if cfg.Connect != nil {
		return d, nil
	}
	if dir == "" {
		if d.dir, err = os.MkdirTemp("", "handoff-bench-"); err != nil {
			return nil, err
		}
		d.removeDir = true
	}
	if err := d.start(ctx); err != nil {
		return nil, errors.Join(err, d.close())
	}
	return d, nil
}

func (d *deployment) start(ctx context.Context) (err error) {
	// As in handoff dev: where every write of the ledger is synced, the streams derived
	// from it need not be.
	topology := jetstream.Topology{Replicas: d.cfg.Replicas, AsyncWork: d.cfg.Fsync == embedded.FsyncAlways}
	if d.cfg.Replicas > 1 {
		if d.cluster, err = embedded.StartCluster(ctx, d.cfg.Replicas, d.dir, d.fsync()); err != nil {
			return err
		}
		return ensureTopology(ctx, d.cluster.Nodes[0], topology)
	}
	if d.node, err = embedded.Start(ctx, embedded.Config{Dir: d.dir, Fsync: d.fsync(), DontListen: d.cfg.Processes == 0, Log: d.cfg.Log}); err != nil {
		return err
	}
	return ensureTopology(ctx, d.node, topology)
}

func ensureTopology(ctx context.Context, node *embedded.Node, t jetstream.Topology) error {
	nc, err := node.Conn()
	if err != nil {
		return err
	}
	defer nc.Close()
	return jetstream.EnsureTopology(ctx, nc, t)
}

// nodes returns the nodes of our own; nil for an existing engine.
func (d *deployment) nodes() []*embedded.Node {
	switch {
	case d.node != nil:
		return []*embedded.Node{d.node}
	case d.cluster != nil:
		return d.cluster.Nodes
	}
	return nil
}

// url is where worker processes find nodes of our own; "" for an existing engine.
func (d *deployment) url() string {
	switch {
	case d.node != nil:
		return d.node.ClientURL()
	case d.cluster != nil:
		return d.cluster.URL()
	}
	return ""
}

// connect makes a connection of its own and an engine over it.
func (d *deployment) connect(ctx context.Context) (broker.Engine, func(), error) {
	if d.cfg.Connect != nil {
		return d.cfg.Connect(ctx)
	}
	nodes := d.nodes()
	node := nodes[d.nextNode%len(nodes)]
	d.nextNode++
	nc, err := node.Conn()
	if err != nil {
		return nil, nil, err
	}
	engine, err := jetstream.Open(ctx, nc, jetstream.Config{Log: d.cfg.Log})
	if err != nil {
		nc.Close()
		return nil, nil, err
	}
	return engine, func() { _ = engine.Close(); nc.Close() }, nil
}

func (d *deployment) close() error {
	var err error
	switch {
	case d.node != nil:
		err = d.node.Stop()
	case d.cluster != nil:
		err = d.cluster.Stop()
	}
	if d.removeDir {
		err = errors.Join(err, os.RemoveAll(d.dir))
	}
	return err
}

// engineCounters counts the messages and bytes that an engine has stored and moved so far.
type engineCounters struct {
	streams    map[string]jetstream.StreamStatus
	deliveries jetstream.Deliveries
	node       embedded.Stats // of all nodes of our own together
}

// readCounters reads the engine's counters, before or after a measurement, never during one.
func (d *deployment) readCounters(ctx context.Context, engine broker.Engine, agents string) (engineCounters, error) {
	ctx, cancel := context.WithTimeout(ctx, countersTimeout)
	defer cancel()
	s := engineCounters{streams: map[string]jetstream.StreamStatus{}}
	js, ok := engine.(*jetstream.Engine)
	if !ok {
		return s, fmt.Errorf("bench: an engine of kind %T has no counters", engine)
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
	for _, node := range d.nodes() {
		f, err := node.Stats()
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

const countersTimeout = 30 * time.Second
