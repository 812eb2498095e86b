package broker

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/protocol/lifecycle"
)

// decideWith asks decide for what to append to a handoff. Where a member of a group
// would go to an agent that it has not been with, it asks again with the agents left
// out that other members have, and assigns the agent to the member at the group
// before the member's own append. A crash in between leaves an agent assigned to a
// member that it may still get; no other member gets it.
func (b *Broker) decideWith(ctx context.Context, head Head, d *lifecycle.Directory, decide Decider) (draft, error) {
	if d.WantsContract() {
		decide = b.knowingPackage(ctx, decide)
	}
	step, err := decideSafely(head, d, b.now(head), decide)
	if err == nil && len(lifecycle.NewMembers(head.State, step.Events)) > 0 {
		step, err = b.decideMember(ctx, head, d, decide)
	}
	if err != nil {
		return draft{}, illegalEventError(&head, err)
	}
	return draftOf(&head, &step), nil
}

// decideSafely makes an error of a panic: a state that contradicts itself in a way that
// CheckRead does not see is the trouble of its handoff alone.
func decideSafely(head Head, d *lifecycle.Directory, now time.Time, decide Decider) (step lifecycle.Step, err error) {
	defer func() {
		if broken := recover(); broken != nil {
			step, err = lifecycle.Step{}, protocol.Errorf(protocol.CodeIllegal, "ticket", "nothing can be decided about the state of %s at %d: %v", head.Ticket, head.Seq, broken)
		}
	}()
	return decide(head, d, now)
}

// decideMember is decideWith for a member that moves.
func (b *Broker) decideMember(ctx context.Context, head Head, d *lifecycle.Directory, decide Decider) (lifecycle.Step, error) {
	n := head.State.N - 1
	var named []string
	for first := true; ; first = false {
		group, err := b.Head(ctx, head.State.Group, 0)
		if isAbsent(err) { // so old that the ledger has let go of it, say: nothing counts its members
			return decide(head, d, b.now(head))
		}
		if err == nil && first {
			named, err = b.groupRecipients(ctx, group)
		}
		if err != nil {
			return lifecycle.Step{}, fmt.Errorf("group %s of %s: %w", head.State.Group, head.Ticket, err)
		}
		step, err := decide(head, lifecycle.Reserve(d, group.State, named, n), b.now(head))
		if err != nil {
			return lifecycle.Step{}, err
		}
		err = b.assignMember(ctx, group, n, lifecycle.NewMembers(head.State, step.Events))
		if !errors.Is(err, ErrConflict) {
			return step, err
		}
	}
}

// assignMember records at a group the agents that member n goes to. ErrConflict is that
// the group has moved on.
func (b *Broker) assignMember(ctx context.Context, group Head, n int, agents []string) error {
	step, err := lifecycle.Assign(group.State, n, agents, b.now(group))
	if err != nil || len(step.Events) == 0 {
		return illegalEventError(&group, err)
	}
	_, err = b.append(ctx, &group, draftOf(&group, &step))
	return err
}

// groupRecipients are the agents that a group's package names, by member; none where the
// ledger has let go of it.
func (b *Broker) groupRecipients(ctx context.Context, group Head) ([]string, error) {
	submitted, err := b.readSubmitted(ctx, &group)
	if errors.Is(err, ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	body, err := b.packageBody(ctx, submitted.Package, submitted.Blob)
	if err != nil {
		return nil, err
	}
	pkg, err := protocol.DecodePackage(body)
	return pkg.Recipients(), err
}

// DirectoryOf returns the directory as a handoff may use it: for a member of a group
// without the agents that other members have.
func (b *Broker) DirectoryOf(ctx context.Context, s protocol.State) (*lifecycle.Directory, error) {
	directory, err := b.Directory(ctx)
	if err != nil || s.Group == "" || s.Closed {
		return directory, err
	}
	group, err := b.Head(ctx, s.Group, 0)
	if isAbsent(err) {
		return directory, nil
	}
	if err != nil {
		return nil, err
	}
	named, err := b.groupRecipients(ctx, group)
	if err != nil {
		return nil, err
	}
	return lifecycle.Reserve(directory, group.State, named, s.N-1), nil
}

// directoryAbove is a directory in which an undelivered member finds an authority that has no
// other member, assigned to it.
func (b *Broker) directoryAbove(ctx context.Context, group Head, named []string, n int, child pendingChild) (*lifecycle.Directory, error) {
	all, err := b.Directory(ctx)
	if err != nil {
		return nil, err
	}
	for {
		reserved := lifecycle.Reserve(all, group.State, named, n)
		step, err := lifecycle.SubmitUndelivered(child.ticket, child.summary, protocol.Submitted{}, reserved, child.undelivered, b.now(group))
		if err != nil {
			return nil, err
		}
		err = b.assignMember(ctx, group, n, lifecycle.NewMembers(protocol.State{Summary: child.summary}, step.Events))
		if !errors.Is(err, ErrConflict) {
			return reserved, err
		}
		if group, err = b.Head(ctx, group.Ticket, 0); err != nil {
			return nil, err
		}
	}
}

// directoryOfMember is a directory in which a member that names a capability finds an
// agent of its own, assigned to it.
func (b *Broker) directoryOfMember(ctx context.Context, group Head, named []string, m protocol.MemberHandoff, s protocol.Summary, d *lifecycle.Directory) (*lifecycle.Directory, error) {
	for {
		reserved := lifecycle.Reserve(d, group.State, named, m.N)
		routing, err := lifecycle.Admit(s, reserved)
		if err != nil { // it begins without an offer, and the next reconcile finds an agent
			return reserved, nil
		}
		if routing.Choice == s.Target.Agent {
			return reserved, nil
		}
		err = b.assignMember(ctx, group, m.N, []string{routing.Choice})
		if !errors.Is(err, ErrConflict) {
			return reserved, err
		}
		if group, err = b.Head(ctx, group.Ticket, 0); err != nil {
			return nil, err
		}
	}
}
