package broker

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/agenthandoff/handoff/internal/lifecycle"
	"github.com/agenthandoff/handoff/protocol"
)

// cutReason bounds a person's text, and makes it valid: it goes into an append, and a return must
// be able to carry it.
func cutReason(s string) string { return protocol.CutText(s, protocol.ReasonBytesMax) }

// intervene is Update for an action by a person, or an agent in charge, on a handoff by its ticket,
// often from a process that does nothing else: it reads only the part of the directory that the
// decision depends on. A supervisor judges which holders are gone.
func (b *Broker) intervene(ctx context.Context, ticket, by string, want wanted, decide func(protocol.State, lifecycle.Query) (lifecycle.Step, error)) (protocol.State, error) {
	if err := protocol.CheckBy("by", by); err != nil {
		return protocol.State{}, err
	}
	head, err := b.interveneHead(ctx, ticket, want, decide)
	return head.State, err
}

func (b *Broker) interveneHead(ctx context.Context, ticket string, want wanted, decide func(protocol.State, lifecycle.Query) (lifecycle.Step, error)) (Head, error) {
	head, err := b.Head(ctx, ticket, 0)
	if err != nil {
		return Head{}, unknownTicketError(ticket, err)
	}
	head, _, err = b.update(ctx, head, want, func(h Head, q lifecycle.Query) (lifecycle.Step, error) { return decide(h.State, q) })
	return head, err
}

// RollBack returns a handoff to its source: at once if no worker holds it, otherwise its holder is
// asked to clean up first.
func (b *Broker) RollBack(ctx context.Context, ticket, by, reason string) (protocol.State, error) {
	return b.intervene(ctx, ticket, by, wantSource, func(s protocol.State, q lifecycle.Query) (lifecycle.Step, error) {
		return lifecycle.RollBack(s, q, by, cutReason(reason))
	})
}

// Reroute offers a handoff to the agent to, regardless of the agent that has it now. A non-zero
// deadline replaces its deadline; an overdue handoff is then no longer overdue.
func (b *Broker) Reroute(ctx context.Context, ticket, to, by, reason string, deadline time.Time) (protocol.State, error) {
	if err := cmp.Or(protocol.CheckBy("by", by), protocol.CheckBy("to", to)); err != nil {
		return protocol.State{}, err
	}
	return b.intervene(ctx, ticket, by, wantToSettle(to, by), func(s protocol.State, q lifecycle.Query) (lifecycle.Step, error) {
		return lifecycle.RerouteTo(s, q, to, by, cutReason(reason), deadline)
	})
}

// Take gives an open handoff to a holder at once, regardless of the agent that has it now. The
// holder must have beaten already. The handoff may exceed its agent's max_concurrency, and counts.
func (b *Broker) Take(ctx context.Context, ticket string, holder protocol.Holder, reason string) (*Claim, error) {
	if err := protocol.CheckBy("agent", holder.Agent); err != nil {
		return nil, err
	}
	head, err := b.interveneHead(ctx, ticket, wantToSettle(holder.Agent, holder.Agent), func(s protocol.State, q lifecycle.Query) (lifecycle.Step, error) {
		claimant := lifecycle.Claimant{Agent: holder.Agent, Holder: holder.ID, LeaseMS: holder.LeaseMS}
		return lifecycle.TakeNow(s, q, claimant, cutReason(reason))
	})
	if err != nil {
		return nil, err
	}
	claim, err := b.claimOf(ctx, head, holder, head.State.Offer)
	if err != nil {
		return nil, err
	}
	profile, err := b.ownProfile(ctx, holder.Agent)
	claim.suitTo(profile)
	if err != nil || profile.MaxConcurrency == 0 {
		return claim, nil // it has the handoff; the limit is no reason to lose it
	}
	claim.limited = true
	return claim, claim.ensureSlot(ctx)
}

// wantToSettle is wantAgent, with all agents if only an authority may settle the open question.
func wantToSettle(agent, by string) wanted {
	return func(s protocol.State) part {
		want := wantAgent(agent)(s)
		if by != protocol.Human && lifecycle.QuestionOf(s).Kind != lifecycle.AsksNothing {
			want = part{whole: true, agents: want.agents, fresh: true}
		}
		return want
	}
}

