package broker

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/nats-io/nats.go"

	"github.com/agenthandoff/handoff/protocol"
)

const (
	// standing is how long a request waits at the engine for an offer. A
	// worker that is frozen, or gone without a word, keeps what is delivered
	// to such a request for an ack wait, so that it must be short.
	standing = 5 * time.Second
	// standingGrace is what a request may be late with its last word before
	// it counts as lost.
	standingGrace = time.Second
)

// puller takes offers from one agent's queue for one caller at a time. It has
// one inbox and at most one request at each lane's consumer, of two kinds: a
// sweep takes what is there, a standing request waits for one offer. The lanes
// are swept in the order that LaneOrder gives, but for those with a standing
// request: had they an offer, it would be here.
//
// Standing requests outlive the pull that made them, and serve the next one.
// An offer that arrives while nobody pulls is given back at once. So is one
// that arrives when a more urgent lane is being swept: its lane has no request
// any more then, so that it is swept when it is its turn. That is how a
// process which never waits, because one lane always has something, learns of
// the others without asking them each time: when the turn of those who wait
// finds a lane empty, a request is left standing there.
type puller struct {
	j     *JetStream
	agent string
	inbox string // ends with a dot
	sub   *nats.Subscription
	idle  *time.Timer
	wake  chan struct{} // something came
	taken *atomic.Int64 // offers of this agent, by all pullers of this process
	plan  lanePlan      // of the sweep under way

	mu     sync.Mutex
	want   int // of the pull under way
	least  int // the least urgent lane whose offers it takes now
	got    []Delivery
	lanes  []laneRequest
	serial uint64
}

// laneRequest is the request under way at one lane's consumer.
type laneRequest struct {
	id      uint64 // 0: none
	left    int    // offers it may still bring, or has not brought
	sweep   bool
	expires time.Time
	epoch   uint64 // of the connection that it was sent over
	status  string // why the last one ended
}

func newPuller(j *JetStream, agent string) (*puller, error) {
	p := &puller{j: j, agent: agent, inbox: j.nc.NewInbox() + ".", wake: make(chan struct{}, 1),
		taken: j.takenBy(agent), lanes: make([]laneRequest, len(protocol.Priorities))}
	var err error
	if p.sub, err = j.nc.Subscribe(p.inbox+"*", p.receive); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnreachable, err)
	}
	// Requests bound what can come; the library must not drop any of it.
	if err := p.sub.SetPendingLimits(-1, -1); err != nil {
		return nil, err
	}
	return p, nil
}

func (p *puller) close() { _ = p.sub.Unsubscribe() }

// receive is called by the library, from one goroutine.
func (p *puller) receive(m *nats.Msg) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if m.Reply == "" {
		p.ended(m)
		return
	}
	key, ok := parseWorkSubject(m.Subject)
	if !ok {
		return // not an offer, and not ours to acknowledge
	}
	i := laneIndex(key.Lane)
	lane := &p.lanes[i]
	if lane.left--; lane.left <= 0 {
		lane.id, lane.status = 0, ""
	}
	q := &queued{key: key, body: m.Data, reply: m.Reply, nc: p.j.nc}
	if len(p.got) < p.want && i <= p.least {
		p.got = append(p.got, q)
	} else if err := q.GiveBack(); err != nil {
		p.j.cfg.Log.Debug("offer comes again after the ack wait", "err", err)
	}
	p.ring()
}

// ended notes the last word on a request: its id is in the subject.
func (p *puller) ended(m *nats.Msg) {
	id, err := strconv.ParseUint(strings.TrimPrefix(m.Subject, p.inbox), 10, 64)
	if err != nil {
		return
	}
	for i := range p.lanes {
		if lane := &p.lanes[i]; lane.id == id {
			lane.id, lane.status = 0, m.Header.Get("Status")
			p.ring()
		}
	}
}

func (p *puller) ring() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// pull implements Pull on a puller that the caller has for itself. The places
// of a whole batch in the order of the turns are taken at its beginning, so that
// no other puller takes the same, and those left over are given up at its end:
// offers that are there fill them all.
func (p *puller) pull(ctx context.Context, most int, wait time.Duration) (offers []Delivery, _ error) {
	first := p.taken.Add(int64(most)) - int64(most)
	defer func() { p.taken.Add(int64(len(offers) - most)) }()
	end := time.Now().Add(wait)
	p.mu.Lock()
	p.want, p.least, p.got = most, 0, nil
	p.mu.Unlock()
	timer := time.NewTimer(wait)
	defer timer.Stop()
	pauses := newBackOff(ctx)
	var failed error
	for {
		err := p.round(ctx, timer, end, first)
		got := p.take(false)
		switch {
		case len(got) > 0:
			return p.take(true), nil
		case ctx.Err() != nil:
			for _, d := range p.take(true) { // came at the last moment
				_ = d.GiveBack() // else it comes again after the ack wait
			}
			return nil, ctx.Err()
		case p.j.isClosed():
			p.take(true)
			return nil, errClosed
		case err == nil:
			failed = nil
			pauses.Reset()
		default:
			failed = err
		}
		left := time.Until(end)
		if left <= 0 {
			return p.take(true), failed
		}
		if failed != nil {
			p.recover(ctx, pauses, left)
		}
	}
}

// take returns what came. The last time it also ends the pull: what comes
// later is given back, and what came at the last moment is returned.
func (p *puller) take(last bool) []Delivery {
	p.mu.Lock()
	defer p.mu.Unlock()
	if last {
		p.want = 0
	}
	return p.got
}

// recover makes the queue's consumers again, which a single node forgets when
// it restarts, and waits a little, or until the connection changes.
func (p *puller) recover(ctx context.Context, pauses backoff.BackOff, left time.Duration) {
	link := p.j.linkChange()
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
	case <-p.j.life.Done():
	}
}

