//go:build proof

package sim

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"
	"time"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/brokertest"
	"github.com/agenthandoff/handoff/internal/lifecycle"
	"github.com/agenthandoff/handoff/internal/record"
	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/tests/verify"
)

// judge knows what must be true. It sees each append as it is stored, reads the
// records as any reader would, and trusts no process.
type judge struct {
	sharing       sharing         // of workspaces
	reserved      map[string]bool // the handoffs whose place as a probe of a breaker was kept
	breakerClosed bool            // of the frail agent, again
	prompt        prompt
	usage         usageKnown
	approvals     approvalsKnown
	bids          bidsKnown
	knots         knotsKnown
	clocks        clocksKnown
	overrides     map[seat]bool // handoffs that a person has given to an agent that is not fit
	firings       firings
	edges         []edgeSet            // all that there ever were
	ledgers       map[string]*ledgerOf // of what has limits, or follows from it
	accounts      map[string]*lineageAccount
	l             *simulation
	mu            sync.Mutex

	heads     map[string]knownHead
	acked     map[string]uint64 // submissions that were acknowledged, at which sequence
	read      map[string]uint64 // by ticket: the newest sequence that was read; later reads may not be older
	presence  map[string]*presence
	lines     map[string]refusals
	reasons   map[string]string            // of packages that go in circles, by ticket
	denied    map[string]bool              // handoffs of which the last answer was a denial
	memberOf  map[groupAgent]int           // which member of a group an agent has
	votes     map[string]bool              // closed handoffs that are in favour, as their results say
	asked     map[string]protocol.Bits     // by handoff: the children that its results wait for
	keys      map[string]string            // by handoff: the child that each attempt asks for; and the parents of what has a key
	gotten    map[string]protocol.Bits     // by handoff: the children whose ends a worker of it got
	previous  map[string]protocol.Previous // by handoff: the result that it follows from
	slots     map[string]time.Time         // when a holder took its slot for a handoff
	keyPlaces map[string]time.Time         // when a holder took a place under a key for a ticket
	lateSince time.Time                    // since when there is a worker of late
	fleets    []*protocol.Fleet            // all settings that there ever were
	appends   int
	open      int

	found       []string // what is wrong
	closedAfter time.Duration
}

// knownHead is the head of a handoff.
type knownHead struct {
	state protocol.State
	hash  string
	seq   uint64
	at    time.Time
	late  bool // its holder's acceptance came when its slot counted no more
}

// presence is what the engine knows of a holder.
type presence struct {
	until, lapsed time.Time // lapsed: when it had last been gone
	holder        protocol.Holder
}

func newJudge(l *simulation) judge {
	return judge{l: l, heads: map[string]knownHead{}, acked: map[string]uint64{}, read: map[string]uint64{}, presence: map[string]*presence{}, memberOf: map[groupAgent]int{}, votes: map[string]bool{}, asked: map[string]protocol.Bits{}, gotten: map[string]protocol.Bits{}, keys: map[string]string{}, slots: map[string]time.Time{}, keyPlaces: map[string]time.Time{}, lines: map[string]refusals{}, sharing: newSharing(), denied: map[string]bool{}, bids: newBidsKnown()}
}

const foundMax = 10

func (j *judge) fault(format string, args ...any) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.faultLocked(format, args...)
}

func (j *judge) faultLocked(format string, args ...any) {
	words := fmt.Sprintf(format, args...)
	j.l.sched.trace("%v WRONG: %s", j.l.since(), words)
	if len(j.found) < foundMax {
		j.found = append(j.found, words)
	}
}

// holderBeat and left keep up with who is there.
func (l *simulation) holderBeat(h protocol.Holder) {
	j := &l.judge
	j.mu.Lock()
	defer j.mu.Unlock()
	j.seeKnots()
	now := time.Now()
	p := j.presence[h.ID]
	if p == nil {
		p = &presence{}
		j.presence[h.ID] = p
	} else if now.After(p.until) {
		p.lapsed = now
	}
	p.until, p.holder = now.Add(broker.PresenceTTL(h)), h
	if h.Agent == late && j.lateSince.IsZero() {
		j.lateSince = now
	}
}

func (l *simulation) holderLeft(id string) {
	j := &l.judge
	j.mu.Lock()
	defer j.mu.Unlock()
	if p := j.presence[id]; p != nil {
		p.until = time.Now().Add(-1)
	}
}

