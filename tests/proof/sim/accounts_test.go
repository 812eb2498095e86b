//go:build proof

package sim

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/lifecycle"
	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/worker"
)

// Planted bugs of accounts.
const (
	usageLate   bug = "what a result has used counted after what it hands off was granted"
	returnFree  bug = "a return without the account of what it returns"
	stopUnnamed bug = "a handoff that its budget has stopped, and an end that does not name it"
	overrunLost bug = "what a child has overrun not charged to the handoff above it"
	// overrunUnseen is overrunLost where the judge looks at the bound of lineages alone.
	overrunUnseen bug = "one attempt more than the bound of a lineage allows"
	beginsEmpty   bug = "an offer left standing after the budget of its handoff has run out"
)

func init() {
	bugs = append(bugs, usageLate, returnFree, overrunLost, overrunUnseen, beginsEmpty, stopUnnamed)
	deciding[overrunLost] = (*faultyBroker).withoutOverrun
	deciding[overrunUnseen] = (*faultyBroker).withoutOverrun
	deciding[beginsEmpty] = (*faultyBroker).leavesOffer
}

// lineageAccount is the judge's account of the tokens of one handoff, by events alone.
type lineageAccount struct {
	above    string   // the handoff that handed it off, or that it returns
	kids     []string // what it handed off, and its return, by ticket
	grants   map[string]int64
	settled  map[string]int64 // the kids whose end it knows, with the number of the event
	limit    int64
	bounded  bool
	raised   int64
	atClose  int64 // what its attempts had used then
	isReturn bool
	// What its attempts had used when it last admitted something, a grant or an attempt of an agent,
	// and the number of that event.
	atAdmission, admission int64
	events                 int64
}

// checkAccounts: nothing is granted, and no agent begins, beyond what is left; a return is on the
// account of what it returns.
func (j *judge) checkAccounts(before, after protocol.State, events []protocol.Event) {
	if j.accounts == nil {
		j.accounts = map[string]*lineageAccount{}
	}
	used := j.usage.used[after.Ticket].Tokens
	for _, e := range events {
		own := j.accounts[after.Ticket]
		if own != nil {
			own.events++
		}
		switch e := e.(type) {
		case *protocol.Submitted:
			j.openAccountOf(after)
		case *protocol.Raised:
			own.raised += e.Limits.Tokens
		case *protocol.ChildrenClosed:
			for _, c := range e.Children {
				if own != nil && !before.Closed {
					if kid := after.ChildTicket(c.N); own.settled[kid] == 0 {
						own.settled[kid] = own.events
					}
				}
			}
			if own != nil && own.bounded && after.Phase == protocol.Pending && !after.Held() && after.Offer != 0 && after.Agent != protocol.Human && after.Aggregate == nil {
				if worth := j.worthOf(own, used); worth >= own.limit+own.raised {
					j.accountFault("%s stands with %s, and has taken %d of %d tokens", after.Ticket, after.Agent, worth, own.limit+own.raised)
				}
			}
		case *protocol.HandedOff:
			grant, bounded := e.Grant.Of("max_tokens")
			worth := j.worthOf(own, used)
			if own.bounded && bounded && e.Type != protocol.Escalation && worth+grant > own.limit+own.raised {
				j.accountFault("%s grants %d tokens to %s, and has taken %d of %d", after.Ticket, grant, e.Ticket, worth, own.limit+own.raised)
			}
			own.kids = append(own.kids, e.Ticket)
			own.grants[e.Ticket] = grant
			if e.Type != protocol.Escalation || worth+grant <= own.limit+own.raised { // the way up is free
				own.admit(used)
			}
		case *protocol.Offered:
			j.checkBegins(after, own, used, e.Agent, "is offered")
		case *protocol.Accepted:
			j.checkBegins(after, own, used, e.Agent, "is accepted")
		case *protocol.Taken:
			j.checkBegins(after, own, used, e.Agent, "is taken")
		}
	}
	if own := j.accounts[after.Ticket]; own != nil && after.Closed && !before.Closed {
		own.atClose = used
	}
}

// checkBegins: no attempt of an agent begins with nothing left.
func (j *judge) checkBegins(s protocol.State, own *lineageAccount, used int64, agent, how string) {
	if agent == protocol.Human || s.Aggregate != nil {
		return
	}
	if worth := j.worthOf(own, used); own.bounded && worth >= own.limit+own.raised {
		j.accountFault("%s %s by or to %s, and has taken %d of %d tokens", s.Ticket, how, agent, worth, own.limit+own.raised)
	}
	own.admit(used)
}

