package main

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/protocol/lifecycle"
)

// The words of "handoff why". They are for somebody who has never read how
// Handoff works: an offer, a lease, a head are not spoken of.

// explanation is what a handoff waits for, in words and for programs.
type explanation struct {
	Ticket     string           `json:"ticket"`
	Phase      protocol.Phase   `json:"phase"`
	Closed     bool             `json:"closed"`
	Outcome    protocol.Outcome `json:"outcome"`
	WaitingFor waitingWord      `json:"waiting_for"`
	Sentences  []string         `json:"sentences"`
	Next       *nextView        `json:"next,omitempty"` // absent where nothing happens by itself any more
	Commands   []commandView    `json:"commands,omitempty"`
}

// commandView is something that the reader may do.
type commandView struct {
	To  string `json:"to"` // in words: start a worker
	Run string `json:"run"`
}

// waitingWord is what a handoff waits for, in one word.
type waitingWord string

const (
	waitsApproval waitingWord = "approval"
	waitsSource   waitingWord = "source"
	waitsAgent    waitingWord = "agent"
	waitsPerson   waitingWord = "person"
	waitsWorker   waitingWord = "worker"
	waitsResume   waitingWord = "resume"
	waitsSlot     waitingWord = "slot"
	waitsPoll     waitingWord = "poll"
	waitsTaker    waitingWord = "taker"
	waitsAck      waitingWord = "acknowledgement"
	waitsStart    waitingWord = "start"
	waitsWork     waitingWord = "work"
	waitsAnswer   waitingWord = "answer"
	waitsTime     waitingWord = "time"
	waitsChildren waitingWord = "children"
	waitsMembers  waitingWord = "members"
	waitsStop     waitingWord = "stop"
	waitsDecision waitingWord = "decision"
	waitsNothing  waitingWord = "nothing"
)

// teller puts an explanation together.
type teller struct {
	situation
	e explanation
	// told says that the sentences tell already what the next event is.
	told bool
}

func explain(in situation) explanation {
	s := in.state
	t := &teller{situation: in, e: explanation{Ticket: s.Ticket, Phase: s.Phase, Closed: s.Closed, Outcome: s.Outcome}}
	if s.StuckReason != "" && !s.Closed {
		t.say("The supervisors could not deal with it (%s) and have stopped trying; they try again when something changes.", quoted(s.StuckReason))
		t.command("handoff doctor", "see what may be wrong")
	}
	next := t.foresee()
	switch {
	case s.Closed:
		t.closed()
	case s.CancelRequested:
		t.stopping()
	case s.Aggregate != nil && s.Phase == protocol.Pending:
		t.group()
	default:
		t.phase()
	}
	if !s.Closed {
		t.tellNext(next)
	}
	return t.e
}

func (t *teller) say(format string, args ...any) {
	t.e.Sentences = append(t.e.Sentences, fmt.Sprintf(format, args...))
}

func (t *teller) command(run, to string) {
	t.e.Commands = append(t.e.Commands, commandView{To: to, Run: run})
}

func (t *teller) waits(w waitingWord) { t.e.WaitingFor = w }

func (t *teller) phase() {
	s := t.state
	switch s.Phase {
	case protocol.AwaitingApproval:
		t.waits(waitsApproval)
		t.say("It waits for somebody to approve it.")
	case protocol.AwaitingSource:
		t.waits(waitsSource)
		t.say("It begins when %s completes handoff %s, from which it follows.", person(s.Source), s.Parent)
		t.say("Should that attempt end without a result, it is dropped.")
		t.command("handoff why "+s.Parent, "see how far that is")
	case protocol.Pending:
		t.pending()
	case protocol.PhaseAccepted, protocol.Working:
		t.held()
	case protocol.Conditional:
		t.conditional()
	case protocol.Retrying:
		t.retrying()
	case protocol.PhaseRejected:
		t.refused()
	case protocol.PhaseFailed:
		t.waits(waitsDecision)
		t.say("%s%s.", sentence(fmt.Sprintf("attempt %d of %d at %s failed %s", s.Attempt, s.Policy.MaxAttempts, person(s.Agent), t.at(s.UpdatedAt))), t.because(s.Message))
	case protocol.PhaseTimeout:
		t.waits(waitsDecision)
		t.say("It ran out of time %s: %s.", t.at(s.UpdatedAt), t.clockRanOut(s.TimedOut))
	}
}

