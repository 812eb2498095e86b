package lifecycle

import (
	"cmp"
	"slices"
	"strings"
	"time"

	p "github.com/agenthandoff/handoff/protocol"
)

// The acts of a client on an open handoff: answer, cancel, return, take, reroute; and of its
// holder: escalate. Each returns one append, or a *protocol.Error.

// mustBeOpen refuses an act on a closed handoff.
func mustBeOpen(s p.State) error {
	if s.Closed {
		return p.Errorf(p.CodeClosed, "ticket", "%s is closed already (%s)", s.Ticket, s.Outcome)
	}
	return nil
}

// mustBeAssignable refuses an act that requires work which one agent has, or may have.
func mustBeAssignable(s p.State, what string) error {
	switch {
	case s.Gate.First() == p.GateStart:
		return p.Errorf(p.CodeIllegal, "ticket", "%s starts at %s; it is too early to %s it", s.Ticket, instant(s.StartAt), what)
	case s.Phase == p.AwaitingApproval && s.Gate.First() != p.GateLimit:
		return p.Errorf(p.CodeIllegal, "ticket", "%s awaits approval; it is too early to %s it", s.Ticket, what)
	case s.Phase == p.AwaitingSource:
		return p.Errorf(p.CodeIllegal, "ticket", "%s begins when %s completes; it is too early to %s it", s.Ticket, s.Parent, what)
	case s.Aggregate != nil:
		return p.Errorf(p.CodeIllegal, "ticket", "%s is a group and has no work of its own; %s its members, which its status lists", s.Ticket, what)
	}
	return nil
}

// mustNotBeEnding refuses an act on a handoff whose end was requested.
func mustNotBeEnding(s p.State) error {
	if err := mustBeOpen(s); err != nil {
		return err
	}
	if s.CancelRequested {
		return p.Errorf(p.CodeIllegal, "ticket", "the end of %s was asked for already; it closes when its worker has stopped", s.Ticket)
	}
	return nil
}

// Cancel requests the end of a handoff. Without a holder it ends at once. children also cancels its
// children.
func Cancel(s p.State, q Query, by, reason string, children bool) (Step, error) {
	if err := mustBeOpen(s); err != nil {
		return Step{}, err
	}
	if s.CancelRequested && (!children || s.CancelChildren) {
		return Step{}, nil
	}
	return decideAfter(s, q, &p.CancelRequested{Meta: p.Meta{At: q.Now, By: by}, Reason: reason, Children: children})
}

// RollBack returns a handoff to its source: at once without a holder. A holder is asked to stop, to
// clean up and to report its progress, as with Cancel.
func RollBack(s p.State, q Query, by, reason string) (Step, error) {
	if err := mustNotBeEnding(s); err != nil {
		return Step{}, err
	}
	meta := p.Meta{At: q.Now, By: by}
	if s.Held() {
		return decideAfter(s, q, &p.CancelRequested{Meta: meta, Reason: reason, Return: true})
	}
	return decideAfter(s, q, &p.RolledBack{Meta: meta, Reason: reason, Inbox: sourceInbox(s, q.Directory)})
}

// RollBackHeld is the rollback by the holder itself. body holds the partial result or its address;
// it may be empty.
func RollBackHeld(s p.State, q Query, body p.RolledBack) (Step, error) {
	body.At, body.Fence, body.Inbox = q.Now, s.Fence, sourceInbox(s, q.Directory)
	return decideAfter(s, q, &body)
}

// Complete closes a handoff with the result of its holder, and sends its return. A child that was
// handed off before, by an earlier attempt perhaps, is left out, as in HandOff.
func Complete(s p.State, q Query, body p.Completed, handOffs []Next) (Step, error) {
	meta := p.Meta{At: q.Now, By: body.By}
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
		case Bars(refused.Code) && !child.FailBarred: // its work is done, and is kept
			event, body.Status = child.bar(meta, s.Fence, refused, true), p.Partial
		default:
			return Step{}, refused
		}
		if err := t.add(event); err != nil {
			return Step{}, err
		}
	}
	body.At, body.Fence = q.Now, s.Fence
	if err = t.add(&body); err == nil {
		err = t.decide(q)
	}
	return t, err
}

