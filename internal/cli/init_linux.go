package cli

import (
	"fmt"
	"os"
	"os/signal"
	"slices"
	"syscall"

	"golang.org/x/term"
)

// asInit runs the worker of a container as a child of this process if this is process 1, to which
// the system gives the orphans of all others: processes that git, npm and browsers leave behind. They
// are reaped here, and not in the worker, which waits for its own programs by their numbers. It returns
// false if this process is the worker.
func asInit(args []string) (code int, is bool) {
	if os.Getpid() != 1 || !slices.Contains(args, "work") {
		return 0, false
	}
	self, err := os.Executable()
	if err != nil {
		fmt.Fprintln(os.Stderr, "handoff: orphans are not reaped:", err)
		return 0, false
	}
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2)
	if !signal.Ignored(syscall.SIGHUP) {
		signal.Notify(signals, syscall.SIGHUP)
	}
	attr := &syscall.SysProcAttr{Setpgid: true} // else a Ctrl-C would reach it twice
	if stdin := int(os.Stdin.Fd()); term.IsTerminal(stdin) {
		attr.Foreground, attr.Ctty = true, stdin
	}
	worker, err := os.StartProcess(self, append([]string{os.Args[0]}, args...), &os.ProcAttr{Files: []*os.File{os.Stdin, os.Stdout, os.Stderr}, Sys: attr})
	if err != nil {
		fmt.Fprintln(os.Stderr, "handoff: orphans are not reaped:", err)
		return 0, false
	}
	go func() {
		for s := range signals {
			_ = syscall.Kill(worker.Pid, s.(syscall.Signal))
		}
	}()
	return reapUntil(worker.Pid), true
}

// reapUntil reaps every child that ends until that one has, and returns its exit code.
func reapUntil(pid int) int {
	for {
		var status syscall.WaitStatus
		ended, err := syscall.Wait4(-1, &status, 0, nil)
		switch {
		case err == syscall.EINTR, err == nil && ended != pid:
			continue
		case err != nil:
			return exitError
		case status.Signaled():
			return 128 + int(status.Signal())
		}
		return status.ExitStatus()
	}
}