// pending: it stands in a queue, or nobody could be found to have it.
func (t *teller) pending() {
	s := t.state
	switch {
	case len(s.Chain) > 0:
		t.say("%s.", sentence(t.passedUp()))
	case len(s.Refused) > 0:
		t.say("%s refused it before.", enumerate(s.Refused))
	}
	if s.AttemptsTotal > 0 && s.Attempt > 0 && !s.Held() {
		t.say("Attempt %d of %d at %s ended without a result%s.", s.Attempt, s.Policy.MaxAttempts, person(s.Agent), t.lastEnd())
	}
	switch {
	case s.Held():
		t.claimed()
	case s.Agent == protocol.Human:
		t.forPerson()
	case s.Agent == "":
		t.waits(waitsAgent)
		t.say("It has waited %s for an agent that can do it (%s); there was none when it was submitted.", t.span(s.SubmittedAt), s.TargetWords())
		t.command("handoff agents", "see who can do what")
	default:
		t.queued()
	}
}

func (t *teller) claimed() {
	s := t.state
	t.waits(waitsAck)
	who := sentence(t.holder())
	if !t.directory.Present(s.Holder) {
		t.say("%s claimed it %s, never said whether it takes it, and has stopped answering.", who, t.at(s.ClaimedAt))
		return
	}
	t.say("%s claimed it %s and has not said yet whether it takes it.", who, t.at(s.ClaimedAt))
	t.say("Should it stop answering for %s, others may have it.", millisSpoken(s.LeaseMS))
}

func (t *teller) forPerson() {
	s := t.state
	t.waits(waitsPerson)
	t.say("It has waited %s for a person to take it.", t.span(s.OfferedAt))
	if len(s.Chain) > 0 {
		t.command("handoff answer "+s.Ticket+" --text …", "answer it, and send it back down")
	}
	t.command("handoff take "+s.Ticket, "do it yourself")
	t.command("handoff reroute "+s.Ticket+" --to AGENT", "give it to another agent")
	t.command("handoff return "+s.Ticket+" --reason …", "give it back")
}

