package broker

import (
	"context"

	"github.com/agenthandoff/handoff/protocol"
)

// respell gives a package that a result hands off the agents that its names mean (Directory.Spelled).
// A name that means no agent stays as it is where it could be the id of one, which comes later; field
// is that of the command. It reads nothing that the submission of the package does not read next.
func (c *Claim) respell(ctx context.Context, field string, pkg *protocol.Package) error {
	names := []*string{&pkg.Target.Agent}
	for i := range pkg.Target.Agents {
		names = append(names, &pkg.Target.Agents[i])
	}
	for i := range pkg.Members {
		names = append(names, &pkg.Members[i].Target.Agent)
	}
	for _, name := range names {
		isID := protocol.CheckAgent(field, *name)
		if *name == "" || *name == protocol.Human {
			continue
		}
		if isID == nil && len(names) == 1 {
			if d, _, err := c.b.recentAgent(ctx, *name); err != nil || len(d.Agents) > 0 {
				return err
			}
		}
		d, err := c.b.Directory(ctx)
		if err != nil {
			return err
		}
		if agent, ok := d.Spelled(*name); ok {
			*name = agent
		} else if isID != nil {
			return isID
		}
	}
	return nil
}
