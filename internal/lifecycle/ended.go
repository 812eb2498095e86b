package lifecycle

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	p "github.com/agenthandoff/handoff/protocol"
)

// EndedOffer names an offer that has ended, as it was queued.
type EndedOffer struct {
	Agent string
	Lane  p.Priority
	Offer uint64
}

// OfferStands reports whether the current offer of a handoff may still be in its queue: it waits
// there, or the holder that took it has not acknowledged it to the queue.
func OfferStands(s p.State) bool {
	return !s.Closed && s.Offer != 0 && (s.Phase == p.Pending || s.Held())
}

// EndedBetween returns the offer that an append ended.
func EndedBetween(before, after p.State) (EndedOffer, bool) {
	ended := EndedOffer{before.Agent, before.Priority, before.Offer}
	stands := OfferStands(after) && after.Offer == before.Offer && after.Agent == before.Agent
	return ended, OfferStands(before) && !stands
}

// An Attention may have parts after its word: "now; ended=coder.normal.7; attempt=…".
const (
	partEnded   = "; ended="
	partAttempt = "; attempt="
)

// Word returns an Attention without its parts.
func (a Attention) Word() Attention {
	word, _, _ := strings.Cut(string(a), ";")
	return Attention(word)
}

// part returns one part.
func (a Attention) part(name string) (text string, ok bool) {
	_, text, ok = strings.Cut(string(a), name)
	text, _, _ = strings.Cut(text, ";")
	return text, ok
}

// WithEnded adds an offer that the append ended and that its writer does not hold: a supervisor
// removes it from the queue.
func (a Attention) WithEnded(e EndedOffer) Attention {
	return a + Attention(partEnded+e.Agent+"."+string(e.Lane)+"."+strconv.FormatUint(e.Offer, 10))
}

// Ended splits an Attention into its word and the offer that the append ended.
func (a Attention) Ended() (word Attention, ended EndedOffer, ok bool) {
	text, named := a.part(partEnded)
	if !named { // usual case
		return a.Word(), ended, false
	}
	agent, rest, _ := strings.Cut(text, ".")
	lane, number, _ := strings.Cut(rest, ".")
	offer, err := strconv.ParseUint(number, 10, 64)
	if err != nil || p.CheckID("agent", agent) != nil || !slices.Contains(p.Priorities, p.Priority(lane)) {
		return a.Word(), ended, false
	}
	return a.Word(), EndedOffer{agent, p.Priority(lane), offer}, true
}

// WithAttempt adds an attempt that the append ended: a supervisor counts it.
func (a Attention) WithAttempt(e Attempt) Attention {
	return a + Attention(partAttempt+e.Agent+"."+string(e.End)+"."+strconv.FormatUint(e.Fence, 10)+"."+strconv.FormatInt(e.RetryAfterMS, 10))
}

// Attempt returns the attempt of a handoff that the append ended, if its agent has a breaker.
func (a Attention) Attempt(ticket string) (e Attempt, ok bool) {
	text, named := a.part(partAttempt)
	if !named { // usual case
		return e, false
	}
	words := strings.Split(text, ".")
	if len(words) != 4 {
		return e, false
	}
	fence, err := strconv.ParseUint(words[2], 10, 64)
	after, invalid := strconv.ParseInt(words[3], 10, 64)
	e = Attempt{Agent: words[0], Ticket: ticket, Fence: fence, End: p.AttemptEnd(words[1]), RetryAfterMS: after}
	known := slices.Contains(p.AttemptEnds, e.End) && p.CheckID("agent", e.Agent) == nil
	return e, known && err == nil && invalid == nil && after >= 0 && after <= p.RetryAfterMaxMS
}

// ReasonLedgerDamaged is the reason of a handoff that was closed because the ledger has lost its
// last entries. Either an index had its outcome, or the ledger has lost all of it. An operator
// decides.
const ReasonLedgerDamaged = "ledger_damaged"

// CloseLost closes a handoff whose last entries the ledger has lost. s is its last remaining state;
// if there is none, first replaces its submission. A closed handoff stays unchanged.
func CloseLost(s p.State, first *p.Submitted, outcome p.Outcome, message string, now time.Time) (t Step, err error) {
	if s.Closed {
		return t, nil
	}
	t.State = s
	if s.Phase == fresh {
		if t, err = StepOf(p.State{}, first); err != nil {
			return t, err
		}
	}
	err = t.add(&p.Closed{Meta: p.Meta{At: now, By: By}, Outcome: outcome, Reason: ReasonLedgerDamaged, Message: message})
	return t, err
}

// A handoff that was moved only because agents were absent goes back when one of them returns, its
// addressee first, unless another agent has taken it. Each move back follows a reroute or an
// escalation. Both are bounded, so an agent that comes and goes cannot keep a handoff moving.

// LapsedClaimsMax is how many claims in a row may lapse unacknowledged before an agent counts as
// absent.
const LapsedClaimsMax = 3

// lapsesOut reports whether this claim is the last that the agent may let lapse. A person may let
// any number lapse, and so may an agent whose handoff is offered to no other agent.
func lapsesOut(s p.State) bool {
	return isClaimed(s) && s.LapsedClaims+1 >= LapsedClaimsMax && s.Agent != p.Human && s.Policy.OnNoTaker != p.NoTakerQueue
}

