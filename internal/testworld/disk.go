package testworld

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

// Disk is a small file system that a test may fill.
type Disk struct {
	t      testing.TB
	filler string
}

// SmallDisk mounts one of so many bytes at a directory. It is nil, and the test's log
// says why, where this process may not mount.
func SmallDisk(t testing.TB, dir string, bytes int64) *Disk {
	t.Helper()
	return mount(t, dir, bytes)
}

// mount puts a small file system at a directory; nil where that is not allowed.
func mount(t testing.TB, dir string, bytes int64) *Disk {
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
	return &Disk{t, filepath.Join(dir, "filler")}
}

// HasDisk tells whether a node has a disk of its own, that may be filled.
func (n *Node) HasDisk() bool { return n.Disk != nil }

// FillDisk leaves no room on a node's disk; FreeDisk gives it back.
func (n *Node) FillDisk() { n.Disk.Fill() }

// FreeDisk takes away what FillDisk has written.
func (n *Node) FreeDisk() { n.Disk.Free() }

// Fill leaves no room on the disk.
func (d *Disk) Fill() {
	f, err := os.Create(d.filler)
	if err != nil {
		d.t.Error(err)
		return
	}
	defer func() { _ = f.Close() }()
	if _, err := io.Copy(f, zeros{}); !errors.Is(err, syscall.ENOSPC) {
		d.t.Errorf("the disk was filled until %v", err)
	}
}

// Free takes away what Fill has written.
func (d *Disk) Free() {
	if err := os.Remove(d.filler); err != nil {
		d.t.Error(err)
	}
}

// zeros are without end.
type zeros struct{}

func (zeros) Read(b []byte) (int, error) {
	clear(b)
	return len(b), nil
}