// appended is told of each append as soon as it is stored.
func (l *simulation) appended(p *process, ticket string, seq uint64, body []byte) {
	j := &l.judge
	j.mu.Lock()
	defer j.mu.Unlock()
	before := j.heads[ticket]
	if seq <= before.seq { // an append that was repeated
		return
	}
	j.appends++
	j.seeKnots()
	made, err := record.Decode(bytes.Clone(body), seq) // the broker uses the body's memory again
	if err != nil {
		j.faultLocked("%s at %d does not decode: %v", ticket, seq, err)
		return
	}
	l.sched.trace("%v %s appended %d to %s: %s", l.since(), p.name, seq, ticket[:8], names(made.Events))
	j.checkFirings(made.State, made.Events)
	j.checkBids(before.state, made.State, made.Events)
	if made.State.PrevHash != before.hash {
		j.faultLocked("%s: %s at %d does not follow from the entry before it", ticket, names(made.Events), seq)
	}
	folded, err := lifecycle.ApplyAll(before.state, made.Events)
	if err != nil {
		j.faultLocked("%s: %s at %d: %v", ticket, names(made.Events), seq, err)
	}
	folded.Bind(seq)
	after := made.State
	if folded.Phase != after.Phase || folded.Closed != after.Closed || folded.Fence != after.Fence || folded.Attempt != after.Attempt || folded.Offer != after.Offer {
		j.faultLocked("%s at %d: the events make %s of attempt %d, the state says %s of %d", ticket, seq, folded.Phase, folded.Attempt, after.Phase, after.Attempt)
	}
	if err := errors.Join(verify.Follows(before.state, after, time.Now()), verify.End(before.state, after), lifecycle.CheckRead(ticket, seq, &after)); err != nil {
		j.faultLocked("%s at %d: %v", ticket, seq, err)
	}
	if err := lifecycle.CheckWriters(before.state, made.Events); err != nil {
		j.faultLocked("%s at %d: %v", ticket, seq, err)
	}
	j.checkLostLeases(ticket, before.state, made.Events)
	j.checkMembers(after)
	j.checkVotes(ticket, before.state, after, made.Events)
	j.checkAwaits(ticket, after, made.Events)
	j.checkEnds(before.state, after, made.Events)
	j.checkKeys(after, made.Events)
	j.checkLineage(after, made.Events)
	j.checkSource(ticket, before.state, after)
	j.checkUndelivered(before.state, after, made.Events)
	j.checkChain(before.state, after, made.Events)
	j.checkDenied(ticket, after, made.Events)
	j.checkAnswers(before.state, made.Events)
	j.checkPolicy(before.state, made.Events)
	j.checkVariant(before.state, after, made.Events)
	j.checkMode(after, made.Events)
	j.checkNames(after, made.Events)
	j.checkClass(before.state, after)
	j.checkProbe(after, made.Events)
	j.checkUsage(before.state, after, made.Events)
	j.checkLimits(before.state, after, made.Events)
	j.checkAccounts(before.state, after, made.Events)
	j.checkKnot(after, made.Events)
	j.checkCircle(after, made.Events)
	j.checkEdges(before.state, after, made.Events)
	j.checkFit(after, made.Events)
	j.checkRanked(before.state, made.Events)
	j.checkPlace(before.state, after, made.Events)
	j.checkUsedUp(before.state, after, made.Events)
	j.checkClocks(before.state, after, made.Events)
	j.checkLapses(after)
	j.checkUnknown(before.state, after, made.Events)
	j.checkStart(after, made.Events)
	j.checkBudgetStop(after, made.Events)
	j.checkImpasse(before.state, after, made.Events)
	if before.seq == 0 {
		j.open++
	}
	if after.Closed && !before.state.Closed {
		j.open--
	}
	if after.Held() && !before.state.Held() {
		defer j.checkConcurrency(after.Agent)
		defer j.checkKeyLimits(after, made.Events)
	}
	late := before.late
	if after.Holder != before.state.Holder {
		took, has := j.slots[ticket+after.Holder]
		late = has && time.Since(took) > lifecycle.SlotGrace
		place, has := j.keyPlaces[ticket+after.Holder]
		late = late || has && time.Since(place) > lifecycle.SlotGrace
	}
	j.heads[ticket] = knownHead{state: after, hash: hashOf(body), seq: seq, at: time.Now(), late: late}
}

// hashOf is what the next entry has to name.
func hashOf(body []byte) string {
	sum := sha256.Sum256(body)
	return hex.EncodeToString(sum[:])
}

func names(events []protocol.Event) string {
	var all []string
	for _, e := range events {
		all = append(all, string(e.EventType()))
	}
	return strings.Join(all, "+")
}

