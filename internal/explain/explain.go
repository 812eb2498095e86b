// Package explain describes in plain words why a handoff waits, its next step, and the actions that
// are open to the reader. Gather reads a situation; Explain and Brief are pure. The words avoid
// internal terms such as offer, lease and head.
package explain

import (
	"cmp"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/agenthandoff/handoff/internal/lifecycle"
	"github.com/agenthandoff/handoff/protocol"
)

// Explanation describes why a handoff waits, in words and for programs.
type Explanation struct {
	Ticket     string           `json:"ticket"`
	Phase      protocol.Phase   `json:"phase"`
	Closed     bool             `json:"closed"`
	Outcome    protocol.Outcome `json:"outcome"`
	WaitingFor lifecycle.Wait   `json:"waiting_for"`
	Sentences  []string         `json:"sentences"`
	Next       *Next            `json:"next,omitempty"` // absent if nothing more happens by itself
	Actions    []Action         `json:"-"`
}

// Action is an action that the reader may take. Each gateway renders it as a command line, a button
// or the call of a tool.
type Action struct {
	To   string            // purpose, in words: start a worker
	Op   string            // one of the Op constants
	Args map[string]string // the arguments of Op; the reader fills in an empty value
}

// Operations of actions. Comments list their arguments.
const (
	OpAgents       = "agents"        // see the agents
	OpApprove      = "approve"       // ticket
	OpDeny         = "deny"          // ticket, reason
	OpAnswer       = "answer"        // ticket, question; permit, set (names) and text, or deny and let-others
	OpClaim        = "claim"         // agent
	OpConnect      = "connect"       // configure the address of the engine
	OpDead         = "dead"          // ticket
	OpDev          = "dev"           // fsync; runs an engine for development
	OpDismiss      = "dismiss"       // ticket
	OpDoctor       = "doctor"        //
	OpHistory      = "history"       // ticket
	OpInbox        = "inbox"         // agent; reads its inbox
	OpIndex        = "index"         // runs an index
	OpLate         = "late"          // ticket; reads its late results
	OpKeyLimits    = "limits"        // reads the limits by key
	OpMend         = "mend"          // ticket; restores its last readable entry
	OpRaise        = "budget_raise"  // ticket; limit, the one to raise; empty is any
	OpRedrive      = "redrive"       // ticket; again also offers it to agents that refused it
	OpRegister     = "register"      // agent
	OpRepair       = "repair"        // checks every handoff
	OpReroute      = "reroute"       // ticket, to
	OpBreaker      = "breaker"       // agent
	OpResetBreaker = "breaker_reset" // agent
	OpResume       = "resume"        // agent
	OpResult       = "result"        // ticket; reads its result
	OpReturn       = "return"        // ticket; reads its return
	OpRollback     = "rollback"      // ticket, reason
	OpSubmitUnder  = "submit_under"  // hands off from a lease
	OpSupervise    = "supervise"     //
	OpTake         = "take"          // ticket
	OpTopology     = "topology"      // creates or repairs the streams
	OpTree         = "tree"          // ticket
	OpWhy          = "why"           // ticket
	OpWork         = "work"          // agent, or capability
)

// Reasons to wait that Explain finds in the directory, in addition to those of lifecycle.
const (
	WaitWorker  lifecycle.Wait = "worker"  // no worker of its agent is running
	WaitResume  lifecycle.Wait = "resume"  // its agent is paused
	WaitSlot    lifecycle.Wait = "slot"    // all workers of its agent are busy
	WaitPoll    lifecycle.Wait = "poll"    // its agent has no worker, only a program that polls
	WaitBreaker lifecycle.Wait = "breaker" // the circuit breaker of its agent blocks the handoff
)

// explainer builds an explanation.
type explainer struct {
	Situation
	e Explanation
	// nextSaid is true once a sentence has announced the next event.
	nextSaid bool
}

