package worker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/agenthandoff/handoff/api"
	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/protocol"
)

// HandOff hands off work from within the work, and returns the ticket of the new
// handoff. Source and parent of pkg are filled in, and the parts that it inherits from
// this handoff (protocol.Package.Inherit). A *protocol.Error names the fault of the
// package, and nothing was handed off then.
//
// It is recorded and submitted before HandOff returns. A sequential one passes ownership, so it
// begins when this handoff completes. If the attempt ends in any other way, it is dropped. A
// delegation, a broadcast (several agents, or members) and an escalation begin at once.
// Await, or Wait, is how their end gets here. A return that is expected comes
// into this agent's queue as well, as a handoff of its own whose package has
// Returned set. If return.wait is block, it does so only where this handoff closes without
// having got the end among its Returns.
//
// A handler that runs again, in a further attempt or after an Await, hands off
// nothing twice if it makes the same calls: a call for an equal package gets the ticket
// that it had, and nothing is sent. Of equal ones their number counts. A call that is not the same is a
// new handoff; with a key, the key alone identifies it, and another package under it is refused.
//
// It blocks until the ledger has it, or ctx ends. It may be called from several
// goroutines; then the order is theirs to keep.
func (h Handoff) HandOff(ctx context.Context, pkg protocol.Package) (ticket string, err error) {
	if h.r == nil {
		return protocol.NewTicket(), nil
	}
	return h.r.handOff(ctx, pkg)
}

// Continue makes a sequential package to an agent that continues the work of this
// handoff: variables and artifacts in full, the conversation by its
// transfer mode, and all else that protocol.Continue takes along. The handler may
// change it before it hands it off: describe the next task, above all, and
// set the variables that its own work has changed.
func (h Handoff) Continue(to string) protocol.Package {
	name, err := json.Marshal(to)
	if err != nil { // of a text, which cannot fail
		name = nil
	}
	pkg := protocol.Package{Reason: "handed on by " + h.Agent, Task: h.Package.Task}
	result := protocol.Result{Command: &protocol.Command{Goto: name}}
	// HandOff refuses a target that cannot be followed, such as this agent itself, and
	// names the field.
	own := h.Package
	own.Context.AddDecisions(h.State().Decisions)
	if next, err := protocol.Continue(own, h.Agent, h.Ticket, result); err == nil && len(next) == 1 {
		pkg = next[0]
	}
	pkg.Type, pkg.Source, pkg.Parent, pkg.Target = protocol.Sequential, h.Agent, h.Ticket, protocol.Target{Agent: to}
	cloneContext(&pkg.Context)
	return pkg
}

// cloneContext gives a context maps and lists of its own, so that a handler that changes
// a package for a child does not change its own.
func cloneContext(c *protocol.Context) {
	if c.Variables = maps.Clone(c.Variables); c.Variables == nil {
		c.Variables = map[string]json.RawMessage{}
	}
	c.Metrics, c.Metadata = maps.Clone(c.Metrics), maps.Clone(c.Metadata)
	c.IntermediateResults = maps.Clone(c.IntermediateResults)
	c.Artifacts.ByName, c.Artifacts.List = maps.Clone(c.Artifacts.ByName), slices.Clone(c.Artifacts.List)
	c.CompletedSteps, c.RemainingSteps = slices.Clone(c.CompletedSteps), slices.Clone(c.RemainingSteps)
	c.KeyPoints, c.Decisions = slices.Clone(c.KeyPoints), slices.Clone(c.Decisions)
	c.ConversationHistory, c.RelevantFiles = slices.Clone(c.ConversationHistory), slices.Clone(c.RelevantFiles)
	c.FilesInProgress = slices.Clone(c.FilesInProgress)
	c.Constraints, c.WhenStuck = slices.Clone(c.Constraints), slices.Clone(c.WhenStuck)
}

// Return finds the return of a handoff among Returns.
func (h Handoff) Return(ticket string) (protocol.Return, bool) {
	i := slices.IndexFunc(h.Returns, func(r protocol.Return) bool { return r.HandoffID == ticket })
	if i < 0 {
		return protocol.Return{}, false
	}
	return h.Returns[i], true
}

// Wait blocks until a handoff has ended and returns its end, as a return has it: that of its
// chain, where its agent handed it on. It is for handlers that cannot well begin again, and it has a price that Await
// does not have: the slot stays taken, the work time runs on, and it survives
// nothing. When the worker ends or loses its lease, the wait is over, with the
// cause of the handler's context as its error; the child goes on, and
// the next attempt finds it by handing off the same again.
func (h Handoff) Wait(ctx context.Context, ticket string) (protocol.Return, error) {
	if h.r == nil {
		return protocol.Return{}, errors.New("a handoff that a test has made cannot wait")
	}
	if beginsAfter(h.r.lastState(), ticket) {
		return protocol.Return{}, beginsAfterError(ticket)
	}
	return h.r.wait(ctx, ticket)
}

func (r *run) wait(ctx context.Context, ticket string) (ret protocol.Return, err error) {
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	defer context.AfterFunc(r.ctx, func() { end(context.Cause(r.ctx)) })()
	err = r.w.retry(ctx, "wait for a return", func(ctx context.Context) error {
		if _, err = r.w.session.Wait(ctx, ticket, api.UntilEnded); err == nil {
			ret, err = r.w.session.Return(ctx, ticket)
		}
		return err
	})
	if cause := context.Cause(ctx); err != nil && cause != nil {
		err = fmt.Errorf("wait for %s: %w", ticket, cause)
	}
	return ret, err
}

