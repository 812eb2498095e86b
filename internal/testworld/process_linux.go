package testworld

import "syscall"

// processAttributes keep a Ctrl-C at the test from its processes, and end them with the test even
// if it is killed.
func processAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
