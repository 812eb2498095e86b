package brokertest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/lifecycle"
	"github.com/agenthandoff/handoff/protocol"
)

// familyCases hold a Broker over the engine to what it promises of children,
// groups, returns and redrives: nothing is lost or doubled, wherever a process dies.
// They run one after another, since some are large.
var familyCases = []conformanceCase{
	{"children are submitted with a result", testChildrenSubmitted},
	{"an ordinal is handed off once", testOrdinalOnce},
	{"a promised child is submitted once, by any process", testPromisedChildrenOnce},
	{"missing members of a group are submitted", testGroupCompleted},
	{"a group finds agents that registered just now", testGroupOfNewAgents},
	{"a promised child is submitted past its deadline", testPromisedPastDeadline},
	{"closes of children are recorded once, and close the group", testCloseMarkedOnce},
	{"a return is delivered and recorded once", testReturnOnce},
	{"a chain ends once, with its last result or its failure", testChainEndsOnce},
	{"the members of a group end with their chains", testMembersEndWithTheirChains},
	{"the next agent gets the previous result, and no other", testPreviousResult},
	{"the chains of a group's members are cancelled with it", testCancelGroupOfChains},
	{"a stale holder hands off nothing", testStaleHolder},
	{"what attempts use counts once", testUsage},
	{"obsolete offers are removed from the queue", testObsoleteOffersRemoved},
	{"a tree is cancelled to its leaves", testCancelTree},
	{"a redrive happens once, whatever interrupts it", testRedriveOnce},
	{"a redrive keeps the trail", testRedriveTrail},
	{"a member is redriven alone", testRedriveMember},
	{"lists drop repeated heads", testListsWithRepeatedHeads},
	{"a dismissal removes it from the inbox", testDismissOnce},
	{"a key is found later", testKeyFoundLater},
	{"the targets of a hand-off are checked", testHandOffTargets},
	{"what cannot be delivered is kept, once, with an authority", testUndeliveredKept},
	{"what cannot be delivered is submitted by any process", testUndeliveredPromised},
	{"a policy says what becomes of what cannot be delivered", testUndeliveredPolicies},
	{"a member that cannot be delivered holds up no other", testUndeliveredMember},
	{"a group is barred before its members are looked for", testBarredBeforeUndelivered},
	{"a malformed result is kept, and so is a late one", testMalformedKept},
	{"what an agent expects is asked for at submission", testContractAtSubmission},
	{"a context goes by reference", testContextByReference},
	{"a reference leads to a context alone", testContextOfOthers},
	{"a hand-off that breaks a contract leaves the result", testContractOfHandOff},
	{"the schema of a contract stands in a package without one", testResultSchemaOfContract},
	{"a conversation is cut for the agent that gets it", testMaxContextTokens},
	{"children are in the trace of their parent", testTraces},
	{"what an absence brought to a person goes back once", testAbsenceReturns},
	{"a denial is final", testDenialFinal},
	{"a handoff is offered at its start, once", testStart},
	{"bids are asked for, compared and answered once", testBids},
	{"bids are compared when the time to bid is over", testBidsInTime},
	{"calls for bids end with what they are for", testBidsCancelled},
}

// familyKit is a kit with a broker.
type familyKit struct {
	*kit
	b *broker.Broker
}

func (k *kit) familyKit() *familyKit { return &familyKit{k, k.brokerOver(k.Engine)} }

func (k *kit) brokerOver(e broker.Engine) *broker.Broker {
	k.Helper()
	b, err := broker.New(e, broker.Config{})
	k.must(err)
	return b
}

// registerAgents registers agents with new names and queues.
func (r *familyKit) registerAgents(n int) []string {
	r.Helper()
	names := make([]string, n)
	forEachParallel(n, func(i int) {
		names[i] = fmt.Sprintf("kin%d-%s", i, protocol.NewTicket()[:8])
		if err := r.b.PutProfile(r.ctx, protocol.Profile{ID: names[i]}); err != nil {
			r.Error(err)
		}
	})
	return names
}

// forEachParallel calls fn with 0 to n-1, 16 at once.
func forEachParallel(n int, fn func(i int)) {
	var wg sync.WaitGroup
	slots := make(chan struct{}, 16)
	for i := range n {
		slots <- struct{}{}
		wg.Go(func() { fn(i); <-slots })
	}
	wg.Wait()
}

// pkg is a package from one agent to others.
func pkg(from string, to ...string) protocol.Package {
	p := protocol.Package{Source: from, Reason: "conformance", Task: protocol.Task{Description: "do it"}}
	if len(to) == 1 {
		p.Target.Agent = to[0]
	} else {
		p.Type, p.Target.Agents = protocol.Broadcast, to
	}
	return p
}

// delegated makes a package one whose return is waited for.
func delegated(p protocol.Package) protocol.Package {
	p.Type, p.Return = protocol.Delegation, &protocol.ReturnProtocol{Expected: true, TimeoutMS: 600_000}
	return p
}

