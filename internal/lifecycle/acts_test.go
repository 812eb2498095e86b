package lifecycle

import (
	"cmp"
	"errors"
	"slices"
	"strconv"
	"time"

	p "github.com/agenthandoff/handoff/protocol"
)

// act lets somebody do what the handoff's phase calls for.
func (w *world) act(h *thread) {
	s := h.state
	meta := p.Meta{At: w.now, By: "act"}
	switch {
	case s.Closed:
		w.afterwards(h)
	case w.n(10) == 0, s.Phase == p.Retrying && w.n(3) == 0:
		w.intervene(h)
	case s.Gate != nil:
		w.answerGate(h)
	case s.Fence != 0 && s.Account != nil && !s.CancelRequested && w.n(6) == 0: // with more than it had
		w.append(h, []p.Event{&p.Failed{Meta: meta, Fence: s.Fence, Attempt: s.Attempt, Code: "exit", Retryable: true, Usage: &p.Usage{Tokens: 2000}}})
	case s.Aggregate != nil, s.Offer == 0:
		w.reconcile(h)
	case len(s.Absent) > 0 && s.Phase == p.Pending && w.n(2) == 0: // one of its agents comes back
		w.d = w.d.With(p.Holder{ID: one(w, holders...), Agent: cmp.Or(one(w, s.Absent...).Agent, s.Target.Agent, "a"), Slots: 1, LeaseMS: lease})
		w.reconcile(h)
	case s.LapsedClaims > 0 && s.Phase == p.Pending && s.Agent != p.Human && w.n(3) > 0: // its poller vanishes again
		if !s.Held() {
			w.append(h, []p.Event{&p.Claimed{Meta: p.Meta{At: w.now}, Offer: s.Offer, Agent: s.Agent, Holder: w.poller(), LeaseMS: lease}})
		}
		w.reconcile(h)
	case escalated(s) && w.n(4) == 0:
		w.answer(h)
	case s.Phase == p.Pending || s.Held() && w.n(4) == 0:
		w.claim(h)
	case s.Phase == p.PhaseAccepted && w.n(2) == 0:
		w.append(h, []p.Event{&p.Started{Meta: meta, Fence: s.Fence}})
	case s.Held():
		w.work(h, meta)
	case isSuspended(s):
		if child := w.child(h, one(w, s.Children.Awaited.Numbers()...)); child != nil && !child.state.Closed {
			w.act(child)
			break
		}
		w.seeTo(h)
	case s.Phase == p.Conditional:
		w.answer(h)
	default:
		w.reconcile(h)
	}
}

func (w *world) answer(h *thread) {
	asks := QuestionOf(h.state)
	answer := p.Answer{By: one(w, "src", p.Human, one(w, agents...)), Question: max(0, asks.N-w.n(5)/4), Text: w.text(), Permit: w.n(2) == 0, Deny: w.n(4) == 0, DenyReason: w.text()}
	answer.LetOthers = answer.Deny && w.n(2) == 0
	if step, err := Answer(h.state, w.d.At(w.now), answer); err == nil {
		if answer.Question != asks.N || answer.By == h.state.Agent && asks.Kind != asksAuthority && answer.By != p.Human {
			w.fail(h, "%s answered question %d, where %+v was asked", answer.By, answer.Question, asks)
		}
		w.checkReasons(h, h.state, step.Events)
		w.take(h, step)
	}
}

// answerGate is what an approver, or something outside, says to a gate.
func (w *world) answerGate(h *thread) {
	var step Step
	var err error
	if AwaitsBids(h.state) && w.n(4) > 0 {
		if step, err = Award(h.state, w.d.At(w.now), w.calls(h.state)); err == nil {
			w.take(h, step)
		}
		return
	}
	if h.state.Gate.First() == p.GateBudget && w.n(8) > 0 {
		if step, err = TakeNow(h.state, w.d.At(w.now), Claimant{Agent: p.Human, Holder: one(w, holders...), LeaseMS: lease}, w.text()); err == nil {
			w.take(h, step)
		}
		return
	}
	answer := ApprovalAnswer{By: one(w, append(slices.Clone(agents), "src", h.state.Gate.Approver)...), Any: w.n(6) == 0, Reason: w.text()}
	switch w.n(4) {
	case 0:
		step, err = Deny(h.state, w.d.At(w.now), answer)
	case 1:
		step, err = OpenGate(h.state, w.d.At(w.now), Fact{Gate: one(w, p.GateKinds[1:]...)})
	case 2:
		step, err = RefuseGate(h.state, one(w, p.GateKinds[1:]...), p.Errorf(p.CodeConflict, "", "none is left"), w.now)
	default:
		step, err = Approve(h.state, w.d.At(w.now), answer)
	}
	if err == nil {
		w.take(h, step)
	}
}

