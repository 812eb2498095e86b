package lifecycle

import (
	"fmt"
	"slices"
	"strings"

	p "github.com/agenthandoff/handoff/protocol"
)

// Events renders a row for each event as Markdown, for docs/concepts/lifecycle.md: its meaning, the
// roles that make it, and the phases where it is legal with those that it leads to.
func Events() string {
	var b strings.Builder
	b.WriteString("| event | meaning | made by | legal in → next phase |\n|---|---|---|---|\n")
	for _, e := range p.EventTypes {
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", e, table[e].words, listed(table[e].by), legalIn(e))
	}
	return b.String()
}

// legalIn lists the phases where an event is legal, those together from which it leads to the same.
func legalIn(e p.EventType) string {
	var ways []string
	from := map[string][]p.Phase{}
	for _, phase := range append([]p.Phase{fresh}, open...) {
		if !Legal(phase, false, e) {
			continue
		}
		way := next(phase, e)
		if from[way] == nil {
			ways = append(ways, way)
		}
		from[way] = append(from[way], phase)
	}
	var parts []string
	for _, way := range ways {
		parts = append(parts, strings.TrimSpace(phaseNames(from[way])+way))
	}
	if after := table[e].after; after != nil {
		parts = append(parts, "closed"+afterEnd(e))
	}
	return strings.Join(parts, "; ")
}

// phaseNames lists phases, or the open ones that are missing if these are few.
func phaseNames(phases []p.Phase) string {
	missing := slices.DeleteFunc(slices.Clone(open), func(phase p.Phase) bool { return slices.Contains(phases, phase) })
	switch {
	case len(missing) == 0:
		return "any open"
	case len(missing) == 1:
		return "any open but " + string(missing[0])
	}
	var names []string
	for _, phase := range phases {
		names = append(names, string(phase))
	}
	return strings.Join(names, ", ")
}

// next is the phase that an event leads to, or nothing if that is the same.
func next(from p.Phase, e p.EventType) string {
	if e == p.EventClosed {
		return " → closed"
	}
	var to []string
	for _, phase := range p.Phases {
		if !leadsTo(from, e, phase) {
			continue
		}
		if phase == from {
			to = append(to, "the same")
			continue
		}
		to = append(to, string(phase))
	}
	if slices.Equal(to, []string{"the same"}) {
		return ""
	}
	return " → " + strings.Join(to, " or ")
}

// afterEnd is the condition under which an event is legal once the handoff has closed.
func afterEnd(e p.EventType) string {
	switch {
	case e == p.EventReturned:
		return " → the same or returned"
	case e == p.EventChainEnded:
		return " (complete)"
	case e == p.EventAssigned:
		return " (a group)"
	case len(table[e].after) < len(closedPhases):
		return " (not complete)"
	}
	return ""
}

// leads are the phases that an event may lead to from a phase: its rule's, or
// several where it depends on the event's fields.
func leads(from p.Phase, e p.EventType) []p.Phase {
	switch e {
	case p.EventSubmitted: // of what begins when its source completes
		if from == fresh {
			return []p.Phase{p.Pending, p.AwaitingSource}
		}
	case p.EventAnswered: // denied it is a refusal; an authority's sends the handoff back
		if from == p.Conditional {
			return []p.Phase{p.Conditional, p.PhaseRejected}
		}
		return []p.Phase{p.Pending, p.PhaseRejected}
	case p.EventRerouted, p.EventEscalated: // by hand, or by its holder
		if slices.Contains(held, from) {
			return []p.Phase{p.Pending}
		}
		if from == p.AwaitingApproval && e == p.EventRerouted { // before its start
			return []p.Phase{from, p.Pending}
		}
	case p.EventGateOpened: // at its start it may have no agent yet
		return []p.Phase{p.AwaitingApproval, p.Pending}
	case p.EventTimedOut: // what waits for something else than a worker may go on waiting
		if from == p.AwaitingApproval || from == p.Conditional {
			return []p.Phase{p.PhaseTimeout, from}
		}
		return []p.Phase{p.PhaseTimeout}
	case p.EventClosed: // complete is for groups
		return closedPhases
	case p.EventReturned: // where it was delivered
		return []p.Phase{from, p.PhaseReturned}
	}
	if table[e].to == stay {
		return []p.Phase{from}
	}
	return []p.Phase{table[e].to}
}

// leadsTo reports whether an event may lead from one phase to another.
func leadsTo(from p.Phase, e p.EventType, to p.Phase) bool {
	return slices.Contains(leads(from, e), to)
}
