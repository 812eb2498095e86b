package lifecycle

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	p "github.com/agenthandoff/handoff/protocol"
)

// A gate keeps a handoff from its next offer (phase awaiting_approval). It waits for one thing
// after the other, in the order of protocol.GateKinds. A decision opens it for the first of them:
// an approval (Approve), or a fact from outside of the ledger (OpenGate). After the last one the
// offer follows in the same append.
//
// No clock ends a gate that asks a person or an agent by timed_out, because an offer may follow
// that event. Instead an unanswered question lapses to the authority above, or the handoff closes.
// A gate that waits for a fact ends by the deadline and the return's clock like any other wait.

// gateTerms returns the terms of the gate before the offer of a handoff to an agent. nil, the usual
// case, means no gate and costs no allocation. given are its approvals. Each kind of gate adds its
// condition, in the order of protocol.GateKinds.
func gateTerms(s *p.Summary, given []p.ApprovalGiven, profile *p.Profile, d *Directory, now time.Time) *p.GateTerms {
	terms := approvalTerms(s, given, profile, d, now)
	if !s.StartAt.After(now) {
		return terms
	}
	if terms == nil {
		terms = &p.GateTerms{Until: s.StartAt}
	}
	terms.Waits = append(slices.Clip(terms.Waits), p.GateStart)
	return terms
}

// startGate returns the gate before the start of a handoff; nil if that has passed, or an approval is
// asked for first. The gate names no agent: one is chosen at the start, as if it was submitted then.
// agent is the one that would get it now, and err the reason if there is none.
func startGate(s *p.State, q Query, agent string, err error, meta p.Meta) []p.Event {
	profile, _ := q.Agent(agent)
	if !s.StartAt.After(meta.At) ||
		err == nil && !asksForBids(s) && approvalTerms(&s.Summary, s.Approvals, profile, q.Directory, meta.At) != nil {
		return nil
	}
	return []p.Event{&p.Gated{Meta: meta, GateTerms: p.GateTerms{Waits: []p.GateKind{p.GateStart}, Offer: OfferSubmitted, Until: s.StartAt}}}
}

// clocksFrom returns when the clocks of a handoff begin that would otherwise begin at an instant: not
// before its start.
func clocksFrom(s *p.Summary, at time.Time) time.Time {
	if s.StartAt.After(at) {
		return s.StartAt
	}
	return at
}

// offerTo is an offer that is to be made, or gated.
type offerTo struct {
	agent   string
	reason  string     // of the offer
	routing *p.Routing // nil: the agent was not chosen
	why     reason     // of the preceding reroute, if it goes to another agent
}

// offerOrGate returns the events that bring a handoff to an agent: its offer, after a reroute if
// another agent has it, or the gate that comes first.
func offerOrGate(s *p.State, q Query, meta p.Meta, to offerTo) []p.Event {
	if to.reason == OfferSubmitted && asksForBids(s) {
		if gated, err := callBids(s.Ticket, &s.Summary, q, meta); err == nil { // otherwise it was promised, and goes to the fittest
			return []p.Event{gated}
		}
	}
	profile, _ := q.Agent(to.agent)
	if terms := joinTerms(s, gateTerms(&s.Summary, s.Approvals, profile, q.Directory, meta.At), meta.At); terms != nil {
		terms.Agent, terms.Offer = to.agent, to.reason
		if s.Agent != "" && s.Agent != to.agent {
			terms.Reason, terms.Facts = to.why.code, to.why.factsOrNil()
		}
		return []p.Event{&p.Gated{Meta: meta, GateTerms: *terms, Routing: to.routing}}
	}
	return moveAndOffer(s, q, meta, to)
}

// moveAndOffer returns an offer, after a reroute if another agent has the handoff.
func moveAndOffer(s *p.State, q Query, meta p.Meta, to offerTo) []p.Event {
	offered := offer(*s, q, meta, to.agent, to.reason, to.routing)
	if s.Agent == "" || s.Agent == to.agent {
		return []p.Event{offered}
	}
	return []p.Event{rerouted(s, meta, to.agent, to.why), offered}
}

