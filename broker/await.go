package broker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/protocol/lifecycle"
)

// completeAwaiting hands off what a result waits for, and lets go of this handoff until that
// has ended: one append records both, so that a holder that dies leaves either nothing or all of
// it. What an earlier attempt handed off of it is adopted. The rest of the result is kept only where a
// limit or a rule refuses what it waits for, and where the ends of all of it came with the claim: then
// it waits for nothing, and is the end.
func (c *Claim) completeAwaiting(ctx context.Context, result protocol.Result, children []Child) error {
	handOffs, adopted, err := c.awaitedByResult(ctx, result, children)
	if usage := validUsage(result.Usage); err == nil && usage != nil {
		err = c.spend(ctx, *usage, protocol.UsageResult)
	}
	if err == nil {
		waits := false
		if waits, err = c.await(ctx, c.b.sourceIfCancelled, handOffs, adopted, nil); err == nil && !waits {
			if result.SaysMore() {
				result.Command, result.Usage = nil, nil // it is counted
				return c.Complete(ctx, result)
			}
			err = protocol.Errorf(protocol.CodeConflict, "command.await", "the ends of all that it waits for came with the claim, as returns; with a key of its own an entry is asked for anew")
		}
	}
	var refused *protocol.Error
	if errors.As(err, &refused) && lifecycle.Bars(refused.Code) && !slices.ContainsFunc(handOffs, func(h handedOff) bool { return h.next.FailBarred }) {
		result.Command, result.Usage = nil, nil // it is counted
		if kept, _, unusable := c.completion(ctx, result, nil); unusable == nil {
			if err = c.shareResult(ctx, result.Variables); err == nil {
				_, err = c.await(ctx, c.b.sourceIfReturned, handOffs, adopted, &kept)
			}
		}
	}
	if err != nil {
		return c.failRefused(ctx, result, err)
	}
	if !c.lastHead().State.Closed { // else its end had been asked for
		c.submitChildren(ctx, handOffs)
	}
	return c.finish(ctx)
}

// await appends what the core makes of a result that waits. One that an append has stored whose answer
// did not get here is found. It reports false where there is nothing to wait for.
func (c *Claim) await(ctx context.Context, read directoryReader, handOffs []handedOff, adopted []int, kept *protocol.Completed) (waits bool, err error) {
	err = c.appendReportWith(ctx, read, func(s protocol.State, d *lifecycle.Directory, now time.Time) (lifecycle.Step, error) {
		if err := c.checkAccepted(s); err != nil {
			return lifecycle.Step{}, err
		}
		step, err := lifecycle.Await(s, d, c.Holder.ID, nextOf(handOffs), adopted, kept, now)
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

// awaitedByResult makes the children that a result waits for, and finds those that an earlier attempt
// handed off.
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

// asRecorded gives children the events that a step records them by, with what they get.
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

// nextOf are the children as the core records them.
func nextOf(all []handedOff) []lifecycle.Next {
	next := make([]lifecycle.Next, len(all))
	for i, made := range all {
		next[i] = made.next
	}
	return next
}
