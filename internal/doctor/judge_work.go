package doctor

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/explain"
	"github.com/agenthandoff/handoff/internal/integrity"
	"github.com/agenthandoff/handoff/internal/jetstream"
	"github.com/agenthandoff/handoff/internal/lifecycle"
	"github.com/agenthandoff/handoff/protocol"
)

// agentFacts describes an agent, its workers and its queue.
type agentFacts struct {
	breaker    lifecycle.BreakerState // empty: no breaker
	id         string
	registered bool
	why        lifecycle.Unfitness // why it takes no offers; empty if it does
	workers    int
	polls      bool
	polled     time.Time // of its last poll
	queued     int
	oldest     time.Time
}

// headFacts are the facts of a sweep over all heads.
type headFacts struct {
	handoffs, open int
	unreadable     tickets // their last entry cannot be read
	examples       []string
	oldestOpen     time.Time
	stuck          tickets
	overdue        tickets
	unknownAgent   tickets // offered to an agent that does not exist
	waits          lifecycle.WaitGraph
	deadlocks      tickets // the youngest of each circle
	orphans        []orphan
	expiring       tickets
	gated          int           // that wait before their next offer
	unanswered     tickets       // their approver is absent
	lapsed         tickets       // a gate's time is over
	deep           tickets       // in their lineages
	expiresIn      time.Duration // until the first of them is dropped
	people         tickets       // that are in the inbox of a person
	peopleSince    time.Time     // since the first of them waits
}

// orphan is a handoff whose holder is gone. A supervisor deals with it within seconds, so that
// examineOrphans checks it again before it is a finding.
type orphan struct{ ticket, holder, agent string }

// tickets counts handoffs. It keeps the first tickets, and words on the very first.
type tickets struct {
	n     int
	first []string
	words string
}

func (t *tickets) add(ticket, words string) {
	if t.n == 0 {
		t.words = words
	}
	if t.n++; len(t.first) < aboutMax {
		t.first = append(t.first, ticket)
	}
}

// examplesMax bounds the examples of a finding.
const examplesMax = 3

// addUnreadable adds a head that cannot be read.
func (f *headFacts) addUnreadable(e *broker.UnreadableError) {
	f.handoffs++
	f.unreadable.add(e.Ticket, "")
	if len(f.examples) < examplesMax {
		f.examples = append(f.examples, fmt.Sprintf("%s (entry %d: %s)", e.Ticket, e.Seq, e.Why))
	}
}

// addHead adds a head. directory must be recent.
func (f *headFacts) addHead(h broker.Head, directory *lifecycle.Directory, now time.Time) {
	f.handoffs++
	s := h.State
	f.waits.Add(&s, now)
	if s.Closed {
		return
	}
	f.open++
	if f.oldestOpen.IsZero() || s.SubmittedAt.Before(f.oldestOpen) {
		f.oldestOpen = s.SubmittedAt
	}
	if left, tooLong := h.OpenTooLong(now); tooLong {
		if f.expiring.n == 0 || left < f.expiresIn {
			f.expiresIn = left
		}
		f.expiring.add(s.Ticket, "")
	}
	if lifecycle.DutiesOf(s).Offer && directory != nil {
		if _, known := directory.Agent(s.Agent); !known {
			f.unknownAgent.add(s.Ticket, s.Agent)
		}
	}
	if s.Held() && directory != nil && !directory.Present(s.Holder) && len(f.orphans) < aboutMax {
		f.orphans = append(f.orphans, orphan{s.Ticket, s.Holder, s.Agent})
	}
	f.addGate(s, directory, now)
	if lifecycle.InboxReasonFor(s, protocol.Human, directory) != lifecycle.InboxNone {
		f.people.add(s.Ticket, "")
		if since := lifecycle.InboxSince(s); f.peopleSince.IsZero() || since.Before(f.peopleSince) {
			f.peopleSince = since
		}
	}
	if lifecycle.Deep(s.Summary) {
		words := explain.Depth(s)
		if repeated := lifecycle.Repeated(s.Summary, s.Source, s.Agent); len(repeated) > 0 {
			words += ", with " + strings.Join(repeated, " and ") + " again and again"
		}
		f.deep.add(s.Ticket, words)
	}
	overdue, err := lifecycle.OverdueSince(s, directory.At(now))
	switch {
	case s.StuckReason != "":
		f.stuck.add(s.Ticket, s.StuckReason)
	case err != nil:
		f.stuck.add(s.Ticket, err.Error())
	case !overdue.IsZero() && now.Sub(overdue) > lifecycle.LateAfter:
		f.overdue.add(s.Ticket, fmt.Sprintf("%s since %s", explain.Phase(s), explain.Instant(overdue)))
	}
}

