//go:build !linux

package testworld

import "syscall"

// processAttributes keep a Ctrl-C at the test from its processes.
func processAttributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
