//go:build !linux

package testworld

import "syscall"

// processAttributes is for processes that a Ctrl-C does not reach, for it is the test's.
func processAttributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