// rerouted returns the event that moves a handoff to another agent for a reason.
func rerouted(s *p.State, meta p.Meta, to string, why reason) *p.Rerouted {
	return &p.Rerouted{Meta: meta, From: s.Agent, To: to, ReasonCode: why.code, Facts: why.factsOrNil(), Reason: why.words()}
}

// stepGate decides about a handoff behind a gate.
func stepGate(s p.State, q Query, meta p.Meta) []p.Event {
	gate := s.Gate
	if gate == nil { // impossible in an entry that was read
		gate = &p.Gate{}
		s.Gate = gate
	}
	switch {
	case gate.Denied != "":
		return []p.Event{closeUnapproved(s, meta, p.OutcomeRejected, reason{ReasonApprovalDenied, p.Facts{Agent: gate.Denied}})}
	case hasPassed(meta.At, Deadline(s)):
		if asksAtGate(gate) {
			return []p.Event{closed(meta, p.OutcomeTimeout, gateReason(s, ReasonDeadline), p.Human)}
		}
		return []p.Event{&p.TimedOut{Meta: meta, Clock: p.ClockDeadline, Agent: s.Agent, Attempt: s.Attempt}}
	case hasPassed(meta.At, returnDue(s)):
		if asksAtGate(gate) && !waitsOn(&s) {
			return []p.Event{closed(meta, p.OutcomeTimeout, gateReason(s, ReasonReturnTimeout).withLimit(millis(s.Policy.ReturnTimeoutMS)), p.Human)}
		}
		return []p.Event{&p.TimedOut{Meta: meta, Clock: p.ClockReturn, Agent: s.Agent, Attempt: s.Attempt}}
	case len(gate.Waits) == 0:
		return offerBehindGate(s, gate, q, meta)
	case endsAtBudget(&s):
		return []p.Event{closed(meta, p.OutcomeFailed, exhaustion(&s, exhaustedBudget(&s)), p.Human)}
	case gate.First() == p.GateBudget && emptyBudget(&s) == "": // an open child has ended, and returned some
		return []p.Event{&p.GateOpened{Meta: meta, Gate: p.GateBudget}}
	case gate.First() == p.GateStart && hasPassed(meta.At, s.StartAt):
		return []p.Event{&p.GateOpened{Meta: meta, Gate: p.GateStart}}
	case gate.First() == p.GateApproval && hasPassed(meta.At, gate.Until):
		return stepLapse(s, q.Directory, meta)
	}
	return nil // it waits for an event from outside
}

// asksAtGate reports whether a gate asks a person or agents, now or later. Then a clock closes the
// handoff: silence must not bring an authority a handoff that was not approved.
func asksAtGate(gate *p.Gate) bool {
	return gate != nil && (slices.Contains(gate.Waits, p.GateBids) || slices.Contains(gate.Waits, p.GateApproval) || slices.Contains(gate.Waits, p.GateBudget))
}

// gateReason returns the reason for the end of a handoff that no agent had.
func gateReason(s p.State, code string) reason {
	return reason{code, p.Facts{Agent: s.Gate.Agent}}
}

// offerBehindGate returns the offer that an open gate kept back.
func offerBehindGate(s p.State, gate *p.Gate, q Query, meta p.Meta) []p.Event {
	to := offerTo{agent: gate.Agent, reason: gate.Offer, why: reason{code: gate.Reason}}
	if to.agent == "" {
		chosen, err := routeTarget(s.Summary, q)
		if err != nil {
			return nil
		}
		to.agent, to.routing = chosen.Choice, &chosen
	}
	if gate.Facts != nil {
		to.why.facts = *gate.Facts
	}
	return moveAndOffer(&s, q, meta, to)
}

// Gates reports whether a step creates a gate that asks an approver.
func (t Step) Gates() bool {
	for _, e := range t.Events {
		if gated, ok := e.(*p.Gated); ok && slices.Contains(gated.Waits, p.GateApproval) {
			return true
		}
	}
	return false
}

// NeedsSource reports whether decisions about the offer of a handoff depend on the profile of its
// source: on the highest risk that the source may take by itself.
func NeedsSource(s p.Summary) bool {
	return riskLevel(s.Risk) > riskLevel(p.RiskLow) && s.Source != p.Human && s.ReturnOf == ""
}

