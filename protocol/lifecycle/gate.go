package lifecycle

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	p "github.com/agenthandoff/handoff/protocol"
)

// A gate stands between a handoff and its next offer (phase awaiting_approval). It waits for one
// thing after the other, in the order of protocol.GateKinds. A decision opens it for the first of
// them: an approval (Approve), or a fact from outside of the ledger (OpenGate). After the last one
// the offer follows in the same append. No clock ends a gate by timed_out that asks a person or an
// agent, for an offer may follow that: what is not answered lapses to the authority above, or the
// handoff closes. A gate that waits for a fact ends by the deadline and the return's clock like any
// other wait.

// gateTerms returns what stands between a handoff and its offer to an agent; nil is that nothing
// does, which is the rule and costs no allocation. given are the approvals that it has. Each kind
// of gate adds to it what it waits for, in the order of protocol.GateKinds.
func gateTerms(s *p.Summary, given []p.ApprovalGiven, profile *p.Profile, d *Directory, now time.Time) *p.GateTerms {
	return approvalTerms(s, given, profile, d, now)
}

// offerTo is an offer that shall be made, or gated.
type offerTo struct {
	agent   string
	reason  string     // of the offer
	routing *p.Routing // nil: the agent was not chosen
	why     reason     // of the reroute that goes before it, where it goes to another agent
}

// offerOrGate returns the events that put a handoff before an agent: its offer, after a reroute
// where it is with another one, or the gate that it has to pass first.
func offerOrGate(s *p.State, d *Directory, meta p.Meta, to offerTo) []p.Event {
	if to.reason == OfferSubmitted && asksForBids(s) {
		if gated, err := callBids(s.Ticket, &s.Summary, d, meta); err == nil { // else it was promised, and goes to the fittest
			return []p.Event{gated}
		}
	}
	profile, _ := d.Agent(to.agent)
	if terms := joinTerms(s, gateTerms(&s.Summary, s.Approvals, &profile, d, meta.At), meta.At); terms != nil {
		terms.Agent, terms.Offer = to.agent, to.reason
		if s.Agent != "" && s.Agent != to.agent {
			terms.Reason, terms.Facts = to.why.code, to.why.factsOrNil()
		}
		return []p.Event{&p.Gated{Meta: meta, GateTerms: *terms, Routing: to.routing}}
	}
	offered := offer(*s, d, meta, to.agent, to.reason, to.routing)
	if s.Agent == "" || s.Agent == to.agent {
		return []p.Event{offered}
	}
	return []p.Event{
		&p.Rerouted{Meta: meta, From: s.Agent, To: to.agent, ReasonCode: to.why.code, Facts: to.why.factsOrNil(), Reason: to.why.words()},
		offered,
	}
}

// stepGate decides about a handoff that a gate keeps from its offer.
func stepGate(s p.State, d *Directory, meta p.Meta) []p.Event {
	gate := s.Gate
	if gate == nil { // no entry that is read has that
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
	case returnClock(s) && hasPassed(meta.At, returnDue(s)):
		if asksAtGate(gate) && !waitsOn(&s) {
			return []p.Event{closed(meta, p.OutcomeTimeout, gateReason(s, ReasonReturnTimeout).withLimit(millis(s.Policy.ReturnTimeoutMS)), p.Human)}
		}
		return []p.Event{&p.TimedOut{Meta: meta, Clock: p.ClockReturn, Agent: s.Agent, Attempt: s.Attempt}}
	case len(gate.Waits) == 0:
		return offerBehindGate(s, gate, d, meta)
	case gate.First() == p.GateApproval && hasPassed(meta.At, gate.Until):
		return stepLapse(s, d, meta)
	}
	return nil // what it waits for is told from outside
}

// asksAtGate reports whether a gate asks a person or agents, now or later. No authority gets by
// silence what they have not allowed, so that a clock closes the handoff.
func asksAtGate(gate *p.Gate) bool {
	return gate != nil && (slices.Contains(gate.Waits, p.GateBids) || slices.Contains(gate.Waits, p.GateApproval) || slices.Contains(gate.Waits, p.GateBudget))
}

