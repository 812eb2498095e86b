package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/agenthandoff/handoff/api"
	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/demo"
	"github.com/agenthandoff/handoff/internal/explain"
	natsgateway "github.com/agenthandoff/handoff/internal/gateway/nats"
	"github.com/agenthandoff/handoff/internal/integrity"
	"github.com/agenthandoff/handoff/internal/lifecycle"
	"github.com/agenthandoff/handoff/protocol"
)

// The exit codes. Scripts branch on them: they are never renumbered.
const (
	exitDone        = 0
	exitError       = 1
	exitUsage       = 2
	exitNoTicket    = 3
	exitStillOpen   = 4
	exitNoSuccess   = 5
	exitUnreachable = 6
	exitLease       = 7
	exitNothing     = 8
	exitRefused     = 9
	exitBehind      = 10
	exitDamaged     = 11
	exitImpasse     = 12
	exitInterrupted = 130
)

// exitRow is one exit code: its word (the code of an error that has none of its own), its meaning,
// and the errors that end with it.
type exitRow struct {
	code  int
	word  protocol.Code
	means string
	match func(error) bool
}

// exits maps every error to its exit code; the first row that matches counts.
// It is also the text of "handoff help exit-codes".
var exits = []exitRow{
	{exitDone, "done", "done", func(err error) bool { return err == nil }},
	{exitInterrupted, "interrupted", "interrupted with Ctrl-C; dev, gateway, index, notify, supervise and work drain and exit with 0, and with 130 at a second Ctrl-C or when they have not ended in their time",
		func(err error) bool { return errors.Is(err, errInterrupted) }},
	{exitUsage, "usage", "the command line is wrong", is[*usageError]},
	{exitStillOpen, "still_open", "still open when the wait ended, or no result yet; the wait changed nothing", func(err error) bool {
		return is[*openError](err) || is[*openTreeError](err) || is[*noResultError](err)
	}},
	{exitImpasse, "impasse", "the handoff waits for a person: every agent refused it or failed, or a budget is spent; --for-person waits on", is[*api.ImpasseError]},
	{exitNoSuccess, "no_success", "closed without success: failed, timeout, rejected, cancelled, rolled back", is[*outcomeError]},
	{exitNoTicket, protocol.CodeNotFound, "no such ticket", hasCode(protocol.CodeNotFound)},
	{exitNothing, protocol.CodeNothingToClaim, "nothing to claim", hasCode(protocol.CodeNothingToClaim)},
	{exitLease, protocol.CodeLeaseLost, "the lease is lost, or was never issued; nothing was changed", func(err error) bool {
		return errors.Is(err, broker.ErrLeaseLost) || hasCode(protocol.CodeLeaseLost, protocol.CodeLeaseInvalid)(err)
	}},
	{exitBehind, protocol.CodeBehind, "the index is behind; --stale answers all the same", func(err error) bool {
		return is[*behindError](err) || hasCode(protocol.CodeBehind)(err)
	}},
	{exitDamaged, "damaged", "the ledger has lost entries: nothing is offered (docs/operations/damage.md)", is[*integrity.DamagedError]},
	{exitError, "not_allowed", "the engine does not let this user do that (docs/operations/security.md)", func(err error) bool { return errors.Is(err, broker.ErrNotAllowed) }},
	{exitUnreachable, protocol.CodeUnreachable, "the engine is not reachable for as long as --timeout, or no index answers questions (handoff index)", func(err error) bool {
		return errors.Is(err, broker.ErrUnreachable) || errors.Is(err, broker.ErrNoAnswer) || errors.Is(err, context.DeadlineExceeded) || hasCode(protocol.CodeUnreachable)(err)
	}},
	{exitError, protocol.CodeUnreadable, "the handoff is stuck: an entry of the ledger cannot be read (handoff doctor)", hasCode(protocol.CodeUnreadable)},
	{exitRefused, "refused", "the input was refused: the message names the field; nothing was written", is[*protocol.Error]},
	{exitError, "error", "any other error", func(error) bool { return true }},
}

func is[E error](err error) bool {
	var e E
	return errors.As(err, &e)
}

func hasCode(codes ...protocol.Code) func(error) bool {
	return func(err error) bool {
		for _, code := range codes {
			if errors.Is(err, &protocol.Error{Code: code}) {
				return true
			}
		}
		return false
	}
}

// exitFor finds the row of an error.
func exitFor(err error) exitRow {
	for _, row := range exits {
		if row.match(err) {
			return row
		}
	}
	panic("unreachable: the last row matches everything")
}

// report writes an error where errors go, and returns its exit code.
func (a *app) report(err error) int {
	row := exitFor(err)
	err = adviseWorker(err)
	if stuck := (*api.ImpasseError)(nil); errors.As(err, &stuck) {
		err = fmt.Errorf("%w; handoff why %s, or --for-person to wait on", err, stuck.State.Ticket)
	}
	if errors.Is(err, natsgateway.ErrNobody) {
		err = fmt.Errorf("%w; start one: handoff gateway", err)
	}
	if is[*broker.SilenceError](err) {
		err = fmt.Errorf("%w; to check the connection: handoff doctor; to wait longer: --timeout ($%s)", err, timeoutEnv)
	}
	if a.format != formatJSON && a.format != formatJSONL {
		printable := protocol.Printable
		if is[*integrity.DamagedError](err) {
			printable = protocol.PrintableLines
		}
		fmt.Fprintf(a.err, "handoff: %s\n", printable(err.Error()))
		return row.code
	}
	failure := protocol.Error{Code: row.word, Message: err.Error()}
	var (
		e       *protocol.Error
		open    *openError
		outcome *outcomeError
	)
	switch {
	case errors.As(err, &e):
		failure = *e
	case errors.As(err, &open):
		failure.Source, failure.Target = open.state.Source, open.state.Target.String()
	case errors.As(err, &outcome):
		failure.Source, failure.Target = outcome.state.Source, outcome.state.Target.String()
	}
	line, jsonErr := json.Marshal(failure)
	if jsonErr != nil {
		line = fmt.Appendf(nil, `{"code":"error","message":%q}`, jsonErr)
	}
	fmt.Fprintf(a.err, "%s\n", escapeJSON(line)) // for a terminal, at once or later in a log
	return row.code
}

