package cli

import (
	"context"
	"fmt"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/explain"
	"github.com/agenthandoff/handoff/protocol"
)

// noReturn says why a closed handoff has no return to wait for.
func noReturn(s protocol.State) string {
	switch {
	case !s.Closed || s.ReturnExpected:
		return ""
	case s.ReturnOf != "":
		return "none: it is itself the return of " + s.ReturnOf
	}
	return fmt.Sprintf("none: %s expects none of a %s handoff (submit --return asks for one)", s.Source, s.Type)
}

// endOfReturn says what became of the return of a closed handoff.
func (a *app) endOfReturn(ctx context.Context, b *broker.Broker, s protocol.State) string {
	if !s.Closed || s.ReturnTicket == "" || s.ReturnedAt.IsZero() {
		return phrase(explain.Return(s))
	}
	ctx, cancel := a.asking(context.WithoutCancel(ctx))
	defer cancel()
	ret, err := b.Status(ctx, s.ReturnTicket)
	if err != nil || ret.Fence != 0 || !ret.Closed || ret.Outcome == protocol.OutcomeSuccess || ret.Outcome == protocol.OutcomePartial {
		return phrase(explain.Return(s))
	}
	return fmt.Sprintf("could not be delivered to %s: %s; handoff result %s --return prints it", s.Source, explain.Ending(ret), s.Ticket)
}
