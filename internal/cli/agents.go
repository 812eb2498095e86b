package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/agenthandoff/handoff/api"
	"github.com/agenthandoff/handoff/internal/assist"
	"github.com/agenthandoff/handoff/internal/brief"
	"github.com/agenthandoff/handoff/internal/explain"
	"github.com/agenthandoff/handoff/internal/lifecycle"
	"github.com/agenthandoff/handoff/protocol"
)

func newAgents(a *app) *cobra.Command {
	cmd := group(&cobra.Command{
		Use:     "agents",
		Aliases: []string{"agent"},
		Short:   "See and change who there is to hand to",
		Long: `Agents are roles with a name and capabilities; workers serve them. "handoff work"
registers an agent that does not exist yet; these commands change its profile.`,
	}, newAgentsList(a), newAgentsShow(a), newAgentsFind(a), newAgentsRecommend(a), newAgentsPrompt(a), newAgentsPut(a), newAgentsRemove(a), newAgentsBreaker(a),
		&cobra.Command{
			Use: "pause AGENT", Short: "Keep an agent from taking more; its offers wait",
			Long: `Pause keeps an agent from taking handoffs. They can still be submitted to it and
wait in its queue; its work in progress goes on. Nothing escalates because of a pause.`,
			Example: "  handoff agents pause reviewer",
			Args:    takes("an AGENT"), RunE: onNamed(a, (*api.Session).PauseAgent, a.nowIs("paused")),
		}, &cobra.Command{
			Use: "resume AGENT", Short: "End the pause of an agent", Long: `Resume ends a pause.`,
			Example: "  handoff agents resume reviewer",
			Args:    takes("an AGENT"), RunE: onNamed(a, (*api.Session).ResumeAgent, a.nowIs("resumed")),
		})
	for _, sub := range cmd.Commands() {
		if !slices.Contains([]string{"list", "find", "recommend", "prompt"}, sub.Name()) {
			sub.ValidArgsFunction = a.agentWords
		}
	}
	return cmd
}

// busyWords returns the agent's load: the busy slots of its workers or, with max_concurrency, the
// handoffs that its workers hold of that limit.
func busyWords(v api.AgentStatus) string {
	if v.MaxConcurrency > 0 {
		return fmt.Sprintf("%d/%d", v.InHand, v.MaxConcurrency)
	}
	return fmt.Sprintf("%d/%d", v.Busy, v.Slots)
}

// standing returns the agent's availability, for people.
func standing(v api.AgentStatus, now time.Time) string {
	switch {
	case !v.Accepts():
		return "accepts no handoffs"
	case v.Breaker != nil:
		words := fmt.Sprintf("%s, breaker %s", v.Availability, v.Breaker.State)
		if !v.Breaker.Until.IsZero() {
			words += " until " + explain.Instant(v.Breaker.Until)
		}
		return words
	case v.Availability == api.Absent && !v.AbsentSince.IsZero():
		return fmt.Sprintf("absent since %s", explain.Instant(v.AbsentSince))
	case v.Availability == api.Polling:
		return explain.Polls(v.PolledAt, now)
	}
	return string(v.Availability)
}

func newAgentsList(a *app) *cobra.Command {
	return &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List all agents, their workers and their queues",
		Long: `List shows all agents, and whether a worker serves them:

  present    a worker serves it, with free slots
  busy       all slots are taken, or it works on as many handoffs as max_concurrency
             allows: new offers wait in its queue, and are not rerouted
  paused     on purpose (handoff agents pause): offers wait, and are not rerouted
  draining   its last workers finish their handoffs, and take no more
  polls      no worker serves it, but the agent holds a claim, or has polled
             within its patience (poll_patience_ms in its profile, 5 min)
  absent     none of these: its offers are rerouted after the acknowledge
             timeout (policy ack_timeout_ms), critical ones to a person

An open or half-open breaker is shown with it (handoff agents breaker).

That is computed from the presence of workers and claims at this moment, and stored nowhere.`,
		Example: `  handoff agents ls
  handoff agents ls -o jsonl | jq -r 'select(.availability == "absent") | .id'`,
		Args: takes(),
		RunE: onList(a, (*api.Session).Agents, a.agents),
	}
}

