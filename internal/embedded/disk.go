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

	"github.com/agenthandoff/handoff/internal/jetstream"
)

// After its disk has refused one write a server refuses all others, even when space is free again,
// and its clients get no answer. So the node watches the server's log, reports the reason to
// clients, and restarts the server when the disk accepts writes.

const (
	// freeBytesMin is the space that must be free before the server is restarted.
	freeBytesMin = 8 << 20
	// freeBytesFull is the free space at which the disk counts as full, regardless of the server's log.
	freeBytesFull = 256 << 10
	// probeInterval is how often the node tries to write to a disk that refuses writes.
	probeInterval = time.Second
	// logInterval is how often the log repeats that the disk refuses writes.
	logInterval = time.Minute

	probeFile = "handoff.room"
)

// Health returns nil while the disk accepts writes and the server runs, otherwise the reason, with
// the directory.
func (n *Node) Health() error {
	n.mu.RLock()
	defer n.mu.RUnlock()
	if n.hung != nil {
		return n.hung
	}
	return n.diskErr
}

// serveHealth answers clients that ask for the node's health (broker.AskNode). Nodes of a cluster
// do not answer: a client could not know which of them did.
func (n *Node) serveHealth() error {
	nc, err := n.Conn()
	if err != nil {
		return err
	}
	n.healthConn = nc
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

// watchDisk restarts the server each time its disk has refused a write and accepts writes again. It
// returns when ctx ends, or when the server hangs.
func (n *Node) watchDisk(ctx context.Context) {
	tick := time.NewTicker(probeInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case err := <-n.log.refused:
			n.setDiskErr(err)
		case <-tick.C: // a server that hangs on a full disk logs nothing
			if free, known := freeBytes(n.cfg.Dir); !known || free >= freeBytesFull {
				continue
			}
			n.setDiskErr(syscall.ENOSPC)
		}
		began := time.Now()
		if !n.restartWhenWritable(ctx) {
			return
		}
		n.setDiskErr(nil)
		n.cfg.Log.Info("disk accepts writes again; server restarted", "dir", n.cfg.Dir, "after", time.Since(began).Round(time.Second))
	}
}

// setDiskErr sets the error of Health.
func (n *Node) setDiskErr(err error) {
	dir, absErr := filepath.Abs(n.cfg.Dir)
	if absErr != nil {
		dir = n.cfg.Dir
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.diskErr = nil
	switch {
	case err == nil:
	case isNoSpace(err):
		n.diskErr = fmt.Errorf("no space left on %s; %d MiB have to be free", dir, freeBytesMin>>20)
	default:
		n.diskErr = fmt.Errorf("%s refuses writes: %w", dir, err)
	}
}

// restartWhenWritable waits until the disk accepts writes and the server is restarted. It returns
// false if ctx ends first, or the server hangs.
func (n *Node) restartWhenWritable(ctx context.Context) bool {
	tick := time.NewTicker(probeInterval)
	defer tick.Stop()
	var logged time.Time
	for {
		if time.Since(logged) >= logInterval {
			logged = time.Now()
			n.cfg.Log.Error("disk refuses writes; nothing is acknowledged", "err", n.Health())
		}
		if err := n.probeDisk(); err != nil {
			n.setDiskErr(err)
		} else if err := n.restart(ctx); errors.Is(err, errHangs) {
			return false
		} else if err != nil {
			n.setDiskErr(err)
			n.cfg.Log.Warn("server restart failed", "err", err)
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

// probeDisk writes freeBytesMin bytes next to the store and removes them.
func (n *Node) probeDisk() (err error) {
	path := filepath.Join(n.cfg.Dir, probeFile)
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	block := make([]byte, 1<<20)
	for written := 0; written < freeBytesMin && err == nil; written += len(block) {
		_, err = f.Write(block)
	}
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close(), os.Remove(path))
}

// restart replaces the server as after a crash: the streams that may have lost their end are
// emptied and refilled before clients are served.
func (n *Node) restart(ctx context.Context) error {
	if err := n.stopServer(nil); err != nil {
		return err
	}
	n.removeStaging()
	n.log.reset()
	return n.start(ctx)
}

func isNoSpace(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}
