package fleet

import (
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
)

// disk is one that a test may fill.
type disk struct {
	t      testing.TB
	filler string
}

// mount puts a small file system at a directory; nil where that is not allowed.
func mount(t testing.TB, dir string, bytes int64) *disk {
	t.Helper()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("mount", "-t", "tmpfs", "-o", "size="+strconv.FormatInt(bytes, 10), "tmpfs", dir).CombinedOutput(); err != nil {
		t.Logf("no disk of its own for a node: mount: %v: %s", err, out)
		return nil
	}
	t.Cleanup(func() {
		if out, err := exec.Command("umount", "-l", dir).CombinedOutput(); err != nil {
			t.Errorf("umount: %v: %s", err, out)
		}
	})
	return &disk{t, filepath.Join(dir, "filler")}
}

// HasDisk tells whether a node has a disk of its own, that may be filled.
func (n *Node) HasDisk() bool { return n.disk != nil }

// FillDisk leaves no room on a node's disk; FreeDisk gives it back.
func (n *Node) FillDisk() {
	f, err := os.Create(n.disk.filler)
	if err != nil {
		n.disk.t.Error(err)
		return
	}
	defer func() { _ = f.Close() }()
	if _, err := io.Copy(f, zeros{}); !errors.Is(err, syscall.ENOSPC) {
		n.disk.t.Errorf("the disk was filled until %v", err)
	}
}

// FreeDisk takes away what FillDisk has written.
func (n *Node) FreeDisk() {
	if err := os.Remove(n.disk.filler); err != nil {
		n.disk.t.Error(err)
	}
}

// zeros are without end.
type zeros struct{}

func (zeros) Read(b []byte) (int, error) {
	clear(b)
	return len(b), nil
}
