package natsgateway

import (
	"context"
	"errors"
	"time"

	"github.com/agenthandoff/handoff/api"
	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/protocol"
)

// rereadInterval is how often a request that waits reads the head without a hint.
const rereadInterval = 5 * time.Second

// sourceFor returns the operations on behalf of the agent of a request.
func (g *Gateway) sourceFor(agent string) api.Source { return g.api.As(api.Agent(agent)) }

func (g *Gateway) submit(ctx context.Context, agent string, r *submitRequest) (any, error) {
	pkg, err := protocol.DecodePackage(r.Package)
	if err != nil {
		return nil, err
	}
	return stateAnswer(g.sourceFor(agent).Submit(ctx, pkg))
}

// status reads the state of a handoff, and may wait for it to change.
func (g *Gateway) status(ctx context.Context, agent string, r *ticketRequest) (any, error) {
	wait, err := waitOf(r.WaitMS)
	if err != nil {
		return nil, err
	}
	if _, ok := r.Until.Ready(protocol.State{}); !ok {
		return nil, invalid("until", "is %q, must be closed, accepted or asked", protocol.CutText(string(r.Until), 64))
	}
	var state protocol.State
	if wait > 0 {
		if state, err = g.wait(ctx, agent, r, wait); err != nil {
			return nil, err
		}
	}
	if state.Ticket == "" {
		if state, err = g.sourceFor(agent).Status(ctx, r.Ticket); err != nil {
			return nil, err
		}
	}
	ready, _ := r.Until.Ready(state)
	return &ticketAnswer{Ticket: state.Ticket, State: state, Ready: ready}, nil
}

// wait returns the last state that was read before the wait ended; none may have been.
func (g *Gateway) wait(ctx context.Context, agent string, r *ticketRequest, wait time.Duration) (protocol.State, error) {
	waiting, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	state, err := g.sourceFor(agent).Wait(waiting, r.Ticket, r.Until)
	if waiting.Err() != nil && ctx.Err() == nil || errors.Is(err, api.ErrWaitEnded) {
		err = nil
	}
	return state, err
}

func (g *Gateway) result(ctx context.Context, agent string, r *ticketRequest) (any, error) {
	result, state, err := g.sourceFor(agent).Result(ctx, r.Ticket)
	if errors.Is(err, broker.ErrNotFound) && state.Ticket != "" {
		return stateAnswer(state, nil)
	}
	if err != nil {
		return nil, err
	}
	return &ticketAnswer{Ticket: state.Ticket, State: state, Result: &result}, nil
}

func (g *Gateway) returnOf(ctx context.Context, agent string, r *ticketRequest) (any, error) {
	ret, err := g.sourceFor(agent).Return(ctx, r.Ticket)
	if err != nil {
		return nil, err
	}
	return &ticketAnswer{Ticket: ret.HandoffID, Return: &ret}, nil
}

func (g *Gateway) cancel(ctx context.Context, agent string, r *cancelRequest) (any, error) {
	return stateAnswer(g.sourceFor(agent).Cancel(ctx, api.Cancel{Ticket: r.Ticket, Reason: r.Reason, Children: r.Children}))
}

// answerTicket answers what a handoff of the agent's asks for.
func (g *Gateway) answerTicket(ctx context.Context, agent string, r *answerRequest, answer protocol.Answer) (any, error) {
	if r.Lease != "" {
		return nil, protocol.Errorf(protocol.CodeConflict, "ticket", "and a lease are two things; choose one")
	}
	return stateAnswer(g.sourceFor(agent).Answer(ctx, r.Ticket, answer))
}

func stateAnswer(state protocol.State, err error) (any, error) {
	if err != nil {
		return nil, err
	}
	return &ticketAnswer{Ticket: state.Ticket, State: state}, nil
}
