package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/dossier"
	"github.com/agenthandoff/handoff/explain"
	"github.com/agenthandoff/handoff/protocol"
)

func newTail(a *app) *cobra.Command {
	var (
		filter tailFilter
		since  string
		limit  int
	)
	cmd := &cobra.Command{
		Use:   "tail",
		Short: "Print what happens to handoffs, as it happens",
		Long: `Tail prints every event of the ledger as it happens, one line each: when (UTC), ticket,
agent, what, by whom, and what else there is to say. It goes on until Ctrl-C. Where it is
cut off from the engine it says so, waits, and goes on behind the last event that it had:
none is left out and none comes twice.

--agent, --conversation, --ticket and --source choose; given twice, one of the two will
do. An event is an agent's when the handoff stands with it, or leaves it.

--since begins in the past: so long ago (10m), at an instant, or with an entry of the
ledger by its number (1 is the first).

On a terminal too narrow for it the ticket is cut to its first eight characters. With
-o json or jsonl each entry of the ledger is complete: its sequence, its hash, its events
and the state of the handoff after them.

Exit codes: 130 ended by Ctrl-C; 0 ended by --limit; 6 no engine to begin with.`,
		Example: `  handoff tail
  handoff tail --agent reviewer --since 10m
  handoff tail --ticket 5f0c… --since 1
  handoff tail -o jsonl | jq -r 'select(.state.closed) | [.ticket, .state.outcome] | @tsv'`,
		Args: takes(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if limit < 0 {
				return usagef("--limit %d: print at least one entry, or leave it out", limit)
			}
			if err := filter.check(); err != nil {
				return err
			}
			begin, err := parseSince(since, time.Now())
			if err != nil {
				return err
			}
			return a.tail(cmd.Context(), filter, begin, limit)
		},
	}
	fs := cmd.Flags()
	fs.StringArrayVar(&filter.agents, "agent", nil, "events of this `AGENT`; repeatable")
	fs.StringArrayVar(&filter.conversations, "conversation", nil, "events of the handoffs of this conversation; repeatable")
	fs.StringArrayVar(&filter.tickets, "ticket", nil, "events of this handoff; repeatable")
	fs.StringArrayVar(&filter.sources, "source", nil, "events of what this agent handed over; repeatable")
	fs.StringVar(&since, "since", "", "begin so long ago (10m), at an instant, or with an entry (its number)")
	fs.IntVar(&limit, "limit", 0, "end after so many entries; each may hold several events")
	a.agentFlags(cmd, "agent", "source")
	return cmd
}

// tailFilterMax is how many values one flag of tail may have.
const tailFilterMax = 64

// tailFilter selects entries: by all fields that have values, by any value of a field.
type tailFilter struct{ agents, conversations, tickets, sources []string }

func (f *tailFilter) check() error {
	for name, values := range map[string][]string{"agent": f.agents, "conversation": f.conversations, "ticket": f.tickets, "source": f.sources} {
		if len(values) > tailFilterMax {
			return protocol.Errorf(protocol.CodeTooLarge, name, "has %d values, at most %d are allowed", len(values), tailFilterMax)
		}
	}
	for name, values := range map[string][]string{"agent": f.agents, "source": f.sources} {
		for _, id := range values {
			if err := protocol.CheckID(name, id); err != nil {
				return err
			}
		}
	}
	for _, text := range f.conversations {
		if text == "" {
			return protocol.Errorf(protocol.CodeMissing, "conversation", "is empty; give the id of a conversation")
		}
		if err := checkWords("conversation", text); err != nil {
			return err
		}
	}
	var err error
	f.tickets, err = parseTickets(f.tickets)
	return err
}

func (f *tailFilter) matches(c protocol.Change) bool {
	s := c.Record.State
	has := func(values []string, of ...string) bool {
		return len(values) == 0 || slices.ContainsFunc(of, func(v string) bool { return slices.Contains(values, v) })
	}
	return has(f.tickets, s.Ticket) && has(f.conversations, s.ConversationID) && has(f.sources, s.Source) &&
		has(f.agents, agentsOf(c)...)
}

// agentsOf are the agents that an entry concerns: where the handoff stands after
// it, and whom it leaves.
func agentsOf(c protocol.Change) []string {
	agents := []string{c.Record.State.Agent}
	for _, e := range c.Record.Events {
		switch e := e.(type) {
		case *protocol.Rerouted:
			agents = append(agents, e.From)
		case *protocol.Escalated:
			agents = append(agents, e.From)
		case *protocol.Rejected:
			agents = append(agents, e.Agent)
		case *protocol.TimedOut:
			agents = append(agents, e.Agent)
		}
	}
	return agents
}

// beginning is where a tail begins: at an entry, at an instant, or (the zero
// value) behind the last entry there is.
type beginning struct {
	seq   uint64
	bySeq bool
	at    time.Time
}

func parseSince(text string, now time.Time) (beginning, error) {
	if text == "" {
		return beginning{}, nil
	}
	if seq, err := strconv.ParseUint(text, 10, 64); err == nil {
		return beginning{seq: seq, bySeq: true}, nil
	}
	at, err := parsePast(text, now)
	if err != nil {
		return beginning{}, protocol.Errorf(protocol.CodeInvalid, "since", "%q is neither a duration (10m, 2h), nor an instant (2026-01-31T17:00:00Z), nor the number of an entry", text)
	}
	return beginning{at: at}, nil
}

// find returns the sequence of the first entry to print.
func (w beginning) find(ctx context.Context, b *broker.Broker, l broker.LedgerInfo) (uint64, error) {
	switch {
	case w.bySeq && w.seq > l.Last+1:
		return 0, protocol.Errorf(protocol.CodeInvalid, "since", "is entry %d, and the ledger ends with %d", w.seq, l.Last)
	case w.bySeq:
		return max(w.seq, l.First), nil
	case w.at.IsZero():
		return l.Last + 1, nil
	}
	e, err := b.Since(ctx, w.at)
	if errors.Is(err, broker.ErrNotFound) {
		return l.Last + 1, nil
	}
	return e.Seq, err
}

// errEnough ends a tail that has printed what it was asked for.
var errEnough = errors.New("enough")

func (a *app) tail(ctx context.Context, filter tailFilter, begin beginning, limit int) error {
	b, done, err := a.connect(ctx)
	if err != nil {
		return err
	}
	defer done()
	ledger, err := b.LedgerInfo(ctx)
	if err != nil {
		return err
	}
	from, err := begin.find(ctx, b, ledger)
	if err != nil {
		return err
	}
	lines := &tailLines{a: a, day: time.Now().UTC().Format(time.DateOnly)}
	printed := 0
	err = followLedger(ctx, b, ledger, from, func(word string) { a.notef("handoff: %s\n", word) }, func(e broker.Entry) error {
		change, err := broker.DecodeChange(e)
		if err != nil {
			a.notef("handoff: %v\n", err)
			return nil
		}
		if !filter.matches(change) {
			return nil
		}
		if err := lines.print(change); err != nil {
			return err
		}
		if printed++; printed == limit {
			return errEnough
		}
		return nil
	})
	if errors.Is(err, errEnough) {
		return nil
	}
	return err
}

// tailView is an entry of the ledger for programs that follow it.
type tailView struct {
	Ticket string `json:"ticket"`
	dossier.Change
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
		return l.a.value(tailView{Ticket: c.Record.State.Ticket, Change: views[0]})
	}
	s := c.Record.State
	for _, e := range c.Record.Events {
		at := e.When().UTC()
		if day := at.Format(time.DateOnly); day != l.day {
			l.day = day
			l.a.printf("-- %s\n", day)
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
