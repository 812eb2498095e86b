package testworld

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	handoffjs "github.com/agenthandoff/handoff/internal/jetstream"
)

// Cluster is a cluster of NATS servers with JetStream that sync every write.
type Cluster struct {
	Nodes []*Node

	t      testing.TB
	routes map[[2]int]*proxy // of routes, by from and to
}

// Node is one server of a cluster.
type Node struct {
	*Process
	// URL is its address for clients, Monitor that of its monitoring port.
	URL, Monitor string
	// Profiles is the address of its Go profiles.
	Profiles string
	// Dir is the directory of its streams.
	Dir string
	// ProxyURL is its address for clients through a proxy that can be cut (CutClients).
	ProxyURL string

	proxy *proxy
	Disk  *Disk
}

// startTimeout is how long a cluster may take to elect leaders, on a busy machine.
const startTimeout = 3 * time.Minute

// StartCluster starts n servers, and returns when they have the streams of Handoff with as many
// replicas. With diskBytes the last server keeps its streams on a small disk of that size, if
// this process may mount one (Node.Disk).
func StartCluster(t testing.TB, n int, diskBytes int64) *Cluster {
	t.Helper()
	return StartDivided(t, n, diskBytes, 1)
}

// StartDivided is StartCluster for a ledger of so many partitions.
func StartDivided(t testing.TB, n int, diskBytes int64, partitions int) *Cluster {
	t.Helper()
	server := NATSServer(t)
	c := &Cluster{t: t, routes: map[[2]int]*proxy{}}
	ports := Ports(t, 4*n)
	at := func(i int) string { return fmt.Sprintf("127.0.0.1:%d", ports[i]) }
	for from := range n {
		for to := range n {
			if from != to {
				c.routes[[2]int{from, to}] = newProxy(t, at(n+to))
			}
		}
	}
	base := t.TempDir()
	for i := range n {
		var routes []string
		for to := range n {
			if to != i {
				routes = append(routes, fmt.Sprintf("nats-route://%s", c.routes[[2]int{i, to}].address()))
			}
		}
		dir := filepath.Join(base, fmt.Sprint("node", i))
		var small *Disk
		if diskBytes > 0 && i == n-1 {
			small = SmallDisk(t, dir, diskBytes)
		}
		// The advertised address leads nowhere: so each pair of servers has only the two
		// routes through proxies that can be cut.
		config := fmt.Sprintf(`server_name: node%d
listen: %q
http: %q
prof_port: %d
jetstream { store_dir: %q, sync_interval: always, max_file_store: 16GB }
cluster { name: fleet, listen: %q, advertise: "127.0.0.1:1", pool_size: -1, routes: [ %s ] }
`, i, at(i), at(2*n+i), ports[3*n+i], dir, at(n+i), strings.Join(routes, ", "))
		path := filepath.Join(base, fmt.Sprintf("node%d.conf", i))
		if err := os.WriteFile(path, []byte(config), 0o600); err != nil {
			t.Fatal(err)
		}
		node := &Node{URL: "nats://" + at(i), Monitor: "http://" + at(2*n+i), Profiles: "http://" + at(3*n+i) + "/debug/pprof/", Dir: dir, proxy: newProxy(t, at(i)), Disk: small}
		node.ProxyURL = "nats://" + node.proxy.address()
		node.Process = Start(t, fmt.Sprint("node", i), nil, server, "-c", path)
		c.Nodes = append(c.Nodes, node)
	}
	ctx, cancel := context.WithTimeout(t.Context(), startTimeout)
	defer cancel()
	var err error
	for ctx.Err() == nil {
		if err = c.ensureStreams(ctx, n, partitions); err == nil {
			return c
		}
		for _, node := range c.Nodes {
			if !node.Running() {
				t.Fatalf("%s ended while the cluster started:\n%s", node.Name, node.Output())
			}
		}
		Pause(ctx, 200*time.Millisecond)
	}
	t.Fatalf("the cluster does not come up: %v", err)
	return nil
}

