//go:build !windows

package filelock

import (
	"path/filepath"
	"syscall"
	"testing"
)

// A process that is being started has a copy of each open file until its program runs.
func TestCloseReleasesTheLockOfACopy(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	lock, err := Take(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Take(path); err == nil {
		t.Error("the lock is not held")
	}
	copied, err := syscall.Dup(int(lock.file.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = syscall.Close(copied) }()
	if err := lock.Close(); err != nil {
		t.Fatal(err)
	}
	again, err := Take(path)
	if err != nil {
		t.Fatalf("after Close: %v", err)
	}
	if err := again.Close(); err != nil {
		t.Error(err)
	}
}
