package jetstream

import (
	"context"
	"fmt"
	"time"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/protocol"
)

// sweep takes what is there for a pull whose first offer has that many before
// it. Where it can guess that there is nothing it asks nothing. A long pull is
// likely to be followed by another one.
func (p *puller) sweep(ctx context.Context, first int64, long bool) error {
	p.mu.Lock()
	unasked := p.canGuess(first)
	p.mu.Unlock()
	if unasked {
		return nil
	}
	for seen := p.countReceived(0); ; {
		i, n := p.plan.next()
		if n == 0 {
			p.narrowTo(len(p.lanes) - 1)
			return nil
		}
		short, err := p.sweepLane(ctx, i, n)
		if err != nil {
			return err
		}
		seen = p.countReceived(seen) // while the lane still counts for what it brought
		p.plan.empty[i] = short
		if short && (long || p.plan.moreUrgent(i)) {
			// It goes on with another lane, and may never come to wait.
			if err := p.leaveRequest(i); err != nil {
				return err
			}
		}
	}
}

// canGuess makes the plan of a sweep, and tells whether none is needed: all
// lanes but one have a request standing, and that one was left empty by its last
// offer. Those that come before it in the order may be taken meanwhile. The
// caller has p.mu.
func (p *puller) canGuess(first int64) bool {
	p.endGuess()
	p.plan.reset(first, p.want)
	unknown, at := 0, 0
	for i := range p.lanes {
		p.plan.empty[i] = p.isAlive(&p.lanes[i])
		if !p.plan.empty[i] {
			unknown, at = unknown+1, i
		}
	}
	if unknown == 0 {
		p.takes = allLanes
		return true
	}
	if unknown > 1 || !p.lanes[at].drained || p.lanes[at].status != "" {
		p.takes = [4]bool{true} // the most urgent are always welcome
		return false
	}
	p.guess, p.takes = at, [4]bool{}
	for _, lane := range broker.LaneOrder(first) {
		i := laneIndex(lane)
		p.takes[i] = true
		if i == at {
			break
		}
	}
	return true
}

// endGuess gives up a guess that was not confirmed.
func (p *puller) endGuess() {
	for _, d := range p.held {
		p.releaseDelivery(d)
	}
	p.guess, p.probe, p.held = -1, 0, nil
}

// countReceived notes in the plan what has come, but for the first offers seen before.
func (p *puller) countReceived(seen int) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, d := range p.got[seen:] {
		p.plan.received(laneIndex(d.Key().Lane))
	}
	return len(p.got)
}

// narrowTo has offers of less urgent lanes than this one released from now on.
func (p *puller) narrowTo(least int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range p.takes {
		p.takes[i] = i <= least
	}
}

// leaveRequest leaves a request standing at a lane that was found empty.
func (p *puller) leaveRequest(i int) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.send(i, 1, false, standing)
}

// sweepLane takes up to n of what one lane has now. It tells whether the lane
// had less than that.
func (p *puller) sweepLane(ctx context.Context, i, n int) (short bool, err error) {
	p.narrowTo(i)
	p.mu.Lock()
	lane := &p.lanes[i]
	err = p.send(i, n, true, tryTimeout)
	id := lane.id
	p.mu.Unlock()
	if err != nil {
		return false, err
	}
	link := p.j.connectionChange()
	lost := time.NewTimer(tryTimeout)
	defer lost.Stop()
	for {
		p.mu.Lock()
		over, short, status := lane.id != id, lane.left > 0, lane.status
		p.mu.Unlock()
		if over {
			return short, statusError(status)
		}
		select {
		case <-p.wake:
		case <-lost.C:
			return false, fmt.Errorf("%w: no answer from lane %s in %v", broker.ErrUnreachable, protocol.Priorities[i], tryTimeout)
		case <-link:
			return false, errDisconnected
		case <-ctx.Done():
			return false, ctx.Err()
		case <-p.j.closing.Done():
			return false, broker.ErrClosed
		}
	}
}