// Fact is an event from outside of the ledger that opens a gate.
type Fact struct {
	Gate  p.GateKind
	Agent string // that gets the offer, if the gate chooses it (bids)
	Seq   uint64 // of the entry that records the fact, in another stream
	Probe bool   // the offer tests whether its agent works again (breaker)
}

// gateWake returns when a gate needs a decision by itself; zero if it waits only for others.
func gateWake(s *p.State) time.Time {
	if s.Gate.First() == "" || s.Gate.Denied != "" { // its next event is missing
		return s.UpdatedAt
	}
	if s.Gate.First() == p.GateStart {
		return s.StartAt
	}
	return s.Gate.Until
}

// OpenGate records that a fact a gate waits for has occurred, and decides the next step: after the
// last fact, the offer. A fact that the gate does not wait for now changes nothing and is no error:
// an earlier gate may still be closed, or this one already open. The step is then empty. So any
// number of writers may report a fact.
//
// To gate by something new: let gateTerms add its kind to the conditions of an offer, or return a
// *protocol.Gated from the step that would make the offer (a retry, for example), with the kind in Waits,
// the Agent, the reason of the Offer, Why in words, and in Until the time of the next check. The
// process that learns the fact calls OpenGate in an Update of the handoff. A supervisor reconciles
// each gated handoff at Until and at intervals, which covers a missed fact. If a fact can no longer
// occur, RefuseGate closes the handoff.
func OpenGate(s p.State, q Query, f Fact) (Step, error) {
	if s.Closed || s.Gate.First() != f.Gate || f.Gate == "" || s.CancelRequested {
		return Step{}, nil
	}
	return decideAfter(s, q, &p.GateOpened{Meta: p.Meta{At: q.Now, By: By}, Gate: f.Gate, Agent: f.Agent, Seq: f.Seq, Probe: f.Probe})
}

// AskedAtGate returns the agent or person that the gate of a handoff asks now. It is empty if the
// gate waits for a fact.
func AskedAtGate(s p.State) string {
	switch kind := s.Gate.First(); {
	case s.Closed:
	case kind == p.GateApproval || kind == p.GateBudget:
		return cmp.Or(s.Gate.Approver, p.Human)
	}
	return ""
}

// RefuseGate closes a handoff whose gate can never open: it lost the race for the last place, for example.
// why is the refusal that an admission would have given. The step is empty if the gate does not
// wait for that kind now.
func RefuseGate(s p.State, kind p.GateKind, why *p.Error, now time.Time) (Step, error) {
	if s.Closed || s.Gate.First() != kind || kind == "" {
		return Step{}, nil
	}
	return StepOf(s, &p.Closed{Meta: p.Meta{At: now, By: By}, Outcome: p.OutcomeRejected, Reason: string(why.Code), Message: why.Error(), Inbox: personIf(wasPromised(s))})
}

// wasPromised reports whether a handoff follows from a result. The work before it is done, so a
// person must learn if it does not continue.
func wasPromised(s p.State) bool {
	return s.AwaitsSource || s.ChainOf != "" || s.ReturnOf != "" || s.Parent != "" && s.N > 0 && s.Wait == "" && s.Group == ""
}

var (
	staleGated = when("a gate is closed already, or there is an offer", func(s *p.State, e *p.Gated) bool {
		return s.Phase == p.AwaitingApproval || s.Phase == p.Pending && (s.Held() || offerUntouched(s) && (e.Agent != s.Agent || !slices.Contains(e.Waits, p.GateBudget) && !slices.Contains(e.Waits, p.GateLimit)))
	})
	staleGateOpened = when("the gate does not wait for that now", func(s *p.State, e *p.GateOpened) bool { return e.Gate == "" || s.Gate.First() != e.Gate })
	staleLapsed     = when("that level was reached already", func(s *p.State, e *p.Lapsed) bool { return s.Gate == nil || e.Level <= s.Gate.Level })
)

