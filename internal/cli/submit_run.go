package cli

import (
	"context"
	"errors"
	"fmt"

	"github.com/agenthandoff/handoff/broker"
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
	} else {
		head, err = a.submitOnce(ctx, b, prepared)
	}
	if err != nil {
		return err
	}
	o.orRun.placed = true
	a.warnSource(ctx, b, prepared.Package.Source)
	if o.dryRun {
		return nil
	}
	return a.submitted(ctx, a.direct(b), head.State, o.limit)
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
		err = &unknownError{fmt.Errorf("whether it was submitted is not known; ask with: handoff status %s: %w", prepared.Ticket, err)}
	}
	return head, err
}
