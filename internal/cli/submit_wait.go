package cli

import (
	"context"
	"errors"
	"time"

	"github.com/agenthandoff/handoff/api"
	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/dossier"
	"github.com/agenthandoff/handoff/internal/explain"
	"github.com/agenthandoff/handoff/protocol"
)

// submitted prints the ticket of what was submitted. Where there is a limit it waits for the end
// first, and prints that: the ticket goes to stderr then, so that stdout has the result alone.
func (a *app) submitted(ctx context.Context, s *source, state protocol.State, limit *time.Duration) error {
	a.remember(state.Ticket)
	switch {
	case limit != nil && a.text():
		a.notef("handoff: submitted as %s\n", state.Ticket)
	case a.text():
		a.printf("%s\n", state.Ticket)
	}
	if limit == nil {
		if a.text() {
			return nil
		}
		return a.valueWithMembers(ctx, s, state)
	}
	wait, read := waitForChain, s.ChainResult
	if state.EndOf == protocol.ReturnOfHandoff {
		wait, read = waitFor, s.Result
	}
	last, err := wait(ctx, s, state.Ticket, *limit, string(api.UntilClosed))
	if last.Ticket == "" { // interrupted before the first read
		last = state
	}
	if !a.text() {
		return errors.Join(a.endValue(ctx, s, read, state.Ticket, last), err)
	}
	return a.endText(ctx, s, read, state.Ticket, last, err)
}

// endText prints the result of what has ended, as "handoff result" does. waited says how the
// wait ended.
func (a *app) endText(ctx context.Context, s *source, read resultReader, submitted string, last protocol.State, waited error) error {
	switch {
	case !last.Closed || is[*openError](waited) || errors.Is(waited, errInterrupted):
		a.warn(last)
		return waited
	case waited == nil:
		a.notef("%s: %s\n", last.Ticket, explain.Ending(last))
	default:
		a.warn(last) // a result of success has its warning with it
	}
	err := a.ask(ctx, func(ctx context.Context) error { return a.printResult(ctx, s, read, submitted) })
	if waited != nil {
		return waited
	}
	return err
}

// endView is what "submit --wait" prints for programs: the status of the handoff that ended, which
// is the last of its chain, with its result.
type endView struct {
	dossier.StateView
	Submitted string `json:"submitted"` // the ticket of what was submitted
	Result    any    `json:"result,omitempty"`
}

// endValue prints an end for programs, as one document.
func (a *app) endValue(ctx context.Context, s *source, read resultReader, submitted string, last protocol.State) error {
	ctx, cancel := a.asking(context.WithoutCancel(ctx)) // Ctrl-C may have ended the wait
	defer cancel()
	v := endView{Submitted: submitted}
	var err error
	if v.StateView, err = a.viewOf(ctx, s, last); err != nil {
		return err
	}
	switch result, _, err := read(ctx, submitted); {
	case err == nil:
		v.Result = result
	case !errors.Is(err, broker.ErrNotFound):
		return err
	case last.Aggregate != nil && s.b != nil:
		if v.Result, err = s.b.Members(ctx, last); err != nil {
			return err
		}
	}
	return a.value(v)
}

// waitLimit reads --wait: nil is not to wait, negative is to wait without end.
func waitLimit(text string) (*time.Duration, error) {
	limit := time.Duration(-1)
	switch text {
	case "":
		return nil, nil
	case waitForever:
		return &limit, nil
	}
	limit, err := parseDuration(text)
	if err != nil {
		return nil, usagef("--wait: %v", err)
	}
	if limit < 0 {
		return nil, usagef("--wait: %q is negative", text)
	}
	return &limit, nil
}
