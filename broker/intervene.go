package broker

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/protocol/lifecycle"
)

// cutReason bounds what a person says, and makes text of it: it goes into an append,
// and a return must be able to carry it.
func cutReason(s string) string { return protocol.CutText(s, protocol.ReasonBytesMax) }

// intervene is Update for what a person, or an agent in charge, does with a handoff
// by its ticket, often from a process that does nothing else: it reads no more of
// the directory than that depends on. Who is gone a supervisor judges.
func (b *Broker) intervene(ctx context.Context, ticket string, read directoryReader, decide Decider) (Head, error) {
	head, err := b.Head(ctx, ticket, 0)
	if err != nil {
		return Head{}, unknownTicketError(ticket, err)
	}
	head, _, err = b.update(ctx, head, read, decide)
	return head, err
}

// RollBack returns a handoff to its source: at once where no worker holds it, else
// its holder is asked to clean up first.
func (b *Broker) RollBack(ctx context.Context, ticket, by, reason string) (protocol.State, error) {
	if err := protocol.CheckBy("by", by); err != nil {
		return protocol.State{}, err
	}
	reason = cutReason(reason)
	head, err := b.intervene(ctx, ticket, b.sourceAgent, func(h Head, d *lifecycle.Directory, now time.Time) (lifecycle.Step, error) {
		return lifecycle.RollBack(h.State, d, by, reason, now)
	})
	return head.State, err
}

// Reroute offers a handoff to the agent to, whichever agent has it now. A deadline that is
// not zero is its new one; an overdue handoff is overdue no more then.
func (b *Broker) Reroute(ctx context.Context, ticket, to, by, reason string, deadline time.Time) (protocol.State, error) {
	if err := cmp.Or(protocol.CheckBy("by", by), protocol.CheckBy("to", to)); err != nil {
		return protocol.State{}, err
	}
	reason = cutReason(reason)
	head, err := b.intervene(ctx, ticket, b.agentToSettle(to, by), func(h Head, d *lifecycle.Directory, now time.Time) (lifecycle.Step, error) {
		return lifecycle.RerouteTo(h.State, d, to, by, reason, deadline, now)
	})
	return head.State, err
}

// Take puts an open handoff into a holder's hands at once, whichever agent has it now.
// The holder must have beaten already. It may be one more than its agent's
// max_concurrency allows, and counts.
func (b *Broker) Take(ctx context.Context, ticket string, holder protocol.Holder, reason string) (*Claim, error) {
	if err := protocol.CheckBy("agent", holder.Agent); err != nil {
		return nil, err
	}
	reason = cutReason(reason)
	head, err := b.intervene(ctx, ticket, b.agentToSettle(holder.Agent, holder.Agent), func(h Head, d *lifecycle.Directory, now time.Time) (lifecycle.Step, error) {
		claimant := lifecycle.Claimant{Agent: holder.Agent, Holder: holder.ID, LeaseMS: holder.LeaseMS}
		return lifecycle.TakeNow(h.State, d, claimant, reason, now)
	})
	if err != nil {
		return nil, err
	}
	claim, err := b.claimOf(ctx, head, holder, head.State.Offer)
	if err != nil {
		return nil, err
	}
	profile, err := b.profileOf(ctx, holder.Agent)
	claim.suitTo(&profile)
	if err != nil || profile.MaxConcurrency == 0 {
		return claim, nil // it is its own; the limit is no reason to lose it
	}
	claim.limited = true
	return claim, claim.ensureSlot(ctx)
}

// agentToSettle is freshAgent, and adds all agents where by may settle an open question only as an
// authority.
func (b *Broker) agentToSettle(agent, by string) directoryReader {
	return func(ctx context.Context, s protocol.State) (*lifecycle.Directory, error) {
		fresh, err := b.freshAgent(agent)(ctx, s)
		if err != nil || by == protocol.Human || lifecycle.QuestionOf(s).Kind == lifecycle.AsksNothing {
			return fresh, err
		}
		all, err := b.Directory(ctx)
		if profile, known := fresh.Agent(agent); known && err == nil {
			all = all.WithAgent(&profile)
		}
		return all, err
	}
}

// Dismiss takes a closed handoff out of the inbox that lists it.
func (b *Broker) Dismiss(ctx context.Context, ticket, by, remark string) (protocol.State, error) {
	if err := protocol.CheckBy("by", by); err != nil {
		return protocol.State{}, err
	}
	remark = cutReason(remark)
	head, err := b.intervene(ctx, ticket, b.noDirectory, func(h Head, _ *lifecycle.Directory, now time.Time) (lifecycle.Step, error) {
		return lifecycle.Dismiss(h.State, by, remark, now)
	})
	return head.State, err
}

// Redrive submits the package of a handoff that closed without success again,
// as a new handoff that names its origin. to, if not empty, is another agent to
// send it to. The agents that refused it are excluded, unless again is set or to
// names them. Redriving again what was redriven is an error with CodeConflict;
// one that was interrupted is finished.
//
// The submission goes first and its record second, since only the caller that asked
// could make up for a submission that the record promises: in between, the origin
// is still listed, and redriving it again finds what is there.
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
	_, _, err = b.updateWithoutDirectory(ctx, origin, func(h Head, _ *lifecycle.Directory, now time.Time) (lifecycle.Step, error) {
		return lifecycle.Redrive(h.State, by, now)
	})
	return head.State, err
}

