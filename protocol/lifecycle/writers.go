package lifecycle

import (
	"fmt"
	"slices"

	"github.com/google/uuid"

	p "github.com/agenthandoff/handoff/protocol"
)

// Role is who makes an event, by the name that the event gives.
type Role string

const (
	RoleSupervisor Role = "supervisor" // what Decide says, also where another role appends it
	RoleHolder     Role = "holder"     // a worker, or an agent that polls: its holder id
	RoleAgent      Role = "agent"      // a source, an authority, or a person by name
	RoleHuman      Role = "human"
)

// RoleOf returns the role that a name stands for. Ids of holders are UUIDs.
func RoleOf(by string) Role {
	switch by {
	case By:
		return RoleSupervisor
	case p.Human:
		return RoleHuman
	}
	if _, err := uuid.Parse(by); err == nil {
		return RoleHolder
	}
	return RoleAgent
}

// follows are the events that only a supervisor makes by themselves.
var follows = []p.EventType{p.EventOffered, p.EventGated, p.EventClosed, p.EventLateResultUsed}

// CheckWriters says which event of an append is not among those that the role named by its
// By makes. An event that names a holder which did not have the handoff is another. It
// does not see which client appended: a client that keeps to the table is not found. What
// follows an event of a newer version is passed over.
func CheckWriters(before p.State, events []p.Event) error {
	holder := before.Holder
	for i, e := range events {
		kind, by := e.EventType(), p.CausedBy(e)
		rule, known := table[kind]
		roles := rule.by
		if !known {
			return nil
		}
		role := RoleOf(by)
		switch {
		case by == "":
			return fmt.Errorf("%s says nothing of who made it", kind)
		case role == RoleSupervisor && slices.Contains(roles, RoleAgent): // an agent may have that name
		case !slices.Contains(roles, role):
			return fmt.Errorf("%s is said to be by %s (%s), and is made by %s", kind, by, role, listed(roles))
		case i == 0 && role != RoleSupervisor && slices.Contains(follows, kind):
			return fmt.Errorf("%s is said to be by %s (%s), and follows from no event of theirs", kind, by, role)
		}
		if named := writerOf(e, holder); named != "" && named != by {
			return fmt.Errorf("%s is said to be by %s, and can be by %s alone", kind, by, named)
		}
		holder = holderAfter(e, holder)
	}
	return nil
}

// writerOf is the one name that an event can be by, where that is known. holder
// has the handoff before it.
func writerOf(e p.Event, holder string) string {
	switch e := e.(type) {
	case *p.Submitted:
		return e.Summary.Source
	case *p.Claimed:
		return e.Holder
	case *p.Accepted:
		return e.Holder
	case *p.Taken:
		return e.Holder
	case *p.ResultParked:
		return e.Holder
	case *p.Rejected:
		return e.Holder // empty where it was not claimed
	case *p.Conditioned:
		return e.Holder
	case *p.Started, *p.Progressed, *p.Decided, *p.Completed, *p.Failed, *p.Released, *p.HandedOff, *p.Suspended:
		return holder
	case *p.Escalated:
		if e.Fence != 0 {
			return holder
		}
	case *p.RolledBack:
		if e.Fence != 0 {
			return holder
		}
	}
	return ""
}

func holderAfter(e p.Event, holder string) string {
	switch e := e.(type) {
	case *p.Claimed:
		return e.Holder
	case *p.Accepted:
		return e.Holder
	case *p.Taken:
		return e.Holder
	}
	return holder
}

func listed(roles []Role) string {
	text := ""
	for i, role := range roles {
		switch {
		case i > 0 && i == len(roles)-1:
			text += " or "
		case i > 0:
			text += ", "
		}
		text += string(role)
	}
	return text
}