func (a *app) agents(views []api.AgentStatus) error {
	if len(views) == 0 {
		a.notef("no agents yet; start one: handoff work --agent NAME -- CMD\n")
		return nil
	}
	return a.table(rowsOf("AGENT|AVAILABILITY|WORKERS|BUSY|QUEUED|CAPABILITIES|DESCRIPTION", views, func(v api.AgentStatus) []any {
		return []any{v.ID, standing(v, a.now()), v.Workers, busyWords(v), v.Queued, capabilityText(v.Capabilities, v.Specialization), v.Description}
	}))
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

// profileFlags are the flags that make a profile: those of protocol.Profile, and others.
type profileFlags struct {
	*binding
	given protocol.Profile

	File          string   `flag:"file,f" doc:"read the whole profile from a JSON file, or stdin with -"`
	Capabilities  []string `flag:"capability" doc:"a capability of it, {NAME[:0.8]} (repeatable)"`
	ContextSchema string   `flag:"context-schema" doc:"the JSON Schema of the context that it expects is in this {FILE}, or on stdin with - ('' removes it)"`
	ResultSchema  string   `flag:"result-schema" doc:"the JSON Schema of its results, if a package has none, is in this {FILE}, or on stdin with - ('' removes it)"`
	LimitBy       []string `flag:"limit-by,,each" doc:"a limit under a {KEY=8,60/1m}: 8 at a time, and 60 begins in each minute, such as model:$.variables.model=8 (repeatable; '' removes all)"`
	Policies      []string `flag:"policy" doc:"policy {NAME=VALUE}, for example max_attempts=1 (repeatable; see handoff schema profile)"`
}

func newAgentsPut(a *app) *cobra.Command {
	var flags profileFlags
	cmd := &cobra.Command{
		Use:     "put AGENT",
		Aliases: []string{"add", "edit"},
		Short:   "Register an agent, or change its profile by flags",
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
			profile, err = s.PutAgent(ctx, profile)
			if err := printed(a, profile, err, a.nowIs(saved(profile))); err != nil {
				return err
			}
			return a.warnOfAgents(ctx, s, profile)
		}),
	}
	accepts := true
	flags.given.AcceptsHandoffs = &accepts
	bind(cmd.Flags(), &flags)
	flags.binding = bind(cmd.Flags(), &flags.given)
	return cmd
}

// apply changes a profile by the flags.
func (f *profileFlags) apply(p protocol.Profile, a *app) (protocol.Profile, error) {
	if f.File != "" {
		whole, err := readAs(a, f.File, protocol.DecodeProfile)
		if err != nil {
			return p, err
		}
		if whole.ID != "" && whole.ID != p.ID {
			return p, protocol.Errorf(protocol.CodeConflict, "id", "the file is of %s, the command of %s", whole.ID, p.ID)
		}
		whole.ID = p.ID
		p = whole
	}
	f.over(&p)
	if p.Price != nil && *p.Price == (protocol.Price{}) {
		p.Price = nil
	}
	if err := f.readContract(&p, a); err != nil {
		return p, err
	}
	if f.fs.Changed("capability") {
		capabilities, err := parseCapabilities("--capability", f.Capabilities)
		if err != nil {
			return p, err
		}
		p.Capabilities = capabilities
	}
	if f.fs.Changed("limit-by") {
		limits, err := parseKeyLimits("limit_by", f.LimitBy)
		if err != nil {
			return p, err
		}
		p.LimitsBy = limits
	}
	return p, applyPolicies(&p.Policy, f.Policies)
}

// saved returns the words for a stored profile: "registered", or a state that its author may not
// have meant.
func saved(p protocol.Profile) string {
	switch {
	case !p.Accepts():
		return "accepts no handoffs"
	case p.Paused:
		return string(api.Paused)
	}
	return "registered"
}

