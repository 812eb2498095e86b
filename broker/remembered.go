package broker

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/agenthandoff/handoff/internal/lifecycle"
	"github.com/agenthandoff/handoff/protocol"
)

// Remembered is the record that an index has of a handoff whose last entries the ledger has lost.
type Remembered struct {
	Ticket                string
	Seq                   uint64           // of its last entry
	Outcome               protocol.Outcome // empty while it is open
	Source, Target        string
	Type                  protocol.Type
	Priority              protocol.Priority
	Description, Why      string // cut
	Workflow              string
	Conversation          string
	Submitted, LastChange time.Time
}

// CloseRemembered closes a handoff with the outcome that an index has, so that it is not done
// twice. An open one continues from its entries in the ledger; without any it closes as failed.
// closed reports whether an entry was appended.
func (b *Broker) CloseRemembered(ctx context.Context, r Remembered) (closed bool, err error) {
	head, err := b.Head(ctx, r.Ticket, 0)
	message := "the ledger was damaged and has lost its last entries; an index remembered its outcome"
	switch {
	case errors.Is(err, ErrNotFound):
		head = Head{Ticket: r.Ticket}
		if r.Outcome == "" {
			message = "the ledger was damaged and has lost this handoff while it was open"
		}
	case err != nil:
		return false, err
	case head.State.Closed || r.Outcome == "":
		return false, nil
	}
	first, err := b.resubmission(ctx, r)
	if err != nil {
		return false, err
	}
	step, err := lifecycle.CloseLost(head.State, first, cmp.Or(r.Outcome, protocol.OutcomeFailed), message, b.now(head))
	if err != nil {
		return false, err
	}
	_, err = b.storeDraft(ctx, &head, draftOf(&head, &step), 0)
	return err == nil, err
}

// resubmission rebuilds the submission of a handoff from the fields of its package that an index
// has.
func (b *Broker) resubmission(ctx context.Context, r Remembered) (*protocol.Submitted, error) {
	pkg := protocol.Package{Source: cmp.Or(r.Source, protocol.Human), Type: r.Type, Priority: r.Priority, Reason: r.Why,
		Target: protocol.Target{Agent: r.Target}}
	pkg.Context.WorkflowID = r.Workflow
	if r.Conversation != "" {
		pkg.Context.ConversationID = &r.Conversation
	}
	pkg.Task.Description = r.Description
	if protocol.CheckAgent("target", r.Target) != nil { // a capability, or several words
		pkg.Target = protocol.Target{Capability: r.Target}
	}
	pkg.Normalize(r.Submitted)
	body, _, err := b.encodePackage(ctx, pkg)
	if err != nil {
		return nil, err
	}
	summary := pkg.Summarize(RefOf(body).Digest)
	return &protocol.Submitted{Meta: protocol.Meta{At: r.Submitted, By: lifecycle.By}, Ticket: r.Ticket, Package: body, Summary: summary, Policy: protocol.DefaultPolicy()}, nil
}
