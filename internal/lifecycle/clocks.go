package lifecycle

import (
	"cmp"
	"slices"
	"strings"
	"time"

	p "github.com/agenthandoff/handoff/protocol"
)

// routableSince returns when the search for an agent began for a handoff without an offer: at its
// submission, at the completion of the source that it awaited, or at its start.
func routableSince(s p.State) time.Time {
	if s.AwaitsSource {
		return clocksFrom(&s.Summary, s.UpdatedAt)
	}
	return clocksFrom(&s.Summary, s.SubmittedAt)
}

// progressSince returns the last sign of progress of the current attempt.
func progressSince(s p.State) time.Time {
	if s.ProgressAt.After(s.AcceptedAt) {
		return s.ProgressAt
	}
	return s.AcceptedAt
}

// isClaimed reports whether a holder has claimed the handoff and not acknowledged it.
func isClaimed(s p.State) bool { return s.Phase == p.Pending && s.Held() }

// ClaimTimeout returns how long a claim may wait for its acknowledgement: the time that the claim
// asked for, else the acknowledge timeout. A person has the longest time that a claim may ask for.
func ClaimTimeout(s p.State) time.Duration {
	switch {
	case s.AckWithinMS > 0:
		return millis(min(s.AckWithinMS, p.AckWithinMaxMS))
	case s.Agent == p.Human:
		return millis(p.AckWithinMaxMS)
	}
	return millis(s.Policy.AckTimeoutMS)
}

// ClaimDue returns when an unacknowledged claim lapses; zero without such a claim.
func ClaimDue(s p.State) time.Time {
	if !isClaimed(s) {
		return time.Time{}
	}
	return s.ClaimedAt.Add(ClaimTimeout(s))
}

// queueSince returns when the queue's clock of the current agent began: with its offer, or with the
// first of several offers if claims lapsed between them.
func queueSince(s p.State) time.Time {
	if s.QueuedSince.IsZero() {
		return s.OfferedAt
	}
	return s.QueuedSince
}

// queueDue returns when the queue's clock runs out; zero if it does not run. A person has no queue
// clock.
func queueDue(s p.State) time.Time {
	waits := s.Phase == p.Pending && s.Offer != 0 && s.Aggregate == nil && s.Agent != p.Human
	if !waits || s.Policy.QueueTimeoutMS <= 0 {
		return time.Time{}
	}
	return queueSince(s).Add(millis(s.Policy.QueueTimeoutMS))
}

// Limit returns the first clock that takes a handoff from its holder, and when; zero if there is
// none. It ignores the clock of progress, which the holder restarts itself.
func Limit(s p.State) (at time.Time, clock p.Clock) {
	if !s.Held() || s.Closed {
		return at, clock
	}
	consider := func(due time.Time, of p.Clock) {
		if !due.IsZero() && (at.IsZero() || due.Before(at)) {
			at, clock = due, of
		}
	}
	consider(Deadline(s), p.ClockDeadline)
	consider(returnDue(s), p.ClockReturn)
	consider(workDue(s), p.ClockWork)
	consider(queueDue(s), p.ClockQueue)
	consider(ClaimDue(s), p.ClockAcknowledge)
	return at, clock
}

// workDue returns when the work's clock runs out; zero if it does not run.
func workDue(s p.State) time.Time {
	switch {
	case s.Phase != p.PhaseAccepted && s.Phase != p.Working || s.Policy.WorkTimeoutMS <= 0:
		return time.Time{}
	case !s.ExtendedUntil.IsZero():
		return s.ExtendedUntil
	}
	return s.AcceptedAt.Add(millis(s.Policy.WorkTimeoutMS))
}

