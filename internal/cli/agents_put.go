package cli

import (
	"cmp"
	"context"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/agenthandoff/handoff/api"
	"github.com/agenthandoff/handoff/protocol"
)

// profileFlags are the flags that make a profile.
type profileFlags struct {
	fieldFlags[protocol.Profile]
	file                   string
	capabilities, policies []string
	contract               contractFlags
}

func newAgentsPut(a *app) *cobra.Command {
	var flags profileFlags
	cmd := &cobra.Command{
		Use:     "put AGENT",
		Aliases: []string{"add", "edit"},
		Short:   "Register an agent, or change what flags say of it",
		Long: `Put registers an agent, or changes one: a flag that is given replaces that part of
its profile, the rest stays. With -f the file is the whole profile.`,
		Example: `  handoff agents put reviewer --capability review --capability go:0.8 --description "reviews changes"
  handoff agents put junior --max-risk low --escalates-to reviewer --policy max_attempts=1
  handoff agents put reviewer -f reviewer.json`,
		Args: takes("an AGENT"),
		RunE: a.onSession(func(ctx context.Context, s *api.Session, args []string) error {
			profile, err := s.Profile(ctx, args[0])
			if err != nil && !hasCode(protocol.CodeUnknownAgent)(err) {
				return err
			}
			profile.ID = args[0]
			if profile, err = flags.apply(profile, a); err != nil {
				return err
			}
			if profile, err = s.PutAgent(ctx, profile); err != nil {
				return err
			}
			if err := a.line(profile, "%s  %s\n", profile.ID, saved(profile)); err != nil {
				return err
			}
			return cmp.Or(a.warnOfAuthority(ctx, s, profile), a.warnOfEdges(ctx, s, profile))
		}),
	}
	flags.declare(cmd.Flags())
	a.agentFlags(cmd, "escalates-to", "hands-to", "accepts-from")
	a.words(cmd, "max-risk", "low", "medium", "high")
	a.words(cmd, "approve", asWords(protocol.Approves)...)
	a.words(cmd, "handoffs", asWords(protocol.HandoffModes)...)
	a.words(cmd, "on-barred", asWords(protocol.BarredModes)...)
	a.words(cmd, "takes-transfer", asWords(protocol.TransferModes)...)
	return cmd
}

func (f *profileFlags) declare(fs *pflag.FlagSet) {
	f.fs = fs
	type profile = protocol.Profile
	fs.StringVarP(&f.file, "file", "f", "", "read the whole profile from a JSON file, or stdin with -")
	f.text("name", "name for people", func(p *profile) *string { return &p.Name })
	f.text("description", "what it does", func(p *profile) *string { return &p.Description })
	f.text("specialization", "what it does best; counts as a capability", func(p *profile) *string { return &p.Specialization })
	fs.StringArrayVar(&f.capabilities, "capability", nil, "what it can do, `NAME[:0.8]` (repeatable)")
	examples := fs.StringArray("example", nil, "an `EXAMPLE` of a task for it (repeatable)")
	f.onGiven("example", func(p *profile) { p.Examples = *examples })
	accepts := fs.Bool("accepts", true, "whether it takes handoffs at all")
	f.onGiven("accepts", func(p *profile) { p.AcceptsHandoffs = accepts })
	concurrency := fs.Int("max-concurrency", 0, "handoffs in hand at a time, of all its workers and claims together (0: no limit)")
	f.onGiven("max-concurrency", func(p *profile) { p.MaxConcurrency = *concurrency })
	f.millis("max-execution", "work timeout where the package has none", func(p *profile) *int64 { return &p.MaxExecutionMS })
	f.millis("poll-patience", "how long a poll keeps it present, 1s to 24h (default 5m)", func(p *profile) *int64 { return &p.PollPatienceMS })
	f.text("max-risk", "low, medium or high (default)", func(p *profile) *string { return (*string)(&p.MaxRisk) })
	f.text("escalates-to", "the agent above it (default human)", func(p *profile) *string { return &p.EscalatesTo })
	bids := fs.Bool("bids", false, "whether it is asked for bids, and makes them")
	f.onGiven("bids", func(p *profile) { p.Bids = *bids })
	f.declareEdges()
	f.declareContract()
	f.price("price-in", "what a million tokens that go into its model cost, as 3 or 0.25", func(p *protocol.Price) *int64 { return &p.InMicros })
	f.price("price-out", "what a million tokens that its model writes cost", func(p *protocol.Price) *int64 { return &p.OutMicros })
	fs.StringArrayVar(&f.policies, "policy", nil, "policy `NAME=VALUE`, for example max_attempts=1 (repeatable; see handoff schema profile)")
}

// price declares a flag of one of the two prices. Without any of them a profile has no price.
func (f *profileFlags) price(name, usage string, field func(*protocol.Price) *int64) {
	amount := new(int64)
	f.fs.Var((*costValue)(amount), name, usage)
	f.onGiven(name, func(p *protocol.Profile) {
		var price protocol.Price
		if p.Price != nil {
			price = *p.Price
		}
		*field(&price) = *amount
		if p.Price = &price; price == (protocol.Price{}) {
			p.Price = nil
		}
	})
}

// apply changes a profile as the flags say.
func (f *profileFlags) apply(p protocol.Profile, a *app) (protocol.Profile, error) {
	if f.file != "" {
		body, err := a.read(f.file)
		if err != nil {
			return p, err
		}
		whole, err := protocol.DecodeProfile(body)
		if err != nil {
			return p, err
		}
		if whole.ID != "" && whole.ID != p.ID {
			return p, protocol.Errorf(protocol.CodeConflict, "id", "the file is of %s, the command of %s", whole.ID, p.ID)
		}
		whole.ID = p.ID
		p = whole
	}
	f.setGiven(&p)
	if err := f.readContract(&p, a); err != nil {
		return p, err
	}
	if f.fs.Changed("capability") {
		capabilities, err := parseCapabilities("--capability", f.capabilities)
		if err != nil {
			return p, err
		}
		p.Capabilities = capabilities
	}
	return p, applyPolicies(&p.Policy, f.policies)
}

// saved says of a profile that was stored what its author may not have meant.
func saved(p protocol.Profile) string {
	switch {
	case !p.Accepts():
		return "accepts no handoffs"
	case p.Paused:
		return string(api.Paused)
	}
	return "registered"
}
