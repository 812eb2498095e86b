package broker

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/protocol/lifecycle"
)

// Status reads the state of a handoff from the ledger's leader. An unknown
// ticket is a *protocol.Error with CodeNotFound that wraps nothing; a "not
// found" is never a matter of a lagging replica.
func (b *Broker) Status(ctx context.Context, ticket string) (protocol.State, error) {
	head, err := b.Head(ctx, ticket, 0)
	return head.State, unknownTicketError(ticket, err)
}

// unknownTicketError turns a missing subject into what a person who asked by ticket reads.
func unknownTicketError(ticket string, err error) error {
	if errors.Is(err, ErrNotFound) {
		return protocol.Errorf(protocol.CodeNotFound, "ticket", "no handoff has the ticket %s", ticket)
	}
	return err
}

// History reads all changes of a handoff, oldest first. Where entries cannot be read
// it returns the others, and an UnreadableError of the first that cannot.
func (b *Broker) History(ctx context.Context, ticket string) ([]protocol.Change, error) {
	var all []protocol.Change
	unread, err := b.eachReadableChange(ctx, ticket, 0, func(c protocol.Change) error {
		all = append(all, c)
		return nil
	})
	switch {
	case err != nil:
	case unread != nil:
		err = unread
	case len(all) == 0:
		err = ErrNotFound
	}
	return all, unknownTicketError(ticket, err)
}

// eachChange reads the changes of a handoff, oldest first. Entries that cannot be read
// changed nothing, and are passed over.
func (b *Broker) eachChange(ctx context.Context, ticket string, fn func(protocol.Change) error) error {
	return b.eachChangeAfter(ctx, ticket, 0, fn)
}

// eachChangeAfter is changes behind a ledger sequence.
func (b *Broker) eachChangeAfter(ctx context.Context, ticket string, after uint64, fn func(protocol.Change) error) error {
	_, err := b.eachReadableChange(ctx, ticket, after, fn)
	return err
}

// eachReadableChange is eachChangeAfter, and returns the error of the first entry that cannot be read.
func (b *Broker) eachReadableChange(ctx context.Context, ticket string, after uint64, fn func(protocol.Change) error) (unread, err error) {
	for {
		entry, err := b.ledger.Next(ctx, ticket, after)
		if errors.Is(err, ErrNotFound) {
			return unread, nil
		}
		if err != nil {
			return unread, err
		}
		after = entry.Seq
		change, err := DecodeChange(entry)
		if err != nil {
			unread = cmp.Or(unread, err)
			continue
		}
		if err := fn(change); err != nil {
			return unread, err
		}
	}
}

// Package reads what was handed off, as stored.
func (b *Broker) Package(ctx context.Context, ticket string) (json.RawMessage, error) {
	head, err := b.Head(ctx, ticket, 0)
	if err != nil {
		return nil, unknownTicketError(ticket, err)
	}
	submitted, err := b.readSubmitted(ctx, &head)
	if err != nil {
		return nil, err
	}
	return b.packageBody(ctx, submitted.Package, submitted.Blob)
}