// ReminderAt returns when a holder is reminded of its limit: when most of its time since the
// acceptance, or since its extension, is used up. Zero is never.
func ReminderAt(s p.State) time.Time {
	limit, _ := Limit(s)
	since := s.AcceptedAt
	if s.ExtendedAt.After(since) {
		since = s.ExtendedAt
	}
	if s.Fence == 0 || !s.RemindedAt.IsZero() || s.Policy.ReminderPercent <= 0 || !limit.After(since) {
		return time.Time{}
	}
	return since.Add(limit.Sub(since) / 100 * time.Duration(s.Policy.ReminderPercent))
}

// returnClock reports whether the return's clock runs. It runs for a handoff that expects a return,
// or continues a chain that does. It stops at the deadline, and while another time-out or failure
// is undecided.
func returnClock(s p.State) bool {
	undecided := s.Phase == p.PhaseTimeout || s.Phase == p.PhaseFailed
	return s.Policy.ReturnTimeoutMS > 0 && !s.ReturnSince.IsZero() && s.OverdueSince.IsZero() && !undecided
}

// returnDue returns when the return's clock runs out, which begins at the start of the handoff at the
// earliest; zero if it does not run.
func returnDue(s p.State) time.Time {
	if !returnClock(s) {
		return time.Time{}
	}
	return clocksFrom(&s.Summary, s.ReturnSince).Add(millis(cmp.Or(s.ReturnMS, s.Policy.ReturnTimeoutMS)))
}

// holderLost reports whether the holder is gone, as far as this observer can judge: it must itself
// have been connected for one lease.
func holderLost(s p.State, d *Directory, now time.Time) bool {
	if !s.Held() || d.Present(s.Holder) {
		return false
	}
	return connectedFor(d, now, millis(s.LeaseMS))
}

// absent reports whether the agent has had no worker and has not polled for the acknowledge
// timeout. A person is never absent, nor is a paused agent.
func absent(s p.State, d *Directory, now time.Time) bool {
	if d == nil || s.Agent == p.Human || d.Attended(s.Agent) {
		return false
	}
	if profile, _ := d.Agent(s.Agent); profile.Paused {
		return false
	}
	since := s.OfferedAt
	if last := d.LastPresent[s.Agent]; last.After(since) {
		since = last
	}
	return hasPassed(now, since.Add(AckTimeout(s))) && connectedFor(d, now, absenceGrace(s))
}

// absenceGrace returns how long an observer must have been connected before it calls an agent
// absent: workers reconnect together with the engine.
func absenceGrace(s p.State) time.Duration {
	return min(AckTimeout(s), millis(p.LeaseDefaultMS))
}

// AckTimeout returns how long an offer waits while its agent is neither served nor polling. An
// agent that has already begun this handoff gets twice the time: its worker crashed, and is
// probably being restarted.
func AckTimeout(s p.State) time.Duration {
	timeout := millis(s.Policy.AckTimeoutMS)
	if s.Attempt > 0 {
		timeout *= 2
	}
	return timeout
}

func connectedFor(d *Directory, now time.Time, span time.Duration) bool {
	return d != nil && !d.ConnectedSince.IsZero() && now.Sub(d.ConnectedSince) >= span
}

// hasPassed reports whether an instant has been reached. The zero instant never is.
func hasPassed(now, at time.Time) bool { return !at.IsZero() && !now.Before(at) }

func millis(ms int64) time.Duration { return time.Duration(ms) * time.Millisecond }

// Wake returns the earliest instant at which Decide may decide something new if nothing else
// happens. It may have passed: then the state alone does not show the awaited event (an agent that
// is absent, a lease). Zero means never, which is true only of closed handoffs.
func Wake(s p.State) time.Time { return wakeAfter(s, time.Time{}) }

