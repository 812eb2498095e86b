package jetstream

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/nats-io/nats.go"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/protocol"
)

// puller takes offers from one agent's queue for one caller at a time. It has one inbox and at most
// one request at each lane's consumer, of two kinds: a sweep collects ready offers, a standing
// request waits for new ones. The lanes are swept in the order of LaneOrder, except those with a
// standing request: their offers would have arrived already.
//
// Standing requests outlive the pull that sent them, and serve the next one. An offer that arrives
// between two pulls is kept for a moment, if the last pull would have had room for it, and is
// released at once otherwise. An offer that arrives during the sweep of a more urgent lane is also
// released: its lane then has no request, so it is swept in its turn. Standing requests also inform
// a puller that never waits, because one lane always has offers, about the other lanes: when the
// turn of a less urgent lane finds it empty, a request is left there.
//
// An offer also contains the number of offers left in its lane. If that is 0, and each other lane has
// a standing request, that lane gets one without a sweep.
type puller struct {
	j        *Engine
	agent    string
	queue    int      // its partition
	inbox    string   // ends with a dot
	subjects []string // of the requests, by lane
	sub      *nats.Subscription
	idle     *time.Timer
	over     *time.Timer   // timer of the pull
	lost     *time.Timer   // timer of the first request that would count as lost
	wake     chan struct{} // an offer or a status arrived
	taken    *atomic.Int64 // offers of this agent, by all pullers of this process
	plan     lanePlan      // of the current sweep

	mu     sync.Mutex
	want   int     // of the current pull
	takes  [4]bool // the lanes whose offers it accepts now
	got    []broker.Delivery
	room   int // between two pulls: how many offers may be kept
	kept   []broker.Delivery
	keep   *time.Timer // releases them
	lanes  []laneRequest
	serial uint64
	body   []byte // of the request that is sent
}

