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

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/protocol"
)

// HandOff hands off work from within the work, and returns the ticket of the new
// handoff. Source and parent of pkg are filled in, and what it takes over from this
// handoff (protocol.Package.Inherit); a key is left out: the ticket is derived from
// the parent and an ordinal. A *protocol.Error says what is wrong
// with the package, and nothing was handed off then.
//
// When it happens depends on the type. A sequential one passes ownership, so it
// goes with the result: it is checked at once, recorded in the append that
// completes this handoff and submitted from there. Where the attempt ends in any
// other way, nothing was handed off. A delegation, a broadcast (several agents, or
// members) and an escalation are recorded and submitted before HandOff returns.
// Await, or Wait, is how their end gets here. A return that is expected comes
// into this agent's queue beside that, as a handoff of its own whose package has
// Returned set. If return.wait is block, it does so only where this handoff closes without
// having got the end among its Returns.
//
// A handler that runs again, in a further attempt or after an Await, hands off
// nothing twice if it makes the same calls: a call for a package of the same type
// and target as one that this agent has handed off before gets the ticket of
// that, in the order of the calls, and nothing is sent, whatever else pkg says. A
// call that is not the same is a new handoff.
//
// It blocks until the ledger has it, or ctx ends. It may be called from several
// goroutines; then the order is theirs to keep.
func (h Handoff) HandOff(ctx context.Context, pkg protocol.Package) (ticket string, err error) {
	if h.r == nil {
		return protocol.NewTicket(), nil
	}
	return h.r.handOff(ctx, h.calls, pkg)
}

// Continue makes a sequential package to an agent that carries on what this
// handoff is about: variables and artifacts in full, the conversation by its
// transfer mode, and what else protocol.Continue takes along. The handler may
// change it before it hands it off: say what is to be done next, above all, and
// set the variables that its own work has changed.
func (h Handoff) Continue(to string) protocol.Package {
	name, err := json.Marshal(to)
	if err != nil { // of a text, which cannot fail
		name = nil
	}
	pkg := protocol.Package{Reason: "handed on by " + h.Agent, Task: h.Package.Task}
	result := protocol.Result{Command: &protocol.Command{Goto: name}}
	// What cannot be followed, an agent that is this one for instance, HandOff
	// refuses with a word on the field.
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
// what goes on does not change what it was given.
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
// cause of the handler's context as its error; what was handed off goes on, and
// the next attempt finds it by handing off the same again.
func (h Handoff) Wait(ctx context.Context, ticket string) (protocol.Return, error) {
	if h.r == nil {
		return protocol.Return{}, errors.New("a handoff that a test has made cannot wait")
	}
	if h.calls.goesWithResult(ticket) {
		return protocol.Return{}, withResultError(ticket)
	}
	return h.r.wait(ctx, ticket)
}

func (r *run) wait(ctx context.Context, ticket string) (ret protocol.Return, err error) {
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	defer context.AfterFunc(r.ctx, func() { end(context.Cause(r.ctx)) })()
	err = r.w.retry(ctx, "wait for a return", func(ctx context.Context) error {
		ret, err = r.w.transport.End(ctx, ticket)
		return err
	})
	if cause := context.Cause(ctx); err != nil && cause != nil {
		err = fmt.Errorf("wait for %s: %w", ticket, cause)
	}
	return ret, err
}

func withResultError(ticket string) error {
	return protocol.Errorf(protocol.CodeIllegal, "ticket", "%s is handed off with the result, and cannot be waited for: a delegation can", ticket)
}

// childCalls keeps the ordinals of what one run of the handler hands off.
type childCalls struct {
	parent string

	mu         sync.Mutex
	used       map[int]bool
	earlier    []*earlierChild // by this agent, in earlier runs of the handler
	withResult []broker.Child  // sequential ones, which go with the result
}

// earlierChild is a handoff that stands in the ledger, and what a call is compared with.
type earlierChild struct {
	n       int
	kind    protocol.Type
	target  string
	matched bool // this run has made the same call
}

func newChildCalls(parent string) *childCalls {
	return &childCalls{parent: parent}
}

// addEarlier takes in what was handed off before. Only what this agent did counts as
// the same: another one that had the handoff meant other work.
func (o *childCalls) addEarlier(children []broker.HandedOff, agent string) {
	for _, child := range children {
		o.use(child.N)
		if child.By == agent {
			o.earlier = append(o.earlier, &earlierChild{n: child.N, kind: child.Type, target: child.Target})
		}
	}
}

// use marks an ordinal as used. The first makes the map: most handlers hand off nothing.
func (o *childCalls) use(n int) {
	if o.used == nil {
		o.used = map[int]bool{}
	}
	o.used[n] = true
}

// reserve finds the ordinal of a call: that of the same call made before, else
// the lowest that is free. undo takes that back, for a call that came to nothing.
func (o *childCalls) reserve(kind protocol.Type, target string) (n int, undo func()) {
	o.mu.Lock()
	defer o.mu.Unlock()
	// A sequential one that the ledger has closed its parent with it.
	if kind != protocol.Sequential {
		for _, m := range o.earlier {
			if !m.matched && m.kind == kind && m.target == target {
				m.matched = true
				return m.n, func() {
					o.mu.Lock()
					defer o.mu.Unlock()
					m.matched = false
				}
			}
		}
	}
	for o.used[n] {
		n++
	}
	o.use(n)
	return n, func() {
		o.mu.Lock()
		defer o.mu.Unlock()
		delete(o.used, n)
	}
}

// addToResult keeps a child for the result.
func (o *childCalls) addToResult(child broker.Child) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.withResult) == broker.HandedOffAtOnceMax {
		return protocol.Errorf(protocol.CodeTooLarge, "children", "at most %d handoffs go with one result; several agents in one package are one group", broker.HandedOffAtOnceMax)
	}
	o.withResult = append(o.withResult, child)
	return nil
}

