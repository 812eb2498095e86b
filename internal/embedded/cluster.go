package embedded

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Cluster is several nodes in one process, for tests.
type Cluster struct {
	Nodes []*Node
}

// clusterTries is how often a cluster is started with other ports because one was taken.
const clusterTries = 5

// StartCluster starts n nodes under dir and waits until they can create streams. The nodes have
// routes to each other and listen on free ports (FreePorts). If a port was taken in between, it
// starts all over with others; a running node keeps its ports. fsync is as in Config.
func StartCluster(ctx context.Context, n int, dir string, fsync Fsync) (*Cluster, error) {
	return startCluster(ctx, n, dir, fsync, FreePorts)
}

func startCluster(ctx context.Context, n int, dir string, fsync Fsync, pick func(int) ([]int, error)) (c *Cluster, err error) {
	for range clusterTries {
		var ports []int
		if ports, err = pick(2 * n); err != nil {
			return nil, err
		}
		// All nodes are restarted, because each has the routes to all others.
		if c, err = startNodes(ctx, ports, dir, fsync); !errors.Is(err, syscall.EADDRINUSE) {
			return c, err
		}
	}
	return nil, err
}

// startNodes starts half as many nodes as there are ports: each needs one for routes and one for
// clients.
func startNodes(ctx context.Context, ports []int, dir string, fsync Fsync) (*Cluster, error) {
	n := len(ports) / 2
	var routes []string
	for _, port := range ports[:n] {
		routes = append(routes, fmt.Sprintf("nats://127.0.0.1:%d", port))
	}
	c := &Cluster{Nodes: make([]*Node, n)}
	errs := make([]error, n)
	var group sync.WaitGroup
	for i := range n {
		group.Go(func() {
			cfg := Config{
				Dir: filepath.Join(dir, fmt.Sprintf("n%d", i+1)), Name: fmt.Sprintf("n%d", i+1), Fsync: fsync,
				// A fixed port, so that clients find the node after a restart.
				Port:    ports[n+i],
				Cluster: &ClusterConfig{Port: ports[i], Routes: routes},
			}
			c.Nodes[i], errs[i] = Start(ctx, cfg)
		})
	}
	group.Wait()
	if err := errors.Join(errs...); err != nil {
		return nil, errors.Join(err, c.Stop())
	}
	if err := c.waitForLeader(ctx); err != nil {
		return nil, errors.Join(err, c.Stop())
	}
	return c, nil
}

// waitForLeader waits until the nodes have elected a leader and are current.
func (c *Cluster) waitForLeader(ctx context.Context) error {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		leader, current := false, true
		for _, n := range c.Nodes {
			leader = leader || n.server().JetStreamIsLeader()
			current = current && n.server().JetStreamIsCurrent()
		}
		if leader && current {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("the nodes of the cluster did not find each other: %w", ctx.Err())
		}
	}
}

// URL lists the URLs of all nodes.
func (c *Cluster) URL() string {
	var urls []string
	for _, n := range c.Nodes {
		urls = append(urls, n.ClientURL())
	}
	return strings.Join(urls, ",")
}

// Restart starts a node that was stopped or killed.
func (c *Cluster) Restart(ctx context.Context, i int) (err error) {
	c.Nodes[i], err = Start(ctx, c.Nodes[i].cfg)
	return err
}

// Stop stops all nodes.
func (c *Cluster) Stop() error {
	errs := make([]error, len(c.Nodes))
	var group sync.WaitGroup
	for i, n := range c.Nodes {
		if n == nil {
			continue
		}
		group.Go(func() {
			err := n.Stop()
			if err != nil && !errors.Is(err, os.ErrNotExist) && !errors.Is(err, os.ErrClosed) {
				errs[i] = err // a node may have been stopped before
			}
		})
	}
	group.Wait()
	return errors.Join(errs...)
}
