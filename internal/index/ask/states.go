package ask

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/lifecycle"
	"github.com/agenthandoff/handoff/protocol"
)

const (
	// indexTimeout bounds one question to the index, before the heads of all handoffs are read.
	indexTimeout = 500 * time.Millisecond
	// partTimeout is that of a question for a part of them: a scan reads all.
	partTimeout = 2 * time.Second
	// headsMax bounds the heads that are read one by one. More of them take longer than a
	// scan over all heads.
	headsMax    = 10_000
	headsAtOnce = 32
	spareRows   = 16 // of a page with a limit: some may have changed meanwhile
)

// errIndexUnusable: an index answers, but not well enough: it is behind, or lists too many.
var errIndexUnusable = errors.New("the index is of no use")

// Inbox returns the handoffs in an inbox, the oldest change first. It asks an index which these
// are, and reads their heads; without a complete answer it scans all heads if it may, else the
// error is broker.ErrNoAnswer. With a limit these are at least those that were submitted first.
func Inbox(ctx context.Context, b *broker.Broker, ix Answers, agent string, mayScan bool, limit int) ([]broker.Waiting, error) {
	directory, err := b.Directory(ctx)
	if err != nil {
		return nil, err
	}
	q := WaitingQuery{Agent: agent, Below: lifecycle.ApproversBelow(agent, directory), Limit: PageMax}
	if limit > 0 {
		q.Limit = min(PageMax, limit+spareRows)
	}
	if agent == protocol.Human {
		q.Registered = lifecycle.Answering(directory)
	}
	reason := func(s protocol.State) lifecycle.InboxReason { return lifecycle.InboxReasonFor(s, agent, directory) }
	heads, err := listHeads(ctx, b, func(ctx context.Context, wait Question, cursor string) (tickets []string, at Position, next string, err error) {
		q.Question, q.Cursor = wait, cursor
		a, err := ix.Waiting(ctx, q)
		for _, row := range a.Handoffs {
			tickets = append(tickets, row.Ticket)
		}
		return tickets, a.Position, a.Cursor, err
	}, func(s protocol.State) bool { return reason(s) != lifecycle.InboxNone }, limit)
	switch {
	case errors.Is(err, errIndexUnusable) && mayScan:
		return b.Inbox(ctx, agent)
	case errors.Is(err, errIndexUnusable):
		return nil, broker.ErrNoAnswer
	}
	waiting := make([]broker.Waiting, len(heads))
	for i, h := range heads {
		waiting[i] = broker.Waiting{Why: reason(h.State), State: h.State}
	}
	return waiting, err
}

// DeadLetters returns the dead letters that a query selects, the oldest change first. With a
// limit these are at least those that closed last. Like Inbox it scans all heads if it must.
func DeadLetters(ctx context.Context, b *broker.Broker, ix Answers, q DeadQuery) ([]protocol.State, error) {
	limit, keep := q.Limit, q.Selects
	if q.Limit = PageMax; limit > 0 {
		q.Limit = min(PageMax, limit+spareRows)
	}
	heads, err := listHeads(ctx, b, func(ctx context.Context, wait Question, cursor string) (tickets []string, at Position, next string, err error) {
		q.Question, q.Cursor = wait, cursor
		a, err := ix.Dead(ctx, q)
		for _, row := range a.Handoffs {
			tickets = append(tickets, row.Ticket)
		}
		return tickets, a.Position, a.Cursor, err
	}, func(s protocol.State) bool { return lifecycle.DeadLetter(s) && keep(s) }, limit)
	if errors.Is(err, errIndexUnusable) {
		return b.DeadLetters(ctx, keep)
	}
	states := make([]protocol.State, len(heads))
	for i, h := range heads {
		states[i] = h.State
	}
	return states, err
}

// listHeads reads the heads of the handoffs that an index lists, page by page, until limit of
// them are wanted; 0 is all. It returns errNoUse where a scan over all heads is better.
func listHeads(ctx context.Context, b *broker.Broker, page func(context.Context, Question, string) ([]string, Position, string, error),
	keep func(protocol.State) bool, limit int) ([]broker.Head, error) {
	var heads []broker.Head
	timeout := indexTimeout
	if limit > 0 {
		timeout = partTimeout
	}
	for cursor, seen := "", 0; ; {
		brief, cancel := context.WithTimeout(ctx, timeout)
		tickets, at, next, err := page(brief, Question{WaitMS: timeout.Milliseconds() / 2}, cursor)
		late := brief.Err() != nil && !errors.Is(err, broker.ErrNoAnswer) // an index answers, but slowly
		cancel()
		seen += len(tickets)
		switch {
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case limit > 0 && (late || err == nil && !at.Complete): // a scan of all heads would hold up the engine
			return nil, broker.ErrNoAnswer
		case err != nil || !at.Complete || seen > headsMax:
			return nil, errIndexUnusable
		}
		read, err := readHeads(ctx, b, tickets)
		if err != nil {
			return nil, err
		}
		for _, h := range read {
			if h.Ticket != "" && keep(h.State) {
				heads = append(heads, h)
			}
		}
		if cursor = next; next == "" || limit > 0 && len(heads) >= limit {
			break
		}
	}
	slices.SortFunc(heads, func(x, y broker.Head) int { return cmp.Compare(x.Seq, y.Seq) })
	return heads, nil
}

// readHeads reads heads side by side. One that cannot be read stays empty: handoff doctor
// names it.
func readHeads(ctx context.Context, b *broker.Broker, tickets []string) ([]broker.Head, error) {
	heads := make([]broker.Head, len(tickets))
	group, reading := errgroup.WithContext(ctx)
	group.SetLimit(headsAtOnce)
	for i, ticket := range tickets {
		group.Go(func() error {
			head, err := b.Head(reading, ticket, 0)
			switch {
			case err == nil:
				heads[i] = head
			case errors.Is(err, broker.ErrUnreachable), errors.Is(err, broker.ErrNotAllowed), errors.Is(err, broker.ErrClosed), reading.Err() != nil:
				return err
			}
			return nil
		})
	}
	return heads, group.Wait()
}
