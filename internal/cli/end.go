package cli

import (
	"context"
	"os"
	"time"

	"github.com/agenthandoff/handoff/internal/demo"
	"github.com/agenthandoff/handoff/internal/explain"
)

// How long commands may take to end after Ctrl-C (SIGINT, SIGTERM), whatever they are at.
// What has not ended by then is cut off. Nothing that was acknowledged is lost by it.
const (
	// commandEnd is for commands that have nothing to bring to an end.
	commandEnd = 3 * time.Second
	// serviceEnd is for gateway, index and supervise, which let requests be answered for 5 s.
	serviceEnd = 15 * time.Second
	// devEnd is for dev and what has a server in it, which puts its store in order.
	devEnd = 45 * time.Second
	// workEnd comes after --drain: 5 s until a program is killed, 10 s for reports to an
	// engine that elects, 5 s to leave, and a little more.
	workEnd = 25 * time.Second
	// brokenEnd is for dev whose server hangs: what it serves waits for that server.
	brokenEnd = 10 * time.Second
)

// sameSignal is how long after a signal another one is the same: timeout(1), and what
// forwards a terminal's Ctrl-C, signal a process and then its group.
const sameSignal = 250 * time.Millisecond

// endFor is how long a command may take to end; work says so itself.
func endFor(command string) time.Duration {
	switch command {
	case "gateway", "index", "supervise", "audit archive":
		return serviceEnd
	case "dev", "restore", "bench", benchWorkerCommand, "demo", demo.TetherCommand, demo.AgentCommand:
		return devEnd
	}
	return commandEnd
}

// endWithin sets how long this command may take to end.
func (a *app) endWithin(d time.Duration) { a.ends.Store(int64(d)) }

// goodbye is how long a worker may take to give back what it holds, at a second signal: 5 s until
// a program is killed, and a little more.
const goodbye = 8 * time.Second

// endOn ends the command at a signal: in order at the first one; at a second one, once what it
// holds is given back; at once at a third one, or when it has not ended in its time. It does so too
// when the command is broken. It returns when ended is closed.
func (a *app) endOn(signals <-chan os.Signal, ended <-chan struct{}, cancel context.CancelFunc, exit func(code int)) {
	within, code, after := brokenEnd, exitError, "its server failed"
	select {
	case <-ended:
		return
	case <-a.broken: // the command ends itself, unless it waits for that server
	case <-signals:
		within, code, after = max(time.Duration(a.ends.Load()), commandEnd), exitInterrupted, "the signal"
		cancel()
	}
	late := time.NewTimer(within)
	defer late.Stop()
	for last := time.Now(); ; {
		select {
		case <-ended:
			return
		case <-signals:
			if time.Since(last) < sameSignal {
				continue
			}
			last = time.Now()
			if hurry, ok := a.hurry.Load().(func()); ok && !a.hurried.Swap(true) {
				a.notef("handoff: a second signal: gives back what it holds, and ends\n")
				hurry()
				within, after = goodbye, "a second signal"
				late.Reset(within)
				continue
			}
			a.notef("handoff: ended at once, by another signal\n")
		case <-late.C:
			a.notef("handoff: had not ended %s after %s; cut off\n", explain.Duration(within), after)
		}
		exit(code)
		return
	}
}