// CheckPeople counts the handoffs that wait for a person, which is no problem.
const CheckPeople = "people"

func judgePeople(x Examination) Finding {
	t := x.heads.people
	if x.headsErr != nil || t.n == 0 {
		return OK("no open handoff waits for a person")
	}
	f := OK("%s", explain.ForPerson(t.n, x.heads.peopleSince, time.Now()))
	f.About = t.first
	return f
}

func judgeWorkers(x Examination) Finding {
	if x.agentsErr != nil {
		return Fail("see that these credentials may read the agents", "could not be read: %v", x.agentsErr)
	}
	var names, words []string
	var oldest time.Time
	serving := 0
	var polling []string
	for _, a := range x.agents {
		switch {
		case a.workers > 0:
			serving++
		case a.polls:
			polling = append(polling, a.id+" "+explain.Polls(a.polled, x.now))
		}
		if a.why != lifecycle.UnfitAbsent || a.queued == 0 || !a.registered {
			continue
		}
		names = append(names, a.id)
		words = append(words, fmt.Sprintf("%s (%s)", a.id, explain.Count(a.queued, "offer")))
		if oldest.IsZero() || !a.oldest.IsZero() && a.oldest.Before(oldest) {
			oldest = a.oldest
		}
	}
	if len(names) == 0 {
		words := explain.Is(explain.Count(serving, "agent"), serving) + " served"
		if len(polling) > 0 {
			words += "; " + explain.Some(polling)
		}
		return OK("every agent with offers has a worker or polls; %s", words)
	}
	return Fail("start a worker", "no worker serves %s, the oldest for %s", explain.Some(words), ageWords(oldest, x.now)).aboutNames(names).withAction(explain.OpWork, "agent", names[0])
}

func ageWords(since, now time.Time) string {
	if since.IsZero() {
		return "a moment"
	}
	return explain.Duration(max(now.Sub(since), 0).Round(time.Second))
}

func judgePaused(x Examination) Finding {
	var names, words []string
	paused := 0
	for _, a := range x.agents {
		if a.why == lifecycle.UnfitPaused {
			paused++
			if a.queued > 0 {
				names = append(names, a.id)
				words = append(words, fmt.Sprintf("%s (%s)", a.id, explain.Count(a.queued, "offer")))
			}
		}
	}
	switch {
	case len(names) > 0:
		return Warn("resume it", "offers wait at paused agents: %s", explain.Some(words)).aboutNames(names).withAction(explain.OpResume, "agent", names[0])
	case paused > 0:
		return OK("%s, with no offers", explain.Is(explain.Count(paused, "agent"), paused)+" paused")
	}
	return OK("no paused agents")
}

// judgeBreakers names the breakers that are not closed.
func judgeBreakers(x Examination) Finding {
	var names, words []string
	have := 0
	for _, a := range x.agents {
		switch a.breaker {
		case "":
			continue
		case lifecycle.BreakerClosed:
		default:
			names, words = append(names, a.id), append(words, fmt.Sprintf("that of %s is %s", a.id, a.breaker))
		}
		have++
	}
	switch {
	case len(names) > 0:
		return Warn("look at its failures", "%s", explain.Some(words)).aboutNames(names).withAction(explain.OpBreaker, "agent", names[0])
	case have == 0:
		return OK("no breaker is set")
	}
	return OK("%s closed", explain.Is(explain.Count(have, "breaker"), have))
}

