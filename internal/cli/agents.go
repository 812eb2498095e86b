package cli

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
	"github.com/agenthandoff/handoff/explain"
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

// availability is what the presence of its workers says of an agent. It is
// computed by whoever asks, and stored nowhere.
type availability string

const (
	present  availability = "present"  // a worker is there, with free slots
	busy     availability = "busy"     // all slots are taken; what comes waits in the queue
	paused   availability = "paused"   // on purpose; offers wait
	draining availability = "draining" // the last workers finish what they have and take no more
	polling  availability = "polling"  // no worker: it claims, or has polled within its patience
	absent   availability = "absent"   // neither is there: after the acknowledge timeout its handoffs go elsewhere
)

// agentView is an agent with what is known of its workers.
type agentView struct {
	protocol.Profile
	Availability availability `json:"availability"`
	AbsentSince  time.Time    `json:"absent_since,omitzero"` // where this process saw the last worker go
	Workers      int          `json:"workers"`               // live ones that serve it
	Slots        int          `json:"slots"`
	Busy         int          `json:"busy"`
	PolledAt     time.Time    `json:"polled_at,omitzero"` // where it polls: when it was last heard of
	InHand       int          `json:"in_hand,omitempty"`  // where it has max_concurrency: what counts against it
	Queued       int          `json:"queued"`             // offers in its queue, those being worked on included
}

func viewAgent(ctx context.Context, b *broker.Broker, d *lifecycle.Directory, p protocol.Profile) (agentView, error) {
	v := agentView{Profile: p, Availability: availabilityOf(p, d)}
	v.Workers, v.Slots, v.Busy = d.Load(p.ID)
	switch v.Availability {
	case absent:
		v.AbsentSince = d.LastPresent[p.ID]
	case polling:
		v.PolledAt, _ = d.Polled(p.ID)
	}
	inHand, limit, err := b.Capacity(ctx, p.ID)
	if err != nil {
		return v, err
	}
	v.InHand = inHand
	if limit > 0 && inHand >= limit && (v.Availability == present || v.Availability == polling) {
		v.Availability = busy
	}
	v.Queued, err = b.QueueDepth(ctx, p.ID)
	return v, err
}

func availabilityOf(p protocol.Profile, d *lifecycle.Directory) availability {
	workers, slots, taken := d.Load(p.ID)
	switch {
	case p.ID == protocol.Human: // a person is never absent
		return present
	case p.Paused:
		return paused
	case workers > 0 && taken >= slots:
		return busy
	case workers > 0:
		return present
	}
	if _, polls := d.Polled(p.ID); polls {
		return polling
	}
	for _, h := range d.Holders {
		if h.Agent == p.ID && h.Draining {
			return draining
		}
	}
	return absent
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

// busyWords say how much of it is busy: its workers' slots, or, where it has
// max_concurrency, what all its holders have in hand of that.
func (v agentView) busyWords() string {
	if v.MaxConcurrency > 0 {
		return fmt.Sprintf("%d/%d", v.InHand, v.MaxConcurrency)
	}
	return fmt.Sprintf("%d/%d", v.Busy, v.Slots)
}

// standing says whether the agent takes work, for people.
func (v agentView) standing() string {
	switch {
	case !v.Accepts():
		return "accepts no handoffs"
	case v.Availability == absent && !v.AbsentSince.IsZero():
		return fmt.Sprintf("absent since %s", explain.Instant(v.AbsentSince))
	case v.Availability == polling:
		return explain.Polls(v.PolledAt, time.Now())
	}
	return string(v.Availability)
}

func newAgentsList(a *app) *cobra.Command {
	return &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List all agents, their workers and their queues",
		Long: `List shows all agents, and whether somebody serves them:

  present    a worker is there, with free slots
  busy       all slots are taken, or as many handoffs are in hand as max_concurrency
             allows: what comes waits in the queue, and nowhere else
  paused     on purpose (handoff agents pause): offers wait, nothing goes elsewhere
  draining   its last workers finish what they have, and take no more
  polls      no worker is there, but the agent holds a claim, or has polled
             within its patience (poll_patience_ms in its profile, 5 min)
  absent     none of them: what is offered to it goes elsewhere after the
             acknowledge timeout (policy ack_timeout_ms), if critical to a person

That is computed from the presence of workers and claims at this moment, and stored nowhere.`,
		Example: `  handoff agents ls
  handoff agents ls -o jsonl | jq -r 'select(.availability == "absent") | .id'`,
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
	rows := [][]string{{"AGENT", "AVAILABILITY", "WORKERS", "BUSY", "QUEUED", "CAPABILITIES", "DESCRIPTION"}}
	for _, v := range views {
		rows = append(rows, []string{v.ID, v.standing(), fmt.Sprint(v.Workers), v.busyWords(), fmt.Sprint(v.Queued),
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
	concurrency, execution, patience := "", "", ""
	if v.PollPatienceMS > 0 {
		patience = explain.Millis(v.PollPatienceMS)
	}
	if v.MaxConcurrency > 0 {
		concurrency = fmt.Sprintf("%d, %d in hand", v.MaxConcurrency, v.InHand)
	}
	if v.MaxExecutionMS > 0 {
		execution = explain.Millis(v.MaxExecutionMS)
	}
	a.printf("%s  %s\n", v.ID, v.standing())
	if err := a.fields("name", v.Name, "description", v.Description, "capabilities", capabilityText(v.Capabilities, v.Specialization),
		"examples", strings.Join(v.Examples, "; "), "max concurrency", concurrency, "max execution", execution, "max risk", string(v.MaxRisk),
		"poll patience", patience, "escalates to", cmp.Or(v.EscalatesTo, protocol.Human), "queued", fmt.Sprint(v.Queued), "updated", explain.Instant(v.UpdatedAt)); err != nil {
		return err
	}
	for _, id := range slices.Sorted(maps.Keys(directory.Holders)) {
		if h := directory.Holders[id]; h.Agent == v.ID && !h.IsPoll() {
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
