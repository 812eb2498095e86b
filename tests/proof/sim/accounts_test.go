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

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/protocol"
)

// Planted bugs of accounts.
const (
	usageLate  bug = "what a result has used counted after what it hands off was granted"
	returnFree bug = "a return without the account of what it returns"
)

func init() { bugs = append(bugs, usageLate, returnFree) }

// lineageAccount is the judge's account of the tokens of one handoff, by events alone.
type lineageAccount struct {
	above    string   // the handoff that handed it off, or that it returns
	kids     []string // what it handed off, and its return, by ticket
	grants   map[string]int64
	settled  map[string]bool // the kids whose end it knows
	limit    int64
	bounded  bool
	raised   int64
	atClose  int64 // what its attempts had used then
	atOffer  int64 // what they had used at its last offer to an agent
	isReturn bool
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
		switch e := e.(type) {
		case *protocol.Submitted:
			j.openAccountOf(after)
		case *protocol.Raised:
			own.raised += e.Limits.Tokens
		case *protocol.ChildrenClosed:
			for _, c := range e.Children {
				if own != nil && !before.Closed {
					own.settled[after.ChildTicket(c.N)] = true
				}
			}
		case *protocol.HandedOff:
			grant, bounded := e.Grant.Of("max_tokens")
			if worth := j.worthOf(own, used); own.bounded && bounded && e.Type != protocol.Escalation && worth+grant > own.limit+own.raised {
				j.faultLocked("%s grants %d tokens to %s, and has taken %d of %d", after.Ticket, grant, e.Ticket, worth, own.limit+own.raised)
			}
			own.kids = append(own.kids, e.Ticket)
			own.grants[e.Ticket] = grant
		case *protocol.Offered:
			if e.Agent == protocol.Human {
				continue
			}
			if worth := j.settledOf(own, used); own.bounded && after.Aggregate == nil && worth >= own.limit+own.raised {
				j.faultLocked("%s is offered to %s (%s), and has used %d of %d tokens", after.Ticket, e.Agent, e.Reason, worth, own.limit+own.raised)
			}
			own.atOffer = used
		}
	}
	if own := j.accounts[after.Ticket]; own != nil && after.Closed && !before.Closed {
		own.atClose = used
	}
}

// openAccountOf begins the account of a handoff.
func (j *judge) openAccountOf(s protocol.State) {
	own := &lineageAccount{grants: map[string]int64{}, settled: map[string]bool{}, isReturn: s.ReturnOf != ""}
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
		if !own.settled[kid] {
			total += own.grants[kid]
		}
	}
	return total
}

func (j *judge) settledOf(own *lineageAccount, used int64) int64 {
	for _, kid := range own.kids {
		if own.settled[kid] {
			used += j.taken(kid)
		}
	}
	return used
}

// taken returns the use of a closed handoff, its chain and its return.
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
		next := s.Children != nil && s.Children.Next != 0 && kid == s.ChildTicket(s.Children.Next-1)
		if of := j.accounts[kid]; own.settled[kid] || next && s.ChainEnd != nil || next && s.ChainOf != "" || of != nil && of.isReturn {
			total += j.taken(kid)
		} else {
			total += own.grants[kid]
		}
	}
	return total
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

// checkLineages: at the end no lineage has used more than it may, and the last attempt of each of
// its handoffs.
func (j *judge) checkLineages() {
	used, may := map[string]int64{}, map[string]int64{}
	for ticket, own := range j.accounts {
		root := ticket
		for j.accounts[root].above != "" && j.accounts[j.accounts[root].above] != nil && j.accounts[j.accounts[root].above].bounded {
			root = j.accounts[root].above
		}
		total := j.usage.used[ticket].Tokens
		used[root] += total
		may[root] += own.raised + total - own.atOffer
	}
	for root, total := range used {
		if own := j.accounts[root]; own.bounded && total > own.limit+may[root] {
			j.faultLocked("the lineage of %s has used %d tokens: %d are allowed, and its last attempts and raises are %d", root, total, own.limit, may[root])
		}
	}
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