// judgeLimits names the keys that are paused, because a provider throttles.
func judgeLimits(x Examination) Finding {
	if x.limitsErr != nil {
		return Warn("ask again", "the keys with a limit could not be read: %v", x.limitsErr)
	}
	var names, words []string
	waiting := 0
	for _, v := range x.limits {
		if waiting += v.Waiting; !v.PausedUntil.IsZero() {
			names, words = append(names, v.Key), append(words, fmt.Sprintf("%s is paused until %s, with %d waiting", v.Key, explain.Instant(v.PausedUntil), v.Waiting))
		}
	}
	switch {
	case len(names) > 0:
		return Warn("wait, or lower its rate: a worker reported that its provider throttles", "%s", explain.Some(words)).aboutNames(names).withAction(explain.OpKeyLimits)
	case len(x.limits) == 0:
		return OK("no key with a limit is in use")
	}
	return OK("%s in use, with %d waiting", explain.Is(explain.Count(len(x.limits), "key")+" with a limit", len(x.limits)), waiting)
}

// judgeSchedules names the schedules that no supervisor fires, and those whose last handoff was refused.
func judgeSchedules(x Examination) Finding {
	var names, words []string
	late := false
	for _, s := range x.schedules {
		t := explain.OfSchedule(&s, x.now)
		if trouble := t.Trouble(explain.Instant); trouble != "" {
			late = late || !t.Late.IsZero()
			names, words = append(names, s.Name), append(words, s.Name+" "+trouble)
		}
	}
	switch {
	case late:
		return Warn("start a supervisor", "%s", explain.Some(words)).aboutNames(names).withAction(explain.OpSupervise)
	case len(names) > 0:
		return Warn("put it again with another package, or register its agent", "%s", explain.Some(words)).aboutNames(names)
	case len(x.schedules) == 0:
		return OK("no schedule is set")
	}
	return OK("%s fired in time", explain.Is(explain.Count(len(x.schedules), "schedule"), len(x.schedules)))
}

// judgeSignals names the rules whose last handoff was refused, and those that are at their rate.
func judgeSignals(x Examination) Finding {
	var names, words, full []string
	for _, r := range x.rules {
		t := explain.OfRule(&r, x.now)
		if t.Full {
			full = append(full, r.Name)
		}
		if trouble := t.Trouble(explain.Instant); trouble != "" {
			names, words = append(names, r.Name), append(words, r.Name+" "+trouble)
		}
	}
	switch {
	case len(names) > 0:
		return Warn("put it again with another template, or register its agent", "%s", explain.Some(words)).aboutNames(names)
	case len(full) > 0:
		return Warn("raise the rate of the rule, or wait: no signal is lost", "signals wait for the rate of %s", explain.Some(full)).aboutNames(full)
	case len(x.rules) == 0:
		return OK("no rule is set")
	}
	return OK("%s, and none refused its last signal", explain.Count(len(x.rules), "rule"))
}

func judgeUnknownAgents(x Examination) Finding {
	agents := map[string]bool{}
	for _, a := range x.agents {
		if !a.registered && a.queued > 0 {
			agents[a.id] = true
		}
	}
	t := x.heads.unknownAgent
	switch {
	case t.n > 0:
		return Fail("register it and start a worker for it, or offer the handoff to another agent",
			"no agent can take %s: %s is not registered", explain.Count(t.n, "handoff"), t.words).aboutNames(t.first).
			withAction(explain.OpRegister, "agent", t.words).withAction(explain.OpReroute, "ticket", t.first[0])
	case len(agents) > 0:
		names := slices.Sorted(maps.Keys(agents))
		return Warn("register it", "offers wait for %s, which is not registered", explain.Some(names)).aboutNames(names).withAction(explain.OpRegister, "agent", names[0])
	}
	return OK("every offer is for an agent that exists")
}

