package lifecycle

import (
	"slices"
	"strings"
	"time"

	p "github.com/agenthandoff/handoff/protocol"
)

// What somebody may do with an open handoff from outside: answer, cancel,
// return, take, reroute; and what its holder may do with it beside the work:
// escalate. Each returns the events of one append, or a *protocol.Error.

// mustBeOpen refuses what comes too late.
func mustBeOpen(s p.State) error {
	if s.Closed {
		return p.Errorf(p.CodeClosed, "ticket", "%s is closed already (%s)", s.Ticket, s.Outcome)
	}
	return nil
}

// mustBeWork refuses what only makes sense for work that one agent has, or may have.
func mustBeWork(s p.State, what string) error {
	if s.Phase == p.AwaitingApproval {
		return p.Errorf(p.CodeIllegal, "ticket", "%s awaits approval; nobody can %s it before that", s.Ticket, what)
	}
	if s.Phase == p.AwaitingSource {
		return p.Errorf(p.CodeIllegal, "ticket", "%s begins when %s completes; nobody can %s it before that", s.Ticket, s.Parent, what)
	}
	if s.Aggregate != nil {
		return p.Errorf(p.CodeIllegal, "ticket", "%s is a group and has no work of its own; %s its members: handoff status %s lists them", s.Ticket, what, s.Ticket)
	}
	return nil
}

// mustGoOn refuses what makes no sense once the end was asked for.
func mustGoOn(s p.State) error {
	if err := mustBeOpen(s); err != nil {
		return err
	}
	if s.CancelRequested {
		return p.Errorf(p.CodeIllegal, "ticket", "the end of %s was asked for already; it closes when its worker has stopped", s.Ticket)
	}
	return nil
}

// Cancel makes the events of a request to end a handoff: at once where nobody
// holds it. children asks for the end of what it has handed off, too.
func Cancel(s p.State, d *Directory, by, reason string, children bool, now time.Time) ([]p.Event, error) {
	if err := mustBeOpen(s); err != nil {
		return nil, err
	}
	if s.CancelRequested && (!children || s.CancelChildren) {
		return nil, nil
	}
	return request(s, d, &p.CancelRequested{Meta: p.Meta{At: now, By: by}, Reason: reason, Children: children})
}

// request appends the wish for an end and what follows from it at once.
func request(s p.State, d *Directory, wish *p.CancelRequested) ([]p.Event, error) {
	events := []p.Event{wish}
	next, err := ApplyAll(s, events)
	if err != nil {
		return nil, err
	}
	return append(events, Decide(next, d, wish.At)...), nil
}

// RollBack returns a handoff to its source (document 4, rollback): at once
// where nobody holds it; else its holder is asked to stop, to clean up and to say
// how far it came, as with Cancel.
func RollBack(s p.State, d *Directory, by, reason string, now time.Time) ([]p.Event, error) {
	if err := mustGoOn(s); err != nil {
		return nil, err
	}
	meta := p.Meta{At: now, By: by}
	if s.Held() {
		return request(s, d, &p.CancelRequested{Meta: meta, Reason: reason, Return: true})
	}
	return settle(s, d, &p.RolledBack{Meta: meta, Reason: reason, Inbox: sourceInbox(s, d)})
}

// HandBack is the rollback by the holder itself. body holds what there is of a
// result, or says where it lies; it may be empty.
func HandBack(s p.State, d *Directory, body p.RolledBack, now time.Time) ([]p.Event, error) {
	body.At, body.Fence, body.Inbox = now, s.Fence, sourceInbox(s, d)
	return settle(s, d, &body)
}

// Complete makes the events by which a holder closes its handoff with a
// result, and sends the return on its way. A child that was handed off before, by
// an earlier attempt perhaps, is left out, as HandOff leaves it out.
func Complete(s p.State, d *Directory, body p.Completed, handOffs []p.HandedOff, now time.Time) ([]p.Event, error) {
	var events []p.Event
	for _, child := range handOffs {
		if s.Children != nil && s.Children.Made.Has(child.N) {
			continue
		}
		child.At, child.By, child.Fence = now, body.By, s.Fence
		events = append(events, &child)
	}
	body.At, body.Fence = now, s.Fence
	return settle(s, d, append(events, &body)...)
}

// settle adds what the core says of the end that events bring about.
func settle(s p.State, d *Directory, events ...p.Event) ([]p.Event, error) {
	next, err := ApplyAll(s, events)
	if err != nil {
		return nil, err
	}
	return append(events, Decide(next, d, events[len(events)-1].When())...), nil
}

