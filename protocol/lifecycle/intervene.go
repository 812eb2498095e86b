package lifecycle

import (
	"slices"
	"strings"
	"time"

	p "github.com/agenthandoff/handoff/protocol"
)

// What a client may do with an open handoff: answer, cancel,
// return, take, reroute; and what its holder may do with it beside the work:
// escalate. Each returns one append, or a *protocol.Error.

// mustBeOpen refuses what comes too late.
func mustBeOpen(s p.State) error {
	if s.Closed {
		return p.Errorf(p.CodeClosed, "ticket", "%s is closed already (%s)", s.Ticket, s.Outcome)
	}
	return nil
}

// mustBeAssignable refuses what only makes sense for work that one agent has, or may have.
func mustBeAssignable(s p.State, what string) error {
	if s.Phase == p.AwaitingApproval {
		return p.Errorf(p.CodeIllegal, "ticket", "%s awaits approval; it is too early to %s it", s.Ticket, what)
	}
	if s.Phase == p.AwaitingSource {
		return p.Errorf(p.CodeIllegal, "ticket", "%s begins when %s completes; it is too early to %s it", s.Ticket, s.Parent, what)
	}
	if s.Aggregate != nil {
		return p.Errorf(p.CodeIllegal, "ticket", "%s is a group and has no work of its own; %s its members, which its status lists", s.Ticket, what)
	}
	return nil
}

// mustNotBeEnding refuses what makes no sense once the end was asked for.
func mustNotBeEnding(s p.State) error {
	if err := mustBeOpen(s); err != nil {
		return err
	}
	if s.CancelRequested {
		return p.Errorf(p.CodeIllegal, "ticket", "the end of %s was asked for already; it closes when its worker has stopped", s.Ticket)
	}
	return nil
}

// Cancel asks for the end of a handoff, which comes at once where it has no holder. children asks for the end of what it has handed off, too.
func Cancel(s p.State, d *Directory, by, reason string, children bool, now time.Time) (Step, error) {
	if err := mustBeOpen(s); err != nil {
		return Step{}, err
	}
	if s.CancelRequested && (!children || s.CancelChildren) {
		return Step{}, nil
	}
	return decideAfter(s, d, &p.CancelRequested{Meta: p.Meta{At: now, By: by}, Reason: reason, Children: children})
}

// RollBack returns a handoff to its source: at once
// where it has no holder; else its holder is asked to stop, to clean up and to say
// how far it came, as with Cancel.
func RollBack(s p.State, d *Directory, by, reason string, now time.Time) (Step, error) {
	if err := mustNotBeEnding(s); err != nil {
		return Step{}, err
	}
	meta := p.Meta{At: now, By: by}
	if s.Held() {
		return decideAfter(s, d, &p.CancelRequested{Meta: meta, Reason: reason, Return: true})
	}
	return decideAfter(s, d, &p.RolledBack{Meta: meta, Reason: reason, Inbox: sourceInbox(s, d)})
}

// RollBackHeld is the rollback by the holder itself. body holds what there is of a
// result, or says where it lies; it may be empty.
func RollBackHeld(s p.State, d *Directory, body p.RolledBack, now time.Time) (Step, error) {
	body.At, body.Fence, body.Inbox = now, s.Fence, sourceInbox(s, d)
	return decideAfter(s, d, &body)
}

// Complete closes a handoff with the result of its holder, and sends the return on its
// way. A child that was handed off before, by
// an earlier attempt perhaps, is left out, as HandOff leaves it out.
func Complete(s p.State, d *Directory, body p.Completed, handOffs []Next, now time.Time) (Step, error) {
	meta := p.Meta{At: now, By: body.By}
	t, err := chargeFirst(s, body.Usage, handOffs, meta)
	if err != nil {
		return Step{}, err
	}
	for _, child := range handOffs {
		if s.Children != nil && s.Children.Made.Has(child.N) {
			continue
		}
		var event p.Event
		switch refused := child.grant(&t.State); {
		case refused == nil:
			child.Meta, child.Fence = meta, s.Fence
			event = &child.HandedOff
		case Bars(refused.Code) && !child.FailBarred: // its work is done, and stands
			event, body.Status = child.bar(meta, s.Fence, refused, true), p.Partial
		default:
			return Step{}, refused
		}
		if err := t.add(event); err != nil {
			return Step{}, err
		}
	}
	body.At, body.Fence = now, s.Fence
	if err = t.add(&body); err == nil {
		t.decide(d, now)
	}
	return t, err
}