// queued: it waits for a worker of its agent.
func (t *teller) queued() {
	s := t.state
	profile, _ := t.directory.Agent(s.Agent)
	live, slots, busy := t.directory.Load(s.Agent)
	polled, polls := t.directory.Polled(s.Agent)
	waited := fmt.Sprintf("It has waited %s for %s", t.span(s.OfferedAt), s.Agent)
	ahead := t.aheadWords()
	switch {
	case profile.Paused:
		t.waits(waitsResume)
		t.say("%s, which is paused%s. Nothing is taken there until somebody lets it go on.", waited, after(", ", ahead))
		t.command("handoff agents resume "+s.Agent, "let it go on")
		t.command("handoff reroute "+s.Ticket+" --to AGENT", "give it to another agent")
	case profile.MaxConcurrency > 0 && t.inHand >= profile.MaxConcurrency && (live > 0 || polls):
		t.waits(waitsSlot)
		t.say("%s, which has %s in hand and takes no more at a time%s.", waited, count(t.inHand, "handoff"), after(", ", ahead))
	case live == 0 && polls:
		t.waits(waitsPoll)
		t.say("%s, which %s%s.", waited, pollsWords(polled, t.now), after(", ", ahead))
		t.say("It stays there as long as %s polls at least every %s.", s.Agent, spoken(profile.PollPatience()))
		t.command("handoff claim --agent "+s.Agent, "take it from here, as that agent")
		t.command("handoff reroute "+s.Ticket+" --to AGENT", "give it to another agent")
	case live == 0:
		t.waits(waitsWorker)
		t.say("%s, but %s%s.", waited, t.nobodyServes(), after(", ", ahead))
		t.command("handoff work --agent "+s.Agent+" -- CMD", "start a worker")
		t.command("handoff claim --agent "+s.Agent, "take it from here, as that agent")
		t.command("handoff reroute "+s.Ticket+" --to AGENT", "give it to another agent")
	case busy >= slots:
		t.waits(waitsSlot)
		all := fmt.Sprintf("all of their %d slots are busy", slots)
		switch {
		case slots == 1:
			all = "which is busy"
		case live == 1:
			all = fmt.Sprintf("all of its %d slots are busy", slots)
		case slots == live:
			all = "all of them are busy"
		}
		t.say("%s: %s running, %s%s.", waited, areWorkers(live), all, after(", ", ahead))
	default:
		t.waits(waitsTaker)
		t.say("%s: %s running, with %d of %s free%s.", waited, areWorkers(live), slots-busy, count(slots, "slot"), after(", ", ahead))
		switch {
		case t.ahead > 0:
		case t.now.Sub(s.OfferedAt) > unexpected:
			t.say("A free worker should have taken it long ago.")
			t.command("handoff doctor", "see what may be wrong")
		default:
			t.say("It should be taken any moment.")
			t.told = true
		}
	}
}

// unexpected is how long nothing may happen that should happen at once before
// somebody is told that it should.
const unexpected = 10 * time.Second

// nobodyServes says why no worker takes anything.
func (t *teller) nobodyServes() string {
	agent := t.state.Agent
	for _, h := range t.directory.Holders {
		if h.Agent == agent && h.Draining {
			return "its last workers are finishing what they have and take nothing new"
		}
	}
	if since, seen := t.directory.LastPresent[agent]; seen {
		return fmt.Sprintf("no worker has been running there since %s", t.clock(since))
	}
	return "no worker is running there"
}

// aheadWords say how many are before it, as far as that can be told.
func (t *teller) aheadWords() string {
	switch {
	case t.ahead == 0:
		return "and it is the next one"
	case t.ahead == 1:
		return "and 1 handoff is ahead of it"
	case t.ahead > 1:
		return fmt.Sprintf("and %d handoffs are ahead of it", t.ahead)
	case t.depth > 1:
		return fmt.Sprintf("and %d handoffs are in its queue, those being worked on included", t.depth)
	}
	return ""
}

// held: somebody has it in their hands.
func (t *teller) held() {
	s := t.state
	who, attempt := sentence(t.holder()), fmt.Sprintf("attempt %d of %d", s.Attempt, s.Policy.MaxAttempts)
	begun := s.StartedAt
	if begun.IsZero() {
		begun = s.AcceptedAt
	}
	t.waits(waitsWork)
	switch {
	case s.Phase != protocol.Working:
		t.waits(waitsStart)
		t.say("%s took it %s (%s) and has not begun yet.", who, t.at(s.AcceptedAt), attempt)
	case !t.directory.Present(s.Holder):
		t.say("%s began to work on it %s (%s).", who, t.at(begun), attempt)
	default:
		t.say("%s has worked on it for %s (%s).", who, t.span(begun), attempt)
	}
	if !t.directory.Present(s.Holder) {
		t.say("Since then it has stopped answering.")
		return
	}
	switch {
	case s.Progress != nil:
		t.say("Progress was last reported %s: %s%%%s.", t.at(s.ProgressAt), trimFloat(s.Progress.Percent), said(s.Progress.Message))
	case s.Phase == protocol.Working && t.now.Sub(s.AcceptedAt) > time.Minute:
		t.say("No progress has been reported.")
	}
	if !s.EstimatedCompletion.IsZero() {
		t.say("It should be done by %s, as was said when it was taken.", t.clock(s.EstimatedCompletion))
	}
}