func (o *childCalls) goesWithResult(ticket string) bool {
	return slices.ContainsFunc(o.resultChildren(), func(c broker.Child) bool { return protocol.ChildTicketN(o.parent, c.N) == ticket })
}

// resultChildren are those that go with the result.
func (o *childCalls) resultChildren() []broker.Child {
	if o == nil {
		return nil
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Clone(o.withResult)
}

func (r *run) handOff(ctx context.Context, calls *childCalls, pkg protocol.Package) (ticket string, err error) {
	claim := r.currentClaim()
	if claim == nil || calls == nil {
		return "", protocol.Errorf(protocol.CodeIllegal, "handoff", "%s is not accepted yet, nothing can follow from it", r.offer.Ticket())
	}
	call := pkg
	call.Source = r.w.cfg.Agent
	call.Normalize(time.Now())
	n, undo := calls.reserve(call.Type, call.Summarize("").TargetWords())
	child := broker.Child{N: n, Package: pkg}
	ticket = protocol.ChildTicketN(r.offer.Ticket(), n)
	err = r.w.retry(ctx, "hand off", func(ctx context.Context) (err error) {
		if call.Type == protocol.Sequential {
			return claim.CheckChild(ctx, child)
		}
		_, err = claim.HandOff(ctx, child)
		return err
	})
	if err == nil && call.Type == protocol.Sequential {
		err = calls.addToResult(child)
	}
	if err != nil {
		undo()
		if errors.Is(err, broker.ErrLeaseLost) {
			r.cancel(err)
		}
		return "", err
	}
	r.refreshState(claim)
	r.log.Info("handed off", "child", ticket, "type", call.Type, "with_the_result", call.Type == protocol.Sequential)
	return ticket, nil
}

// readChildren reads what earlier runs of the handler have handed off, and how that
// ended. Most handoffs have none of it and cost no read.
func (r *run) readChildren(h *Handoff, claim Claim) error {
	h.calls, h.Returns = newChildCalls(r.offer.Ticket()), nil
	s := r.lastState() // as of the acceptance, or of the suspension that failed
	if s.Children == nil || s.Children.Made == "" {
		return nil
	}
	return r.w.retry(r.ctx, "read what was handed off", withTimeout(fetchTimeout, func(ctx context.Context) (err error) {
		if h.Returns, err = claim.Returns(ctx); err != nil {
			return err
		}
		all, err := claim.HandedOff(ctx)
		if err != nil {
			return err
		}
		h.calls = newChildCalls(r.offer.Ticket())
		h.calls.addEarlier(all, h.Agent)
		return nil
	}))
}
