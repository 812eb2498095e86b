package cli

import (
	"cmp"
	"context"
	"errors"

	"github.com/agenthandoff/handoff/api"
	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/worker"
)

// besideLease are the flags of a submission that is made beside the handoff which a program works
// on, and not under its lease: its source, parent, ticket or time differ.
var besideLease = []string{"no-lease", "from", "parent", "key", "under", "dry-run"}

// leaseOf is the lease of the handoff that this program works on, where a package goes under it:
// so that it is on the account of that handoff. Empty is that it does not.
func (o *submitOptions) leaseOf(pkg protocol.Package) string {
	for _, flag := range besideLease {
		if o.changed(flag) {
			return ""
		}
	}
	agent, ticket := workedOn(o.env)
	if pkg.Key != "" || pkg.Source != cmp.Or(agent, protocol.Human) || pkg.Parent != ticket {
		return ""
	}
	return o.env(worker.EnvLease)
}

// workedOn says which agent works on which handoff here: the environment names them, or its lease
// does. Both are empty outside of the work.
func workedOn(env func(string) string) (agent, ticket string) {
	agent, ticket = env("HANDOFF_AGENT"), env("HANDOFF_TICKET")
	if held, err := broker.ParseLease(env(worker.EnvLease)); err == nil {
		agent, ticket = cmp.Or(agent, held.Agent), cmp.Or(ticket, held.Ticket)
	}
	return agent, ticket
}

// handOffAtOnce hands off under the lease of the handoff that this program works on. A sequential
// one begins at once, too.
func (a *app) handOffAtOnce(ctx context.Context, lease string, pkg protocol.Package, o *submitOptions) error {
	prepared, err := a.prepare(ctx, pkg)
	if err != nil {
		return err
	}
	b, done, err := a.connect(ctx)
	if err != nil {
		return err
	}
	defer done()
	s := a.session(b, "")
	var made api.Child
	err = a.ask(ctx, func(ctx context.Context) (err error) {
		made, err = s.HandOff(ctx, api.HandOff{Lease: lease, Package: pkg, AtOnce: true, Waits: o.limit != nil})
		return err
	})
	if err != nil && !is[*protocol.Error](err) {
		err = &unknownError{err}
	}
	if errors.Is(err, &protocol.Error{Code: protocol.CodeLeaseInvalid}) {
		return inField(err, worker.EnvLease, "; unset it, or give --no-lease")
	}
	if err != nil {
		return leaseRefusal(lease, err)
	}
	o.orRun.placed = true
	if prepared.Redacted > 0 {
		a.notef("handoff: secrets taken out of the package before anything is written: %d\n", prepared.Redacted)
	}
	var state protocol.State
	err = a.ask(ctx, func(ctx context.Context) (err error) {
		state, err = s.Status(ctx, made.Ticket)
		return err
	})
	if err != nil {
		return err
	}
	return a.submitted(ctx, a.direct(b), state, o.limit)
}
