package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"syscall"
	"testing"

	"github.com/agenthandoff/handoff/internal/embedded"
)

// Each reason for which dev does not start has advice of its own, and only a port
// that is in use is about the port.
func TestNotStarted(t *testing.T) {
	for cause, want := range map[error]string{
		embedded.ErrInUse:                  "as another handoff dev does",
		embedded.ErrPort:                   "--port",
		syscall.EACCES:                     "let this user write there",
		syscall.EROFS:                      "let this user write there",
		syscall.ENOSPC:                     "make room on that disk",
		syscall.EDQUOT:                     "make room on that disk",
		syscall.ENOTDIR:                    "cannot create the directory",
		fs.ErrNotExist:                     "cannot create the directory",
		errors.New("the store is damaged"): "the existing files were left as they are",
	} {
		err := notStarted(fmt.Errorf("start a node in data: %w", cause), devConfig{dataFlag: dataFlag{"data"}})
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v, want %q", cause, err, want)
		}
		if strings.Contains(err.Error(), "--port") != (cause == embedded.ErrPort) {
			t.Errorf("%v: %v", cause, err)
		}
	}
}
