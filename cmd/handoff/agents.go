package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/protocol/lifecycle"
)

func newAgents(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "agents",
		Aliases: []string{"agent"},
		Short:   "See and change who there is to hand to",
		Long: `Agents are roles with a name and capabilities; workers serve them. "handoff work"
registers an agent that is not there yet; these commands say more about it.`,
		Args: cobra.ArbitraryArgs,
		RunE: refuseUnknown,
	}
	cmd.AddCommand(newAgentsList(a), newAgentsShow(a), newAgentsPut(a), newAgentsRemove(a),
		newAgentsPause(a, "pause", true), newAgentsPause(a, "resume", false))
	for _, sub := range cmd.Commands() {
		if sub.Name() != "list" {
			sub.ValidArgsFunction = a.agentWords
		}
	}
	return cmd
}

// agentView is an agent with what is known of its workers.
type agentView struct {
	protocol.Profile
	Workers int `json:"workers"` // live ones that serve it
	Slots   int `json:"slots"`
	Busy    int `json:"busy"`
	Queued  int `json:"queued"` // offers in its queue, those being worked on included
}

func viewAgent(ctx context.Context, b *broker.Broker, d *lifecycle.Directory, p protocol.Profile) (agentView, error) {
	v := agentView{Profile: p}
	v.Workers, v.Slots, v.Busy = d.Load(p.ID)
	var err error
	v.Queued, err = b.QueueDepth(ctx, p.ID)
	return v, err
}

// viewAgents views all agents, and the person once something waits for one.
func viewAgents(ctx context.Context, b *broker.Broker, d *lifecycle.Directory) ([]agentView, error) {
	var views []agentView
	if _, registered := d.Agents[protocol.Human]; !registered {
		person, err := viewAgent(ctx, b, d, aPerson)
		if err != nil {
			return nil, err
		}
		if person.Queued > 0 {
			views = append(views, person)
		}
	}
	for _, id := range slices.Sorted(maps.Keys(d.Agents)) {
		v, err := viewAgent(ctx, b, d, d.Agents[id])
		if err != nil {
			return nil, err
		}
		views = append(views, v)
	}
	return views, nil
}

// standing says in a word whether the agent takes work.
func (v agentView) standing() string {
	switch {
	case !v.Accepts():
		return "accepts no handoffs"
	case v.Paused:
		return "paused"
	case v.Workers == 0 && v.ID != protocol.Human:
		return "no worker"
	}
	return "ready"
}

func newAgentsList(a *app) *cobra.Command {
	return &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List all agents, their workers and their queues",
		Example: `  handoff agents ls
  handoff agents ls -o jsonl | jq -r 'select(.workers == 0) | .id'`,
		Args: takes(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.onEngine(cmd.Context(), func(ctx context.Context, b *broker.Broker) error {
				directory, err := b.Directory(ctx)
				if err != nil {
					return err
				}
				views, err := viewAgents(ctx, b, directory)
				if err != nil {
					return err
				}
				if !a.text() {
					return list(a, views)
				}
				return a.agents(views)
			})
		},
	}
}

func (a *app) agents(views []agentView) error {
	if len(views) == 0 {
		a.notef("no agents yet; start one: handoff work --agent NAME -- CMD\n")
		return nil
	}
	rows := [][]string{{"AGENT", "STANDING", "WORKERS", "BUSY", "QUEUED", "CAPABILITIES", "DESCRIPTION"}}
	for _, v := range views {
		rows = append(rows, []string{v.ID, v.standing(), fmt.Sprint(v.Workers), fmt.Sprintf("%d/%d", v.Busy, v.Slots), fmt.Sprint(v.Queued),
			capabilityText(v.Capabilities, v.Specialization), v.Description})
	}
	return a.table(rows)
}

func capabilityText(capabilities []protocol.Capability, specialization string) string {
	var words []string
	for _, c := range capabilities {
		word := c.ID
		if c.Proficiency != 1 {
			word = fmt.Sprintf("%s:%g", c.ID, c.Proficiency)
		}
		words = append(words, word)
	}
	if specialization != "" {
		words = append(words, specialization)
	}
	return strings.Join(words, " ")
}

func newAgentsShow(a *app) *cobra.Command {
	return &cobra.Command{
		Use:     "show AGENT",
		Aliases: []string{"info"},
		Short:   "Show one agent, its workers and its queue",
		Example: `  handoff agents show reviewer
  handoff agents show reviewer -o json > reviewer.json`,
		Args: takes("an AGENT"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.onEngine(cmd.Context(), func(ctx context.Context, b *broker.Broker) error {
				profile, err := profileOf(ctx, b, args[0])
				if err != nil {
					return err
				}
				directory, err := b.Directory(ctx)
				if err != nil {
					return err
				}
				v, err := viewAgent(ctx, b, directory, profile)
				if err != nil {
					return err
				}
				return a.agent(v, directory)
			})
		},
	}
}

func (a *app) agent(v agentView, directory *lifecycle.Directory) error {
	if !a.text() {
		return a.value(v)
	}
	concurrency, execution := "", ""
	if v.MaxConcurrency > 0 {
		concurrency = fmt.Sprint(v.MaxConcurrency)
	}
	if v.MaxExecutionMS > 0 {
		execution = millis(v.MaxExecutionMS)
	}
	a.printf("%s  %s\n", v.ID, v.standing())
	if err := a.fields("name", v.Name, "description", v.Description, "capabilities", capabilityText(v.Capabilities, v.Specialization),
		"examples", strings.Join(v.Examples, "; "), "max concurrency", concurrency, "max execution", execution, "max risk", string(v.MaxRisk),
		"escalates to", cmp.Or(v.EscalatesTo, protocol.Human), "queued", fmt.Sprint(v.Queued), "updated", when(v.UpdatedAt)); err != nil {
		return err
	}
	for _, id := range slices.Sorted(maps.Keys(directory.Holders)) {
		if h := directory.Holders[id]; h.Agent == v.ID {
			a.printf("worker  %s  %d of %d busy  %s%s\n", h.ID, h.Busy, h.Slots, h.Host, holderNote(h))
		}
	}
	return nil
}

