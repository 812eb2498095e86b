package embedded

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/agenthandoff/handoff/broker/jetstream"
)

// A server whose disk has refused one write refuses all that follow, also when there is
// room again, and its clients hear nothing. So the node watches for the server's words,
// tells clients what is wrong, and starts the server anew when the disk takes writes.

const (
	// roomMin is how much must fit on the disk before the server is started anew.
	roomMin = 8 << 20
	// roomEvery is how often the node tries whether the disk takes writes again.
	roomEvery = time.Second
	// troubleEvery is how often the log repeats that it does not.
	troubleEvery = time.Minute

	roomFile = "handoff.room"
)

// Health is nil while the disk takes writes. Else it says why it does not, and where.
func (n *Node) Health() error {
	n.mu.RLock()
	defer n.mu.RUnlock()
	return n.failing
}

// answer lets clients ask how the node is (broker.AskNode). Nodes of a cluster do not
// answer: a client could not tell which of them did.
func (n *Node) answer() error {
	nc, err := n.Conn()
	if err != nil {
		return err
	}
	n.answering = nc
	if n.cfg.Cluster != nil {
		return nil
	}
	_, err = nc.Subscribe(jetstream.NodeSubject, func(m *nats.Msg) {
		var health jetstream.NodeHealth
		if err := n.Health(); err != nil {
			health.Problem = err.Error()
		}
		body, err := json.Marshal(health)
		if err == nil {
			_ = m.Respond(body) // the client may have gone
		}
	})
	if err != nil {
		nc.Close()
	}
	return err
}

// watchDisk starts the server anew, each time its disk has refused a write and takes
// writes again. It returns when ctx ends.
func (n *Node) watchDisk(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case err := <-n.log.refused:
			n.fail(err)
		}
		began := time.Now()
		if !n.awaitRestart(ctx) {
			return
		}
		n.fail(nil)
		n.cfg.Log.Info("the disk takes writes again; the server was started anew", "dir", n.cfg.Dir, "after", time.Since(began).Round(time.Second))
	}
}

// fail sets what Health says.
func (n *Node) fail(err error) {
	dir, absErr := filepath.Abs(n.cfg.Dir)
	if absErr != nil {
		dir = n.cfg.Dir
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.failing = nil
	switch {
	case err == nil:
	case outOfRoom(err):
		n.failing = fmt.Errorf("no space left on %s; %d MiB have to be free", dir, roomMin>>20)
	default:
		n.failing = fmt.Errorf("%s refuses writes: %w", dir, err)
	}
}

// awaitRestart waits until the disk takes writes and the server serves again. It is
// false when ctx ends first.
func (n *Node) awaitRestart(ctx context.Context) bool {
	tick := time.NewTicker(roomEvery)
	defer tick.Stop()
	var told time.Time
	for {
		if time.Since(told) >= troubleEvery {
			told = time.Now()
			n.cfg.Log.Error("nothing is acknowledged until the disk takes writes", "err", n.Health())
		}
		if err := n.tryDisk(); err != nil {
			n.fail(err)
		} else if err := n.restart(ctx); err != nil {
			n.fail(err)
			n.cfg.Log.Warn("starting the server anew", "err", err)
		} else {
			return true
		}
		select {
		case <-ctx.Done():
			return false
		case <-tick.C:
		}
	}
}

// tryDisk writes roomMin bytes beside the store, and takes them away again.
func (n *Node) tryDisk() (err error) {
	path := filepath.Join(n.cfg.Dir, roomFile)
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	block := make([]byte, 1<<20)
	for written := 0; written < roomMin && err == nil; written += len(block) {
		_, err = f.Write(block)
	}
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close(), os.Remove(path))
}

// restart stops the server and starts another in its place, as after a crash: what may
// have lost its end is emptied and filled again before clients are served.
func (n *Node) restart(ctx context.Context) error {
	n.halt()
	n.unstage()
	n.log.forget()
	return n.start(ctx)
}

func outOfRoom(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}