// TakeNow gives a handoff to a holder of an agent at once, whoever has it now: it
// need not be offered to that agent, and a refusal of it is forgotten.
func TakeNow(s p.State, d *Directory, c Claimant, reason string, now time.Time) ([]p.Event, error) {
	if err := mustGoOn(s); err != nil {
		return nil, err
	}
	if err := mustBeWork(s, "take"); err != nil {
		return nil, err
	}
	if _, known := d.Agent(c.Agent); !known {
		return nil, p.Errorf(p.CodeUnknownAgent, "agent", "no agent is called %s", c.Agent)
	}
	if d.Reserved(c.Agent) {
		return nil, otherMember(s, "agent", c.Agent)
	}
	return []p.Event{&p.Taken{Meta: p.Meta{At: now, By: c.Holder}, Agent: c.Agent, Holder: c.Holder, LeaseMS: c.LeaseMS, Reason: reason}}, nil
}

// RerouteTo offers a handoff to the agent that somebody names, whoever has it
// now. It does not count as a reroute, and a refusal by that agent is forgotten. A
// deadline that is not zero is its new one; without one an overdue handoff stays overdue.
func RerouteTo(s p.State, d *Directory, to, by, reason string, deadline, now time.Time) ([]p.Event, error) {
	if err := mustGoOn(s); err != nil {
		return nil, err
	}
	if err := mustBeWork(s, "reroute"); err != nil {
		return nil, err
	}
	if err := mayBeDeadline(s, deadline, now); err != nil {
		return nil, err
	}
	profile, known := d.Agent(to)
	switch {
	case !known:
		return nil, p.Errorf(p.CodeUnknownAgent, "to", "no agent is called %s", to)
	case !profile.Accepts():
		return nil, p.Errorf(p.CodeNotAccepting, "to", "%s takes no handoffs (accepts_handoffs is false)", to)
	case to == s.Source:
		return nil, p.Errorf(p.CodeConflict, "to", "%s is its source; to give it back: handoff return %s", to, s.Ticket)
	case d.Reserved(to):
		return nil, otherMember(s, "to", to)
	case to == s.Agent:
		return nil, p.Errorf(p.CodeConflict, "to", "%s is with %s already", s.Ticket, to)
	}
	meta := p.Meta{At: now, By: by}
	return []p.Event{
		&p.Rerouted{Meta: meta, From: s.Agent, To: to, Reason: reason, Manual: true, Deadline: deadline},
		offer(s, d, meta, to, OfferReroute, nil),
	}, nil
}

// Escalate makes the events by which a holder passes its handoff up the chain
// of authority (document 1 §2.4): rationale says why, and is required; the
// assessment is what it has found out.
func Escalate(s p.State, d *Directory, by, rationale, assessment string, now time.Time) ([]p.Event, error) {
	if err := mustGoOn(s); err != nil {
		return nil, err
	}
	if s.Fence == 0 {
		return nil, p.Errorf(p.CodeIllegal, "ticket", "%s is %s; only who has accepted it may escalate it", s.Ticket, s.Phase)
	}
	if strings.TrimSpace(rationale) == "" {
		return nil, p.Errorf(p.CodeMissing, "rationale", "is missing or empty: an escalation says why")
	}
	meta := p.Meta{At: now, By: by}
	events := escalate(s, d, meta, reason{})
	up, ok := events[0].(*p.Escalated)
	if !ok {
		return nil, p.Errorf(p.CodeIllegal, "ticket", "%s cannot be escalated from %s: nobody is above, or it was escalated %d times", s.Ticket, s.Agent, s.Escalations)
	}
	up.Fence, up.Reason, up.Assessment = s.Fence, rationale, assessment
	return events, nil
}

// Answer makes the events of an answer: to a conditional, whose offer goes back
// to the agent that asked; or to an escalation, which goes back to the agent
// that escalated it, past authorities that refused it or never took it. Denied, it
// goes elsewhere.
func Answer(s p.State, d *Directory, answer p.Answer, now time.Time) ([]p.Event, error) {
	if err := mustGoOn(s); err != nil {
		return nil, err
	}
	asked := s.Phase == p.Conditional && s.Conditions != nil
	switch {
	case !asked && !escalated(s):
		return nil, p.Errorf(p.CodeIllegal, "ticket", "%s is %s and asks nothing; only a conditional or an escalated handoff can be answered", s.Ticket, s.Phase)
	case asked && s.ConditionRounds > s.Policy.MaxConditions: // the next look gives it to somebody else
		return nil, p.Errorf(p.CodeIllegal, "ticket", "%s has asked %d times, %d are allowed; it is escalated instead", s.Agent, s.ConditionRounds, s.Policy.MaxConditions)
	case asked:
		if err := answers(s, answer); err != nil {
			return nil, err
		}
	}
	meta := p.Meta{At: now, By: answer.By}
	events := []p.Event{&p.Answered{Meta: meta, Offer: s.Offer, Answer: answer}}
	next, err := ApplyAll(s, events)
	if err != nil {
		return nil, err
	}
	if answer.Deny {
		return append(events, Decide(next, d, now)...), nil
	}
	if next.Agent == "" { // it came up because there was nobody to offer it to
		routing, err := target(next.Summary, d)
		if err != nil {
			return nil, err
		}
		return append(events, offer(next, d, meta, routing.Choice, OfferAnswer, &routing)), nil
	}
	return append(events, offer(next, d, meta, next.Agent, OfferAnswer, nil)), nil
}

