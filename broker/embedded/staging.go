package embedded

import (
	"crypto/sha256"
	"encoding/hex"
	"os"
	"path/filepath"
	"strings"

	"github.com/agenthandoff/handoff/broker/jetstream"
)

// sharedMemory is where Linux keeps files that are in memory alone.
const sharedMemory = "/dev/shm"

// batchLink is where the engine stages the batches of the ledger: messages that
// have come and are not committed yet. nats-server 2.15.2 makes a store of its
// own for each batch, and syncs it five times; the ledger itself it syncs once,
// before it acknowledges.
func (n *Node) batchLink() string {
	return filepath.Join(n.cfg.Dir, storeDir, "jetstream", "$G", "streams", jetstream.LedgerStream, "batches")
}

// stageInMemory lets the engine stage batches in memory, where syncing is free:
// a batch then costs one sync in place of six. What it gives up is that a batch
// in the middle of its commit is made whole after a power cut. No writer was told
// that such a batch is there, each of its messages stands by itself, and a killed
// process leaves the memory as it is.
//
// It is not required. Where anything is not as expected the engine stages on the
// disk: no shared memory, no ledger yet, batches in flight.
func (n *Node) stageInMemory() {
	if n.cfg.Fsync != FsyncAlways || n.cfg.Cluster != nil || !inMemory(sharedMemory) {
		return
	}
	link := n.batchLink()
	if _, err := os.Stat(filepath.Dir(link)); err != nil {
		return // no ledger
	}
	dir, err := os.MkdirTemp(sharedMemory, n.stagePrefix())
	if err != nil {
		return
	}
	_ = os.Remove(link) // an empty directory, from a start that made the ledger
	if err := os.Symlink(dir, link); err != nil {
		_ = os.Remove(dir)
		return
	}
	n.staging = dir
}

// stagePrefix tells our directories in the shared memory from those of nodes
// that serve other directories: a copy of one has its link as well.
func (n *Node) stagePrefix() string {
	dir, err := filepath.Abs(n.cfg.Dir)
	if err != nil {
		dir = n.cfg.Dir
	}
	sum := sha256.Sum256([]byte(dir))
	return "handoff-" + hex.EncodeToString(sum[:6]) + "-"
}

// staleStaging is what a node in this directory, that was not stopped cleanly,
// has left in the shared memory. The engine may still want it when it starts.
func (n *Node) staleStaging() string {
	dir, err := os.Readlink(n.batchLink())
	if err != nil || filepath.Dir(dir) != sharedMemory || !strings.HasPrefix(filepath.Base(dir), n.stagePrefix()) {
		return ""
	}
	return dir
}

// unstage takes back what stageInMemory has set up.
func (n *Node) unstage() {
	if n.staging == "" {
		return
	}
	_ = os.Remove(n.batchLink())
	_ = os.RemoveAll(n.staging)
	n.staging = ""
}
