package service

import (
	"context"
	"errors"
	"time"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/protocol"
)

// untils are what may be waited for.
var untils = map[string]func(protocol.State) bool{"": broker.Closed, "closed": broker.Closed, "accepted": broker.Acknowledged}

// unknown is what is said of a ticket that is not there, and of one that is not
// this agent's to see, alike.
func unknown(ticket string) error {
	return protocol.Errorf(protocol.CodeNotFound, "ticket", "no handoff that you may see has the ticket %s", ticket)
}

// look reads a handoff that the agent has to do with: it is its source, has or had
// it last, or is whom it was for; or it was handed off by such a one.
func (d *Door) look(ctx context.Context, agent, ticket string) (protocol.State, error) {
	ticket, err := protocol.ParseTicket(ticket)
	if err != nil {
		return protocol.State{}, err
	}
	state, err := d.b.Status(ctx, ticket)
	if errors.Is(err, &protocol.Error{Code: protocol.CodeNotFound}) {
		return state, unknown(ticket)
	}
	if err != nil || concerns(agent, state) {
		return state, err
	}
	if state.Parent != "" && state.N > 0 && ticket == protocol.ChildTicketN(state.Parent, state.N-1) {
		parent, err := d.b.Status(ctx, state.Parent)
		if err == nil && concerns(agent, parent) {
			return state, nil
		}
		if errors.Is(err, broker.ErrUnreachable) {
			return state, err
		}
	}
	return state, unknown(ticket)
}

func concerns(agent string, s protocol.State) bool {
	return s.Source == agent || s.Agent == agent || s.Target.Agent == agent
}

// submit hands over a package of the agent's own. It has a key, of which the ticket
// is made, so that it may be sent again.
func (d *Door) submit(ctx context.Context, agent string, r *submitRequest) (any, error) {
	pkg, err := protocol.DecodePackage(r.Package)
	if err != nil {
		return nil, err
	}
	switch {
	case pkg.Source != "" && pkg.Source != agent:
		return nil, forbidden("source", "is %s, and %s submits", protocol.CutText(pkg.Source, 64), agent)
	case pkg.Key == "":
		return nil, protocol.Errorf(protocol.CodeMissing, "key", "is missing: a package that is submitted through a door has one, random if need be, so that it may be sent again")
	}
	pkg.Source = agent
	if pkg.Parent != "" {
		if _, err := d.look(ctx, agent, pkg.Parent); err != nil {
			return nil, inField("parent", err)
		}
		if pkg, err = d.b.Inherit(ctx, pkg); err != nil {
			return nil, err
		}
	}
	prepared, err := d.b.Prepare(ctx, pkg)
	if err != nil {
		return nil, err
	}
	head, err := d.b.Submit(ctx, prepared)
	if err != nil {
		return nil, err
	}
	return &ticketAnswer{Ticket: head.Ticket, State: head.State}, nil
}

func inField(field string, err error) error {
	var e *protocol.Error
	if !errors.As(err, &e) {
		return err
	}
	with := *e
	with.Field = field
	return &with
}

// status reads where a handoff stands, and may wait for it to get somewhere.
func (d *Door) status(ctx context.Context, agent string, r *ticketRequest) (any, error) {
	wait, err := waitOf(r.WaitMS)
	if err != nil {
		return nil, err
	}
	until, ok := untils[r.Until]
	if !ok {
		return nil, invalid("until", "is %q, must be closed or accepted", protocol.CutText(r.Until, 64))
	}
	state, err := d.look(ctx, agent, r.Ticket)
	if err != nil {
		return nil, err
	}
	if wait > 0 && !until(state) {
		if state, err = d.waitFor(ctx, state, wait, until); err != nil {
			return nil, err
		}
	}
	return &ticketAnswer{Ticket: state.Ticket, State: state, Ready: until(state)}, nil
}

// rereadEvery is how often a request that waits reads the head though nothing told it
// to: the feed may lose what it tells.
const rereadEvery = 5 * time.Second

// waitFor waits, and returns where the handoff stands when the time is over. It reads
// when it is its turn: however many requests of others wait, reads do not pile up.
func (d *Door) waitFor(ctx context.Context, state protocol.State, wait time.Duration, until func(protocol.State) bool) (protocol.State, error) {
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	// Subscribe first, read second: what happens in between is then hinted at.
	hints, stop, err := d.b.Feed(ctx, state.Ticket)
	if err != nil {
		return state, err
	}
	defer stop()
	var seq uint64
	for {
		head, err := d.b.Head(ctx, state.Ticket, seq)
		switch {
		case err == nil:
			state, seq = head.State, head.Seq
		case ctx.Err() != nil:
			return state, nil
		case seq == 0 || !errors.Is(err, broker.ErrUnreachable):
			return state, err
		}
		if until(state) {
			return state, nil
		}
		ended := false
		d.idle(ctx, func(idle context.Context) {
			again := time.NewTimer(rereadEvery)
			defer again.Stop()
			select {
			case <-hints:
			case <-again.C:
			case <-idle.Done():
				ended = true
			}
		})
		if ended {
			return state, nil
		}
	}
}

func (d *Door) result(ctx context.Context, agent string, r *ticketRequest) (any, error) {
	state, err := d.look(ctx, agent, r.Ticket)
	if err != nil {
		return nil, err
	}
	result, state, err := d.b.Result(ctx, state.Ticket)
	if errors.Is(err, broker.ErrNotFound) && state.Ticket != "" {
		return &ticketAnswer{Ticket: state.Ticket, State: state}, nil
	}
	if err != nil {
		return nil, err
	}
	return &ticketAnswer{Ticket: state.Ticket, State: state, Result: &result}, nil
}

func (d *Door) returnOf(ctx context.Context, agent string, r *ticketRequest) (any, error) {
	state, err := d.look(ctx, agent, r.Ticket)
	if err != nil {
		return nil, err
	}
	ret, err := d.b.Return(ctx, state.Ticket)
	if err != nil {
		return nil, err
	}
	return &ticketAnswer{Ticket: state.Ticket, State: state, Return: &ret}, nil
}
