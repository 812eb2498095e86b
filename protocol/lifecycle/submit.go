package lifecycle

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	p "github.com/agenthandoff/handoff/protocol"
)

// ResolvePolicy is the policy for a package at an agent: the defaults, then the fleet's, then the
// agent's, then the package's own. d has the settings of the fleet; nil has none.
func ResolvePolicy(s p.Summary, profile p.Profile, d *Directory) p.Policy {
	policy := p.DefaultPolicy().With(d.fleetPolicy())
	if profile.MaxExecutionMS > 0 {
		policy.WorkTimeoutMS = profile.MaxExecutionMS
	}
	return policy.With(profile.Policy).With(s.Overrides)
}

// Submit decides the first append of a handoff: which agent gets the offer, under which policy. body
// holds the package, or says where it lies. A *protocol.Error is that of Admit.
//
// An experiment refuses nothing: where the agent of its variant may not have the handoff now, the
// package's own target gets it, and the state names the variant with FellBack behind it.
func Submit(ticket string, summary p.Summary, body p.Submitted, d *Directory, now time.Time) (Step, error) {
	d = d.At(now)
	summary = d.classify(summary)
	waits := summary.OnOpen == p.OnOpenWait
	if d == nil || d.Fleet == nil || len(d.Fleet.Experiments) == 0 { // as a rule
		return submitTo(ticket, summary, body, d, now, waits, "")
	}
	varied := InExperiment(ticket, summary, d.Fleet)
	if !movesTarget(&varied, &summary) {
		return submitTo(ticket, varied, body, d, now, waits, "")
	}
	first := varied
	first.OnUnknown = "" // the package's own target is there
	step, err := submitTo(ticket, first, body, d, now, false, "")
	var refused, own *p.Error
	if !errors.As(err, &refused) {
		return step, err
	}
	cause, _, _ := strings.Cut(refused.Message, ";") // and not what to do about it
	why := fmt.Sprintf("the variant %s of an experiment cannot take it: %s", varied.Variant, cause)
	fallen := summary
	fallen.Variant = varied.Variant + FellBack
	step, err = submitTo(ticket, fallen, body, d, now, waits, p.CutText(why, p.ReasonBytesMax))
	if !errors.As(err, &own) {
		return step, err
	}
	if waits && errors.Is(refused, errBreakerOpen) {
		return submitTo(ticket, varied, body, d, now, true, "")
	}
	if own.Message == refused.Message { // of the source, say
		return Step{}, err
	}
	both := *own
	both.Message += "; " + why
	return Step{}, &both
}

// awaitsAgent reports whether a submission waits for an agent that is not there yet, and err is that.
func awaitsAgent(s *p.Summary, err error) bool {
	var missing *p.Error
	return s.OnUnknown == p.OnOpenWait && errors.As(err, &missing) &&
		(missing.Code == p.CodeUnknownAgent || missing.Code == p.CodeNoAgent && missing.Field == "target.capability")
}

