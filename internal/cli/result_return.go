package cli

import (
	"context"
	"encoding/json"

	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/protocol/lifecycle"
)

// returnOf prints a return, with the package that had been handed off if asked to.
func (a *app) returnOf(ctx context.Context, s *source, ticket string, withPackage bool) error {
	state, err := s.Status(ctx, ticket)
	switch {
	case err != nil:
		return err
	case !state.Closed:
		return &openError{state: state}
	case lifecycle.AwaitsChain(state):
		return openReturn(ctx, s, state)
	}
	ret, err := s.Return(ctx, ticket)
	if err != nil || !withPackage {
		return a.returned(ret, err)
	}
	body, err := s.b.Package(ctx, ticket)
	return a.returned(struct {
		protocol.Return
		Package json.RawMessage `json:"package"`
	}{ret, body}, err)
}

// returned prints a return as JSON, or returns the error of what it comes from.
func (a *app) returned(ret any, err error) error {
	return printed(a, ret, err, func(ret any) error {
		body, err := encode(ret, true)
		if err != nil {
			return err
		}
		return a.body(body)
	})
}
