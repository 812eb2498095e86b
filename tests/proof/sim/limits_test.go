//go:build proof

package sim

import (
	"bytes"
	"context"
	"errors"
	"reflect"
	"regexp"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/lifecycle"
	"github.com/agenthandoff/handoff/protocol"
)

// Planted bugs of limits.
const (
	refundTwice bug = "what was set aside for a child given back twice"
	zeroAbsent  bug = "a limit of 0 written as none"
	lineageLost bug = "a child without the way that led to it"
	grantStale  bug = "a grant decided on a stale head, and appended all the same"
	commitLost  bug = "the end of a child told, and what was set aside for it kept"
)

// planLimits gives every third submission limits of a few handoffs and levels.
func (l *simulation) planLimits(p *protocol.Package, d uint64) {
	if d%3 != 0 {
		return
	}
	limit := func(n uint64) *int64 { v := int64(n); return &v }
	p.Limits = &protocol.Limits{MaxHandoffs: limit(d >> 4 % 9), MaxTokens: limit(3 + d>>8%4000)}
	if d>>20%2 == 0 {
		p.Limits.MaxDepth, p.Limits.MaxAgents = limit(d>>24%6), limit(3+d>>28%4)
	}
	if d>>32%3 == 0 {
		p.Limits.SharePercent = limit(d >> 36 % 101)
	}
}

// depthMax is how deep a handoff hands off: by itself, or within limits.
func depthMax(s protocol.State) int {
	if s.Limits != nil {
		return 4
	}
	return 2
}

// isBarred tells whether a limit or a rule refuses a hand-off: the holder goes on without it.
func isBarred(err error) bool {
	var refused *protocol.Error
	return errors.As(err, &refused) && lifecycle.Bars(refused.Code)
}

// ledgerOf is what the judge knows of the limits of one handoff, by its events alone.
type ledgerOf struct {
	parent   string
	limits   *protocol.Limits
	below    int64                       // handoffs below it
	reserved protocol.Amounts            // for children whose end is not recorded
	grants   map[string]*protocol.Limits // of its children, by ticket
	depth    int
}

// checkLimits recomputes what a handoff has handed off and set aside.
func (j *judge) checkLimits(before, after protocol.State, events []protocol.Event) {
	if j.ledgers == nil {
		j.ledgers = map[string]*ledgerOf{}
	}
	for _, e := range events {
		switch e := e.(type) {
		case *protocol.Submitted:
			j.beginLedger(after)
		case *protocol.HandedOff:
			j.countHandedOff(after, e)
		case *protocol.ChildrenClosed:
			if !before.Closed {
				j.countClosed(before, after, e)
			}
		}
	}
	own := j.ledgers[after.Ticket]
	if own == nil || after.Account == nil {
		return
	}
	if after.Aggregate == nil && own.reserved != after.Account.Reserved {
		j.faultLocked("%s has set aside %+v, and its events say %+v", after.Ticket, after.Account.Reserved, own.reserved)
	}
}

// beginLedger: a child has what its parent recorded, and follows from it.
func (j *judge) beginLedger(s protocol.State) {
	own := &ledgerOf{limits: s.Limits, grants: map[string]*protocol.Limits{}, depth: s.Lineage.DepthOf()}
	j.ledgers[s.Ticket] = own
	parent := j.ledgers[s.Parent]
	if parent == nil || s.N == 0 {
		return
	}
	own.parent = s.Parent
	if s.Group != "" {
		return
	}
	grant, recorded := parent.grants[s.Ticket]
	switch {
	case !recorded:
	case !reflect.DeepEqual(grant, s.Limits):
		j.faultLocked("%s has the limits %+v, and its parent has set aside %+v", s.Ticket, s.Limits.Granted(), grant.Granted())
	case own.depth != parent.depth+1 && s.Type != protocol.Escalation:
		j.faultLocked("%s is %d deep, and its parent %d", s.Ticket, own.depth, parent.depth)
	}
}

