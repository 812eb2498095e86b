package embedded

import (
	"crypto/sha256"
	"encoding/hex"
	"os"
	"path/filepath"
	"strings"

	"github.com/agenthandoff/handoff/internal/jetstream"
)

// sharedMemory is the directory of Linux for files in memory.
const sharedMemory = "/dev/shm"

// batchLink returns the path where the server stages the batches of the ledger: messages that are
// not committed yet. nats-server 2.15.2 creates a store for each batch and syncs it five times; the
// ledger itself it syncs once, before it acknowledges.
func (n *Node) batchLink() string {
	return filepath.Join(n.cfg.Dir, storeDir, "jetstream", "$G", "streams", jetstream.LedgerStream, "batches")
}

// stageInMemory lets the server stage batches in memory, where a sync is free: a batch then costs
// one sync instead of six. A batch that a power cut interrupts during its commit is no longer
// completed. Its writer has no acknowledgement, each of its messages is valid alone, and a killed
// process leaves the memory as it is.
//
// It is an optimisation. Without shared memory, without a ledger or with batches in flight the
// server stages on the disk.
func (n *Node) stageInMemory() {
	if n.cfg.Fsync != FsyncAlways || n.cfg.Cluster != nil || !isTmpfs(sharedMemory) {
		return
	}
	link := n.batchLink()
	if _, err := os.Stat(filepath.Dir(link)); err != nil {
		return // no ledger
	}
	dir, err := os.MkdirTemp(sharedMemory, n.stagingPrefix())
	if err != nil {
		return
	}
	_ = os.Remove(link) // an empty directory, from a start that created the ledger
	if err := os.Symlink(dir, link); err != nil {
		_ = os.Remove(dir)
		return
	}
	n.staging = dir
}

// stagingPrefix distinguishes the staging directories of this node from those of nodes in other
// directories, because a copy of a directory has its link too.
func (n *Node) stagingPrefix() string {
	dir, err := filepath.Abs(n.cfg.Dir)
	if err != nil {
		dir = n.cfg.Dir
	}
	sum := sha256.Sum256([]byte(dir))
	return "handoff-" + hex.EncodeToString(sum[:6]) + "-"
}

// staleStaging returns the staging directory that a node in this directory left because it was not
// stopped cleanly. The server may still need it when it starts.
func (n *Node) staleStaging() string {
	dir, err := os.Readlink(n.batchLink())
	if err != nil || filepath.Dir(dir) != sharedMemory || !strings.HasPrefix(filepath.Base(dir), n.stagingPrefix()) {
		return ""
	}
	return dir
}

// removeStaging undoes stageInMemory.
func (n *Node) removeStaging() {
	if n.staging == "" {
		return
	}
	_ = os.Remove(n.batchLink())
	_ = os.RemoveAll(n.staging)
	n.staging = ""
}