// decideAfter returns events and what the core decides at once after them.
func decideAfter(s p.State, d *Directory, events ...p.Event) (Step, error) {
	t, err := StepOf(s, events...)
	if err == nil {
		t.decide(d, events[len(events)-1].When())
	}
	return t, err
}

// TakeNow gives a handoff to a holder of an agent at once, also from another holder: it
// need not be offered to that agent, and a refusal of it is forgotten. The agent has to be fit.
func TakeNow(s p.State, d *Directory, c Claimant, reason string, now time.Time) (Step, error) {
	if err := mustNotBeEnding(s); err != nil {
		return Step{}, err
	}
	if err := mustBeAssignable(s, "take"); err != nil && (s.Gate.First() != p.GateBudget || c.Agent != p.Human) {
		return Step{}, err
	}
	if budget := exhaustedBudget(&s); budget != "" && c.Agent != p.Human {
		return Step{}, p.Errorf(p.CodeBudget, "limits."+budget, "%s has nothing left to work with; raise the limit, or take it as a person", s.Ticket)
	}
	profile, known := d.Agent(c.Agent)
	if !known {
		return Step{}, p.Errorf(p.CodeUnknownAgent, "agent", "no agent is called %s", c.Agent)
	}
	if _, err := d.fitNamed(&profile, &s.Summary); err != nil && !s.Overridden(c.Agent) {
		return Step{}, p.Errorf(err.Code, "agent", "%s; a person may reroute it there", err.Message)
	}
	if d.Reserved(c.Agent) {
		return Step{}, memberConflict(s, "agent", c.Agent)
	}
	if err := maySettle(s, c.Agent, d); err != nil {
		return Step{}, err
	}
	if err := mayTake(s, c.Agent, d, now); err != nil {
		return Step{}, err
	}
	return StepOf(s, &p.Taken{Meta: p.Meta{At: now, By: c.Holder}, Agent: c.Agent, Holder: c.Holder, LeaseMS: c.LeaseMS, Reason: reason})
}

// RerouteTo offers a handoff to the agent that the client names, also from a
// holder. It does not count as a reroute, and a refusal by that agent is forgotten. An agent that is
// not fit gets it from a person alone, and the event records the rules that this overrides. A
// deadline that is not zero is its new one; without one an overdue handoff stays overdue.
func RerouteTo(s p.State, d *Directory, to, by, reason string, deadline, now time.Time) (Step, error) {
	if err := mustNotBeEnding(s); err != nil {
		return Step{}, err
	}
	if err := mustBeAssignable(s, "reroute"); err != nil {
		return Step{}, err
	}
	if err := mayBeDeadline(s, deadline, now); err != nil {
		return Step{}, err
	}
	if err := maySettle(s, by, d); err != nil {
		return Step{}, err
	}
	profile, known := d.Agent(to)
	switch {
	case !known:
		return Step{}, p.Errorf(p.CodeUnknownAgent, "to", "no agent is called %s", to)
	case !profile.Accepts():
		return Step{}, p.Errorf(p.CodeNotAccepting, "to", "%s takes no handoffs (accepts_handoffs is false)", to)
	case to == s.Source:
		return Step{}, p.Errorf(p.CodeConflict, "to", "%s is its source; roll it back instead", to)
	case d.Reserved(to):
		return Step{}, memberConflict(s, "to", to)
	case to == s.Agent:
		return Step{}, p.Errorf(p.CodeConflict, "to", "%s is with %s already", s.Ticket, to)
	}
	if _, err := d.fitNamed(&profile, &s.Summary); err != nil && by != p.Human {
		return Step{}, p.Errorf(err.Code, "to", "%s; a person may reroute it there", err.Message)
	}
	meta := p.Meta{At: now, By: by}
	t, err := StepOf(s, &p.Rerouted{Meta: meta, From: s.Agent, To: to, Reason: reason, Manual: true, Deadline: deadline, Override: d.broken(&profile, &s.Summary)})
	if err == nil {
		err = t.add(withinBudget(t.State, d, offerOrGate(&t.State, d, meta, offerTo{agent: to, reason: OfferReroute}), now)...)
	}
	return t, err
}

