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
	// The first Ctrl-C asks for an orderly end, the second one ends at once:
	// whoever presses it twice means it.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	a := &app{
		in: os.Stdin, out: os.Stdout, err: os.Stderr, env: os.Getenv,
		terminal: term.IsTerminal(int(os.Stdout.Fd())),
	}
	if columns, _, err := term.GetSize(int(os.Stdout.Fd())); err == nil {
		a.width = columns
	}
	os.Exit(a.run(ctx, os.Args[1:]))
}
