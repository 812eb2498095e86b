package cli

import (
	"time"

	"github.com/spf13/pflag"

	"github.com/agenthandoff/handoff/protocol"
)

// declareLimits declares the flags of what bounds a handoff and all that follows from it.
func (f *packageFlags) declareLimits(fs *pflag.FlagSet) {
	type pkg = protocol.Package
	own := func(p *pkg) *protocol.Limits { return orNew(&p.Limits) }
	f.text("complexity", "`CLASS` that sets limits which are not given: simple, medium, complex, or auto (what assists classifies it; default the rules of the fleet)", func(p *pkg) *string { return &p.Constraints.Complexity })
	f.limit("max-handoffs", "at most `N` handoffs below this one", func(p *pkg) **int64 { return &own(p).MaxHandoffs })
	f.limit("max-depth", "at most `N` levels of handoffs below this one", func(p *pkg) **int64 { return &own(p).MaxDepth })
	f.limit("max-agents", "at most `N` agents have a part in it, its own included", func(p *pkg) **int64 { return &own(p).MaxAgents })
	f.limit("max-tokens", "at most `N` tokens for it and all that follows from it", func(p *pkg) **int64 { return &own(p).MaxTokens })
	cost := new(int64)
	fs.Var((*costValue)(cost), "max-cost", "at most this cost for it and all that follows from it, in the fleet's currency: 1.50")
	f.onGiven("max-cost", func(p *pkg) { own(p).MaxCostMicros = cost })
	within := new(time.Duration)
	fieldVar(fs, within, "max-time", "at most this long until its end; it becomes the deadline")
	f.onGiven("max-time", func(p *pkg) { ms := within.Milliseconds(); own(p).MaxTimeMS = &ms })
	f.limit("share", "`PERCENT` of what is left that a handoff below gets, if it asks for nothing (default 50)", func(p *pkg) **int64 { return &own(p).SharePercent })
	f.text("on-exhausted", "`WHAT` follows when a budget has run out: return (default; the holder hands back what it has) or ask (a person, before the next attempt)", func(p *pkg) *string { return (*string)(&own(p).OnExhausted) })
}

// limit declares a flag that is a whole number which may be absent.
func (f *fieldFlags[T]) limit(name, usage string, field func(*T) **int64) {
	value := f.fs.Int64(name, 0, usage)
	f.onGiven(name, func(to *T) { *field(to) = value })
}
