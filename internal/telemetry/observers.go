package telemetry

import (
	"context"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/protocol"
)

// MultiObserver returns an observer that calls several, in their order; nil ones are left
// out. It is nil without any, so that a broker without an observer pays nothing.
func MultiObserver(observers ...broker.Observer) broker.Observer {
	var all multiObserver
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

type multiObserver []broker.Observer

func (all multiObserver) Appended(ctx context.Context, before protocol.State, after broker.Head, events []protocol.Event) {
	for _, o := range all {
		o.Appended(ctx, before, after, events)
	}
}

func (all multiObserver) Conflicted(ctx context.Context, ticket string) {
	for _, o := range all {
		o.Conflicted(ctx, ticket)
	}
}
