package jetstream

import (
	"fmt"
	"strconv"
	"time"

	"github.com/agenthandoff/handoff/broker"
)

const (
	// standing is how long a request waits at the engine for an offer. A
	// worker that is frozen, or gone without a word, keeps what is delivered
	// to such a request for an ack wait, so that it must be short.
	standing = 5 * time.Second
	// standingGrace is what a request may be late with its last word before
	// it counts as lost.
	standingGrace = time.Second
	// standingMost is how many offers a standing request waits for at most, and
	// never for more than there is room for. Each of them saves the next pull a
	// question; all that are left when the last slot is taken are brought to be
	// released, once, and a worker that freezes may keep them for an ack wait.
	standingMost = 8
)

// laneRequest is the request under way at one lane's consumer.
type laneRequest struct {
	id      uint64 // 0: none
	left    int    // offers it may still bring, or has not brought
	expires time.Time
	epoch   uint64 // of the connection that it was sent over
	status  string // why the last one ended
	drained bool   // its last offer left none behind
}

// ensureRequests sees to it that a request stands at every lane, and that a guess is
// looked into where it matters. It returns when the first of the requests will
// count as lost.
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
	if p.guess >= 0 && len(p.held) > 0 && p.probe == 0 {
		p.serial++
		p.probe = p.serial
		p.lanes[p.guess].left++ // should it bring one
		return next, p.request(p.guess, p.probe, 1, 0)
	}
	return next, nil
}

// isAlive tells whether a request is under way, and was not lost.
func (p *puller) isAlive(lane *laneRequest) bool {
	return lane.id != 0 && lane.epoch == p.j.connectionCount.Load() && time.Now().Before(lane.expires.Add(standingGrace))
}

// send asks one lane's consumer for offers.
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

// request sends one; without a time to expire it takes what is there.
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

// statusError is nil for the ends that a request is expected to have: it is
// satisfied, there is nothing (404), its time is over (408).
func statusError(status string) error {
	switch status {
	case "", "404", "408":
		return nil
	case "503":
		return fmt.Errorf("%w: the queue has no consumer", broker.ErrUnreachable)
	}
	return fmt.Errorf("%w: the queue's consumer answers %s", broker.ErrUnreachable, status)
}
