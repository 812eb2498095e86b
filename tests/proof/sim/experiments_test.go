//go:build proof

package sim

import (
	"bytes"
	"fmt"
	"hash/fnv"

	"github.com/agenthandoff/handoff/internal/lifecycle"
	"github.com/agenthandoff/handoff/protocol"
)

// The planted bugs of experiments.
const (
	variantDrawn   bug = "a variant drawn anew by each process"
	variantIgnored bug = "a variant that changes nothing"
	variantRefuses bug = "an experiment that refuses what its variant cannot take"
)

// The experiment gives one handoff of four fewer attempts, and chooses its agent by load.
const (
	experimentName   = "sim"
	variantAttempts  = 3
	oldWeight        = 3
	newWeight        = 1
	oldName, newName = experimentName + "/old", experimentName + "/new"
)

// experiments are those of the fleet, in every sixth simulation.
func (l *simulation) experiments() []protocol.Experiment {
	if l.seed%6 != 1 {
		return nil
	}
	varied := protocol.Variant{Name: "new", Weight: newWeight, Routing: &protocol.FleetRouting{By: protocol.RouteByLoad}, Policy: protocol.PolicyOverrides{MaxAttempts: new(variantAttempts)}}
	if l.hasBadVariant() {
		varied.Target = protocol.Target{Agent: nowhere}
	}
	return []protocol.Experiment{{Name: experimentName, Variants: []protocol.Variant{{Name: "old", Weight: oldWeight}, varied}}}
}

// hasBadVariant reports whether the variant sends handoffs to an agent that is not registered: each
// stays with the target of its package.
func (l *simulation) hasBadVariant() bool { return l.seed%12 == 7 }

// checkVariant: a submission has the variant that its ticket says, what follows from another handoff
// has none, and a variant is never another one later.
func (j *judge) checkVariant(before, after protocol.State, events []protocol.Event) {
	if before.Ticket != "" {
		if after.Variant != before.Variant {
			j.faultLocked("%s is of the variant %q, and was of %q", after.Ticket, after.Variant, before.Variant)
		}
		return
	}
	s, want := after.Summary, ""
	follows := s.Parent != "" || s.Group != "" || s.Aggregate != nil || s.ReturnOf != "" || s.CallOf != "" || s.Origin != "" || s.Type == protocol.Escalation
	if len(j.l.experiments()) > 0 && !follows {
		if want = oldName; shareOf(after.Ticket) >= oldWeight {
			if want = newName; j.l.hasBadVariant() {
				want += lifecycle.FellBack
			}
		}
	}
	if s.Variant != want {
		j.faultLocked("%s is of the variant %q, and its ticket says %q", after.Ticket, s.Variant, want)
	}
	if want == newName && (s.Overrides.MaxAttempts == nil || *s.Overrides.MaxAttempts != variantAttempts || s.RouteBy == "") {
		j.faultLocked("%s is of the variant %s, and goes on by %+v and %q", after.Ticket, want, s.Overrides, s.RouteBy)
	}
}

// refusesVariant refuses the first append of a handoff that its experiment gives back.
func (l *simulation) refusesVariant(after uint64, body []byte) error {
	if l.bug != variantRefuses || after != 0 || !bytes.Contains(body, fmt.Appendf(nil, `"variant":%q`, newName+lifecycle.FellBack)) {
		return nil
	}
	return protocol.Errorf(protocol.CodeUnknownAgent, "target.agent", "no agent is called %s", nowhere)
}

// shareOf returns the place of a ticket among the weights, computed as in docs/how-to/experiments.md.
func shareOf(ticket string) uint64 {
	hash := fnv.New64a()
	_, _ = fmt.Fprintf(hash, "%s/%s", experimentName, ticket)
	n := hash.Sum64()
	for _, factor := range []uint64{0xff51afd7ed558ccd, 0xc4ceb9fe1a85ec53} {
		n = (n ^ n>>33) * factor
	}
	return (n ^ n>>33) % (oldWeight + newWeight)
}

// spoilVariant is what the planted bugs make of a first append.
func (l *simulation) spoilVariant(ticket string, after uint64, body []byte) []byte {
	if after != 0 {
		return body
	}
	named := func(name string) []byte { return fmt.Appendf(nil, `"variant":%q`, name) }
	switch {
	case l.bug == variantDrawn && dice(l.seed, "variant", ticket)%2 == 0:
		return bytes.ReplaceAll(body, named(newName), named(oldName))
	case l.bug == variantIgnored && bytes.Contains(body, named(newName)):
		return bytes.ReplaceAll(body, fmt.Appendf(nil, `"max_attempts":%d`, variantAttempts), []byte(`"max_attempts":5`))
	}
	return body
}
