package embedded

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

// hang starts a node whose server does not stop before the test ends.
func hang(t *testing.T) *Node {
	t.Helper()
	n, err := Start(t.Context(), Config{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	release := make(chan struct{})
	stopped := make(chan struct{})
	n.haltTimeout = 10 * time.Millisecond
	n.halt = func(srv *server.Server) {
		defer close(stopped)
		<-release
		haltServer(srv)
	}
	t.Cleanup(func() {
		close(release)
		<-stopped
		if err := n.lock.Close(); err != nil {
			t.Error(err)
		}
	})
	return n
}

// gaveUp checks that the node is as its next process needs it: locked, and not marked as stopped.
func gaveUp(t *testing.T, n *Node) {
	t.Helper()
	select {
	case <-n.Failed():
	default:
		t.Error("the node has not given up")
	}
	if err := n.Health(); !errors.Is(err, errHangs) {
		t.Errorf("health is %v", err)
	}
	if err := n.Stop(); !errors.Is(err, errHangs) {
		t.Errorf("it stops with %v", err)
	}
	if _, err := os.Stat(filepath.Join(n.cfg.Dir, markerFile)); err != nil {
		t.Errorf("the next start takes the stop for a clean one: %v", err)
	}
	if _, err := Start(t.Context(), Config{Dir: n.cfg.Dir}); !errors.Is(err, ErrInUse) {
		t.Errorf("another node starts beside the server that hangs: %v", err)
	}
}

// TestGivesUpOnAServerThatHangs checks that Stop ends when the server does not.
func TestGivesUpOnAServerThatHangs(t *testing.T) {
	n := hang(t)
	if err := n.Stop(); !errors.Is(err, errHangs) {
		t.Errorf("it stops with %v", err)
	}
	gaveUp(t, n)
}

// TestGivesUpOnARestartThatHangs checks that the node says so when the server does not stop after
// its disk accepts writes again.
func TestGivesUpOnARestartThatHangs(t *testing.T) {
	n := hang(t)
	n.log.Errorf("JetStream stream '%s > %s' critical write error: %v", "$G", "TEST", syscall.ENOSPC)
	select {
	case <-n.Failed():
	case <-time.After(time.Minute):
		t.Fatal("it waits for the server without an end")
	}
	gaveUp(t, n)
}