// submitTo is Submit in no experiment, or with what one has made of the summary. waits is that a
// breaker which is open keeps it waiting, and does not refuse it; note is a warning about its way.
func submitTo(ticket string, summary p.Summary, body p.Submitted, d *Directory, now time.Time, waits bool, note string) (Step, error) {
	d = d.forTicket(ticket, summary)
	routing, err := Admit(summary, d)
	waits = waits && errors.Is(err, errBreakerOpen) || awaitsAgent(&summary, err)
	if err != nil && !waits {
		return Step{}, err
	}
	if note != "" {
		routing.Warnings = append(slices.Clone(routing.Warnings), note)
	}
	submitted := submittedEvent(ticket, summary, body, d, now)
	mark, _, _ := d.lets(routing.Choice, ticket)
	if summary.Aggregate != nil || summary.AwaitsSource || waits || mark == p.BreakerProbe {
		// Its members are offered; or it is, when its source has completed (FollowSource), or when a
		// supervisor finds that the breaker of its agent lets it through, or that there is one.
		return StepOf(p.State{}, submitted)
	}
	if summary.Bids != nil && summary.Target.Capability != "" { // redriven to an agent it has no others
		gated, err := callBids(ticket, &submitted.Summary, d, submitted.Meta)
		if err != nil {
			return Step{}, err
		}
		return StepOf(p.State{}, submitted, gated)
	}
	profile, _ := d.Agent(routing.Choice)
	submitted.Policy = ResolvePolicy(summary, profile, d)
	if submitted.Summary.Limits != nil && !isSubmitted(&summary) { // it may have got nothing to begin with
		t, err := StepOf(p.State{}, submitted)
		if err == nil && exhaustedBudget(&t.State) != "" {
			err = t.add(withinBudget(t.State, d, offerOrGate(&t.State, d, submitted.Meta, offerTo{agent: routing.Choice, reason: OfferSubmitted, routing: &routing}), now)...)
			return t, err
		}
	}
	if terms := joinTerms(&p.State{Summary: summary}, gateTerms(&summary, nil, &profile, d, now), now); terms != nil {
		terms.Agent, terms.Offer = routing.Choice, OfferSubmitted
		return StepOf(p.State{}, submitted, &p.Gated{Meta: submitted.Meta, GateTerms: *terms, Routing: &routing})
	}
	offered := &p.Offered{Meta: submitted.Meta, Agent: routing.Choice, Reason: OfferSubmitted, Breaker: mark}
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
	return StepOf(p.State{}, submittedEvent(ticket, summary, body, d, now))
}

// SubmitUndelivered is Submit for what was handed on with a result and no agent can be given:
// why says the reason. The work that it follows from is done and stays done, so that it begins
// all the same, with the authority of its source, which sends it on (RerouteTo), answers it when
// the agent is there, or does it. The policy may have it wait for its agent, go back to its
// source or end instead. d has the source and those above it.
func SubmitUndelivered(ticket string, summary p.Summary, body p.Submitted, d *Directory, why string, now time.Time) (Step, error) {
	t, err := StepOf(p.State{}, submittedEvent(ticket, summary, body, d, now))
	if err != nil || summary.Aggregate != nil {
		return t, err
	}
	err = t.add(undelivered(t.State, d, p.Meta{At: now, By: By}, why)...)
	return t, err
}

// undelivered says what follows for a handoff that is with no agent, and that none can be given.
func undelivered(s p.State, d *Directory, meta p.Meta, words string) []p.Event {
	why := reason{ReasonUndelivered, p.Facts{Agent: s.Target.String()}}
	if _, known := d.Agent(s.Target.Agent); s.Target.Agent != "" && !known && d != nil {
		if near := p.Nearest(s.Target.Agent, slices.Collect(maps.Keys(d.Agents))); len(near) > 0 {
			words += "; the nearest: " + strings.Join(near, ", ")
		}
	}
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
func submittedEvent(ticket string, summary p.Summary, body p.Submitted, d *Directory, now time.Time) *p.Submitted {
	summary = d.classify(summary) // what was promised may not have been admitted
	body.Meta, body.Ticket, body.Summary = p.Meta{At: now, By: summary.Source}, ticket, summary
	body.Policy = ResolvePolicy(summary, p.Profile{}, d)
	body.Summary.Limits, body.Summary.Class = resolveLimits(summary, d), ""
	if l := body.Summary.Limits; l != nil && l.MaxTimeMS != nil {
		if end := now.Add(millis(*l.MaxTimeMS)); body.Summary.Deadline.IsZero() || end.Before(body.Summary.Deadline) {
			body.Summary.Deadline = end
		}
	}
	return &body
}

// has tells whether there is an agent with a capability, fit or not.
func (d *Directory) has(capability string) bool {
	if d == nil {
		return false
	}
	for _, profile := range d.Agents {
		if _, has := proficiencyOf(&profile, capability); has {
			return true
		}
	}
	return false
}
