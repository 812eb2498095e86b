package cli

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/agenthandoff/handoff/api"
	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/explain"
	"github.com/agenthandoff/handoff/protocol"
)

// offline is a broker without an engine, which prepares packages.
func (a *app) offline() (*broker.Broker, error) {
	redactor, err := a.redactor()
	if err != nil {
		return nil, err
	}
	return broker.New(nil, broker.Config{Redactor: redactor})
}

// prepare checks a package as Submit would, without an engine: what is wrong
// with the input is said even where no engine answers.
func (a *app) prepare(ctx context.Context, pkg protocol.Package) (broker.Prepared, error) {
	offline, err := a.offline()
	if err != nil {
		return broker.Prepared{}, err
	}
	return offline.Prepare(ctx, pkg)
}

// submit submits to the engine itself.
func (a *app) submit(ctx context.Context, pkg protocol.Package, o *submitOptions) error {
	prepared, err := a.prepare(ctx, pkg)
	if err != nil {
		return err
	}
	b, done, err := a.connect(ctx)
	if err != nil {
		return err
	}
	defer done()
	if pkg.Parent != "" {
		if prepared, err = a.inherited(ctx, b, pkg); err != nil {
			return err
		}
	}
	if prepared.Redacted > 0 {
		a.notef("handoff: secrets taken out of the package before anything is written: %d\n", prepared.Redacted)
	}
	var head broker.Head
	if o.dryRun {
		err = a.dryRun(ctx, b, prepared)
	} else if head, err = a.submitOnce(ctx, b, prepared); err == nil && a.text() {
		a.printf("%s\n", prepared.Ticket)
	}
	if err != nil {
		return err
	}
	a.warnSource(ctx, b, prepared.Package.Source)
	if o.dryRun {
		return nil
	}
	a.remember(prepared.Ticket)
	return a.submitted(ctx, a.direct(b), head.State, o.limit)
}

// submitted waits for the end of what was submitted, where there is a limit, and prints it.
// People have the ticket already.
func (a *app) submitted(ctx context.Context, s *source, state protocol.State, limit *time.Duration) error {
	var err error
	if limit != nil {
		var last protocol.State
		if last, err = waitFor(ctx, s, state.Ticket, *limit, string(api.UntilClosed)); last.Ticket != "" { // else interrupted before the first read
			state = last
		}
	}
	if !a.text() {
		return errors.Join(a.valueWithMembers(ctx, s.b, state), err)
	}
	if limit != nil && err == nil {
		a.notef("%s: %s\n", state.Ticket, explain.Ending(state))
	}
	if limit != nil {
		a.warn(state)
	}
	return err
}

// inherited is prepare for a package with a parent, from which it takes over what
// it does not say itself.
func (a *app) inherited(ctx context.Context, b *broker.Broker, pkg protocol.Package) (broker.Prepared, error) {
	err := a.ask(ctx, func(ctx context.Context) (err error) {
		pkg, err = b.Inherit(ctx, pkg)
		return err
	})
	if err != nil {
		return broker.Prepared{}, fmt.Errorf("read the parent; nothing was submitted: %w", err)
	}
	return a.prepare(ctx, pkg)
}

// submitOnce submits, and says what to do where it is not known whether it happened.
func (a *app) submitOnce(ctx context.Context, b *broker.Broker, prepared broker.Prepared) (head broker.Head, err error) {
	err = a.ask(ctx, func(ctx context.Context) (err error) {
		head, err = b.Submit(ctx, prepared)
		return err
	})
	if err != nil && !is[*protocol.Error](err) && !errors.Is(err, broker.ErrNotAllowed) {
		err = fmt.Errorf("whether it was submitted is not known; ask with: handoff status %s: %w", prepared.Ticket, err)
	}
	return head, err
}
