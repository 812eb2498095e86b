package api

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/index/ask"
	"github.com/agenthandoff/handoff/internal/lifecycle"
	"github.com/agenthandoff/handoff/protocol"
)

// Submit implements Source.
func (c *Session) Submit(ctx context.Context, pkg protocol.Package) (protocol.State, error) {
	head, err := c.submit(ctx, pkg)
	return head.State, err
}

func (c *Session) submit(ctx context.Context, pkg protocol.Package) (broker.Head, error) {
	if err := c.may("Submit"); err != nil {
		return broker.Head{}, err
	}
	pkg.Source = cmp.Or(pkg.Source, c.caller.Name)
	if err := protocol.CheckBy("source", pkg.Source); err != nil { // that of a schedule or a rule, too
		return broker.Head{}, err
	}
	switch {
	case !c.caller.speaksFor(pkg.Source):
		return broker.Head{}, forbidden("source", "is %s, and %s submits", protocol.CutText(pkg.Source, 64), c.caller.Name)
	case pkg.Key == "" && c.s.cfg.KeyRequired:
		return broker.Head{}, protocol.Errorf(protocol.CodeMissing, "key", "is missing: a package that is submitted through a gateway has one, random if need be, so that it may be sent again")
	}
	if pkg.Parent != "" {
		if !c.caller.seesAll() {
			if _, err := c.visible(ctx, pkg.Parent); err != nil {
				return broker.Head{}, inField("parent", err)
			}
		}
		var err error
		if pkg, err = c.s.b.Inherit(ctx, pkg); err != nil {
			return broker.Head{}, err
		}
	}
	prepared, err := c.s.b.Prepare(ctx, pkg)
	if err != nil {
		return broker.Head{}, err
	}
	return c.s.b.Submit(c.bound(ctx), prepared)
}

// Submitted is the answer to Submit. Repeated reports that the handoff was submitted before.
type Submitted struct {
	protocol.State
	Repeated bool `json:"repeated,omitempty"`
}

func submit(s *Session, ctx context.Context, r submitRequest) (Submitted, error) {
	pkg, err := protocol.DecodePackage(r.Package)
	if err != nil {
		return Submitted{}, err
	}
	head, err := s.submit(ctx, pkg)
	return Submitted{head.State, head.Repeated}, err
}

// bound marks the context of a caller that is no operator.
func (c *Session) bound(ctx context.Context) context.Context {
	if c.caller.has(RoleOperator) {
		return ctx
	}
	return broker.Bound(ctx)
}

// Status implements Source.
func (c *Session) Status(ctx context.Context, ticket string) (protocol.State, error) {
	return c.find(ctx, "Status", ticket)
}

// Wait implements Source. It fails if the engine cannot be reached at the first read, and waits for
// an engine that becomes unreachable later.
func (c *Session) Wait(ctx context.Context, ticket string, until Until) (protocol.State, error) {
	state, err := c.follow(ctx, "Wait", ticket, until, false, unseen)
	return *state, err
}

// Follow waits like WaitChain, or without chain like Wait. It calls seen with each state of the
// awaited handoff. An error of seen ends the wait, and is returned with that state.
func (c *Session) Follow(ctx context.Context, ticket string, until Until, chain bool, seen func(protocol.State) error) (protocol.State, error) {
	state, err := c.follow(ctx, "Wait", ticket, until, chain, func(s *protocol.State) error { return seen(*s) })
	return *state, err
}

func unseen(*protocol.State) error { return nil }

// FollowReturn blocks until the return of a closed handoff has arrived at its source, or never will. It
// calls seen as Follow does.
func (c *Session) FollowReturn(ctx context.Context, ticket string, seen func(protocol.State) error) (protocol.State, error) {
	err := c.may("Wait")
	if err == nil {
		ticket, err = protocol.ParseTicket(ticket)
	}
	if err != nil {
		return protocol.State{}, err
	}
	returned := c.s.b.Returned(ctx)
	state, err := c.awaitState(ctx, ticket, true, func(s *protocol.State) bool { return returned(*s) }, func(s *protocol.State) error { return seen(*s) })
	return *state, err
}

// follow waits for a handoff, or for the last one of its chain. The state is never nil.
func (c *Session) follow(ctx context.Context, operation, ticket string, until Until, chain bool, seen func(*protocol.State) error) (*protocol.State, error) {
	err := cmp.Or(until.check(), c.may(operation))
	if err == nil {
		ticket, err = protocol.ParseTicket(ticket)
	}
	if err != nil {
		return &protocol.State{}, err
	}
	for first := true; ; first = false {
		state, err := c.awaitState(ctx, ticket, first, until.satisfied, seen)
		if err != nil || !chain || !lifecycle.GoesOn(*state) {
			return state, err
		}
		if ticket, err = c.awaitNext(ctx, state); err != nil {
			return state, err
		}
	}
}