// Dismiss removes a closed handoff from the inbox that lists it.
func (b *Broker) Dismiss(ctx context.Context, ticket, by, remark string) (protocol.State, error) {
	return b.intervene(ctx, ticket, by, wantNothing, func(s protocol.State, q lifecycle.Query) (lifecycle.Step, error) {
		return lifecycle.Dismiss(s, by, cutReason(remark), q.Now)
	})
}

// Redrive resubmits the package of a handoff that closed without success, as a new handoff that
// names its origin. to, if not empty, is another agent to send it to. The agents that refused it
// are excluded, unless again is set or to names them. Redriving a handoff twice is an error with
// CodeConflict; an interrupted redrive is finished.
//
// The submission comes first and its record second, since only the caller could make up for a
// submission that the record announces: in between, the origin is still listed, and redriving it
// again finds the new handoff.
func (b *Broker) Redrive(ctx context.Context, ticket, to, by string, again bool) (protocol.State, error) {
	if err := cmp.Or(protocol.CheckBy("by", by), protocol.CheckBy("to", to)); err != nil {
		return protocol.State{}, err
	}
	origin, err := b.Head(ctx, ticket, 0)
	if err != nil {
		return protocol.State{}, unknownTicketError(ticket, err)
	}
	if err := lifecycle.CheckRedrive(origin.State); err != nil {
		return protocol.State{}, err
	}
	next, err := b.prepareRedrive(ctx, origin, to, again)
	if err != nil {
		return protocol.State{}, err
	}
	head, err := b.submitChild(ctx, next)
	if err != nil {
		return protocol.State{}, err
	}
	_, _, err = b.update(ctx, origin, wantNothing, func(h Head, q lifecycle.Query) (lifecycle.Step, error) {
		return lifecycle.Redrive(h.State, by, q.Now)
	})
	return head.State, err
}

// prepareRedrive prepares the package of a handoff that is resubmitted, and refuses it if no agent
// could get it.
func (b *Broker) prepareRedrive(ctx context.Context, origin Head, to string, again bool) (pendingChild, error) {
	pkg, body, err := b.readPackage(ctx, &origin)
	if err != nil {
		return pendingChild{}, err
	}
	pkg = protocol.RedrivePackage(origin.State, pkg, b.now(origin))
	if to != "" {
		if pkg.GroupSize() > 0 {
			return pendingChild{}, protocol.Errorf(protocol.CodeConflict, "to", "%s is a group; redrive its members one by one to send them elsewhere", origin.Ticket)
		}
		pkg.Target = protocol.Target{Agent: to}
	}
	summary := lifecycle.RedriveOf(origin.State, pkg, "", to, again)
	want := partFor(summary, readsSource(summary))
	want.fresh = true
	directory, _, err := b.read(ctx, want)
	if err != nil {
		return pendingChild{}, err
	}
	if _, err := lifecycle.Admit(summary, lifecycle.Query{Directory: directory, Contract: contractOf(body, pkg.Context.Transfer())}); err != nil {
		return pendingChild{}, nameParties(err, pkg)
	}
	s, err := b.storeOwnBody(ctx, pkg)
	summary.Digest = s.digest
	return pendingChild{ticket: protocol.RedriveTicket(origin.Ticket), summary: summary, body: s.body, blob: s.blob, directory: directory}, err
}

// Waiting is a handoff that waits for a person or an agent, and why.
type Waiting struct {
	Why   lifecycle.InboxReason `json:"why"`
	State protocol.State        `json:"state"`
}

// Inbox lists the handoffs that wait for an agent, or a person, oldest change first, with the
// reasons. It reads the heads of all handoffs.
func (b *Broker) Inbox(ctx context.Context, agent string) ([]Waiting, error) {
	directory, err := b.Directory(ctx)
	if err != nil {
		return nil, err
	}
	states, err := b.selectStates(ctx, func(s protocol.State) bool {
		return lifecycle.InboxReasonFor(s, agent, directory) != lifecycle.InboxNone
	})
	waiting := make([]Waiting, len(states))
	for i, s := range states {
		waiting[i] = Waiting{lifecycle.InboxReasonFor(s, agent, directory), s}
	}
	return waiting, err
}