// countHandedOff: below no handoff are more than its limit allows.
func (j *judge) countHandedOff(after protocol.State, e *protocol.HandedOff) {
	own := j.ledgers[after.Ticket]
	if own == nil {
		return
	}
	own.grants[e.Ticket] = e.Grant
	own.reserved = own.reserved.Plus(after.Limits.Bounded(e.Grant.Granted()))
	if e.Type == protocol.Escalation {
		return
	}
	size := int64(1)
	if pkg, err := protocol.DecodePackage(e.Package); err == nil && pkg.GroupSize() > 0 {
		size = int64(pkg.GroupSize())
	}
	for at, ticket := own, after.Ticket; at != nil; at, ticket = j.ledgers[at.parent], at.parent {
		at.below += size
		if limit, bounded := at.limits.Of("max_handoffs"); bounded && at.below > limit {
			j.faultLocked("%d handoffs are below %s, and %d are allowed", at.below, ticket, limit)
			return
		}
	}
}

func (j *judge) countClosed(before, after protocol.State, e *protocol.ChildrenClosed) {
	own := j.ledgers[after.Ticket]
	if own == nil {
		return
	}
	if before.Children == nil {
		return
	}
	known := before.Children.Closed
	for _, c := range e.Children { // one may stand there twice
		grant, recorded := own.grants[after.ChildTicket(c.N)]
		if recorded && !known.Has(c.N) {
			known = known.With(c.N)
			own.reserved = own.reserved.Minus(after.Limits.Bounded(grant.Granted()))
		}
	}
}

// checkBudgets: at the end no lineage has used more than the first handoff of it may, and what its
// handoffs have overrun, or were raised by.
func (j *judge) checkBudgets() {
	used, over := map[string]int64{}, map[string]int64{}
	for ticket, h := range j.heads {
		root := ticket
		for own := j.ledgers[root]; own != nil && own.parent != "" && j.ledgers[own.parent] != nil && j.ledgers[own.parent].limits != nil; own = j.ledgers[root] {
			root = own.parent
		}
		if h.state.Account != nil {
			used[root] += h.state.Account.Used.Tokens
			over[root] += h.state.Account.Over.Tokens + h.state.Account.Raised.Tokens
		}
	}
	for root, tokens := range used {
		if limit, bounded := j.heads[root].state.Limits.Of("max_tokens"); bounded && tokens > limit+over[root] {
			j.faultLocked("%s and what follows from it have used %d tokens: %d are allowed, and %d were overrun", root, tokens, limit, over[root])
		}
	}
}

var depths = regexp.MustCompile(`"lineage":\{"depth":\d+,`)

// refundWrong gives back twice what was set aside for children, or nothing of it.
func (f *faultyBroker) refundWrong(ctx context.Context, head broker.Head, decide broker.Decider) (broker.Head, bool, error) {
	return f.Broker.Update(ctx, head, func(h broker.Head, q lifecycle.Query) (lifecycle.Step, error) {
		step, err := decide(h, q)
		if err != nil || len(step.Events) == 0 {
			return step, err
		}
		ended, ok := step.Events[0].(*protocol.ChildrenClosed)
		if !ok {
			return step, nil
		}
		ends := make([]protocol.ChildClosed, len(ended.Children))
		for i, end := range ended.Children {
			switch {
			case f.bug == commitLost:
				end.Grant, end.Commit = nil, nil
			case end.Grant != nil:
				twice := end.Grant.Times(2)
				end.Grant = &twice
			}
			ends[i] = end
		}
		return lifecycle.MarkChildren(h.State, q, ends)
	})
}

// spoilLimits rewrites an append as a faulty writer would have made it.
func (l *simulation) spoilLimits(body []byte) []byte {
	switch l.bug {
	case zeroAbsent:
		if bytes.Contains(body, []byte(`"type":"submitted"`)) && bytes.Contains(body, []byte(`"parent":"`)) {
			return bytes.ReplaceAll(bytes.ReplaceAll(body, []byte(`"max_handoffs":0,`), nil), []byte(`"max_tokens":0,`), nil)
		}
	case lineageLost:
		if bytes.Contains(body, []byte(`"type":"submitted"`)) {
			return depths.ReplaceAll(body, []byte(`"lineage":{"depth":1,`))
		}
	}
	return body
}