// gateReason is the reason for the end of a handoff that no agent had.
func gateReason(s p.State, code string) reason {
	return reason{code, p.Facts{Agent: s.Gate.Agent}}
}

// offerBehindGate makes the offer that an open gate kept back.
func offerBehindGate(s p.State, gate *p.Gate, d *Directory, meta p.Meta) []p.Event {
	agent, routing := gate.Agent, (*p.Routing)(nil)
	if agent == "" {
		chosen, err := routeTarget(s.Summary, d)
		if err != nil {
			return nil
		}
		agent, routing = chosen.Choice, &chosen
	}
	offered := offer(s, d, meta, agent, gate.Offer, routing)
	if s.Agent == "" || s.Agent == agent {
		return []p.Event{offered}
	}
	why := reason{code: gate.Reason}
	if gate.Facts != nil {
		why.facts = *gate.Facts
	}
	return []p.Event{
		&p.Rerouted{Meta: meta, From: s.Agent, To: agent, ReasonCode: why.code, Facts: gate.Facts, Reason: why.words()},
		offered,
	}
}

// Gates tells whether a step closes a gate at which an approver is asked.
func (t Step) Gates() bool {
	for _, e := range t.Events {
		if gated, ok := e.(*p.Gated); ok && slices.Contains(gated.Waits, p.GateApproval) {
			return true
		}
	}
	return false
}

// NeedsSource tells whether what is decided about the offer of a handoff depends on the profile of
// its source: what it may take by itself.
func NeedsSource(s p.Summary) bool {
	return riskLevel(s.Risk) > riskLevel(p.RiskLow) && s.Source != p.Human && s.ReturnOf == ""
}

// Fact is what a gate learns from outside of the ledger.
type Fact struct {
	Gate  p.GateKind
	Agent string // that gets the offer, where the gate chooses it (bids)
	Seq   uint64 // of the entry that says so, in another stream
	Probe bool   // the offer is the one that tells whether its agent works again (breaker)
}

// gateWake is when a gate calls for a decision by itself; zero where it waits for others alone.
func gateWake(s *p.State) time.Time {
	if s.Gate.First() == "" || s.Gate.Denied != "" { // what follows is missing
		return s.UpdatedAt
	}
	return s.Gate.Until
}

// OpenGate tells a gate that something is there which it waits for, and decides what follows: the
// offer after the last one. A fact that the gate does not wait for now changes nothing and is no
// error, so that any number of writers may tell it: a gate before it is still closed, or this one
// is open. Then the step is empty.
//
// To gate by something new: let gateTerms add its kind to what an offer waits for, or return a
// *protocol.Gated from the step that would make the offer (a retry, say), with the kind in Waits,
// the Agent, the reason of the Offer, Why in words, and in Until when it is worth another look.
// The process that learns the fact calls OpenGate in an Update of the handoff; a supervisor, which
// reconciles each gated handoff at Until and now and then, makes up for one that was not told.
// A fact that can never come any more closes the handoff: RefuseGate.
func OpenGate(s p.State, d *Directory, f Fact, now time.Time) (Step, error) {
	if s.Closed || s.Gate.First() != f.Gate || f.Gate == "" || s.CancelRequested {
		return Step{}, nil
	}
	return decideAfter(s, d, &p.GateOpened{Meta: p.Meta{At: now, By: By}, Gate: f.Gate, Agent: f.Agent, Seq: f.Seq, Probe: f.Probe})
}

// AskedAtGate is the agent, or the person, that the gate of a handoff asks now. Empty is that it
// waits for a fact.
func AskedAtGate(s p.State) string {
	switch kind := s.Gate.First(); {
	case s.Closed:
	case kind == p.GateApproval || kind == p.GateBudget:
		return cmp.Or(s.Gate.Approver, p.Human)
	}
	return ""
}

