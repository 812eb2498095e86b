package testworld

import (
	"syscall"
	"testing"
)

// processAttributes keep a Ctrl-C at the test from its processes, and end them with the test even
// if it is killed.
func processAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// Files returns how many files a process may open. The runtime of Go has raised that to the most that
// the system allows.
func Files(t testing.TB) uint64 {
	t.Helper()
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	return limit.Cur
}