// wakeAfter returns the earliest instant later than after at which one of the handoff's clocks runs
// out. A clock that ran out without effect must not hide those that still run.
func wakeAfter(s p.State, after time.Time) time.Time {
	if s.Closed || s.Phase == fresh {
		return time.Time{}
	}
	var wake time.Time
	consider := func(at time.Time) {
		if at.After(after) && (wake.IsZero() || at.Before(wake)) {
			wake = at
		}
	}
	consider(Deadline(s))
	if s.CancelRequested {
		if !s.Held() {
			consider(s.UpdatedAt)
		}
		consider(s.CancelRequestedAt.Add(millis(s.Policy.CancelGraceMS)))
		return wake
	}
	consider(returnDue(s))
	switch {
	case s.Phase == p.AwaitingApproval:
		consider(gateWake(&s))
		return wake
	case s.Aggregate != nil:
		if outcome, _ := groupOutcome(s); outcome != "" || s.Phase == p.PhaseTimeout {
			consider(s.UpdatedAt)
		}
		return wake
	case s.Offer == 0: // the offer is missing
		consider(s.UpdatedAt)
	}
	considerPhase(&s, consider)
	return wake
}

// considerPhase considers the clocks of the phase of an open handoff.
func considerPhase(s *p.State, consider func(time.Time)) {
	switch s.Phase {
	case p.Pending:
		if s.Offer == 0 {
			consider(routableSince(*s).Add(millis(s.Policy.AckTimeoutMS)))
			break
		}
		consider(queueDue(*s)) // a zero instant is never later
		switch {
		case s.Held():
			consider(ClaimDue(*s))
		case s.Agent != p.Human:
			consider(s.OfferedAt.Add(AckTimeout(*s)))
			if emptyBudget(s) != "" {
				consider(s.UpdatedAt)
			}
			fallthrough
		default:
			for _, absence := range s.Absent {
				consider(absence.Until)
			}
		}
	case p.PhaseAccepted, p.Working:
		if s.Policy.ProgressTimeoutMS > 0 {
			consider(progressSince(*s).Add(millis(s.Policy.ProgressTimeoutMS)))
		}
		consider(workDue(*s))
		consider(ReminderAt(*s))
		if stopAtBudget(s, s.UpdatedAt) != nil {
			consider(s.UpdatedAt)
		}
	case p.Conditional:
		switch {
		case isSuspended(*s):
			if s.Children.Awaited.Without(s.Children.Closed) == "" {
				consider(s.UpdatedAt)
			}
		case s.Conditions == nil:
			consider(s.RetryAt)
		default:
			consider(s.ConditionedAt.Add(millis(s.Policy.ConditionTimeoutMS)))
		}
	case p.Retrying:
		consider(s.RetryAt)
	case p.PhaseFailed, p.PhaseRejected, p.PhaseTimeout:
		consider(s.UpdatedAt)
	}
}

// stepMin is the shortest time between two reconciles that only time causes.
const stepMin = time.Minute

// NextReconcile returns when a handoff is reconciled again after a reconcile without a decision: at
// its Wake, but no later than after a minute or its own age, whichever is longer, and for a held
// one after two leases. This covers a lost wake-up, and a long handoff wakes a logarithmic number
// of times.
func NextReconcile(s p.State, now time.Time) time.Time {
	if s.Closed {
		return time.Time{}
	}
	at := now.Add(max(stepMin, now.Sub(s.SubmittedAt)))
	if s.Held() {
		if lease := now.Add(2 * millis(s.LeaseMS)); lease.Before(at) {
			at = lease
		}
	}
	if wake := wakeAfter(s, now); !wake.IsZero() && wake.Before(at) {
		at = wake
	}
	return at
}

// AbsenceKnownAt returns when the observer of d can conclude that a holder or an agent is gone: the
// holder of the handoff, or the agent of its open offer. It must have been connected long enough
// before. It is zero if they are not missing. An earlier reconcile decides nothing, whatever their
// clocks.
func AbsenceKnownAt(s p.State, d *Directory) time.Time {
	switch {
	case s.Closed || d == nil || d.ConnectedSince.IsZero():
	case s.Held():
		if !d.Present(s.Holder) {
			return d.ConnectedSince.Add(millis(s.LeaseMS))
		}
	case s.Phase == p.Pending && s.Agent != p.Human && s.Aggregate == nil:
		if !d.Attended(s.Agent) {
			return d.ConnectedSince.Add(absenceGrace(s))
		}
	}
	return time.Time{}
}

