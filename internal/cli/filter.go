package cli

import (
	"context"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/agenthandoff/handoff/internal/index/ask"
	"github.com/agenthandoff/handoff/protocol"
)

// filterFlags select handoffs. What a value may be is checked by who answers,
// which names the field.
type filterFlags struct {
	agent, source, target             []string
	phase, outcome, priority, kind    []string
	workflow, conversation, task      []string
	parent, group, ticket             []string
	gate, variant                     []string
	open, closed, barred, deadlocked  bool
	since, until, changedSince, words string
}

// declare adds the flags. Names that cannot have a comma in them may be given
// as a list; the ids of others may have one, so that they are one to a flag.
func (f *filterFlags) declare(a *app, cmd *cobra.Command) {
	fs := cmd.Flags()
	fs.SortFlags = false
	list := func(into *[]string, name, usage string) { fs.StringSliceVar(into, name, nil, usage) }
	each := func(into *[]string, name, usage string) { fs.StringArrayVar(into, name, nil, usage) }
	list(&f.agent, "agent", "in the queue or the hands of this `AGENT`, or last there")
	list(&f.source, "source", "handed off by this `AGENT`")
	each(&f.target, "target", "asked for this `TARGET`: an agent, or what it must be able to do")
	list(&f.phase, "phase", "in this `PHASE`")
	list(&f.outcome, "outcome", "closed with this `OUTCOME`")
	fs.BoolVar(&f.open, "open", false, "not closed")
	fs.BoolVar(&f.closed, "closed", false, "closed")
	list(&f.priority, "priority", "of this `PRIORITY`")
	list(&f.kind, "type", "of this `TYPE`")
	each(&f.workflow, "workflow", "of the workflow with this `ID`")
	each(&f.conversation, "conversation", "of the conversation with this `ID`")
	each(&f.task, "task", "of the task with this `ID`")
	list(&f.variant, "variant", "in this `VARIANT` of an experiment, as models/new")
	list(&f.parent, "parent", "handed off by this `TICKET`")
	list(&f.group, "group", "members of the group with this `TICKET`")
	list(&f.ticket, "ticket", "with this `TICKET`")
	list(&f.gate, "gate", "waiting for this `GATE` before its next offer: "+strings.Join(asWords(protocol.GateKinds), ", "))
	fs.BoolVar(&f.barred, "barred", false, "refused a hand-off by a limit or a rule")
	fs.BoolVar(&f.deadlocked, "deadlocked", false, "taken out of a circle of handoffs that waited for one another, or a hand-off of it was refused as circular")
	fs.StringVar(&f.since, "since", "", "submitted since `WHEN`: an instant, or a duration ago (2h, 3d)")
	fs.StringVar(&f.until, "until", "", "submitted before `WHEN`")
	fs.StringVar(&f.changedSince, "changed-since", "", "changed since `WHEN`")
	fs.StringVar(&f.words, "text", "", "with all these `WORDS` in the task's description or the reason; wor* is a beginning")
	a.agentFlags(cmd, "agent", "source", "target")
	a.words(cmd, "phase", asWords(protocol.Phases)...)
	a.words(cmd, "outcome", asWords(protocol.Outcomes)...)
	a.words(cmd, "priority", asWords(protocol.Priorities)...)
	a.words(cmd, "gate", asWords(protocol.GateKinds)...)
	a.words(cmd, "type", asWords(protocol.Types)...)
}

// resolve makes whole tickets of beginnings.
func (f *filterFlags) resolve(ctx context.Context, a *app) error {
	return a.tickets(ctx, f.parent, f.group, f.ticket)
}

// filter is what the flags say.
func (f *filterFlags) filter(now time.Time) (ask.Filter, error) {
	filter := ask.Filter{
		Agent: f.agent, Source: f.source, Target: f.target,
		Phase: fromWords[protocol.Phase](f.phase), Outcome: fromWords[protocol.Outcome](f.outcome),
		Priority: fromWords[protocol.Priority](f.priority), Type: fromWords[protocol.Type](f.kind),
		WorkflowID: f.workflow, ConversationID: f.conversation, TaskID: f.task, Variant: f.variant,
		Parent: f.parent, Group: f.group, Ticket: f.ticket, Text: f.words,
		Gate: fromWords[protocol.GateKind](f.gate), Barred: f.barred, Deadlocked: f.deadlocked,
	}
	for field, values := range map[string][]string{"agent": f.agent, "source": f.source, "target": f.target, "phase": f.phase,
		"outcome": f.outcome, "gate": f.gate, "priority": f.priority, "type": f.kind, "workflow": f.workflow, "conversation": f.conversation, "task": f.task, "variant": f.variant,
		"parent": f.parent, "group": f.group, "ticket": f.ticket, "text": {f.words}} {
		for _, value := range values {
			check := checkText
			if field == "agent" || field == "source" {
				check = protocol.CheckID
			}
			if err := check(field, value); err != nil {
				return filter, err
			}
		}
	}
	if f.open && f.closed {
		return filter, usagef("--open and --closed exclude each other; without either both are meant")
	}
	if f.open || f.closed {
		filter.Open = &f.open
	}
	var err error
	now = now.Truncate(time.Millisecond)
	if filter.Since, err = pastFlag("since", f.since, now); err != nil {
		return filter, err
	}
	if filter.Until, err = pastFlag("until", f.until, now); err != nil {
		return filter, err
	}
	filter.UpdatedSince, err = pastFlag("changed-since", f.changedSince, now)
	return filter, err
}

// relative are the flags that say how long ago, and so mean another instant each
// time; with the instants that they mean now.
func (f *filterFlags) relative(filter ask.Filter) (flags []string, instants string) {
	for _, at := range []struct {
		flag, text string
		means      protocol.Time
	}{{"--since", f.since, filter.Since}, {"--until", f.until, filter.Until}, {"--changed-since", f.changedSince, filter.UpdatedSince}} {
		if _, err := parseDuration(at.text); err == nil {
			flags = append(flags, at.flag)
			instants += " " + at.flag + " " + at.means.Format(time.RFC3339Nano)
		}
	}
	return flags, instants
}

func asWords[T ~string](values []T) []string {
	texts := make([]string, len(values))
	for i, v := range values {
		texts[i] = string(v)
	}
	return texts
}

func fromWords[T ~string](texts []string) []T {
	if len(texts) == 0 {
		return nil
	}
	values := make([]T, len(texts))
	for i, text := range texts {
		values[i] = T(text)
	}
	return values
}