func (r *familyKit) submit(p protocol.Package) broker.Head {
	r.Helper()
	head, err := r.trySubmit(p)
	r.must(err)
	return head
}

func (r *familyKit) trySubmit(p protocol.Package) (broker.Head, error) {
	in, err := r.b.Prepare(r.T.Context(), p)
	if err != nil {
		return broker.Head{}, err
	}
	return r.b.Submit(r.ctx, in)
}

// accept pulls the next offer for an agent and accepts it.
func (r *familyKit) accept(agent string) *broker.Claim {
	r.Helper()
	return r.acceptOver(r.b, agent)
}

func (r *familyKit) acceptOver(b *broker.Broker, agent string) *broker.Claim {
	r.Helper()
	h := protocol.Holder{ID: protocol.NewTicket(), Agent: agent, LeaseMS: 600_000, Slots: 1}
	r.must(b.Beat(r.ctx, h))
	r.must(b.EnsureQueue(r.ctx, agent))
	for {
		offers, err := b.Pull(r.ctx, agent, 1, waitTimeout)
		r.must(err)
		if len(offers) == 0 {
			r.Fatalf("no offer for %s", agent)
		}
		claim, err := offers[0].Acknowledge(r.ctx, h, protocol.Ack{Status: protocol.AckAccepted}, true)
		if errors.Is(err, broker.ErrOfferGone) {
			continue
		}
		r.must(err)
		return claim
	}
}

// noOffers checks that an agent has no valid offer. An offer that is held or obsolete may come
// again.
func (r *familyKit) noOffers(agent string) {
	r.Helper()
	r.must(r.b.EnsureQueue(r.ctx, agent))
	offers, err := r.b.Pull(r.ctx, agent, 100, 20*time.Millisecond)
	r.must(err)
	for _, offer := range offers {
		h := protocol.Holder{ID: protocol.NewTicket(), Agent: agent, LeaseMS: 600_000, Slots: 1}
		if _, err := offer.Acknowledge(r.ctx, h, protocol.Ack{Status: protocol.AckAccepted}, true); !errors.Is(err, broker.ErrOfferGone) {
			r.Errorf("got %s for %s (%v), want nothing", offer.Ticket, agent, err)
		}
	}
}

func (r *familyKit) head(ticket string) broker.Head {
	r.Helper()
	head, err := r.b.Head(r.ctx, ticket, 0)
	r.must(err)
	return head
}

func (r *familyKit) state(ticket string) protocol.State { r.Helper(); return r.head(ticket).State }

// entries returns the event types of a handoff, an element for each append.
func (r *familyKit) entries(ticket string) [][]protocol.EventType {
	r.Helper()
	changes, err := r.b.History(r.ctx, ticket)
	r.must(err)
	var all [][]protocol.EventType
	for _, c := range changes {
		var facts []protocol.EventType
		for _, e := range c.Record.Events {
			facts = append(facts, e.EventType())
		}
		all = append(all, facts)
	}
	return all
}

// noHandoff makes sure that there is no such handoff.
func (r *familyKit) noHandoff(ticket string) {
	r.Helper()
	if _, err := r.b.Head(r.ctx, ticket, 0); !errors.Is(err, broker.ErrNotFound) {
		r.Fatalf("%s is there, and should not be: %v", ticket, err)
	}
}

// decide appends the events of the core, as a supervisor's reconcile does.
func (r *familyKit) decide(ticket string) broker.Head {
	r.Helper()
	head, _, err := Update(r.ctx, r.b, ticket, decideAlone)
	r.must(err)
	return head
}

// decideAlone is what the core decides without a report.
func decideAlone(h broker.Head, q lifecycle.Query) (lifecycle.Step, error) {
	return lifecycle.Decide(h.State, q)
}

// ensureChildren is the part of a reconcile about children.
func (r *familyKit) ensureChildren(head broker.Head) ([]protocol.ChildClosed, error) {
	return r.b.EnsureChildren(r.ctx, head)
}

func wantCode(k *kit, err error, code protocol.Code) {
	k.Helper()
	if !errors.Is(err, &protocol.Error{Code: code}) {
		k.Errorf("%.300v, want one with the code %s", err, code)
	}
}

// failingAppends is an engine whose appends fail from some point on, as if the process
// had died there.
type failingAppends struct {
	broker.Engine
	mu    sync.Mutex
	lives func(ticket string) bool
}

func (d *failingAppends) Append(ctx context.Context, ticket string, after uint64, id string, says lifecycle.Attention, body []byte) (uint64, error) {
	d.mu.Lock()
	lives := d.lives(ticket)
	d.mu.Unlock()
	if !lives {
		return 0, broker.ErrUnreachable
	}
	return d.Engine.Append(ctx, ticket, after, id, says, body)
}