// awaitState waits until a handoff is ready. The first read of a wait checks that the caller may
// see the handoff, and its errors end the wait.
func (c *Session) awaitState(ctx context.Context, ticket string, first bool, ready func(*protocol.State) bool, seen func(*protocol.State) error) (*protocol.State, error) {
	read := &reading{}
	// Subscribe before reading, so that changes in between cause a hint.
	hints, stop, err := c.s.b.Feed(ctx, ticket)
	if err != nil {
		return &read.state, cmp.Or(ctx.Err(), err)
	}
	defer stop()
	for ; ; first = false {
		next := c.read(ctx, ticket, first, read.seq)
		switch err := next.err; {
		case err == nil:
			read = next
		case ctx.Err() != nil:
			return &read.state, ctx.Err()
		case first || !errors.Is(err, broker.ErrUnreachable) || errors.Is(err, broker.ErrClosed):
			return &read.state, err
		}
		if ready(&read.state) {
			return &read.state, nil
		}
		if err := seen(&read.state); err != nil {
			return &read.state, err
		}
		if err := c.s.pause(ctx, hints); err != nil {
			return &read.state, err
		}
	}
}

// reading is a handoff that was read, at a sequence.
type reading struct {
	state protocol.State
	seq   uint64
	err   error
}

// read reads a handoff.
func (c *Session) read(ctx context.Context, ticket string, check bool, seq uint64) *reading {
	var r reading
	apart(func() {
		if check {
			r.state, r.err = c.visible(ctx, ticket)
			return
		}
		var head broker.Head
		head, r.err = c.s.b.Head(ctx, ticket, seq)
		r.state, r.seq = head.State, head.Seq
	})
	return &r
}

// apart calls do in a goroutine of its own, and returns behind it. A read takes a stack of 100 KiB, which
// its caller would keep while it waits, and thousands wait.
func apart(do func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		do()
	}()
	<-done
}

// pause waits for a hint or for RereadInterval.
func (s *Service) pause(ctx context.Context, hints <-chan uint64) (err error) {
	s.cfg.Pause(ctx, func(pausing context.Context) {
		again := time.NewTimer(s.cfg.RereadInterval)
		defer again.Stop()
		select {
		case <-hints:
		case <-again.C:
		case <-pausing.Done():
			err = cmp.Or(ctx.Err(), ErrWaitEnded)
		}
	})
	return err
}

// Result implements Source.
func (c *Session) Result(ctx context.Context, ticket string) (protocol.Result, protocol.State, error) {
	ticket, err := c.locate(ctx, "Result", ticket)
	if err != nil {
		return protocol.Result{}, protocol.State{}, err
	}
	return c.s.b.Result(ctx, ticket)
}

// Return implements Source.
func (c *Session) Return(ctx context.Context, ticket string) (protocol.Return, error) {
	return readOf(ctx, c, "Return", ticket, c.s.b.Return)
}

// Context implements Source.
func (c *Session) Context(ctx context.Context, ticket string) (protocol.Context, error) {
	return readOf(ctx, c, "Context", ticket, c.s.b.Context)
}

// Cancel implements Source.
func (c *Session) Cancel(ctx context.Context, request Cancel) (protocol.State, error) {
	ticket, err := c.own(ctx, "Cancel", request.Ticket)
	switch {
	case err != nil:
		return protocol.State{}, err
	case request.Children:
		return c.s.b.CancelTree(ctx, ticket, c.caller.Name, request.Reason)
	}
	return c.s.b.Cancel(ctx, ticket, c.caller.Name, request.Reason)
}

// Answer implements Source.
func (c *Session) Answer(ctx context.Context, ticket string, answer protocol.Answer) (protocol.State, error) {
	answer.By = c.caller.Name
	return readOf(ctx, c, "Answer", ticket, func(ctx context.Context, ticket string) (protocol.State, error) {
		return c.s.b.Answer(ctx, ticket, answer)
	})
}

// Package returns the package of a handoff, as it is stored.
func (c *Session) Package(ctx context.Context, ticket string) (json.RawMessage, error) {
	return readOf(ctx, c, "Package", ticket, c.s.b.Package)
}

