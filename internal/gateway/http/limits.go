package httpgateway

import (
	"sync"

	"github.com/agenthandoff/handoff/protocol"
)

// Limits of every gateway.
const (
	// waitsMax bounds the waits and streams of a process, and waitsEach those of one token.
	waitsMax, waitsEach = 10_000, 1_000
	// largeMax bounds the bodies over largeBody that a process reads or works on, and largeEach those of
	// one token.
	largeMax, largeEach = 16, 4
	largeBody           = 1 << 20
)

// places are the places of one kind: some for the process, some of them for each caller.
type places struct {
	what      string
	all, each int

	mu     sync.Mutex
	taken  int
	by     map[string]int
	refuse int64
}

// take takes a place, or refuses with CodeBusy. release gives it back.
func (p *places) take(caller string) (release func(), err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.taken >= p.all || p.by[caller] >= p.each {
		p.refuse++
		return nil, protocol.Errorf(protocol.CodeBusy, p.what, "at most %d are served at a time, %d of them of one token; try again later", p.all, p.each)
	}
	if p.by == nil {
		p.by = map[string]int{}
	}
	p.taken++
	p.by[caller]++
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.taken--
		if p.by[caller]--; p.by[caller] == 0 {
			delete(p.by, caller)
		}
	}, nil
}

// inUse returns the places that are taken, and how often one was refused.
func (p *places) inUse() (taken, refused int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return int64(p.taken), p.refuse
}