// Duties lists the outside effects that a state requires. Performing one twice is harmless.
type Duties struct {
	// Offer: the current offer is in the queue of s.Agent.
	Offer bool
	// WakeUp: a wake-up exists for NextReconcile.
	WakeUp bool
	// Children: the handed-off children are submitted.
	Children bool
	// Mark: closed children are recorded (ChildrenClosed).
	Mark bool
	// Return: the return is delivered: the handoff s.ReturnTicket exists, and its end is recorded
	// (Returned). SettleChild decides about the end of a child without one.
	Return bool
	// CancelChildren: open children are cancelled.
	CancelChildren bool
	// Chain: the end of the chain that it began is recorded (ChainEnded), once known.
	Chain bool
	// Bids: agents are asked for bids, and the bids compared in time (Award).
	Bids bool
	// BidAnswer: its agent learns the result of its bid, once known.
	BidAnswer bool
	// Source: it begins, or is dropped, by the state of its parent (FollowSource).
	Source bool
}

// DutiesOf returns the outside effects that s requires.
func DutiesOf(s p.State) Duties {
	return Duties{
		Offer:          !s.Closed && s.Phase == p.Pending && !s.Held() && s.Offer != 0,
		WakeUp:         !s.Closed && s.Phase != fresh,
		Children:       s.Children != nil && s.Children.Made != "",
		Mark:           marksChildren(s),
		Return:         hasReturnDue(s) && (s.ReturnTicket != "" || isChild(s)),
		CancelChildren: cancelsChildren(s),
		Chain:          AwaitsChain(s),
		Bids:           AwaitsBids(s),
		BidAnswer:      AwaitsBidAnswer(s),
		Source:         !s.Closed && s.Phase == p.AwaitingSource,
	}
}

// HasPendingDuties reports whether a closed handoff has duties other than the submission of its
// children: its return, the end of its chain or of its children, the answer to a bid. A person has
// no queue, and reads a return by its ticket.
func HasPendingDuties(s p.State) bool { return AwaitsChain(s) || AwaitsBidAnswer(s) || hasDutiesNow(s) }

// hasDutiesNow reports whether a closed handoff has duties that wait for no other handoff.
func hasDutiesNow(s p.State) bool {
	reads := s.Source == p.Human && s.ReturnTicket == "" && !isChild(s)
	return s.Closed && (hasReturnDue(s) && !reads || cancelsChildren(s))
}

// NotifiesParent reports whether the parent may need to know that a handoff closed: of a member of
// a group, of a child that the parent may wait for (also one that expects no return), and of one
// that is being cancelled.
func NotifiesParent(s p.State) bool {
	return HasEnded(s) && s.Parent != "" && s.N > 0 &&
		(s.Group != "" || s.Aggregate != nil || s.ReturnExpected || s.Wait != "" || s.Outcome == p.OutcomeCancelled)
}

// NotifiesOrigin reports whether a handoff is a return that has been acknowledged, or never will
// be: the returned handoff then settles its own return.
func NotifiesOrigin(s p.State) bool {
	return s.ReturnOf != "" && (s.Closed || s.Fence != 0)
}

// Deadline returns when the time of a handoff is over: its own deadline, and after that the end of
// the time in which an authority may intervene. It is never later than the longest deadline that a
// package may ask for. No gateway checks a state that a worker in another language wrote: without
// this bound a state with no deadline, or one in ten years, would stay open longer than the ledger
// keeps it.
func Deadline(s p.State) time.Time {
	at := s.Deadline
	if !s.OverdueSince.IsZero() {
		at = s.OverdueSince.Add(millis(s.Policy.InterventionTimeoutMS))
	}
	if s.SubmittedAt.IsZero() {
		return at
	}
	latest := latestDeadline(s)
	if at.IsZero() || at.After(latest) {
		return latest
	}
	return at
}

