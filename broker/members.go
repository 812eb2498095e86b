package broker

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/protocol/lifecycle"
)

// checkMembers refuses a group of which one recipient cannot be offered anything. A recipient that a
// rule bars comes before one that is not there: what is promised to that is recorded all the same.
func (b *Broker) checkMembers(ctx context.Context, in Prepared, directory *lifecycle.Directory) error {
	group := protocol.State{Ticket: in.Ticket, Summary: in.summary}
	var first error
	for n := range in.summary.Aggregate.Size {
		member, err := in.Package.MemberAt(in.Ticket, n)
		if err != nil {
			return err
		}
		summary, body := lifecycle.MemberOf(group, member, "", nil), in.Body
		if !member.Shared && directory.HasContracts() {
			if body, _, err = b.encodePackage(ctx, member.Package); err != nil {
				return err
			}
		}
		suiting := func(d *lifecycle.Directory) *lifecycle.Directory {
			return withContract(d, body, &member.Package.Context)
		}
		if first != nil && !isBarred(summary, suiting(directory)) {
			continue
		}
		err = b.checkMember(ctx, summary, directory, suiting)
		var refused *protocol.Error
		if errors.As(err, &refused) {
			with := *refused
			with.Field = fmt.Sprintf("members[%d].%s", n, refused.Field)
			switch {
			case member.Shared && refused.Code == protocol.CodeContract: // of the context that all of them get
				with.Field = refused.Field
			case member.Shared:
				with.Field = fmt.Sprintf("target.agents[%d]", n)
			}
			if lifecycle.Bars(refused.Code) {
				return &with
			}
			first = cmp.Or(first, error(&with))
			continue
		}
		if err != nil {
			return err
		}
	}
	return first
}

// isBarred tells whether a rule bars a handoff, as far as a snapshot knows.
func isBarred(s protocol.Summary, directory *lifecycle.Directory) bool {
	var refused *protocol.Error
	_, err := lifecycle.Admit(s, directory)
	return errors.As(err, &refused) && lifecycle.Bars(refused.Code)
}

// checkMember judges by a snapshot that may lag behind an agent which has just
// been registered: before one is refused the leader is asked for it.
func (b *Broker) checkMember(ctx context.Context, member protocol.Summary, directory *lifecycle.Directory, suiting func(*lifecycle.Directory) *lifecycle.Directory) error {
	_, err := lifecycle.Admit(member, suiting(directory))
	if err == nil || member.Target.Agent == "" {
		return err
	}
	if directory, err = b.directoryFor(ctx, member); err != nil {
		return err
	}
	_, err = lifecycle.Admit(member, suiting(directory))
	return err
}
