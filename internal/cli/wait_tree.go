package cli

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/agenthandoff/handoff/api"
	"github.com/agenthandoff/handoff/internal/dossier"
	"github.com/agenthandoff/handoff/internal/explain"
	"github.com/agenthandoff/handoff/protocol"
)

// openTreeError says that not everything is closed that follows from a handoff.
type openTreeError struct {
	ticket string
	open   []dossier.Reference
}

func (e *openTreeError) Error() string {
	if len(e.open) == 1 {
		return fmt.Sprintf("1 handoff of the tree of %s is still open", e.ticket)
	}
	return fmt.Sprintf("%s of the tree of %s are still open", explain.Count(len(e.open), "handoff"), e.ticket)
}

// waitTree waits for everything that follows from a handoff, and prints the end of its chain.
func (a *app) waitTree(ctx context.Context, ticket string, limit time.Duration) error {
	s, done, err := a.source(ctx, false, "")
	if err != nil {
		return err
	}
	defer done()
	last, open, err := a.awaitTree(ctx, s, ticket, limit)
	if last.Ticket == "" {
		return err
	}
	if !a.text() {
		v, viewErr := a.viewOf(context.WithoutCancel(ctx), s, last)
		return errors.Join(viewErr, a.value(struct {
			dossier.StateView
			Open []dossier.Reference `json:"open"`
		}{v, orEmpty(open)}), err)
	}
	a.printf("%s  %s\n", last.Ticket, a.phase(last))
	for _, handoff := range open[:min(len(open), membersShown)] {
		a.notef("handoff: still open: %s\n", handoff)
	}
	if more := len(open) - membersShown; more > 0 {
		a.notef("handoff: and %d more: handoff tree %s\n", more, ticket)
	}
	a.warn(last)
	return err
}

// awaitTree waits up to limit (negative: without end). It returns the handoff that the chain has
// come to, and what is still open.
func (a *app) awaitTree(ctx context.Context, s *source, ticket string, limit time.Duration) (protocol.State, []dossier.Reference, error) {
	if limit > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, limit, errWaited)
		defer cancel()
	}
	if limit != 0 {
		if err := awaitBelow(ctx, s, ticket); err != nil && ctx.Err() == nil {
			return protocol.State{}, nil, err
		}
	}
	look, cancel := a.asking(context.WithoutCancel(ctx))
	defer cancel()
	last, err := s.LastOfChain(look, ticket)
	if err != nil {
		return protocol.State{}, nil, a.gaveUp(look, err)
	}
	open, err := dossier.OpenBelow(look, s, ticket)
	switch {
	case err != nil:
		return last, nil, a.gaveUp(look, err)
	case len(open) == 0:
		return last, nil, failed(last)
	case errors.Is(ctx.Err(), context.Canceled):
		return last, open, waitInterrupted(ticket+" --tree", ticket+" --children")
	}
	return last, open, &openTreeError{ticket, open}
}

// promisedPause is how often a handoff is looked for that its writer, or a supervisor, is yet to
// submit.
const promisedPause = 200 * time.Millisecond

// awaitBelow waits until a handoff is closed, and everything that follows from it: one after
// another, since all of them are waited for.
func awaitBelow(ctx context.Context, s *source, ticket string) error {
	root, err := s.Wait(ctx, ticket, api.UntilClosed)
	if err != nil {
		return err
	}
	for left := dossier.ChildrenOf(root); len(left) > 0; {
		child := left[len(left)-1]
		state, err := s.Wait(ctx, child.Ticket, api.UntilClosed)
		switch missing := hasCode(protocol.CodeNotFound)(err); {
		case missing && !child.Gone(time.Now()):
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(promisedPause):
			}
			continue
		case err != nil && !missing:
			return err
		}
		left = append(left[:len(left)-1], dossier.ChildrenOf(state)...)
	}
	return nil
}
