package natsgateway

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/agenthandoff/handoff/api"
	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/protocol/lifecycle"
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
		return nil, invalid("until", "is %q, must be closed, ended, accepted or asked", protocol.CutText(string(r.Until), 64))
	}
	ofChain, err := r.ofChain()
	if err != nil {
		return nil, err
	}
	var state protocol.State
	if wait > 0 {
		if state, err = g.wait(ctx, agent, r, ofChain, wait); err != nil {
			return nil, err
		}
	}
	if state.Ticket == "" {
		look := g.sourceFor(agent).Status
		if ofChain {
			look = g.sourceFor(agent).LastOfChain
		}
		if state, err = look(ctx, r.Ticket); err != nil {
			return nil, err
		}
	}
	ready := isReady(state, r.Until, ofChain)
	return &ticketAnswer{Ticket: state.Ticket, State: state, Ready: ready}, nil
}

// ofChain tells whether a request is about the chain of its handoff.
func (r *ticketRequest) ofChain() (bool, error) {
	if r.Of != "" && !slices.Contains(protocol.ReturnScopes, r.Of) {
		return false, invalid("of", "is %q, must be %s or %s", protocol.CutText(string(r.Of), 64), protocol.ReturnOfChain, protocol.ReturnOfHandoff)
	}
	return r.Of == protocol.ReturnOfChain, nil
}

// isReady tells whether what is waited for is so. A chain that goes on is nowhere yet.
func isReady(s protocol.State, until api.Until, ofChain bool) bool {
	ready, ok := until.Ready(s)
	return ready && ok && !(ofChain && lifecycle.GoesOn(s))
}

// wait returns the last state that was read before the wait ended; none may have been.
func (g *Gateway) wait(ctx context.Context, agent string, r *ticketRequest, ofChain bool, wait time.Duration) (protocol.State, error) {
	waitFor := g.sourceFor(agent).Wait
	if ofChain {
		waitFor = g.sourceFor(agent).WaitChain
	}
	waiting, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	state, err := waitFor(waiting, r.Ticket, r.Until)
	if waiting.Err() != nil && ctx.Err() == nil || errors.Is(err, api.ErrWaitEnded) {
		err = nil
	}
	return state, err
}

func (g *Gateway) result(ctx context.Context, agent string, r *ticketRequest) (any, error) {
	ofChain, err := r.ofChain()
	if err != nil {
		return nil, err
	}
	read := g.sourceFor(agent).Result
	if ofChain {
		read = g.sourceFor(agent).ChainResult
	}
	result, state, err := read(ctx, r.Ticket)
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

func (g *Gateway) contextOf(ctx context.Context, agent string, r *ticketRequest) (any, error) {
	whole, err := g.sourceFor(agent).Context(ctx, r.Ticket)
	if err != nil {
		return nil, err
	}
	return &ticketAnswer{Ticket: r.Ticket, Context: &whole}, nil
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

func (r *verdictRequest) verdict() api.Verdict {
	return api.Verdict{Ticket: r.Ticket, Agent: r.Agent, Any: r.Any, Reason: r.Reason}
}

func (g *Gateway) approve(ctx context.Context, agent string, r *verdictRequest) (any, error) {
	return stateAnswer(g.api.As(api.Agent(agent)).Approve(ctx, r.verdict()))
}

func (g *Gateway) deny(ctx context.Context, agent string, r *verdictRequest) (any, error) {
	return stateAnswer(g.api.As(api.Agent(agent)).Deny(ctx, r.verdict()))
}

// waiting lists what waits for the agent's approval.
func (g *Gateway) waiting(ctx context.Context, agent string, _ *empty) (any, error) {
	states, err := g.api.As(api.Agent(agent)).Approvals(ctx)
	if err != nil {
		return nil, err
	}
	return &waitingAnswer{Handoffs: append([]protocol.State{}, states...)}, nil
}
