package broker

import (
	"context"
	"time"

	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/protocol/lifecycle"
)

// Decide records a decision that the holder makes during the work; repeated, it changes nothing.
// Over the risk that the agent and the package allow, the error has the code autonomy_exceeded, and
// nothing is recorded: the holder escalates.
func (c *Claim) Decide(ctx context.Context, d protocol.WorkDecision) error {
	d.Normalize()
	if err := d.Validate(); err != nil {
		return err
	}
	return c.appendReportWith(ctx, c.b.freshAgent(c.Agent), func(s protocol.State, dir *lifecycle.Directory, now time.Time) (lifecycle.Step, error) {
		if err := c.checkAccepted(s); err != nil {
			return lifecycle.Step{}, err
		}
		made := protocol.Decided{ID: d.ID, Description: d.Description, Rationale: d.Rationale, Risk: d.Risk}
		return lifecycle.DecideAlone(s, dir, c.Holder.ID, made, now)
	})
}
