//go:build proof

package sim

import (
	"errors"
	"strings"

	"github.com/agenthandoff/handoff/internal/lifecycle"
	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/worker"
)

// Planted bugs of a fleet's settings for routing.
const (
	fleetModeUnread bug = "a fleet whose handoffs are off, and agents that hand off"
	classIgnored    bug = "a rule of the fleet for the class of complexity, not read"
	namesLiteral    bug = "an attempt lost for the way that a model spells a name"
	awaitBarredLost bug = "an attempt lost for a result that waits for what may not be handed off"
)

// handsOffNothing reports whether the fleet's handoffs are off: those of lead alone are on.
func (l *simulation) handsOffNothing() bool { return l.seed%12 == 10 && !l.hasEdges() }

// fleetHandoffs is the mode of the fleet.
func (l *simulation) fleetHandoffs() protocol.HandoffMode {
	if l.handsOffNothing() {
		return protocol.HandoffsOff
	}
	return ""
}

// giveMode gives lead a mode of its own where the fleet hands off nothing.
func (l *simulation) giveMode(p *protocol.Profile) {
	if p.ID == "lead" && l.handsOffNothing() {
		p.Handoffs = protocol.HandoffsOn
	}
}

// checkMode: an agent of a fleet whose handoffs are off hands off nothing, and loses no attempt by
// asking for it with a result.
func (j *judge) checkMode(after protocol.State, events []protocol.Event) {
	if !j.l.handsOffNothing() {
		return
	}
	s := after.Summary
	free := s.Source == protocol.Human || s.Source == "lead" || s.Type == protocol.Escalation || s.ReturnOf != "" || s.CallOf != "" || s.Origin != ""
	for _, e := range events {
		switch e := e.(type) {
		case *protocol.Submitted:
			if !free {
				j.faultLocked("%s hands off %s, and the handoffs of the fleet are off", s.Source, after.Ticket)
			}
		case *protocol.Failed:
			if lifecycle.Bars(protocol.Code(e.Code)) {
				j.faultLocked("%s has lost an attempt for what may not be handed off: %s", after.Ticket, e.Code)
			}
		}
	}
}

// losesAwait is the end of an attempt whose result waits, as a planted bug has it.
func (l *simulation) losesAwait() error {
	if l.bug != awaitBarredLost || !l.handsOffNothing() {
		return nil
	}
	return &worker.Failure{Code: string(protocol.CodeHandoffsOff), Err: errors.New("it hands off nothing"), Permanent: true}
}

// seenFleet are the settings of the fleet as processes read them.
func (l *simulation) seenFleet(f protocol.Fleet) protocol.Fleet {
	switch l.bug {
	case fleetModeUnread:
		f.Handoffs = ""
	case classIgnored:
		f.Complexity = nil
	}
	return f
}

// spelled is the name of an agent as models write it.
func spelled(agent string, n uint64) string {
	return []string{agent, agent, `\"` + agent + `\"`, agent + ".", strings.ToUpper(agent)}[n%5]
}

// readsLiterally is the end of an attempt whose result names an agent, as a planted bug has it.
func (l *simulation) readsLiterally(name string) error {
	if l.bug != namesLiteral || agents[name] > 0 {
		return nil
	}
	return &worker.Failure{Code: string(protocol.CodeBadResult), Err: errors.New("it is the id of no agent"), Permanent: true}
}

// checkNames: no attempt is lost for the way that a name is spelled, and nothing is handed off to
// such a name.
func (j *judge) checkNames(after protocol.State, events []protocol.Event) {
	for _, e := range events {
		switch e := e.(type) {
		case *protocol.Failed:
			if e.Code == string(protocol.CodeBadResult) {
				j.faultLocked("%s has lost an attempt for its result: %s", after.Ticket, e.Message)
			}
		case *protocol.HandedOff:
			if to := e.Target; to != nowhere && agents[to] == 0 && agents[strings.ToLower(strings.Trim(to, `".`))] > 0 {
				j.faultLocked("%s hands off to %s, which is how a model spells an agent", after.Ticket, to)
			}
		}
	}
}

// complexity is the rule of the fleet that classifies what lead submits, in every twelfth simulation.
func (l *simulation) complexity() []protocol.ComplexityRule {
	if l.seed%12 != 4 {
		return nil
	}
	return []protocol.ComplexityRule{{If: protocol.ApprovalWhen{Source: "lead"}, Class: "complex"}}
}

// checkClass: what a source submits that a rule of the fleet fits is of the class of that rule, and
// has its limits; nothing else is of a class.
func (j *judge) checkClass(before, after protocol.State) {
	if before.Ticket != "" {
		return
	}
	s, want := after.Summary, ""
	if len(j.l.complexity()) > 0 && s.Source == "lead" && s.N == 0 && s.Group == "" && s.ReturnOf == "" && s.CallOf == "" && s.Type != protocol.Escalation {
		want = "complex/rule 1"
	}
	switch {
	case s.Classified != want:
		j.faultLocked("%s of %s is classified as %q, and the rules of the fleet say %q", after.Ticket, s.Source, s.Classified, want)
	case want != "" && (s.Limits == nil || s.Limits.MaxAgents == nil || s.Limits.MaxHandoffs == nil || s.Limits.MaxTokens == nil):
		j.faultLocked("%s is complex, and has the limits %+v", after.Ticket, s.Limits)
	}
}