// answers checks that an answer gives what was asked for.
func answers(s p.State, answer p.Answer) error {
	switch {
	case answer.Deny:
	case len(s.Conditions.NeedsPermission) > 0 && !answer.Permit:
		return p.Errorf(p.CodeMissing, "permit", "%s asks for permission (%s): permit or deny it", s.Ticket, s.Conditions.NeedsPermission[0])
	case len(s.Conditions.NeedsContext) > 0 && answer.Text == "" && len(answer.Variables) == 0:
		return p.Errorf(p.CodeMissing, "text", "%s asks for context (%s): give it in words or as variables", s.Ticket, s.Conditions.NeedsContext[0])
	}
	return nil
}

// HandOff makes the event that records a child before it is submitted. No
// event is that the child was handed off before, by an earlier attempt perhaps.
func HandOff(s p.State, child p.HandedOff, now time.Time) ([]p.Event, error) {
	if child.N < 0 || child.N >= p.ChildrenMax {
		return nil, p.Errorf(p.CodeTooLarge, "children", "a handoff hands off at most %d others", p.ChildrenMax)
	}
	if s.Children != nil && s.Children.Made.Has(child.N) {
		return nil, nil
	}
	child.At, child.Fence = now, s.Fence
	return []p.Event{&child}, nil
}

// Suspend makes the events by which a holder lets go until children have
// closed. No event is that they are known to have closed already.
func Suspend(s p.State, by string, children []int, now time.Time) ([]p.Event, error) {
	made, over := p.Bits(""), p.Bits("")
	if s.Children != nil {
		made, over = s.Children.Made, s.Children.Closed
	}
	awaited := p.Bits("").With(children...)
	if awaited == "" || awaited.Without(made) != "" {
		return nil, p.Errorf(p.CodeIllegal, "children", "%s has not handed off what it would wait for", s.Ticket)
	}
	if s.Children.After.And(awaited) != "" {
		return nil, p.Errorf(p.CodeIllegal, "children", "%s would wait for what begins when it completes itself", s.Ticket)
	}
	if awaited.Without(over) == "" {
		return nil, nil
	}
	return []p.Event{&p.Suspended{Meta: p.Meta{At: now, By: by}, Fence: s.Fence, Children: awaited.Numbers()}}, nil
}

// MarkChildren makes the events that record the ends of children, and what
// follows from them; none where nobody waits for them.
func MarkChildren(s p.State, d *Directory, ends []p.ChildClosed, now time.Time) []p.Event {
	if !marksChildren(s) {
		return nil
	}
	news := slices.DeleteFunc(slices.Clone(ends), func(c p.ChildClosed) bool {
		return !s.Children.Made.Has(c.N) || s.Children.Closed.Has(c.N)
	})
	if len(news) == 0 {
		return nil
	}
	events, err := settle(s, d, &p.ChildrenClosed{Meta: p.Meta{At: now, By: By}, Children: news})
	if err != nil {
		return nil // it cannot fail for what was filtered
	}
	return events
}

// Park makes the event that keeps a late result; none where it is kept already,
// or as many as may be.
func Park(s p.State, late p.ResultParked, now time.Time) []p.Event {
	late.At = now
	event := []p.Event{&late}
	if _, err := ApplyAll(s, event); err != nil {
		return nil
	}
	return event
}

// Redrive makes the event that records the new handoff of one that closed
// without success.
func Redrive(s p.State, by string, now time.Time) ([]p.Event, error) {
	switch {
	case !s.Closed:
		return nil, p.Errorf(p.CodeIllegal, "ticket", "%s is still open (%s)", s.Ticket, s.Phase)
	case s.Outcome == p.OutcomeSuccess || s.Outcome == p.OutcomePartial:
		return nil, p.Errorf(p.CodeIllegal, "ticket", "%s closed with %s; only what closed without success is redriven", s.Ticket, s.Outcome)
	case s.ReturnOf != "":
		return nil, p.Errorf(p.CodeIllegal, "ticket", "%s is the return of %s; redrive that", s.Ticket, s.ReturnOf)
	case s.RedrivenAs != "":
		return nil, p.Errorf(p.CodeConflict, "ticket", "%s was redriven already, as %s", s.Ticket, s.RedrivenAs)
	}
	return []p.Event{&p.Redriven{Meta: p.Meta{At: now, By: by}, Ticket: p.RedriveTicket(s.Ticket)}}, nil
}

// Dismiss makes the event that takes a closed handoff out of an inbox.
func Dismiss(s p.State, by, note string, now time.Time) ([]p.Event, error) {
	switch {
	case !s.Closed:
		return nil, p.Errorf(p.CodeIllegal, "ticket", "%s is still open (%s) and waits for an act: answer, take, return, reroute or cancel it", s.Ticket, s.Phase)
	case s.Inbox == "":
		return nil, nil
	}
	return []p.Event{&p.Dismissed{Meta: p.Meta{At: now, By: by}, Note: note}}, nil
}