// intervene is what somebody may do with any open handoff from outside.
func (w *world) intervene(h *thread) {
	var step Step
	var err error
	switch w.n(5) {
	case 0:
		step, err = Cancel(h.state, w.d.At(w.now), "src", w.text(), w.n(2) == 0)
	case 1:
		step, err = RollBack(h.state, w.d.At(w.now), "src", w.text())
	case 2:
		c := Claimant{Agent: one(w, agents...), Holder: one(w, holders...), LeaseMS: lease}
		if c.Holder == h.state.Holder {
			return
		}
		step, err = TakeNow(h.state, w.d.At(w.now), c, w.text())
	default:
		step, err = RerouteTo(h.state, w.d.At(w.now), one(w, agents...), one(w, "src", p.Human), w.text(), w.newDeadline())
	}
	if err == nil {
		w.take(h, step)
	}
}

// afterwards is what somebody may do with a closed handoff.
func (w *world) afterwards(h *thread) {
	if AwaitsBidAnswer(h.state) {
		if step, err := AnswerBid(h.state, one(w, w.all...).state, w.now); err == nil {
			w.take(h, step)
		}
		return
	}
	switch w.n(4) {
	case 0:
		w.seeTo(h)
	case 1, 2:
		if step, err := Dismiss(h.state, "src", w.text(), w.now); err == nil {
			w.take(h, step)
		}
	default:
		step, err := Redrive(h.state, "src", w.now)
		if err != nil || len(w.all) >= threadsMax {
			break
		}
		w.take(h, step)
		s := h.state.Summary
		s.Origin, s.Parent, s.N, s.Group, s.Deadline = h.ticket, "", 0, "", w.now.Add(time.Hour)
		s.Lineage, s.Limits = nil, nil
		w.begin(h.state.RedrivenAs, nil, w.must(SubmitAnyway(h.state.RedrivenAs, s, p.Submitted{}, w.d.At(w.now))))
	}
}

// claim is a holder that pulled the offer.
func (w *world) claim(h *thread) {
	c := Claimant{Agent: h.state.Agent, Holder: one(w, holders...), LeaseMS: lease, Offer: h.state.Offer}
	if h.state.Held() && w.n(2) == 0 {
		c.Holder = h.state.Holder
	}
	if w.n(10) == 0 {
		c.Offer, c.Agent = c.Offer-1, one(w, agents...)
	}
	verdict, step := mustClaim(h.state, c, w.d, w.now)
	switch {
	case verdict == Drop && len(step.Events) > 0:
		w.take(h, step)
	case verdict == Take && w.n(5) == 0:
		id := w.poller()
		if w.n(4) > 0 {
			w.d.Holders[id] = p.Holder{ID: id, Agent: c.Agent, LeaseMS: lease, Polling: true}
		}
		w.append(h, append(step.Events, &p.Claimed{Meta: p.Meta{At: w.now}, Offer: c.Offer, Agent: c.Agent, Holder: id, LeaseMS: lease,
			AckWithinMS: one(w, int64(0), 0, 600_000)}))
	case verdict == Take:
		w.take(h, step.Then(w.must(Acknowledge(step.State, c, w.ack(), w.n(2) == 0, w.now))))
		if h.state.Fence != 0 && (w.n(3) == 0 || w.wild && w.n(2) == 0) {
			if step, err := w.tryHandOff(h, w.handedOff(h)); err == nil {
				w.take(h, step)
			}
		}
	case verdict == Mine && h.state.Fence == 0:
		ack := w.ack()
		step, err := Acknowledge(h.state, c, ack, w.n(2) == 0, w.now)
		if err != nil && ack.Status == p.AckAccepted && emptyBudget(&h.state) != "" {
			return // a late result has used up the rest since the claim, or open children have it
		}
		w.take(h, w.must(step, err))
	}
}

// poller is a holder that polls: its id is made for one claim alone.
func (w *world) poller() string {
	w.polls++
	return "poll-" + strconv.Itoa(w.polls)
}