// decideAfter returns events, followed by the core's immediate decisions.
func decideAfter(s p.State, q Query, events ...p.Event) (Step, error) {
	t, err := StepOf(s, events...)
	if err == nil {
		err = t.decide(q)
	}
	return t, err
}

// TakeNow gives a handoff to a holder of an agent at once, also from another holder. It need not be
// offered to that agent, and an earlier refusal by it is dropped. The agent must be fit.
func TakeNow(s p.State, q Query, c Claimant, reason string) (Step, error) {
	if err := mustNotBeEnding(s); err != nil {
		return Step{}, err
	}
	if err := mustBeAssignable(s, "take"); err != nil && (s.Gate.First() != p.GateBudget || c.Agent != p.Human) {
		return Step{}, err
	}
	if budget := emptyBudget(&s); budget != "" && c.Agent != p.Human {
		return Step{}, p.Errorf(p.CodeBudget, "limits."+budget, "%s has nothing left to work with; raise the limit, or take it as a person", s.Ticket)
	}
	profile, known := q.Agent(c.Agent)
	if !known {
		return Step{}, p.Errorf(p.CodeUnknownAgent, "agent", "no agent is called %s", c.Agent)
	}
	if _, err := q.fitNamed(profile, &s.Summary); err != nil && !s.Overridden(c.Agent) {
		return Step{}, p.Errorf(err.Code, "agent", "%s; a person may reroute it there", err.Message)
	}
	if q.Reserved.has(c.Agent) {
		return Step{}, memberConflict(s, "agent", c.Agent)
	}
	if err := cmp.Or(maySettle(s, c.Agent, q.Directory), mayTake(s, c.Agent, q.Directory, q.Now)); err != nil {
		return Step{}, err
	}
	return StepOf(s, &p.Taken{Meta: p.Meta{At: q.Now, By: c.Holder}, Agent: c.Agent, Holder: c.Holder, LeaseMS: c.LeaseMS, Reason: reason})
}

// RerouteTo offers a handoff to the agent that the client names, also from a holder. It does not
// count as a reroute, and an earlier refusal by that agent is dropped. Only a person may choose an
// unfit agent; the event records the rules that this overrides. A nonzero deadline replaces the old
// one; without one an overdue handoff stays overdue.
func RerouteTo(s p.State, q Query, to, by, reason string, deadline time.Time) (Step, error) {
	if err := mustNotBeEnding(s); err != nil {
		return Step{}, err
	}
	if err := mustBeAssignable(s, "reroute"); err != nil && s.Gate.First() != p.GateStart {
		return Step{}, err
	}
	if err := cmp.Or(mayBeDeadline(s, deadline, q.Now), maySettle(s, by, q.Directory)); err != nil {
		return Step{}, err
	}
	profile, known := q.Agent(to)
	switch {
	case !known:
		return Step{}, p.Errorf(p.CodeUnknownAgent, "to", "no agent is called %s", to)
	case !profile.Accepts():
		return Step{}, p.Errorf(p.CodeNotAccepting, "to", "%s takes no handoffs (accepts_handoffs is false)", to)
	case to == s.Source:
		return Step{}, p.Errorf(p.CodeConflict, "to", "%s is its source; roll it back instead", to)
	case q.Reserved.has(to):
		return Step{}, memberConflict(s, "to", to)
	case to == s.Agent:
		return Step{}, p.Errorf(p.CodeConflict, "to", "%s is with %s already", s.Ticket, to)
	}
	if _, err := q.fitNamed(profile, &s.Summary); err != nil && by != p.Human {
		return Step{}, p.Errorf(err.Code, "to", "%s; a person may reroute it there", err.Message)
	}
	meta := p.Meta{At: q.Now, By: by}
	t, err := StepOf(s, &p.Rerouted{Meta: meta, From: s.Agent, To: to, Reason: reason, Manual: true, Deadline: deadline, Override: q.broken(profile, &s.Summary)})
	if err == nil {
		err = t.add(withinBudget(t.State, offerOrGate(&t.State, q, meta, offerTo{agent: to, reason: offerReroute}), q.Now)...)
	}
	return t, err
}