// History returns all changes, oldest first. If entries cannot be read, it returns the others,
// and a *broker.UnreadableError for the first unreadable one.
func (c *Session) History(ctx context.Context, ticket string) ([]protocol.Change, error) {
	return readOf(ctx, c, "History", ticket, c.s.b.History)
}

// LateResults returns the results that came after their worker had lost its lease.
func (c *Session) LateResults(ctx context.Context, ticket string) ([]broker.LateResult, error) {
	return readOf(ctx, c, "LateResults", ticket, c.s.b.LateResults)
}

// Members returns the ends of a group's members, in the order of its recipients.
func (c *Session) Members(ctx context.Context, ticket string) ([]protocol.MemberReturn, error) {
	state, err := c.find(ctx, "Members", ticket)
	return unless(err, func() ([]protocol.MemberReturn, error) { return c.s.b.Members(ctx, state) })
}

// readOf calls read for a handoff that the caller may see.
func readOf[T any](ctx context.Context, c *Session, operation, ticket string, read func(context.Context, string) (T, error)) (T, error) {
	ticket, err := c.locate(ctx, operation, ticket)
	return unless(err, func() (T, error) { return read(ctx, ticket) })
}

// Reroute offers an open handoff to another agent.
func (c *Session) Reroute(ctx context.Context, r Reroute) (protocol.State, error) {
	return c.intervene("Reroute", r.Ticket, func(ticket string) (protocol.State, error) {
		return c.s.b.Reroute(ctx, ticket, r.To, c.caller.Name, r.Reason, r.Deadline)
	})
}

// RollBack returns a handoff to its source, undone: at once if no worker holds it, or else
// through its holder, which cleans up first.
func (c *Session) RollBack(ctx context.Context, ticket, reason string) (protocol.State, error) {
	return c.intervene("RollBack", ticket, func(ticket string) (protocol.State, error) {
		return c.s.b.RollBack(ctx, ticket, c.caller.Name, reason)
	})
}

// Redrive submits the package of an unsuccessful closed handoff again, and returns the new
// handoff.
func (c *Session) Redrive(ctx context.Context, r Redrive) (protocol.State, error) {
	return c.intervene("Redrive", r.Ticket, func(ticket string) (protocol.State, error) {
		return c.s.b.Redrive(ctx, ticket, r.To, c.caller.Name, r.Again)
	})
}

// Raise adds to the limits of an open handoff.
func (c *Session) Raise(ctx context.Context, ticket string, more protocol.Amounts) (protocol.State, error) {
	return c.intervene("Raise", ticket, func(ticket string) (protocol.State, error) {
		return c.s.b.Raise(ctx, ticket, c.caller.Name, more)
	})
}

// Dismiss removes a closed handoff from the inbox that lists it.
func (c *Session) Dismiss(ctx context.Context, ticket, remark string) (protocol.State, error) {
	return c.intervene("Dismiss", ticket, func(ticket string) (protocol.State, error) {
		return c.s.b.Dismiss(ctx, ticket, c.caller.Name, remark)
	})
}

// intervene checks the operator's role and calls act. An operator sees every handoff, so no state
// is read for the check.
func (c *Session) intervene(operation, ticket string, act func(ticket string) (protocol.State, error)) (protocol.State, error) {
	ticket, err := unless(c.may(operation), func() (string, error) { return protocol.ParseTicket(ticket) })
	return unless(err, func() (protocol.State, error) { return act(ticket) })
}

// Inbox returns the handoffs that wait for an agent or a person, the oldest change first. Without
// a name it is the caller's; a caller that may not see all handoffs reads no other's. Without an
// index it reads the heads of all handoffs, or returns broker.ErrNoAnswer to such a caller.
func (c *Session) Inbox(ctx context.Context, agent string) ([]broker.Waiting, error) {
	return c.FirstInbox(ctx, agent, 0)
}

// FirstInbox is Inbox for a view that shows at most so many entries: those that were submitted first. It may
// return more; 0 is all. Inbox reads the head of each entry, and FirstInbox the heads of these.
func (c *Session) FirstInbox(ctx context.Context, agent string, most int) ([]broker.Waiting, error) {
	agent = cmp.Or(agent, c.caller.Name)
	if err := c.mayReadInbox(agent); err != nil {
		return nil, err
	}
	return ask.Inbox(ctx, c.s.b, c.s.cfg.Index, agent, c.caller.seesAll(), most)
}

