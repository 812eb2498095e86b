//go:build proof

package sim

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/worker"
)

// Planted bugs of circles.
const (
	contextWhole   bug = "a hash of the context over the whole package"
	savedKept      bug = "a saved hash that is never moved"
	roundsForgot   bug = "rounds with another reason that are not counted"
	returnUnhinged bug = "a return that hides the circle"
)

func init() { bugs = append(bugs, savedKept, roundsForgot, returnUnhinged) }

// Rings are work that two agents hand off to each other, again and again. The task has the length of
// the ring, and the place in it: a ring longer than what a lineage remembers is found by its saved
// hashes alone. One of length 0 has another reason in each round. A bounce comes back by its return.
const (
	ringPrefix = knotPrefix + "ring "
	bounceTask = knotPrefix + "bounce"
	ringMax    = 40 // hand-offs that a planted bug may have
)

// ringAt reads the task of a ring.
func ringAt(task string) (length, at int, is bool) {
	_, err := fmt.Sscanf(task, ringPrefix+"%d %d", &length, &at)
	return length, at, err == nil
}

// planRing is the task of a ring, and its first agent.
func (l *simulation) planRing(d uint64) (to, task string) {
	if l.bug == savedKept {
		return "a", ringPrefix + "9 0"
	}
	if d>>4%4 == 0 {
		return tie, bounceTask
	}
	switch d >> 12 % 4 {
	case 0:
		return tie, ringPrefix + "0 0"
	case 1:
		return bow, ringPrefix + "2 0"
	}
	return "a", ringPrefix + "9 0"
}

// goRound hands off the work of a ring: a short one has two agents, a long one three with more slots.
func (h *handler) goRound(ctx context.Context, of worker.Handoff, length, at int) (protocol.Result, error) {
	done := protocol.Result{Body: []byte(`"handed on"`)}
	depth := of.State().Lineage.DepthOf()
	if depth > ringMax {
		return done, nil
	}
	to := tie
	switch {
	case length > protocol.HopsMax:
		to = []string{"b", "c", "a"}[at%3]
	case h.agent == tie:
		to = bow
	}
	next := h.l.newPackage(0, to)
	next.Type, next.Task.Description = protocol.Delegation, ringPrefix+strconv.Itoa(length)+" "+strconv.Itoa((at+1)%max(1, length))
	next.Return = &protocol.ReturnProtocol{Expected: true, TimeoutMS: 1_800_000, Wait: protocol.WaitContinue}
	if length == 0 {
		next.Reason = fmt.Sprintf("point %d is missing", depth)
	}
	if _, err := of.HandOff(ctx, next); err != nil && !isBarred(err) {
		return protocol.Result{}, err
	}
	return done, nil
}

// bounce delegates, and delegates the same again as soon as that comes back.
func (h *handler) bounce(ctx context.Context, of worker.Handoff) (protocol.Result, error) {
	done := protocol.Result{Body: []byte(`"bounced"`)}
	if h.agent != tie {
		return done, nil
	}
	next := h.l.newPackage(0, bow)
	next.Type, next.Task.Description = protocol.Delegation, bounceTask
	next.Return = &protocol.ReturnProtocol{Expected: true, TimeoutMS: 1_800_000, Wait: protocol.WaitContinue}
	if _, err := of.HandOff(ctx, next); err != nil && !isBarred(err) {
		return protocol.Result{}, err
	}
	return done, nil
}

// isBounced reports whether a handoff is the return of a bounce.
func isBounced(of worker.Handoff) bool {
	r := of.Package.Returned
	return r != nil && r.Result != nil && bytes.Equal(r.Result.Body, []byte(`"bounced"`))
}

// hop is a hand-off as the judge sees it.
type hop struct{ from, to, task, reason string }

// wayTo are the hand-offs that led to a handoff, the last one first, with those before a return.
func (j *judge) wayTo(s protocol.State) (all []hop) {
	for s.Ticket != "" {
		if s.ReturnOf != "" {
			s = j.heads[s.ReturnOf].state
			continue
		}
		if s.N == 0 {
			break
		}
		if s.Type != protocol.Escalation {
			all = append(all, hop{s.Source, s.Target.Agent, j.lines[s.Ticket].task, j.reasons[s.Ticket]})
		}
		s = j.heads[s.Parent].state
	}
	return all
}

// checkCircle: no ring goes into its fourth round, and no work goes too often between two agents.
func (j *judge) checkCircle(s protocol.State, events []protocol.Event) {
	submitted, is := events[0].(*protocol.Submitted)
	if !is || !strings.HasPrefix(j.lines[s.Ticket].task, knotPrefix) {
		return
	}
	if pkg, err := protocol.DecodePackage(submitted.Package); err == nil {
		if j.reasons == nil {
			j.reasons = map[string]string{}
		}
		j.reasons[s.Ticket] = pkg.Reason
	}
	if s.N == 0 || s.Type == protocol.Escalation {
		return
	}
	way := j.wayTo(s)
	for length := 1; 3*length < len(way); length++ {
		if slices.Equal(way[:2*length+1], way[length:3*length+1]) {
			j.faultLocked("%s begins the fourth round of a ring of %d: %v", s.Ticket, length, way[0])
			return
		}
	}
	times, last := 0, 0
	for n, h := range way {
		if h.from == way[0].from && h.to == way[0].to && h.task == way[0].task && n-last < protocol.HopsMax {
			times, last = times+1, n
		}
	}
	if times > protocol.EdgeRepeatsDefault {
		j.faultLocked("%s is the %d. of its kind from %s to %s", s.Ticket, times, s.Source, s.Target.Agent)
	}
}

var (
	hopsOf  = regexp.MustCompile(`"hops":"([^"]*)"`)
	savedOf = regexp.MustCompile(`,"saved":"[^"]*"`)
	wayOf   = regexp.MustCompile(`"lineage":\{[^}]*\},`)
)

// hideCircle spoils the lineage of a submission. It reports whether it did: others go on then, as the
// writer knows another body.
func (l *simulation) hideCircle(ticket string, body []byte) (spoiled []byte, is bool) {
	if !bytes.Contains(body, []byte(`"type":"submitted"`)) || !hopsOf.Match(body) {
		return body, false
	}
	isRing := bytes.Contains(body, []byte(ringPrefix))
	lastHop := func(change func(hop []byte)) {
		spoiled = hopsOf.ReplaceAllFunc(body, func(found []byte) []byte {
			hops, err := base64.StdEncoding.DecodeString(string(hopsOf.FindSubmatch(found)[1]))
			if err != nil || len(hops) < 15 {
				return found
			}
			change(hops[len(hops)-15:])
			return []byte(`"hops":"` + base64.StdEncoding.EncodeToString(hops) + `"`)
		})
	}
	switch {
	case l.bug == contextWhole && isRing:
		whole := sha256.Sum256([]byte(ticket))
		lastHop(func(hop []byte) { copy(hop[6:13], whole[:]) })
		return savedOf.ReplaceAll(spoiled, nil), true
	case l.bug == savedKept && isRing && savedOf.Match(body):
		return savedOf.ReplaceAll(body, nil), true
	case l.bug == roundsForgot && isRing:
		lastHop(func(hop []byte) { hop[14] = 1 })
		return spoiled, !bytes.Equal(spoiled, body)
	case l.bug == returnUnhinged && bytes.Contains(body, []byte(`"returned":`)):
		return wayOf.ReplaceAll(body, nil), true
	}
	return body, false
}
