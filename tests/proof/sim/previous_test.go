//go:build proof

package sim

import (
	"bytes"
	"regexp"

	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/worker"
)

// checkPrevious: what a result hands on has that result with it, and no other.
func (j *judge) checkPrevious(before protocol.State, events []protocol.Event) {
	var result []byte
	for _, e := range events {
		if done, ok := e.(*protocol.Completed); ok {
			result = done.Result
		}
	}
	for _, e := range events {
		next, ok := e.(*protocol.HandedOff)
		if !ok || !next.Goto {
			continue
		}
		said, err := protocol.DecodeResult(result)
		if err != nil {
			j.faultLocked("%s hands on to %s without a result: %v", before.Ticket, next.Ticket, err)
			continue
		}
		if j.previous == nil {
			j.previous = map[string]protocol.Previous{}
		}
		j.previous[next.Ticket] = protocol.Previous{Agent: before.Agent, Ticket: before.Ticket, Body: said.Body}
		pkg, err := protocol.DecodePackage(next.Package)
		if err != nil {
			j.faultLocked("%s hands on a package that is not read: %v", before.Ticket, err)
			continue
		}
		j.comparePrevious(next.Ticket, pkg)
	}
}

// comparePrevious compares the previous result in a package with the one that its handoff follows from.
func (j *judge) comparePrevious(ticket string, pkg protocol.Package) {
	want, follows := j.previous[ticket]
	got := pkg.Context.Previous
	switch {
	case got == nil && follows:
		j.faultLocked("%s has no previous result, and follows from that of %s", ticket, want.Ticket)
	case got != nil && !follows:
		j.faultLocked("%s has the previous result of %s, and follows from none", ticket, got.Ticket)
	case got != nil && (got.Agent != want.Agent || got.Ticket != want.Ticket || !bytes.Equal(got.Body, want.Body)):
		j.faultLocked("%s has the previous result %s of %s (%s), and follows from %s of %s (%s)", ticket, got.Body, got.Ticket, got.Agent, want.Body, want.Ticket, want.Agent)
	}
}

// received is told of each package that a worker has in hand.
func (j *judge) received(of worker.Handoff) {
	j.mu.Lock()
	defer j.mu.Unlock()
	ticket := of.Ticket
	if group := of.State().Group; group != "" {
		ticket = group
	}
	j.comparePrevious(ticket, of.Package)
}

// previousResults finds a previous result in an append.
var previousResults = regexp.MustCompile(`"previous":\{"agent":"[^"]*","ticket":"[^"]*","body":("[^"]*"|\{[^}]*\})\}`)

// mixUp puts the previous result of an earlier hand-off in place of that of each later one.
func (l *simulation) mixUp(body []byte) []byte {
	found := previousResults.Find(body)
	if found == nil {
		return body
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	before := l.mixedUp
	if l.mixedUp = bytes.Clone(found); before == nil {
		return body
	}
	return bytes.Replace(body, found, before, 1)
}
