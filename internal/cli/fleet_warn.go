package cli

import (
	"context"
	"fmt"
	"strings"

	"github.com/agenthandoff/handoff/api"
	"github.com/agenthandoff/handoff/protocol"
)

// changedFleet prints the settings, and says on stderr where a rule names an agent that is not there
// (yet): that is allowed, and may be a slip.
func (a *app) changedFleet(ctx context.Context, s api.Directory, fleet api.Fleet, err error) error {
	if err := printed(a, fleet, err, a.settings); err != nil {
		return err
	}
	for i, rule := range fleet.Approvals {
		for _, named := range []struct{ field, agent string }{{"by", rule.By}, {"if.source", rule.If.Source}, {"if.target", rule.If.Target}} {
			if named.agent == "" || named.agent == protocol.Human || strings.HasSuffix(named.agent, "*") {
				continue
			}
			field := fmt.Sprintf("approvals[%d].%s", i, named.field)
			if _, err := s.Profile(ctx, named.agent); hasCode(protocol.CodeUnknownAgent)(err) {
				a.notef("handoff: %s: %s is no agent so far\n", field, named.agent)
			} else if err != nil {
				return err
			}
		}
	}
	return nil
}
