//go:build proof

package sim

import (
	"bytes"
	"context"
	"regexp"
	"strconv"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/lifecycle"
	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/worker"
)

// countsTwice: a report that an attempt repeats counts again.
const countsTwice bug = "a report of usage repeated and counted twice"

// budgetIgnored: the supervisor lets a handoff be tried again that has nothing left.
const budgetIgnored bug = "a further attempt without a budget"

// freeTakeOver: who takes a handoff from a holder that is gone does not charge the lost attempt.
const freeTakeOver bug = "a take-over that charges nothing"

// usageMoved: what an agent has used counts for the one that has the handoff next.
const usageMoved bug = "what one agent used counted for another"

func init() { bugs = append(bugs, usageMoved) }

// usedByOthers finds what a state has of the usage of agents that do not have the handoff now.
var usedByOthers = regexp.MustCompile(`,"others":\[\{"agent":[^\]]*\]`)

func (l *simulation) moveUsage(body []byte) []byte {
	if l.bug != usageMoved {
		return body
	}
	return usedByOthers.ReplaceAll(body, nil)
}

var spentFirst = regexp.MustCompile(`\{"type":"spent"[^{}]*\{[^{}]*\}[^{}]*\},`)

// takenOver finds a claim, acknowledged or not, of a handoff whose holder is lost.
var takenOver = regexp.MustCompile(`\{"type":"lease_lost"[^{}]*\},\{"type":"(claimed|accepted)"`)

// withoutCharge takes the charge out of an append by which a worker takes a handoff over.
func withoutCharge(body []byte) []byte {
	if !takenOver.Match(body) {
		return body
	}
	return spentFirst.ReplaceAll(body, nil)
}

// withoutBudget schedules a retry in place of the end that follows from a budget that has run out.
func (f *faultyBroker) withoutBudget(ctx context.Context, head broker.Head, decide broker.Decider) (broker.Head, bool, error) {
	return f.Broker.Update(ctx, head, func(h broker.Head, q lifecycle.Query) (lifecycle.Step, error) {
		step, err := decide(h, q)
		if err != nil || len(step.Events) != 1 || h.State.Phase != protocol.PhaseFailed {
			return step, err
		}
		if end, ok := step.Events[0].(*protocol.Closed); ok && end.Reason == lifecycle.ReasonBudgetExhausted {
			return lifecycle.StepOf(h.State, &protocol.RetryScheduled{Meta: end.Meta, Attempt: h.State.Attempt, Due: q.Now})
		}
		return step, nil
	})
}

// reportUsage says what an attempt has used, some of it from within the work and some of that
// twice, and returns what goes with its result; nil is that this one says nothing.
func (h *handler) reportUsage(ctx context.Context, of worker.Handoff) *protocol.Usage {
	d := h.dice(of, "usage")
	if d%3 != 0 {
		return nil
	}
	half := protocol.Usage{TokensIn: int64(d >> 8 % 400), TokensOut: 1 + int64(d>>16%400), CostMicros: int64(d >> 24 % 50)}
	for range d >> 32 % 3 {
		_ = of.Spent(ctx, half) // lost or not, the next report makes up for it
	}
	return &protocol.Usage{Tokens: half.TokensIn + half.TokensOut + int64(d>>40%100), CostMicros: half.CostMicros * 2, Calls: 1}
}

// usageOf is what an event says that an attempt has used.
func usageOf(event protocol.Event) (fence uint64, usage *protocol.Usage) {
	switch e := event.(type) {
	case *protocol.Spent:
		return e.Fence, &e.Usage
	case *protocol.Progressed:
		return e.Fence, e.Progress.Usage
	case *protocol.Completed:
		return e.Fence, e.Usage
	case *protocol.Failed:
		return e.Fence, e.Usage
	case *protocol.RolledBack:
		return e.Fence, e.Usage
	case *protocol.ResultParked:
		return e.Fence, e.Usage
	}
	return 0, nil
}

// attemptKey is an attempt at a handoff.
type attemptKey struct {
	ticket string
	fence  uint64
}

// usageKnown is what attempts have said.
type usageKnown struct {
	by   map[seat]int64                // tokens, by handoff and agent
	who  map[attemptKey]string         // the agent of an attempt
	used map[string]protocol.Usage     // by handoff: of all of its attempts, added up
	said map[attemptKey]protocol.Usage // the most that an attempt has said
}