// Explain returns the explanation of a situation.
func Explain(in Situation) Explanation {
	s := in.State
	x := &explainer{Situation: in, e: Explanation{Ticket: s.Ticket, Phase: s.Phase, Closed: s.Closed, Outcome: s.Outcome, WaitingFor: lifecycle.WaitingFor(s)}}
	if s.StuckReason != "" && !s.Closed {
		x.say("The supervisors could not deal with it (%s) and have stopped trying; they try again when something changes.", quoted(s.StuckReason))
		x.suggest("see what may be wrong", OpDoctor)
	}
	next := x.foresee()
	switch {
	case s.Closed:
		x.closed()
	case s.CancelRequested:
		x.stopping()
	case s.Aggregate != nil && s.Phase == protocol.Pending:
		x.group()
	default:
		x.phase()
		if words := override(s); words != "" {
			x.say("%s.", words)
		}
		x.limits()
	}
	if s.Schedule != "" {
		x.say("The schedule %s submitted it.", s.Schedule)
	}
	if s.Rule != "" {
		x.say("The rule %s submitted it for a signal.", s.Rule)
	}
	if !s.Closed {
		x.tellNext(next)
	}
	return x.e
}

func (x *explainer) say(format string, args ...any) {
	x.e.Sentences = append(x.e.Sentences, fmt.Sprintf(format, args...))
}

// NewAction returns an action. args are names and values in turn.
func NewAction(to, op string, args ...string) Action {
	named := map[string]string{}
	for i := 0; i+1 < len(args); i += 2 {
		named[args[i]] = args[i+1]
	}
	return Action{To: to, Op: op, Args: named}
}

// suggest adds an action once. args are names and values in turn.
func (x *explainer) suggest(to, op string, args ...string) {
	x.addActions(NewAction(to, op, args...))
}

// addActions adds the actions that are not in the explanation yet.
func (x *explainer) addActions(actions ...Action) {
	for _, action := range actions {
		if !slices.ContainsFunc(x.e.Actions, func(other Action) bool { return other.Op == action.Op && maps.Equal(other.Args, action.Args) }) {
			x.e.Actions = append(x.e.Actions, action)
		}
	}
}

func (x *explainer) phase() {
	s := x.State
	switch s.Phase {
	case protocol.AwaitingApproval:
		x.gate()
	case protocol.AwaitingSource:
		x.say("It begins when %s completes handoff %s, from which it follows.", Person(s.Source), s.Parent)
		x.say("Should that attempt end without a result, it is dropped.")
		x.suggest("see how far that is", OpWhy, "ticket", s.Parent)
	case protocol.Pending:
		x.pending()
	case protocol.PhaseAccepted, protocol.Working:
		x.held()
	case protocol.Conditional:
		x.conditional()
	case protocol.Retrying:
		x.retrying()
	case protocol.PhaseRejected:
		x.refused()
	case protocol.PhaseFailed:
		x.say("%s%s.", sentence(fmt.Sprintf("attempt %d of %d at %s failed %s", s.Attempt, s.Policy.MaxAttempts, Person(s.Agent), x.at(s.UpdatedAt))), x.because(s.Message))
	case protocol.PhaseTimeout:
		x.say("It ran out of time %s: %s.", x.at(s.UpdatedAt), x.clockRanOut(s.TimedOut))
	}
}

// pending explains a handoff that waits in a queue or for an agent that fits.
func (x *explainer) pending() {
	s := x.State
	switch {
	case len(s.Chain) > 0:
		x.say("%s.", sentence(x.passedUp()))
	case len(s.Refused) > 0:
		x.say("%s refused it before.", enumerate(s.Refused))
	}
	if s.Reason == lifecycle.ReasonDeadlock {
		x.say("Handoffs waited for one another in a circle, and it was taken out of that.")
	}
	if s.AttemptsTotal > 0 && s.Attempt > 0 && !s.Held() {
		x.say("Attempt %d of %d at %s ended without a result%s.", s.Attempt, s.Policy.MaxAttempts, Person(s.Agent), x.lastEnd())
	}
	switch {
	case s.Held():
		x.claimed()
	case s.Agent == protocol.Human:
		x.say("It has waited %s for a person to take it.", x.span(s.OfferedAt))
		x.goesBack()
		x.addActions(personActions(s)...)
	case x.keptBack():
	case s.Agent == "":
		lacks := fmt.Sprintf("an agent that can do it (%s)", s.TargetWords())
		if s.Target.Agent != "" {
			lacks = "a worker of " + s.Target.Agent
		}
		x.say("It has waited %s for %s; there was none when it was submitted.", x.span(s.SubmittedAt), lacks)
		x.suggest("see who can do what", OpAgents)
	default:
		x.queued()
		x.goesBack()
	}
}

