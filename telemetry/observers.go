package telemetry

import (
	"context"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/protocol"
)

// Join makes one observer of several; nil ones are left out. None at all is
// nil, so that a broker without an observer pays nothing.
func Join(observers ...broker.Observer) broker.Observer {
	var all joined
	for _, o := range observers {
		if o != nil {
			all = append(all, o)
		}
	}
	switch len(all) {
	case 0:
		return nil
	case 1:
		return all[0]
	}
	return all
}

type joined []broker.Observer

func (all joined) Appended(ctx context.Context, before protocol.State, after broker.Head, events []protocol.Event) {
	for _, o := range all {
		o.Appended(ctx, before, after, events)
	}
}

func (all joined) Conflicted(ctx context.Context, ticket string) {
	for _, o := range all {
		o.Conflicted(ctx, ticket)
	}
}
