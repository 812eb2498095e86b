package cli

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"github.com/agenthandoff/handoff/api"
	"github.com/agenthandoff/handoff/protocol"
)

// profileFlags are the flags that make a profile.
type profileFlags struct {
	file                                              string
	name, description, specialization, risk, escalate string
	capabilities, examples, policies                  []string
	accepts                                           bool
	concurrency                                       int
	execution, patience                               time.Duration
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
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.onSession(cmd.Context(), func(ctx context.Context, s *api.Session) error {
				profile, err := s.Profile(ctx, args[0])
				if err != nil && !hasCode(protocol.CodeUnknownAgent)(err) {
					return err
				}
				profile.ID = args[0]
				if profile, err = flags.apply(profile, cmd.Flags().Changed, a); err != nil {
					return err
				}
				if profile, err = s.PutAgent(ctx, profile); err != nil {
					return err
				}
				if err := a.line(profile, "%s  %s\n", profile.ID, saved(profile)); err != nil {
					return err
				}
				return a.warnOfAuthority(ctx, s, profile)
			})
		},
	}
	fs := cmd.Flags()
	fs.StringVarP(&flags.file, "file", "f", "", "read the whole profile from a JSON file, or stdin with -")
	fs.StringVar(&flags.name, "name", "", "name for people")
	fs.StringVar(&flags.description, "description", "", "what it does")
	fs.StringVar(&flags.specialization, "specialization", "", "what it does best; counts as a capability")
	fs.StringArrayVar(&flags.capabilities, "capability", nil, "what it can do, `NAME[:0.8]` (repeatable)")
	fs.StringArrayVar(&flags.examples, "example", nil, "an `EXAMPLE` of a task for it (repeatable)")
	fs.BoolVar(&flags.accepts, "accepts", true, "whether it takes handoffs at all")
	fs.IntVar(&flags.concurrency, "max-concurrency", 0, "handoffs in hand at a time, of all its workers and claims together (0: no limit)")
	fieldVar(fs, &flags.execution, "max-execution", "work timeout where the package has none")
	fieldVar(fs, &flags.patience, "poll-patience", "how long a poll keeps it present, 1s to 24h (default 5m)")
	fs.StringVar(&flags.risk, "max-risk", "", "low, medium or high (default)")
	fs.StringVar(&flags.escalate, "escalates-to", "", "the agent above it (default human)")
	fs.StringArrayVar(&flags.policies, "policy", nil, "policy `NAME=VALUE`, for example max_attempts=1 (repeatable; see handoff schema profile)")
	a.agentFlags(cmd, "escalates-to")
	a.words(cmd, "max-risk", "low", "medium", "high")
	return cmd
}

// apply changes a profile as the flags say.
func (f *profileFlags) apply(p protocol.Profile, changed func(string) bool, a *app) (protocol.Profile, error) {
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
	set := func(flag string, field *string, value string) {
		if changed(flag) {
			*field = value
		}
	}
	set("name", &p.Name, f.name)
	set("description", &p.Description, f.description)
	set("specialization", &p.Specialization, f.specialization)
	set("max-risk", (*string)(&p.MaxRisk), f.risk)
	set("escalates-to", &p.EscalatesTo, f.escalate)
	if changed("example") {
		p.Examples = f.examples
	}
	if changed("accepts") {
		p.AcceptsHandoffs = &f.accepts
	}
	if changed("max-concurrency") {
		p.MaxConcurrency = f.concurrency
	}
	if changed("max-execution") {
		p.MaxExecutionMS = f.execution.Milliseconds()
	}
	if changed("poll-patience") {
		p.PollPatienceMS = f.patience.Milliseconds()
	}
	if changed("capability") {
		capabilities, err := parseCapabilities("--capability", f.capabilities)
		if err != nil {
			return p, err
		}
		p.Capabilities = capabilities
	}
	return p, applyPolicies(&p.Policy, f.policies)
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
