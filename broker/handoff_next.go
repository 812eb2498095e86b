package broker

import (
	"context"
	"time"

	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/protocol/lifecycle"
)

// HandOffNext is HandOff with an ordinal that is free. It returns a new handoff each time, also to
// callers in several processes.
func (c *Claim) HandOffNext(ctx context.Context, child Child) (ticket string, err error) {
	for {
		children := c.lastHead().State.Children
		if child.N = 0; children != nil {
			child.N = children.Count
		}
		if child.AtOnce {
			child.N = freeFrom(children, RoomForResult(children)+HandedOffAtOnceMax)
		}
		made, err := c.prepareChild(ctx, child, atOnce)
		if err != nil {
			return "", err
		}
		all, taken := []handedOff{made}, false
		err = c.appendReport(ctx, func(s protocol.State, now time.Time) (lifecycle.Step, error) {
			if err := c.checkAccepted(s); err != nil {
				return lifecycle.Step{}, err
			}
			made.next.By = c.Holder.ID
			step, err := lifecycle.HandOff(s, made.next, now)
			asRecorded(all, step)
			taken = err == nil && len(step.Events) == 0
			return step, err
		})
		switch {
		case err != nil:
			return "", c.recordBar(ctx, made.next, err)
		case !taken:
			c.submitChildren(ctx, all)
			return made.next.Ticket, nil
		}
		head, err := c.b.Head(ctx, c.Ticket, c.lastHead().Seq+1) // another process was first
		if err != nil {
			return "", err
		}
		c.setHead(&head)
	}
}

// RoomForResult is the first of as many free ordinals as one result may hand off. What a result
// waits for has them from there on, so that its tickets are known while the work goes on.
func RoomForResult(c *protocol.Children) int {
	if c == nil {
		return 0
	}
	n := 0
	for free := 0; free < HandedOffAtOnceMax; free++ {
		if c.Made.Has(n + free) {
			n, free = n+free+1, -1
		}
	}
	return n
}

// freeFrom is the first free ordinal from n on.
func freeFrom(c *protocol.Children, n int) int {
	for c != nil && c.Made.Has(n) {
		n++
	}
	return n
}
