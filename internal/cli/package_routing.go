package cli

import "github.com/agenthandoff/handoff/protocol"

// declareRouting declares the flags of a package's way to its agent.
func (f *packageFlags) declareRouting() {
	type pkg = protocol.Package
	rules := func(p *pkg) *protocol.RoutingRules { return orNew(&p.Routing) }
	f.text("on-open", "`WHAT` becomes of it where the breaker of its agent is open: refuse (default) or wait", func(p *pkg) *string {
		return (*string)(&rules(p).OnOpen)
	})
	waits := f.fs.Bool("wait-for-agent", false, "submit it also where no agent has the name or the capability yet; it waits for one, up to its deadline")
	f.onGiven("wait-for-agent", func(p *pkg) {
		if rules(p).OnUnknown = protocol.OnOpenRefuse; *waits {
			p.Routing.OnUnknown = protocol.OnOpenWait
		}
	})
	f.text("route-by", "`RULE` by which an agent with the capability is chosen: fit (default), load or success (default of all: handoff fleet set routing.by=...)", func(p *pkg) *string {
		return (*string)(&rules(p).By)
	})
	f.texts("ranked", "`AGENT` that gets it where the one of --to refuses it; the best first, at most 8 (repeatable; --for finds them)", func(p *pkg) *[]string {
		return &rules(p).Ranked
	})
}