// conditional: its agent needs something first.
func (t *teller) conditional() {
	s := t.state
	switch {
	case s.Children != nil && s.Children.Awaited != "":
		t.awaiting()
	case s.Conditions == nil:
		t.waits(waitsTime)
		t.say("%s put it off until %s%s.", sentence(person(s.Agent)), t.clock(s.RetryAt), after(", and says: ", quoted(s.Message)))
		t.estimate()
		if s.RetryAt.After(t.now) {
			t.say("Then it goes to %s again.", s.Agent)
			t.told = true
		}
	default:
		t.waits(waitsAnswer)
		asked := s.Source
		if _, known := t.directory.Agent(asked); !known {
			asked = protocol.Human
		}
		t.say("%s needs %s before it takes it%s.", sentence(person(s.Agent)), needsText(*s.Conditions), after(", and says: ", quoted(s.Conditions.Reason)))
		t.estimate()
		if s.ConditionRounds > s.Policy.MaxConditions { // an answer would be refused
			return
		}
		t.say("%s was asked %s ago and has not answered yet.", sentence(person(asked)), t.span(s.ConditionedAt))
		answer := "handoff answer " + s.Ticket
		if len(s.Conditions.NeedsPermission) > 0 {
			answer += " --permit"
		}
		if len(s.Conditions.NeedsContext) > 0 {
			answer += " --text …"
		}
		t.command(answer, "answer")
		t.command("handoff answer "+s.Ticket+" --deny --reason …", "say no, so that somebody else gets it")
	}
}

// estimate: how long the agent said that it needs, once it takes it.
func (t *teller) estimate() {
	if ms := t.state.EstimatedCompletionMS; ms > 0 {
		t.say("Once %s takes it, it needs %s, as it said.", person(t.state.Agent), millisSpoken(ms))
	}
}

// awaiting: it was handed on, and comes back when that has ended.
func (t *teller) awaiting() {
	s := t.state
	t.waits(waitsChildren)
	all, open := s.Children.Awaited.Len(), s.Children.Awaited.Without(s.Children.Closed).Len()
	if open == 0 {
		t.say("What %s has handed on has ended.", person(s.Agent))
		return
	}
	t.say("%s has handed on %s and waits, since %s, for %s: %s.", sentence(person(s.Agent)), partOfIt(all), t.clock(s.ConditionedAt), ofThem(open, all), t.relatives(open, "part"))
	t.say("When that is over, %s gets it back.", person(s.Agent))
}

// group: its members bring it on.
func (t *teller) group() {
	s := t.state
	t.waits(waitsMembers)
	ended, succeeded := s.Children.Closed.Len(), s.Children.Succeeded.Len()
	open := s.Aggregate.Size - ended
	ends := "of which none has ended yet"
	switch {
	case ended == 1:
		ends = fmt.Sprintf("of which 1 has ended (%d with success, %d without)", succeeded, ended-succeeded)
	case ended > 1:
		ends = fmt.Sprintf("of which %d have ended (%d with success, %d without)", ended, succeeded, ended-succeeded)
	}
	t.say("It is a group of %d, %s.", s.Aggregate.Size, ends)
	t.say("It still waits for %s: %s.", ofThem(open, s.Aggregate.Size), t.relatives(open, "member"))
	t.say("It succeeds %s.", aggregationText(s))
	t.command("handoff tree "+s.Ticket, "see all of its members")
}

// retrying: the next attempt has its time.
func (t *teller) retrying() {
	s := t.state
	t.waits(waitsTime)
	t.say("Attempt %d of %d at %s ended without a result%s.", s.Attempt, s.Policy.MaxAttempts, person(s.Agent), t.lastEnd())
	if s.RetryAt.After(t.now) {
		t.say("Attempt %d begins %s, in %s.", s.Attempt+1, t.at(s.RetryAt), spoken(s.RetryAt.Sub(t.now)))
		t.told = true
	}
}