func (x *explainer) claimed() {
	s := x.State
	who := sentence(x.holder())
	if !x.Directory.Present(s.Holder) {
		x.say("%s claimed it %s, never accepted or refused it, and has stopped answering.", who, x.at(s.ClaimedAt))
		return
	}
	x.say("%s claimed it %s and has not accepted or refused it yet.", who, x.at(s.ClaimedAt))
	x.say("Should it stop answering for %s, others may have it.", millisSpoken(s.LeaseMS))
}

// goesBack names the absent agents that get the handoff back as soon as one of them has a worker.
func (x *explainer) goesBack() {
	s := x.State
	if len(s.Absent) == 0 || !s.OverdueSince.IsZero() || s.Escalations >= protocol.EscalationsTotalMax {
		return
	}
	verb, first := "goes back", s.Absent[0].Agent
	if first == "" {
		verb, first = "is delivered", s.TargetWords()
	}
	var others []string
	for _, absence := range s.Absent[1:] {
		others = append(others, absence.Agent)
	}
	x.say("It %s to %s when %s has a worker%s, unless %s takes it before.", verb, first, first,
		After(", or else to ", strings.Join(others, " or ")), Person(s.Agent))
}

// queued explains a handoff that waits for a worker of its agent.
func (x *explainer) queued() {
	s := x.State
	profile, _ := x.Directory.Agent(s.Agent)
	live, slots, busy := x.Directory.Load(s.Agent)
	polled, polls := x.Directory.Polled(s.Agent)
	why, _ := x.Directory.Unavailable(profile)
	waited := fmt.Sprintf("It has waited %s for %s", x.span(s.OfferedAt), s.Agent)
	ahead, workers := x.aheadWords(), Is(Count(live, "worker"), live)
	if len(x.Circle) > 0 {
		x.say("It is in a deadlock: the handoffs that hold the slots of %s wait for it, in a circle of %s. A supervisor takes the youngest of them out once it has waited for %s.", s.Agent, Count(len(x.Circle), "handoff"), Spoken(lifecycle.AckTimeout(s)))
	}
	switch {
	case why == lifecycle.UnfitPaused:
		x.e.WaitingFor = WaitResume
		x.say("%s, which is paused%s. No worker takes anything there until the agent is resumed.", waited, After(", ", ahead))
		x.suggest("let it go on", OpResume, "agent", s.Agent)
		x.suggest(toAnother, OpReroute, "ticket", s.Ticket, "to", "")
	case profile.MaxConcurrency > 0 && x.InHand >= profile.MaxConcurrency && why != lifecycle.UnfitAbsent:
		x.e.WaitingFor = WaitSlot
		x.say("%s, which has %s in work, its maximum%s.", waited, Count(x.InHand, "handoff"), After(", ", ahead))
	case live == 0 && polls:
		x.e.WaitingFor = WaitPoll
		x.say("%s, which %s%s.", waited, Polls(polled, x.Now), After(", ", ahead))
		x.say("It stays there as long as %s polls at least every %s.", s.Agent, Spoken(profile.PollPatience()))
		x.suggest("take it from here, as that agent", OpClaim, "agent", s.Agent)
		x.suggest(toAnother, OpReroute, "ticket", s.Ticket, "to", "")
	case why == lifecycle.UnfitAbsent:
		x.e.WaitingFor = WaitWorker
		x.say("%s, but %s%s.", waited, x.noWorkerServes(), After(", ", ahead))
		x.suggest("start a worker", OpWork, "agent", s.Agent)
		x.suggest("take it from here, as that agent", OpClaim, "agent", s.Agent)
		x.suggest(toAnother, OpReroute, "ticket", s.Ticket, "to", "")
	case why == lifecycle.UnfitBusy:
		x.e.WaitingFor = WaitSlot
		all := fmt.Sprintf("all of their %d slots are busy", slots)
		switch {
		case slots == 1:
			all = "which is busy"
		case live == 1:
			all = fmt.Sprintf("all of its %d slots are busy", slots)
		case slots == live:
			all = "all of them are busy"
		}
		x.say("%s: %s running, %s%s.", waited, workers, all, After(", ", ahead))
	default:
		x.say("%s: %s running, with %d of %s free%s.", waited, workers, slots-busy, Count(slots, "slot"), After(", ", ahead))
		switch {
		case x.Ahead > 0:
		case x.Now.Sub(s.OfferedAt) > unexpected:
			x.say("A free worker should have taken it long ago.")
			x.suggest("see what may be wrong", OpDoctor)
		default:
			x.say("It should be taken any moment.")
			x.nextSaid = true
		}
	}
}

