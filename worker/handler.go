package worker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/agenthandoff/handoff/api"
	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/lifecycle"
	"github.com/agenthandoff/handoff/protocol"
)

// Handler does the work. Handle is called once for each attempt, in a
// goroutine that does nothing else meanwhile, up to Config.Concurrency at a time.
//
// It returns the result, or an error: a plain one is a failed attempt that is
// worth a retry; Permanent, RetryAfter, Refuse, Await, Escalate,
// AnswerEscalation, RollBack and Stop make the others. It must
// return soon after ctx ended, for Run waits for it; context.Cause(ctx) is
// the reason. A result that it returns all the same is handed in, and counts
// if the handoff is still its own. One that it returns with an error then is
// partial: a rollback returns it to the source, and a cancel, a shutdown and a lost
// lease keep it in the history (handoff result --late).
type Handler interface {
	Handle(ctx context.Context, h Handoff) (protocol.Result, error)
}

// HandlerFunc is a function that is a Handler.
type HandlerFunc func(ctx context.Context, h Handoff) (protocol.Result, error)

// Handle calls f.
func (f HandlerFunc) Handle(ctx context.Context, h Handoff) (protocol.Result, error) {
	return f(ctx, h)
}

// Acknowledger is an optional interface of a Handler that answers an offer before
// accepting it: accepted (with an estimated completion, if it has one),
// rejected (with a reason) or conditional. It shall look, not work: the handoff
// is claimed and not accepted yet, and ctx ends after the package's acknowledge timeout (30 s by
// default), when the claim is lost, and when the worker drains. An answer that
// comes after the timeout does not count: the offer goes to another worker, uncharged.
//
// An error, a panic, or an answer that breaks the rules is a failed attempt.
// The Handoff has no Attempt and no Fence yet. A Handler that is no
// Acknowledger accepts everything.
type Acknowledger interface {
	Acknowledge(ctx context.Context, h Handoff) (protocol.Ack, error)
}

// Handoff is the argument of a handler. Its fields are the handler's own copies,
// but Raw, which it must not change. A test of a handler may make one itself:
// its reports go nowhere then.
type Handoff struct {
	Ticket  string
	Agent   string
	Attempt int    // at this agent, from 1
	Fence   uint64 // of this attempt: it grows with every attempt at the handoff

	// Package is the submitted package, with the variables of Answers laid
	// over its own. Raw is the package as it was submitted.
	Package protocol.Package
	Raw     json.RawMessage
	// Answers are the supplements given to conditions and escalations so far,
	// oldest first.
	Answers []protocol.Answer
	// Trail is the history of the handoff before it came here: refusals, questions,
	// escalations, failures. Empty for most.
	Trail []protocol.TrailEntry
	// Returns are the ends of the children that it has waited for (Await), in
	// the order in which they were handed off.
	Returns []protocol.Return

	// Trace is the span of this attempt (W3C Trace Context), for programs and
	// services that trace themselves. The handler's context has it too: a
	// handoff submitted under it is in the same trace (broker.TraceFrom, telemetry.Extract).
	Trace protocol.TraceContext

	// Log writes with the ticket and the attempt on every line.
	Log *slog.Logger

	r *run // nil in a Handoff that a test has made
}

// State is the handoff as the worker last saw it: at the claim, or at the
// latest beat or report.
func (h Handoff) State() protocol.State {
	if h.r == nil {
		return protocol.State{Ticket: h.Ticket, Agent: h.Agent, Attempt: h.Attempt, Fence: h.Fence}
	}
	return *h.r.lastState()
}

// lease returns the lease for a program; empty if there is none.
func (h Handoff) lease() string {
	if h.r == nil || !h.r.accepted.Load() {
		return ""
	}
	return h.r.held.Lease
}

// Progress reports from within the work. It blocks until the ledger has the
// report, or ctx ends. broker.ErrLeaseLost: the handoff is another worker's by
// now; the handler's context is cancelled then too. Each report is an append
// to the ledger: a few a minute are fine, hundreds are not.
func (h Handoff) Progress(ctx context.Context, progress protocol.Progress) error {
	return h.say("progress", func(r *run) (protocol.State, error) {
		state, err := r.w.session.Progress(ctx, r.held.Lease, progress)
		if err == nil {
			r.progressed.Store(&progress)
		}
		return state, err
	})
}

// Spent reports the usage of this attempt so far: tokens, cost, calls of models. It is
// cumulative: a report that is no more than the one before changes nothing. Like Progress it is an
// append to the ledger, and blocks; the usage in the result needs no report of its own.
func (h Handoff) Spent(ctx context.Context, usage protocol.Usage) error {
	return h.say("usage", func(r *run) (protocol.State, error) { return r.w.session.Spend(ctx, r.held.Lease, usage) })
}

