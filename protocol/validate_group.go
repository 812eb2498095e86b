package protocol

import (
	"fmt"

	"github.com/agenthandoff/handoff/protocol/internal/wirejson"
)

// checkMembers checks the recipients of a group of different packages. The same
// agent may come twice: it gets two handoffs then.
func checkMembers(p *Package) *Error {
	switch n := len(p.Members); {
	case p.Members == nil:
		return nil
	case n == 0:
		return Errorf(CodeMissing, "members", "is there but empty; leave it out or fill it in")
	case n > ChildrenMax:
		return Errorf(CodeTooLarge, "members", "lists %d members, at most %d are allowed", n, ChildrenMax)
	}
	for i := range p.Members {
		if err := checkMember(fmt.Sprintf("members[%d]", i), &p.Members[i], p.Source); err != nil {
			return err
		}
	}
	return nil
}

func checkMember(field string, m *Member, source string) *Error {
	switch given := m.Target.given(); {
	case len(m.Target.Agents) > 0:
		return Errorf(CodeConflict, field+".target.agents", "is for a whole package; a member is one agent or one capability")
	case given == 0:
		return Errorf(CodeMissing, field+".target", "is missing: name an agent or a capability")
	case given > 1:
		return Errorf(CodeConflict, field+".target", "names both an agent and a capability; choose one")
	}
	if err := checkTarget(field+".target", m.Target, source); err != nil {
		return err
	}
	if m.Reason != "" {
		if err := required(field+".reason", m.Reason); err != nil {
			return err
		}
	}
	if err := oneOf(field+".priority", m.Priority, Priorities); err != nil {
		return err
	}
	if m.Task != nil {
		if err := checkTask(field+".task", m.Task); err != nil {
			return err
		}
	}
	return checkArtifacts(field+".artifacts", m.Artifacts)
}

// checkReturn checks how the result goes back.
func checkReturn(p *Package) *Error {
	if err := checkGroupReturn(p); err != nil {
		return err
	}
	r := p.Return
	if r == nil {
		return nil
	}
	if err := between("return.timeout_ms", r.TimeoutMS, 0, ReturnTimeoutMaxMS); err != nil {
		return err
	}
	if own := p.Policy.ReturnTimeoutMS; own != nil && r.TimeoutMS > 0 && *own != r.TimeoutMS {
		return Errorf(CodeConflict, "return.timeout_ms", "is %d and policy.return_timeout_ms is %d; they mean the same, give one", r.TimeoutMS, *own)
	}
	if err := oneOf("return.on_timeout", r.OnTimeout, OnTimeouts); err != nil {
		return err
	}
	if err := oneOf("return.wait", r.Wait, Waits); err != nil {
		return err
	}
	if err := oneOf("return.of", r.Of, ReturnScopes); err != nil {
		return err
	}
	if err := oneOf("return.aggregation", r.Aggregation, Aggregations); err != nil {
		return err
	}
	return checkCounted(p, r)
}

// checkCounted checks what a return says of a group's members.
func checkCounted(p *Package, r *ReturnProtocol) *Error {
	if p.GroupSize() == 0 {
		for _, f := range []struct {
			field string
			given bool
		}{{"return.aggregation", r.Aggregation != ""}, {"return.from", len(r.From) > 0}, {"return.cancel_rest", r.CancelRest}} {
			if f.given {
				return Errorf(CodeConflict, f.field, "is for a group: target.agents or members")
			}
		}
		return nil
	}
	if n := len(r.From); n > ChildrenMax {
		return Errorf(CodeTooLarge, "return.from", "names %d agents, at most %d are allowed", n, ChildrenMax)
	}
	left := map[string]bool{} // recipients that were not named yet
	for _, agent := range p.Recipients() {
		left[agent] = true
	}
	for i, agent := range r.From {
		field := fmt.Sprintf("return.from[%d]", i)
		if err := checkID(field, agent); err != nil {
			return err
		}
		fresh, recipient := left[agent]
		switch {
		case !recipient:
			return Errorf(CodeConflict, field, "names %s, which is no recipient of this group", agent)
		case !fresh:
			return Errorf(CodeConflict, field, "names %s a second time", agent)
		}
		left[agent] = false
	}
	return nil
}

// checkGroupReturn refuses what cannot follow the return timeout of a group: it
// has no work that another attempt or an authority could take up.
func checkGroupReturn(p *Package) *Error {
	if p.GroupSize() == 0 {
		return nil
	}
	asked := func(field string, on OnTimeout) *Error {
		if on != OnTimeoutRetry && on != OnTimeoutEscalate {
			return nil
		}
		return Errorf(CodeConflict, field, "is %s, and a group has no work of its own to %s; it fails at its return timeout, and its members have clocks of their own", on, on)
	}
	if on := p.Policy.OnReturnTimeout; on != nil {
		if err := asked("policy.on_return_timeout", *on); err != nil {
			return err
		}
	}
	if p.Return != nil {
		return asked("return.on_timeout", p.Return.OnTimeout)
	}
	return nil
}

// checkOrigin checks what Handoff itself has written, so that a mistake of ours
// is found before it is stored.
func checkOrigin(p *Package) *Error {
	if p.Origin != "" {
		if _, err := ParseTicket(p.Origin); err != nil {
			return Errorf(CodeInvalid, "origin", "%q is not a ticket", wirejson.Clip(p.Origin))
		}
	}
	if r := p.Returned; r != nil {
		if _, err := ParseTicket(r.HandoffID); err != nil {
			return Errorf(CodeInvalid, "returned.handoff_id", "%q is not a ticket", wirejson.Clip(r.HandoffID))
		}
		if err := chosen("returned.status", r.Status, ReturnStatuses); err != nil {
			return err
		}
		return chosen("returned.outcome", r.Outcome, Outcomes)
	}
	return nil
}
