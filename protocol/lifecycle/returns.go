package lifecycle

import p "github.com/agenthandoff/handoff/protocol"

// stepClosed sends the return of a closed handoff on its way, if its source is
// an agent of the directory; any other source reads it by ticket.
func stepClosed(s p.State, d *Directory, meta p.Meta) []p.Event {
	if !hasReturnDue(s) || s.ReturnTicket != "" || wakesParent(s) || !servesQueue(s.Source, d) {
		return nil
	}
	return []p.Event{&p.ReturnSent{Meta: meta, Ticket: p.ReturnTicket(s.Ticket), To: s.Source}}
}

// hasReturnDue tells whether the source of a closed handoff has yet to get its
// return. A return expects none; a rollback is one.
func hasReturnDue(s p.State) bool {
	return HasEnded(s) && s.ReturnedAt.IsZero() && s.ReturnOf == "" && (s.ReturnExpected || s.Outcome == p.OutcomeRolledBack)
}

// wakesParent tells whether the return is not delivered but wakes the parent
// that waits for it.
func wakesParent(s p.State) bool { return s.Wait == "block" && s.Parent != "" && s.N > 0 }

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
	return s.ReturnTicket == "" && !wakesParent(s) && !servesQueue(s.Source, d)
}

// sourceInbox is the inbox in which what came back is listed: a person's, where
// the source serves no queue.
func sourceInbox(s p.State, d *Directory) string {
	if servesQueue(s.Source, d) {
		return ""
	}
	return p.Human
}