// unexpected is the longest delay of an immediate step before the explanation reports a problem.
const unexpected = 10 * time.Second

// noWorkerServes explains why no worker takes handoffs of the agent.
func (x *explainer) noWorkerServes() string {
	agent := x.State.Agent
	for _, h := range x.Directory.Holders {
		if h.Agent == agent && h.Draining {
			return "its last workers finish their handoffs and take nothing new"
		}
	}
	if since, seen := x.Directory.LastPresent[agent]; seen {
		return fmt.Sprintf("no worker has been running there since %s", x.clock(since))
	}
	return "no worker is running there"
}

// aheadWords returns the number of handoffs ahead in the queue, or else the queue's length; it is
// empty if both are unknown.
func (x *explainer) aheadWords() string {
	switch {
	case x.Ahead == 0:
		return "and it is the next one"
	case x.Ahead > 0:
		n := int(x.Ahead)
		return "and " + Is(Count(n, "handoff"), n) + " ahead of it"
	case x.Depth > 1:
		return fmt.Sprintf("and %d handoffs are in its queue, those being worked on included", x.Depth)
	}
	return ""
}

// held explains a handoff that a worker or a person has.
func (x *explainer) held() {
	s := x.State
	who, attempt := sentence(x.holder()), fmt.Sprintf("attempt %d of %d", s.Attempt, s.Policy.MaxAttempts)
	begun := s.StartedAt
	if begun.IsZero() {
		begun = s.AcceptedAt
	}
	switch {
	case s.Phase != protocol.Working:
		x.say("%s took it %s (%s) and has not begun yet.", who, x.at(s.AcceptedAt), attempt)
	case !x.Directory.Present(s.Holder):
		x.say("%s began to work on it %s (%s).", who, x.at(begun), attempt)
	default:
		x.say("%s has worked on it for %s (%s).", who, x.span(begun), attempt)
	}
	if !x.Directory.Present(s.Holder) {
		x.say("Since then it has stopped answering.")
		return
	}
	switch {
	case s.Progress != nil:
		x.say("Progress was last reported %s: %s%%%s.", x.at(s.ProgressAt), Number(s.Progress.Percent), said(s.Progress.Message))
	case s.Phase == protocol.Working && x.Now.Sub(s.AcceptedAt) > time.Minute:
		x.say("No progress has been reported.")
	}
	if !s.EstimatedCompletion.IsZero() {
		x.say("It should be done by %s, by the estimate given when it was taken.", x.clock(s.EstimatedCompletion))
	}
}

// conditional explains a handoff whose agent has asked a question, has deferred it, or waits for
// children.
func (x *explainer) conditional() {
	s := x.State
	switch {
	case s.Children != nil && s.Children.Awaited != "":
		x.awaiting()
	case s.Conditions == nil:
		x.say("%s put it off until %s%s.", sentence(Person(s.Agent)), x.clock(s.RetryAt), After(", and says: ", quoted(s.Message)))
		x.estimate()
		if s.RetryAt.After(x.Now) {
			x.say("Then it goes to %s again.", s.Agent)
			x.nextSaid = true
		}
	default:
		asked := lifecycle.Asked(s, x.Directory)
		x.say("%s needs %s before it takes it%s.", sentence(Person(s.Agent)), Needs(*s.Conditions), After(", and says: ", quoted(s.Conditions.Reason)))
		x.estimate()
		if s.ConditionRounds > s.Policy.MaxConditions { // an answer would be refused
			return
		}
		x.say("%s was asked %s ago and has not answered yet.", sentence(Person(asked)), x.span(s.ConditionedAt))
		x.suggest("answer", OpAnswer, answerArgs(s)...)
		x.suggest("deny it, for good", OpAnswer, "ticket", s.Ticket, "question", questionNumber(s), "deny", "true", "reason", "")
		x.suggest("deny it, so that another agent gets it", OpAnswer, "ticket", s.Ticket, "question", questionNumber(s), "deny", "true", "let-others", "true", "reason", "")
	}
}