// refused: nobody could be found who would take it instead.
func (t *teller) refused() {
	s := t.state
	why := t.because(cmp.Or(s.Message, s.Reason))
	if s.Policy.OnNoTaker == protocol.NoTakerQueue {
		t.waits(waitsAgent)
		t.say("%s refused it %s%s, and nobody else can do it.", sentence(person(s.Agent)), t.at(s.UpdatedAt), why)
		t.say("It goes to the first fit agent that turns up.")
		t.command("handoff reroute "+s.Ticket+" --to AGENT", "give it to another agent")
		return
	}
	t.waits(waitsDecision)
	t.say("%s refused it %s%s.", sentence(person(s.Agent)), t.at(s.UpdatedAt), why)
}

// stopping: its end was asked for.
func (t *teller) stopping() {
	s := t.state
	what := "be cancelled"
	if s.CancelReturn {
		what = "go back to " + s.Source
	}
	t.say("%s asked %s for it to %s%s.", sentence(person(cmp.Or(s.CancelBy, "somebody"))), t.at(s.CancelRequestedAt), what, t.because(s.CancelReason))
	if !s.Held() {
		t.waits(waitsDecision)
		return
	}
	t.waits(waitsStop)
	if !t.directory.Present(s.Holder) {
		t.say("%s had it and has stopped answering.", sentence(t.holder()))
		return
	}
	t.say("%s has it, was told, and has until %s to stop.", sentence(t.holder()), t.clock(s.CancelRequestedAt.Add(time.Duration(s.Policy.CancelGraceMS)*time.Millisecond)))
}

// lastEnd says why the last attempt ended.
func (t *teller) lastEnd() string {
	if clock, ranOut := strings.CutSuffix(t.state.Reason, "_timeout"); ranOut {
		return ": " + t.clockRanOut(protocol.Clock(clock))
	}
	if !ofAttempt(t.state.Reason) {
		return ""
	}
	return t.because(t.state.Message)
}

// ofAttempt tells whether what the state says in words can be of an attempt, or
// a refusal: the reason is the last that was given, and may be of a question.
func ofAttempt(reason string) bool {
	return reason != "condition" && reason != "deferred" && reason != "answer" && reason != "awaiting_returns"
}

// holder names the worker that has the handoff.
func (t *teller) holder() string {
	agent := t.state.Agent
	h, present := t.directory.Holders[t.state.Holder]
	switch {
	case agent == protocol.Human:
		return "a person"
	case !present:
		return "a worker of " + agent
	case h.Polling:
		return "a program that polls for " + agent + hostWords(h)
	}
	return "a worker of " + agent + hostWords(h)
}

func hostWords(h protocol.Holder) string {
	if h.Host == "" {
		return ""
	}
	return fmt.Sprintf(" on %s (process %d)", h.Host, h.PID)
}

// passedUpWords are the core's reasons to pass a handoff up that are no clock's.
var passedUpWords = map[string]string{
	lifecycle.ReasonConditionsExhausted: "its agent asked more often than it may",
	lifecycle.ReasonAttemptsExhausted:   "all attempts there failed",
	lifecycle.ReasonCrashLoop:           "each attempt took its worker with it",
	lifecycle.ReasonDeadline:            "its deadline passed",
}

// passedUp says from whom a handoff came up the chain, and why.
func (t *teller) passedUp() string {
	s := t.state
	text := fmt.Sprintf("it was passed up from %s to %s", person(cmp.Or(s.Chain[len(s.Chain)-1], "nobody in particular")), person(s.Agent))
	switch clock, ranOut := strings.CutSuffix(s.Reason, "_timeout"); {
	case ranOut:
		return text + ", because " + t.clockRanOut(protocol.Clock(clock))
	case s.Attempt > 0 || !ofAttempt(s.Reason): // what the state says is of something else
		return text
	case passedUpWords[s.Reason] != "":
		text += ", because " + passedUpWords[s.Reason]
	}
	return text + t.because(s.Message)
}
