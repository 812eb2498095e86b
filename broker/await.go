package broker

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/protocol/lifecycle"
)

// completeAwaiting hands off what a result waits for, and lets go of this handoff until that
// has ended: one append records both, so that a holder that dies leaves either nothing or all of
// it. The rest of the result is kept only where a limit or a rule refuses what it waits for.
func (c *Claim) completeAwaiting(ctx context.Context, result protocol.Result, children []Child) error {
	handOffs, err := c.awaitedByResult(ctx, result, children)
	if usage := validUsage(result.Usage); err == nil && usage != nil {
		err = c.spend(ctx, *usage, protocol.UsageResult)
	}
	if err == nil {
		err = c.await(ctx, c.b.sourceIfCancelled, handOffs, nil)
	}
	var refused *protocol.Error
	if errors.As(err, &refused) && lifecycle.Bars(refused.Code) && !slices.ContainsFunc(handOffs, func(h handedOff) bool { return h.next.FailBarred }) {
		result.Command, result.Usage = nil, nil // it is counted
		if kept, _, unusable := c.completion(ctx, result, nil); unusable == nil {
			if err = c.shareResult(ctx, result.Variables); err == nil {
				err = c.await(ctx, c.b.sourceIfReturned, handOffs, &kept)
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
// did not get here is found.
func (c *Claim) await(ctx context.Context, read directoryReader, handOffs []handedOff, kept *protocol.Completed) error {
	err := c.appendReportWith(ctx, read, func(s protocol.State, d *lifecycle.Directory, now time.Time) (lifecycle.Step, error) {
		if err := c.checkAccepted(s); err != nil {
			return lifecycle.Step{}, err
		}
		step, err := lifecycle.Await(s, d, c.Holder.ID, nextOf(handOffs), kept, now)
		asRecorded(handOffs, step)
		return step, err
	})
	if !errors.Is(err, ErrLeaseLost) {
		return err
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
		return errors.Join(err, failure)
	}
	return nil
}

// awaitedByResult makes the children that a result waits for, with ordinals that follow on
// those that there are.
func (c *Claim) awaitedByResult(ctx context.Context, result protocol.Result, children []Child) ([]handedOff, error) {
	result.Normalize()
	if err := result.Validate(); err != nil {
		return nil, err
	}
	if len(children) > 0 {
		return nil, protocol.Errorf(protocol.CodeConflict, "command.await", "does not go with what begins with the result: a result that waits is no end")
	}
	own, err := c.ownPackage()
	if err != nil {
		return nil, err
	}
	packages, err := protocol.Await(own, c.Agent, result)
	if err != nil {
		return nil, err
	}
	n := RoomForResult(c.lastHead().State.Children)
	all := make([]handedOff, 0, len(packages))
	for _, pkg := range packages {
		if err := c.respell(ctx, "command.await", &pkg); err != nil {
			return nil, unfollowable(err)
		}
		made, err := c.prepareChild(ctx, Child{N: n, Package: pkg}, awaited)
		if err != nil {
			return nil, unfollowable(err)
		}
		all = append(all, made)
		n++
	}
	return all, boundHandOffs(ctx, c.b, all)
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
