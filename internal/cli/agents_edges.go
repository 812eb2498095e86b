package cli

import (
	"context"
	"strings"

	"github.com/agenthandoff/handoff/api"
	"github.com/agenthandoff/handoff/protocol"
)

// declareEdges declares the flags that say which agents hand off to which.
func (f *profileFlags) declareEdges() {
	type profile = protocol.Profile
	f.agents("hands-to", "an `AGENT` that it hands off to, or the beginning of their names, PREFIX* (repeatable; default all; '' for all again)", func(p *profile) *[]string { return &p.HandsTo })
	f.agents("accepts-from", "an `AGENT` whose handoffs it takes, or PREFIX* (repeatable; default all; '' for all again)", func(p *profile) *[]string { return &p.AcceptsFrom })
	f.agents("scope", "a `NAME` of a variable of its workflow that it may set, or PREFIX* (repeatable; default all; '' for all again)", func(p *profile) *[]string { return &p.Scopes })
	f.text("handoffs", "what it may hand off, over the fleet's: on, off, or simple (to one agent: sequential and delegation)", func(p *profile) *string { return (*string)(&p.Handoffs) })
	f.text("on-barred", "what becomes of a result whose hand-off is refused by a limit or a rule: complete (default: it stands, as a partial one) or fail", func(p *profile) *string { return (*string)(&p.OnBarred) })
	f.declareApproval()
	f.declareAutonomy()
}

// agents declares a flag that is a list of agents. Empty is none of them.
func (f *profileFlags) agents(name, usage string, field func(*protocol.Profile) *[]string) {
	values := f.fs.StringArray(name, nil, usage)
	f.onGiven(name, func(p *protocol.Profile) {
		*field(p) = nil
		if len(*values) > 1 || (*values)[0] != "" {
			*field(p) = *values
		}
	})
}

// warnOfAuthority says where an agent escalates to one that is not there (yet):
// until it is, escalations go to a person.
func (a *app) warnOfAuthority(ctx context.Context, s api.Directory, p protocol.Profile) error {
	if p.EscalatesTo == "" || p.EscalatesTo == protocol.Human {
		return nil
	}
	_, err := s.Profile(ctx, p.EscalatesTo)
	if hasCode(protocol.CodeUnknownAgent)(err) {
		a.notef("handoff: %s escalates to %s, which is no agent so far; until it is, to human\n", p.ID, p.EscalatesTo)
		return nil
	}
	return err
}

// warnOfEdges says where an agent hands off to one that is not there (yet), or takes handoffs from
// such a one: that is allowed, since one of two has to be registered first, and may be a slip.
func (a *app) warnOfEdges(ctx context.Context, s api.Directory, p protocol.Profile) error {
	for _, edge := range []struct {
		format string
		agents []string
	}{{"handoff: %s hands off to %s, which is no agent so far\n", p.HandsTo}, {"handoff: %s takes handoffs from %s, which is no agent so far\n", p.AcceptsFrom}} {
		for _, agent := range edge.agents {
			if strings.HasSuffix(agent, "*") || agent == protocol.Human {
				continue
			}
			if _, err := s.Profile(ctx, agent); hasCode(protocol.CodeUnknownAgent)(err) {
				a.notef(edge.format, p.ID, agent)
			} else if err != nil {
				return err
			}
		}
	}
	return nil
}
