package broker

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/agenthandoff/handoff/internal/lifecycle"
	"github.com/agenthandoff/handoff/internal/record"
	"github.com/agenthandoff/handoff/protocol"
)

// Status reads the state of a handoff from the ledger's leader. An unknown ticket is a
// *protocol.Error with CodeNotFound that wraps nothing; a lagging replica never causes it.
func (b *Broker) Status(ctx context.Context, ticket string) (protocol.State, error) {
	head, err := b.Head(ctx, ticket, 0)
	return head.State, unknownTicketError(ticket, err)
}

// unknownTicketError turns a missing subject into an error for a caller that passed a ticket.
func unknownTicketError(ticket string, err error) error {
	if errors.Is(err, ErrNotFound) {
		return protocol.Errorf(protocol.CodeNotFound, "ticket", "no handoff has the ticket %s", ticket)
	}
	return err
}

// History reads all changes of a handoff, oldest first. If some entries cannot be read, it returns
// the others, and an UnreadableError for the first of them.
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

// eachChange reads the changes of a handoff, oldest first. It skips unreadable entries, which
// changed nothing.
func (b *Broker) eachChange(ctx context.Context, ticket string, fn func(protocol.Change) error) error {
	return b.EachChangeAfter(ctx, ticket, 0, fn)
}

// EachChangeAfter calls fn with the changes of a handoff after a ledger sequence, oldest first. It
// skips unreadable entries, and returns an error of fn.
func (b *Broker) EachChangeAfter(ctx context.Context, ticket string, after uint64, fn func(protocol.Change) error) error {
	_, err := b.eachReadableChange(ctx, ticket, after, fn)
	return err
}

