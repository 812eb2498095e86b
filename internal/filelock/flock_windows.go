package filelock

import (
	"errors"
	"math"
	"os"

	"golang.org/x/sys/windows"
)

// lockedByte is far behind the process id, which other processes read: a lock keeps them
// from the bytes that it covers.
const lockedByte = math.MaxInt32

// lock locks an open file, and reports false where another process has it.
func lock(f *os.File) (bool, error) {
	flags := uint32(windows.LOCKFILE_FAIL_IMMEDIATELY | windows.LOCKFILE_EXCLUSIVE_LOCK)
	err := windows.LockFileEx(windows.Handle(f.Fd()), flags, 0, 1, 0, &windows.Overlapped{Offset: lockedByte})
	if errors.Is(err, windows.ERROR_LOCK_VIOLATION) {
		return false, nil
	}
	return err == nil, err
}

func unlock(f *os.File) error {
	return errors.Join(windows.UnlockFileEx(windows.Handle(f.Fd()), 0, 1, 0, &windows.Overlapped{Offset: lockedByte}), f.Close())
}
