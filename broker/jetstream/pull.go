package jetstream

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/nats-io/nats.go"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/protocol"
)

// puller takes offers from one agent's queue for one caller at a time. It has
// one inbox and at most one request at each lane's consumer, of two kinds: a
// sweep takes what is there, a standing request waits for what comes. The lanes
// are swept in the order that LaneOrder gives, but for those with a standing
// request: had they an offer, it would be here.
//
// Standing requests outlive the pull that made them, and serve the next one. An
// offer that arrives between two pulls is kept for a moment, as long as the last
// pull would have had room for it, and is released at once otherwise. So
// is one that arrives when a more urgent lane is being swept: its lane has no
// request any more then, so that it is swept when it is its turn. That is how a
// process which never waits, because one lane always has something, learns of
// the others without asking them each time: when the turn of a less urgent lane
// finds a lane empty, a request is left standing there.
//
// An offer also tells how many its lane has left. Where that was none, and all
// other lanes are known to be empty, a request is left standing at that lane
// without a sweep before it: a guess. What comes from a lane whose turn is after
// that one's is held until the engine was asked whether the guess is right.
type puller struct {
	j        *Engine
	agent    string
	inbox    string   // ends with a dot
	subjects []string // to ask, by lane
	sub      *nats.Subscription
	idle     *time.Timer
	over     *time.Timer   // the pull's
	lost     *time.Timer   // the first request's that counts as lost
	wake     chan struct{} // something came
	taken    *atomic.Int64 // offers of this agent, by all pullers of this process
	plan     lanePlan      // of the sweep under way

	mu     sync.Mutex
	want   int     // of the pull under way
	takes  [4]bool // the lanes whose offers it takes now
	got    []broker.Delivery
	guess  int               // the lane that is taken for empty; -1: none
	probe  uint64            // the request that finds out
	held   []broker.Delivery // until it has
	room   int               // between two pulls: how many may be kept
	kept   []broker.Delivery
	keep   *time.Timer // releases them
	lanes  []laneRequest
	serial uint64
	body   []byte // of the request that is sent
}

func newPuller(j *Engine, agent string) (*puller, error) {
	p := &puller{j: j, agent: agent, inbox: j.nc.NewInbox() + ".", wake: make(chan struct{}, 1),
		taken: j.takenCount(agent), lanes: make([]laneRequest, len(protocol.Priorities)), guess: -1,
		over: stoppedTimer(), lost: stoppedTimer()}
	for _, lane := range protocol.Priorities {
		p.subjects = append(p.subjects, apiPrefix+"CONSUMER.MSG.NEXT."+WorkStream+"."+laneConsumer(agent, lane))
	}
	p.keep = time.AfterFunc(time.Hour, p.releaseKept)
	p.keep.Stop()
	var err error
	if p.sub, err = j.nc.Subscribe(p.inbox+"*", p.receive); err != nil {
		return nil, fmt.Errorf("%w: %w", broker.ErrUnreachable, err)
	}
	// Requests bound what can come; the library must not drop any of it.
	if err := p.sub.SetPendingLimits(-1, -1); err != nil {
		return nil, err
	}
	return p, nil
}

func stoppedTimer() *time.Timer {
	t := time.NewTimer(time.Hour)
	t.Stop()
	return t
}

func (p *puller) close() {
	p.releaseKept()
	_ = p.sub.Unsubscribe()
}