func newAgentsShow(a *app) *cobra.Command {
	return &cobra.Command{
		Use:     "show AGENT",
		Aliases: []string{"info"},
		Short:   "Show one agent, its workers and its queue",
		Example: `  handoff agents show reviewer
  handoff agents show reviewer -o json > reviewer.json`,
		Args: takes("an AGENT"),
		RunE: a.onSession(func(ctx context.Context, s *api.Session, args []string) error {
			v, err := s.Agent(ctx, args[0])
			if err != nil {
				return err
			}
			holders, err := s.Holders(ctx, args[0])
			if err != nil {
				return err
			}
			people, err := s.PeopleFor(ctx, args[0])
			return printed(a, agentView{v, people}, err, func(agentView) error { return a.agent(v, holders, people) })
		}),
	}
}

// agentView is an agent for programs.
type agentView struct {
	api.AgentStatus
	People api.People `json:"people"` // the handoffs that wait for a person and concern the agent
}

func (a *app) agent(v api.AgentStatus, holders []protocol.Holder, people api.People) error {
	concurrency, execution, patience := "", "", ""
	if v.PollPatienceMS > 0 {
		patience = explain.Millis(v.PollPatienceMS)
	}
	if v.MaxConcurrency > 0 {
		concurrency = fmt.Sprintf("%d, %d in work", v.MaxConcurrency, v.InHand)
	}
	if v.MaxExecutionMS > 0 {
		execution = explain.Millis(v.MaxExecutionMS)
	}
	expects, provides, conversation := contractWords(&v.Profile)
	a.printf("%s  %s\n", v.ID, a.coloured(standingColour(standing(v, a.now())), standing(v, a.now())))
	if words := explain.ForPerson(people.Handoffs, people.Since, a.now()); words != "" {
		a.printf("%s\n", a.coloured(amber, words+": handoff inbox"))
	}
	for _, gate := range v.Gates {
		a.printf("%s\n", gate)
	}
	a.fields("name", v.Name, "description", v.Description, "capabilities", capabilityText(v.Capabilities, v.Specialization),
		"examples", strings.Join(v.Examples, "; "), "max concurrency", concurrency, "max execution", execution, "max risk", string(v.MaxRisk), "limits by key", keyLimitWords(v.LimitsBy),
		"hands to", strings.Join(v.HandsTo, ", "), "accepts from", strings.Join(v.AcceptsFrom, ", "), "handoffs", string(v.Handoffs), "on barred", string(v.OnBarred),
		"expects", expects, "provides", provides, "conversation", conversation,
		"breaker", breakerStanding(v.Breaker), "poll patience", patience, "escalates to", cmp.Or(v.EscalatesTo, protocol.Human), "queued", fmt.Sprint(v.Queued), "updated", explain.Instant(v.UpdatedAt))
	for _, h := range holders {
		a.printf("worker  %s  %d of %d busy  %s%s\n", h.ID, h.Busy, h.Slots, h.Host, holderNote(h))
	}
	return nil
}