// RefuseGate closes a handoff whose gate of a kind can never open: it lost the race for the last
// place, say. why is the refusal, as an admission would have given it. The step is empty where the
// gate does not wait for that now.
func RefuseGate(s p.State, kind p.GateKind, why *p.Error, now time.Time) (Step, error) {
	if s.Closed || s.Gate.First() != kind || kind == "" {
		return Step{}, nil
	}
	inbox := ""
	if wasPromised(s) {
		inbox = p.Human
	}
	return StepOf(s, &p.Closed{Meta: p.Meta{At: now, By: By}, Outcome: p.OutcomeRejected, Reason: string(why.Code), Message: why.Error(), Inbox: inbox})
}

// wasPromised tells whether a handoff follows from a result: the work before it is done, and a
// person has to hear where it does not go on.
func wasPromised(s p.State) bool {
	return s.AwaitsSource || s.ChainOf != "" || s.ReturnOf != "" || s.Parent != "" && s.N > 0 && s.Wait == "" && s.Group == ""
}

var (
	staleGated = when("a gate is closed already, or an offer stands", func(s *p.State, _ *p.Gated) bool {
		return s.Phase == p.AwaitingApproval || s.Phase == p.Pending && (s.Held() || offerUntouched(s))
	})
	staleGateOpened = when("the gate does not wait for that now", func(s *p.State, e *p.GateOpened) bool { return e.Gate == "" || s.Gate.First() != e.Gate })
	staleLapsed     = when("that level was reached already", func(s *p.State, e *p.Lapsed) bool { return s.Gate == nil || e.Level <= s.Gate.Level })
)

func applyGated(s *p.State, e *p.Gated) error {
	switch {
	case len(e.Waits) == 0 || s.Aggregate != nil:
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
	s.RetryAt, s.TimedOut, s.Conditions = p.Time{}, "", nil // what follows is decided
	endAwait(s)
	endProbe(s)
	return nil
}

// gateOf gives the state a gate of its own to change.
func gateOf(s *p.State) *p.Gate {
	own := p.Gate{}
	if s.Gate != nil {
		own = *s.Gate
	}
	s.Gate = &own
	return &own
}

// openFirst opens the gate for the first thing that it waits for. The wait for declared locks
// begins once nothing else is waited for before.
func openFirst(s *p.State, at p.Time) {
	gate := gateOf(s)
	gate.Waits, gate.Until = slices.Clone(gate.Waits[1:]), p.Time{}
	if len(gate.Waits) == 0 {
		gate.Waits = nil
	}
	if gate.First() == p.GateWorkspace {
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
	if e.Gate == p.GateWorkspace {
		s.Joined, s.LockFence = true, e.Seq
	}
	return nil
}

// checkBehindGate refuses an offer that a gate keeps back, or that it does not name.
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

// checkGate: a handoff awaits approval behind a gate that waits for something, and no other has one.
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

// CheckGate tells whether an append has left a gate as Decide leaves one: behind one that is open
// or was denied, the offer or the end follows in the same append.
func CheckGate(s p.State) error {
	if s.Phase == p.AwaitingApproval && !s.Closed && s.Gate != nil && s.Gate.Agent != "" && (s.Gate.First() == "" || s.Gate.Denied != "") {
		return fmt.Errorf("awaits approval, and its gate waits for nothing: %+v", *s.Gate)
	}
	return nil
}

// mayTake refuses an agent that a gate would stand before.
func mayTake(s p.State, agent string, d *Directory, now time.Time) error {
	profile, _ := d.Agent(agent)
	terms := gateTerms(&s.Summary, s.Approvals, &profile, d, now)
	if terms == nil || agent == s.Agent && s.Offer != 0 {
		return nil
	}
	return p.Errorf(p.CodeForbidden, "agent", "%s may not take %s without asking: it waits for %s; reroute it there", agent, s.Ticket, terms.Waits[0])
}