// Escalate passes a handoff from its holder to the next authority. The rationale is required; the
// assessment is optional and holds the findings so far.
func Escalate(s p.State, q Query, by, rationale, assessment string) (Step, error) {
	if err := mustNotBeEnding(s); err != nil {
		return Step{}, err
	}
	if s.Fence == 0 {
		return Step{}, p.Errorf(p.CodeIllegal, "ticket", "%s is %s; only the worker that has accepted it may escalate it", s.Ticket, s.Phase)
	}
	if strings.TrimSpace(rationale) == "" {
		return Step{}, p.Errorf(p.CodeMissing, "rationale", "is missing or empty: an escalation needs a rationale")
	}
	meta := p.Meta{At: q.Now, By: by}
	events := escalate(s, q, meta, reason{})
	up, ok := events[0].(*p.Escalated)
	if !ok {
		return Step{}, p.Errorf(p.CodeIllegal, "ticket", "%s cannot be escalated from %s: no authority is above, or it was escalated %d times", s.Ticket, s.Agent, s.Escalations)
	}
	up.Fence, up.Reason, up.Assessment = s.Fence, rationale, assessment
	return StepOf(s, withinBudget(s, events, q.Now)...)
}

// Answer answers a condition or an escalation. After a condition the offer returns to the agent
// that asked. An escalation returns to the agent that escalated it, and skips authorities that
// refused it or never took it. A denied handoff goes to others.
func Answer(s p.State, q Query, answer p.Answer) (Step, error) {
	if err := mustNotBeEnding(s); err != nil {
		return Step{}, err
	}
	if s.Gate.First() == p.GateBudget {
		return Step{}, wantsRaise(s)
	}
	if err := cmp.Or(MayAnswer(s, answer.By, q.Directory), checkQuestion(s, answer.Question)); err != nil {
		return Step{}, err
	}
	asked := s.Conditions != nil
	switch {
	case s.Gate.First() == p.GateApproval:
		return answerGate(s, q, answer)
	case asked && s.ConditionRounds > s.Policy.MaxConditions: // the next reconcile gives it to another agent
		return Step{}, p.Errorf(p.CodeIllegal, "ticket", "%s has asked %d times, %d are allowed; it is escalated instead", s.Agent, s.ConditionRounds, s.Policy.MaxConditions)
	case asked:
		if err := checkAnswer(s, answer); err != nil {
			return Step{}, err
		}
	}
	meta := p.Meta{At: q.Now, By: answer.By}
	t, err := StepOf(s, &p.Answered{Meta: meta, Answer: answer})
	switch {
	case err != nil:
		return Step{}, err
	case answer.Deny:
		err = t.decide(q)
		return t, err
	case t.State.Agent != "":
		err = t.addDecided(withinBudget(t.State, []p.Event{offer(t.State, q, meta, t.State.Agent, offerAnswer, nil)}, q.Now)...)
		return t, err
	}
	to := s.Summary // it was escalated because there was no agent for it; those that refused it since do not count
	to.Excluded = slices.Concat(to.Excluded, s.Refused)
	routing, err := routeTarget(to, q)
	if err != nil {
		return Step{}, err
	}
	err = t.addDecided(withinBudget(t.State, offerOrGate(&t.State, q, meta, offerTo{agent: routing.Choice, reason: offerAnswer, routing: &routing}), q.Now)...)
	return t, err
}

// checkAnswer checks that an answer gives everything that was asked for.
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