// checkUsage: what a handoff has used is the most that each of its attempts has said, added up.
func (j *judge) checkUsage(before, after protocol.State, events []protocol.Event) {
	known := &j.usage
	if known.used == nil {
		*known = usageKnown{map[seat]int64{}, map[attemptKey]string{}, map[string]protocol.Usage{}, map[attemptKey]protocol.Usage{}}
	}
	if before.Fence != 0 {
		known.who[attemptKey{after.Ticket, before.Fence}] = before.Agent
	}
	if after.Fence != 0 {
		known.who[attemptKey{after.Ticket, after.Fence}] = after.Agent
	}
	total := known.used[after.Ticket]
	for _, e := range events {
		fence, usage := usageOf(e)
		if usage == nil {
			continue
		}
		key := attemptKey{after.Ticket, fence}
		report := *usage
		report.Normalize()
		more := report.Beyond(known.said[key])
		total = total.Plus(more)
		known.by[seat{after.Ticket, known.who[key]}] += more.Tokens
		known.said[key] = known.said[key].Max(report)
	}
	known.used[after.Ticket] = total
	if is := after.Usage.Total(); is != total {
		j.faultLocked("%s has used %+v, and its attempts have said %+v", after.Ticket, is, total)
	}
	for _, by := range after.Usage.ByAgent(after.Agent) {
		if said := known.by[seat{after.Ticket, by.Agent}]; said != by.Tokens {
			j.faultLocked("%s of %s has used %d tokens, and its attempts have said %d", by.Agent, after.Ticket, by.Tokens, said)
		}
	}
	if after.Account == nil || before.Closed {
		return
	}
	counts := after.Limits.Bounded(protocol.Amounts{Tokens: total.Tokens, CostMicros: total.CostMicros})
	if used := after.Account.Used; used.Tokens != counts.Tokens || used.CostMicros != counts.CostMicros {
		j.faultLocked("%s has used %+v of its limits, and its attempts have said %+v", after.Ticket, used, total)
	}
	j.checkSpent(before, after, events)
	j.checkCharged(before, events)
}

// checkSpent: no attempt begins, other than at an authority or by a person, where a budget had run
// out before the append; and one that was lost is charged by the agent that takes it from its holder.
func (j *judge) checkSpent(before, after protocol.State, events []protocol.Event) {
	limit, bounded := before.Limits.Of("max_tokens")
	if before.Account == nil || !bounded || before.Account.Used.Tokens+before.Account.Spent.Tokens < limit+before.Account.Raised.Tokens {
		return
	}
	for _, e := range events {
		switch e := e.(type) {
		case *protocol.RetryScheduled:
			if before.EscalationLevel > 0 { // an authority tries as it likes
				continue
			}
			j.faultLocked("%s is tried again after attempt %d, and has nothing left: %+v of %d tokens", after.Ticket, e.Attempt, *before.Account, limit)
		case *protocol.Accepted:
			if before.Held() && before.Holder != e.Holder && before.EscalationLevel == 0 {
				j.faultLocked("%s is taken over by %s, and has nothing left: %+v of %d tokens", after.Ticket, e.Holder, *before.Account, limit)
			}
		}
	}
}

// checkCharged: an attempt that was lost has said what it used, or is charged what it has read.
func (j *judge) checkCharged(before protocol.State, events []protocol.Event) {
	if _, bounded := before.Limits.Of("max_tokens"); before.Account == nil || before.Meter == 0 || !bounded {
		return
	}
	for _, e := range events {
		lost, ok := e.(*protocol.LeaseLost)
		if ok && lost.Fence != 0 && j.usage.said[attemptKey{before.Ticket, lost.Fence}].IsZero() {
			j.faultLocked("attempt %d of %s was lost and is charged nothing", lost.Attempt, before.Ticket)
		}
	}
}

// spentTokens finds what a report says, and totalTokens what a state has in all.
var (
	spentTokens = regexp.MustCompile(`"type":"spent".*?"tokens":(\d+)`)
	totalTokens = regexp.MustCompile(`"state":\{.*"usage":\{(?:"tokens_in":\d+,)?(?:"tokens_out":\d+,)?"tokens":(\d+)`)
)

// countTwice adds what a report says to the total once more.
func countTwice(body []byte) []byte {
	spent, total := spentTokens.FindSubmatch(body), totalTokens.FindSubmatchIndex(body)
	if spent == nil || total == nil {
		return body
	}
	more, _ := strconv.Atoi(string(spent[1]))
	was, _ := strconv.Atoi(string(body[total[2]:total[3]]))
	return bytes.Join([][]byte{body[:total[2]], strconv.AppendInt(nil, int64(was+more), 10), body[total[3]:]}, nil)
}
