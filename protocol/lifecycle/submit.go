package lifecycle

import (
	"fmt"
	"slices"
	"strings"
	"time"

	p "github.com/agenthandoff/handoff/protocol"
)

// ResolvePolicy is the policy for a package at an agent: the defaults, then the
// agent's, then the package's own.
func ResolvePolicy(s p.Summary, profile p.Profile) p.Policy {
	policy := p.DefaultPolicy()
	if profile.MaxExecutionMS > 0 {
		policy.WorkTimeoutMS = profile.MaxExecutionMS
	}
	return policy.With(profile.Policy).With(s.Overrides)
}

// Submit decides the first append of a handoff: who gets the offer, under which
// policy. body holds the package, or says where it lies. It returns a
// *protocol.Error when the target is unknown, takes no handoffs, or no agent has
// the capability.
func Submit(ticket string, summary p.Summary, body p.Submitted, d *Directory, now time.Time) (Step, error) {
	if summary.Aggregate != nil { // a group has no work of its own
		return StepOf(p.State{}, submittedEvent(ticket, summary, body, now))
	}
	routing, err := routeTarget(summary, d)
	if err != nil {
		return Step{}, err
	}
	submitted := submittedEvent(ticket, summary, body, now)
	if summary.AwaitsSource { // it is offered when its source has completed (FollowSource)
		return StepOf(p.State{}, submitted)
	}
	profile, _ := d.Agent(routing.Choice)
	submitted.Policy = ResolvePolicy(summary, profile)
	offered := &p.Offered{Meta: submitted.Meta, Agent: routing.Choice, Reason: OfferSubmitted}
	if summary.Target.Agent != routing.Choice || len(routing.Warnings) > 0 {
		chosen := routing
		offered.Routing = &chosen
	}
	return StepOf(p.State{}, submitted, offered)
}

// SubmitAnyway is Submit for a handoff that was promised already: the child of
// another, a return, a redrive. Where its target is not to be had it begins
// without an offer, and the next reconcile finds an agent, or escalates it.
func SubmitAnyway(ticket string, summary p.Summary, body p.Submitted, d *Directory, now time.Time) (Step, error) {
	if t, err := Submit(ticket, summary, body, d, now); err == nil {
		return t, nil
	}
	return StepOf(p.State{}, submittedEvent(ticket, summary, body, now))
}

// SubmitUndelivered is Submit for what was handed on with a result and no agent can be given:
// why says the reason. The work that it follows from is done and stays done, so that it begins
// all the same, with the authority of its source, which sends it on (RerouteTo), answers it when
// the agent is there, or does it. The policy may have it wait for its agent, go back to its
// source or end instead. d has the source and those above it.
func SubmitUndelivered(ticket string, summary p.Summary, body p.Submitted, d *Directory, why string, now time.Time) (Step, error) {
	t, err := StepOf(p.State{}, submittedEvent(ticket, summary, body, now))
	if err != nil || summary.Aggregate != nil {
		return t, err
	}
	err = t.add(undelivered(t.State, d, p.Meta{At: now, By: By}, why)...)
	return t, err
}

// undelivered says what follows for a handoff that is with no agent, and that none can be given.
func undelivered(s p.State, d *Directory, meta p.Meta, words string) []p.Event {
	why := reason{ReasonUndelivered, p.Facts{Agent: s.Target.String()}}
	switch s.Policy.OnNoTaker {
	case p.NoTakerQueue:
		return nil
	case p.NoTakerReturn, p.NoTakerClose:
		return noTaker(s, d, meta, p.OutcomeRejected, why)
	}
	from := s
	from.Agent = s.Source // its authority is the one above the agent that handed it on
	level, to, ok := nextAuthority(from, d)
	if !ok {
		end := closed(meta, p.OutcomeRejected, why.causing(ReasonNoAuthority), p.Human)
		end.Message += ": " + words
		return []p.Event{end}
	}
	return []p.Event{
		&p.Escalated{Meta: meta, Level: level, To: to, ReasonCode: why.code, Facts: why.factsOrNil(), Reason: why.words() + ": " + words},
		offer(s, d, meta, to, OfferEscalation, nil),
	}
}

