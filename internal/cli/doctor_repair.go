package cli

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/doctor"
	"github.com/agenthandoff/handoff/internal/explain"
	"github.com/agenthandoff/handoff/internal/supervisor"
	"github.com/agenthandoff/handoff/protocol"
)

// repair has every handoff looked at, and sees that a supervisor is there to look.
func (a *app) repair(ctx context.Context) error {
	b, done, err := a.connectWith(ctx, broker.Config{Log: slog.New(slog.NewTextHandler(a.err, nil))})
	if err != nil {
		return err
	}
	defer done()
	repaired, err := supervisor.Repair(ctx, b, a.engine, a.log(false))
	if err != nil {
		return err
	}
	if a.text() {
		a.printf("%s, %d open; %s woken, and will be looked at within a second\n",
			explain.Count(repaired.Handoffs, "handoff"), repaired.Open, explain.Is(fmt.Sprint(repaired.Woken), repaired.Woken))
		if repaired.Removed > 0 {
			a.printf("%s removed from the queues\n", explain.Was(explain.Count(repaired.Removed, "ended offer"), repaired.Removed))
		}
	} else if err := a.value(repaired); err != nil {
		return err
	}
	if repaired.Failed > 0 {
		return fmt.Errorf("%s could not be helped; see above", explain.Count(repaired.Failed, "handoff"))
	}
	f := doctor.Supervisors(doctor.ExamineServer(ctx, a.access()))
	if f.Status == doctor.StatusFail {
		return errors.New("no supervisor reconciles them yet: " + f.Message + "; " + toDo(f))
	}
	return nil
}

// mended is a handoff that --mend was given.
type mended struct {
	Ticket string         `json:"ticket"`
	Seq    uint64         `json:"seq"` // of its head
	Phase  protocol.Phase `json:"phase"`
}

// mend takes handoffs back to the last entries that can be read.
func (a *app) mend(ctx context.Context, tickets []string) error {
	b, done, err := a.connect(ctx)
	if err != nil {
		return err
	}
	defer done()
	for _, ticket := range tickets {
		if ticket, err = a.ticket(ctx, ticket); err != nil {
			return err
		}
		head, err := b.RepairHead(ctx, ticket)
		if err == nil {
			err = a.line(mended{ticket, head.Seq, head.State.Phase}, "%s is %s, by entry %d of the ledger\n", ticket, explain.Phase(head.State), head.Seq)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
