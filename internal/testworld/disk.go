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

// SmallDisk mounts a file system of so many bytes at a directory. It returns nil, with the reason
// in the test's log, if this process may not mount.
func SmallDisk(t testing.TB, dir string, bytes int64) *Disk {
	t.Helper()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("mount", "-t", "tmpfs", "-o", "size="+strconv.FormatInt(bytes, 10), "tmpfs", dir).CombinedOutput(); err != nil {
		t.Logf("no small disk: mount: %v: %s", err, out)
		return nil
	}
	t.Cleanup(func() {
		if out, err := exec.Command("umount", "-l", dir).CombinedOutput(); err != nil {
			t.Errorf("umount: %v: %s", err, out)
		}
	})
	return &Disk{t, filepath.Join(dir, "filler")}
}

// Fill leaves no space on the disk.
func (d *Disk) Fill() {
	f, err := os.Create(d.filler)
	if err != nil {
		d.t.Error(err)
		return
	}
	defer func() { _ = f.Close() }()
	zero, err := os.Open("/dev/zero")
	if err != nil {
		d.t.Error(err)
		return
	}
	defer func() { _ = zero.Close() }()
	if _, err := io.Copy(f, zero); !errors.Is(err, syscall.ENOSPC) {
		d.t.Errorf("the disk was filled until %v", err)
	}
}

// Free removes what Fill has written.
func (d *Disk) Free() {
	if err := os.Remove(d.filler); err != nil {
		d.t.Error(err)
	}
}