// DeadlinePassed reports whether the deadline has ended a handoff or escalated it: an earlier
// holder no longer has it.
func DeadlinePassed(s p.State) bool {
	return !s.OverdueSince.IsZero() || s.Closed && s.Reason == ReasonDeadline
}

// latestDeadline returns when a handoff closes at the latest, whatever its state has.
func latestDeadline(s p.State) time.Time { return s.SubmittedAt.Add(millis(p.DeadlineMaxMS)) }

// mayBeDeadline refuses a new deadline that has passed, or is later than allowed.
func mayBeDeadline(s p.State, deadline, now time.Time) error {
	switch latest := latestDeadline(s); {
	case deadline.IsZero():
	case !deadline.After(now):
		return p.Errorf(p.CodeInvalid, "deadline", "%s has passed already", instant(deadline))
	case deadline.After(latest):
		return p.Errorf(p.CodeTooLarge, "deadline", "%s is too late; %s, 90 days after the submission, is the latest", instant(deadline), instant(latest))
	case !deadline.After(s.StartAt):
		return p.Errorf(p.CodeInvalid, "deadline", "%s is not after its start, %s", instant(deadline), instant(s.StartAt))
	}
	return nil
}

// stepDeadline decides the next step after the deadline. The handoff is escalated and overdue. When
// the time to intervene is over too, or if the policy requires it, it closes.
func stepDeadline(s p.State, q Query, meta p.Meta) []p.Event {
	why := because(ReasonDeadline, s)
	if s.Aggregate != nil {
		return []p.Event{closeUnfinished(s, meta, why)}
	}
	if s.Policy.OnDeadline != p.DeadlineClose && !hasPassed(meta.At, Deadline(s)) {
		if s.Agent == p.Human && !slices.Contains(s.Refused, p.Human) {
			return []p.Event{offer(s, q, meta, p.Human, OfferOverdue, nil)}
		}
		if _, _, ok := nextAuthority(s, q); ok {
			return escalate(s, q, meta, why)
		}
	}
	return []p.Event{closed(meta, p.OutcomeTimeout, why, p.Human)}
}

// Extend gives a holder more time for its work: by this much beyond the end of its work's clock, at
// most to the clock of those who wait for the handoff. It is granted once per attempt; a
// *protocol.Error names the reason of a refusal.
func Extend(s p.State, holder string, by time.Duration, reason string, now time.Time) (Step, error) {
	const field = "extend_ms"
	if err := mustNotBeEnding(s); err != nil {
		return Step{}, err
	}
	due := workDue(s)
	last, clock := waiterLimit(s)
	if err := p.CheckExtension(by.Milliseconds()); err != nil {
		return Step{}, err
	}
	switch {
	case strings.TrimSpace(reason) == "":
		return Step{}, p.Errorf(p.CodeMissing, "reason", "is missing: an extension needs one")
	case !s.ExtendedUntil.IsZero():
		return Step{}, p.Errorf(p.CodeIllegal, field, "this attempt was extended already, until %s; that is granted once", instant(s.ExtendedUntil))
	case due.IsZero():
		return Step{}, p.Errorf(p.CodeIllegal, field, "no work timeout runs; the %s ends it at %s, and only its source can move that", clock, instant(last))
	case !now.Before(due):
		return Step{}, p.Errorf(p.CodeIllegal, field, "the work timeout ran out at %s", instant(due))
	case !last.After(due):
		return Step{}, p.Errorf(p.CodeIllegal, field, "its limit is the %s at %s, and only its source can move that", clock, instant(last))
	}
	until := due.Add(by)
	if until.After(last) {
		until = last
	}
	return StepOf(s, &p.Extended{Meta: p.Meta{At: now, By: holder}, Fence: s.Fence, Until: until, Reason: reason})
}