// DeadLetters lists the dead letters (lifecycle.DeadLetter) for which keep returns true, oldest
// change first. It reads the heads of all handoffs.
func (b *Broker) DeadLetters(ctx context.Context, keep func(protocol.State) bool) ([]protocol.State, error) {
	return b.selectStates(ctx, func(s protocol.State) bool {
		return lifecycle.DeadLetter(s) && (keep == nil || keep(s))
	})
}

// selectStates lists the states of all handoffs for which keep returns true. It skips unreadable
// heads: handoff doctor names them.
func (b *Broker) selectStates(ctx context.Context, keep func(protocol.State) bool) ([]protocol.State, error) {
	place, picked := map[string]int{}, []protocol.State{}
	err := b.engine.Heads(ctx, func(e Entry) error {
		state, err := StateOf(e)
		if err != nil {
			return nil
		}
		i, twice := place[e.Ticket] // on replicas a ticket may come twice, its last entry last
		switch wanted := keep(state); {
		case twice:
			picked[i] = state
		case wanted:
			place[e.Ticket] = len(picked)
			picked = append(picked, state)
		}
		return nil
	})
	return slices.DeleteFunc(picked, func(s protocol.State) bool { return !keep(s) }), err
}

// claimOf returns the claim of a holder that already has a handoff.
func (b *Broker) claimOf(ctx context.Context, head Head, holder protocol.Holder, offer uint64) (*Claim, error) {
	claim := &Claim{Ticket: head.Ticket, Agent: holder.Agent, Holder: holder, Offer: offer, b: b, locked: make(chan struct{}, 1), head: &head}
	if err := claim.checkFence(&head.State); err != nil {
		return nil, err
	}
	submitted, err := b.readSubmitted(ctx, &head)
	if err != nil {
		return nil, err
	}
	if claim.Package, err = b.packageBody(ctx, submitted.Package, submitted.Blob); err != nil {
		return nil, fmt.Errorf("package of %s: %w", head.Ticket, err)
	}
	said, err := b.readAnnotations(ctx, &head)
	claim.Answers, claim.Trail = said.Answers, said.Trail
	return claim, err
}

// ApprovalAnswer is an approver's answer to the gate of a handoff. An empty Agent is the gate's
// current agent.
type ApprovalAnswer = lifecycle.ApprovalAnswer

// Approve lets the agent that a gate names have the handoff. After the last gate the handoff is
// offered, in the same append.
func (b *Broker) Approve(ctx context.Context, ticket string, answer ApprovalAnswer) (protocol.State, error) {
	return b.answerGate(ctx, ticket, answer, lifecycle.Approve)
}

// Deny refuses the handoff to the agent that a gate names. The handoff ends.
func (b *Broker) Deny(ctx context.Context, ticket string, answer ApprovalAnswer) (protocol.State, error) {
	return b.answerGate(ctx, ticket, answer, lifecycle.Deny)
}

// answerGate appends an answer to the gate for which it was given. If the handoff meanwhile has
// another gate, which asks about another agent, the answer does not apply to it.
func (b *Broker) answerGate(ctx context.Context, ticket string, answer ApprovalAnswer,
	decide func(protocol.State, lifecycle.Query, ApprovalAnswer) (lifecycle.Step, error)) (protocol.State, error) {
	if err := cmp.Or(protocol.CheckBy("by", answer.By), protocol.CheckBy("agent", cmp.Or(answer.Agent, protocol.Human))); err != nil {
		return protocol.State{}, err
	}
	answer.Reason = cutReason(answer.Reason)
	return b.intervene(ctx, ticket, answer.By, wantAll, func(s protocol.State, q lifecycle.Query) (lifecycle.Step, error) {
		if answer.Agent == "" && s.Gate != nil {
			answer.Agent = s.Gate.Agent
		}
		return decide(s, q, answer)
	})
}
