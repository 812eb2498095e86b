package broker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/agenthandoff/handoff/internal/lifecycle"
	"github.com/agenthandoff/handoff/protocol"
)

// completeAwaiting hands off the children that a result waits for, and suspends this handoff until
// they have ended. One append records both, so a holder that dies leaves either all of it or
// nothing. Children that an earlier attempt handed off are adopted. The rest of the result is kept
// in two cases only: a limit or a rule refuses the children, or the claim already brought the ends
// of all of them. Then the handoff waits for nothing, and the result closes it.
func (c *Claim) completeAwaiting(ctx context.Context, result protocol.Result, children []Child) error {
	handOffs, adopted, err := c.awaitedByResult(ctx, result, children)
	if usage := validUsage(result.Usage); err == nil && usage != nil {
		err = c.spend(ctx, *usage, protocol.UsageResult)
	}
	if err == nil {
		waits := false
		if waits, err = c.await(ctx, wantSourceIfCancelled, handOffs, adopted, nil); err == nil && !waits {
			if result.SaysMore() {
				result.Command, result.Usage = nil, nil // already counted
				return c.Complete(ctx, result)
			}
			err = protocol.Errorf(protocol.CodeConflict, "command.await", "the claim already brought the returns of all entries; an entry with a new key is submitted again")
		}
	}
	var refused *protocol.Error
	if errors.As(err, &refused) && lifecycle.Bars(refused.Code) && !slices.ContainsFunc(handOffs, func(h handedOff) bool { return h.next.FailBarred }) {
		result.Command, result.Usage = nil, nil // already counted
		if kept, _, unusable := c.completion(ctx, result, nil); unusable == nil {
			if err = c.shareResult(ctx, result.Variables); err == nil {
				_, err = c.await(ctx, wantSourceIfReturned, handOffs, adopted, &kept)
			}
		}
	}
	if err != nil {
		return c.failRefused(ctx, result, err)
	}
	if !c.lastHead().State.Closed { // otherwise its end had been requested
		c.submitChildren(ctx, handOffs)
	}
	return c.finish(ctx, nil)
}

// await appends the suspension of a handoff whose result waits. If an earlier append was stored and
// only its answer was lost, await finds it. It reports false if there is nothing to wait for.
func (c *Claim) await(ctx context.Context, want wanted, handOffs []handedOff, adopted []int, kept *protocol.Completed) (waits bool, err error) {
	err = c.reportWork(ctx, want, func(s protocol.State, q lifecycle.Query) (lifecycle.Step, error) {
		step, err := lifecycle.Await(s, q, c.Holder.ID, nextOf(handOffs), adopted, kept)
		waits = len(step.Events) > 0
		asRecorded(handOffs, step)
		return step, err
	})
	if !errors.Is(err, ErrLeaseLost) {
		return waits, err
	}
	there, failure := c.reported(ctx, func(e protocol.Event) uint64 {
		switch e := e.(type) {
		case *protocol.Suspended:
			return e.Fence
		case *protocol.Completed:
			return e.Fence
		}
		return 0
	})
	if !there {
		return false, errors.Join(err, failure)
	}
	return true, nil
}

// awaitedByResult prepares the children that a result waits for, and finds those that an earlier
// attempt handed off.
func (c *Claim) awaitedByResult(ctx context.Context, result protocol.Result, children []Child) (all []handedOff, adopted []int, err error) {
	result.Normalize()
	if err := result.Validate(); err != nil {
		return nil, nil, err
	}
	if len(children) > 0 {
		return nil, nil, protocol.Errorf(protocol.CodeConflict, "command.await", "does not go with what begins with the result: a result that waits is no end")
	}
	own, err := c.ownPackage()
	if err != nil {
		return nil, nil, err
	}
	packages, err := protocol.Await(own, c.Agent, result)
	if err != nil {
		return nil, nil, err
	}
	s, free, cells, given := c.State(), 0, []string(nil), map[string]string{}
	if s.Children != nil {
		free = s.Children.Count
	}
	for i, pkg := range packages {
		key, err := protocol.ChildKeyOf(pkg)
		if err != nil {
			return nil, nil, err
		}
		if written, twice := given[key.Given]; twice && written == key.Written {
			continue
		} else if twice {
			return nil, nil, protocol.Errorf(protocol.CodeConflict, fmt.Sprintf("command.await[%d].key", i), "another entry has the key %q", key.Given)
		}
		if key.Given != "" {
			given[key.Given] = key.Written
		}
		n, cell, made := lifecycle.FindChild(s, key, cells...)
		cells = append(cells, cell)
		if made {
			if err := c.checkSameKey(ctx, n, key); err != nil {
				return nil, nil, err
			}
			adopted = append(adopted, n)
			continue
		}
		if err := c.respell(ctx, "command.await", &pkg); err != nil {
			return nil, nil, unfollowable(err)
		}
		next, err := c.prepareChild(ctx, keyed{Child: Child{N: free, Package: pkg}, key: key, cell: cell}, awaited)
		if err != nil {
			return nil, nil, unfollowable(err)
		}
		all, free = append(all, next), free+1
	}
	return all, adopted, boundHandOffs(ctx, c.b, all)
}