// waiterLimit returns the first clock to run out of those who wait for a handoff: no extension of
// the work goes past it.
func waiterLimit(s p.State) (time.Time, p.Clock) {
	deadline, due := Deadline(s), returnDue(s)
	if due.IsZero() || deadline.Before(due) {
		return deadline, p.ClockDeadline
	}
	return due, p.ClockReturn
}

func instant(at time.Time) string { return at.UTC().Format(time.RFC3339) }

// LateAfter is how far behind its time a decision is late. Supervisors take milliseconds, and after
// an outage some seconds.
const LateAfter = time.Minute

// OverdueSince returns since when a decision about a handoff is missing. A passed clock alone does
// not prove this, since the handoff may wait for a worker: the core must have a decision to make
// now. The error is its ErrUndecidable.
func OverdueSince(s p.State, q Query) (since time.Time, err error) {
	wake := Wake(s)
	if wake.IsZero() || !wake.Before(q.Now) {
		return time.Time{}, nil
	}
	step, err := Decide(s, q)
	if err != nil || len(step.Events) == 0 {
		return time.Time{}, err
	}
	return wake, nil
}

// Foreseen is a future decision about a handoff, and its time.
type Foreseen struct {
	At   time.Time
	Step // as Decide makes it at that instant
}

// clocksMax bounds Foresee. No state has more clocks; each tried instant is later than the one
// before.
const clocksMax = 16

// Foresee returns the next decision of Decide if nothing else happens: no other append, and an
// unchanged directory, with the same agents present and absent. It calls Decide at each instant at
// which one of the handoff's clocks runs out, or an observer of d may call a holder or an agent
// gone. So the result is the core's own decision, made early. It returns false if nothing will be
// decided, which is true only of closed handoffs: open ones have a deadline. It returns only the
// first decision; call it again with that state for the next one.
func Foresee(s p.State, q Query) (Foreseen, bool) {
	if s.UpdatedAt.After(q.Now) {
		q.Now = s.UpdatedAt
	}
	breakers := 0
	if q.Directory != nil {
		breakers = len(q.Health)
	}
	for range clocksMax + breakers {
		t, err := Decide(s, q)
		if err != nil {
			break
		}
		if len(t.Events) > 0 {
			return Foreseen{At: q.Now, Step: t}, true
		}
		if q.Now = nextInstant(s, q.Directory, q.Now); q.Now.IsZero() {
			break
		}
	}
	return Foreseen{}, false
}

// nextInstant returns the earliest instant later than after at which Decide may decide differently;
// zero if there is none.
func nextInstant(s p.State, d *Directory, after time.Time) time.Time {
	next := wakeAfter(s, after)
	for _, at := range []time.Time{AbsenceKnownAt(s, d), progressMissedAt(s, d), nextBreaker(d, after)} {
		if at.After(after) && (next.IsZero() || at.Before(next)) {
			next = at
		}
	}
	return next
}

// nextBreaker returns when the next breaker may let a handoff through: of any agent, since the
// handoff may go to another one. Zero if none keeps one back.
func nextBreaker(d *Directory, after time.Time) (next time.Time) {
	for _, view := range d.At(after).withBreakers().breakers {
		if view.until.After(after) && (next.IsZero() || view.until.Before(next)) {
			next = view.until
		}
	}
	return next
}

// progressMissedAt returns when an agent whose last worker disappeared counts as absent; zero if no
// disappearance was seen.
func progressMissedAt(s p.State, d *Directory) time.Time {
	if s.Phase != p.Pending || s.Closed || s.Held() || d == nil {
		return time.Time{}
	}
	last, seen := d.LastPresent[s.Agent]
	if !seen {
		return time.Time{}
	}
	return last.Add(AckTimeout(s))
}