// breakerStanding describes a breaker: its state, since when, until when, and the command that
// closes it.
func breakerStanding(v *api.BreakerStatus) string {
	if v == nil {
		return ""
	}
	words := fmt.Sprintf("%s, %d of %d failed", v.State, v.Failed, v.Policy.Threshold)
	if !v.OpenedAt.IsZero() {
		words += ", opened " + explain.Instant(v.OpenedAt)
	}
	if !v.Until.IsZero() {
		words += ", changes " + explain.Instant(v.Until)
	}
	return words + "; to close it: handoff agents breaker reset " + v.Agent
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

// readContract reads the schemas that are given as files. Without a part a profile has no contract.
func (f *profileFlags) readContract(p *protocol.Profile, a *app) error {
	for _, of := range []struct{ flag, file, name string }{
		{"context-schema", f.ContextSchema, "context_schema"}, {"result-schema", f.ResultSchema, "result_schema"},
	} {
		if !f.fs.Changed(of.flag) {
			continue
		}
		body := []byte("null")
		if of.file != "" {
			var err error
			if body, err = a.read(of.file); err != nil {
				return err
			}
		}
		read, err := protocol.DecodeProfile(fmt.Appendf(nil, `{"contract":{%q:%s}}`, of.name, body))
		if err != nil {
			return err
		}
		if read.Contract == nil || of.file == "" {
			read.Contract = new(protocol.Contract)
		}
		if of.flag == "context-schema" {
			orNew(&p.Contract).ContextSchema = read.Contract.ContextSchema
		} else {
			orNew(&p.Contract).ResultSchema = read.Contract.ResultSchema
		}
	}
	if c := p.Contract; c != nil && len(c.ContextSchema) == 0 && len(c.ResultSchema) == 0 && len(c.Modes) == 0 {
		p.Contract = nil
	}
	return nil
}

// contractWords returns the agent's expectations, its results and the form of a conversation.
func contractWords(p *protocol.Profile) (expects, provides, conversation string) {
	var parts []string
	if c := p.Contract; c != nil {
		if expects = strings.Join(c.Expects(), ", "); expects == "" {
			expects = schemaWords(c.ContextSchema)
		}
		provides = schemaWords(c.ResultSchema)
		if len(c.Modes) > 0 {
			parts = append(parts, strings.Join(asWords(c.Modes), ", "))
		}
	}
	if p.MaxContextTokens > 0 {
		parts = append(parts, fmt.Sprintf("at most %d tokens", p.MaxContextTokens))
	}
	return expects, provides, strings.Join(parts, "; ")
}

func schemaWords(raw json.RawMessage) string {
	if len(raw) == 0 {
		return ""
	}
	return fmt.Sprintf("by a schema of %d bytes", len(raw))
}

// warnOfAgents warns of agents in a profile that are not registered (yet). That is allowed, since one
// of two has to be registered first, and may be a slip.
func (a *app) warnOfAgents(ctx context.Context, s *api.Session, p protocol.Profile) error {
	err := a.warnUnknown(ctx, s, p.EscalatesTo, "%s escalates to %s, which is no agent so far; until it is, to human", p.ID, p.EscalatesTo)
	for _, agent := range p.HandsTo {
		err = cmp.Or(err, a.warnUnknown(ctx, s, agent, "%s hands off to %s, which is no agent so far", p.ID, agent))
	}
	for _, agent := range p.AcceptsFrom {
		err = cmp.Or(err, a.warnUnknown(ctx, s, agent, "%s takes handoffs from %s, which is no agent so far", p.ID, agent))
	}
	return err
}

// warnUnknown warns of an agent that is not registered. Patterns and people are not.
func (a *app) warnUnknown(ctx context.Context, s *api.Session, agent, format string, args ...any) error {
	if agent == "" || agent == protocol.Human || strings.HasSuffix(agent, "*") {
		return nil
	}
	_, err := s.Profile(ctx, agent)
	if hasCode(protocol.CodeUnknownAgent)(err) {
		a.notef("handoff: "+format+"\n", args...)
		return nil
	}
	return err
}

func newAgentsBreaker(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "breaker [AGENT]",
		Short: "Show the breakers of agents, or of one",
		Long: `Breaker shows the breakers of agents: closed ones let everything through, open ones
nothing, half-open ones a probe. An agent has one where the fleet has settings for all
of them (handoff fleet set breaker.threshold=3), or its own profile does.`,
		Example: `  handoff agents breaker
  handoff agents breaker coder -o json
  handoff agents breaker reset coder`,
		Args: cobra.MaximumNArgs(1), ValidArgsFunction: a.agentWords,
		RunE: a.onSession(func(ctx context.Context, s *api.Session, args []string) error {
			all, err := s.Breakers(ctx)
			if err != nil || len(args) == 0 {
				return printedList(a, all, err, a.breakers)
			}
			if _, err := s.Profile(ctx, args[0]); err != nil {
				return err
			}
			at := slices.IndexFunc(all, func(v api.BreakerStatus) bool { return v.Agent == args[0] })
			if at < 0 {
				return protocol.Errorf(protocol.CodeNotFound, "breaker", "%s has none; give it one: handoff fleet set breaker.threshold=3", args[0])
			}
			return printed(a, all[at], nil, a.breaker)
		}),
	}
	cmd.AddCommand(&cobra.Command{
		Use:   "reset AGENT",
		Short: "Close the breaker of an agent, and forget its failures",
		Long: `Reset closes the breaker of an agent that has recovered, and forgets its failures.
Its waiting handoffs are offered.`,
		Example: `  handoff agents breaker reset coder`,
		Args:    takes("an AGENT"), ValidArgsFunction: a.agentWords,
		RunE: onNamed(a, (*api.Session).ResetBreaker, func(v api.BreakerStatus) error { return a.line(v, "%s  breaker closed\n", v.Agent) }),
	})
	return cmd
}

