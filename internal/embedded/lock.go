package embedded

import (
	"errors"
	"fmt"
	"path/filepath"

	"github.com/agenthandoff/handoff/internal/filelock"
)

// ErrInUse is returned if another process uses the directory.
var ErrInUse = errors.New("directory in use")

// ErrPort is returned if the node cannot listen on its port.
var ErrPort = errors.New("port not available")

// lockDir locks the directory for this process.
func lockDir(dir string) (*filelock.Lock, error) {
	f, err := filelock.Take(filepath.Join(dir, lockFile))
	var held *filelock.HeldError
	switch {
	case errors.As(err, &held):
		return nil, fmt.Errorf("%w: %s is %w", ErrInUse, dir, err)
	case err != nil:
		return nil, fmt.Errorf("lock %s: %w", dir, err)
	}
	return f, nil
}
