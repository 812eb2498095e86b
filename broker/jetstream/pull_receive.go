package jetstream

import (
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/agenthandoff/handoff/broker"
)

// keptFor is how long an offer that came between two pulls is kept for the
// next one: much longer than a worker takes from one to the other, on a
// machine that has much else to do as well.
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
	if !ok { // no offer, and in our queue all the same: Broker.Pull removes it
		key.Agent, key.Lane = parseLane(m.Subject)
	}
	i := laneIndex(key.Lane)
	if i < 0 || key.Agent != p.agent {
		return // of no queue of ours, and not ours to acknowledge
	}
	lane := &p.lanes[i]
	if lane.left--; lane.left <= 0 {
		lane.id, lane.status = 0, ""
	}
	q := &delivery{key: key, body: m.Data, reply: m.Reply, j: p.j}
	sent := readAckSubject(m.Reply)
	lane.drained = sent.deliveries == 1 && sent.pending == 0 // what was released comes before what is new
	switch {
	case p.want == 0 && p.room > 0:
		p.room--
		p.kept = append(p.kept, q)
		p.keep.Reset(keptFor)
		return
	case p.want > len(p.got) && p.takes[i]:
		p.got = append(p.got, q)
	case p.want > len(p.got)+len(p.held) && p.guess >= 0:
		p.held = append(p.held, q)
	default:
		p.releaseDelivery(q)
	}
	p.wakePull()
}

// requestEnded notes the last word on a request: its id is in the subject.
func (p *puller) requestEnded(m *nats.Msg) {
	id, err := strconv.ParseUint(strings.TrimPrefix(m.Subject, p.inbox), 10, 64)
	if err != nil {
		return
	}
	status := m.Header.Get("Status")
	if id == p.probe && p.guess >= 0 {
		lane := &p.lanes[p.guess]
		if lane.left--; lane.left <= 0 || statusError(status) != nil {
			lane.id, lane.status = 0, status
		}
		p.confirmGuess()
		return
	}
	for i := range p.lanes {
		if lane := &p.lanes[i]; lane.id == id {
			lane.id, lane.status = 0, status
			if i == p.guess {
				p.confirmGuess()
			}
			p.wakePull()
		}
	}
}

// confirmGuess ends a guess that the engine has confirmed: all lanes were empty when
// what is held came.
func (p *puller) confirmGuess() {
	p.guess, p.probe, p.takes = -1, 0, allLanes
	p.got = append(p.got, p.held...)
	p.held = nil
	p.wakePull()
}

var allLanes = [4]bool{true, true, true, true}

func (p *puller) releaseDelivery(d broker.Delivery) {
	if err := d.Release(); err != nil {
		p.j.cfg.Log.Debug("offer comes again after the ack wait", "err", err)
	}
}

// releaseKept releases what no pull came for.
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

// hasOffer tells whether the pull has an offer.
func (p *puller) hasOffer() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.got) > 0
}
