//go:build proof

package sim

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"regexp"
	"strings"

	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/worker"
)

// contextWhole: the hash of a context covers what differs in every round of a circle.
const contextWhole bug = "a hash of the context over the whole package"

// ringTask is work that two agents hand off to each other, again and again, with the same context.
const (
	ringTask = knotPrefix + "ring"
	ringMax  = 12 // rounds of it that a planted bug may have
)

// goRound hands off the same work to the other of the two agents.
func (h *handler) goRound(ctx context.Context, of worker.Handoff) (protocol.Result, error) {
	done := protocol.Result{Body: []byte(`"handed on"`)}
	if of.State().Lineage.DepthOf() > ringMax {
		return done, nil
	}
	to := tie
	if h.agent == tie {
		to = bow
	}
	next := h.l.newPackage(0, to)
	next.Type, next.Task.Description = protocol.Delegation, ringTask
	next.Return = &protocol.ReturnProtocol{Expected: true, TimeoutMS: 1_800_000, Wait: protocol.WaitContinue}
	if _, err := of.HandOff(ctx, next); err != nil && !isBarred(err) {
		return protocol.Result{}, err
	}
	return done, nil
}

// checkCircle: the same work does not go from one agent to the same other one within as many hand-offs
// as the fleet's window has.
func (j *judge) checkCircle(s protocol.State, events []protocol.Event) {
	if _, is := events[0].(*protocol.Submitted); !is || s.N == 0 || s.Type == protocol.Escalation || j.lines[s.Ticket].task != ringTask {
		return
	}
	at := s
	for range protocol.LoopWindowDefault {
		at = j.heads[at.Parent].state
		if at.Ticket == "" || at.N == 0 || j.lines[at.Ticket].task != ringTask {
			return
		}
		if at.Source == s.Source && at.Target.Agent == s.Target.Agent {
			j.faultLocked("%s goes from %s to %s, and so did %s, with the same context", s.Ticket, s.Source, s.Target.Agent, at.Ticket)
			return
		}
	}
}

var hopsOf = regexp.MustCompile(`"hops":"([^"]*)"`)

// hashWhole makes the last hop of a submission that of its whole package, which has its ticket. It
// tells whether it did: others go on then, as the writer knows another body.
func hashWhole(ticket string, body []byte) (spoiled []byte, is bool) {
	if text := string(body); !strings.Contains(text, `"type":"submitted"`) || !strings.Contains(text, ringTask) || !hopsOf.Match(body) {
		return body, false
	}
	return hopsOf.ReplaceAllFunc(body, func(found []byte) []byte {
		hops, err := base64.StdEncoding.DecodeString(string(hopsOf.FindSubmatch(found)[1]))
		if err != nil || len(hops) < 6 {
			return found
		}
		whole := sha256.Sum256([]byte(ticket))
		copy(hops[len(hops)-6:], whole[:])
		return []byte(`"hops":"` + base64.StdEncoding.EncodeToString(hops) + `"`)
	}), true
}