// Escalate passes a handoff up from its holder along the chain
// of authority: rationale says why, and is required; the
// assessment is what it has found out.
func Escalate(s p.State, d *Directory, by, rationale, assessment string, now time.Time) (Step, error) {
	if err := mustNotBeEnding(s); err != nil {
		return Step{}, err
	}
	if s.Fence == 0 {
		return Step{}, p.Errorf(p.CodeIllegal, "ticket", "%s is %s; only who has accepted it may escalate it", s.Ticket, s.Phase)
	}
	if strings.TrimSpace(rationale) == "" {
		return Step{}, p.Errorf(p.CodeMissing, "rationale", "is missing or empty: an escalation says why")
	}
	meta := p.Meta{At: now, By: by}
	events := escalate(s, d, meta, reason{})
	up, ok := events[0].(*p.Escalated)
	if !ok {
		return Step{}, p.Errorf(p.CodeIllegal, "ticket", "%s cannot be escalated from %s: no authority is above, or it was escalated %d times", s.Ticket, s.Agent, s.Escalations)
	}
	up.Fence, up.Reason, up.Assessment = s.Fence, rationale, assessment
	return StepOf(s, events...)
}

// Answer answers: a conditional, whose offer goes back
// to the agent that asked; or to an escalation, which goes back to the agent
// that escalated it, past authorities that refused it or never took it. Denied, it
// goes elsewhere.
func Answer(s p.State, d *Directory, answer p.Answer, now time.Time) (Step, error) {
	if err := mustNotBeEnding(s); err != nil {
		return Step{}, err
	}
	if s.Gate.First() == p.GateBudget {
		return Step{}, wantsRaise(s)
	}
	if err := MayAnswer(s, answer.By, d); err != nil {
		return Step{}, err
	}
	if err := checkQuestion(s, answer.Question); err != nil {
		return Step{}, err
	}
	asked := s.Conditions != nil
	switch {
	case s.Gate.First() == p.GateApproval:
		return answerGate(s, d, answer, now)
	case asked && s.ConditionRounds > s.Policy.MaxConditions: // the next reconcile gives it to another agent
		return Step{}, p.Errorf(p.CodeIllegal, "ticket", "%s has asked %d times, %d are allowed; it is escalated instead", s.Agent, s.ConditionRounds, s.Policy.MaxConditions)
	case asked:
		if err := checkAnswer(s, answer); err != nil {
			return Step{}, err
		}
	}
	meta := p.Meta{At: now, By: answer.By}
	t, err := StepOf(s, &p.Answered{Meta: meta, Answer: answer})
	switch {
	case err != nil:
		return Step{}, err
	case answer.Deny:
		t.decide(d, now)
		return t, nil
	case t.State.Agent != "":
		t.mustAdd(withinBudget(t.State, d, []p.Event{offer(t.State, d, meta, t.State.Agent, OfferAnswer, nil)}, now)...)
		return t, nil
	}
	to := s.Summary // it came up because there was no agent to offer it to; those that refused it since are none
	to.Excluded = slices.Concat(to.Excluded, s.Refused)
	routing, err := routeTarget(to, d)
	if err != nil {
		return Step{}, err
	}
	t.mustAdd(withinBudget(t.State, d, offerOrGate(&t.State, d, meta, offerTo{agent: routing.Choice, reason: OfferAnswer, routing: &routing}), now)...)
	return t, nil
}

// checkAnswer checks that an answer gives what was asked for.
func checkAnswer(s p.State, answer p.Answer) error {
	switch {
	case answer.Deny:
	case len(s.Conditions.NeedsPermission) > 0 && !answer.Permit:
		return p.Errorf(p.CodeMissing, "permit", "%s asks for permission (%s): permit or deny it", s.Ticket, s.Conditions.NeedsPermission[0])
	case len(s.Conditions.NeedsContext) > 0 && answer.Text == "" && len(answer.Variables) == 0:
		return p.Errorf(p.CodeMissing, "text", "%s asks for context (%s): give it in words or as variables", s.Ticket, s.Conditions.NeedsContext[0])
	}
	return nil
}