func (a *app) breakers(all []api.BreakerStatus) error {
	if len(all) == 0 {
		a.notef("no agent has a breaker; give one to all: handoff fleet set breaker.threshold=3\n")
		return nil
	}
	return a.table(rowsOf("AGENT|BREAKER|FAILED|LAST FAILURE|CHANGES", all, func(v api.BreakerStatus) []any {
		last := ""
		if v.LastFailure != nil {
			last = explain.Instant(v.LastFailure.At) + " " + string(v.LastFailure.End)
		}
		return []any{v.Agent, v.State, fmt.Sprintf("%d/%d", v.Failed, v.Policy.Threshold), last, v.Until}
	}))
}

// breaker prints one breaker.
func (a *app) breaker(v api.BreakerStatus) error {
	a.printf("%s  %s\n", v.Agent, v.State)
	changes := ""
	switch {
	case v.State == lifecycle.BreakerOpen:
		changes = "half-open at " + explain.Instant(v.Until)
	case v.State == lifecycle.BreakerHalfOpen && len(v.Probes) == 0:
		changes = "the next handoff is a probe"
	}
	a.fields("failed", fmt.Sprintf("%d of %d", v.Failed, v.Policy.Threshold), "opened", explain.Instant(v.OpenedAt),
		"changes", changes, "settings", breakerWords(v.Policy))
	for _, ticket := range v.Failures {
		a.printf("failed  %s\n", ticket)
	}
	for _, ticket := range v.Probes {
		a.printf("probe  %s\n", ticket)
	}
	return nil
}

// breakerWords returns the settings of a breaker.
func breakerWords(p protocol.BreakerPolicy) string {
	return fmt.Sprintf("opens for %s, at most %s, when %d different handoffs and %d %% of those within %s failed; %d at once try it again",
		explain.Millis(p.OpenMS), explain.Millis(p.OpenMaxMS), p.Threshold, p.SharePercent, explain.Millis(p.WindowMS), p.Probes)
}

// nowIs prints an agent after a change.
func (a *app) nowIs(word string) func(protocol.Profile) error {
	return func(p protocol.Profile) error { return a.line(p, "%s  %s\n", p.ID, word) }
}

func newAgentsRemove(a *app) *cobra.Command {
	var yes bool
	cmd := &cobra.Command{
		Use:     "remove AGENT",
		Aliases: []string{"rm", "delete"},
		Short:   "Forget an agent",
		Long: `Remove deletes an agent: nothing can be handed to it afterwards. The handoffs in its
queue stay there. An agent with workers that run is removed with --yes alone: they work
on the handoffs in its queue, and get no more. To keep an agent from taking more for a
while, pause it instead.`,
		Example: `  handoff agents rm reviewer`,
		Args:    takes("an AGENT"),
		RunE: a.onSession(func(ctx context.Context, s *api.Session, args []string) error {
			if !yes {
				if err := refuseServed(ctx, s, args[0]); err != nil {
					return err
				}
			}
			profile, err := s.RemoveAgent(ctx, args[0])
			return printed(a, profile, err, a.nowIs("removed"))
		}),
	}
	cmd.Flags().BoolVar(&yes, "yes", false, "remove it though workers of it run")
	return cmd
}

// refuseServed refuses to remove an agent whose workers run.
func refuseServed(ctx context.Context, s *api.Session, agent string) error {
	workers, err := s.Holders(ctx, agent)
	if err != nil || len(workers) == 0 {
		return err
	}
	of := "1 worker of it runs"
	if len(workers) > 1 {
		of = fmt.Sprintf("%d workers of it run", len(workers))
	}
	return protocol.Errorf(protocol.CodeConflict, "agent", "%s is not removed: %s; end them first, pause it (handoff agents pause %[1]s), or give --yes", agent, of)
}