func newPuller(j *Engine, agent string, queue int) (*puller, error) {
	p := &puller{j: j, agent: agent, queue: queue, inbox: j.nc.NewInbox() + ".", wake: make(chan struct{}, 1),
		taken: j.takenCount(agent), lanes: make([]laneRequest, len(protocol.Priorities)),
		over: stoppedTimer(), lost: stoppedTimer()}
	for _, lane := range protocol.Priorities {
		p.subjects = append(p.subjects, apiPrefix+"CONSUMER.MSG.NEXT."+workStreams[queue]+"."+laneConsumer(agent, lane))
	}
	p.keep = time.AfterFunc(time.Hour, p.releaseKept)
	p.keep.Stop()
	var err error
	if p.sub, err = j.nc.Subscribe(p.inbox+"*", p.receive); err != nil {
		return nil, fmt.Errorf("%w: %w", broker.ErrUnreachable, err)
	}
	// Requests bound the messages that can arrive; the library must not drop any.
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

// pull implements Pull on a puller that the caller owns. It reserves the turns of a whole batch at
// its start, so that no other puller uses the same, and returns the unused ones at its end: if
// enough offers are ready, it uses all.
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
			for _, d := range p.finishPull(false) { // arrived at the last moment
				_ = d.Release() // otherwise it is redelivered only after the ack wait
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

// startPull starts a pull with the offers kept for it. It returns true if there are any: then the
// pull is complete.
func (p *puller) startPull(first int64, most int) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.want, p.got, p.kept = most, p.kept, nil
	if len(p.got) == 0 {
		p.planSweep(first) // from now on offers are accepted
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

// finishPull ends the pull and returns its offers. Later ones are kept if keep is set and there is
// room, otherwise released.
func (p *puller) finishPull(keep bool) []broker.Delivery {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.room = 0
	if keep {
		p.room = p.want - len(p.got)
	}
	got := p.got
	p.want, p.got = 0, nil
	return got
}

// recreateConsumers recreates the queue's consumers, which a single node forgets when it restarts,
// and waits a little, or until the connection changes.
func (p *puller) recreateConsumers(ctx context.Context, pauses backoff.BackOff, left time.Duration) {
	link := p.j.connectionChange()
	if p.j.nc.IsConnected() {
		ensure, cancel := context.WithTimeout(ctx, min(left, tryTimeout))
		err := p.j.ensureLanes(ensure, p.agent)
		cancel()
		if err == nil && pauses.NextBackOff() <= 4*time.Millisecond {
			return // the first time: continue at once
		}
	}
	p.j.pause(ctx, min(left, pauses.NextBackOff()), link)
}

// sweepAndWait sweeps the lanes. If they are empty, it leaves a request at each until an offer
// arrives, a request ends, or the pull ends.
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
		if long { // the request is left for the next pull, which then need not sweep
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

const (
	// standing is how long a request waits at the engine for an offer. A frozen or dead worker
	// withholds an offer delivered to such a request for an ack wait, so it must be short.
	standing = 5 * time.Second
	// standingGrace is how late the status of a request may be before the request counts as lost.
	standingGrace = time.Second
	// standingMost is the most offers that a standing request waits for, within the free room.
	// Prefetched offers save a request. Unused ones are released once; a frozen worker holds them until
	// the ack wait ends.
	standingMost = 8
)

// laneRequest is the current request at one lane's consumer.
type laneRequest struct {
	id      uint64 // 0: none
	left    int    // offers it may still bring
	expires time.Time
	epoch   uint64 // of the connection that it was sent over
	status  string // why the last one ended
	drained bool   // its last offer was the last of the lane
}

// ensureRequests ensures that every lane has a request. It returns when the first of the requests
// will count as lost.
func (p *puller) ensureRequests(expires time.Duration) (time.Time, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var next time.Time
	for i := range p.lanes {
		lane := &p.lanes[i]
		if !p.isAlive(lane) {
			if err := statusError(lane.status); err != nil {
				lane.status = ""
				return next, err
			}
			if err := p.send(i, min(p.want, standingMost), false, min(expires, standing)); err != nil {
				return next, err
			}
		}
		if lost := lane.expires.Add(standingGrace); next.IsZero() || lost.Before(next) {
			next = lost
		}
	}
	return next, nil
}

// isAlive reports whether a request is active, and not lost.
func (p *puller) isAlive(lane *laneRequest) bool {
	return lane.id != 0 && lane.epoch == p.j.connectionCount.Load() && time.Now().Before(lane.expires.Add(standingGrace))
}

// send requests offers from one lane's consumer.
func (p *puller) send(i, batch int, sweep bool, expires time.Duration) error {
	p.serial++
	lane := &p.lanes[i]
	*lane = laneRequest{id: p.serial, left: batch, expires: time.Now().Add(expires), epoch: p.j.connectionCount.Load(), drained: lane.drained}
	if sweep {
		expires = 0
	}
	if err := p.request(i, lane.id, batch, expires); err != nil {
		*lane = laneRequest{}
		return err
	}
	return nil
}

// request sends one request; without an expiry it only collects ready offers.
func (p *puller) request(i int, id uint64, batch int, expires time.Duration) error {
	p.body = append(p.body[:0], `{"batch":`...)
	p.body = strconv.AppendInt(p.body, int64(batch), 10)
	if expires == 0 {
		p.body = append(p.body, `,"no_wait":true}`...)
	} else {
		p.body = append(p.body, `,"expires":`...)
		p.body = strconv.AppendInt(p.body, int64(expires), 10)
		p.body = append(p.body, '}')
	}
	if err := p.j.nc.PublishRequest(p.subjects[i], p.inbox+strconv.FormatUint(id, 10), p.body); err != nil {
		return fmt.Errorf("%w: %w", broker.ErrUnreachable, err)
	}
	return nil
}

// statusError returns nil for the expected ends of a request: it is satisfied, the lane is empty
// (404), or its time is over (408).
func statusError(status string) error {
	switch status {
	case "", "404", "408":
		return nil
	case "503":
		return fmt.Errorf("%w: the queue has no consumer", broker.ErrUnreachable)
	}
	return fmt.Errorf("%w: the queue's consumer answers %s", broker.ErrUnreachable, status)
}

// keptFor is how long an offer that arrived between two pulls is kept for the next one: much longer
// than a worker needs between two pulls, even on a busy machine.
const keptFor = 100 * time.Millisecond

// receive is called by the library, from one goroutine.
func (p *puller) receive(m *nats.Msg) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if m.Reply == "" {
		p.requestEnded(m)
		return
	}
	key, ok := parseWorkSubject(m.Subject)
	if !ok { // a malformed message in our queue: Broker.Pull removes it
		key.Agent, key.Lane = parseLane(m.Subject)
	}
	i := laneIndex(key.Lane)
	if i < 0 || key.Agent != p.agent {
		return // not in our queue, and not ours to acknowledge
	}
	lane := &p.lanes[i]
	if lane.left--; lane.left <= 0 {
		lane.id, lane.status = 0, ""
	}
	q := &delivery{key: key, body: m.Data, reply: m.Reply, queue: p.queue, j: p.j}
	sent := readAckSubject(m.Reply)
	lane.drained = sent.deliveries == 1 && sent.pending == 0 // after a redelivery, new offers may remain
	switch {
	case p.want == 0 && p.room > 0:
		p.room--
		p.kept = append(p.kept, q)
		p.keep.Reset(keptFor)
		return
	case p.want > len(p.got) && p.takes[i]:
		p.got = append(p.got, q)
	default:
		p.releaseDelivery(q)
	}
	p.wakePull()
}

// requestEnded records the status of a request, whose id is in the subject.
func (p *puller) requestEnded(m *nats.Msg) {
	id, err := strconv.ParseUint(strings.TrimPrefix(m.Subject, p.inbox), 10, 64)
	if err != nil {
		return
	}
	status := m.Header.Get("Status")
	for i := range p.lanes {
		if lane := &p.lanes[i]; lane.id == id {
			lane.id, lane.status = 0, status
			p.wakePull()
		}
	}
}

func (p *puller) releaseDelivery(d broker.Delivery) {
	if err := d.Release(); err != nil {
		p.j.cfg.Log.Debug("offer not released; it is redelivered after the ack wait", "err", err)
	}
}

// releaseKept releases the kept offers that no pull took.
func (p *puller) releaseKept() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, d := range p.kept {
		p.releaseDelivery(d)
	}
	p.kept, p.room = nil, 0
}

func (p *puller) wakePull() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// hasOffer reports whether the pull has an offer.
func (p *puller) hasOffer() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.got) > 0
}

