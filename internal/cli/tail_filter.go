package cli

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"time"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/protocol"
)

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
	return nil
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