// FindChild finds the child with the key of a package. made reports that child n exists: the
// attempt that asks for it uses that one. Otherwise n is free, and cell is the short form of the
// key for a new child. before lists the short forms that the same append gives to others. A child
// that was dropped with its attempt does not count. Of equal packages without a key it finds the
// key.Nth, or, if that is 0, the first that this attempt has not asked for.
func FindChild(s p.State, key p.ChildKey, before ...string) (n int, cell string, made bool) {
	c := s.Children
	for repeat, nth := 0, 1; ; repeat++ {
		cell = key.Cell(repeat)
		at, there := c.ByCell(cell)
		switch {
		case there && c.Dropped.Has(at):
			continue
		case key.Given != "":
		case key.Nth > 0 && nth < key.Nth, key.Nth == 0 && (there && c.Asked.Has(at) || slices.Contains(before, cell)):
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

// NewChild returns the short form of a key for a new child that a result hands off. It differs from
// those of existing children and from before. all is before plus the new one.
func NewChild(s p.State, key p.ChildKey, before []string) (cell string, all []string) {
	for made := true; made; {
		_, cell, made = FindChild(s, key, before...)
		before = append(before, cell)
	}
	return cell, before
}

// HandOff records a child before it is submitted. The step adopts one that an earlier attempt
// handed off, and is empty for one that this attempt has already handed off.
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

// Adopt records that an attempt asks for children of earlier attempts. The step is empty if it has
// already asked for all of them.
func Adopt(s p.State, by string, children []int, now time.Time) (Step, error) {
	if s.Children == nil || p.Bits("").With(children...).Without(s.Children.Asked) == "" {
		return Step{State: s}, nil
	}
	return StepOf(s, &p.Adopted{Meta: p.Meta{At: now, By: by}, Fence: s.Fence, Children: children})
}

// Suspend releases a holder until children have closed; the next claim brings their ends. The step
// is empty if the holder received the ends of all of them with its claim.
func Suspend(s p.State, by string, children []int, now time.Time) (Step, error) {
	made, received := p.Bits(""), p.Bits("")
	if s.Children != nil {
		made, received = s.Children.Made, s.Children.Received
	}
	awaited := p.Bits("").With(children...)
	if awaited == "" || awaited.Without(made) != "" {
		return Step{}, p.Errorf(p.CodeIllegal, "children", "%s has not handed off the children that it would wait for", s.Ticket)
	}
	if s.Children.After.And(awaited) != "" {
		return Step{}, p.Errorf(p.CodeIllegal, "children", "%s would wait for a child that begins only after its own completion", s.Ticket)
	}
	if awaited.Without(received) == "" {
		return Step{}, nil
	}
	return StepOf(s, &p.Suspended{Meta: p.Meta{At: now, By: by}, Fence: s.Fence, Children: awaited.Numbers()})
}

// Await hands off the children that a result waits for, and suspends. It adopts children of earlier
// attempts. All of this is one append: a holder that dies before it has begun nothing, and one that
// dies after it begins nothing twice. If the end was requested, the handoff is released to it and
// hands off nothing. The step is empty if the holder received all the ends with its claim.
//
// If a limit or a rule refuses one of the children, nothing is handed off, and the error is that
// refusal. With kept, which has the rest of the result, the handoff closes as after a refused goto:
// partial, and barred. Then d must contain the source.
func Await(s p.State, q Query, by string, handOffs []Next, adopted []int, kept *p.Completed) (Step, error) {
	if s.CancelRequested {
		return Release(s, q, by, "", nil)
	}
	meta := p.Meta{At: q.Now, By: by}
	t, err := Adopt(s, by, adopted, q.Now)
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
			return decideAfter(s, q, child.bar(meta, s.Fence, refused, true), kept)
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

// MarkChildren records the ends of children, and decides the next step. The step is empty if the
// handoff does not wait for them.
func MarkChildren(s p.State, q Query, ends []p.ChildClosed) (Step, error) {
	if !marksChildren(s) {
		return Step{}, nil
	}
	news := slices.DeleteFunc(slices.Clone(ends), func(c p.ChildClosed) bool {
		return !s.Children.Made.Has(c.N) || s.Children.Closed.Has(c.N)
	})
	if len(news) == 0 {
		return Step{}, nil
	}
	return decideAfter(s, q, &p.ChildrenClosed{Meta: p.Meta{At: q.Now, By: By}, Children: news})
}

// Park keeps a late result. The step is empty if it is already kept, or the maximum is reached.
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

// CheckRedrive returns an error if a handoff cannot be redriven.
func CheckRedrive(s p.State) error {
	switch {
	case !s.Closed:
		return p.Errorf(p.CodeIllegal, "ticket", "%s is still open (%s)", s.Ticket, s.Phase)
	case s.Outcome == p.OutcomeSuccess || s.Outcome == p.OutcomePartial:
		return p.Errorf(p.CodeIllegal, "ticket", "%s closed with %s; only a handoff that closed without success can be redriven", s.Ticket, s.Outcome)
	case s.ReturnOf != "":
		return p.Errorf(p.CodeIllegal, "ticket", "%s is the return of %s; redrive that", s.Ticket, s.ReturnOf)
	case s.CallOf != "":
		return p.Errorf(p.CodeIllegal, "ticket", "%s asks for a bid for %s; redrive that", s.Ticket, s.CallOf)
	case s.RedrivenAs != "":
		return p.Errorf(p.CodeConflict, "ticket", "%s was redriven already, as %s", s.Ticket, s.RedrivenAs)
	}
	return nil
}

// Dismiss removes a closed handoff from an inbox.
func Dismiss(s p.State, by, note string, now time.Time) (Step, error) {
	switch {
	case !s.Closed:
		return Step{}, p.Errorf(p.CodeIllegal, "ticket", "%s is still open (%s) and waits for an act: answer, take, return, reroute or cancel it", s.Ticket, s.Phase)
	case s.Inbox == "":
		return Step{}, nil
	}
	return StepOf(s, &p.Dismissed{Meta: p.Meta{At: now, By: by}, Note: note})
}

// A denial comes from the source, a person or an authority. It ends the handoff, unless the package
// names deciders: they are asked in order, until one permits it, does the work itself, or none is
// left. A denial that allows other agents is a refusal, and this file does not apply.

// deny records a denial. The agent that asked, or the authority that denied, counts as having
// refused.
func deny(s *p.State, answer p.Answer) {
	s.Phase = p.PhaseRejected
	endProbe(s)
	s.Refused = appendAgent(s.Refused, s.Agent)
	s.Reason, s.Message = reasonDenied, cut(answer.DenyReason)
	s.Denied = ""
	if answer.LetOthers {
		return
	}
	s.Denied = cmp.Or(cutCode(answer.By), s.Source)
	if slices.Contains(s.Deciders, s.Denied) { // and is not asked again
		s.Refused = appendAgent(s.Refused, s.Denied)
	}
}

// nextDecider returns the first decider that has not been asked, or an empty name. It skips the
// source, which answers before the deciders.
func nextDecider(s p.State, q Query) string {
	if s.Escalations >= p.EscalationsTotalMax+p.DecidersMax { // permitted and asked again, without end
		return ""
	}
	for _, name := range s.Deciders {
		profile, known := q.Agent(name)
		if known && q.fitAbove(profile, &s.Summary) && name != s.Agent && name != s.Source && !slices.Contains(s.Refused, name) && !q.Reserved.has(name) {
			return name
		}
	}
	return ""
}

// deniedEnds reports whether a denial is the end: no decider is left, or a clock has run out at
// which the policy closes the handoff.
func deniedEnds(s p.State, q Query) bool {
	if nextDecider(s, q) == "" {
		return true
	}
	if hasPassed(q.Now, Deadline(s)) {
		return s.Policy.OnDeadline == p.DeadlineClose || !s.OverdueSince.IsZero()
	}
	on := s.Policy.OnReturnTimeout
	return hasPassed(q.Now, returnDue(s)) && on != p.OnTimeoutEscalate && on != p.OnTimeoutRetry
}

// closeDenied ends a handoff that was denied. No inbox lists it, since that would ask again, except
// for a return, which is no dead letter either.
func closeDenied(s p.State, meta p.Meta) p.Event {
	end := closed(meta, p.OutcomeRejected, reason{ReasonDenied, p.Facts{Agent: s.Denied}}, personIf(s.ReturnOf != ""))
	if s.Reason == reasonDenied && s.Message != "" {
		end.Message += ": " + s.Message
	}
	return end
}
