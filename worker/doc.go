// Package worker runs the work of one agent: it claims handoffs, calls a handler, and reports.
// A Go program embeds it:
//
//	err := worker.Run(ctx, api.Direct(b, "reviewer"), "reviewer", worker.HandlerFunc(
//		func(ctx context.Context, h worker.Handoff) (protocol.Result, error) {
//			return protocol.ResultFromOutput([]byte("looks good")), nil
//		})) // returns when ctx has ended and the drain is over
//
// Typed makes a handler of a function with types of its own. New takes a Config.
//
// Any other program becomes a worker through Exec, which runs a command for
// each handoff. A worker that may not reach the engine itself acts by the session of a gateway's
// client.
//
// # Choices of a handler
//
// It returns a result, or an error for another outcome: a failure (plain,
// Permanent, RetryAfter), a refusal (Reject, NeedContext, NeedPermission, Defer),
// a word to an authority or from one (Escalate, AnswerEscalation), a rollback
// (RollBack), or that the worker is unfit (Stop). On the way it may report its
// Progress and hand off work (Handoff.HandOff): to a successor, which begins with the result;
// or to others whose work it needs, for which it waits without a slot (Await) or
// within it (Handoff.Wait). A handler that is also an Acknowledger answers offers
// before it has them, and one that is a Cleaner removes its remains.
//
// # Guarantees
//
// A worker appends facts and decides nothing: whether a failed handoff is tried
// again, and where, is the core's decision. It guarantees:
//
//   - It never claims more handoffs than it has free slots.
//   - The engine hears from it before its first claim and until its drain is over.
//   - A handler whose handoff was taken away, or is to be cancelled or returned, or
//     whose worker could not confirm its presence for a whole lease, finds its
//     context cancelled; context.Cause names the reason (broker.ErrLeaseLost,
//     ErrCancelled, ErrReturned, ErrShutdown). A report after the lease was lost
//     changes nothing: the ledger refuses it by its fence. Its result is logged and kept
//     in the history, and a handoff whose attempts have run out may use it (policy
//     late_result).
//   - A child is handed off once, however often its handler is run: see
//     Handoff.HandOff.
//   - A handler that panics has failed an attempt, and the worker lives on.
//   - When Run's context ends, offers that were not acknowledged go back at once,
//     handlers have Config.DrainTimeout to finish, and unfinished handoffs are
//     released without charging an attempt. A worker that vanishes instead has
//     used up one. Handlers that ignore their context are left behind in the end
//     (Config.AbandonTimeout, ErrAbandoned).
//
// It cannot guarantee that a handler ran only once: a worker may die
// between its work and its report. Handlers with effects outside should use
// the ticket as their idempotency key.
//
// # Absence of the engine
//
// A worker may start before its engine: broker.WaitForEngine waits for it.
// Every wait for the engine backs off and is unbounded. The work goes on while
// the lease holds locally, counted from the sending of the last beat that the
// engine confirmed. A report that finds no engine is repeated for up to
// ten minutes, since its fence makes a late one harmless; the slot stays
// taken meanwhile.
package worker
