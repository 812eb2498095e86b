//go:build !linux

package testworld

import (
	"syscall"
	"testing"
)

// processAttributes keep a Ctrl-C at the test from its processes.
func processAttributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

// Files returns how many files a process may open; 0 is unknown.
func Files(testing.TB) uint64 { return 0 }
