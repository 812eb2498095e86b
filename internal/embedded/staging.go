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

// batchLinks returns the paths where the server stages the batches of the partitions of the ledger:
// messages that are not committed yet. nats-server 2.15.2 creates a store for each batch and syncs it five times; the
// ledger itself it syncs once, before it acknowledges.
func (n *Node) batchLinks() (links []string) {
	for p := range max(1, LedgersIn(n.cfg.Dir)) {
		stream, _ := jetstream.LedgerPartition(p)
		links = append(links, filepath.Join(streamDir(n.cfg.Dir, stream), "batches"))
	}
	return links
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
	for _, link := range n.batchLinks() {
		if _, err := os.Stat(filepath.Dir(link)); err != nil {
			continue // no ledger
		}
		dir, err := os.MkdirTemp(sharedMemory, n.stagingPrefix())
		if err != nil {
			return
		}
		_ = os.Remove(link) // an empty directory, from a start that created the ledger
		if err := os.Symlink(dir, link); err != nil {
			_ = os.Remove(dir)
			continue
		}
		n.staging = append(n.staging, staged{link, dir})
	}
}

// staged is a link to a staging directory in memory.
type staged struct{ link, dir string }

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

// staleStaging returns the staging directories that a node in this directory left because it was not
// stopped cleanly. The server may still need them when it starts.
func (n *Node) staleStaging() (stale []string) {
	for _, link := range n.batchLinks() {
		dir, err := os.Readlink(link)
		if err == nil && filepath.Dir(dir) == sharedMemory && strings.HasPrefix(filepath.Base(dir), n.stagingPrefix()) {
			stale = append(stale, dir)
		}
	}
	return stale
}

// removeStaging undoes stageInMemory.
func (n *Node) removeStaging() {
	for _, s := range n.staging {
		_ = os.Remove(s.link)
		_ = os.RemoveAll(s.dir)
	}
	n.staging = nil
}
