package protocol

import (
	"slices"
	"strings"
)

// TrailWordsBytesMax is how much of a trail entry's words and assessment is kept.
const TrailWordsBytesMax = 2 << 10

// TrailOf is what the next agent needs to know of a handoff's history: who
// refused it and whom they suggested, what was asked and answered, who escalated
// and with which assessment, where it was sent instead, which clocks ran out,
// which leases were lost, which attempts failed and how far they had come, and what it is a
// redrive of. It has at most TrailMax entries, the newest, in the order of the history, with
// words cut to TrailWordsBytesMax. Deferrals are left out: they ask nothing.
//
// changes are those of one handoff from its first on; the trail of a redrive is
// that of its origin's changes with its own appended to them.
func TrailOf(changes []Change) []TrailEntry {
	var trail []TrailEntry
	agent := ""            // whose queue it is in, or who has it
	var reported *Progress // the last report of the attempt
	for _, change := range changes {
		for _, e := range change.Record.Events {
			if entry, ok := trailEntry(e, agent); ok {
				entry.At = e.When()
				entry.Words, entry.Assessment = CutText(entry.Words, TrailWordsBytesMax), CutText(entry.Assessment, TrailWordsBytesMax)
				switch e.(type) {
				case *Failed, *LeaseLost, *TimedOut:
					entry.Progress, reported = reported, nil
				}
				trail = append(trail, entry)
			}
			switch e := e.(type) {
			case *Offered:
				agent = e.Agent
			case *Accepted:
				agent, reported = e.Agent, nil
			case *Taken:
				agent, reported = e.Agent, nil
			case *Progressed:
				reported = trailProgress(e.Progress)
			}
		}
		if len(trail) > 2*TrailMax { // a long history keeps no more than it needs
			trail = slices.Clone(trail[len(trail)-TrailMax:])
		}
	}
	return trail[max(0, len(trail)-TrailMax):]
}

// trailEntry is what an event leaves in the trail, if anything. agent is who
// had the handoff before it.
func trailEntry(e Event, agent string) (TrailEntry, bool) {
	entry := TrailEntry{Event: e.EventType(), Agent: agent}
	switch e := e.(type) {
	case *Rejected:
		entry.Agent, entry.To, entry.Code, entry.Words = e.Agent, e.Alternative, e.ReasonCode, e.Reason
	case *Conditioned:
		if len(e.NeedsContext)+len(e.NeedsPermission) == 0 {
			return TrailEntry{}, false
		}
		entry.Agent, entry.Words = e.Agent, askedFor(e)
	case *Answered:
		entry.Agent, entry.To, entry.Words = e.Answer.By, agent, e.Answer.Text
		if entry.Agent == "" {
			entry.Agent = e.By
		}
		switch {
		case e.Answer.Deny:
			entry.Code, entry.Words = "deny", e.Answer.DenyReason
			if entry.Words == "" {
				entry.Words = e.Answer.Text
			}
		case e.Answer.Permit:
			entry.Code = "permit"
		}
	case *Escalated:
		entry.Agent, entry.To, entry.Words = e.From, e.To, e.Reason
		entry.Assessment, entry.Level = e.Assessment, e.Level
	case *Rerouted:
		entry.Agent, entry.To, entry.Words = e.From, e.To, e.Reason
		if e.Manual {
			entry.Code = "manual"
		}
	case *TimedOut:
		entry.Code = string(e.Clock)
		if e.Agent != "" {
			entry.Agent = e.Agent
		}
	case *LeaseLost:
		entry.Code = e.Reason
	case *Failed:
		entry.Code, entry.Words = e.Code, e.Message
	case *Submitted:
		if e.Summary.Origin == "" {
			return TrailEntry{}, false
		}
		entry = TrailEntry{Event: EventRedriven, Agent: e.By, Words: "redrive of " + e.Summary.Origin}
	default:
		return TrailEntry{}, false
	}
	return entry, true
}

// trailProgress is a report as a trail has it: bounded, and without usage, which is counted elsewhere.
func trailProgress(p Progress) *Progress {
	p.Message, p.Usage = CutText(p.Message, TrailWordsBytesMax), nil
	if len(p.Details) > TrailWordsBytesMax {
		p.Details = nil
	}
	return &p
}

// askedFor says in words what a conditional asks for.
func askedFor(e *Conditioned) string {
	var parts []string
	if len(e.NeedsContext) > 0 {
		parts = append(parts, "needs context: "+strings.Join(e.NeedsContext, ", "))
	}
	if len(e.NeedsPermission) > 0 {
		parts = append(parts, "needs permission: "+strings.Join(e.NeedsPermission, ", "))
	}
	if e.Reason != "" {
		parts = append(parts, e.Reason)
	}
	return strings.Join(parts, "; ")
}