// checkLineage: no agent that refused a handoff has what follows from it for the same task.
func (j *judge) checkLineage(s protocol.State, events []protocol.Event) {
	for _, e := range events {
		switch e := e.(type) {
		case *protocol.Submitted:
			pkg, err := protocol.DecodePackage(e.Package)
			if err != nil { // it lies in a blob
				return
			}
			l := refusals{task: pkg.Task.Description, barred: map[string]bool{}, refused: map[string]bool{}}
			if parent, known := j.lines[s.Parent]; known && s.N > 0 && parent.task == l.task {
				maps.Copy(l.barred, parent.barred)
				maps.Copy(l.barred, parent.refused)
			}
			j.lines[s.Ticket] = l
		case *protocol.Rejected:
			if l, known := j.lines[s.Ticket]; known && e.Agent != protocol.Human {
				l.refused[e.Agent] = true
			}
		}
	}
	if j.lines[s.Ticket].barred[s.Agent] {
		j.faultLocked("%s has %s, and refused what it follows from", s.Agent, s.Ticket)
	}
}

// refusals is what a handoff asks for, and the agents that said no: to what it follows
// from, and to itself.
type refusals struct {
	task            string
	barred, refused map[string]bool
}

// checkMembers: no agent has two members of a group.
func (j *judge) checkMembers(s protocol.State) {
	if s.Group == "" || s.Agent == "" {
		return
	}
	seat := groupAgent{s.Group, s.Agent}
	if other, has := j.memberOf[seat]; has && other != s.N {
		j.faultLocked("%s has member %d of the group %s, and had member %d", s.Agent, s.N, s.Group, other)
	}
	j.memberOf[seat] = s.N
}

// checkLostLeases checks that no holder loses a lease while it is present.
func (j *judge) checkLostLeases(ticket string, before protocol.State, events []protocol.Event) {
	for _, e := range events {
		lost, ok := e.(*protocol.LeaseLost)
		if !ok {
			continue
		}
		if lost.Reason == protocol.NotAcknowledged {
			if due := lifecycle.ClaimDue(before); due.IsZero() || time.Now().Before(due) {
				j.faultLocked("%s: the claim of %s lapses, which had until %v to acknowledge it", ticket, lost.Holder, due)
			}
			continue
		}
		p := j.presence[lost.Holder]
		if p == nil || !time.Now().After(p.until) && !p.lapsed.After(before.AcceptedAt) {
			j.faultLocked("%s: the lease of %s is called lost, which has been there all the time", ticket, lost.Holder)
		}
	}
}

// slotSlack is how long a holder must have been there before it accepted: one that
// was gone between the taking of its slot and the acceptance is one too many, as the
// documentation says.
const slotSlack = 2 * time.Minute

// recordSlots notes the slots of an agent as they are stored.
func (j *judge) recordSlots(slots protocol.Slots) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for ticket, slot := range slots {
		j.slots[ticket+slot.Holder] = slot.At
	}
}

// checkConcurrency: the holders of an agent with max_concurrency have no more in hand together,
// but for those whose lease had lapsed, and acceptances that came after lifecycle.SlotGrace.
func (j *judge) checkConcurrency(agent string) {
	if agent != limited {
		return
	}
	var held []string
	for ticket, h := range j.heads {
		s := h.state
		if s.Closed || !s.Held() || s.Agent != agent || h.late {
			continue
		}
		p := j.presence[s.Holder]
		if p == nil || time.Now().After(p.until) || p.lapsed.After(s.AcceptedAt.Add(-slotSlack)) {
			continue
		}
		held = append(held, ticket[:8])
	}
	if len(held) > limitedTo {
		j.faultLocked("%s has %d in hand, and may have %d: %v", agent, len(held), limitedTo, held)
	}
}

// checkUndelivered: work that is done stays done, wherever it is handed on to, and what cannot be
// delivered is with an authority from its first append on.
func (j *judge) checkUndelivered(before, after protocol.State, events []protocol.Event) {
	for _, e := range events {
		if failed, ok := e.(*protocol.Failed); ok && failed.Code == string(protocol.CodeUnknownAgent) {
			j.faultLocked("%s: finished work is failed, since it is handed on to no agent: %s", after.Ticket, failed.Message)
		}
	}
	if before.Ticket == "" && after.OnUnknown != protocol.OnOpenWait && (after.Target.Agent == nowhere || after.Target.Agent == newcomer) && after.Agent == "" && !after.Closed {
		j.faultLocked("%s is handed on to no agent, and no authority has it", after.Ticket)
	}
}

