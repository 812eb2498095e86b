//go:build proof

package sim

import (
	"slices"

	"github.com/agenthandoff/handoff/internal/lifecycle"
	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/worker"
)

// denies is the answer of a source, an authority or a decider that says no. None of them lets
// others decide: the judge holds every denial to be final.
func (l *simulation) denies(by string) protocol.Answer {
	return protocol.Answer{By: by, Deny: true, DenyReason: "no", LetOthers: l.bug == denialWeak}
}

// decide is what a decider does: it permits, denies, or does the work itself.
func (h *handler) decide(of worker.Handoff) error {
	switch h.dice(of, "decide") % 3 {
	case 0:
		return worker.AnswerEscalation(h.l.denies(h.agent))
	case 1:
		return worker.AnswerEscalation(protocol.Answer{By: h.agent, Permit: true, Text: "go on"})
	}
	return nil
}

// checkDenied: after a denial nothing works on a handoff, and no person has it in the inbox. Where
// the package names deciders, they alone have it.
func (j *judge) checkDenied(ticket string, s protocol.State, events []protocol.Event) {
	j.checkApprovals(s, events)
	for _, e := range events {
		if answered, ok := e.(*protocol.Answered); ok {
			j.denied[ticket] = answered.Answer.Deny
		}
	}
	switch {
	case !j.denied[ticket], s.Closed && s.Reason != lifecycle.ReasonDenied && slices.Contains(s.Deciders, s.Agent):
	case !s.Closed && !slices.Contains(s.Deciders, s.Agent):
		j.faultLocked("%s was denied, and is %s with %s", ticket, s.Phase, s.Agent)
	case s.Closed && (s.Outcome != protocol.OutcomeRejected || s.Reason != lifecycle.ReasonDenied || s.Inbox != ""):
		j.faultLocked("%s was denied, and closed as %s (%s) into the inbox %q", ticket, s.Outcome, s.Reason, s.Inbox)
	}
}
