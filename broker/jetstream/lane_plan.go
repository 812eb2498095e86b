package jetstream

import "github.com/agenthandoff/handoff/broker"

// lanePlan says which lanes to ask for how many offers, so that a batch has
// what LaneOrder would take one by one, in as few questions as there can be.
type lanePlan struct {
	open  []int64 // of the batch: how many offers are taken before each one that is still to come
	empty [4]bool // lanes known to have nothing more
}

// reset plans the next n offers, after taken.
func (p *lanePlan) reset(taken int64, n int) {
	p.open, p.empty = p.open[:0], [4]bool{}
	for i := range n {
		p.open = append(p.open, taken+int64(i))
	}
}

// laneAt is where one offer of the batch should come from; -1 if all are empty.
func (p *lanePlan) laneAt(taken int64) int {
	for _, lane := range broker.LaneOrder(taken) {
		if i := laneIndex(lane); !p.empty[i] {
			return i
		}
	}
	return -1
}

// next is the lane to ask, and for how many; n is 0 when nothing is left to do.
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

// received notes an offer that came. The worker may not have asked for it.
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

// moreUrgent tells whether a lane more urgent than this one may have more.
func (p *lanePlan) moreUrgent(lane int) bool {
	for i := range lane {
		if !p.empty[i] {
			return true
		}
	}
	return false
}