func judgeStuck(x Examination) Finding {
	t, u := x.heads.stuck, x.heads.unreadable
	const wrong = "the last entry of %s cannot be read: %s"
	const mend = "restore the entry before it; if a newer program wrote it, update this program and the supervisors"
	examples := strings.Join(x.heads.examples, ", ")
	if more := u.n - len(x.heads.examples); more > 0 {
		examples += fmt.Sprintf(" and %d more", more)
	}
	switch {
	case t.n == 0 && u.n == 0:
		return OK("0 stuck")
	case t.n == 0:
		return Fail(mend, wrong, explain.Count(u.n, "handoff"), examples).aboutNames(u.first).withAction(explain.OpMend)
	}
	do := "see its history; fix the fault in it, then check every handoff"
	if strings.HasPrefix(t.words, broker.BodyLost) {
		do = "put the bodies back from a backup, or cancel it and submit it again"
	}
	f := Fail(do,
		"%s cannot continue, such as %s: %s", explain.Count(t.n, "handoff"), t.first[0], t.words).aboutNames(t.first).
		withAction(explain.OpHistory, "ticket", t.first[0]).withAction(explain.OpRepair)
	if u.n > 0 {
		f.Message += "; " + fmt.Sprintf(wrong, explain.Count(u.n, "handoff"), examples)
		f.Do += "; " + mend
		f = f.aboutNames(slices.Concat(t.first, u.first)).withAction(explain.OpMend)
	}
	return f
}

func judgeDeadlocks(x Examination) Finding {
	t := x.heads.deadlocks
	if t.n == 0 {
		return OK("no handoffs wait for one another")
	}
	return Warn("a supervisor takes the youngest out after its acknowledge timeout; give the agent more slots, or let its program wait by its result",
		"%s in a circle of handoffs that wait for one another's slots, such as %s (%s)", explain.Was(explain.Count(t.n, "handoff"), t.n), t.first[0], t.words).
		aboutNames(t.first).withAction(explain.OpHistory, "ticket", t.first[0])
}

// judgeLineages finds handoffs that are so deep in their lineage that their agents may hand off in
// a loop.
func judgeLineages(x Examination) Finding {
	t := x.heads.deep
	if t.n == 0 {
		return OK("every open handoff is less than %d levels deep", protocol.LineageDepthWarning)
	}
	return Warn("see what led to it; cancel it, or set a limit for such work (limits.max_handoffs, limits.max_depth)",
		"%s deep in a lineage, such as %s, %s", explain.Was(explain.Count(t.n, "handoff"), t.n), t.first[0], t.words).
		aboutNames(t.first).withAction(explain.OpTree, "ticket", t.first[0])
}

func judgeLate(x Examination) Finding {
	t := x.heads.overdue
	if t.n == 0 {
		return OK("0 late decisions")
	}
	return Fail("check every handoff now; a supervisor must be running",
		"%s not checked in time, such as %s, %s", explain.Was(explain.Count(t.n, "handoff"), t.n), t.first[0], t.words).aboutNames(t.first).withAction(explain.OpRepair)
}

func judgeAge(x Examination) Finding {
	keeps := time.Duration(0)
	for _, s := range x.engine.Streams {
		if s.Name == jetstream.LedgerStream {
			keeps = s.MaxAge
		}
	}
	h := x.heads
	switch {
	case h.expiring.n > 0 && h.expiresIn <= 0:
		return Fail("see that a supervisor runs and that the clocks are right", "the ledger is dropping open handoffs: %s too long, such as %s",
			explain.Was(explain.Count(h.expiring.n, "handoff"), h.expiring.n)+" open", h.expiring.first[0]).aboutNames(h.expiring.first)
	case h.expiring.n > 0:
		return Fail("see that a supervisor runs and that the clocks are right", "%s too long, such as %s; the ledger drops the first in %s",
			explain.Is(explain.Count(h.expiring.n, "handoff"), h.expiring.n)+" open", h.expiring.first[0], explain.Duration(h.expiresIn)).aboutNames(h.expiring.first)
	}
	kept := "for ever"
	if keeps > 0 {
		kept = "for " + explain.Duration(keeps)
	}
	if h.oldestOpen.IsZero() {
		return OK("the ledger keeps handoffs %s; none is open", kept)
	}
	return OK("the ledger keeps handoffs %s; the oldest open one is %s old", kept, ageWords(h.oldestOpen, x.now))
}

