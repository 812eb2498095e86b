// Command handoff moves work between agents: it submits, claims, answers and
// follows handoffs, runs workers, and starts an engine. It holds wiring and
// flags only; what happens next is decided in protocol/lifecycle, and what
// stands in the ledger is written by package broker.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/term"
)

func main() {
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	ctx, cancel := context.WithCancel(context.Background())
	a := &app{
		in: os.Stdin, out: os.Stdout, err: os.Stderr, env: os.Getenv,
		terminal: term.IsTerminal(int(os.Stdout.Fd())),
	}
	if columns, _, err := term.GetSize(int(os.Stdout.Fd())); err == nil {
		a.width = columns
	}
	for _, file := range []*os.File{os.Stdin, os.Stdout, os.Stderr} {
		a.interactive = a.interactive || term.IsTerminal(int(file.Fd()))
	}
	go a.endOn(signals, nil, cancel, os.Exit)
	os.Exit(a.run(ctx, os.Args[1:]))
}