func newAgentsFind(a *app) *cobra.Command {
	o := struct {
		assistFlag `flag:""`
		Most       int `flag:"most,k" doc:"list {N} agents at most, 1 to 100"`
	}{Most: 5}
	cmd := &cobra.Command{
		Use:   "find TASK",
		Short: "Find the agents for a task, by its words",
		Long: `Find lists the agents whose profiles have the words of a task, the best first: their
names, specializations and capabilities count the most, then their examples, then their
descriptions. Agents that are paused or take no handoffs are left out.

Where the best is not well ahead of the second, or has too little of the task, find
exits with 9 (no_match); the nearest are listed all the same.

Then a chooser decides, if there is one: a command (--assist, $HANDOFF_ASSIST), or a
model behind an endpoint that is compatible with OpenAI's. $HANDOFF_LLM_URL is the
address in front of /chat/completions, $HANDOFF_LLM_MODEL the name of the model; the key
is in the file $HANDOFF_LLM_KEY_FILE, or in $HANDOFF_LLM_KEY. It gets the task and all
agents, without secrets, and has 30 seconds to answer an id, or NONE; the command reads
{"kind": "find", "task", "agents"}. The chosen one is listed first, and "chosen_by"
names the chooser. Any other answer is no_match, as above.`,
		Example: `  handoff agents find "run the unit tests and check coverage"
  handoff agents find "make it fast" --assist ./choose.sh
  handoff submit --to "$(handoff agents find "deploy to staging" -o json | jq -r '.found[0].agent')" --task "deploy"`,
		Args: takes("a TASK"),
		RunE: func(cmd *cobra.Command, args []string) error {
			matches, err := a.find(cmd.Context(), args[0], o.Most, o.Assist)
			if err != nil && !hasCode(protocol.CodeNoMatch)(err) {
				return err
			}
			if shown := printed(a, matches, nil, a.matches); shown != nil {
				return shown
			}
			return err
		},
	}
	bind(cmd.Flags(), &o)
	return cmd
}

func (a *app) matches(m lifecycle.Matches) error {
	if len(m.Found) == 0 {
		return nil
	}
	if m.ChosenBy != "" {
		a.notef("handoff: the words are not certain; a %s chose %s\n", m.ChosenBy, m.Found[0].Agent)
	}
	return a.table(rowsOf("AGENT|SCORE|WORDS", m.Found, func(f lifecycle.Found) []any {
		return []any{f.Agent, fmt.Sprintf("%.1f", f.Score), strings.Join(f.Words, " ")}
	}))
}

// recommendFlags hold the task and the number of agents to name.
type recommendFlags struct {
	Task string `flag:"task" doc:"{WHAT} is to be done; without it all agents are ranked by success alone"`
	Most int    `flag:"most,k" doc:"name {N} agents at most, 1 to 100"`
}

func (f *recommendFlags) ask(ctx context.Context, a *app, s *api.Session, from string) (api.Recommendations, error) {
	found, err := s.RecommendAgents(ctx, cmp.Or(from, a.env("HANDOFF_AGENT"), protocol.Human), f.Task, f.Most)
	if err == nil && !found.Learned {
		a.notef("handoff: no index answers, so nothing is known of earlier handoffs\n")
	}
	return found, err
}

func newAgentsRecommend(a *app) *cobra.Command {
	var o struct {
		recommendFlags `flag:""`
		From           string `flag:"from" doc:"the {AGENT} that hands off (default $HANDOFF_AGENT, else human)"`
	}
	o.Most = 10
	cmd := &cobra.Command{
		Use:   "recommend",
		Short: "Rank the agents that one may hand off to, by words and by success",
		Long: `Recommend ranks the agents that --from may hand off to, for a task: by the words of
their profiles, as "handoff agents find" does, times how its handoffs to them have ended in
the last 30 days. Agents that no edge leads to are left out (hands_to, accepts_from). An
agent of which nothing is known is taken to succeed half of the time.

It is advice: no handoff is routed by it. It asks an index (handoff index; handoff dev has
one); without one it ranks by the words alone.`,
		Example: `  handoff agents recommend --from lead --task "run the unit tests"
  handoff agents recommend --from lead -o json | jq -r '.agents[0].agent'`,
		Args: takes(),
		RunE: a.onSession(func(ctx context.Context, s *api.Session, _ []string) error {
			found, err := o.ask(ctx, a, s, o.From)
			return printed(a, found, err, a.recommended)
		}),
	}
	bind(cmd.Flags(), &o)
	return cmd
}

