package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/dossier"
	"github.com/agenthandoff/handoff/protocol"
)

// sourceWithin is how long a submission waits to learn whether its source is registered.
const sourceWithin = 2 * time.Second

// warnSource says for people what follows when the source is not registered. A
// directory that cannot be read is passed over: the handoff stands without it.
func (a *app) warnSource(ctx context.Context, b *broker.Broker, source string) {
	if !a.text() || source == "" || source == protocol.Human {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, sourceWithin)
	defer cancel()
	if _, err := b.Profile(ctx, source); !errors.Is(err, broker.ErrNotFound) {
		return
	}
	a.notef("handoff: %s is no agent of the directory: what is asked of it, or rolled back to it, goes to the inbox of people "+
		"(handoff inbox), and its other returns are read by ticket (handoff result TICKET --return); to register it: handoff agents put %s\n", source, source)
}

// dryRun says what would be written, and who would get it.
func (a *app) dryRun(ctx context.Context, b *broker.Broker, prepared broker.Prepared) error {
	agent, err := b.CheckTarget(ctx, prepared)
	if err != nil {
		return err
	}
	members, err := dossier.PlannedMembers(prepared.Ticket, &prepared.Package)
	if err != nil {
		return err
	}
	if !a.text() {
		return a.value(struct {
			Ticket  string                `json:"ticket"`
			Agent   string                `json:"agent"` // empty for a group
			DryRun  bool                  `json:"dry_run"`
			Members []dossier.MemberState `json:"members,omitempty"`
			Package json.RawMessage       `json:"package"`
		}{prepared.Ticket, agent, true, members, prepared.Body})
	}
	if len(members) > 0 {
		agent = fmt.Sprintf("a group of %d", len(members))
	}
	a.notef("handoff: nothing was written; %s would get this:\n", agent)
	return a.document(prepared.Body)
}