// FindChild finds the child with the key of a package. made reports that the child n exists: the attempt
// that asks for it goes on with that. Otherwise n is free, and cell is the short form of the key for a
// new child. before are the short forms that the same append gives to others. A child that was
// dropped with its attempt is none. Of equal packages without a key it is the key.Nth, or, if that is
// 0, the first that this attempt has not asked for.
func FindChild(s p.State, key p.ChildKey, before ...string) (n int, cell string, made bool) {
	c := s.Children
	for repeat, nth := 0, 1; ; repeat++ {
		cell = key.Cell(repeat)
		at, there := c.ByCell(cell)
		switch {
		case there && c.Dropped.Has(at):
			continue
		case key.Given != "":
		case key.Nth > 0 && nth < key.Nth, key.Nth == 0 && (there && c.Asked.Has(at) || contains(before, cell)):
			nth++
			continue
		}
		if there {
			return at, cell, true
		}
		if c != nil {
			n = c.Count
		}
		return n, cell, false
	}
}

// NextNth returns which of equal packages without a key an attempt asks for next, from 1.
func NextNth(s p.State, key p.ChildKey) int {
	nth := 1
	for repeat := 0; ; repeat++ {
		at, there := s.Children.ByCell(key.Cell(repeat))
		switch {
		case !there || !s.Children.Dropped.Has(at) && !s.Children.Asked.Has(at):
			return nth
		case !s.Children.Dropped.Has(at):
			nth++
		}
	}
}

// NewChild returns the short form of a key for a child that goes with a result. It is a new one: it is
// none of those that exist, nor one of before. all is before, and that.
func NewChild(s p.State, key p.ChildKey, before []string) (cell string, all []string) {
	for made := true; made; {
		_, cell, made = FindChild(s, key, before...)
		before = append(before, cell)
	}
	return cell, before
}

// HandOff records a child before it is submitted. The step adopts one that an earlier attempt handed
// off, and is empty for one that this attempt has.
func HandOff(s p.State, child Next, now time.Time) (Step, error) {
	if child.N < 0 || child.N >= p.ChildrenMax {
		return Step{}, p.Errorf(p.CodeTooLarge, "children", "a handoff hands off at most %d others", p.ChildrenMax)
	}
	if s.Children != nil && s.Children.Made.Has(child.N) {
		return Adopt(s, child.By, []int{child.N}, now)
	}
	if refused := child.grant(&s); refused != nil {
		return Step{}, refused
	}
	child.At, child.Fence = now, s.Fence
	return StepOf(s, &child.HandedOff)
}

// Adopt has an attempt ask for children that earlier ones handed off. The step is empty for those that
// it has asked for.
func Adopt(s p.State, by string, children []int, now time.Time) (Step, error) {
	if s.Children == nil || p.Bits("").With(children...).Without(s.Children.Asked) == "" {
		return Step{State: s}, nil
	}
	return StepOf(s, &p.Adopted{Meta: p.Meta{At: now, By: by}, Fence: s.Fence, Children: children})
}

// Suspend lets a holder go until children have closed, and their ends come with the next claim. The
// step is empty where the holder got the ends of all of them with its own.
func Suspend(s p.State, by string, children []int, now time.Time) (Step, error) {
	made, received := p.Bits(""), p.Bits("")
	if s.Children != nil {
		made, received = s.Children.Made, s.Children.Received
	}
	awaited := p.Bits("").With(children...)
	if awaited == "" || awaited.Without(made) != "" {
		return Step{}, p.Errorf(p.CodeIllegal, "children", "%s has not handed off what it would wait for", s.Ticket)
	}
	if s.Children.After.And(awaited) != "" {
		return Step{}, p.Errorf(p.CodeIllegal, "children", "%s would wait for what begins when it completes itself", s.Ticket)
	}
	if awaited.Without(received) == "" {
		return Step{}, nil
	}
	return StepOf(s, &p.Suspended{Meta: p.Meta{At: now, By: by}, Fence: s.Fence, Children: awaited.Numbers()})
}