func (w *world) ack() p.Ack {
	switch w.n(10) {
	case 0, 1:
		return p.Ack{Status: p.AckRejected, ReasonCode: "unable", Reason: w.text(), SuggestedAlternative: one(w, "", "a", "b", "c", "nobody")}
	case 2:
		return p.Ack{Status: p.AckConditional, Reason: w.text(), NeedsContext: []string{w.text()}}
	case 3:
		return p.Ack{Status: p.AckConditional, NeedsPermission: []string{"deploy"}}
	case 4:
		return p.Ack{Status: p.AckConditional, RetryAfterMS: one(w, int64(0), 5_000, 600_000)}
	}
	return p.Ack{Status: p.AckAccepted, EstimatedCompletionMS: int64(w.n(2)) * 1000}
}

// work is what a holder does with what it accepted.
func (w *world) work(h *thread, meta p.Meta) {
	s := h.state
	switch {
	case w.n(8) == 0:
		w.take(h, w.must(Release(s, w.d.At(w.now), s.Holder, "drain", nil)))
	case s.Fence == 0:
		w.claim(h)
	case w.n(4) == 0:
		w.handOff(h)
	case w.n(8) == 0:
		if step, err := Extend(s, s.Holder, time.Duration(w.n(90))*time.Minute, w.text(), w.now); err == nil {
			w.take(h, step)
		}
	case w.n(5) == 0:
		w.append(h, []p.Event{&p.Progressed{Meta: meta, Fence: s.Fence, Progress: p.Progress{Percent: float64(w.n(100)), Message: w.text()}}})
	case w.n(5) == 0:
		w.finish(h)
	case w.n(6) == 0:
		c := Claimant{Agent: s.Agent, Holder: s.Holder, LeaseMS: s.LeaseMS, Offer: s.Offer}
		if ack := w.ack(); ack.Status != p.AckAccepted {
			w.take(h, w.must(Acknowledge(s, c, ack, false, w.now)))
		}
	case w.n(3) > 0:
		w.append(h, []p.Event{&p.Failed{Meta: meta, Fence: s.Fence, Attempt: s.Attempt, Code: "exit", Message: w.text(),
			Retryable: w.n(5) > 0, RetryAfterMS: one(w, int64(0), 0, 60_000)}})
	default:
		w.leave(s.Holder)
	}
}

// handOff is a holder that hands off children, waits for them, or passes its
// handoff up.
func (w *world) handOff(h *thread) {
	s := h.state
	var step Step
	var err error
	switch w.n(5) {
	case 0:
		step, err = Escalate(s, w.d.At(w.now), s.Holder, "too much", w.text())
	case 1:
		step, err = w.tryHandOff(h, w.handedOff(h))
	case 2:
		if s.Children == nil {
			return
		}
		step, err = Suspend(s, s.Holder, []int{w.n(3), w.n(3)}, w.now)
	default: // it hands off and waits
		child := w.handedOff(h)
		if step, err = w.tryHandOff(h, child); err != nil || len(step.Events) == 0 {
			return
		}
		if w.take(h, step); step.State.Children == nil || !step.State.Children.Made.Has(child.N) {
			return
		}
		w.beginChild(h, child.N)
		step, err = Suspend(h.state, s.Holder, []int{child.N}, w.now)
	}
	if err == nil {
		w.take(h, step)
	}
}

// handedOff is one more child of a handoff, or one that it has already.
func (w *world) handedOff(h *thread) Next {
	n := min(w.n(3), w.n(3)) // often one that an earlier attempt had
	if _, known := h.kids[n]; !known {
		s := w.summary(h.state.Agent)
		s.Parent, s.N = h.ticket, n+1
		s.AwaitsSource = s.Type == p.Sequential && s.Aggregate == nil && w.n(2) == 0
		if h.kids == nil {
			h.kids = map[int]p.Summary{}
		}
		h.kids[n] = s
	}
	return w.next(h, p.HandedOff{N: n, After: h.kids[n].AwaitsSource, Returns: h.kids[n].Wait == p.WaitBlock})
}

// next is a child as its holder hands it off.
func (w *world) next(h *thread, e p.HandedOff) Next {
	s := h.kids[e.N]
	e.By, e.Ticket, e.Type, e.Target = h.state.Holder, p.ChildTicketN(h.ticket, e.N), s.Type, s.TargetWords()
	e.Hash = one(w, "0102030405ff", "0102030405fe")
	return Next{HandedOff: e, Asks: s.Limits}
}