// checkSource: what was handed off in sequence begins with the completing append of its
// source, and is dropped only where the attempt that handed it off has ended.
func (j *judge) checkSource(ticket string, before, after protocol.State) {
	if !after.AwaitsSource || after.Phase == protocol.AwaitingSource || before.Phase != protocol.AwaitingSource && before.Phase != "" {
		return
	}
	source := j.heads[after.Parent].state
	follows := source.Children != nil && source.Children.After.Has(after.N-1)
	switch {
	case !after.Closed && !(follows && source.Closed && source.Outcome == protocol.OutcomeSuccess):
		j.faultLocked("%s begins, and its source %s is %s", ticket, after.Parent, source.Phase)
	case after.Reason == lifecycle.ReasonSourceEnded && follows:
		j.faultLocked("%s is dropped, and the attempt of its source %s goes on", ticket, after.Parent)
	}
}

// entryBefore is the entry that another one has overtaken, or that one where none was.
func (l *simulation) entryBefore(m *brokertest.Memory, e broker.Entry) broker.Entry {
	older := e
	_ = m.Entries(context.Background(), broker.From(1), func(other broker.Entry) error {
		if other.Ticket == e.Ticket && other.Seq < e.Seq {
			older = other
		}
		return nil
	})
	return older
}

// recordAcknowledged is told of each submission that was.
func (j *judge) recordAcknowledged(head broker.Head) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.acked[head.Ticket] = head.Seq
	j.read[head.Ticket] = max(j.read[head.Ticket], head.Seq)
}

// recordRead records a read by ticket.
func (j *judge) recordRead(head broker.Head) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if seen := j.read[head.Ticket]; head.Seq < seen {
		j.faultLocked("status of %s is of %d, and %d has been read before", head.Ticket, head.Seq, seen)
	}
	j.read[head.Ticket] = max(j.read[head.Ticket], head.Seq)
}

func (j *judge) knownClosed(ticket string) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.heads[ticket].state.Closed
}

// done tells whether all has been submitted and closed, and what is owed is paid.
func (j *judge) done() bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	if len(j.found) > 0 {
		return true
	}
	j.checkDuties()
	j.checkAbsence()
	j.checkPrompt()
	j.checkKnots()
	if len(j.acked) < handoffsMin || j.open > 0 {
		return false
	}
	for _, h := range j.heads {
		if j.unpaidDuty(h.state) != "" {
			return false
		}
	}
	j.closedAfter = j.l.since() - faultsFor
	return true
}

// unpaidDuty returns a duty of a closed handoff that is still due.
func (j *judge) unpaidDuty(s protocol.State) string {
	duties := lifecycle.DutiesOf(s)
	if duties.Return || duties.CancelChildren || duties.Chain || lifecycle.HasPendingDuties(s) && agents[s.Source] > 0 {
		return "its return, or the end of its children"
	}
	if j.owesBid(s) {
		return "the answer to its bid"
	}
	if s.Children == nil {
		return ""
	}
	for _, n := range s.Children.Made.Numbers() {
		if _, there := j.heads[s.ChildTicket(n)]; !there {
			return fmt.Sprint("child ", n)
		}
	}
	return ""
}

// checkDuties: when there have been no faults for a while, whatever a handoff calls
// for is in place, even if it is not needed for long.
func (j *judge) checkDuties() {
	if j.l.since() < faultsFor+settledAfter {
		return
	}
	j.checkStarts()
	offers, waking := j.l.m.QueuedOffers(), j.l.m.WakeUps()
	for ticket, h := range j.heads {
		if time.Since(h.at) < settledAfter {
			continue
		}
		if due := lifecycle.ClaimDue(h.state); !due.IsZero() && !h.state.CancelRequested && time.Since(due) > settledAfter {
			j.faultLocked("%s is claimed by %s, which should have acknowledged it %v ago", ticket, h.state.Holder, time.Since(due))
		}
		duties := lifecycle.DutiesOf(h.state)
		key := broker.OfferKey{Agent: h.state.Agent, Lane: h.state.Priority, Ticket: ticket, Sequence: h.state.Offer}
		if duties.Offer && !offers[key] {
			j.faultLocked("%s is pending with %s, and its offer does not stand", ticket, h.state.Agent)
		}
		if duties.Source {
			source := j.heads[h.state.Parent]
			over := source.state.Closed || source.state.Children == nil || !source.state.Children.After.Has(h.state.N-1)
			if over && time.Since(source.at) >= settledAfter {
				j.faultLocked("%s awaits its source %s, which is %s and does not go on with it", ticket, h.state.Parent, source.state.Phase)
			}
		}
		if duties.WakeUp && !waking[ticket] {
			j.faultLocked("%s is %s, and nothing will wake it", ticket, h.state.Phase)
		}
	}
}