// eachReadableChange is EachChangeAfter, and returns the error of the first unreadable entry.
func (b *Broker) eachReadableChange(ctx context.Context, ticket string, after uint64, fn func(protocol.Change) error) (unread, err error) {
	for {
		entry, err := b.engine.Next(ctx, ticket, after)
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

// Package reads the package of a handoff in its stored form.
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

// Inherit adds to a package the fields inherited from its parent, if the parent exists
// (protocol.Package.Inherit). Call it before Prepare.
func (b *Broker) Inherit(ctx context.Context, pkg protocol.Package) (protocol.Package, error) {
	if pkg.Parent == "" {
		return pkg, nil
	}
	head, err := b.Head(ctx, pkg.Parent, 0)
	if errors.Is(err, ErrNotFound) {
		return pkg, nil
	}
	if err != nil {
		return pkg, err
	}
	parent, _, err := b.readPackage(ctx, &head)
	if err == nil {
		pkg.Inherit(protocol.Parent{State: head.State, Package: parent}, b.now(Head{}))
	}
	return pkg, err
}

// Result reads the result of a handoff: the result that completed it, a late one that was used, the
// partial one of a rollback, or a malformed one. The second value is the state it was read from;
// without a result the error is ErrNotFound.
func (b *Broker) Result(ctx context.Context, ticket string) (protocol.Result, protocol.State, error) {
	head, err := b.Head(ctx, ticket, 0)
	if err != nil {
		return protocol.Result{}, protocol.State{}, unknownTicketError(ticket, err)
	}
	if s := head.State; s.Reason == lifecycle.ReasonLedgerDamaged {
		return protocol.Result{}, s, protocol.Errorf(protocol.CodeUnreadable, "result", "of %s is lost: %s (outcome %s)", ticket, s.Message, s.Outcome)
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

// Returned returns the condition for waiters for a return: the handoff is closed, and its return
// has arrived, or never will. It reads the source's profile.
func (b *Broker) Returned(ctx context.Context) func(protocol.State) bool {
	return func(s protocol.State) bool {
		if !s.Closed {
			return false
		}
		source, _, err := b.read(ctx, part{agents: names{s.Source}, fresh: true})
		return err == nil && lifecycle.ReturnSettled(s, source)
	}
}

// Acknowledged reports whether an agent has accepted, or never will.
func Acknowledged(s protocol.State) bool {
	return s.Closed || s.Phase == protocol.PhaseAccepted || s.Phase == protocol.Working
}

// Cancel requests the end of a handoff: at once if no worker holds it, otherwise through its
// holder's next beat.
func (b *Broker) Cancel(ctx context.Context, ticket, by, reason string) (protocol.State, error) {
	return b.intervene(ctx, ticket, by, wantSourceIfReturned, func(s protocol.State, q lifecycle.Query) (lifecycle.Step, error) {
		return lifecycle.Cancel(s, q, by, cutReason(reason), false)
	})
}

// Answer answers the condition of a conditional handoff, or denies it.
func (b *Broker) Answer(ctx context.Context, ticket string, answer protocol.Answer) (protocol.State, error) {
	if err := answer.Validate(); err != nil {
		return protocol.State{}, err
	}
	return b.intervene(ctx, ticket, answer.By, wantAll, func(s protocol.State, q lifecycle.Query) (lifecycle.Step, error) {
		return lifecycle.Answer(s, q, answer)
	})
}

// StateOf decodes the state of a ledger entry. Only here is a read state checked before anything is
// decided about it (lifecycle.CheckRead). The ledger may contain any bytes: if they are no entry of
// this handoff, the error satisfies Unreadable, and the handoff is stuck.
func StateOf(e Entry) (protocol.State, error) {
	_, state, err := record.DecodeState(e.Body, e.Seq)
	if err == nil {
		err = lifecycle.CheckRead(e.Ticket, e.Seq, &state)
	}
	if err != nil {
		return protocol.State{}, unreadable(e, err)
	}
	return state, nil
}

// RecordOf is StateOf for callers that need the events, too.
func RecordOf(e Entry) (protocol.Record, error) {
	read, err := record.Decode(e.Body, e.Seq)
	if err == nil {
		err = lifecycle.CheckRead(e.Ticket, e.Seq, &read.State)
	}
	if err != nil {
		return protocol.Record{}, unreadable(e, err)
	}
	return read, nil
}

// UnreadableError is an unreadable entry of the ledger; retrying does not help. It unwraps to a
// *protocol.Error with CodeUnreadable.
type UnreadableError struct {
	Ticket string
	Seq    uint64
	Why    string // its fault, in at most unreadableBytesMax bytes
}

// unreadableBytesMax bounds the error about an entry, which may quote it.
const unreadableBytesMax = 300

func unreadable(e Entry, err error) error {
	return &UnreadableError{Ticket: e.Ticket, Seq: e.Seq, Why: protocol.CutText(err.Error(), unreadableBytesMax)}
}

// Error implements error.
func (e *UnreadableError) Error() string { return e.Unwrap().Error() }

// Unwrap implements errors.As and errors.Is.
func (e *UnreadableError) Unwrap() error {
	return protocol.Errorf(protocol.CodeUnreadable, "ticket", "%s is stuck: ledger entry %d cannot be read: %s", e.Ticket, e.Seq, e.Why)
}

// Unreadable reports whether an error is, or wraps, an UnreadableError.
func Unreadable(err error) bool {
	var unread *UnreadableError
	return errors.As(err, &unread)
}

// isAbsent reports whether another handoff is unavailable: the ledger does not have it, or it is
// stuck with an unreadable entry.
func isAbsent(err error) bool { return errors.Is(err, ErrNotFound) || Unreadable(err) }

// isMalformed reports whether a result is refused because of its hand-offs. The work is done then,
// and another attempt would repeat it.
func isMalformed(err error, refusal *protocol.Error) bool {
	var handOff *handOffError
	return errors.As(err, &handOff) || refusal.Field == "command" || strings.HasPrefix(refusal.Field, "command.")
}

// handOffError is the refusal of a hand-off of a result.
type handOffError struct{ refusal *protocol.Error }

func (e *handOffError) Error() string { return e.refusal.Error() }

func (e *handOffError) Unwrap() error { return e.refusal }

// unfollowable marks the refusal of a hand-off of a result. It returns other errors unchanged.
func unfollowable(err error) error {
	var refusal *protocol.Error
	if errors.As(err, &refusal) {
		return &handOffError{refusal}
	}
	return err
}

// malformedResult keeps a result whose command cannot be followed, as text with the reason. As JSON
// it might be deeper than a record may be.
func malformedResult(result protocol.Result, refusal *protocol.Error) protocol.Result {
	body, err := protocol.EncodeResult(result)
	if err != nil { // an unencodable result cannot be kept whole
		body = result.Body
	}
	kept := protocol.ResultFromText(body)
	kept.Malformed, kept.Usage = refusal.Error(), result.Usage
	return kept
}

// encodeMalformed encodes a malformed result. Quoted as text, an output may double in size: if it
// is too large, only its reason is kept.
func encodeMalformed(result *protocol.Result) (json.RawMessage, error) {
	body, err := protocol.EncodeResult(*result)
	if err == nil && len(body) > protocol.ResultBytesMax {
		result.Body, result.SetAside = nil, "the output is too large to be kept"
		body, err = protocol.EncodeResult(*result)
	}
	return body, err
}

// completeMalformed fails the attempt with a malformed result, and keeps it. The core decides the
// next step. The error is a *protocol.Error with CodeBadResult; a holder that has lost its lease
// gets ErrLeaseLost, and the result is kept like other late ones.
func (c *Claim) completeMalformed(ctx context.Context, result protocol.Result) error {
	refusal := protocol.Errorf(protocol.CodeBadResult, "", "%s", result.Malformed)
	body, err := encodeMalformed(&result)
	if err != nil {
		return err
	}
	var kept protocol.Failed
	if kept.Result, kept.Blob, err = c.b.storeResult(ctx, c.Ticket, body); err != nil {
		return err
	}
	if kept.Usage, err = c.price(ctx, validUsage(result.Usage)); err != nil {
		return err
	}
	err = c.reportWork(ctx, wantNothing, func(s protocol.State, q lifecycle.Query) (lifecycle.Step, error) {
		return lifecycle.MalformedResult(s, c.Holder.ID, refusal.Message, kept, q.Now)
	})
	if errors.Is(err, ErrLeaseLost) {
		err = c.resultAfterLoss(ctx, parked(result, kept.Result, kept.Blob), err)
	}
	if err := c.finish(ctx, err); err != nil {
		return err
	}
	return refusal
}

// failRefused fails the attempt whose result is refused, and returns the refusal. It returns other
// errors unchanged.
func (c *Claim) failRefused(ctx context.Context, result protocol.Result, err error) error {
	var refusal *protocol.Error
	if !errors.As(err, &refusal) || refusal.Code == protocol.CodeIllegal {
		return err
	}
	if isMalformed(err, refusal) { // a retry would be refused again
		err := c.completeMalformed(ctx, malformedResult(result, refusal))
		if errors.Is(err, &protocol.Error{Code: protocol.CodeBadResult}) {
			return refusal
		}
		return err
	}
	failure, _ := lifecycle.UnusableResult(refusal)
	failure.Usage = validUsage(result.Usage) // it was used all the same
	// Until the ledger has the failure, the refusal must not be returned: the worker would stop
	// retrying while it still has the handoff.
	if err := c.Fail(ctx, failure); err != nil {
		return fmt.Errorf("fail %s for its result (%v): %w", c.Ticket, refusal, err)
	}
	return refusal
}
