package lifecycle

import p "github.com/agenthandoff/handoff/protocol"

// stepClosed sends the return of a closed handoff on its way, if its source is
// an agent of the directory; whoever is none reads it by ticket.
func stepClosed(s p.State, d *Directory, meta p.Meta) []p.Event {
	if !owesReturn(s) || s.ReturnTicket != "" || parentWakes(s) || s.Source == p.Human {
		return nil
	}
	if profile, known := d.Agent(s.Source); !known || !profile.Accepts() {
		return nil
	}
	return []p.Event{&p.ReturnSent{Meta: meta, Ticket: p.ReturnTicket(s.Ticket), To: s.Source}}
}

// owesReturn tells whether the source of a closed handoff has yet to get its
// return. A return expects none; a rollback is one.
func owesReturn(s p.State) bool {
	return s.Closed && s.ReturnedAt.IsZero() && s.ReturnOf == "" && (s.ReturnExpected || s.Outcome == p.OutcomeRolledBack)
}

// parentWakes tells whether the return is not delivered but wakes the parent
// that waits for it.
func parentWakes(s p.State) bool { return s.Wait == "block" && s.Parent != "" && s.N > 0 }

// sourceInbox is the inbox in which what came back is listed: a person's, where
// the source serves no queue.
func sourceInbox(s p.State, d *Directory) string {
	if profile, known := d.Agent(s.Source); known && s.Source != p.Human && profile.Accepts() {
		return ""
	}
	return p.Human
}