// beginsAfter reports whether a child begins when the handoff completes.
func beginsAfter(s *protocol.State, ticket string) bool {
	return s.Children != nil && slices.ContainsFunc(s.Children.After.Numbers(), func(n int) bool { return s.ChildTicket(n) == ticket })
}

func beginsAfterError(ticket string) error {
	return protocol.Errorf(protocol.CodeIllegal, "ticket", "%s begins with the result, and cannot be waited for: a delegation can", ticket)
}

// childCalls keeps the children that one run of the handler hands off.
type childCalls struct {
	mu    sync.Mutex
	equal map[string]int // how many calls there were, by the package as it was written
}

// count counts a call, and returns which one of equal calls it is.
func (o *childCalls) count(written string) int {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.equal == nil {
		o.equal = map[string]int{}
	}
	o.equal[written]++
	return o.equal[written]
}

// undo takes back the last of equal calls, which came to nothing.
func (o *childCalls) undo(written string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.equal[written]--
}

func (r *run) handOff(ctx context.Context, pkg protocol.Package) (ticket string, err error) {
	if !r.accepted.Load() {
		return "", protocol.Errorf(protocol.CodeIllegal, "handoff", "%s is not accepted yet, nothing can follow from it", r.lastState().Ticket)
	}
	key, err := protocol.ChildKeyOf(pkg)
	if err != nil {
		return "", err
	}
	request := api.HandOff{Lease: r.held.Lease, Nth: r.calls.count(key.Written), Package: pkg}
	err = r.w.retry(ctx, "hand off", func(ctx context.Context) error {
		child, err := r.w.session.HandOff(ctx, request)
		ticket = child.Ticket
		return r.seen(child.Parent, err)
	})
	if err != nil {
		r.calls.undo(key.Written)
		if errors.Is(err, broker.ErrLeaseLost) {
			r.cancel(err)
		}
		return "", err
	}
	s := r.lastState()
	r.log.Info("handed off", "child", ticket, "type", pkg.Type, "begins_with_the_result", beginsAfter(s, ticket))
	return ticket, nil
}

// readReturns takes the ends of the children of earlier runs of the handler, which come with the
// claim, or reads them where they did not.
func (r *run) readReturns(h *Handoff) error {
	h.Returns = r.held.Returns
	s := r.lastState() // as of the acceptance
	if s.Children == nil || s.Children.Received == "" || len(h.Returns) > 0 {
		return nil
	}
	for _, n := range s.Children.Received.Numbers() {
		err := r.w.retry(r.ctx, "read what came back", withTimeout(fetchTimeout, func(ctx context.Context) error {
			ret, err := r.w.session.Return(ctx, s.ChildTicket(n))
			if err == nil {
				h.Returns = append(h.Returns, ret)
			}
			return err
		}))
		if err != nil {
			return err
		}
	}
	return nil
}

// Lock keeps other handoffs of the workflow from paths, and waits for them as long as wait. A path
// with a slash at its end covers the paths below it. The locks go with this attempt, or by Unlock.
// Lock returns a number that rises with each grant of the workspace. A *protocol.Error has the
// reason of a refusal: lock_busy, or deadlock.
func (h Handoff) Lock(ctx context.Context, wait time.Duration, paths ...string) (seq uint64, err error) {
	err = h.share("locks", func(r *run) (err error) {
		seq, err = r.w.session.Lock(ctx, api.Lock{Lease: r.held.Lease, Paths: lockPaths(paths), Wait: wait})
		return err
	})
	return seq, err
}

// Unlock releases the locks on paths; no path releases all.
func (h Handoff) Unlock(ctx context.Context, paths ...string) error {
	return h.share("locks", func(r *run) error { return r.seen(r.w.session.Unlock(ctx, r.held.Lease, lockPaths(paths))) })
}

// Workspace reads the workspace that the handoffs of the workflow share.
func (h Handoff) Workspace(ctx context.Context) (w protocol.Workspace, err error) {
	err = h.share("workspace", func(r *run) (err error) {
		w, err = r.w.session.HeldWorkspace(ctx, r.held.Lease)
		return err
	})
	return w, err
}

// SetVariables sets variables of the workflow, all of them or none. Where ifVersion is not nil each
// has to have that version; else the error has CodeConflict and names the current value.
func (h Handoff) SetVariables(ctx context.Context, values map[string]json.RawMessage, ifVersion *int) error {
	return h.share("variables", func(r *run) error {
		_, err := r.w.session.SetVariables(ctx, r.held.Lease, api.SetVariables{Values: values, IfVersion: ifVersion})
		return err
	})
}

// share does something in the workspace of the handoff.
func (h Handoff) share(field string, do func(*run) error) error {
	if h.r == nil {
		return protocol.Errorf(protocol.CodeForbidden, field, "%s has no part in a workflow that was opened", h.Ticket)
	}
	if !h.r.accepted.Load() {
		return protocol.Errorf(protocol.CodeIllegal, field, "the handoff is not accepted yet")
	}
	err := lost(do(h.r))
	if errors.Is(err, broker.ErrLeaseLost) {
		h.r.cancel(err)
	}
	return err
}

func lockPaths(paths []string) (locks []protocol.LockPath) {
	for _, path := range paths {
		locks = append(locks, protocol.LockPath{Path: path})
	}
	return locks
}
