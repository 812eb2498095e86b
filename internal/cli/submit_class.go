package cli

import (
	"context"

	"github.com/agenthandoff/handoff/internal/assist"
	"github.com/agenthandoff/handoff/protocol"
)

// complexityAuto has the assistant classify a task; without one, or without its answer, the rules of
// the fleet do.
const complexityAuto = "auto"

// classify gives a package whose complexity is auto its class.
func (o *submitOptions) classify(ctx context.Context, a *app, pkg *protocol.Package) error {
	c := &pkg.Constraints
	if c.Complexity != complexityAuto {
		return nil
	}
	if pkg.Key != "" {
		return usagef("--complexity auto does not go with --key: another answer would make it another package")
	}
	c.Complexity = ""
	asker, err := a.assistant(o.transfer.assist)
	if err != nil || asker == nil {
		return err
	}
	class, err := assist.Classify(ctx, asker, pkg.Task.Description)
	if err != nil {
		a.notef("handoff: not classified by a %s (%v); the rules of the fleet do it\n", asker.By(), err)
		return nil
	}
	c.Complexity, c.ComplexityBy = class, protocol.Classifier(asker.By())
	a.notef("handoff: %s, classified by a %s\n", class, asker.By())
	return nil
}