// submittedEvent makes the event of a submission, which an offer follows as a rule.
func submittedEvent(ticket string, summary p.Summary, body p.Submitted, now time.Time) *p.Submitted {
	body.Meta, body.Ticket, body.Summary = p.Meta{At: now, By: summary.Source}, ticket, summary
	body.Policy = ResolvePolicy(summary, p.Profile{})
	return &body
}

// has tells whether there is an agent with a capability, fit or not.
func (d *Directory) has(capability string) bool {
	if d == nil {
		return false
	}
	for _, profile := range d.Agents {
		if _, has := proficiencyOf(profile, capability); has {
			return true
		}
	}
	return false
}

// Target returns the agent that Submit offers a package to; none gets that of a group.
func Target(s p.Summary, d *Directory) (string, error) {
	if s.Aggregate != nil {
		return "", nil
	}
	routing, err := routeTarget(s, d)
	return routing.Choice, err
}

// routeTarget finds the agent that a package is for.
func routeTarget(s p.Summary, d *Directory) (p.Routing, error) {
	if s.Type == p.Escalation && s.Target.Agent == "" && s.Target.Capability == "" { // up from its source
		s.Target.Agent = authorityAt(p.State{Summary: s, Agent: s.Source, Policy: ResolvePolicy(s, p.Profile{})}, d, 1)
	}
	switch {
	case s.Target.Capability != "":
		routing, ok := Route(s, d, s.Excluded)
		if !ok && s.Group != "" { // there are fewer agents than members
			routing, ok = Route(s, d.shared(), s.Excluded)
			routing.Warnings = append(slices.Clone(routing.Warnings), fmt.Sprintf("%s has another member of the group", routing.Choice))
		}
		if !ok {
			problem := "no agent has the capability %s"
			if d.has(s.Target.Capability) {
				problem = "no agent with the capability %s may take this (it is the source, refused it before, or its proficiency, max_risk or accepts_handoffs forbids it)"
			}
			return routing, p.Errorf(p.CodeNoAgent, "target.capability", problem+"; start a worker that has it", s.Target.Capability)
		}
		return routing, nil
	}
	name := s.Target.Agent
	if contains(s.Excluded, name) {
		return substituteFor(name, s, d)
	}
	profile, known := d.Agent(name)
	if !known {
		return p.Routing{}, p.Errorf(p.CodeUnknownAgent, "target.agent", "no agent is called %s; start a worker for it", name)
	}
	switch why, _ := unfitForGood(profile, s); why {
	case UnfitRefuses:
		return p.Routing{}, p.Errorf(p.CodeNotAccepting, "target.agent", "%s takes no handoffs (accepts_handoffs is false)", name)
	case UnfitRisk:
		return p.Routing{}, p.Errorf(p.CodeNotAccepting, "audit.risk_level", "%s may take a risk of at most %s, this is %s", name, profile.MaxRisk, s.Risk)
	}
	routing := p.Routing{Choice: name}
	if wanted := requiredOf(s); len(wanted) > 0 && name != p.Human {
		if d != nil {
			routing.Revision = d.Revision
		}
		m, ok := fitness(profile, s, demand{wanted: wanted})
		if !ok {
			return routing, unfitError(profile, m, len(wanted))
		}
		routing.Warnings = m.warnings
	}
	return routing, nil
}

// unfitError says why an agent that was named may not have a package.
func unfitError(profile p.Profile, m match, wanted int) error {
	if len(m.warnings) < wanted {
		return p.Errorf(p.CodeNoAgent, "required_capabilities", "%s, and strict_capabilities is set", strings.Join(m.warnings, "; "))
	}
	return p.Errorf(p.CodeNoAgent, "required_capabilities", "%s has none of the required capabilities in the proficiency asked for", profile.ID)
}
