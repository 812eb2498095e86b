package broker

import (
	"context"
	"errors"
	"fmt"

	"github.com/agenthandoff/handoff/internal/lifecycle"
	"github.com/agenthandoff/handoff/protocol"
)

// decideWith reads the part of the directory that a decision depends on, and calls decide for the
// next append of a handoff. If a member of a group would get an agent that it has not had before,
// decideWith calls decide once more without the agents of the other members, and records the
// assignment at the group before the member's own append. A crash between the two appends leaves the
// agent assigned to that member, which may still get it; no other member does.
func (b *Broker) decideWith(ctx context.Context, head Head, want part, decide Decider) (draft, error) {
	d, _, err := b.read(ctx, want)
	if err != nil {
		return draft{}, err
	}
	known := func(q lifecycle.Query) (lifecycle.Step, error) {
		return knowingPackage(q, func() (lifecycle.Contract, error) {
			submitted, err := b.readSubmitted(ctx, &head)
			if errors.Is(err, ErrNotFound) {
				return nil, nil
			}
			if err != nil {
				return nil, err
			}
			return b.storedContract(ctx, submitted.Package, submitted.Blob)
		}, func(q lifecycle.Query) (lifecycle.Step, error) { return decide(head, q) })
	}
	q := d.At(b.now(head))
	step, err := known(q)
	if err == nil && len(lifecycle.NewMembers(head.State, step.Events)) > 0 {
		step, err = b.decideMember(ctx, head, q, known)
	}
	if err != nil {
		return draft{}, illegalEventError(&head, err)
	}
	return draftOf(&head, &step), nil
}

// decideMember decides for a member of a group that moves to another agent.
func (b *Broker) decideMember(ctx context.Context, head Head, q lifecycle.Query, decide func(lifecycle.Query) (lifecycle.Step, error)) (lifecycle.Step, error) {
	n := head.State.N - 1
	var named []string
	for first := true; ; first = false {
		group, err := b.Head(ctx, head.State.Group, 0)
		if isAbsent(err) { // for example, the ledger has dropped it; then no group counts its members
			return decide(q)
		}
		if err == nil && first {
			named, err = b.groupRecipients(ctx, group)
		}
		if err != nil {
			return lifecycle.Step{}, fmt.Errorf("group %s of %s: %w", head.State.Group, head.Ticket, err)
		}
		q.Reserved = lifecycle.ReservedFor(group.State, named, n)
		step, err := decide(q)
		if err != nil {
			return lifecycle.Step{}, err
		}
		err = b.assignMember(ctx, group, n, lifecycle.NewMembers(head.State, step.Events))
		if !errors.Is(err, ErrConflict) {
			return step, err
		}
	}
}

// assignMember records at a group the agents that member n gets. It returns ErrConflict if the
// group has changed.
func (b *Broker) assignMember(ctx context.Context, group Head, n int, agents []string) error {
	step, err := lifecycle.Assign(group.State, n, agents, b.now(group))
	if err != nil || len(step.Events) == 0 {
		return illegalEventError(&group, err)
	}
	_, err = b.append(ctx, &group, draftOf(&group, &step))
	return err
}

// groupRecipients returns the agents that a group's package names, by member. It returns none if
// the ledger has dropped the package.
func (b *Broker) groupRecipients(ctx context.Context, group Head) ([]string, error) {
	submitted, err := b.readSubmitted(ctx, &group)
	if errors.Is(err, ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	pkg, _, err := b.decodeSubmitted(ctx, &group, submitted)
	return pkg.Recipients(), err
}

// reserveAbove finds an authority for an undelivered member of a group that no other member has, and
// assigns the authority to the member. It returns the agents of the other members.
func (b *Broker) reserveAbove(ctx context.Context, group Head, named []string, n int, child pendingChild) (lifecycle.Reserved, error) {
	all, err := b.Directory(ctx)
	if err != nil {
		return lifecycle.Reserved{}, err
	}
	for {
		q := all.At(b.now(group))
		q.Reserved = lifecycle.ReservedFor(group.State, named, n)
		step, err := lifecycle.SubmitUndelivered(child.ticket, child.summary, protocol.Submitted{}, q, child.undelivered)
		if err != nil {
			return q.Reserved, err
		}
		err = b.assignMember(ctx, group, n, lifecycle.NewMembers(protocol.State{Summary: child.summary}, step.Events))
		if !errors.Is(err, ErrConflict) {
			return q.Reserved, err
		}
		if group, err = b.Head(ctx, group.Ticket, 0); err != nil {
			return q.Reserved, err
		}
	}
}

// reserveAgent finds an agent of its own for a member that names a capability, and assigns the agent
// to the member. It returns the agents of the other members.
func (b *Broker) reserveAgent(ctx context.Context, group Head, named []string, m protocol.MemberHandoff, s protocol.Summary, q lifecycle.Query) (lifecycle.Reserved, error) {
	for {
		q.Reserved = lifecycle.ReservedFor(group.State, named, m.N)
		routing, err := lifecycle.Admit(s, q)
		if err != nil { // the member gets no offer yet; the next reconcile finds an agent
			return q.Reserved, nil
		}
		if routing.Choice == s.Target.Agent {
			return q.Reserved, nil
		}
		err = b.assignMember(ctx, group, m.N, []string{routing.Choice})
		if !errors.Is(err, ErrConflict) {
			return q.Reserved, err
		}
		if group, err = b.Head(ctx, group.Ticket, 0); err != nil {
			return q.Reserved, err
		}
	}
}

// Decide records a decision that the holder makes during the work. It is idempotent. If the risk
// exceeds the limit of the agent and the package, the error has the code autonomy_exceeded, and
// nothing is recorded: the holder escalates.
func (c *Claim) Decide(ctx context.Context, d protocol.WorkDecision) error {
	d.Normalize()
	if err := d.Validate(); err != nil {
		return err
	}
	return c.reportWork(ctx, wantAgent(c.Agent), func(s protocol.State, q lifecycle.Query) (lifecycle.Step, error) {
		made := protocol.Decided{ID: d.ID, Description: d.Description, Rationale: d.Rationale, Risk: d.Risk}
		return lifecycle.DecideAlone(s, q, c.Holder.ID, made)
	})
}