// prepareRedrive makes the package of a handoff that is submitted again, and refuses
// it where it could not be offered to anybody.
func (b *Broker) prepareRedrive(ctx context.Context, origin Head, to string, again bool) (pendingChild, error) {
	submitted, err := b.readSubmitted(ctx, &origin)
	if err != nil {
		return pendingChild{}, err
	}
	body, err := b.packageBody(ctx, submitted.Package, submitted.Blob)
	if err != nil {
		return pendingChild{}, fmt.Errorf("package of %s: %w", origin.Ticket, err)
	}
	pkg, err := protocol.DecodePackage(body)
	if err != nil {
		return pendingChild{}, fmt.Errorf("package of %s: %w", origin.Ticket, err)
	}
	pkg = protocol.RedrivePackage(origin.State, pkg, b.now(origin))
	if to != "" {
		if pkg.GroupSize() > 0 {
			return pendingChild{}, protocol.Errorf(protocol.CodeConflict, "to", "%s is a group; redrive its members one by one to send them elsewhere", origin.Ticket)
		}
		pkg.Target = protocol.Target{Agent: to}
	}
	summary := lifecycle.RedriveOf(origin.State, pkg, "", to, again)
	directory, err := b.directoryFor(ctx, summary)
	if err != nil {
		return pendingChild{}, err
	}
	directory = withContract(directory, body, &pkg.Context)
	if _, err := lifecycle.Admit(summary, directory); err != nil {
		return pendingChild{}, nameParties(err, pkg)
	}
	s, err := b.storeOwnBody(ctx, pkg)
	summary.Digest = s.digest
	return pendingChild{ticket: protocol.RedriveTicket(origin.Ticket), summary: summary, body: s.body, blob: s.blob, directory: directory}, err
}

// Waiting is a handoff that waits for a person or an agent, and why.
type Waiting struct {
	Why   lifecycle.InboxReason
	State protocol.State
}

// Inbox lists the handoffs that wait for an agent, or a person, oldest change
// first, and says why. It reads the heads of all handoffs.
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

// DeadLetters lists the dead letters (lifecycle.DeadLetter) that keep wants,
// oldest change first. It reads the heads of all handoffs.
func (b *Broker) DeadLetters(ctx context.Context, keep func(protocol.State) bool) ([]protocol.State, error) {
	return b.selectStates(ctx, func(s protocol.State) bool {
		return lifecycle.DeadLetter(s) && (keep == nil || keep(s))
	})
}

// selectStates lists the states of all handoffs that keep wants. A head that cannot
// be read is passed over: handoff doctor names it.
func (b *Broker) selectStates(ctx context.Context, keep func(protocol.State) bool) ([]protocol.State, error) {
	place, picked := map[string]int{}, []protocol.State{}
	err := b.ledger.Heads(ctx, func(e Entry) error {
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

// claimOf is the claim of a holder that has a handoff already.
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

// ApprovalAnswer is what an approver says to the gate of a handoff.
type ApprovalAnswer struct {
	By string
	// Agent is the one that the approver was asked about; empty is the one that the gate names now.
	// Any approves every agent.
	Agent  string
	Any    bool
	Reason string // of a denial; the comment of an approval else
}

// Approve says that the agent which a gate names may have the handoff. After the last gate it is
// offered, in the same append.
func (b *Broker) Approve(ctx context.Context, ticket string, answer ApprovalAnswer) (protocol.State, error) {
	return b.answerGate(ctx, ticket, answer, lifecycle.Approve)
}

// Deny says that the agent which a gate names may not have the handoff, which ends.
func (b *Broker) Deny(ctx context.Context, ticket string, answer ApprovalAnswer) (protocol.State, error) {
	return b.answerGate(ctx, ticket, answer, lifecycle.Deny)
}

// answerGate appends an answer to the gate that was there when it was asked for: should another one
// be there by then, which asks about another agent, it is no answer to that.
func (b *Broker) answerGate(ctx context.Context, ticket string, answer ApprovalAnswer,
	decide func(protocol.State, *lifecycle.Directory, lifecycle.ApprovalAnswer, time.Time) (lifecycle.Step, error)) (protocol.State, error) {
	if err := cmp.Or(protocol.CheckBy("by", answer.By), protocol.CheckBy("agent", cmp.Or(answer.Agent, protocol.Human))); err != nil {
		return protocol.State{}, err
	}
	said := lifecycle.ApprovalAnswer{By: answer.By, Agent: answer.Agent, Any: answer.Any, Reason: cutReason(answer.Reason)}
	head, err := b.intervene(ctx, ticket, b.decisionDirectory, func(h Head, d *lifecycle.Directory, now time.Time) (lifecycle.Step, error) {
		if said.Agent == "" && h.State.Gate != nil {
			said.Agent = h.State.Gate.Agent
		}
		return decide(h.State, d, said, now)
	})
	return head.State, err
}
