package testworld

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// StartServer starts a server with the test's own configuration and returns when it is healthy. The
// configuration lacks the addresses and the directory of streams. Files that it includes are in
// dir; env is added to the environment of the test.
func StartServer(t testing.TB, dir, config string, env ...string) *Node {
	t.Helper()
	node := LaunchServer(t, "server", dir, config, env...)
	ctx, cancel := context.WithTimeout(t.Context(), startTimeout)
	defer cancel()
	for {
		err := healthy(ctx, node.Monitor)
		switch {
		case err == nil:
			return node
		case ctx.Err() != nil || !node.Running():
			t.Fatalf("the server does not start: %v\n%s", err, node.Output())
		}
		Pause(ctx, 50*time.Millisecond)
	}
}

// StartServers starts a cluster of n servers with the same configuration, and returns when they
// are healthy.
func StartServers(t testing.TB, n int, dir, config string, env ...string) []*Node {
	t.Helper()
	var routes []string
	ports := Ports(t, n)
	for _, port := range ports {
		routes = append(routes, fmt.Sprintf("%q", fmt.Sprintf("nats-route://127.0.0.1:%d", port)))
	}
	c := &Cluster{t: t}
	for i, port := range ports {
		name := fmt.Sprint("node", i)
		c.Nodes = append(c.Nodes, LaunchServer(t, name, dir, fmt.Sprintf("server_name: %s\ncluster { name: fleet, listen: \"127.0.0.1:%d\", routes: [ %s ] }\n%s", name, port, strings.Join(routes, ", "), config), env...))
	}
	ctx, cancel := context.WithTimeout(t.Context(), startTimeout)
	defer cancel()
	if err := c.Healthy(ctx); err != nil {
		t.Fatalf("the cluster does not start: %v", err)
	}
	return c.Nodes
}

// LaunchServer is StartServer without the wait.
func LaunchServer(t testing.TB, name, dir, config string, env ...string) *Node {
	t.Helper()
	ports := Ports(t, 2)
	listen, monitor := fmt.Sprintf("127.0.0.1:%d", ports[0]), fmt.Sprintf("127.0.0.1:%d", ports[1])
	node := &Node{URL: "nats://" + listen, Monitor: "http://" + monitor, Dir: filepath.Join(dir, name)}
	config = fmt.Sprintf("listen: %q\nhttp: %q\njetstream { store_dir: %q }\n%s", listen, monitor, node.Dir, config)
	path := filepath.Join(dir, name+".conf")
	if err := os.WriteFile(path, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	node.Process = Start(t, name, env, NATSServer(t), "-c", path)
	return node
}
