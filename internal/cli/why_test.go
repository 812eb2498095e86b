package cli

import (
	"flag"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/agenthandoff/handoff/internal/explain"
	"github.com/agenthandoff/handoff/internal/lifecycle"
	"github.com/agenthandoff/handoff/protocol"
)

var writeWhy = flag.Bool("write-why", false, "write testdata/why.golden anew; read it aloud then")

const (
	whyTicket = "7d0f2c55-6f0e-4a52-9d53-0a6c7a3f7c11"
	whyHolder = "1b2c3d4e-0000-4000-8000-000000000001"
)

// midday is when the handoffs of these tests are submitted, where their reader lives.
var midday = time.Date(2026, 3, 2, 12, 0, 0, 0, time.UTC)

// whyCases is one for each open phase, and each cause within it, and the ends.
var whyCases = []struct {
	name  string
	waits lifecycle.Wait
	make  func(g *tale) *tale
}{
	{"pending: no worker, and never was one", explain.WaitWorker, func(g *tale) *tale { return g.submit(nil).pass(10 * time.Second) }},
	{"pending: its agent has as many in hand as it may", explain.WaitSlot, func(g *tale) *tale {
		g.agent("reviewer", func(p *protocol.Profile) { p.MaxConcurrency = 2 }).worker("reviewer", "w", 1).submit(nil).pass(2 * time.Minute)
		g.inHand = 2
		return g
	}},
	{"pending: its agent polls", explain.WaitPoll, func(g *tale) *tale {
		g.agent("reviewer", func(*protocol.Profile) {}).submit(nil).pass(2 * time.Minute)
		g.d.Holders["p"] = protocol.Holder{ID: "p", Agent: "reviewer", LeaseMS: 300_000, Polling: true, PolledAt: g.now.Add(-40 * time.Second)}
		return g
	}},
	{"pending: the last worker was seen to go", explain.WaitWorker, func(g *tale) *tale {
		g.submit(nil).pass(5 * time.Minute)
		g.d.LastPresent["reviewer"] = g.now.Add(-20 * time.Second)
		return g
	}},
	{"pending: no worker, who knows since when", explain.WaitWorker, func(g *tale) *tale { g.depth = 12; return g.submit(nil).pass(5 * time.Minute) }},
	{"pending: no worker, another agent can do it", explain.WaitWorker, func(g *tale) *tale {
		g.agent("reviewer", can("review")).agent("ada", can("review")).worker("ada", "w", 0)
		return g.submit(func(s *protocol.Summary) { s.Requires = []protocol.RequiredCapability{{ID: "review"}} }).pass(25 * time.Second)
	}},
	{"pending: no worker, and it is to wait in the queue", explain.WaitWorker, func(g *tale) *tale {
		return g.submit(policy(func(o *protocol.PolicyOverrides) { o.OnNoTaker = to(protocol.NoTakerQueue) })).pass(3 * time.Hour)
	}},
	{"pending: no worker, back to its source", explain.WaitWorker, func(g *tale) *tale {
		return g.submit(policy(func(o *protocol.PolicyOverrides) { o.OnNoTaker = to(protocol.NoTakerReturn) })).pass(5 * time.Second)
	}},
	{"pending: its workers are going", explain.WaitWorker, func(g *tale) *tale {
		g.worker("reviewer", "w", 2)
		h := g.d.Holders["w"]
		h.Draining = true
		g.d.Holders["w"] = h
		return g.submit(nil).pass(15 * time.Second)
	}},
	{"pending: all are busy, with some ahead", explain.WaitSlot, func(g *tale) *tale {
		g.agent("reviewer", func(p *protocol.Profile) { p.EscalatesTo = "architect" }).agent("architect", nil)
		g.worker("reviewer", "w1", 4).worker("reviewer", "w2", 4).worker("reviewer", "w3", 4)
		g.ahead = 7
		return g.submit(policy(func(o *protocol.PolicyOverrides) { o.QueueTimeoutMS = to(int64(3_600_000)) })).pass(4 * time.Minute)
	}},
	{"pending: all are busy, and there is no index", explain.WaitSlot, func(g *tale) *tale {
		g.depth = 9
		return g.worker("reviewer", "w1", 4).submit(nil).pass(4 * time.Minute)
	}},
	{"pending: a slot is free", lifecycle.WaitTaker, func(g *tale) *tale {
		g.ahead = 0
		return g.worker("reviewer", "w1", 1).submit(nil).pass(time.Second)
	}},
	{"pending: a slot is free, and nobody takes it", lifecycle.WaitTaker, func(g *tale) *tale {
		g.ahead = 0
		return g.worker("reviewer", "w1", 1).worker("reviewer", "w2", 1).submit(nil).pass(2 * time.Minute)
	}},
	{"pending: the agent is paused", explain.WaitResume, func(g *tale) *tale {
		g.agent("reviewer", func(p *protocol.Profile) { p.Paused = true })
		return g.submit(nil).pass(2 * time.Hour)
	}},
	{"pending: for a person", lifecycle.WaitPerson, func(g *tale) *tale {
		return g.submit(func(s *protocol.Summary) { s.Target = protocol.Target{Agent: protocol.Human} }).pass(50 * time.Minute)
	}},
	{"pending: passed up to a person, since nobody was there", lifecycle.WaitPerson, func(g *tale) *tale {
		return g.submit(nil).pass(30 * time.Second).look().pass(20 * time.Minute)
	}},
	{"pending: passed up by its worker", explain.WaitWorker, func(g *tale) *tale {
		g.agent("reviewer", func(p *protocol.Profile) { p.EscalatesTo = "architect" }).agent("architect", nil).worker("reviewer", whyHolder, 1)
		g.submit(nil).accept().pass(time.Minute)
		return g.act(lifecycle.Escalate(g.state, g.d.At(g.now), whyHolder, "this needs a decision", "two designs are possible")).pass(10 * time.Second)
	}},
	{"awaiting approval", lifecycle.WaitApproval, func(g *tale) *tale {
		return g.submit(func(s *protocol.Summary) { s.Approval = &protocol.Approval{Required: true} }).pass(time.Minute)
	}},
	{"awaiting its source", lifecycle.WaitSource, func(g *tale) *tale {
		return g.submit(func(s *protocol.Summary) {
			s.AwaitsSource, s.Parent, s.N = true, "3f2b8c1e-91d4-4a6f-8a55-2f0d1c9e7b64", 1
		}).pass(time.Minute)
	}},
	{"pending: refused, now elsewhere", explain.WaitSlot, func(g *tale) *tale {
		g.agent("reviewer", can("review")).agent("ada", can("review")).worker("ada", "w", 4)
		g.submit(func(s *protocol.Summary) { s.Requires = []protocol.RequiredCapability{{ID: "review"}} })
		return g.ack(protocol.Ack{Status: protocol.AckRejected, Reason: "I do not know this language"}, false).look().pass(time.Minute)
	}},
	{"pending: answered, and offered again", lifecycle.WaitTaker, func(g *tale) *tale {
		g.worker("reviewer", whyHolder, 1).submit(nil).accept().fail("exit", "exit status 1", true).look().pass(10 * time.Second).look().accept()
		g.ack(protocol.Ack{Status: protocol.AckConditional, NeedsContext: []string{"which branch?"}, Reason: "it is not said"}, false).pass(time.Minute)
		return g.act(lifecycle.Answer(g.state, g.d.At(g.now), protocol.Answer{By: "lead", Question: lifecycle.QuestionOf(g.state).N, Text: "main"})).pass(time.Second)
	}},
	{"pending: nobody fits", lifecycle.WaitAgent, func(g *tale) *tale {
		s := protocol.Summary{Type: protocol.Sequential, Source: "lead", Target: protocol.Target{Capability: "welding"}, Priority: protocol.Normal,
			Deadline: g.now.Add(24 * time.Hour), Digest: "sha256:00"}
		return g.act(lifecycle.SubmitAnyway(whyTicket, s, protocol.Submitted{Package: []byte(`{}`)}, g.d.At(g.now))).pass(4 * time.Second)
	}},
	{"pending: somebody fit has just come", lifecycle.WaitAgent, func(g *tale) *tale {
		s := protocol.Summary{Type: protocol.Sequential, Source: "lead", Target: protocol.Target{Capability: "welding"}, Priority: protocol.Normal,
			Deadline: g.now.Add(24 * time.Hour), Digest: "sha256:00"}
		g.act(lifecycle.SubmitAnyway(whyTicket, s, protocol.Submitted{Package: []byte(`{}`)}, g.d.At(g.now))).pass(25 * time.Second)
		return g.agent("ada", can("welding"))
	}},
	{"pending: claimed, not acknowledged", lifecycle.WaitAcknowledgement, func(g *tale) *tale {
		g.submit(nil).pass(time.Minute).add(&protocol.Claimed{Meta: g.meta(), Offer: g.state.Offer, Agent: "reviewer", Holder: whyHolder, LeaseMS: 30_000})
		g.d.Holders[whyHolder] = protocol.Holder{ID: whyHolder, Agent: "reviewer", LeaseMS: 30_000, Polling: true, Host: "laptop", PID: 12}
		return g.pass(20 * time.Second)
	}},
	{"pending: claimed, and the claimant is gone", lifecycle.WaitAcknowledgement, func(g *tale) *tale {
		g.submit(nil).pass(time.Minute).add(&protocol.Claimed{Meta: g.meta(), Offer: g.state.Offer, Agent: "reviewer", Holder: whyHolder, LeaseMS: 30_000})
		return g.pass(40 * time.Second)
	}},
	{"pending: offered again after a worker died", lifecycle.WaitTaker, func(g *tale) *tale {
		g.worker("reviewer", whyHolder, 1).submit(nil).accept().pass(time.Minute)
		return g.gone(whyHolder).look().worker("reviewer", "w2", 1).pass(time.Second)
	}},
	{"accepted: not begun", lifecycle.WaitStart, func(g *tale) *tale {
		return g.worker("reviewer", whyHolder, 1).submit(nil).pass(time.Minute).ack(protocol.Ack{Status: protocol.AckAccepted}, false).pass(5 * time.Second)
	}},
	{"working: for some time", lifecycle.WaitWork, func(g *tale) *tale {
		return g.worker("reviewer", whyHolder, 1).submit(nil).accept().pass(12 * time.Minute)
	}},
	{"working: with progress, and an estimate", lifecycle.WaitWork, func(g *tale) *tale {
		g.worker("reviewer", whyHolder, 1).submit(nil).pass(time.Second).ack(protocol.Ack{Status: protocol.AckAccepted, EstimatedCompletionMS: 1_800_000}, true).pass(10 * time.Minute)
		g.add(&protocol.Progressed{Meta: g.meta(), Fence: g.state.Fence, Progress: protocol.Progress{Percent: 40, Message: "reading the files"}})
		return g.pass(2 * time.Minute)
	}},
	{"working: reminded, and it escalates then", lifecycle.WaitWork, func(g *tale) *tale {
		g.worker("reviewer", whyHolder, 1).submit(policy(func(o *protocol.PolicyOverrides) { o.OnTimeout = to(protocol.OnTimeoutEscalate) })).accept()
		return g.pass(50 * time.Minute).look().pass(time.Minute)
	}},
	{"working: the reminder is late", lifecycle.WaitWork, func(g *tale) *tale {
		return g.worker("reviewer", whyHolder, 1).submit(nil).accept().pass(50 * time.Minute)
	}},
	{"working: no sign of progress", lifecycle.WaitWork, func(g *tale) *tale {
		g.worker("reviewer", whyHolder, 1).submit(policy(func(o *protocol.PolicyOverrides) { o.ProgressTimeoutMS = to(int64(300_000)) })).accept()
		return g.pass(4 * time.Minute)
	}},
	{"working: its worker is gone", lifecycle.WaitWork, func(g *tale) *tale {
		return g.worker("reviewer", whyHolder, 1).submit(nil).accept().pass(time.Minute).gone(whyHolder)
	}},
	{"working: its worker is gone, the last attempt", lifecycle.WaitWork, func(g *tale) *tale {
		g.worker("reviewer", whyHolder, 1).submit(policy(func(o *protocol.PolicyOverrides) { o.MaxAttempts = to(1) })).accept()
		return g.pass(time.Minute).gone(whyHolder)
	}},
	{"working: a person has it", lifecycle.WaitWork, func(g *tale) *tale {
		g.submit(nil).pass(time.Minute)
		g.d.Holders[whyHolder] = protocol.Holder{ID: whyHolder, Agent: protocol.Human, LeaseMS: 30_000, Polling: true}
		g.act(lifecycle.TakeNow(g.state, g.d.At(g.now), lifecycle.Claimant{Agent: protocol.Human, Holder: whyHolder, LeaseMS: 30_000}, ""))
		return g.add(&protocol.Started{Meta: g.meta(), Fence: g.state.Fence}).pass(5 * time.Minute)
	}},
	{"working: its source waits for the return", lifecycle.WaitWork, func(g *tale) *tale {
		g.worker("reviewer", whyHolder, 1).submit(func(s *protocol.Summary) {
			s.Type, s.ReturnExpected, s.Overrides.ReturnTimeoutMS = protocol.Delegation, true, to(int64(1_200_000))
		}).accept()
		return g.pass(5 * time.Minute)
	}},
	{"conditional: context and permission", lifecycle.WaitAnswer, func(g *tale) *tale {
		g.agent("lead", nil).submit(nil).pass(time.Minute)
		return g.ack(protocol.Ack{Status: protocol.AckConditional, NeedsContext: []string{"which branch?"}, NeedsPermission: []string{"to push"}, Reason: "it is not said"}, false).pass(6 * time.Minute)
	}},
	{"conditional: a person is asked", lifecycle.WaitAnswer, func(g *tale) *tale {
		return g.submit(nil).ack(protocol.Ack{Status: protocol.AckConditional, NeedsPermission: []string{"to delete the table"}}, false).pass(55 * time.Minute)
	}},
	{"conditional: asked too often", lifecycle.WaitAnswer, func(g *tale) *tale {
		g.submit(policy(func(o *protocol.PolicyOverrides) { o.MaxConditions = to(0) }))
		return g.ack(protocol.Ack{Status: protocol.AckConditional, NeedsContext: []string{"which branch?"}}, false)
	}},
	{"conditional: deferred", lifecycle.WaitTime, func(g *tale) *tale {
		return g.submit(nil).ack(protocol.Ack{Status: protocol.AckConditional, RetryAfterMS: 3_600_000, Reason: "the tests run at one"}, false).pass(time.Minute)
	}},
	{"conditional: deferred until tomorrow", lifecycle.WaitTime, func(g *tale) *tale {
		return g.submit(func(s *protocol.Summary) { s.Deadline = midday.Add(72 * time.Hour) }).ack(protocol.Ack{Status: protocol.AckConditional, RetryAfterMS: 79_200_000, Reason: "the week begins on Monday"}, false).pass(time.Minute)
	}},
	{"conditional: waits for what it handed off", lifecycle.WaitChildren, func(g *tale) *tale {
		g.worker("reviewer", whyHolder, 1).submit(nil).accept().pass(time.Minute)
		for n := range 2 {
			g.add(&protocol.HandedOff{Meta: g.meta(), Fence: g.state.Fence, N: n, Ticket: protocol.ChildTicketN(whyTicket, n), Type: protocol.Delegation})
		}
		g.act(lifecycle.Suspend(g.state, whyHolder, []int{0, 1}, g.now)).pass(3 * time.Minute)
		g.act(lifecycle.MarkChildren(g.state, g.d.At(g.now), []protocol.ChildClosed{{N: 0, Outcome: protocol.OutcomeSuccess}}))
		g.open = []explain.Relative{{Ticket: protocol.ChildTicketN(whyTicket, 1), N: 2, State: protocol.State{Ticket: "x", Agent: "ada", Phase: protocol.Working}}}
		return g
	}},
	{"retrying: backing off", lifecycle.WaitTime, func(g *tale) *tale {
		g.worker("reviewer", whyHolder, 1).submit(policy(func(o *protocol.PolicyOverrides) { o.BackoffBaseMS = to(int64(20_000)); o.BackoffSpreadPct = to(0) }))
		return g.accept().pass(time.Minute).fail("exit", "exit status 1: no such table", true).look().pass(5 * time.Second)
	}},
	{"retrying: overdue, and no supervisor", lifecycle.WaitTime, func(g *tale) *tale {
		g.worker("reviewer", whyHolder, 1).submit(policy(func(o *protocol.PolicyOverrides) { o.BackoffSpreadPct = to(0) })).accept()
		return g.fail("exit", "exit status 1", true).look().pass(5 * time.Minute)
	}},
	{"failed: a moment ago", lifecycle.WaitDecision, func(g *tale) *tale {
		return g.worker("reviewer", whyHolder, 1).submit(policy(func(o *protocol.PolicyOverrides) { o.BackoffSpreadPct = to(0) })).accept().pass(time.Minute).fail("exit", "exit status 1", true)
	}},
	{"failed: for good, and no supervisor", lifecycle.WaitDecision, func(g *tale) *tale {
		return g.worker("reviewer", whyHolder, 1).submit(nil).accept().pass(time.Minute).fail("input", "the file is empty", false).pass(3 * time.Minute)
	}},
	{"rejected: a moment ago", lifecycle.WaitDecision, func(g *tale) *tale {
		g.agent("reviewer", can("review")).agent("ada", can("review"))
		g.submit(func(s *protocol.Summary) { s.Requires = []protocol.RequiredCapability{{ID: "review"}} })
		return g.ack(protocol.Ack{Status: protocol.AckRejected, Reason: "I do not know this language"}, false)
	}},
	{"rejected: stays until somebody fits", lifecycle.WaitAgent, func(g *tale) *tale {
		g.submit(policy(func(o *protocol.PolicyOverrides) { o.OnNoTaker = to(protocol.NoTakerQueue) }))
		return g.ack(protocol.Ack{Status: protocol.AckRejected, Reason: "not my work"}, false).pass(time.Hour)
	}},
	{"timeout: a moment ago", lifecycle.WaitDecision, func(g *tale) *tale {
		g.worker("reviewer", whyHolder, 1).submit(nil).accept().pass(time.Hour)
		return g.add(&protocol.TimedOut{Meta: g.meta(), Clock: protocol.ClockWork, Agent: "reviewer", Attempt: 1})
	}},
	{"group: under way", lifecycle.WaitMembers, func(g *tale) *tale {
		g.submit(func(s *protocol.Summary) {
			s.Type, s.Target, s.Aggregate = protocol.Broadcast, protocol.Target{}, &protocol.Aggregate{Size: 5, Mode: protocol.AggregateMajority}
		}).pass(2 * time.Minute)
		g.act(lifecycle.MarkChildren(g.state, g.d.At(g.now), []protocol.ChildClosed{{N: 0, Outcome: protocol.OutcomeSuccess}, {N: 3, Outcome: protocol.OutcomeFailed}}))
		for i, n := range []int{1, 2} {
			g.open = append(g.open, explain.Relative{Ticket: protocol.ChildTicketN(whyTicket, n), N: n + 1,
				State: protocol.State{Ticket: "x", Agent: []string{"bob", "cy"}[i], Phase: []protocol.Phase{protocol.Pending, protocol.Working}[i]}})
		}
		return g
	}},
	{"cancel requested: its worker has its time", lifecycle.WaitStop, func(g *tale) *tale {
		g.worker("reviewer", whyHolder, 1).submit(nil).accept().pass(time.Minute)
		return g.act(lifecycle.Cancel(g.state, g.d.At(g.now), "lead", "the change was withdrawn", false)).pass(10 * time.Second)
	}},
	{"cancel requested: its worker is gone", lifecycle.WaitStop, func(g *tale) *tale {
		g.worker("reviewer", whyHolder, 1).submit(nil).accept().pass(time.Minute)
		return g.act(lifecycle.Cancel(g.state, g.d.At(g.now), "lead", "", false)).pass(10 * time.Second).gone(whyHolder)
	}},
	{"return requested", lifecycle.WaitStop, func(g *tale) *tale {
		g.worker("reviewer", whyHolder, 1).submit(nil).accept().pass(time.Minute)
		return g.act(lifecycle.RollBack(g.state, g.d.At(g.now), "lead", "")).pass(10 * time.Second)
	}},
	{"stuck", lifecycle.WaitTaker, func(g *tale) *tale {
		g.worker("reviewer", whyHolder, 1).submit(nil).pass(time.Second)
		return g.add(&protocol.Stuck{Meta: g.meta(), Reason: "package of child 3: not found"})
	}},
	{"overdue: the deadline, and no supervisor", explain.WaitSlot, func(g *tale) *tale {
		return g.worker("reviewer", "w", 4).submit(func(s *protocol.Summary) { s.Deadline = midday.Add(time.Hour) }).pass(3 * time.Hour)
	}},
	{"closed: success, its return is delivered", lifecycle.WaitNothing, func(g *tale) *tale {
		g.agent("lead", nil).worker("reviewer", whyHolder, 1)
		g.submit(func(s *protocol.Summary) { s.Type, s.ReturnExpected = protocol.Delegation, true }).accept().pass(3 * time.Minute)
		g.act(lifecycle.Complete(g.state, g.d.At(g.now), protocol.Completed{Meta: g.meta(), Status: protocol.Success}, nil)).pass(time.Minute)
		return g.add(&protocol.Returned{Meta: g.meta(), Delivered: true}).pass(time.Hour)
	}},
	{"closed: success, its return waits", lifecycle.WaitNothing, func(g *tale) *tale {
		g.agent("lead", nil).worker("reviewer", whyHolder, 1)
		g.submit(func(s *protocol.Summary) { s.Type, s.ReturnExpected = protocol.Delegation, true }).accept().pass(3 * time.Minute)
		return g.act(lifecycle.Complete(g.state, g.d.At(g.now), protocol.Completed{Meta: g.meta(), Status: protocol.Partial}, nil)).pass(26 * time.Hour)
	}},
	{"closed: success, and its source reads it by ticket", lifecycle.WaitNothing, func(g *tale) *tale {
		g.worker("reviewer", whyHolder, 1).submit(func(s *protocol.Summary) { s.Type, s.ReturnExpected = protocol.Delegation, true }).accept().pass(3 * time.Minute)
		return g.act(lifecycle.Complete(g.state, g.d.At(g.now), protocol.Completed{Meta: g.meta(), Status: protocol.Success}, nil))
	}},
	{"closed: attempts used up", lifecycle.WaitNothing, func(g *tale) *tale {
		g.worker("reviewer", whyHolder, 1).submit(policy(func(o *protocol.PolicyOverrides) {
			o.MaxAttempts, o.OnExhausted = to(1), to(protocol.ExhaustedFail)
		})).accept().pass(time.Minute)
		return g.fail("exit", "exit status 1", true).look()
	}},
	{"passed up: attempts used up", lifecycle.WaitPerson, func(g *tale) *tale {
		g.worker("reviewer", whyHolder, 1).submit(policy(func(o *protocol.PolicyOverrides) { o.MaxAttempts = to(1) })).accept().pass(time.Minute)
		return g.fail("exit", "exit status 1", true).look()
	}},
	{"passed up: the deadline", lifecycle.WaitPerson, func(g *tale) *tale { return g.submit(nil).pass(24 * time.Hour).look() }},
	{"closed: out of time, in a person's inbox", lifecycle.WaitNothing, func(g *tale) *tale {
		g.worker("reviewer", whyHolder, 1).submit(policy(func(o *protocol.PolicyOverrides) { o.OnTimeout = to(protocol.OnTimeoutFail) })).accept()
		return g.pass(time.Hour).look().pass(time.Minute)
	}},
	{"closed: the deadline", lifecycle.WaitNothing, func(g *tale) *tale {
		return g.submit(policy(func(o *protocol.PolicyOverrides) { o.OnDeadline = to(protocol.DeadlineClose) })).pass(24 * time.Hour).look()
	}},
	{"closed: nobody above", lifecycle.WaitNothing, func(g *tale) *tale {
		return g.submit(policy(func(o *protocol.PolicyOverrides) { o.MaxEscalations = to(0) })).pass(time.Minute).look()
	}},
	{"closed: cancelled", lifecycle.WaitNothing, func(g *tale) *tale {
		g.submit(nil).pass(time.Minute)
		return g.act(lifecycle.Cancel(g.state, g.d.At(g.now), "lead", "", false))
	}},
	{"closed: cancelled, submitted again", lifecycle.WaitNothing, func(g *tale) *tale {
		g.submit(nil).pass(time.Minute)
		g.act(lifecycle.Cancel(g.state, g.d.At(g.now), "lead", "", false))
		return g.add(&protocol.Redriven{Meta: g.meta(), Ticket: protocol.RedriveTicket(whyTicket)})
	}},
	{"closed: rolled back", lifecycle.WaitNothing, func(g *tale) *tale {
		g.submit(nil).pass(time.Minute)
		return g.act(lifecycle.RollBack(g.state, g.d.At(g.now), "lead", "not this week"))
	}},
}

