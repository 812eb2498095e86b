package lifecycle

import (
	"fmt"
	"slices"
	"strings"

	p "github.com/agenthandoff/handoff/protocol"
)

// Table renders the table of legal events as Markdown, for docs/concepts/lifecycle.md: a
// row for each event, a column for each phase in which a handoff can be open, and
// one for those that are closed.
func Table() string {
	columns := append([]p.Phase{fresh}, open...)
	var b strings.Builder
	b.WriteString("| event |")
	for _, phase := range columns {
		b.WriteString(" " + title(phase) + " |")
	}
	b.WriteString(" *closed* |\n|---|" + strings.Repeat("---|", len(columns)+1) + "\n")
	for _, e := range p.EventTypes {
		fmt.Fprintf(&b, "| `%s` |", e)
		for _, phase := range columns {
			b.WriteString(" " + cell(phase, e) + " |")
		}
		b.WriteString(" " + afterEnd(e) + " |\n")
	}
	return b.String()
}

// Events renders what each event says, and the roles that make it, as Markdown.
func Events() string {
	var b strings.Builder
	b.WriteString("| event | what it says | made by |\n|---|---|---|\n")
	for _, e := range p.EventTypes {
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", e, table[e].words, listed(table[e].by))
	}
	return b.String()
}

// afterEnd says where an event leads from the phases of closed handoffs.
func afterEnd(e p.EventType) string {
	switch {
	case table[e].after == nil:
		return ""
	case e == p.EventReturned:
		return "· or returned"
	case e == p.EventChainEnded:
		return "· (complete)"
	case e == p.EventAssigned:
		return "· (a group)"
	case len(table[e].after) < len(closedPhases):
		return "· (not complete)"
	}
	return "·"
}

// cell says where an event leads from a phase: nothing if it is not legal there.
func cell(from p.Phase, e p.EventType) string {
	if !Legal(from, false, e) {
		return ""
	}
	if e == p.EventClosed {
		return "closed"
	}
	var to []string
	for _, phase := range destinations(from, e) {
		if phase == from {
			to = append(to, "·")
			continue
		}
		to = append(to, string(phase))
	}
	return strings.Join(to, " or ")
}

// destinations are the phases that an event may lead to from a phase.
func destinations(from p.Phase, e p.EventType) []p.Phase {
	var to []p.Phase
	for _, phase := range p.Phases {
		if leadsTo(from, e, phase) {
			to = append(to, phase)
		}
	}
	return to
}

// Diagram renders the same as a Mermaid state diagram. Events that are legal in
// every open phase are drawn once; those that change no phase are not drawn.
func Diagram() string {
	var b strings.Builder
	b.WriteString("stateDiagram-v2\n    state \"any open phase\" as any\n")
	for _, from := range append([]p.Phase{fresh}, open...) {
		for _, to := range p.Phases {
			var events []string
			for _, e := range p.EventTypes {
				if from != to && Legal(from, false, e) && !everywhere(e) && leadsTo(from, e, to) {
					events = append(events, string(e))
				}
			}
			if len(events) > 0 {
				fmt.Fprintf(&b, "    %s --> %s: %s\n", node(from), to, strings.Join(events, ", "))
			}
		}
	}
	for _, e := range p.EventTypes {
		if !everywhere(e) {
			continue
		}
		for _, to := range p.Phases {
			if to == table[e].to || e == p.EventClosed && slices.Contains(closedPhases, to) {
				fmt.Fprintf(&b, "    any --> %s: %s\n", to, e)
			}
		}
	}
	for _, from := range table[p.EventReturned].after {
		if from != p.PhaseReturned {
			fmt.Fprintf(&b, "    %s --> %s: %s\n", from, p.PhaseReturned, p.EventReturned)
		}
	}
	for _, to := range []p.Phase{p.Complete, p.PhaseReturned, p.Cancelled} {
		fmt.Fprintf(&b, "    %s --> [*]\n", to)
	}
	return b.String()
}

func everywhere(e p.EventType) bool {
	return !slices.ContainsFunc(open, func(phase p.Phase) bool { return !Legal(phase, false, e) })
}

func title(phase p.Phase) string {
	if phase == fresh {
		return "(none)"
	}
	return string(phase)
}

func node(phase p.Phase) string {
	if phase == fresh {
		return "[*]"
	}
	return string(phase)
}

// leads are the phases that an event may lead to from a phase: its rule's, or
// several where it depends on what the event says.
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

// leadsTo tells whether the table shows that an event leads from one phase to another.
func leadsTo(from p.Phase, e p.EventType, to p.Phase) bool {
	return slices.Contains(leads(from, e), to)
}