func (a *lineageAccount) admit(used int64) { a.atAdmission, a.admission = used, a.events }

// checkBudgetStop: the end of a handoff that its budget has stopped names the budget.
func (j *judge) checkBudgetStop(s protocol.State, events []protocol.Event) {
	if !s.Closed || s.Outcome != protocol.OutcomeRolledBack || s.CancelBy != lifecycle.By || !strings.HasPrefix(s.CancelReason, lifecycle.ReasonBudgetExhausted) {
		return
	}
	for _, e := range events {
		switch e.(type) {
		case *protocol.Closed, *protocol.RolledBack:
			if s.Reason != lifecycle.ReasonBudgetExhausted {
				j.faultLocked("%s was stopped by its budget, and closes as %s", s.Ticket, s.Reason)
			}
		}
	}
}

// accountFault is a fault in the account of one handoff.
func (j *judge) accountFault(format string, args ...any) {
	if j.l.bug != overrunUnseen {
		j.faultLocked(format, args...)
	}
}

// openAccountOf begins the account of a handoff.
func (j *judge) openAccountOf(s protocol.State) {
	own := &lineageAccount{grants: map[string]int64{}, settled: map[string]int64{}, isReturn: s.ReturnOf != ""}
	own.limit, own.bounded = s.Limits.Of("max_tokens")
	j.accounts[s.Ticket] = own
	switch {
	case s.ReturnOf != "":
		own.above = s.ReturnOf
	case s.N > 0 || s.Group != "":
		own.above = s.Parent
	}
	above := j.accounts[own.above]
	if above == nil {
		return
	}
	if own.isReturn && above.bounded {
		if left := max(0, j.leftBehind(own.above)); !own.bounded || own.limit > left {
			j.faultLocked("%s returns %s and has %d tokens (bounded: %v), of which %d were left", s.Ticket, own.above, own.limit, own.bounded, left)
		}
	}
	if !slices.Contains(above.kids, s.Ticket) {
		above.kids = append(above.kids, s.Ticket)
		above.grants[s.Ticket] = own.limit
	}
}

// worthOf is what a handoff has taken: its own use, and what those below it got, or have used where
// it knows their end.
func (j *judge) worthOf(own *lineageAccount, used int64) int64 {
	total := j.settledOf(own, used)
	for _, kid := range own.kids {
		if own.settled[kid] == 0 {
			total += own.grants[kid]
		}
	}
	return total
}

func (j *judge) settledOf(own *lineageAccount, used int64) int64 {
	for _, kid := range own.kids {
		if own.settled[kid] != 0 {
			used += j.taken(kid)
		}
	}
	return used
}

// taken returns the use of a closed handoff, its chain and its return. The unused part of a raise
// goes to the return, too, and is not of the budget above.
func (j *judge) taken(ticket string) int64 {
	own, s := j.accounts[ticket], j.heads[ticket].state
	if own == nil {
		return 0
	}
	if own.isReturn {
		return own.limit
	}
	total := own.atClose
	for _, kid := range own.kids {
		if of := j.accounts[kid]; of != nil && of.isReturn {
			total -= min(own.raised, of.limit)
		}
		if of := j.accounts[kid]; own.settled[kid] != 0 || j.endsChain(s, kid) || of != nil && of.isReturn {
			total += j.taken(kid)
		} else {
			total += own.grants[kid]
		}
	}
	return total
}

// endsChain reports whether a handoff that has closed learned through kid how its chain ended.
func (j *judge) endsChain(s protocol.State, kid string) bool {
	next := s.Children != nil && s.Children.Next != 0 && kid == s.ChildTicket(s.Children.Next-1)
	return next && (s.ChainEnd != nil || s.ChainOf != "")
}

// leftBehind returns the rest of a closed handoff and its chain.
func (j *judge) leftBehind(ticket string) int64 {
	own := j.accounts[ticket]
	return own.limit + own.raised - j.taken(ticket) + j.raisedBelow(ticket)
}

func (j *judge) raisedBelow(ticket string) (total int64) {
	for _, kid := range j.accounts[ticket].kids {
		if own := j.accounts[kid]; own != nil && !own.isReturn {
			total += own.raised + j.raisedBelow(kid)
		}
	}
	return total
}