func judgeLedger(x Examination) Finding {
	h, l := x.heads, x.ledger
	var v integrity.Verdict
	handoffs, accepting, ahead := 0, uint64(0), false // the index is ahead
	for p, part := range l.Partitions() {
		base := broker.PartitionBase(p)
		indexed := max(x.indexed.Cursor().Next(p), base+1) - 1
		ahead = ahead || indexed > part.Last
		v.Join(integrity.Judge(integrity.Facts{Created: l.Created, Began: part.Began, Base: base, First: part.First, Last: part.Last, LastAt: part.LastAt,
			Messages: part.Messages, Accepted: part.Accepted, Now: x.now,
			Seen: []integrity.Seen{{By: "the index", Created: l.Created, Last: indexed}}}))
		handoffs += int(part.Handoffs)
		accepting += broker.CountRanges(broker.Within(part.Accepted, part.First, part.Last))
	}
	damage := v.Damage
	if lost := handoffs - h.handoffs; lost > 0 && !l.MayHaveDropped(x.now) {
		damage = append(damage, fmt.Sprintf("the last entry of %s cannot be read", explain.Count(lost, "handoff")))
	}
	if lost := int(x.indexed.Handoffs) - h.handoffs; lost > 0 && !ahead && !l.MayHaveDropped(x.now) {
		damage = append(damage, fmt.Sprintf("the index has %s, and the ledger %d", explain.Count(int(x.indexed.Handoffs), "handoff"), h.handoffs))
	}
	if len(damage) > 0 {
		return Fail("restore a backup, or continue without the lost entries: docs/operations/damage.md", "damaged: %s", strings.Join(damage, "; "))
	}
	accepted := ""
	if accepting > 0 {
		accepted = fmt.Sprintf("; the loss of %s was accepted", entryWords(accepting))
	}
	return OK("%s, %d open%s", explain.Count(h.handoffs, "handoff"), h.open, accepted)
}

func judgeIndex(x Examination) Finding {
	i := x.index
	switch {
	case errors.Is(x.indexErr, broker.ErrNoAnswer):
		return Warn("start one", "none answers: lists, conversations and stats need one").withAction(explain.OpIndex)
	case x.indexErr != nil:
		return Warn("see its log", "it does not answer: %v", x.indexErr)
	case !i.Complete && time.Duration(i.BehindMS)*time.Millisecond > indexBehind:
		return Warn("wait for it; see its log if that does not help", "behind by %s (%s)", explain.Duration(time.Duration(i.BehindMS)*time.Millisecond), entryWords(i.Behind))
	case !i.Complete:
		return OK("catching up: %s behind", entryWords(i.Behind))
	}
	return OK("has everything: %s", strings.TrimSpace(explain.Count(int(i.Handoffs), "handoff")))
}

func entryWords(n uint64) string {
	if n == 1 {
		return "1 entry"
	}
	return fmt.Sprintf("%d entries", n)
}

// judgeStrays finds messages that no part of Handoff wrote. All parts ignore them.
func judgeStrays(x Examination) Finding {
	if x.straysErr != nil {
		return Fail("fix the fault that the engine reports", "the streams could not be searched for foreign messages: %v", x.straysErr)
	}
	if len(x.strays) == 0 {
		return OK("no foreign messages in the streams")
	}
	var where, about []string
	for _, s := range x.strays {
		where = append(where, fmt.Sprintf("%d in %s, such as %s", s.N, s.Stream, s.Subjects[0]))
		about = append(about, s.Subjects...)
	}
	first := x.strays[0]
	return Warn(fmt.Sprintf("find out who writes them, and remove them: nats stream purge %s --subject '%s'; an agent whose profile is among them must be registered again", first.Stream, first.Subjects[0]),
		"foreign or unreadable messages in the streams: %s", strings.Join(where, "; ")).aboutNames(about).withAction(explain.OpRegister)
}
