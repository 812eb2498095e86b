package worker

import "syscall"

// dieWithUs lets the kernel kill the program (but not its children) when
// the thread that starts it ends.
func dieWithUs(attr *syscall.SysProcAttr) { attr.Pdeathsig = syscall.SIGKILL }
