package cli

import (
	"cmp"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/agenthandoff/handoff/internal/dossier"
	"github.com/agenthandoff/handoff/internal/explain"
	"github.com/agenthandoff/handoff/protocol"
)

// tailView is an entry of the ledger for programs that follow it.
type tailView struct {
	Ticket string `json:"ticket"`
	dossier.HistoryEntry
}

// tailLines prints entries, for people one line for each event.
type tailLines struct {
	a     *app
	day   string // of the last line
	agent int    // how wide the column of the agent is by now
}

const (
	// ticketWords is how much of a ticket is enough to tell it from its
	// neighbours on a screen.
	ticketWords = 8
	// tailWide is from how many columns on there is room for whole tickets.
	tailWide = 140
	// agentColumn is how wide the column of the agent may get; a longer name
	// pushes its line to the right.
	agentColumn = 24
)

func (l *tailLines) print(c protocol.Change) error {
	if !l.a.text() {
		views, err := dossier.History([]protocol.Change{c})
		if err != nil {
			return err
		}
		return l.a.value(tailView{Ticket: c.Record.State.Ticket, HistoryEntry: views[0]})
	}
	s := c.Record.State
	for _, e := range c.Record.Events {
		at := e.When().UTC()
		if day := at.Format(time.DateOnly); day != l.day {
			l.day = day
			l.a.printf("-- %s (UTC)\n", day)
		}
		l.a.printf("%s\n", l.line(at, s, e))
	}
	return nil
}

func (l *tailLines) line(at time.Time, s protocol.State, e protocol.Event) string {
	ticket := s.Ticket
	if l.a.width > 0 && l.a.width < tailWide {
		ticket = ticket[:min(ticketWords, len(ticket))]
	}
	agent := cmp.Or(s.Agent, "-")
	l.agent = min(max(l.agent, utf8.RuneCountInString(agent)), agentColumn)
	by, detail := explain.Event(e)
	line := fmt.Sprintf("%s  %s  %-*s  %-15s  by %s", at.Format("15:04:05.000"), ticket, l.agent, agent, eventWord(e), explain.By(by))
	if detail != "" {
		line += ": " + detail
	}
	if l.a.width > 0 {
		line = cutColumns(line, l.a.width)
	}
	return line
}

// eventWord is the name of an event as people write it.
func eventWord(e protocol.Event) string { return strings.ReplaceAll(string(e.EventType()), "_", " ") }