// goesOn is the child that the chain of a handoff goes on with.
func (w *world) goesOn(h *thread) Next {
	n := 3 + w.n(2)
	for h.state.Children != nil && h.state.Children.Made.Has(n) {
		n++
	}
	s := w.summary(h.state.Agent)
	s.Type, s.ReturnExpected, s.Wait, s.Parent, s.N = p.Sequential, false, "", h.ticket, n+1
	continueChain(&s, h.state)
	if h.kids == nil {
		h.kids = map[int]p.Summary{}
	}
	h.kids[n] = s
	return w.next(h, p.HandedOff{N: n, Goto: true})
}

// lastOfChain follows a chain as far as it has come; nil is that a link is yet to be submitted.
func (w *world) lastOfChain(h *thread) *thread {
	for h != nil && GoesOn(h.state) {
		next, _ := NextInChain(h.state)
		h = w.by[next]
	}
	return h
}

// finish is a holder's last word: a result, and perhaps what follows from it, or
// the handoff back to its source.
func (w *world) finish(h *thread) {
	s := h.state
	var step Step
	var err error
	if w.n(3) == 0 {
		if step, err = Spend(s, s.Holder, p.Usage{Tokens: int64(w.n(9)), CostMicros: int64(w.n(3))}, p.UsageReport, w.now); err != nil {
			w.fail(h, "its holder cannot say what it has used: %v", err)
		}
		w.take(h, step)
		s = h.state
	}
	if w.n(4) == 0 {
		step, err = RollBackHeld(s, w.d.At(w.now), p.RolledBack{Meta: p.Meta{By: s.Holder}, Reason: w.text(), Result: []byte(`{}`)})
	} else {
		var next []Next
		if w.n(3) == 0 {
			next = append(next, w.handedOff(h))
		}
		if w.n(3) == 0 && (s.Children == nil || s.Children.Next == 0) {
			next = append(next[:0], w.goesOn(h))
		}
		step, err = Complete(s, w.d.At(w.now), p.Completed{Status: one(w, p.Success, p.Partial), Usage: &p.Usage{Tokens: 5}}, next)
	}
	if err != nil {
		w.fail(h, "its holder cannot finish: %v", err)
	}
	w.take(h, step)
}

// comeLate is a holder that lost its claim and finishes nevertheless: nothing
// changes but that its result is kept.
func (w *world) comeLate(h *thread) {
	if len(h.lost) == 0 {
		return
	}
	was := one(w, h.lost...)
	if was.fence == h.state.Fence {
		w.fail(h, "fence %d was lost and is the current one", was.fence)
	}
	w.mustBeStale(h, &p.Completed{Meta: p.Meta{At: w.now, By: was.holder}, Fence: was.fence, Status: p.Success})
	w.take(h, Park(h.state, p.ResultParked{Holder: was.holder, Fence: was.fence, Attempt: was.attempt,
		Status: one(w, p.Success, p.Partial), Usage: &p.Usage{Tokens: 7}}, w.now))
}

// seeTo does what a handoff's duties ask for, as a supervisor does: its
// children are submitted, their ends recorded, its return is on its way.
func (w *world) seeTo(h *thread) {
	duties := DutiesOf(h.state)
	if duties.Children {
		for _, n := range h.state.Children.Made.Numbers() {
			child := w.child(h, n)
			if child == nil && w.room() {
				w.beginChild(h, n)
			}
			if child != nil && DutiesOf(child.state).Source {
				step := w.must(FollowSource(child.state, h.state, w.d.At(w.now)))
				w.checkReasons(child, child.state, step.Events)
				w.take(child, step)
			}
		}
	}
	if duties.CancelChildren {
		for _, n := range h.state.Children.Made.Without(h.state.Children.Closed).Numbers() {
			if child := w.child(h, n); child != nil && !child.state.Closed {
				step, err := Cancel(child.state, w.d.At(w.now), "parent", "", true)
				if err != nil {
					w.fail(child, "cannot be cancelled: %v", err)
				}
				w.take(child, step)
			}
		}
	}
	if duties.Mark {
		w.take(h, w.must(MarkChildren(h.state, w.d.At(w.now), w.ends(h))))
	}
	if duties.Chain {
		if last := w.lastOfChain(h); last != nil {
			w.take(h, w.must(EndChain(h.state, w.d.At(w.now), last.state)))
		}
	}
	if duties.Bids {
		w.take(h, w.must(Award(h.state, w.d.At(w.now), w.calls(h.state))))
	}
	if duties.BidAnswer {
		w.take(h, w.must(AnswerBid(h.state, p.State{}, w.now)))
	}
	if duties.Return {
		w.deliver(h)
	}
}