func (a *app) recommended(found api.Recommendations) error {
	if len(found.Agents) == 0 {
		a.notef("handoff: there is no agent for it to hand off to\n")
		return nil
	}
	return a.table(rowsOf("AGENT|WORTH|SUCCEEDED|WORDS", found.Agents, func(r lifecycle.Recommended) []any {
		ended := "-"
		if n := r.Ends.Succeeded + r.Ends.Failed; n > 0 {
			ended = fmt.Sprintf("%d of %d", r.Ends.Succeeded, n)
		}
		return []any{r.Agent, fmt.Sprintf("%.2f", r.Worth), ended, strings.Join(r.Words, " ")}
	}))
}

func newAgentsPrompt(a *app) *cobra.Command {
	var o struct {
		recommendFlags `flag:""`
		For            string `flag:"for" doc:"the {AGENT} whose prompt it is (default $HANDOFF_AGENT, else human)"`
	}
	o.Most = 10
	cmd := &cobra.Command{
		Use:   "prompt",
		Short: "Print a text on handing off, for the prompt of an agent",
		Long: `Prompt prints a text for the prompt of a model that works as an agent: when to hand off,
how its output does so, and the agents that --for may hand off to, in the order of
"handoff agents recommend".`,
		Example: `  handoff agents prompt --for lead >> prompt.md
  handoff agents prompt --for lead --task "run the unit tests" -k 3`,
		Args: takes(),
		RunE: a.onSession(func(ctx context.Context, s *api.Session, _ []string) error {
			found, err := o.ask(ctx, a, s, o.For)
			if err != nil {
				return err
			}
			var specialists []brief.Specialist
			for _, r := range found.Agents {
				profile, err := s.Profile(ctx, r.Agent)
				if hasCode(protocol.CodeUnknownAgent)(err) { // it was removed meanwhile
					continue
				} else if err != nil {
					return err
				}
				specialists = append(specialists, brief.Specialist{Profile: profile, Succeeded: r.Ends.Succeeded, Ended: r.Ends.Succeeded + r.Ends.Failed})
			}
			text := brief.Guidance(specialists)
			return printed(a, struct {
				Prompt string `json:"prompt"`
			}{text}, nil, func(struct {
				Prompt string `json:"prompt"`
			}) error {
				a.printLines(text)
				return nil
			})
		}),
	}
	bind(cmd.Flags(), &o)
	return cmd
}

// find finds the agents for a task: by words and, where these are not certain, by the assistant.
// The assistant is asked after the engine, whose deadline is shorter. A refusal has the nearest.
func (a *app) find(ctx context.Context, task string, most int, assistCommand string) (m lifecycle.Matches, err error) {
	var asker assist.Asker
	var roster []assist.Agent
	err = a.onEngine(ctx, func(ctx context.Context, s *source) error {
		m, err = s.session.FindAgents(ctx, task, most)
		if !hasCode(protocol.CodeNoMatch)(err) {
			return err
		}
		unsure := err
		if asker, err = a.assistant(assistCommand); err != nil {
			return err
		}
		if asker == nil {
			return unsure
		}
		d, err := s.b.Directory(ctx)
		if err != nil {
			return err
		}
		for _, id := range slices.Sorted(maps.Keys(d.Agents)) {
			if lifecycle.CanBeFound(d.Agents[id]) {
				roster = append(roster, assist.AgentOf(*d.Agents[id]))
			}
		}
		return unsure
	})
	var unsure *protocol.Error
	if len(roster) == 0 || !errors.As(err, &unsure) || unsure.Code != protocol.CodeNoMatch {
		return m, err
	}
	agent, err := assist.Choose(ctx, asker, task, roster)
	if err != nil {
		return m, protocol.Errorf(unsure.Code, unsure.Field, "%s; the %s that was asked: %v", unsure.Message, asker.By(), err)
	}
	m.Choose(agent, asker.By(), most)
	return m, nil
}