// Parent reads a handoff from which others follow; nil if there is none with this
// ticket. Package.Inherit says what they take over from it.
func (b *Broker) Parent(ctx context.Context, ticket string) (*protocol.Parent, error) {
	head, err := b.Head(ctx, ticket, 0)
	if errors.Is(err, ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	submitted, err := b.readSubmitted(ctx, &head)
	if err != nil {
		return nil, err
	}
	body, err := b.packageBody(ctx, submitted.Package, submitted.Blob)
	if err != nil {
		return nil, fmt.Errorf("package of %s: %w", ticket, err)
	}
	pkg, err := protocol.DecodePackage(body)
	if err != nil {
		return nil, fmt.Errorf("package of %s: %w", ticket, err)
	}
	return &protocol.Parent{State: head.State, Package: pkg}, nil
}

// Inherit completes a package by what it takes over from its parent, if it names
// one that is there. It is to be called before Prepare.
func (b *Broker) Inherit(ctx context.Context, pkg protocol.Package) (protocol.Package, error) {
	if pkg.Parent == "" {
		return pkg, nil
	}
	parent, err := b.Parent(ctx, pkg.Parent)
	if err == nil && parent != nil {
		pkg.Inherit(*parent, b.now(Head{}))
	}
	return pkg, err
}

// Result reads the result of a handoff: what completed it, a late result that
// was used, what there was of one at a rollback, or a malformed one. The second value is the state
// it was read from; without a result the error is ErrNotFound.
func (b *Broker) Result(ctx context.Context, ticket string) (protocol.Result, protocol.State, error) {
	head, err := b.Head(ctx, ticket, 0)
	if err != nil {
		return protocol.Result{}, protocol.State{}, unknownTicketError(ticket, err)
	}
	if head.State.ResultSeq == 0 {
		return protocol.Result{}, head.State, fmt.Errorf("result of %s: %w", ticket, ErrNotFound)
	}
	change, err := b.readChange(ctx, ticket, head.State.ResultSeq)
	if err != nil {
		return protocol.Result{}, head.State, err
	}
	result, err := b.readResult(ctx, change)
	if err != nil {
		return protocol.Result{}, head.State, fmt.Errorf("result of %s: %w", ticket, err)
	}
	return *result, head.State, nil
}

// rereadEvery is how often a waiter reads the head though nothing told it to:
// the feed may lose what it tells.
const rereadEvery = 1500 * time.Millisecond

// Wait blocks until the state satisfies until, or ctx ends. It returns the last state that it
// read, and ctx's error. Waiting changes nothing. An engine that cannot be reached at the
// first read is an error; one that goes away later is waited for.
func (b *Broker) Wait(ctx context.Context, ticket string, until func(protocol.State) bool) (protocol.State, error) {
	// Subscribe first, read second: what happens in between is then hinted at.
	hints, stop, err := b.ledger.Feed(ctx, ticket)
	if err != nil {
		return protocol.State{}, err
	}
	defer stop()
	var last Head
	for {
		head, err := b.Head(ctx, ticket, last.Seq)
		switch {
		case err != nil && ctx.Err() != nil:
			return last.State, ctx.Err()
		case last.Seq > 0 && errors.Is(err, ErrUnreachable) && !errors.Is(err, ErrClosed):
			head = last
		case err != nil:
			return last.State, unknownTicketError(ticket, err)
		case until(head.State):
			return head.State, nil
		}
		last = head
		select {
		case <-ctx.Done():
			return last.State, ctx.Err()
		case <-hints:
		case <-time.After(rereadEvery):
		}
	}
}

// Returned is what waiters for a return wait for: the handoff is closed, and its
// return has arrived, or never will. It asks the engine for the source's profile.
func (b *Broker) Returned(ctx context.Context) func(protocol.State) bool {
	return func(s protocol.State) bool {
		if !s.Closed {
			return false
		}
		source, err := b.onlyAgent(ctx, s.Source)
		return err == nil && lifecycle.ReturnSettled(s, source)
	}
}

// Closed is what most waiters wait for.
func Closed(s protocol.State) bool { return s.Closed }

// Acknowledged is true once an agent has accepted, and when it never will.
func Acknowledged(s protocol.State) bool {
	return s.Closed || s.Phase == protocol.PhaseAccepted || s.Phase == protocol.Working
}

// Cancel asks for the end of a handoff: at once where no worker holds it, else
// through its holder's next beat.
func (b *Broker) Cancel(ctx context.Context, ticket, by, reason string) (protocol.State, error) {
	if err := protocol.CheckBy("by", by); err != nil {
		return protocol.State{}, err
	}
	reason = cutReason(reason)
	head, err := b.intervene(ctx, ticket, b.sourceIfReturned, func(h Head, d *lifecycle.Directory, now time.Time) (lifecycle.Step, error) {
		return lifecycle.Cancel(h.State, d, by, reason, false, now)
	})
	return head.State, err
}

// Answer gives a conditional handoff what it asks for, or denies it.
func (b *Broker) Answer(ctx context.Context, ticket string, answer protocol.Answer) (protocol.State, error) {
	if err := answer.Validate(); err != nil {
		return protocol.State{}, err
	}
	head, _, err := b.Update(ctx, ticket, func(h Head, d *lifecycle.Directory, now time.Time) (lifecycle.Step, error) {
		return lifecycle.Answer(h.State, d, answer, now)
	})
	return head.State, unknownTicketError(ticket, err)
}
