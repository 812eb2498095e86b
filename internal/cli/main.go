// Package cli is the command line of Handoff. It holds wiring, flags and output
// only: what happens next is decided in protocol/lifecycle, and what stands in
// the ledger is written by package broker.
package cli

import (
	"context"
	"io"
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/term"
)

// Main runs this process's command line and ends the process with its exit
// code. Commands end in order at the first SIGINT, SIGTERM or SIGHUP, and at the second as soon
// as what they hold is given back. A SIGHUP that is ignored, as under nohup, stays so.
func Main() {
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	if !signal.Ignored(syscall.SIGHUP) {
		signal.Notify(signals, syscall.SIGHUP)
	}
	ctx, cancel := context.WithCancel(context.Background())
	a := &app{
		in: os.Stdin, out: os.Stdout, err: os.Stderr, env: os.Getenv,
		terminal: term.IsTerminal(int(os.Stdout.Fd())), broken: make(chan struct{}),
	}
	if columns, _, err := term.GetSize(int(os.Stdout.Fd())); err == nil {
		a.width = columns
	}
	for _, file := range []*os.File{os.Stdin, os.Stdout, os.Stderr} {
		a.interactive = a.interactive || term.IsTerminal(int(file.Fd()))
	}
	go a.endOn(signals, nil, cancel, os.Exit)
	code := a.run(ctx, os.Args[1:])
	if a.hurried.Load() {
		code = exitInterrupted
	}
	os.Exit(code)
}

// outliveLog keeps this process alive when the reader of its log is gone: Go ends a process whose
// standard output or error is closed at the other end. It is notified rather than ignored, since
// what is ignored is so for the programs that a worker starts, too.
func (a *app) outliveLog() {
	if a.broken != nil { // the process is ours
		signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	}
}

// Run executes one command line within this process and returns its exit code.
// args has no program name. Many goroutines may call Run at once: file names are
// relative to env's PWD, and variables come from env alone. Run blocks until the
// command has ended; a command that serves ends with ctx. Commands that start this
// program again (demo, bench) and traces (OTEL_EXPORTER_…) need a process of their own.
func Run(ctx context.Context, args []string, in io.Reader, out, err io.Writer, env func(string) string) int {
	a := &app{in: in, out: out, err: err, env: env, dir: env("PWD")}
	return a.run(ctx, args)
}
