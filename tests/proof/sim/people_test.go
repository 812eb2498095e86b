//go:build proof

package sim

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/worker"
)

// handler does what the seed says for each attempt. It ends well sooner or later,
// so that a handoff that does not close was lost by a part.
type handler struct {
	l     *simulation
	agent string
}

func (h *handler) dice(of worker.Handoff, about string) uint64 {
	return dice(h.l.seed, about, of.Ticket, of.Agent, of.State().AttemptsTotal, of.State().Reroutes, of.State().ConditionRounds)
}

// Acknowledge accepts most.
func (h *handler) Acknowledge(_ context.Context, of worker.Handoff) (protocol.Ack, error) {
	if h.agent == protocol.Human || !h.l.faultsOn() || of.Package.Returned != nil || strings.HasPrefix(of.Package.Task.Description, ringPrefix) {
		return protocol.Ack{Status: protocol.AckAccepted}, nil
	}
	roll := h.dice(of, "ack") % 20
	switch {
	case h.l.bug == questionDropped: // all ask
		roll = 2
	case h.l.bug == refusalLost && roll%3 == 0: // it needs a handoff that was refused twice
		roll = 0
	}
	switch roll {
	case 0:
		return protocol.Ack{Status: protocol.AckRejected, Reason: "not mine"}, nil
	case 1:
		return protocol.Ack{Status: protocol.AckConditional, RetryAfterMS: 5_000, Reason: "not now"}, nil
	case 2:
		if of.State().Parent != "" { // its source does not poll, and would not answer
			break
		}
		ask := protocol.Ack{Status: protocol.AckConditional, NeedsContext: []string{"which"}}
		if h.dice(of, "permission")%2 == 0 {
			ask.NeedsContext, ask.NeedsPermission = nil, []string{"deploy"}
		}
		return ask, nil
	}
	return protocol.Ack{Status: protocol.AckAccepted}, nil
}

// Handle works for a while, hands off, fails, or forgets that it was told to stop.
func (h *handler) Handle(ctx context.Context, of worker.Handoff) (protocol.Result, error) {
	if of.State().Denied != "" {
		if answer := h.decide(of); answer != nil {
			return protocol.Result{}, answer
		}
	}
	h.l.judge.received(of)
	if isKnot(of) {
		return h.tangle(ctx, of)
	}
	if h.l.bug == beginsEmpty && h.l.faultsOn() && of.Package.Returned == nil {
		return h.overdraws(ctx, of)
	}
	what := h.dice(of, "handle")
	h.lockSome(ctx, of, h.dice(of, "lock"))
	work := time.Duration(what%8_000_000) * time.Microsecond
	stubborn := false
	if what>>20%12 == 0 {
		work, stubborn = time.Duration(what>>24%70_000_000)*time.Microsecond, what>>40%2 == 0
	}
	select {
	case <-time.After(work): // the bubble's clock
	case <-ctx.Done():
		h.lockSome(context.WithoutCancel(ctx), of, h.dice(of, "lock again")) // a program that does not know
		if !stubborn {
			return h.stops(ctx, of)
		}
		time.Sleep(work)
	}
	done := protocol.Result{Body: fmt.Appendf(nil, `"done by %s, attempt %d of %s"`, of.Agent, of.Attempt, of.Ticket[:8]), Usage: h.reportUsage(ctx, of)}
	if of.State().Group != "" && what>>16%2 == 0 {
		done.Body = []byte(`{"vote":"no"}`)
	}
	if h.l.isFrail(h.agent) && of.Package.Returned == nil {
		return protocol.Result{}, &worker.Failure{Err: errors.New("out of order"), Usage: done.Usage}
	}
	depth := len(of.Package.Task.Description)
	if of.Package.Returned != nil && h.l.faultsOn() && h.agent != protocol.Human && of.State().Limits != nil && what>>8%2 == 0 { // not yet
		done.Command = &protocol.Command{Goto: []byte(`"` + other(h.agent, what) + `"`)}
		return done, nil
	}
	if h.agent == protocol.Human || !h.l.faultsOn() || of.Package.Returned != nil || len(of.Returns) > 0 || depth > depthMax(of.State()) {
		return done, nil
	}
	if err := h.asksSteadily(ctx, of, depth+1); err != nil {
		return protocol.Result{}, err
	}
	switch what >> 8 % 20 {
	case 0, 1:
		return protocol.Result{}, &worker.Failure{Err: errors.New("no luck"), Usage: done.Usage}
	case 2:
		return protocol.Result{}, worker.Permanent(errors.New("never"))
	case 3, 4, 5:
		return h.handOff(ctx, of, what, depth+1)
	case 9, 10:
		return h.asks(ctx, of, what, depth+1)
	case 6:
		return protocol.Result{}, worker.RollBack("sim", &protocol.Result{Status: protocol.Partial, Usage: done.Usage})
	case 7:
		to := spelled(other(h.agent, what), what>>16)
		if err := h.l.readsLiterally(to); err != nil {
			return protocol.Result{}, err
		}
		done.Command = &protocol.Command{Goto: []byte(`"` + to + `"`)}
		if what>>12%2 == 0 {
			done.Command.Goto = []byte(`["` + to + `","END"]`)
		}
		return done, nil
	case 8:
		if h.l.bug == workRepeated {
			return protocol.Result{}, &worker.Failure{Code: string(protocol.CodeUnknownAgent), Err: errors.New("no agent is called " + nowhere)}
		}
		to := []string{nowhere, newcomer}[what>>44%2]
		done.Command = &protocol.Command{Goto: []byte(`"` + to + `"`)}
		if what>>12%2 == 0 {
			done.Command.Goto = []byte(`["` + other(h.agent, what) + `","` + to + `"]`)
		}
		return done, nil
	}
	return done, nil
}