// recordAbsence records the agent that a handoff leaves only because the agent is absent.
func recordAbsence(s *p.State, now p.Time) {
	if s.Phase != p.PhaseTimeout || s.TimedOut != p.ClockAcknowledge || s.Agent == p.Human || s.Denied != "" || !s.OverdueSince.IsZero() || len(s.Absent) >= listMax {
		return
	}
	if s.Agent == "" && s.Target.Agent == "" && s.Target.Capability == "" {
		return
	}
	absence := p.Absence{Agent: s.Agent, Depth: len(s.Chain)}
	if s.LapsedClaims >= LapsedClaimsMax {
		absence.Until = now.Add(AckTimeout(*s))
	}
	s.Absent = append(slices.Clone(s.Absent), absence)
}

// goBack offers a handoff to an agent whose absence moved it, once that agent returns; otherwise
// nil. The bound on escalations applies here too: after the last escalation the handoff stays.
func goBack(s p.State, q Query, meta p.Meta) []p.Event {
	if len(s.Absent) == 0 || s.Held() || !s.OverdueSince.IsZero() || s.Escalations >= p.EscalationsTotalMax {
		return nil
	}
	for _, absence := range s.Absent {
		routing, ok := backAt(s, absence, q)
		if !ok {
			continue
		}
		why := reason{ReasonAgentBack, p.Facts{Agent: routing.Choice}}
		back := rerouted(&s, meta, routing.Choice, why)
		if applyAll(&s, []p.Event{back}) != nil {
			return []p.Event{back} // a bug: it shows as an illegal event
		}
		if s.EscalationLevel > 0 {
			return []p.Event{back, offer(s, q, meta, s.Agent, offerReroute, nil)}
		}
		return append([]p.Event{back}, offerOrGate(&s, q, meta, offerTo{agent: s.Agent, reason: offerReroute})...)
	}
	return nil
}

// backAt returns the agent of an absence, if it has returned and may get the handoff.
func backAt(s p.State, absence p.Absence, q Query) (p.Routing, bool) {
	if q.Now.Before(absence.Until) {
		return p.Routing{}, false
	}
	routing := p.Routing{Choice: absence.Agent}
	if absence.Agent == "" {
		to := s.Summary
		to.Excluded = slices.Concat(to.Excluded, s.Refused)
		var err error
		if routing, err = routeTarget(to, q); err != nil {
			return routing, false
		}
	}
	profile, known := q.Agent(routing.Choice)
	if !known || profile.Paused || routing.Choice == s.Agent || q.Reserved.has(profile.ID) || slices.Contains(s.Refused, profile.ID) || !q.fitAbove(profile, &s.Summary) && !s.Overridden(profile.ID) {
		return routing, false
	}
	if from := edgesOf(s.Summary, q.Directory); absence.Agent == "" && !from.lead(profile) { // it was absent when an agent was chosen
		return routing, false
	}
	if _, _, lets := q.lets(profile.ID, s.Ticket); !lets {
		return routing, false
	}
	live, _, _ := q.Load(profile.ID)
	polled, polls := q.Polled(profile.ID)
	return routing, live > 0 || polls && !polled.Before(absence.Until)
}

// applyGoneBack returns a handoff to its place before an absence moved it.
func applyGoneBack(s *p.State, e *p.Rerouted) error {
	at := slices.IndexFunc(s.Absent, func(a p.Absence) bool { return a.Agent == e.To || a.Agent == "" })
	if at < 0 || s.Absent[at].Depth > len(s.Chain) {
		return fmt.Errorf("%w: back to %q, whose absence has not moved it", ErrIllegal, e.To)
	}
	absence := s.Absent[at]
	s.Absent = slices.Clip(s.Absent[:at])
	if len(s.Absent) == 0 {
		s.Absent = nil
	}
	if absence.Depth < len(s.Chain) {
		s.Chain = slices.Clip(s.Chain[:absence.Depth])
		askAuthority(s)
		takeAuthorityTime(s, e.At)
	}
	if len(s.Chain) == 0 {
		s.Chain = nil
	}
	s.EscalationLevel = authorityLevel(s)
	if s.Reason == ReasonUndelivered {
		s.Reason, s.Message = "", ""
	}
	moveTo(s, e.To)
	return nil
}

// Awaited is an agent or a capability whose arrival may concern a handoff.
type Awaited struct{ Agent, Capability string }

// Offers returns the names that an arriving agent makes available: its own and its capabilities. It
// is empty while the agent is paused or accepts no handoffs.
func (d *Directory) Offers(agent string) (all []Awaited) {
	profile, known := d.Agent(agent)
	if !known || profile.Paused || !profile.Accepts() {
		return nil
	}
	all = append(all, Awaited{Agent: agent})
	if profile.Specialization != "" {
		all = append(all, Awaited{Capability: profile.Specialization})
	}
	for _, c := range profile.Capabilities {
		all = append(all, Awaited{Capability: c.ID})
	}
	return all
}

// AwaitedBy returns the agents whose arrival may move a handoff that no worker holds.
func AwaitedBy(s p.State) (all []Awaited) {
	if s.Closed || s.Held() || s.Phase != p.Pending || s.Aggregate != nil {
		return nil
	}
	for _, absence := range s.Absent {
		if absence.Agent != "" {
			all = append(all, Awaited{Agent: absence.Agent})
			continue
		}
		all = append(all, Awaited{s.Target.Agent, s.Target.Capability})
	}
	if s.Agent == "" {
		all = append(all, Awaited{s.Target.Agent, s.Target.Capability})
	}
	return all
}