func can(capability string) func(*protocol.Profile) {
	return func(p *protocol.Profile) {
		p.Capabilities = []protocol.Capability{{ID: capability, Proficiency: 1}}
	}
}

// jargon are the words that have no place in the sentences.
var jargon = regexp.MustCompile(`(?i)\b(offer|fence|lease|head|append|ledger|holder|directory|acknowledg|conditional|snapshot|event|phase|escalat|rerout|timed out|sequence|tombstone)|_`)

// TestWhy: every open phase, and every cause that there is for it, has its
// sentences. testdata/why.golden holds them all, to be read aloud.
func TestWhy(t *testing.T) {
	var b strings.Builder
	phases := map[protocol.Phase]bool{}
	for _, c := range whyCases {
		g := c.make(newTale(t))
		e := g.told()
		if e.WaitingFor != c.waits {
			t.Errorf("%s: it waits for %q, want %q", c.name, e.WaitingFor, c.waits)
		}
		if g.state.Closed != (e.Next == nil) {
			t.Errorf("%s: closed %t, next %+v", c.name, g.state.Closed, e.Next)
		}
		if !g.state.Closed {
			phases[g.state.Phase] = true
		}
		if word := jargon.FindString(strings.Join(e.Sentences, "\n")); word != "" {
			t.Errorf("%s: %q says nothing to whoever does not know Handoff: %q", c.name, word, e.Sentences)
		}
		fmt.Fprintf(&b, "== %s\n%s\n", c.name, strings.Join(e.Sentences, "\n"))
		for _, action := range e.Actions {
			fmt.Fprintf(&b, "  to %s: %s\n", action.To, commandLine(action))
		}
		if e.Next != nil {
			fmt.Fprintf(&b, "  -> %s %s %s\n", e.Next.At.Format(time.DateTime), e.Next.Event, e.Next.To)
		}
	}
	for _, phase := range protocol.Phases {
		if lifecycle.Legal(phase, false, protocol.EventCancelRequested) && !phases[phase] { // which any that is open may see
			t.Errorf("no open case is %s", phase)
		}
	}
	const golden = "testdata/why.golden"
	if *writeWhy {
		if err := os.WriteFile(golden, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if got := b.String(); got != string(want) {
		t.Errorf("the sentences are not those of %s (go test ./internal/cli -run TestWhy -write-why):\n%s", golden, firstDifference(got, string(want)))
	}
}

func firstDifference(got, want string) string {
	g, w := strings.Split(got, "\n"), strings.Split(want, "\n")
	for i := range max(len(g), len(w)) {
		a, b := "", ""
		if i < len(g) {
			a = g[i]
		}
		if i < len(w) {
			b = w[i]
		}
		if a != b {
			return fmt.Sprintf("line %d\n got %s\nwant %s", i+1, a, b)
		}
	}
	return ""
}