// handOff hands off a few, and waits for some of them or for none.
func (h *handler) handOff(ctx context.Context, of worker.Handoff, what uint64, depth int) (protocol.Result, error) {
	var awaited []string
	for i := range 1 + what>>12%3 {
		d := what>>16 + i*7
		child := h.l.newPackage(depth, other(h.agent, d))
		switch d % 4 {
		case 0:
			child.Type, child.Return = protocol.Delegation, &protocol.ReturnProtocol{Expected: true, TimeoutMS: 1_800_000, Wait: "block"}
		case 1:
			child.Type, child.Return = protocol.Delegation, &protocol.ReturnProtocol{Expected: true, TimeoutMS: 1_800_000, Wait: "continue"}
		case 2:
			child = group(child, []string{other(h.agent, 0), other(h.agent, 1), other(h.agent, 2)}, d)
		}
		ticket, err := of.HandOff(ctx, child)
		if isBarred(err) {
			break
		}
		if err != nil {
			return protocol.Result{}, err
		}
		if child.Return != nil {
			awaited = append(awaited, ticket)
		}
	}
	if len(awaited) > 0 && what>>14%4 != 0 {
		return protocol.Result{}, worker.Await(awaited...)
	}
	return protocol.Result{Body: []byte(`"handed on"`)}, nil
}

// group makes a package one for several, each of them once.
func group(p protocol.Package, to []string, d uint64) protocol.Package {
	slices.Sort(to)
	p.Type, p.Target = protocol.Broadcast, protocol.Target{Agents: slices.Compact(to)}
	modes := []protocol.Aggregation{protocol.AggregateAll, protocol.AggregateAny, protocol.AggregateMajority}
	p.Return = &protocol.ReturnProtocol{Aggregation: modes[d>>4%3], CancelRest: d>>6%2 == 0}
	return p
}

// other is an agent that is not this one.
func other(than string, n uint64) string {
	all := []string{"a", "b", "c", "lead"}
	if pick := all[n%4]; pick != than {
		return pick
	}
	return all[(n+1)%4]
}

func (l *simulation) newPackage(depth int, to string) protocol.Package {
	p := protocol.Package{Reason: "sim", Task: protocol.Task{Description: ">>>>>>>"[:depth+1]}}
	p.Target.Agent = to
	l.planRisk(&p, depth, to)
	if l.hasBreaker() {
		p.Routing = &protocol.RoutingRules{OnOpen: protocol.OnOpenWait}
	}
	return p
}

// planPackage is what a source submits.
func (l *simulation) planPackage(source string, i int) protocol.Package {
	d := dice(l.seed, "plan", source, i)
	p := l.newPackage(0, other(source, d))
	switch d >> 8 % 12 {
	case 0:
		p.Type, p.Return = protocol.Delegation, &protocol.ReturnProtocol{Expected: true, TimeoutMS: 1_800_000}
	case 1:
		p = group(p, []string{"a", "b", "c"}[:2+d>>16%2], d>>20)
	case 2, 3:
		p.Target.Agent = late
		wait, queue := int64(10*60_000), protocol.NoTakerQueue
		p.Policy = protocol.PolicyOverrides{AckTimeoutMS: &wait, OnNoTaker: &queue}
		if d>>56%2 == 0 { // it goes to a person, and comes back
			p.Policy = protocol.PolicyOverrides{}
		}
	case 4:
		p.Constraints.Deadline = time.Now().Add(time.Duration(d>>16%600+1) * time.Second)
	}
	if p.Target.Agent != "" && p.Target.Agent != late && d>>40%6 == 0 {
		p.Target.Agent = absent
	}
	if p.Target.Agent != "" && p.Target.Agent != late && d>>48%6 == 0 {
		p.Target.Agent = pollingAgent
	}
	if d>>52%2 == 0 {
		p.AutonomyBudget = &protocol.AutonomyBudget{Deciders: []string{"lead", protocol.Human}[d>>53%2:]}
	}
	l.planRanked(&p, dice(l.seed, "ranked", source, i))
	l.planLimits(&p, dice(l.seed, "limits", source, i))
	l.askApproval(&p, source, i)
	l.planWorkspace(&p, dice(l.seed, "workspace", source, i))
	l.planUsedUp(&p, dice(l.seed, "used up", source, i))
	l.planKnot(&p, dice(l.seed, "knot", source, i))
	l.planBids(&p, dice(l.seed, "bids", source, i))
	l.planClocks(&p, dice(l.seed, "clocks", source, i))
	l.planAutonomy(&p, dice(l.seed, "autonomy", source, i))
	l.planUnknown(&p, dice(l.seed, "unknown", source, i))
	l.planStart(&p, dice(l.seed, "start", source, i))
	l.planOverdraft(&p)
	p.Source, p.Key = source, fmt.Sprint("key ", i)
	return p
}

