package broker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/google/uuid"

	"github.com/agenthandoff/handoff/internal/lifecycle"
	"github.com/agenthandoff/handoff/internal/record"
	"github.com/agenthandoff/handoff/protocol"
)

// RepairHead resets a handoff whose head is unreadable to its last readable entry: it appends that
// state again, without an event. The unreadable entries have no effect. An operator decides on it.
// A readable head stays unchanged. It refuses, with CodeIllegal, if no entry can be read, or if an
// entry is of a newer version: then update the program.
func (b *Broker) RepairHead(ctx context.Context, ticket string) (Head, error) {
	last, err := b.engine.Last(ctx, ticket, 0)
	if err != nil {
		return Head{}, unknownTicketError(ticket, err)
	}
	if head, err := HeadOf(last); err == nil {
		return head, nil
	}
	good, err := b.lastReadable(ctx, ticket)
	if err != nil {
		return Head{}, err
	}
	next := Head{Ticket: ticket, State: good.State}
	next.State.PrevHash = HashOf(last.Body)
	id := uuid.NewString()
	body, err := record.Append(nil, id, nil, &next.State)
	if err != nil {
		return Head{}, err
	}
	if next.Seq, err = b.engine.Append(ctx, ticket, last.Seq, id, lifecycle.AttentionNow, body); err != nil {
		return Head{}, fmt.Errorf("repair %s after %d: %w", ticket, last.Seq, err)
	}
	next.Hash = HashOf(body)
	b.log.Warn("handoff repaired: its last entries could not be read, and have no effect", "ticket", ticket, "unreadable", last.Seq, "readable", good.Seq, "seq", next.Seq)
	return next, nil
}

// recordVersion is the version of records that this program reads.
const recordVersion = 1

// lastReadable returns the last readable entry of a handoff.
func (b *Broker) lastReadable(ctx context.Context, ticket string) (good Head, err error) {
	for after := uint64(0); ; {
		entry, err := b.engine.Next(ctx, ticket, after)
		if errors.Is(err, ErrNotFound) {
			break
		}
		if err != nil {
			return good, err
		}
		after = entry.Seq
		var read struct {
			V int `json:"v"`
		}
		if err := json.Unmarshal(entry.Body, &read); err == nil && read.V > recordVersion {
			return good, protocol.Errorf(protocol.CodeIllegal, "ticket", "entry %d of %s is a record of version %d: update this program and the supervisors", entry.Seq, ticket, read.V)
		}
		if head, err := HeadOf(entry); err == nil {
			good = head
		}
	}
	if good.Seq == 0 {
		return good, protocol.Errorf(protocol.CodeIllegal, "ticket", "no entry of %s can be read: there is no state to return to", ticket)
	}
	return good, nil
}