func (c *Cluster) ensureStreams(ctx context.Context, replicas, partitions int) error {
	nc, err := nats.Connect(c.URL(), nats.Timeout(2*time.Second))
	if err != nil {
		return err
	}
	defer nc.Close()
	return handoffjs.EnsureTopology(ctx, nc, handoffjs.Topology{Replicas: replicas, Partitions: partitions, Fsync: handoffjs.FsyncAlways})
}

// URL lists the addresses of all servers.
func (c *Cluster) URL() string {
	var all []string
	for _, n := range c.Nodes {
		all = append(all, n.URL)
	}
	return strings.Join(all, ",")
}

// Leader returns the index of the node that leads a stream; -1 if none is known.
func (c *Cluster) Leader(ctx context.Context, stream string) int {
	leader := Leader(ctx, c.URL(), stream)
	return slices.IndexFunc(c.Nodes, func(n *Node) bool { return n.Name == leader })
}

// Leader returns the name of the server that leads a stream; empty if none is known.
func Leader(ctx context.Context, url, stream string) string {
	nc, err := nats.Connect(url, nats.Timeout(time.Second))
	if err != nil {
		return ""
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		return ""
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	s, err := js.Stream(ctx, stream)
	if err != nil || s.CachedInfo().Cluster == nil {
		return ""
	}
	return s.CachedInfo().Cluster.Leader
}

// Cut cuts the routes between two nodes; Mend restores them.
func (c *Cluster) Cut(a, b int)  { c.setCut(a, b, true) }
func (c *Cluster) Mend(a, b int) { c.setCut(a, b, false) }

func (c *Cluster) setCut(a, b int, cut bool) {
	c.routes[[2]int{a, b}].setCut(cut)
	c.routes[[2]int{b, a}].setCut(cut)
}

// CutClients cuts the connections through ProxyURL; MendClients restores them.
func (n *Node) CutClients()  { n.proxy.setCut(true) }
func (n *Node) MendClients() { n.proxy.setCut(false) }

// Healthy waits until every node reports that it is healthy.
func (c *Cluster) Healthy(ctx context.Context) error {
	for _, n := range c.Nodes {
		if err := Healthy(ctx, n.Monitor); err != nil {
			return fmt.Errorf("%s: %w", n.Name, err)
		}
	}
	return nil
}

// recoverTimeout is how long a server may take to catch up by itself.
const recoverTimeout = time.Minute

// Recover waits until all servers are healthy. It restarts a server once that is not healthy
// within a minute: the catch-up of a replica can repeat forever in nats-server, and an operator
// restarts it then (docs/operations/cluster.md).
func (c *Cluster) Recover(ctx context.Context) error {
	for _, n := range c.Nodes {
		alone, cancel := context.WithTimeout(ctx, recoverTimeout)
		err := Healthy(alone, n.Monitor)
		cancel()
		if err == nil {
			continue
		}
		c.t.Logf("restarting %s, unhealthy for %v: %v", n.Name, recoverTimeout, err)
		n.Kill()
		n.Restart()
	}
	return c.Healthy(ctx)
}

// Healthy waits until a server reports at its monitoring port that it is healthy.
func Healthy(ctx context.Context, monitor string) error {
	for {
		err := healthy(ctx, monitor)
		if err == nil || ctx.Err() != nil {
			return err
		}
		Pause(ctx, 200*time.Millisecond)
	}
}

func healthy(ctx context.Context, monitor string) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, monitor+"/healthz", nil)
	if err != nil {
		return err
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer func() { _ = answer.Body.Close() }()
	var health struct{ Status, Error string }
	if err := json.NewDecoder(answer.Body).Decode(&health); err != nil {
		return err
	}
	if health.Status != "ok" {
		return errors.New(health.Status + " " + health.Error)
	}
	return nil
}

// Pause waits for a while, or until ctx ends.
func Pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}
