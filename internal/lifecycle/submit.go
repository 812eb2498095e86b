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

// resolvePolicy returns the policy for a package at an agent: the defaults, then the fleet's, then
// the agent's, then the package's own. d has the settings of the fleet; nil has none.
func resolvePolicy(s p.Summary, profile *p.Profile, d *Directory) p.Policy {
	policy := p.DefaultPolicy().With(d.fleet().Policy)
	if profile.MaxExecutionMS > 0 {
		policy.WorkTimeoutMS = profile.MaxExecutionMS
	}
	return policy.With(profile.Policy).With(s.Overrides)
}

// Submit decides the first append of a handoff: the agent of the offer, and the policy. body holds
// the package, or its address. It returns the *protocol.Error of Admit.
//
// An experiment refuses nothing: if the agent of its variant may not have the handoff now, the
// package's own target gets it, and the state names the variant with the suffix FellBack.
func Submit(ticket string, summary p.Summary, body p.Submitted, q Query) (Step, error) {
	q = q.withBreakers()
	summary = classify(summary, q.fleet())
	waits := summary.OnOpen == p.OnOpenWait
	if len(q.fleet().Experiments) == 0 { // usual case
		return submitTo(ticket, summary, body, q, waits, "")
	}
	varied := inVariant(ticket, summary, q.Fleet)
	if !movesTarget(&varied, &summary) {
		return submitTo(ticket, varied, body, q, waits, "")
	}
	first := varied
	first.OnUnknown = "" // the package's own target exists
	step, err := submitTo(ticket, first, body, q, false, "")
	var refused, own *p.Error
	if !errors.As(err, &refused) {
		return step, err
	}
	why, _, _ := strings.Cut(refused.Message, ";") // without the advice
	why = fmt.Sprintf("the variant %s of an experiment cannot take it: %s", varied.Variant, why)
	fallen := summary
	fallen.Variant = varied.Variant + FellBack
	step, err = submitTo(ticket, fallen, body, q, waits, p.CutText(why, p.ReasonBytesMax))
	if !errors.As(err, &own) {
		return step, err
	}
	if waits && errors.Is(refused, errBreakerOpen) {
		return submitTo(ticket, varied, body, q, true, "")
	}
	if own.Message == refused.Message { // of the source, for example
		return Step{}, err
	}
	both := *own
	cause, advice, advises := strings.Cut(own.Message, "; ")
	both.Message = cause + "; " + why
	if advises {
		both.Message += "; " + advice
	}
	return Step{}, &both
}

// awaitsAgent reports whether err is a missing agent that the submission waits for.
func awaitsAgent(s *p.Summary, err error) bool {
	missing, refused := errors.AsType[*p.Error](err)
	return s.OnUnknown == p.OnOpenWait && refused &&
		(missing.Code == p.CodeUnknownAgent || missing.Code == p.CodeNoAgent && missing.Field == "target.capability")
}

// submitTo is Submit without experiments, or with a varied summary. waits means that an open
// breaker delays it instead of refusing it; note is a warning about its route.
func submitTo(ticket string, summary p.Summary, body p.Submitted, q Query, waits bool, note string) (Step, error) {
	q = q.forTicket(ticket)
	admitted, err := Admit(summary, q)
	later := summary.StartAt.After(q.Now) && summary.Aggregate == nil && !summary.AwaitsSource
	waits = (waits || later) && errors.Is(err, errBreakerOpen) || awaitsAgent(&summary, err)
	if err != nil && !waits {
		return Step{}, err
	}
	if note != "" {
		admitted.Warnings = append(slices.Clone(admitted.Warnings), note)
	}
	submitted := submittedEvent(ticket, summary, body, q.Directory, q.Now)
	if later {
		if gate := startGate(&p.State{Summary: summary}, q, admitted.Choice, err, submitted.Meta); gate != nil {
			return StepOf(p.State{}, append([]p.Event{submitted}, gate...)...)
		}
	}
	mark, _, _ := q.lets(admitted.Choice, ticket)
	if summary.Aggregate != nil || summary.AwaitsSource || waits || mark == p.BreakerProbe {
		// The offer follows later: to its members; when its source has completed (FollowSource); or when
		// a supervisor finds that the breaker of its agent lets it through, or that an agent now exists.
		return StepOf(p.State{}, submitted)
	}
	if summary.Bids != nil && summary.Target.Capability != "" { // redriven to one agent
		gated, err := callBids(ticket, &submitted.Summary, q, submitted.Meta)
		if err != nil {
			return Step{}, err
		}
		return StepOf(p.State{}, submitted, gated)
	}
	profile, _ := q.Agent(admitted.Choice)
	submitted.Policy = resolvePolicy(summary, profile, q.Directory)
	if submitted.Summary.Limits != nil && !isSubmitted(&summary) { // its grant may be empty
		t, err := StepOf(p.State{}, submitted)
		if err == nil && exhaustedBudget(&t.State) != "" {
			err = t.add(withinBudget(t.State, offerOrGate(&t.State, q, submitted.Meta, offerTo{agent: admitted.Choice, reason: OfferSubmitted, routing: new(admitted)}), q.Now)...)
			return t, err
		}
	}
	if terms := joinTerms(&p.State{Summary: summary}, gateTerms(&summary, nil, profile, q.Directory, q.Now), q.Now); terms != nil {
		terms.Agent, terms.Offer = admitted.Choice, OfferSubmitted
		return StepOf(p.State{}, submitted, &p.Gated{Meta: submitted.Meta, GateTerms: *terms, Routing: new(admitted)})
	}
	offered := &p.Offered{Meta: submitted.Meta, Agent: admitted.Choice, Reason: OfferSubmitted, Breaker: mark}
	if summary.Target.Agent != admitted.Choice || len(admitted.Warnings) > 0 {
		offered.Routing = new(admitted)
	}
	return StepOf(p.State{}, submitted, offered)
}

