package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/agenthandoff/handoff/broker"
	natsgateway "github.com/agenthandoff/handoff/internal/gateway/nats"
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
	exitInterrupted = 130
)

// exitRow is one exit code: its word (the code of an error that has none of its
// own), what it means, and the errors that end with it.
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
	{exitInterrupted, "interrupted", "interrupted with Ctrl-C; dev, gateway, index, supervise and work drain and exit with 0, and with 130 at a second Ctrl-C or when they have not ended in their time",
		func(err error) bool { return errors.Is(err, errInterrupted) }},
	{exitUsage, "usage", "the command line is wrong", is[*usageError]},
	{exitStillOpen, "still_open", "still open when the wait ended, or no result yet; the wait changed nothing", func(err error) bool {
		return is[*openError](err) || is[*openTreeError](err) || is[*noResultError](err)
	}},
	{exitNoSuccess, "no_success", "closed without success: failed, timeout, rejected, cancelled, rolled back", is[*outcomeError]},
	{exitNoTicket, protocol.CodeNotFound, "no such ticket", hasCode(protocol.CodeNotFound)},
	{exitNothing, protocol.CodeNothingToClaim, "nothing to claim", hasCode(protocol.CodeNothingToClaim)},
	{exitLease, protocol.CodeLeaseLost, "the lease is lost, or was never given out; nothing was changed", func(err error) bool {
		return errors.Is(err, broker.ErrLeaseLost) || hasCode(protocol.CodeLeaseLost, protocol.CodeLeaseInvalid)(err)
	}},
	{exitBehind, protocol.CodeBehind, "the index is behind; --stale prints what it has", func(err error) bool {
		return is[*behindError](err) || hasCode(protocol.CodeBehind)(err)
	}},
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
	if errors.Is(err, natsgateway.ErrNobody) {
		err = fmt.Errorf("%w; start one: handoff gateway", err)
	}
	if is[*broker.SilenceError](err) {
		err = fmt.Errorf("%w; see what is wrong with handoff doctor, or wait longer with --timeout ($%s)", err, timeoutEnv)
	}
	if a.format != formatJSON && a.format != formatJSONL {
		fmt.Fprintf(a.err, "handoff: %s\n", protocol.Printable(err.Error()))
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
	byCode := []int{exitDone, exitError, exitUsage, exitNoTicket, exitStillOpen, exitNoSuccess, exitUnreachable, exitLease, exitNothing, exitRefused, exitBehind, exitInterrupted}
	for _, code := range byCode {
		for _, row := range exits {
			if row.code == code {
				fmt.Fprintf(&b, "  %3d  %s\n", row.code, row.means)
			}
		}
	}
	b.WriteString(`
Errors go to stderr as "handoff: field: message"; with -o json or jsonl as one
line {"code","field","message","source","target"}. Codes are stable words.`)
	return &cobra.Command{Use: "exit-codes", Short: "What the exit codes mean", Long: b.String()}
}