// newExitCodes is a help topic, not a command: handoff help exit-codes.
func newExitCodes() *cobra.Command {
	var b strings.Builder
	b.WriteString("Every command ends with one of these exit codes:\n\n")
	rows := slices.Clone(exits)
	slices.SortStableFunc(rows, func(a, b exitRow) int { return cmp.Compare(a.code, b.code) })
	for _, row := range rows {
		fmt.Fprintf(&b, "  %3d  %s\n", row.code, row.means)
	}
	b.WriteString(`
Errors go to stderr as "handoff: field: message"; with -o json or jsonl as one
line {"code","field","message","source","target"}. Codes are stable words.`)
	return &cobra.Command{Use: "exit-codes", Short: "The exit codes", Long: b.String()}
}

var errInterrupted = errors.New("interrupted")

// waitInterrupted is errInterrupted for a wait, which has changed nothing.
func waitInterrupted(again, cancel string) error {
	return fmt.Errorf("%w; the handoff goes on: handoff wait %s waits again, handoff cancel %s ends it", errInterrupted, again, cancel)
}

// usageError is a command line that makes no sense, before anything was done.
type usageError struct{ message string }

func (e *usageError) Error() string { return e.message }

func usagef(format string, args ...any) error { return &usageError{fmt.Sprintf(format, args...)} }

// openError reports an open handoff and the event that it waits for.
type openError struct {
	state protocol.State
	// returnOf, if not empty, is the handoff whose return waits for the end of this one.
	returnOf string
}

func (e *openError) Error() string {
	if e.returnOf != "" {
		return fmt.Sprintf("the return of %s is still open: it is the end of its chain, and %v", e.returnOf, &openError{state: e.state})
	}
	if next, goesOn := lifecycle.NextInChain(e.state); goesOn && e.state.ChainEnd == nil {
		return fmt.Sprintf("%s continues as %s, and its chain is still open", e.state.Ticket, next)
	}
	if e.state.Closed { // a wait for its return goes on
		return fmt.Sprintf("%s is closed, and %s has not taken its return in yet", e.state.Ticket, e.state.Source)
	}
	return fmt.Sprintf("%s is still open: waits for %s", e.state.Ticket, phrase(explain.WaitingFor(e.state)))
}

// noResultError reports that the requested result does not exist so far.
type noResultError struct{ message string }

func (e *noResultError) Error() string { return e.message }

// behindError reports an incomplete answer, without --stale.
type behindError struct{ message string }

func (e *behindError) Error() string { return e.message }

// outcomeError: the handoff closed, and not the way its source had hoped.
type outcomeError struct{ state protocol.State }

func (e *outcomeError) Error() string {
	return fmt.Sprintf("%s closed without success: %s", e.state.Ticket, explain.Ending(e.state))
}

// failed returns the error for the exit code of a state: nil, still open, or closed without
// success.
func failed(s protocol.State) error {
	switch {
	case !s.Closed:
		return &openError{state: s}
	case s.Outcome != protocol.OutcomeSuccess && s.Outcome != protocol.OutcomePartial:
		return &outcomeError{s}
	}
	return nil
}

// How long commands may take to end after Ctrl-C (SIGINT, SIGTERM), whatever they are at. Work that
// has not ended by then is cut off. Nothing that was acknowledged is lost by it.
const (
	// commandEnd is for commands that have nothing to bring to an end.
	commandEnd = 3 * time.Second
	// serviceEnd is for gateway, index and supervise, which let requests be answered for 5 s.
	serviceEnd = 15 * time.Second
	// devEnd is for commands with a server of their own, which puts its store in order.
	devEnd = 45 * time.Second
	// workEnd comes after --drain: 5 s until a program is killed, 10 s for reports to an
	// engine that elects, 5 s to leave, and a little more.
	workEnd = 25 * time.Second
	// brokenEnd is for dev whose server hangs: its own services wait for that server.
	brokenEnd = 10 * time.Second
)

// sameSignal is how long after a signal another one is the same: timeout(1), and programs that
// forward a terminal's Ctrl-C, signal a process and then its group.
const sameSignal = 250 * time.Millisecond

// endFor returns how long a command may take to end; work sets its own limit.
func endFor(command string) time.Duration {
	switch command {
	case "gateway", "index", "notify", "supervise":
		return serviceEnd
	case "dev", "restore", "bench", "demo", demo.TetherCommand, demo.AgentCommand:
		return devEnd
	}
	return commandEnd
}

// endWithin sets how long this command may take to end.
func (a *app) endWithin(d time.Duration) { a.ends.Store(int64(d)) }

// goodbye is how long a worker may take to release its handoffs, at a second signal: 5 s until a
// program is killed, and a little more.
const goodbye = 8 * time.Second

// endOn ends the command at a signal: in order at the first one; at a second one, once its handoffs
// are released; at once at a third one, or when it has not ended in its time. It does so too when
// the command is broken. It returns when ended is closed.
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
				a.notef("handoff: a second signal: releases its handoffs, and ends\n")
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
