package cli

import (
	"cmp"
	"context"
	"strings"
	"time"

	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/protocol/lifecycle"
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
	if err == nil {
		err = o.classify(ctx, a, &pkg)
	}
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
	m, err := o.findFor(ctx, a, pkg.Source)
	if err != nil {
		return pkg, err
	}
	pkg.Target.Agent = m.Found[0].Agent
	if others := m.Others(pkg.Source); len(others) > 0 && pkg.Key == "" && !o.changed("ranked") {
		if pkg.Routing == nil {
			pkg.Routing = new(protocol.RoutingRules)
		}
		pkg.Routing.Ranked = others
	}
	return pkg, nil
}

// findFor finds the agent for a task, where one is certain or chosen, and is not the one that asks.
func (o *submitOptions) findFor(ctx context.Context, a *app, source string) (lifecycle.Matches, error) {
	m, err := a.find(ctx, o.words, 1+protocol.RankedMax, o.transfer.assist)
	if err != nil {
		return m, inField(err, "target", "")
	}
	switch best := m.Found[0]; {
	case best.Agent == source:
		return m, protocol.Errorf(protocol.CodeNoMatch, "target", "the agent for it is %s itself; handle it yourself, or name another", source)
	case m.ChosenBy != "":
		a.notef("handoff: found %s, chosen by a %s\n", best.Agent, m.ChosenBy)
	default:
		a.notef("handoff: found %s, by %s\n", best.Agent, strings.Join(best.Words, ", "))
	}
	return m, nil
}
