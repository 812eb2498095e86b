//go:build !linux

package testworld

import "syscall"

// ours is for processes that a Ctrl-C does not reach, for it is the test's.
func ours() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
