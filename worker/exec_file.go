package worker

import (
	"fmt"
	"os"
)

// openRegular opens a file in whose place a program may have put anything. Only
// a regular file is read: a named pipe would keep its reader for ever, a device may
// have no end. A symbolic link is not followed.
func openRegular(path string) (*os.File, error) {
	info, err := os.Lstat(path) // to open a device can be too much already
	if err != nil {
		return nil, err
	}
	if err := checkRegular(info); err != nil {
		return nil, err
	}
	file, err := os.OpenFile(path, os.O_RDONLY|openAtOnce, 0)
	if err != nil {
		return nil, err
	}
	if info, err = file.Stat(); err == nil { // it may have been replaced since
		err = checkRegular(info)
	}
	if err != nil {
		_ = file.Close()
		return nil, err
	}
	return file, nil
}

func checkRegular(info os.FileInfo) error {
	what := "no file"
	switch mode := info.Mode(); {
	case mode.IsRegular():
		return nil
	case mode&os.ModeSymlink != 0:
		what = "a symbolic link"
	case mode&os.ModeNamedPipe != 0:
		what = "a named pipe"
	case mode&os.ModeSocket != 0:
		what = "a socket"
	case mode.IsDir():
		what = "a directory"
	case mode&os.ModeDevice != 0:
		what = "a device"
	}
	return fmt.Errorf("is %s; only a regular file is read", what)
}
