package worker

import (
	"os/exec"
	"syscall"
)

// ownGroup makes the program the leader of a group of its own, which the
// kernel kills (the leader alone) when the thread that starts it ends.
func ownGroup(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
