//go:build unix && !linux

package worker

import (
	"os/exec"
	"syscall"
)

// ownGroup makes the program the leader of a group of its own.
func ownGroup(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
}
