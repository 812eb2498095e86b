// Package filelock gives a file to one process at a time. The kernel takes the lock back when
// the process ends, however it does.
package filelock

import (
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
)

// HeldError reports that another process has the lock.
type HeldError struct {
	PID string // of the holder; empty while it is not written yet
}

func (e *HeldError) Error() string { return "locked by process " + e.PID }

// Lock is a lock that this process has.
type Lock struct{ file *os.File }

// Close releases the lock. It unlocks the file before it closes it: a process that is just being
// started has a copy of the open file until its program runs, and the lock would last as long.
func (l *Lock) Close() error { return unlock(l.file) }

// Take locks the file at path, which it makes if need be, and writes this process's id into
// it. A *HeldError reports that another process has it.
func Take(path string) (*Lock, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if locked, err := lock(f); !locked {
		pid, _ := io.ReadAll(io.LimitReader(f, 32))
		_ = f.Close()
		if err == nil {
			return nil, &HeldError{PID: strings.TrimSpace(string(pid))}
		}
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	err = f.Truncate(0)
	if err == nil {
		_, err = f.WriteAt([]byte(strconv.Itoa(os.Getpid())), 0)
	}
	if err != nil {
		_ = unlock(f)
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	return &Lock{f}, nil
}