// sweep collects ready offers for a pull; first is the number of offers taken before it. A long pull
// is usually followed by another one.
func (p *puller) sweep(ctx context.Context, first int64, long bool) error {
	p.mu.Lock()
	needed := p.planSweep(first)
	p.mu.Unlock()
	if !needed {
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
		seen = p.countReceived(seen) // while the lane still counts for its offers
		p.plan.empty[i] = short
		if short && (long || p.plan.moreUrgent(i)) {
			// The pull continues with another lane, and may never wait.
			if err := p.leaveRequest(i); err != nil {
				return err
			}
		}
	}
}

// planSweep plans a sweep, and reports whether one is needed: it is not if each lane has a request,
// or all but one have, and the last offer of that one was the last of its lane. The caller holds
// p.mu.
func (p *puller) planSweep(first int64) bool {
	p.plan.reset(first, p.want)
	unknown, at := 0, 0
	for i := range p.lanes {
		p.plan.empty[i] = p.isAlive(&p.lanes[i])
		if !p.plan.empty[i] {
			unknown, at = unknown+1, i
		}
	}
	if unknown == 0 || unknown == 1 && p.lanes[at].drained && p.lanes[at].status == "" {
		p.takes = [4]bool{true, true, true, true}
		return false
	}
	p.takes = [4]bool{true} // always accept the critical lane
	return true
}

// countReceived records the received offers in the plan, except the first seen ones.
func (p *puller) countReceived(seen int) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, d := range p.got[seen:] {
		p.plan.received(laneIndex(d.Key().Lane))
	}
	return len(p.got)
}

// narrowTo releases offers of less urgent lanes than this one from now on.
func (p *puller) narrowTo(least int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range p.takes {
		p.takes[i] = i <= least
	}
}

// leaveRequest leaves a request at an empty lane.
func (p *puller) leaveRequest(i int) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.send(i, 1, false, standing)
}

// sweepLane collects up to n ready offers of one lane. short reports whether the lane had fewer.
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