// variableName matches the names of variables. Any other need is a question in words.
var variableName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_.-]*$`)

// questionNumber returns the number of the handoff's question.
func questionNumber(s protocol.State) string { return strconv.Itoa(lifecycle.QuestionOf(s).N) }

// Asks returns the number and the kind of a handoff's question; it is empty without a question.
func Asks(s protocol.State) string {
	asks := lifecycle.QuestionOf(s)
	if asks.Kind == lifecycle.AsksNothing {
		return ""
	}
	return fmt.Sprintf("question %d (%s)", asks.N, asks.Kind)
}

// answerArgs returns the arguments of an answer: a value for each need that is the name of a
// variable, text for the others, and the permission.
func answerArgs(s protocol.State) []string {
	args := []string{"ticket", s.Ticket, "question", questionNumber(s)}
	if len(s.Conditions.NeedsPermission) > 0 {
		args = append(args, "permit", "true")
	}
	var names []string
	for _, need := range s.Conditions.NeedsContext {
		if variableName.MatchString(need) {
			names = append(names, need)
		}
	}
	if len(names) > 0 {
		args = append(args, "set", strings.Join(names, " "))
	}
	if len(names) < len(s.Conditions.NeedsContext) {
		args = append(args, "text", "")
	}
	return args
}

// estimate adds the agent's estimate of the time that it needs after it takes the handoff.
func (x *explainer) estimate() {
	if ms := x.State.EstimatedCompletionMS; ms > 0 {
		x.say("Once %s takes it, it needs %s, by its own estimate.", Person(x.State.Agent), millisSpoken(ms))
	}
}

// awaiting explains a suspended handoff, which continues when its children have ended.
func (x *explainer) awaiting() {
	s := x.State
	all, open := s.Children.Awaited.Len(), s.Children.Awaited.Without(s.Children.Closed).Len()
	if open == 0 {
		x.say("The children of %s have ended.", Person(s.Agent))
		return
	}
	x.say("%s has handed off %s and waits, since %s, for %s: %s.", sentence(Person(s.Agent)), partOfIt(all), x.clock(s.ConditionedAt), ofThem(open, all), x.relatives(open, "part"))
	x.say("When that is over, %s gets it back.", Person(s.Agent))
}

// group explains a group, which ends when its members do.
func (x *explainer) group() {
	s := x.State
	ended, succeeded := s.Children.Closed.Len(), s.Children.Succeeded.Len()
	open := s.Aggregate.Size - ended
	well, not := "with success", "without"
	if s.Aggregate.Mode == protocol.AggregateMajority {
		well, not = "in favour", "not"
	}
	ends := "of which none has ended yet"
	if ended > 0 {
		ends = fmt.Sprintf("of which %s ended (%d %s, %d %s)", Has(fmt.Sprint(ended), ended), succeeded, well, ended-succeeded, not)
	}
	x.say("It is a group of %d, %s.", s.Aggregate.Size, ends)
	x.say("It still waits for %s: %s.", ofThem(open, s.Aggregate.Size), x.relatives(open, "member"))
	x.say("It succeeds %s.", Aggregation(s))
	x.suggest("see all of its members", OpTree, "ticket", s.Ticket)
}

// retrying explains a handoff that waits for the time of its next attempt.
func (x *explainer) retrying() {
	s := x.State
	x.say("Attempt %d of %d at %s ended without a result%s.", s.Attempt, s.Policy.MaxAttempts, Person(s.Agent), x.lastEnd())
	if s.RetryAt.After(x.Now) {
		x.say("Attempt %d begins %s, in %s.", s.Attempt+1, x.at(s.RetryAt), Spoken(s.RetryAt.Sub(x.Now)))
		x.nextSaid = true
	} else {
		x.keptBack()
	}
}

// refused explains a handoff that no other agent can take.
func (x *explainer) refused() {
	s := x.State
	refused := fmt.Sprintf("%s refused it %s%s", sentence(Person(s.Agent)), x.at(s.UpdatedAt), x.because(cmp.Or(s.Message, s.Reason)))
	if s.Policy.OnNoTaker != protocol.NoTakerQueue {
		x.say("%s.", refused)
		return
	}
	x.say("%s, and no other agent can do it.", refused)
	x.say("It goes to the first fit agent that turns up.")
	x.suggest(toAnother, OpReroute, "ticket", s.Ticket, "to", "")
}

// stopping explains a handoff that is being cancelled or rolled back.
func (x *explainer) stopping() {
	s := x.State
	what := "be cancelled"
	if s.CancelReturn {
		what = "go back to " + s.Source
	}
	x.say("%s asked %s for it to %s%s.", sentence(Person(cmp.Or(s.CancelBy, unknownCaller))), x.at(s.CancelRequestedAt), what, x.because(s.CancelReason))
	if !s.Held() {
		return
	}
	if !x.Directory.Present(s.Holder) {
		x.say("%s had it and has stopped answering.", sentence(x.holder()))
		return
	}
	x.say("%s has it, was notified, and has until %s to stop.", sentence(x.holder()), x.clock(s.CancelRequestedAt.Add(time.Duration(s.Policy.CancelGraceMS)*time.Millisecond)))
}

// Places that keep an unsuccessful end. Each names the others.
const (
	KeptInInbox      = "inbox"
	KeptAsReturn     = "return"
	KeptAsDeadLetter = "dead letters"
)

// Kept names the places that keep an unsuccessful end, except for the one shown.
func Kept(s protocol.State, shown string) string {
	if !s.Closed || s.Outcome == protocol.OutcomeSuccess || s.Outcome == protocol.OutcomePartial {
		return ""
	}
	var places []string
	if s.ReturnTicket != "" && shown != KeptAsReturn {
		places = append(places, fmt.Sprintf("return to %s (%s)", s.Source, s.ReturnTicket))
	}
	if s.Inbox != "" && shown != KeptInInbox {
		places = append(places, "inbox of "+s.Inbox)
	}
	if lifecycle.DeadLetter(s) && shown != KeptAsDeadLetter {
		places = append(places, "dead letters")
	}
	return Join(places...)
}

// Overdue returns when an open handoff became overdue, and when it closes.
func Overdue(s protocol.State) string {
	if s.Closed || s.OverdueSince.IsZero() {
		return ""
	}
	return fmt.Sprintf("since %s, closes %s", Instant(s.OverdueSince), Instant(lifecycle.Deadline(s)))
}

// OverdueMark marks an overdue handoff in a list.
func OverdueMark(s protocol.State, now time.Time) string {
	if s.Closed || s.OverdueSince.IsZero() {
		return ""
	}
	return "overdue, closes in " + Spoken(lifecycle.Deadline(s).Sub(now))
}

// Complexity returns a class that the fleet assigned because the source named none, and the rule
// that assigned it: "medium, by rule 1 of the fleet". It is empty if the source named the class.
func Complexity(s protocol.State) string {
	class, by, found := strings.Cut(s.Classified, "/")
	switch rule, isRule := strings.CutPrefix(by, "rule "); {
	case !found:
		return ""
	case isRule:
		return class + ", by rule " + rule + " of the fleet"
	}
	return class + ", by a " + by
}

// keptBack explains a breaker that blocks the handoff: its failures, its state, and the probe that
// may close it. It returns false if no breaker blocks the handoff.
func (x *explainer) keptBack() bool {
	agent, h, kept := lifecycle.KeptBack(x.State, x.query(x.Now))
	if !kept {
		return false
	}
	state, until := lifecycle.Breaker(h, x.Directory.BreakerPolicy(agent), x.Now)
	x.e.WaitingFor = WaitBreaker
	last := ""
	if f := h.LastFailure; f != nil {
		last = fmt.Sprintf(", the last (%s) %s", f.Ticket, x.at(f.At))
	}
	x.say("It waits because the breaker of %s is %s: %s failed there%s.", agent, state, Count(len(h.Failures), "handoff"), last)
	switch {
	case state == lifecycle.BreakerOpen:
		x.say("One is tried %s, in %s; the others go on when that succeeds.", x.at(until), Spoken(until.Sub(x.Now)))
	case len(h.Probes) > 0:
		x.say("Handoff %s tries whether it has recovered; the others go on when that succeeds.", h.Probes[0].Ticket)
	}
	x.suggest("close the breaker, if the agent has recovered", OpResetBreaker, "agent", agent)
	x.suggest(toAnother, OpReroute, "ticket", x.State.Ticket, "to", "")
	return true
}