// usedBelow is what a handoff has used in the end, with all that follows from it.
func (j *judge) usedBelow(ticket string) int64 {
	total := j.usage.used[ticket].Tokens
	for _, kid := range j.accounts[ticket].kids {
		if j.accounts[kid] != nil {
			total += j.usedBelow(kid)
		}
	}
	return total
}

// checkLineages: at the end no handoff has used more, with all that follows from it, than it may, its
// last attempt, and what those had overrun of whose end it did not know when it last admitted something.
// Of those whose end it knew, what they have used since counts: a closed handoff learns nothing more.
// A return with anything left is the last that it admits, with the rest behind each end that it knew
// and behind the end of its chain.
func (j *judge) checkLineages() {
	for ticket, own := range j.accounts {
		if !own.bounded {
			continue
		}
		last := j.usage.used[ticket].Tokens - own.atAdmission
		returned := slices.ContainsFunc(own.kids, func(kid string) bool { of := j.accounts[kid]; return of != nil && of.isReturn && of.limit > 0 })
		var over int64
		for _, kid := range own.kids {
			switch at := own.settled[kid]; {
			case j.accounts[kid] == nil: // it was never submitted
			case at != 0 && (at <= own.admission || returned), returned && j.endsChain(j.heads[ticket].state, kid):
				over += max(0, j.usedBelow(kid)-j.taken(kid))
			default:
				over += max(0, j.usedBelow(kid)-own.grants[kid])
			}
		}
		if used := j.usedBelow(ticket); used > own.limit+own.raised+last+over {
			j.faultLocked("the lineage of %s has used %d tokens: it may have %d, its last attempt used %d, and what was open then has overrun %d", ticket, used, own.limit+own.raised, last, over)
		}
	}
}

// withoutOverrun charges a handoff no more for a child than it had set aside for it.
func (f *faultyBroker) withoutOverrun(ctx context.Context, head broker.Head, decide broker.Decider) (broker.Head, bool, error) {
	return f.Broker.Update(ctx, head, func(h broker.Head, q lifecycle.Query) (lifecycle.Step, error) {
		step, err := decide(h, q)
		if err != nil || len(step.Events) == 0 {
			return step, err
		}
		ended, ok := step.Events[0].(*protocol.ChildrenClosed)
		if !ok {
			return step, nil
		}
		ends := slices.Clone(ended.Children)
		for i, end := range ends {
			if end.Grant != nil && end.Commit != nil {
				least := *end.Commit
				least.Tokens = min(least.Tokens, end.Grant.Tokens)
				ends[i].Commit = &least
			}
		}
		return lifecycle.MarkChildren(h.State, q, ends)
	})
}

// leavesOffer leaves an offer in its queue that the budget of its handoff no longer allows.
func (f *faultyBroker) leavesOffer(ctx context.Context, head broker.Head, decide broker.Decider) (broker.Head, bool, error) {
	return f.Broker.Update(ctx, head, func(h broker.Head, q lifecycle.Query) (lifecycle.Step, error) {
		step, err := decide(h, q)
		if err != nil || len(step.Events) == 0 || !lifecycle.OfferStands(h.State) || lifecycle.OfferStands(step.State) {
			return step, err
		}
		switch step.Events[0].(type) {
		case *protocol.ChildrenClosed:
			return lifecycle.StepOf(h.State, step.Events[0])
		case *protocol.Gated:
			return lifecycle.Step{}, nil
		case *protocol.Closed:
			if lifecycle.ExhaustedBudget(h.State) != "" {
				return lifecycle.Step{}, nil
			}
		}
		return step, nil
	})
}

// planOverdraft gives each package to one agent, and a small budget, where the planted bug is
// beginsEmpty.
func (l *simulation) planOverdraft(p *protocol.Package) {
	if l.bug == beginsEmpty && p.GroupSize() == 0 {
		*p = l.newPackage(0, "c")
		p.Limits = &protocol.Limits{MaxTokens: new(int64(overdraft))}
	}
}

// overdraft is the budget of a handoff whose child uses more.
const overdraft = 100