// delivery implements broker.Delivery.
type delivery struct {
	key   broker.OfferKey
	body  []byte
	reply string // the subject for its acknowledgement
	queue int    // the partition
	j     *Engine
}

var (
	ackRemove  = []byte("+ACK")
	ackRelease = []byte("-NAK")
	ackExtend  = []byte("+WPI")
)

func (q *delivery) Key() broker.OfferKey { return q.key }
func (q *delivery) Body() []byte         { return q.body }
func (q *delivery) Release() error       { return q.acknowledge("release", ackRelease) }
func (q *delivery) Extend() error        { return q.acknowledge("extend", ackExtend) }

func (q *delivery) acknowledge(what string, word []byte) error {
	if err := q.j.nc.Publish(q.reply, word); err != nil {
		return fmt.Errorf("%s offer %s: %w: %w", what, q.key.Ticket, broker.ErrUnreachable, err)
	}
	return nil
}

// ackInfo is the information about a delivery in the subject for its acknowledgement.
type ackInfo struct {
	deliveries uint64 // of this message, including this one; 0: unknown format
	sequence   uint64 // in its stream
	at         int64  // when the stream got it, in Unix ns
	pending    uint64 // offers of the lane that were never delivered
}

// readAckSubject reads the subject for an acknowledgement. It has two forms:
//
//	$JS.ACK.STREAM.CONSUMER.DELIVERIES.SEQUENCE.CONSUMER_SEQUENCE.TIME.PENDING
//	$JS.ACK.DOMAIN.ACCOUNT.STREAM.CONSUMER.DELIVERIES.SEQUENCE.CONSUMER_SEQUENCE.TIME.PENDING[.TOKEN]
func readAckSubject(subject string) ackInfo {
	skip, understood := 4, strings.HasPrefix(subject, "$JS.ACK.")
	switch tokens := strings.Count(subject, ".") + 1; {
	case tokens >= 11:
		skip = 6
	case tokens != 9:
		return ackInfo{}
	}
	number := func() uint64 {
		token, rest, _ := strings.Cut(subject, ".")
		subject = rest
		n, err := strconv.ParseUint(token, 10, 64)
		understood = understood && err == nil
		return n
	}
	for range skip {
		_, subject, _ = strings.Cut(subject, ".")
	}
	deliveries, sequence := number(), number()
	number()
	at, pending := number(), number()
	if !understood {
		return ackInfo{}
	}
	return ackInfo{deliveries: deliveries, sequence: sequence, at: int64(at), pending: pending}
}

// lanePlan decides how many offers to request from which lanes, so that a batch contains the offers
// that LaneOrder would take one by one, in as few requests as possible.
type lanePlan struct {
	open  []int64 // for each missing offer of the batch: the number of offers taken before it
	empty [4]bool // lanes known to be empty
}

// reset plans the next n offers, after taken.
func (p *lanePlan) reset(taken int64, n int) {
	p.open, p.empty = p.open[:0], [4]bool{}
	for i := range n {
		p.open = append(p.open, taken+int64(i))
	}
}

// laneAt returns the lane for one offer of the batch; -1 if all are empty.
func (p *lanePlan) laneAt(taken int64) int {
	for _, lane := range broker.LaneOrder(taken) {
		if i := laneIndex(lane); !p.empty[i] {
			return i
		}
	}
	return -1
}

// next returns the lane to request from, and the number; n is 0 when nothing is left to request.
func (p *lanePlan) next() (lane, n int) {
	if len(p.open) == 0 {
		return -1, 0
	}
	lane = p.laneAt(p.open[0])
	if lane < 0 {
		return -1, 0
	}
	for _, taken := range p.open {
		if p.laneAt(taken) == lane {
			n++
		}
	}
	return lane, n
}

// received records a received offer. The worker may not have requested it.
func (p *lanePlan) received(lane int) {
	at := 0
	for i, taken := range p.open {
		if p.laneAt(taken) == lane {
			at = i
			break
		}
	}
	if len(p.open) > 0 {
		p.open = append(p.open[:at], p.open[at+1:]...)
	}
}

// moreUrgent reports whether a lane more urgent than this one may have an offer.
func (p *lanePlan) moreUrgent(lane int) bool {
	for i := range lane {
		if !p.empty[i] {
			return true
		}
	}
	return false
}
