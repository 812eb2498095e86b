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

	"github.com/cenkalti/backoff/v4"
	"github.com/spf13/cobra"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/dossier"
	"github.com/agenthandoff/handoff/internal/explain"
	"github.com/agenthandoff/handoff/protocol"
)

func newTail(a *app) *cobra.Command {
	var filter tailFilter
	cmd := &cobra.Command{
		Use:   "tail",
		Short: "Print the events of handoffs as they happen",
		Long: `Tail prints every event of the ledger as it happens, one line each: when (UTC), ticket,
agent, event, by whom, and its facts. It goes on until Ctrl-C. If it loses the engine it
prints a warning, waits, and goes on behind the last event that it had: none is left out
and none comes twice.

--agent, --conversation, --ticket and --source choose; given twice, one of the two will
do. An event is an agent's if the agent has the handoff, or loses it.

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
			if filter.Limit < 0 {
				return usagef("--limit %d: print at least one entry, or leave it out", filter.Limit)
			}
			if err := filter.check(); err != nil {
				return err
			}
			begin, err := parseSince(filter.Since, time.Now())
			if err != nil {
				return err
			}
			if err := a.tickets(cmd.Context(), filter.Tickets); err != nil {
				return err
			}
			return a.tail(cmd.Context(), filter, begin)
		},
	}
	bind(cmd.Flags(), &filter)
	return cmd
}

// errEnough ends a tail that has printed the entries asked for.
var errEnough = errors.New("enough")

func (a *app) tail(ctx context.Context, filter tailFilter, begin beginning) error {
	b, done, err := a.connect(ctx)
	if err != nil {
		return err
	}
	defer done()
	a.noteUnknown(ctx, b, filter.Agents)
	ledger, err := b.LedgerInfo(ctx)
	if err != nil {
		return err
	}
	from, err := begin.find(ctx, b, ledger)
	if err != nil {
		return err
	}
	lines := &tailLines{a: a}
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
		if printed++; printed == filter.Limit {
			return errEnough
		}
		return nil
	})
	if errors.Is(err, errEnough) {
		return nil
	}
	return err
}

// tailFilterMax is how many values one flag of tail may have.
const tailFilterMax = 64

// tailFilter selects entries: by all fields that have values, by any value of a field.
type tailFilter struct {
	Agents        []string `flag:"agent,,each" doc:"events of this {AGENT}; repeatable"`
	Conversations []string `flag:"conversation,,each" doc:"events of the handoffs of this conversation; repeatable"`
	Tickets       []string `flag:"ticket,,each" doc:"events of this handoff; repeatable"`
	Sources       []string `flag:"source,,each" doc:"from this {AGENT}, schedule:NAME or signal:NAME; repeatable"`
	Since         string   `flag:"since" doc:"begin so long ago (10m), at an instant, or with an entry (its number)"`
	Limit         int      `flag:"limit" doc:"end after so many entries; each may hold several events"`
}

func (f *tailFilter) check() error {
	for name, values := range map[string][]string{"agent": f.Agents, "conversation": f.Conversations, "ticket": f.Tickets, "source": f.Sources} {
		if len(values) > tailFilterMax {
			return protocol.Errorf(protocol.CodeTooLarge, name, "has %d values, at most %d are allowed", len(values), tailFilterMax)
		}
	}
	if err := cmp.Or(checkAgents("agent", f.Agents), checkAgents("source", f.Sources)); err != nil {
		return err
	}
	for _, text := range f.Conversations {
		if text == "" {
			return protocol.Errorf(protocol.CodeMissing, "conversation", "is empty; give the id of a conversation")
		}
		if err := checkWords("conversation", text); err != nil {
			return err
		}
	}
	return nil
}

func (f *tailFilter) matches(c protocol.Change) bool {
	s := c.Record.State
	has := func(values []string, of ...string) bool {
		return len(values) == 0 || slices.ContainsFunc(of, func(v string) bool { return slices.Contains(values, v) })
	}
	return has(f.Tickets, s.Ticket) && has(f.Conversations, s.ConversationID) && has(f.Sources, s.Source, s.From()) &&
		has(f.Agents, explain.AgentsOf(c)...)
}

// beginning is where a tail begins: with the first entry there is, at an entry of each partition or of
// one, at an instant, or (the zero value) behind the last entry there is.
type beginning struct {
	first bool
	place broker.Cursor // nil is none
	at    time.Time
}

func parseSince(text string, now time.Time) (beginning, error) {
	if text == "" {
		return beginning{}, nil
	}
	if seq, err := strconv.ParseUint(text, 10, 64); err == nil && broker.PartitionOf(seq) < broker.PartitionsMax {
		return beginning{first: seq <= 1, place: broker.From(seq)}, nil
	}
	if place, err := broker.ParseCursor(text); err == nil {
		return beginning{place: place}, nil
	}
	at, err := parsePast(text, now)
	if err != nil {
		return beginning{}, protocol.Errorf(protocol.CodeInvalid, "since", "%q is neither a duration (10m, 2h), nor an instant (2026-01-31T17:00:00Z), nor the number of an entry", text)
	}
	return beginning{at: at}, nil
}

// find returns the place of the first entries to print. A partition that the beginning does not name
// begins at its end.
func (w beginning) find(ctx context.Context, b *broker.Broker, l broker.LedgerInfo) (broker.Cursor, error) {
	switch {
	case w.first:
		return l.Begin(), nil
	case !w.at.IsZero():
		return b.Since(ctx, w.at)
	}
	from := l.End()
	for p, next := range w.place {
		switch {
		case next == 0:
		case p >= len(from):
			return nil, protocol.Errorf(protocol.CodeInvalid, "since", "is entry %d, and the ledger has no partition of it", next)
		case next > from[p]:
			return nil, protocol.Errorf(protocol.CodeInvalid, "since", "is entry %d, and the ledger ends with %d", next, from[p]-1)
		default:
			from[p] = max(next, l.Partitions()[p].First)
		}
	}
	return from, nil
}

// tailed is the part of an engine that followLedger uses.
type tailed interface {
	LedgerInfo(ctx context.Context) (broker.LedgerInfo, error)
	Tail(ctx context.Context, from broker.Cursor, fn func(broker.Entry) error) error
}

// followLedger gives fn every entry of a ledger behind next, those of a partition in order, each once,
// until ctx ends or fn returns an error, which it returns. Where the engine does not answer it
// waits for it for as long as ctx lives. say gets the words for the cut, the resumption and missing
// entries, if any.
func followLedger(ctx context.Context, b tailed, ledger broker.LedgerInfo, next broker.Cursor, say func(string), fn func(broker.Entry) error) error {
	pauses := backoff.NewExponentialBackOff(backoff.WithInitialInterval(20*time.Millisecond),
		backoff.WithMaxInterval(2*time.Second), backoff.WithMaxElapsedTime(0))
	for {
		var mine error // of fn
		begun := time.Now()
		err := b.Tail(ctx, slices.Clone(next), func(e broker.Entry) error {
			if mine = fn(e); mine == nil {
				next.Pass(e.Seq)
			}
			return mine
		})
		switch {
		case mine != nil:
			return mine
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil && !errors.Is(err, broker.ErrUnreachable) && !errors.Is(err, broker.ErrLedgerChanged):
			return err
		}
		if time.Since(begun) > pauses.MaxInterval {
			pauses.Reset()
		}
		if next, ledger, err = resumeLedger(ctx, b, ledger, next, pauses, say); err != nil {
			return err
		}
	}
}

// resumeTry is how long the engine may be silent before the reader is informed.
const resumeTry = time.Second

// resumeLedger waits until the ledger can be asked again, and returns the place to go on with.
func resumeLedger(ctx context.Context, b tailed, was broker.LedgerInfo, next broker.Cursor, pauses backoff.BackOff, say func(string)) (broker.Cursor, broker.LedgerInfo, error) {
	for told := false; ; {
		select {
		case <-ctx.Done():
			return nil, was, ctx.Err()
		case <-time.After(pauses.NextBackOff()):
		}
		try, cancel := context.WithTimeout(ctx, resumeTry)
		is, err := b.LedgerInfo(try)
		cancel()
		switch {
		case err == nil:
			from, words := goOn(was, is, next)
			if told && words == "" {
				words = fmt.Sprintf("the engine answers again; going on with entry %v, nothing is left out", next)
			}
			if words != "" {
				say(words)
			}
			return from, is, nil
		case ctx.Err() != nil:
			return nil, was, ctx.Err()
		case !errors.Is(err, broker.ErrUnreachable) && !errors.Is(err, context.DeadlineExceeded):
			return nil, was, err
		case !told:
			told = true
			say(fmt.Sprintf("cut off from the engine behind entry %s; waiting for it", lastRead(next)))
		}
	}
}

// lastRead names the last entry that was read, or the place in a ledger of several partitions.
func lastRead(next broker.Cursor) string {
	if len(next) > 1 {
		return next.String()
	}
	return fmt.Sprint(max(next.Next(0), 1) - 1)
}

// goOn returns the place at which a reader that has read up to next goes on, and in words the entries
// that no longer exist; empty where nothing is missing.
func goOn(was, is broker.LedgerInfo, next broker.Cursor) (from broker.Cursor, words string) {
	if !is.Created.Equal(was.Created) {
		return is.Begin(), "the ledger is another one now; going on with its first entry"
	}
	var missing []string
	for p, part := range is.Partitions() {
		at := max(next.Next(p), broker.PartitionBase(p)+1) // a new partition is read from its beginning
		switch {
		case at < part.First:
			missing = append(missing, fmt.Sprintf("the ledger has dropped entries %d to %d for their age; going on with %d", at, part.First-1, part.First))
			at = part.First
		case at > part.Last+1:
			missing = append(missing, fmt.Sprintf("the ledger has lost entries %d to %d, which were shown here; going on with the entries in their place", part.Last+1, at-1))
			at = part.Last + 1
		}
		from = append(from, at)
	}
	return from, strings.Join(missing, "; ")
}

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
	// ticketWords is the part of a ticket that distinguishes it from its neighbours on a screen.
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