// overdraws hands off to two children and waits for the quick one. While the handoff is in the queue of
// its busy agent again, the other one ends, which has used the whole budget and more.
func (h *handler) overdraws(ctx context.Context, of worker.Handoff) (protocol.Result, error) {
	done, work := protocol.Result{Body: []byte(`"done"`)}, 20*time.Second
	switch {
	case of.State().Parent == "":
	case of.Agent == "b":
		work = time.Second
	default:
		done.Usage, work = &protocol.Usage{Tokens: 2 * overdraft}, time.Duration(5_000_000+h.dice(of, "overdraft")%20_000_000)*time.Microsecond
	}
	select {
	case <-time.After(work):
	case <-ctx.Done():
		return h.stops(ctx, of)
	}
	if of.State().Parent != "" || len(of.Returns) > 0 {
		return done, nil
	}
	var awaited string
	for i := range 2 {
		child := h.l.newPackage(1, []string{"a", "b"}[i])
		child.Limits = &protocol.Limits{MaxTokens: new(int64(overdraft / 10))}
		child.Type, child.Return = protocol.Delegation, &protocol.ReturnProtocol{Expected: true, TimeoutMS: 1_800_000, Wait: protocol.WaitContinue}
		ticket, err := of.HandOff(ctx, child)
		if isBarred(err) {
			return done, nil
		}
		if err != nil {
			return protocol.Result{}, err
		}
		awaited = ticket
	}
	return protocol.Result{}, worker.Await(awaited)
}

// raiseSome plays the person who is asked for more of a budget.
func (l *simulation) raiseSome(ctx context.Context, b *broker.Broker, round int) {
	for _, s := range l.judge.gatedBy(protocol.GateBudget) {
		if l.faultsOn() && dice(l.seed, "raise", s.Ticket, round)%4 != 0 {
			continue
		}
		more := s.Limits.Bounded(protocol.Amounts{Tokens: 2000, CostMicros: 1000})
		_, err := b.Raise(ctx, s.Ticket, protocol.Human, more)
		var refused *protocol.Error
		if err != nil && !errors.Is(err, broker.ErrUnreachable) && !errors.As(err, &refused) && ctx.Err() == nil {
			l.judge.fault("raise %s: %v", s.Ticket, err)
		}
	}
}

// spoilAccount rewrites an append as a faulty writer would have made it.
func (l *simulation) spoilAccount(body []byte) (spoiled []byte, is bool) {
	if l.bug == stopUnnamed && bytes.Contains(body, []byte(`"outcome":"rolled_back"`)) {
		spoiled = bytes.ReplaceAll(body, []byte(`"reason":"budget_exhausted"`), []byte(`"reason":"returned"`))
		return spoiled, !bytes.Equal(spoiled, body)
	}
	if l.bug != usageLate && l.bug != returnFree {
		return body, false
	}
	if l.bug == usageLate && !bytes.Contains(body, []byte(`"type":"handed_off"`)) || l.bug == returnFree && !bytes.Contains(body, []byte(`"return_of":`)) {
		return body, false
	}
	var made map[string]any
	read := json.NewDecoder(bytes.NewReader(body))
	read.UseNumber()
	if err := read.Decode(&made); err != nil {
		panic(err)
	}
	all, _ := made["events"].([]any)
	state, _ := made["state"].(map[string]any)
	var events []map[string]any
	kinds := ""
	for _, e := range all {
		e, _ := e.(map[string]any)
		events = append(events, e)
		kinds += fmt.Sprint(e["type"], " ")
	}
	switch {
	case l.bug == returnFree && kinds == "submitted offered ":
		summary, _ := events[0]["summary"].(map[string]any)
		if summary["limits"] == nil {
			return body, false
		}
		delete(summary, "limits")
		delete(state, "limits")
		delete(state, "account")
	case l.bug == usageLate && strings.HasPrefix(kinds, "spent handed_off completed "):
		usage, _ := events[0]["usage"].(map[string]any)
		grant, _ := events[1]["grant"].(map[string]any)
		account, _ := state["account"].(map[string]any)
		if usage["tokens"] == nil || grant["max_tokens"] == nil || account == nil {
			return body, false
		}
		tokens := number(usage["tokens"])
		grant["max_tokens"] = number(grant["max_tokens"]) + tokens
		for _, part := range []string{"reserved", "over"} {
			of, _ := account[part].(map[string]any)
			if of == nil {
				of = map[string]any{}
			}
			of["tokens"] = number(of["tokens"]) + tokens
			account[part] = of
		}
		made["events"] = all[1:]
	default:
		return body, false
	}
	spoiled, err := json.Marshal(made)
	return spoiled, err == nil
}

func number(of any) int64 {
	n, _ := of.(json.Number)
	i, _ := n.Int64()
	return i
}
