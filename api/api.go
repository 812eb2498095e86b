package api

import (
	"context"
	"encoding/json"
	"time"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/explain"
	"github.com/agenthandoff/handoff/internal/index/ask"
	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/protocol/lifecycle"
)

// Source submits handoffs and follows them to their ends.
type Source interface {
	// Submit hands a package over and returns the new handoff. The source of the
	// package is the caller if it names none. Submitting the same package with the same
	// key again returns the handoff that is there.
	Submit(ctx context.Context, pkg protocol.Package) (protocol.State, error)
	// Status returns the state of a handoff.
	Status(ctx context.Context, ticket string) (protocol.State, error)
	// Wait blocks until a handoff is where until says, or ctx ends. It always returns the
	// last state that it read, and ctx's error with that if it ended first.
	Wait(ctx context.Context, ticket string, until Until) (protocol.State, error)
	// Result returns the result of a handoff, and the state it was read from. Without a
	// result the error is broker.ErrNotFound, and the state says why there is none.
	Result(ctx context.Context, ticket string) (protocol.Result, protocol.State, error)
	// LastOfChain returns the state of the handoff that a chain has come to. A chain is the
	// handoffs that follow from one by goto. It is the handoff itself where that was not handed
	// on, or what follows is about to be submitted.
	LastOfChain(ctx context.Context, ticket string) (protocol.State, error)
	// WaitChain is Wait for the chain of a handoff: it returns the state of the last one. A
	// handoff that was handed on is never where until says.
	WaitChain(ctx context.Context, ticket string, until Until) (protocol.State, error)
	// ChainResult is Result of the handoff that a chain has come to.
	ChainResult(ctx context.Context, ticket string) (protocol.Result, protocol.State, error)
	// Return returns the end of a closed handoff as its source gets it: that of its chain, if
	// it owes that. Of one that has not ended so the error has CodeIllegal.
	Return(ctx context.Context, ticket string) (protocol.Return, error)
	// Context returns the whole context of a handoff. For a package by reference it reads the
	// stored context. The caller needs the right to read the package.
	Context(ctx context.Context, ticket string) (protocol.Context, error)
	// Cancel asks for the end of a handoff: at once if no worker holds it, else through
	// its holder's next heartbeat.
	Cancel(ctx context.Context, request Cancel) (protocol.State, error)
	// Answer gives a handoff what it asks for, or denies it. The answer names its question
	// (lifecycle.QuestionOf); one for an earlier question is refused (CodeConflict). It is the
	// caller's, whatever it says itself; lifecycle.MayAnswer decides whether the caller may.
	Answer(ctx context.Context, ticket string, answer protocol.Answer) (protocol.State, error)
}

// Reader reads what is known about a handoff beside its state.
type Reader interface {
	// Package returns what was handed off, as it is stored.
	Package(ctx context.Context, ticket string) (json.RawMessage, error)
	// History returns all changes, oldest first. If entries cannot be read it returns the
	// others, and a *broker.UnreadableError of the first that cannot.
	History(ctx context.Context, ticket string) ([]protocol.Change, error)
	// Members returns the ends of a group's members, in the order of its recipients.
	Members(ctx context.Context, ticket string) ([]protocol.MemberReturn, error)
	// LateResults returns the results that came after their worker had lost its lease.
	LateResults(ctx context.Context, ticket string) ([]broker.LateResult, error)
	// List returns a page of handoffs. A caller that sees some handoffs alone filters by
	// source, agent or target, with names of its own.
	List(ctx context.Context, q ask.ListQuery) (ask.ListAnswer, error)
	// Count counts handoffs. What List asks of the filter, Count asks as well.
	Count(ctx context.Context, q ask.CountQuery) (ask.CountAnswer, error)
	// Figures returns success rates, durations and refusals. What List asks of the filter,
	// Figures and Series ask as well.
	Figures(ctx context.Context, q ask.FiguresQuery) (ask.FiguresAnswer, error)
	// Series returns counts and durations over time.
	Series(ctx context.Context, q ask.SeriesQuery) (ask.SeriesAnswer, error)
	// Position returns the place in the ledger up to which lists and counts are right.
	Position(ctx context.Context, q ask.Question) (ask.Position, error)
	// Find returns the one ticket that begins with a prefix of PrefixMin characters or more.
	// It is refused where several do (CodeAmbiguous), and to a caller that sees some handoffs
	// alone, which knows its tickets.
	Find(ctx context.Context, prefix string) (string, error)
	// Family returns the handoffs that belong together with one, as far as the caller may
	// see them.
	Family(ctx context.Context, q ask.FamilyQuery) (ask.FamilyAnswer, error)
	// Why explains what a handoff waits for, with the clock of a time zone.
	Why(ctx context.Context, ticket string, zone *time.Location) (explain.Explanation, error)
}

