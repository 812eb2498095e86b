package lifecycle

import (
	"time"

	p "github.com/agenthandoff/handoff/protocol"
)

// stepClosed sends the return of a closed handoff on its way, if its source is
// an agent of the directory; any other source reads it by ticket.
func stepClosed(s p.State, d *Directory, meta p.Meta) []p.Event {
	if !hasReturnDue(s) || s.ReturnTicket != "" || wakesParent(s) || !servesQueue(s.Source, d) {
		return nil
	}
	return []p.Event{&p.ReturnSent{Meta: meta, Ticket: p.ReturnTicket(s.Ticket), To: s.Source}}
}

// hasReturnDue reports whether the source of a closed handoff, or its parent, has yet to get its
// end. A return expects none; a rollback is one.
func hasReturnDue(s p.State) bool {
	return HasEnded(s) && s.ReturnedAt.IsZero() && s.ReturnOf == "" && (s.ReturnExpected || s.Outcome == p.OutcomeRolledBack || wakesParent(s))
}

// isChild reports whether another handoff has handed this one off.
func isChild(s p.State) bool { return s.Parent != "" && s.N > 0 }

// wakesParent reports whether the end of a child comes back to its parent, with the next claim of
// that, as long as the parent is open.
func wakesParent(s p.State) bool { return s.Wait == p.WaitBlock && isChild(s) }

// ComesBack reports whether the end of a closed child waits for the next worker of its parent.
func ComesBack(s p.State) bool { return wakesParent(s) && endsUnsent(s) }

// endsUnsent reports whether the end of a child is due, and not on its way to its source.
func endsUnsent(s p.State) bool { return hasReturnDue(s) && s.ReturnTicket == "" && isChild(s) }

// SettleChild decides where the end of a child goes. It stays with its parent while that is open, or
// once a worker of that got it. Otherwise it goes to the queue of its source, or to the inbox of a
// person if the source serves none. A zero parent no longer exists. The step is empty if nothing is
// to be recorded.
func SettleChild(s, parent p.State, d *Directory, now time.Time) (Step, error) {
	meta := p.Meta{At: now, By: By}
	switch {
	case !endsUnsent(s):
		return Step{}, nil
	case wakesParent(s) && parent.Children != nil && parent.Children.Received.Has(s.N-1):
		return StepOf(s, &p.Returned{Meta: meta, Delivered: true})
	case wakesParent(s) && parent.Ticket != "" && !parent.Closed:
		return Step{}, nil
	case servesQueue(s.Source, d):
		return StepOf(s, &p.ReturnSent{Meta: meta, Ticket: p.ReturnTicket(s.Ticket), To: s.Source})
	}
	return StepOf(s, &p.Returned{Meta: meta, Reason: "its source serves no queue", Inbox: p.Human})
}

// servesQueue tells whether a return can be delivered to a source: it is an agent
// of the directory that takes handoffs.
func servesQueue(source string, d *Directory) bool {
	profile, known := d.Agent(source)
	return known && source != p.Human && profile.Accepts()
}

// ReturnSettled tells whether nothing will change any more about the return of a
// closed handoff, as d has its source: it has arrived, was given up, is not
// expected, or waits to be read by its ticket because the source serves no queue.
func ReturnSettled(s p.State, d *Directory) bool {
	if !hasReturnDue(s) {
		return HasEnded(s) || s.Closed && !s.ReturnExpected
	}
	return s.ReturnTicket == "" && !isChild(s) && !servesQueue(s.Source, d)
}

// sourceInbox is the inbox in which what came back is listed: a person's, where
// the source serves no queue.
func sourceInbox(s p.State, d *Directory) string {
	if servesQueue(s.Source, d) {
		return ""
	}
	return p.Human
}
