package cli

import (
	"cmp"
	"context"
	"strings"
	"time"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/protocol"
)

// checkFor refuses what does not go with --for.
func (o *submitOptions) checkFor() error {
	if !o.changed("for") {
		return nil
	}
	for _, flag := range []string{"to", "capability", "group", "lines"} {
		if o.changed(flag) {
			return usagef("--for finds the target: --%s does not go with it", flag)
		}
	}
	if o.lines.of(o.file) {
		return usagef("--for does not go with a file of lines: each may be for another agent")
	}
	return nil
}

// buildFor makes the package, and finds its target where only words are given for that.
func (o *submitOptions) buildFor(ctx context.Context, a *app) (protocol.Package, error) {
	pkg, err := o.build(ctx, a, time.Now())
	if err != nil || !o.changed("for") {
		return pkg, err
	}
	if pkg.Type == protocol.Escalation {
		return pkg, usagef("--for finds the target: an escalation goes to the authority of its source")
	}
	pkg.Task.Description = cmp.Or(pkg.Task.Description, o.words)
	pkg.Target = protocol.Target{Agent: "found"} // what else is wrong is said first
	if _, err := a.prepare(ctx, pkg); err != nil {
		return pkg, err
	}
	pkg.Target = protocol.Target{}
	if err := o.orRun.keep(ctx, a, pkg); err != nil {
		return pkg, err
	}
	pkg.Target.Agent, err = a.findFor(ctx, o.words, pkg.Source)
	return pkg, err
}

// findFor finds the agent for a task, where one is certain and is not the one that asks.
func (a *app) findFor(ctx context.Context, task, source string) (agent string, err error) {
	err = a.onEngine(ctx, func(ctx context.Context, b *broker.Broker) error {
		matches, err := a.session(b, "").FindAgents(ctx, task, 3) // a refusal names as many
		if err != nil {
			return inField(err, "target", "")
		}
		best := matches.Found[0]
		if best.Agent == source {
			return protocol.Errorf(protocol.CodeNoMatch, "target", "the agent for it is %s itself; handle it yourself, or name another", source)
		}
		agent = best.Agent
		a.notef("handoff: found %s, by %s\n", agent, strings.Join(best.Words, ", "))
		return nil
	})
	return agent, err
}