// Operator intervenes in handoffs, whichever agent has them.
type Operator interface {
	// Reroute offers an open handoff to another agent.
	Reroute(ctx context.Context, request Reroute) (protocol.State, error)
	// RollBack returns a handoff to its source, undone: at once if no worker holds it,
	// else through its holder, which cleans up first.
	RollBack(ctx context.Context, ticket, reason string) (protocol.State, error)
	// Redrive submits the package of a handoff that closed without success again, and
	// returns the new handoff.
	Redrive(ctx context.Context, request Redrive) (protocol.State, error)
	// Take puts an open handoff into an agent's hands, as accepted.
	Take(ctx context.Context, request Take) (Held, error)
	// Dismiss takes a closed handoff out of the inbox that lists it.
	Dismiss(ctx context.Context, ticket, remark string) (protocol.State, error)
	// Raise adds to the limits of an open handoff.
	Raise(ctx context.Context, ticket string, more protocol.Amounts) (protocol.State, error)
	// Inbox returns the handoffs that wait for an agent or a person, oldest change first.
	// Without an index it reads the heads of all handoffs.
	Inbox(ctx context.Context, agent string) ([]broker.Waiting, error)
	// DeadLetters returns the handoffs that closed without success, the last to close at the
	// end. Without an index it reads the heads of all handoffs.
	DeadLetters(ctx context.Context, q ask.DeadQuery) ([]protocol.State, error)
	// Attention returns the open handoffs that need a person, as far as an index knows them
	// or their tickets are among also. Without an index the error is broker.ErrNoAnswer, and
	// the answer is of also alone.
	Attention(ctx context.Context, also []string) (Attention, error)
}

// Cancel says which handoff is to end.
type Cancel struct {
	Ticket string
	Reason string
	// Children cancels all that it has handed off as well. It does so even if the
	// handoff itself is closed.
	Children bool
}

// Reroute says where a handoff is to go.
type Reroute struct {
	Ticket string
	To     string
	Reason string
	// Deadline, if not zero, is the new one.
	Deadline time.Time
}

// Redrive says which handoff is submitted again.
type Redrive struct {
	Ticket string
	// To, if not empty, is another agent to send it to.
	To string
	// Again offers it to the agents that refused it as well.
	Again bool
}

// Until is what a caller waits for.
type Until string

const (
	// UntilClosed waits for the end. The empty Until does as well.
	UntilClosed Until = "closed"
	// UntilEnded waits for the end that the source or the parent of a handoff gets: that of
	// its chain, if it owes that.
	UntilEnded Until = "ended"
	// UntilAccepted waits until an agent has accepted, or the end if that comes first.
	UntilAccepted Until = "accepted"
	// UntilAsked waits until an agent asks for something, or the end if that comes first.
	UntilAsked Until = "asked"
)

// Ready tells whether a handoff is where u says. ok is false for an unknown Until.
func (u Until) Ready(s protocol.State) (ready, ok bool) {
	switch u {
	case "", UntilClosed:
		return s.Closed, true
	case UntilEnded:
		return lifecycle.HasEnded(s), true
	case UntilAccepted:
		return broker.Acknowledged(s), true
	case UntilAsked:
		return s.Closed || s.Phase == protocol.Conditional && s.Conditions != nil, true
	}
	return false, false
}

func (u Until) check() error {
	if _, ok := u.Ready(protocol.State{}); !ok {
		return protocol.Errorf(protocol.CodeInvalid, "until", "is %q, must be %s, %s, %s or %s", protocol.CutText(string(u), 64), UntilClosed, UntilEnded, UntilAccepted, UntilAsked)
	}
	return nil
}