func (w *world) room() bool { return len(w.all) < threadsMax || w.home }

func (w *world) child(h *thread, n int) *thread { return w.by[p.ChildTicketN(h.ticket, n)] }

// beginChild submits a child, or a member of a group.
func (w *world) beginChild(h *thread, n int) {
	s, known := h.kids[n]
	if !known { // of a group, or one that somebody made up
		s = w.summary(h.state.Source)
		s.Parent, s.N = h.ticket, n+1
		if h.state.Aggregate != nil {
			s.Type, s.Group, s.ReturnExpected, s.Wait = p.Broadcast, h.ticket, false, ""
			if s.Target.String() == "" {
				s.Target.Agent = "b"
			}
		}
	}
	s.Deadline = w.now.Add(24 * time.Hour)
	ticket := p.ChildTicketN(h.ticket, n)
	switch e := h.recorded(n); {
	case h.state.Aggregate != nil:
		s.Lineage, s.Limits = h.state.Lineage, memberLimits(h.state)
	case e != nil:
		s.Lineage, s.Limits = LineageOf(h.state.Lineage, e.Type, h.state.Agent, e.Target, e.Hash), e.Grant
	}
	w.begin(ticket, h, w.must(SubmitAnyway(ticket, s, p.Submitted{}, w.d.At(w.now))))
}

// ends are those of the children that have closed, one of them twice at times.
func (w *world) ends(h *thread) (ends []p.ChildClosed) {
	for _, n := range h.state.Children.Made.Numbers() {
		if child := w.child(h, n); child != nil && HasEnded(child.state) {
			end := ChildEnd(child.state)
			end.N = n
			ends = append(ends, end)
			if n == 1 {
				ends = append(ends, ends[0])
			}
		}
	}
	return ends
}

// deliver brings the return of a closed handoff to its source: to the parent
// that waits, which learns it from its child's end, or as a handoff of its own.
func (w *world) deliver(h *thread) {
	s := h.state
	settled := func(delivered bool) {
		w.append(h, []p.Event{&p.Returned{Meta: p.Meta{At: w.now, By: By}, Delivered: delivered}})
	}
	if s.ReturnTicket == "" {
		parent := p.State{}
		if h.parent != nil {
			parent = h.parent.state
		}
		w.take(h, w.must(SettleChild(s, parent, w.d.At(w.now))))
		return
	}
	ret := w.by[s.ReturnTicket]
	switch {
	case ret == nil && w.room():
		w.begin(s.ReturnTicket, nil, w.must(SubmitAnyway(s.ReturnTicket, returnOf(s), p.Submitted{}, w.d.At(w.now))))
	case ret != nil && ret.state.Closed:
		settled(ret.state.Outcome == p.OutcomeSuccess || ret.state.Outcome == p.OutcomePartial)
	}
}

// returnOf is the summary of a return: it waits for its agent, and nobody else gets it.
func returnOf(s p.State) p.Summary {
	return p.Summary{Type: p.Sequential, Source: "handoff", Target: p.Target{Agent: s.Source}, Priority: s.Priority, ReturnOf: s.Ticket,
		Overrides: p.PolicyOverrides{OnNoTaker: ptr(p.NoTakerQueue), MaxReroutes: ptr(0), MaxEscalations: ptr(0)}}
}

// newDeadline is what somebody who reroutes may set: none, as a rule.
func (w *world) newDeadline() time.Time {
	if w.n(3) > 0 {
		return time.Time{}
	}
	return w.now.Add(one(w, -time.Hour, time.Minute, time.Hour, 24*time.Hour, 200*24*time.Hour))
}

// raise adds to the limits of a handoff.
func (w *world) raise(h *thread) {
	more := p.Amounts{Handoffs: int64(w.n(3)), Tokens: int64(100 * w.n(3))}
	if step, err := Raise(h.state, w.d.At(w.now), "human", h.state.Limits.Bounded(more)); err == nil {
		w.take(h, step)
	}
}

// tryHandOff hands off a child, or records that it is refused.
func (w *world) tryHandOff(h *thread, child Next) (Step, error) {
	step, err := HandOff(h.state, child, w.now)
	var refused *p.Error
	if errors.As(err, &refused) && Bars(refused.Code) {
		return RecordBar(h.state, h.state.Holder, child, refused, w.now)
	}
	return step, err
}
