package broker

import (
	"context"
	"errors"
	"fmt"

	"github.com/agenthandoff/handoff/internal/lifecycle"
	"github.com/agenthandoff/handoff/protocol"
)

// A handoff that asks for bids takes two appends until its offer: its submission, which names the
// agents asked for a bid, and the award, which contains the offer. In between, each agent has its
// call, a handoff of its own. Any process may submit a missing call, compare the bids, and answer
// the bidders.

// EnsureBids does the next step of a handoff that asks for bids, or of a call for one. It returns the
// resulting head, and is idempotent. While bids are awaited it submits the missing calls, and awards
// the handoff once all calls have ended or the window is over: one read per call. A handoff that
// closed before ends its calls. A call that has made a bid gets its answer.
func (b *Broker) EnsureBids(ctx context.Context, head Head) (Head, error) {
	switch s := head.State; {
	case lifecycle.AwaitsBidAnswer(s):
		return head, b.ensureBidAnswer(ctx, head)
	case lifecycle.LeavesCalls(s):
		calls, err := b.readCalls(ctx, s)
		return head, errors.Join(err, b.endCalls(ctx, head, calls))
	case !lifecycle.AwaitsBids(s) || s.Bidding == nil:
		return head, nil
	}
	calls, err := b.readCalls(ctx, head.State)
	if err != nil {
		return head, err
	}
	if err := b.submitCalls(ctx, head, calls); err != nil {
		return head, err
	}
	ends := make([]lifecycle.CallEnd, len(calls))
	err = forEachParallel(ctx, len(calls), func(ctx context.Context, n int) (err error) {
		ends[n], err = b.callEnd(ctx, calls[n])
		return err
	})
	if err != nil {
		return head, err
	}
	next, awarded, err := b.update(ctx, head, wantAll, func(h Head, q lifecycle.Query) (lifecycle.Step, error) {
		return lifecycle.Award(h.State, q, ends)
	})
	if err != nil || !awarded {
		return next, err
	}
	if lifecycle.DutiesOf(next.State).Offer {
		err = b.EnsureOffer(ctx, next)
	}
	return next, errors.Join(err, b.endCalls(ctx, next, calls))
}

// ensureBidAnswer answers the agent that made a bid, once the handoff is awarded.
func (b *Broker) ensureBidAnswer(ctx context.Context, call Head) error {
	of, err := b.Head(ctx, call.State.CallOf, 0)
	switch {
	case errors.Is(err, ErrNotFound): // the handoff is gone, and the bid with it
	case Unreadable(err): // the handoff may still wait for bids
		return nil
	case err != nil:
		return err
	}
	return b.answerBid(ctx, call, of.State)
}

func (b *Broker) answerBid(ctx context.Context, call Head, of protocol.State) error {
	_, _, err := b.update(ctx, call, wantNothing, func(h Head, q lifecycle.Query) (lifecycle.Step, error) {
		return lifecycle.AnswerBid(h.State, of, q.Now)
	})
	return err
}

// readCalls reads the calls of a handoff. A call that does not exist has no ticket.
func (b *Broker) readCalls(ctx context.Context, s protocol.State) ([]Head, error) {
	calls := make([]Head, len(s.Bidding.Calls))
	err := forEachParallel(ctx, len(calls), func(ctx context.Context, n int) error {
		ticket := protocol.CallTicket(s.Ticket, n)
		call, err := b.Head(ctx, ticket, 0)
		switch {
		case errors.Is(err, ErrNotFound):
			return nil
		case Unreadable(err): // it exists, and makes no bid
			calls[n] = Head{Ticket: ticket}
			return nil
		}
		calls[n] = call
		return err
	})
	return calls, err
}

// submitCalls submits the missing calls, as long as there is time to bid.
func (b *Broker) submitCalls(ctx context.Context, head Head, calls []Head) error {
	var missing []int
	for n, call := range calls {
		if call.Ticket == "" {
			missing = append(missing, n)
		}
	}
	if len(missing) == 0 || !b.decisionTime(&head).Before(head.State.Bidding.Until) {
		return nil
	}
	work, body, err := b.readPackage(ctx, &head)
	if err != nil {
		return err
	}
	tokens := int64(protocol.Tokens(string(body)))
	return forEachParallel(ctx, len(missing), func(ctx context.Context, i int) error {
		n := missing[i]
		pkg, err := protocol.CallPackage(head.State, work, head.State.Bidding.Calls[n], tokens, b.now(head))
		if err != nil {
			return err
		}
		s, err := b.storeOwnBody(ctx, pkg)
		if err != nil {
			return fmt.Errorf("call %d of %s: %w", n, head.Ticket, err)
		}
		calls[n], err = b.submitChild(ctx, pendingChild{ticket: protocol.CallTicket(head.Ticket, n),
			summary: lifecycle.CallOf(head.State, pkg, s.digest), body: s.body, blob: s.blob})
		return err
	})
}

// callEnd returns whether a call has ended, and its bid. An unreadable bid does not count.
func (b *Broker) callEnd(ctx context.Context, call Head) (lifecycle.CallEnd, error) {
	end := lifecycle.CallEnd{Ended: call.Seq == 0 && call.Ticket != "" || call.State.Closed}
	if !lifecycle.AwaitsBidAnswer(call.State) {
		return end, nil
	}
	change, err := b.readChange(ctx, call.Ticket, call.State.ResultSeq)
	if isAbsent(err) {
		return end, nil
	}
	if err != nil {
		return end, err
	}
	inline, blob, ok := locateResult(change)
	if !ok || blob != nil && blob.Size > protocol.ResultBytesMax {
		return end, nil
	}
	body, err := b.packageBody(ctx, inline, blob)
	if err != nil {
		return end, err
	}
	result, err := protocol.DecodeResult(body)
	if err == nil {
		var bid protocol.Bid
		if bid, err = protocol.DecodeBid(result.Body); err == nil {
			end.Bid = &bid
		}
	}
	if err != nil {
		b.log.Warn("the result of a call is not a bid", "ticket", call.Ticket, "of", call.State.CallOf, "err", err)
	}
	return end, nil
}

// endCalls cancels the open calls, and answers the agents that have made a bid.
func (b *Broker) endCalls(ctx context.Context, head Head, calls []Head) error {
	return forEachParallel(ctx, len(calls), func(ctx context.Context, n int) error {
		call := calls[n]
		if call.Seq == 0 {
			return nil
		}
		if !call.State.Closed {
			next, err := b.cancelHandoff(ctx, call.Ticket, lifecycle.By, "no more bids are taken for "+head.Ticket)
			if isAbsent(err) {
				return nil
			}
			if call = next; err != nil { // a call that has ended meanwhile made its bid too late
				return err
			}
		}
		return b.answerBid(ctx, call, head.State)
	})
}