func (c *Session) mayReadInbox(agent string) error {
	if err := c.may("Inbox"); err != nil {
		return err
	}
	if !c.caller.seesAll() && !c.caller.isNamed(agent) {
		return forbidden("agent", "is %s, and %s reads", protocol.CutText(agent, 64), c.caller.Name)
	}
	return nil
}

type inboxRequest struct {
	Agent string `json:"agent,omitempty"`
}

func (r inboxRequest) arg() string { return r.Agent }

// DeadLetters returns the unsuccessful closed handoffs, in the order of their ends. Without an
// index it reads the heads of all handoffs.
func (c *Session) DeadLetters(ctx context.Context, q ask.DeadQuery) ([]protocol.State, error) {
	if err := c.may("DeadLetters"); err != nil {
		return nil, err
	}
	page := q
	page.Limit = min(q.Limit, ask.PageMax) // the answer may have several pages
	if err := page.Validate(); err != nil {
		return nil, err
	}
	states, err := ask.DeadLetters(ctx, c.s.b, c.s.cfg.Index, q)
	slices.SortStableFunc(states, func(x, y protocol.State) int { return x.ClosedAt.Compare(y.ClosedAt) })
	if q.Limit > 0 && len(states) > q.Limit {
		states = states[len(states)-q.Limit:]
	}
	return states, err
}

// A caller that sees a handoff may follow its chain, and gets the state and the result of the most
// recent handoff of it.

// LastOfChain implements Source.
func (c *Session) LastOfChain(ctx context.Context, ticket string) (protocol.State, error) {
	ticket, err := c.locate(ctx, "LastOfChain", ticket)
	if err != nil {
		return protocol.State{}, err
	}
	head, err := c.s.b.LastOfChain(ctx, ticket)
	return head.State, err
}

// ChainResult implements Source.
func (c *Session) ChainResult(ctx context.Context, ticket string) (protocol.Result, protocol.State, error) {
	ticket, err := c.locate(ctx, "ChainResult", ticket)
	if err != nil {
		return protocol.Result{}, protocol.State{}, err
	}
	last, err := c.s.b.LastOfChain(ctx, ticket)
	if err != nil {
		return protocol.Result{}, last.State, err
	}
	return c.s.b.Result(ctx, last.Ticket)
}

// WaitChain implements Source.
func (c *Session) WaitChain(ctx context.Context, ticket string, until Until) (protocol.State, error) {
	state, err := c.follow(ctx, "WaitChain", ticket, until, true, unseen)
	return *state, err
}

// awaitNext waits for the next handoff of a chain. The append that closed the one before announced
// it; its writer or a supervisor submits it.
func (c *Session) awaitNext(ctx context.Context, before *protocol.State) (ticket string, err error) {
	ticket, _ = lifecycle.NextInChain(*before)
	var hints <-chan uint64
	for {
		switch err := c.read(ctx, ticket, false, 0).err; {
		case err == nil:
			return ticket, nil
		case ctx.Err() != nil:
			return "", ctx.Err()
		case errors.Is(err, broker.ErrClosed):
			return "", err
		case !errors.Is(err, broker.ErrNotFound) && !errors.Is(err, broker.ErrUnreachable) && !broker.Unreadable(err):
			return "", err
		}
		if hints == nil { // read again: it may have come in between
			feed, stop, err := c.s.b.Feed(ctx, ticket)
			if err != nil {
				return "", cmp.Or(ctx.Err(), err)
			}
			defer stop()
			hints = feed
			continue
		}
		if err := c.s.pause(ctx, hints); err != nil {
			return "", err
		}
	}
}

// ImpasseError ends a wait for a handoff that only a person can move on. The handoff is open, and
// the wait has changed nothing.
type ImpasseError struct {
	State   protocol.State
	Impasse Impasse
}

func (e *ImpasseError) Error() string {
	words := map[Impasse]string{
		lifecycle.ImpasseRefused: "every agent refused it",
		lifecycle.ImpasseFailed:  "every agent failed",
		lifecycle.ImpasseBudget:  "its budget is spent",
	}[e.Impasse]
	if e.State.Message != "" && e.Impasse != lifecycle.ImpasseBudget {
		words += ": " + e.State.Message
	}
	return fmt.Sprintf("%s waits for a person: %s", e.State.Ticket, words)
}

// CheckImpasse returns an *ImpasseError for a handoff that only a person can move on.
func CheckImpasse(s protocol.State) error {
	if impasse := lifecycle.ImpasseOf(s); impasse != lifecycle.NoImpasse {
		return &ImpasseError{s, impasse}
	}
	return nil
}