// Decide records a decision that the handler makes by itself: the history has it, and the
// handoffs that continue this one get it in context.decisions. Over the risk that the agent and the
// package allow, the error is a *protocol.Error with the code autonomy_exceeded: then Escalate.
func (h Handoff) Decide(ctx context.Context, decision protocol.WorkDecision) error {
	return h.say("decision", func(r *run) (protocol.State, error) { return r.w.session.Decide(ctx, r.held.Lease, decision) })
}

// Extend asks for more time for the work, with a reason: by this much, but never past
// the return's clock and the deadline. It is granted once in an attempt; a
// *protocol.Error has the reason of a refusal. Limit returns the new time, and Reminded is
// another channel after it.
func (h Handoff) Extend(ctx context.Context, by time.Duration, reason string) error {
	return h.say("extend_ms", func(r *run) (protocol.State, error) {
		beat, err := r.w.session.Heartbeat(ctx, api.Heartbeat{Lease: r.held.Lease, Extend: by, Reason: reason})
		if err == nil {
			r.reminder.reset() // the holder is reminded anew
		}
		return beat.State, err
	})
}

// say reports a fact from within the work. It cancels the handler on a requested end, which is seen
// sooner than by the next beat.
func (h Handoff) say(field string, report func(*run) (protocol.State, error)) error {
	if h.r == nil {
		return nil
	}
	if !h.r.accepted.Load() {
		return protocol.Errorf(protocol.CodeIllegal, field, "the handoff is not accepted yet")
	}
	err := h.r.seen(report(h.r))
	switch {
	case errors.Is(err, broker.ErrLeaseLost):
		h.r.cancel(err)
	case err == nil:
		s := h.r.lastState()
		h.r.cancelIfRequested(s.CancelRequested, s.CancelReturn)
	}
	return err
}

// Reminded is closed once most of the time to the Limit (80 % by default) is used
// up: time to come to an end, to ask for more (Extend), or for help.
func (h Handoff) Reminded() <-chan struct{} {
	if h.r == nil {
		return nil
	}
	return h.r.reminder.channel(*h.r.lastState(), h.r.acceptedAt)
}

// Limit is when the first clock runs out that takes this attempt away, and which one
// it is: work, return or deadline; zero if the handoff is not accepted yet. The
// handler's context does not end by itself then: the core takes the handoff away,
// and the next beat reports it.
func (h Handoff) Limit() (time.Time, protocol.Clock) {
	s := h.State()
	if s.Fence == 0 {
		return time.Time{}, ""
	}
	return lifecycle.Limit(s)
}

// ProgressDeadline returns when the progress timeout runs out, counted from the last Progress
// or the acceptance. It is zero without such a timeout, which is the default, and before the
// acceptance. A handler that lets it pass loses the handoff like
// one that lets its Limit pass, however alive its worker is.
func (h Handoff) ProgressDeadline() time.Time {
	s := h.State()
	if s.Fence == 0 || s.AcceptedAt.IsZero() || s.Policy.ProgressTimeoutMS <= 0 {
		return time.Time{}
	}
	since := s.AcceptedAt
	if s.ProgressAt.After(since) {
		since = s.ProgressAt
	}
	return since.Add(millis(s.Policy.ProgressTimeoutMS))
}

// Deadline is when the handoff as a whole runs out.
func (h Handoff) Deadline() time.Time { return h.State().Deadline }

func (h Handoff) logger() *slog.Logger {
	if h.Log == nil {
		return slog.New(slog.DiscardHandler)
	}
	return h.Log
}

func millis(ms int64) time.Duration { return time.Duration(ms) * time.Millisecond }

// decode reads a package and lays the answers' variables over its own, the
// later over the earlier.
func decode(raw json.RawMessage, answers []protocol.Answer) (protocol.Package, error) {
	pkg, err := protocol.DecodePackage(raw)
	if err != nil {
		return pkg, fmt.Errorf("package cannot be read: %w", err)
	}
	pkg.Supplement(answers)
	return pkg, nil
}

// Context returns the whole context, also where the package went by reference
// (protocol.TransferReference). It takes a read of the engine for each 64 messages. The error is
// a *protocol.Error with CodeNotFound if the referenced context no longer exists.
func (h Handoff) Context(ctx context.Context) (protocol.Context, error) {
	if _, ours := protocol.ParseContextURL(h.Package.Context.ContextURL); !ours || h.r == nil {
		return h.Package.Context, nil
	}
	return h.r.w.session.Context(ctx, h.Ticket)
}