// SubmitAnyway is Submit for a handoff that was promised already: the child of another, a return, a
// redrive. If its target is unavailable it begins without an offer, and the next reconcile finds an
// agent, or escalates it.
func SubmitAnyway(ticket string, summary p.Summary, body p.Submitted, q Query) (Step, error) {
	if t, err := Submit(ticket, summary, body, q); err == nil {
		return t, nil
	}
	return StepOf(p.State{}, submittedEvent(ticket, summary, body, q.Directory, q.Now))
}

// SubmitUndelivered submits a handoff that continues from a result but cannot be given to any
// agent; why is the reason. The work before it is done and stays done. So it begins with the
// authority of its source, which reroutes it (RerouteTo), answers it when the agent is available,
// or does it. The policy may instead have it wait for its agent, return to its source or end. d has
// the source and those above it.
func SubmitUndelivered(ticket string, summary p.Summary, body p.Submitted, q Query, why string) (Step, error) {
	t, err := StepOf(p.State{}, submittedEvent(ticket, summary, body, q.Directory, q.Now))
	if err != nil || summary.Aggregate != nil {
		return t, err
	}
	if summary.StartAt.After(q.Now) { // its agent may exist by then
		err = t.add(firstOffer(t.State, q, p.Meta{At: q.Now, By: By})...)
		return t, err
	}
	err = t.add(undelivered(t.State, q, p.Meta{At: q.Now, By: By}, why)...)
	return t, err
}

// undelivered decides the next step of a handoff without an agent, if no agent can be given it.
func undelivered(s p.State, q Query, meta p.Meta, words string) []p.Event {
	why := reason{ReasonUndelivered, p.Facts{Agent: s.Target.String()}}
	if _, known := q.Agent(s.Target.Agent); s.Target.Agent != "" && !known && q.Directory != nil {
		if near := p.Nearest(s.Target.Agent, slices.Collect(maps.Keys(q.Agents))); len(near) > 0 {
			words += "; the nearest: " + strings.Join(near, ", ")
		}
	}
	switch s.Policy.OnNoTaker {
	case p.NoTakerQueue:
		return nil
	case p.NoTakerReturn, p.NoTakerClose:
		return noTaker(s, q, meta, p.OutcomeRejected, why)
	}
	from := s
	from.Agent = s.Source // its authority is the one above the agent that handed it off
	level, to, ok := nextAuthority(from, q)
	if !ok {
		end := closed(meta, p.OutcomeRejected, why.causing(reasonNoAuthority), p.Human)
		end.Message += ": " + words
		return []p.Event{end}
	}
	return []p.Event{
		&p.Escalated{Meta: meta, Level: level, To: to, ReasonCode: why.code, Facts: why.factsOrNil(), Reason: why.words() + ": " + words},
		offer(s, q, meta, to, OfferEscalation, nil),
	}
}

// submittedEvent returns the event of a submission, which is usually followed by an offer.
func submittedEvent(ticket string, summary p.Summary, body p.Submitted, d *Directory, now time.Time) *p.Submitted {
	summary = classify(summary, d.fleet()) // a promised handoff may not have been admitted
	body.Meta, body.Ticket, body.Summary = p.Meta{At: now, By: summary.Source}, ticket, summary
	body.Policy = resolvePolicy(summary, &p.Profile{}, d)
	body.Summary.Limits, body.Summary.Class = resolveLimits(summary, d), ""
	if l := body.Summary.Limits; l != nil && l.MaxTimeMS != nil {
		if end := clocksFrom(&summary, now).Add(millis(*l.MaxTimeMS)); body.Summary.Deadline.IsZero() || end.Before(body.Summary.Deadline) {
			body.Summary.Deadline = end
		}
	}
	return &body
}

// has reports whether there is an agent with a capability, fit or not.
func (d *Directory) has(capability string) bool {
	return d != nil && d.anyAgent(func(profile *p.Profile) bool {
		_, has := proficiencyOf(profile, capability)
		return has
	})
}
