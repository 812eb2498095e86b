//go:build proof

package sim

import (
	"cmp"
	"context"
	"maps"
	"slices"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/audit"
	"github.com/agenthandoff/handoff/internal/brokertest"
	"github.com/agenthandoff/handoff/internal/lifecycle"
	"github.com/agenthandoff/handoff/protocol"
)

const (
	closedForgotten bug = "a handoff whose end is lost and that an index remembers, not closed again"
	lostSucceeds    bug = "a handoff of which nothing is left, closed as a success"
)

func init() { bugs = append(bugs, closedForgotten, lostSucceeds) }

// checkLoss takes the end of the ledger of a life that is over, and closes what an index remembers
// of it, as handoff dev --accept-damage does. All handoffs have their outcomes again, none calls
// for work, and the ledger verifies.
func (j *judge) checkLoss() {
	ctx := context.Background()
	var all []broker.Entry
	_ = j.l.m.Entries(ctx, nil, func(e broker.Entry) error { all = append(all, e); return nil })
	kept := all[:dice(j.l.seed, "loss")%uint64(len(all))]
	m := brokertest.NewMemory().Divide(*partitions)
	defer func() { _ = m.Close() }()
	head := map[string]uint64{}
	for i, e := range kept {
		if _, err := m.AppendSilently(ctx, e.Ticket, head[e.Ticket], "", e.Body); err != nil {
			j.faultLocked("entry %d: %v", i, err)
			return
		}
		head[e.Ticket] = e.Seq
	}
	b, err := broker.New(withBodies{m, j.l.m}, broker.Config{})
	if err != nil {
		j.faultLocked("%v", err)
		return
	}
	tickets := slices.SortedFunc(maps.Keys(j.heads), func(a, b string) int { return int(j.heads[a].seq) - int(j.heads[b].seq) })
	for _, ticket := range tickets {
		if h := j.heads[ticket]; h.seq != head[ticket] {
			j.closeLost(ctx, b, h, head[ticket] == 0)
		}
	}
	report, err := audit.VerifyLedger(ctx, b, nil, audit.CheckWriters)
	if err != nil || report.Found != 0 || report.Handoffs != len(j.heads) {
		j.faultLocked("the ledger does not verify after the loss of its end: %+v, %v", report, err)
	}
}

// closeLost closes a handoff whose last entry is lost. gone is one of which nothing is left.
func (j *judge) closeLost(ctx context.Context, b *broker.Broker, h knownHead, gone bool) {
	s := h.state
	r := broker.Remembered{Ticket: s.Ticket, Seq: h.seq, Outcome: s.Outcome, Source: s.Source, Type: s.Type, Priority: s.Priority,
		Target: cmp.Or(s.Target.Agent, s.Target.Capability), Description: "lost", Why: "lost", Submitted: s.SubmittedAt, LastChange: s.UpdatedAt}
	switch {
	case j.l.bug == closedForgotten && !gone:
		r.Outcome = ""
	case j.l.bug == lostSucceeds && gone:
		r.Outcome = protocol.OutcomeSuccess
	}
	if _, err := b.CloseRemembered(ctx, r); err != nil {
		j.faultLocked("%s (%s) cannot be closed after a loss: %v", s.Ticket, s.Outcome, err)
		return
	}
	now, err := b.Head(ctx, s.Ticket, 0)
	switch {
	case err != nil || !now.State.Closed || now.State.Outcome != s.Outcome || now.State.Held() || lifecycle.OfferStands(now.State):
		j.faultLocked("%s had closed as %s, and after a loss is %s as %q (%v)", s.Ticket, s.Outcome, now.State.Phase, now.State.Outcome, err)
	default:
		if err := lifecycle.Check(now.State, now.At); err != nil {
			j.faultLocked("%s after a loss: %v", s.Ticket, err)
		}
	}
}

// withBodies is a ledger whose bodies are in another engine.
type withBodies struct {
	*brokertest.Memory
	bodies *brokertest.Memory
}

func (w withBodies) Blob(ctx context.Context, ref protocol.BlobRef) ([]byte, error) {
	if body, err := w.Memory.Blob(ctx, ref); err == nil {
		return body, nil
	}
	return w.bodies.Blob(ctx, ref)
}