// asRecorded copies into children the events by which a step records them, with the limits that they
// get.
func asRecorded(all []handedOff, step lifecycle.Step) {
	for _, e := range step.Events {
		e, ok := e.(*protocol.HandedOff)
		if !ok {
			continue
		}
		for i := range all {
			if all[i].next.N == e.N {
				all[i].next.HandedOff = *e
			}
		}
	}
}

// nextOf returns the children in the form that the core records.
func nextOf(all []handedOff) []lifecycle.Next {
	next := make([]lifecycle.Next, len(all))
	for i, made := range all {
		next[i] = made.next
	}
	return next
}

const (
	// waitPause is the pause between two tries to reach an engine that is not set up yet.
	waitPause = time.Second
	// waitSilent is the wait before the first log line, waitEvery the time between further ones.
	waitSilent = 2 * time.Second
	waitEvery  = time.Minute
)

// WaitForEngine calls open until it succeeds, ctx ends, or open fails for a reason that waiting
// does not change. It waits while no server answers, and while the server lacks the streams. It
// logs the wait after 2 s, and then every minute. where names the engine.
func WaitForEngine(ctx context.Context, log *slog.Logger, where string, open func(context.Context) error) error {
	log = cmp.Or(log, slog.New(slog.DiscardHandler))
	began := time.Now()
	var mu sync.Mutex
	var last error
	told, over := false, make(chan struct{})
	var telling sync.WaitGroup
	telling.Go(func() {
		next := time.NewTimer(waitSilent)
		defer next.Stop()
		for {
			select {
			case <-over:
				return
			case <-next.C:
			}
			mu.Lock()
			told = true
			log.Warn("waiting for the engine", "at", where, "for", time.Since(began).Round(time.Second), "err", last)
			mu.Unlock()
			next.Reset(waitEvery)
		}
	})
	defer telling.Wait()
	defer close(over)
	for {
		err := open(ctx)
		mu.Lock()
		last = err
		answered := told && err == nil
		mu.Unlock()
		switch {
		case answered:
			log.Info("the engine answers", "at", where, "after", time.Since(began).Round(time.Second))
			return nil
		case err == nil || !isTransient(err) && ctx.Err() == nil:
			return err
		}
		if err := pauseFor(ctx, waitPause); err != nil {
			return err
		}
	}
}

// isTransient reports whether the engine may still come up; a refusal is not transient.
func isTransient(err error) bool {
	return errors.As(err, new(*SilenceError)) || errors.Is(err, ErrNoTopology)
}

// WaitersOf reads the handoffs that may wait, directly or not, for the end of a handoff: its group,
// the first of its chain, its parent, and theirs. keepsSlot reports whether one keeps its slot
// meanwhile; a handoff that waits by its result does not. read is Broker.Head.
func WaitersOf(ctx context.Context, read func(ctx context.Context, ticket string, min uint64) (Head, error), s protocol.State) (waiters []protocol.State, keepsSlot bool, err error) {
	for {
		ticket, waited := lifecycle.WaitedBy(s)
		if !waited {
			return waiters, keepsSlot, nil
		}
		next, err := read(ctx, ticket, 0)
		switch {
		case errors.Is(err, ErrNotFound) || Unreadable(err):
			return waiters, keepsSlot, nil
		case err != nil:
			return nil, false, err
		}
		keepsSlot = keepsSlot || lifecycle.KeepsSlotFor(next.State, s)
		waiters, s = append(waiters, next.State), next.State
	}
}