func applyGated(s *p.State, e *p.Gated) error {
	if len(e.Waits) == 0 || s.Aggregate != nil {
		return fmt.Errorf("%w: gated, and waits for %v", ErrIllegal, e.Waits)
	}
	last := -1
	for _, kind := range e.Waits {
		place := slices.Index(p.GateKinds, kind)
		if place <= last {
			return fmt.Errorf("%w: gated, and waits for %v, which is not in the order of gates", ErrIllegal, e.Waits)
		}
		last = place
	}
	if err := beginBidding(s, e); err != nil {
		return err
	}
	gate := &p.Gate{GateTerms: e.GateTerms, Since: e.At}
	gate.Why, gate.Rules = cut(gate.Why), cutAll(gate.Rules)
	if slices.Contains(gate.Waits, p.GateApproval) {
		gate.Question = ask(s)
	}
	s.Gate = gate
	s.RetryAt, s.TimedOut, s.Conditions = p.Time{}, "", nil // the next step is decided
	endAwait(s)
	endProbe(s)
	return nil
}

// openFirst opens the gate for its first condition. The wait for declared locks begins when no
// other condition precedes it.
func openFirst(s *p.State, at p.Time) {
	gate := own(&s.Gate)
	gate.Waits, gate.Until = slices.Clone(gate.Waits[1:]), p.Time{}
	if len(gate.Waits) == 0 {
		gate.Waits = nil
	}
	switch gate.First() {
	case p.GateStart:
		gate.Until = s.StartAt
	case p.GateWorkspace:
		gate.Until = lockWaitEnd(&s.Summary, at)
	}
}

func applyGateOpened(s *p.State, e *p.GateOpened) error {
	if e.Gate == p.GateApproval || e.Gate == p.GateBids {
		return fmt.Errorf("%w: the gate %s opened by no verdict, and no award", ErrIllegal, e.Gate)
	}
	openFirst(s, e.At)
	if e.Agent != "" {
		s.Gate.Agent = e.Agent
	}
	if e.Gate == p.GateStart && s.Gate.First() == "" && s.Gate.Agent == "" { // as if submitted now
		s.Gate, s.Phase = nil, p.Pending
	}
	if e.Gate == p.GateWorkspace {
		s.Joined, s.LockFence = true, e.Seq
	}
	return nil
}

// checkBehindGate refuses an offer that a gate keeps back, or to an agent that it does not name.
func checkBehindGate(s *p.State, agent string) error {
	switch gate := s.Gate; {
	case gate == nil:
	case len(gate.Waits) > 0 || gate.Denied != "":
		return fmt.Errorf("%w: offered to %s behind a gate that waits for %v", ErrIllegal, agent, gate.Waits)
	case gate.Agent != "" && gate.Agent != agent:
		return fmt.Errorf("%w: offered to %s behind a gate that was opened for %s", ErrIllegal, agent, gate.Agent)
	}
	return nil
}

// checkGate checks that exactly the handoffs in awaiting_approval have a gate, and that it waits
// for something.
func checkGate(s p.State) error {
	switch gate := s.Gate; {
	case s.Phase != p.AwaitingApproval && gate == nil:
	case s.Phase != p.AwaitingApproval || gate == nil:
		return fmt.Errorf("in %s, with the gate %+v", s.Phase, gate)
	case s.Held() || OfferStands(s):
		return fmt.Errorf("awaits approval, with holder %q and offer %d", s.Holder, s.Offer)
	}
	if len(s.Approvals) > p.ApprovalsMax {
		return fmt.Errorf("%d approvals, at most %d are kept", len(s.Approvals), p.ApprovalsMax)
	}
	return nil
}

// mayTake refuses an agent for which the handoff would need to pass a gate.
func mayTake(s p.State, agent string, d *Directory, now time.Time) error {
	profile, _ := d.Agent(agent)
	terms := gateTerms(&s.Summary, s.Approvals, profile, d, now)
	if terms == nil || agent == s.Agent && s.Offer != 0 {
		return nil
	}
	return p.Errorf(p.CodeForbidden, "agent", "%s may not take %s without asking: it waits for %s; reroute it there", agent, s.Ticket, terms.Waits[0])
}