// pull implements Pull on a puller that the caller has for itself. The places
// of a whole batch in the order of the turns are taken at its beginning, so that
// no other puller takes the same, and those left over are given up at its end:
// offers that are there fill them all.
func (p *puller) pull(ctx context.Context, most int, wait time.Duration) (offers []broker.Delivery, _ error) {
	first := p.taken.Add(int64(most)) - int64(most)
	defer func() { p.taken.Add(int64(len(offers) - most)) }()
	if p.startPull(first, most) {
		return p.finishPull(true), nil
	}
	end := time.Now().Add(wait)
	p.over.Reset(wait)
	defer p.over.Stop()
	var pauses backoff.BackOff // most pulls need none
	for {
		failed := p.sweepAndWait(ctx, end, first)
		switch {
		case p.hasOffer():
			return p.finishPull(true), nil
		case ctx.Err() != nil:
			for _, d := range p.finishPull(false) { // came at the last moment
				_ = d.Release() // else it comes again after the ack wait
			}
			return nil, ctx.Err()
		case p.j.isClosed():
			p.finishPull(false)
			return nil, broker.ErrClosed
		case failed == nil:
			pauses = nil
		}
		left := time.Until(end)
		if left <= 0 {
			return p.finishPull(failed == nil), failed
		}
		if failed != nil {
			if pauses == nil {
				pauses = newBackOff(ctx)
			}
			p.recreateConsumers(ctx, pauses, left)
		}
	}
}

// startPull begins a pull with what was kept for it, and tells whether that is any:
// then it is over already.
func (p *puller) startPull(first int64, most int) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.want, p.got, p.kept = most, p.kept, nil
	if len(p.got) == 0 {
		p.canGuess(first) // from now on it takes what comes
		return false
	}
	p.keep.Stop()
	if len(p.got) > most {
		slices.SortStableFunc(p.got, func(a, b broker.Delivery) int { return laneIndex(a.Key().Lane) - laneIndex(b.Key().Lane) })
		for _, d := range p.got[most:] {
			p.releaseDelivery(d)
		}
		p.got = p.got[:most]
	}
	return true
}

// finishPull ends the pull and returns what came for it. What comes later is kept,
// if it may be and there is room, or released.
func (p *puller) finishPull(keep bool) []broker.Delivery {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.endGuess()
	p.room = 0
	if keep {
		p.room = p.want - len(p.got)
	}
	got := p.got
	p.want, p.got = 0, nil
	return got
}

// recreateConsumers makes the queue's consumers again, which a single node forgets when
// it restarts, and waits a little, or until the connection changes.
func (p *puller) recreateConsumers(ctx context.Context, pauses backoff.BackOff, left time.Duration) {
	link := p.j.connectionChange()
	if p.j.nc.IsConnected() {
		ensure, cancel := context.WithTimeout(ctx, min(left, tryTimeout))
		err := p.j.ensureLanes(ensure, p.agent)
		cancel()
		if err == nil && pauses.NextBackOff() <= 4*time.Millisecond {
			return // the first time: go on at once
		}
	}
	pause := time.NewTimer(min(left, max(pauses.NextBackOff(), time.Millisecond)))
	defer pause.Stop()
	select {
	case <-pause.C:
	case <-link:
	case <-ctx.Done():
	case <-p.j.closing.Done():
	}
}

// sweepAndWait sweeps the lanes and then, if there was nothing, lets a request stand
// at each until an offer comes, one ends, or the pull does.
func (p *puller) sweepAndWait(ctx context.Context, end time.Time, first int64) error {
	if !p.j.nc.IsConnected() {
		return errDisconnected
	}
	long := time.Until(end) > standing/2
	if err := p.sweep(ctx, first, long); err != nil {
		return err
	}
	for !p.hasOffer() {
		left := time.Until(end)
		if left <= 0 {
			return nil
		}
		if long { // it is left for the next pull, which need not sweep then
			left = standing
		}
		link := p.j.connectionChange()
		next, err := p.ensureRequests(left)
		if err != nil {
			return err
		}
		p.lost.Reset(time.Until(next))
		select {
		case <-p.wake:
		case <-p.over.C:
		case <-p.lost.C:
		case <-link:
		case <-ctx.Done():
		case <-p.j.closing.Done():
		}
		p.lost.Stop()
		if ctx.Err() != nil || p.j.isClosed() {
			return nil
		}
		if !p.j.nc.IsConnected() {
			return errDisconnected
		}
	}
	return nil
}
