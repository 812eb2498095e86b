package embedded

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

// errHangs is the error of a node whose server does not stop. nats-server 2.15.2 deadlocks when a
// delayed message falls due while its disk is full. Nothing in this process can end it. The
// acknowledged messages are in the directory; the next process that starts a node there continues
// as after a crash.
var errHangs = errors.New("the server hangs and does not stop: this process has to be ended and started again")

// Stop stops the node cleanly and waits until everything is durable. If the server hangs, the
// error is errHangs, and the directory stays locked until this process ends.
func (n *Node) Stop() error {
	if err := n.shutdown(); err != nil {
		return err
	}
	n.removeStaging()
	err := os.Remove(filepath.Join(n.cfg.Dir, markerFile))
	return errors.Join(err, n.lock.Close())
}

// Kill stops the node and leaves the directory as a crash would, for tests.
func (n *Node) Kill() error {
	if err := n.shutdown(); err != nil {
		return err
	}
	return n.lock.Close()
}

// Failed returns a channel that is closed when the node has given up: its server hangs, and no
// longer serves clients. Health has the reason.
func (n *Node) Failed() <-chan struct{} { return n.failed }

// shutdown stops the server for good. The marker file remains.
func (n *Node) shutdown() error {
	n.stopWatch()
	<-n.watchDone
	return n.stopServer(n.healthConn.Close) // a connection to a server that hangs may not close either
}

// stopServer calls first, and then stops the current server, if there is one. It gives up on a
// server that does not stop in time, and at once on one that it gave up on before.
func (n *Node) stopServer(first func()) error {
	n.mu.RLock()
	srv, hung := n.current, n.hung
	n.mu.RUnlock()
	if hung != nil || srv == nil {
		return hung
	}
	stopped := make(chan struct{})
	go func() { // joined below, unless the server hangs
		defer close(stopped)
		if first != nil {
			first()
		}
		n.halt(srv)
	}()
	late := time.NewTimer(n.haltTimeout)
	defer late.Stop()
	select {
	case <-stopped:
		return nil
	case <-late.C:
		return n.giveUp()
	}
}

// giveUp records that the server hangs.
func (n *Node) giveUp() error {
	err := fmt.Errorf("server in %s not stopped after %v: %w", n.cfg.Dir, n.haltTimeout, errHangs)
	n.mu.Lock()
	n.hung = err
	n.mu.Unlock()
	close(n.failed)
	n.cfg.Log.Error("server hangs; the node gives up", "dir", n.cfg.Dir, "after", n.haltTimeout)
	return err
}

func haltServer(srv *server.Server) {
	srv.Shutdown()
	srv.WaitForShutdown()
}