// round sweeps the lanes and then, if there was nothing, lets a request stand
// at each until an offer comes, one ends, or the pull does.
func (p *puller) round(ctx context.Context, timer *time.Timer, end time.Time, first int64) error {
	if !p.j.nc.IsConnected() {
		return errDisconnected
	}
	if err := p.sweep(ctx, first); err != nil {
		return err
	}
	p.takeFrom(len(p.lanes) - 1)
	for !p.came() {
		left := time.Until(end)
		if left <= 0 {
			return nil
		}
		link := p.j.linkChange()
		next, err := p.stand(left)
		if err != nil {
			return err
		}
		lost := time.NewTimer(time.Until(next))
		select {
		case <-p.wake:
		case <-timer.C:
		case <-lost.C:
		case <-link:
		case <-ctx.Done():
		case <-p.j.life.Done():
		}
		lost.Stop()
		if ctx.Err() != nil || p.j.isClosed() {
			return nil
		}
		if !p.j.nc.IsConnected() {
			return errDisconnected
		}
	}
	return nil
}

// sweep takes what is there for a pull whose first offer has that many before it.
func (p *puller) sweep(ctx context.Context, first int64) error {
	p.mu.Lock()
	p.plan.begin(first, p.want)
	for i := range p.lanes {
		p.plan.empty[i] = p.alive(&p.lanes[i])
	}
	p.mu.Unlock()
	for seen := p.fill(0); ; {
		i, n := p.plan.next()
		if n == 0 {
			return nil
		}
		short, err := p.sweepLane(ctx, i, n)
		if err != nil {
			return err
		}
		seen = p.fill(seen) // while the lane still counts for what it brought
		p.plan.empty[i] = short
		if short && p.plan.waits(i) {
			// It goes on with a more urgent lane, and may never come to wait.
			if err := p.lookOut(i); err != nil {
				return err
			}
		}
	}
}

// fill notes in the plan what has come, but for the first offers seen before.
func (p *puller) fill(seen int) int {
	got := p.take(false)
	for _, d := range got[seen:] {
		p.plan.fill(laneIndex(d.Key().Lane))
	}
	return len(got)
}

// takeFrom has offers of less urgent lanes than this one given back from now on.
func (p *puller) takeFrom(least int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.least = least
}

// lookOut leaves a request standing at a lane that was found empty.
func (p *puller) lookOut(i int) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.send(i, 1, false, standing)
}

// sweepLane takes up to n of what one lane has now. It tells whether the lane
// had less than that.
func (p *puller) sweepLane(ctx context.Context, i, n int) (short bool, err error) {
	p.mu.Lock()
	lane := &p.lanes[i]
	p.least = i
	err = p.send(i, n, true, tryTimeout)
	id := lane.id
	p.mu.Unlock()
	if err != nil {
		return false, err
	}
	link := p.j.linkChange()
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
			return false, fmt.Errorf("%w: no answer from lane %s in %v", ErrUnreachable, protocol.Priorities[i], tryTimeout)
		case <-link:
			return false, errDisconnected
		case <-ctx.Done():
			return false, ctx.Err()
		case <-p.j.life.Done():
			return false, errClosed
		}
	}
}

// stand sees to it that a request stands at every lane, and returns when the
// first of them will count as lost.
func (p *puller) stand(left time.Duration) (time.Time, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var next time.Time
	for i := range p.lanes {
		lane := &p.lanes[i]
		if !p.alive(lane) {
			if err := statusError(lane.status); err != nil {
				lane.status = ""
				return next, err
			}
			if err := p.send(i, 1, false, min(left, standing)); err != nil {
				return next, err
			}
		}
		if lost := lane.expires.Add(standingGrace); next.IsZero() || lost.Before(next) {
			next = lost
		}
	}
	return next, nil
}

// alive tells whether a request is under way, and was not lost.
func (p *puller) alive(lane *laneRequest) bool {
	return lane.id != 0 && lane.epoch == p.j.epoch.Load() && time.Now().Before(lane.expires.Add(standingGrace))
}

// send asks one lane's consumer for offers.
func (p *puller) send(i, batch int, sweep bool, expires time.Duration) error {
	p.serial++
	lane := &p.lanes[i]
	*lane = laneRequest{id: p.serial, left: batch, sweep: sweep, expires: time.Now().Add(expires), epoch: p.j.epoch.Load()}
	body := make([]byte, 0, 64)
	body = append(body, `{"batch":`...)
	body = strconv.AppendInt(body, int64(batch), 10)
	if sweep {
		body = append(body, `,"no_wait":true}`...)
	} else {
		body = append(body, `,"expires":`...)
		body = strconv.AppendInt(body, int64(expires), 10)
		body = append(body, '}')
	}
	subject := apiPrefix + "CONSUMER.MSG.NEXT." + WorkStream + "." + laneConsumer(p.agent, protocol.Priorities[i])
	if err := p.j.nc.PublishRequest(subject, p.inbox+strconv.FormatUint(lane.id, 10), body); err != nil {
		*lane = laneRequest{}
		return fmt.Errorf("%w: %w", ErrUnreachable, err)
	}
	return nil
}

// came tells whether the pull has an offer.
func (p *puller) came() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.got) > 0
}

// statusError is nil for the ends that a request is expected to have: it is
// satisfied, there is nothing (404), its time is over (408).
func statusError(status string) error {
	switch status {
	case "", "404", "408":
		return nil
	case "503":
		return fmt.Errorf("%w: the queue has no consumer", ErrUnreachable)
	}
	return fmt.Errorf("%w: the queue's consumer answers %s", ErrUnreachable, status)
}