// submitAll is a source: it submits, and begins again under the same key where it
// died; it polls, answers what it is asked, and cancels now and then.
func (l *simulation) submitAll(n int) {
	source := "lead"
	if n > 0 {
		if source = fmt.Sprint("outsider", n); l.handsOffNothing() {
			source = protocol.Human
		}
	}
	var mine []string
	for i := 0; i < handoffsMin/2 && l.ctx.Err() == nil; i++ {
		l.sleep(time.Duration(dice(l.seed, "pace", source, i)%28_000_000) * time.Microsecond)
		pkg := l.planPackage(source, i)
		for l.ctx.Err() == nil {
			p, e, b, ctx := l.process(source)
			head, err := submit(ctx, b, pkg)
			if err == nil {
				l.judge.recordAcknowledged(head)
				mine = append(mine, head.Ticket)
				l.poll(ctx, b, source, mine)
			}
			l.closeProcess(p, e)
			if err == nil {
				break
			}
			if isTurnedAway(err) { // it does without
				pkg.Workspace, pkg.Locks, pkg.Context.WorkflowID, pkg.Key = "", nil, "", pkg.Key+" alone"
				pkg.Constraints.Deadline = time.Time{}
				continue
			}
			if isUnfit(err) {
				pkg.AutonomyBudget, pkg.Key = nil, pkg.Key+" free"
				continue
			}
			if pkg.Bids != nil && hasAnyCode(err, protocol.CodeNoAgent) { // too few that may have it
				pkg.Bids, pkg.Key = nil, pkg.Key+" without bids"
				continue
			}
			if errors.Is(err, &protocol.Error{Code: protocol.CodePast}) { // nothing was stored in time
				pkg.Constraints.Deadline, pkg.Key = time.Time{}, pkg.Key+" late"
				continue
			}
			if !errors.Is(err, broker.ErrUnreachable) && l.ctx.Err() == nil {
				l.judge.fault("submission %d of %s: %v", i, source, err)
				return
			}
		}
	}
	for l.ctx.Err() == nil {
		p, e, b, ctx := l.process(source)
		l.poll(ctx, b, source, mine)
		l.closeProcess(p, e)
		l.sleep(20*time.Second + time.Duration(n)*time.Millisecond)
	}
}

func submit(ctx context.Context, b *broker.Broker, pkg protocol.Package) (broker.Head, error) {
	in, err := b.Prepare(ctx, pkg)
	if err != nil {
		return broker.Head{}, err
	}
	return b.Submit(ctx, in)
}

// poll reads some of what was submitted, as a person would.
func (l *simulation) poll(ctx context.Context, b *broker.Broker, source string, mine []string) {
	for i, ticket := range mine {
		if l.judge.knownClosed(ticket) {
			continue
		}
		head, err := b.Head(ctx, ticket, 0)
		if err != nil {
			if !errors.Is(err, broker.ErrUnreachable) && ctx.Err() == nil {
				l.judge.fault("status of %s, which was acknowledged: %v", ticket, err)
			}
			continue
		}
		l.judge.recordRead(head)
		s := head.State
		switch {
		case s.Phase == protocol.Conditional && s.Conditions != nil:
			l.meddle(ctx, b, source, s)
			by := source
			if s.Agent == source { // it went up to its own source, which may not answer what it asks: a person does
				by = protocol.Human
			}
			answer := protocol.Answer{By: by, Text: meant(s.Conditions.Question), Permit: true}
			if dice(l.seed, "permit", ticket, s.ConditionRounds)%3 == 0 {
				answer = l.denies(by)
			}
			answer.Question = s.Conditions.Question
			_, err = b.Answer(ctx, ticket, answer)
		case !s.Closed && l.faultsOn() && dice(l.seed, "cancel", source, i)%15 == 0:
			_, err = b.CancelTree(ctx, ticket, source, "enough")
		}
		var refused *protocol.Error
		if err != nil && !errors.Is(err, broker.ErrUnreachable) && !errors.As(err, &refused) && ctx.Err() == nil {
			l.judge.fault("%s speaks of %s: %v", source, ticket, err)
		}
	}
}
