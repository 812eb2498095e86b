package testworld

import "syscall"

// processAttributes is for processes that a Ctrl-C does not reach, for it is the test's, and that
// end with the test however that ends.
func processAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