func holderNote(h protocol.Holder) string {
	note := ""
	if h.PID > 0 {
		note += fmt.Sprintf(" pid %d", h.PID)
	}
	if h.Polling {
		note += " (polling)"
	}
	if h.Draining {
		note += " (draining)"
	}
	return note
}

// aPerson is there without having been registered.
var aPerson = protocol.Profile{ID: protocol.Human, Name: "a person"}

// profileOf reads an agent that somebody named.
func profileOf(ctx context.Context, b *broker.Broker, agent string) (protocol.Profile, error) {
	if err := protocol.CheckID("agent", agent); err != nil {
		return protocol.Profile{}, err
	}
	profile, err := b.Profile(ctx, agent)
	if errors.Is(err, broker.ErrNotFound) && agent == protocol.Human {
		return aPerson, nil
	}
	if errors.Is(err, broker.ErrNotFound) {
		return profile, protocol.Errorf(protocol.CodeUnknownAgent, "agent", "no agent is called %s", agent)
	}
	return profile, err
}

// profileFlags are the flags that make a profile.
type profileFlags struct {
	file                                              string
	name, description, specialization, risk, escalate string
	capabilities, examples, policies                  []string
	accepts                                           bool
	concurrency                                       int
	execution                                         time.Duration
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
			return a.onEngine(cmd.Context(), func(ctx context.Context, b *broker.Broker) error {
				profile, err := profileOf(ctx, b, args[0])
				if err != nil && !hasCode(protocol.CodeUnknownAgent)(err) {
					return err
				}
				profile.ID = args[0]
				if profile, err = flags.apply(profile, cmd.Flags().Changed, a); err != nil {
					return err
				}
				return a.put(ctx, b, profile)
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
	fs.IntVar(&flags.concurrency, "max-concurrency", 0, "handoffs at a time for each worker (0: the worker's own)")
	fieldVar(fs, &flags.execution, "max-execution", "work timeout where the package has none")
	fs.StringVar(&flags.risk, "max-risk", "", "low, medium or high (default)")
	fs.StringVar(&flags.escalate, "escalates-to", "", "the agent above it (default human)")
	fs.StringArrayVar(&flags.policies, "policy", nil, "policy `NAME=VALUE`, for example max_attempts=1 (repeatable; see handoff schema profile)")
	a.agentFlags(cmd, "escalates-to")
	words(cmd, "max-risk", "low", "medium", "high")
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
	if changed("capability") {
		capabilities, err := parseCapabilities("--capability", f.capabilities)
		if err != nil {
			return p, err
		}
		p.Capabilities = capabilities
	}
	return p, applyPolicies(&p.Policy, f.policies)
}

// put stores a profile that somebody has changed.
func (a *app) put(ctx context.Context, b *broker.Broker, p protocol.Profile) error {
	p.UpdatedAt = time.Now().UTC().Truncate(time.Millisecond)
	p.RegisteredByWork = false // a person has spoken
	if err := p.Validate(); err != nil {
		return err
	}
	if err := b.PutProfile(ctx, p); err != nil {
		return err
	}
	// Its queue has to be there before the first offer can be pulled.
	if err := b.EnsureQueue(ctx, p.ID); err != nil {
		return err
	}
	if !a.text() {
		return a.value(p)
	}
	a.printf("%s  %s\n", p.ID, agentView{Profile: p, Workers: 1}.standing())
	return nil
}

func newAgentsRemove(a *app) *cobra.Command {
	return &cobra.Command{
		Use:     "remove AGENT",
		Aliases: []string{"rm", "delete"},
		Short:   "Forget an agent",
		Long: `Remove forgets an agent: nothing can be handed to it any more. What was handed to
it already stays in its queue, and a worker that still serves it goes on. To keep
an agent from taking more for a while, pause it instead.`,
		Example: `  handoff agents rm reviewer`,
		Args:    takes("an AGENT"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.onEngine(cmd.Context(), func(ctx context.Context, b *broker.Broker) error {
				profile, err := profileOf(ctx, b, args[0])
				if err != nil {
					return err
				}
				if err := b.RemoveProfile(ctx, profile.ID); err != nil {
					return err
				}
				if !a.text() {
					return a.value(profile)
				}
				a.printf("%s  removed\n", profile.ID)
				return nil
			})
		},
	}
}

func newAgentsPause(a *app, verb string, pause bool) *cobra.Command {
	short, long := "Let an agent take what waits for it again", `Resume ends a pause.`
	if pause {
		short = "Keep an agent from taking more; its offers wait"
		long = `Pause keeps an agent from taking handoffs. They can still be submitted to it and
wait in its queue; what it works on goes on. Nothing escalates because of a pause.`
	}
	return &cobra.Command{
		Use: verb + " AGENT", Short: short, Long: long,
		Example: "  handoff agents " + verb + " reviewer",
		Args:    takes("an AGENT"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.onEngine(cmd.Context(), func(ctx context.Context, b *broker.Broker) error {
				profile, err := profileOf(ctx, b, args[0])
				if err != nil {
					return err
				}
				profile.Paused = pause
				return a.put(ctx, b, profile)
			})
		},
	}
}