// Await hands off what a result waits for, adopts what an earlier attempt handed off of it, and
// suspends: in one append, so that a holder that dies before it has begun nothing, and one that dies
// after it begins nothing twice. One whose end was requested is released to it, and hands off nothing.
// The step is empty where the holder got the ends of all that it waits for with its claim.
//
// Where a limit or a rule refuses one of them, nothing is handed off, and the error is that refusal.
// With kept, which has the rest of the result, the handoff closes as after a goto that is refused:
// partial, and barred. d has the source then.
func Await(s p.State, d *Directory, by string, handOffs []Next, adopted []int, kept *p.Completed, now time.Time) (Step, error) {
	if s.CancelRequested {
		return Release(s, d, by, "", nil, now)
	}
	meta := p.Meta{At: now, By: by}
	t, err := Adopt(s, by, adopted, now)
	if err != nil {
		return t, err
	}
	suspended := &p.Suspended{Meta: meta, Fence: s.Fence, Children: slices.Clone(adopted)}
	for _, child := range handOffs {
		if s.Children != nil && s.Children.Made.Has(child.N) {
			return Step{}, p.Errorf(p.CodeConflict, "children", "%s has handed off its child %d already", s.Ticket, child.N+1)
		}
		if refused := child.grant(&t.State); refused != nil {
			if kept == nil || child.FailBarred || !Bars(refused.Code) {
				return Step{}, refused
			}
			kept.Meta, kept.Fence, kept.Status = meta, s.Fence, p.Partial
			return decideAfter(s, d, child.bar(meta, s.Fence, refused, true), kept)
		}
		child.Meta, child.Fence = meta, s.Fence
		if err := t.add(&child.HandedOff); err != nil {
			return Step{}, err
		}
		suspended.Children = append(suspended.Children, child.N)
	}
	if s.Children != nil && p.Bits("").With(suspended.Children...).Without(s.Children.Received) == "" {
		return Step{}, nil
	}
	return t, t.add(suspended)
}

// MarkChildren records the ends of children, and what follows from them. The step is
// empty where the handoff does not wait for them.
func MarkChildren(s p.State, d *Directory, ends []p.ChildClosed, now time.Time) (Step, error) {
	if !marksChildren(s) {
		return Step{}, nil
	}
	news := slices.DeleteFunc(slices.Clone(ends), func(c p.ChildClosed) bool {
		return !s.Children.Made.Has(c.N) || s.Children.Closed.Has(c.N)
	})
	if len(news) == 0 {
		return Step{}, nil
	}
	return decideAfter(s, d, &p.ChildrenClosed{Meta: p.Meta{At: now, By: By}, Children: news})
}

// Park keeps a late result. The step is empty where it is kept already, or as many as
// may be.
func Park(s p.State, late p.ResultParked, now time.Time) Step {
	late.At = now
	t, err := StepOf(s, &late)
	if err != nil {
		return Step{}
	}
	return t
}

// Redrive records the new handoff of one that closed without success.
func Redrive(s p.State, by string, now time.Time) (Step, error) {
	if err := CheckRedrive(s); err != nil {
		return Step{}, err
	}
	return StepOf(s, &p.Redriven{Meta: p.Meta{At: now, By: by}, Ticket: p.RedriveTicket(s.Ticket)})
}

// CheckRedrive says why a handoff cannot be redriven.
func CheckRedrive(s p.State) error {
	switch {
	case !s.Closed:
		return p.Errorf(p.CodeIllegal, "ticket", "%s is still open (%s)", s.Ticket, s.Phase)
	case s.Outcome == p.OutcomeSuccess || s.Outcome == p.OutcomePartial:
		return p.Errorf(p.CodeIllegal, "ticket", "%s closed with %s; only what closed without success is redriven", s.Ticket, s.Outcome)
	case s.ReturnOf != "":
		return p.Errorf(p.CodeIllegal, "ticket", "%s is the return of %s; redrive that", s.Ticket, s.ReturnOf)
	case s.CallOf != "":
		return p.Errorf(p.CodeIllegal, "ticket", "%s asks for a bid for %s; redrive that", s.Ticket, s.CallOf)
	case s.RedrivenAs != "":
		return p.Errorf(p.CodeConflict, "ticket", "%s was redriven already, as %s", s.Ticket, s.RedrivenAs)
	}
	return nil
}

// Dismiss takes a closed handoff out of an inbox.
func Dismiss(s p.State, by, note string, now time.Time) (Step, error) {
	switch {
	case !s.Closed:
		return Step{}, p.Errorf(p.CodeIllegal, "ticket", "%s is still open (%s) and waits for an act: answer, take, return, reroute or cancel it", s.Ticket, s.Phase)
	case s.Inbox == "":
		return Step{}, nil
	}
	return StepOf(s, &p.Dismissed{Meta: p.Meta{At: now, By: by}, Note: note})
}
