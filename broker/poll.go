package broker

import (
	"context"
	"errors"
	"time"

	"github.com/agenthandoff/handoff/protocol"
)

// pollRecordMax is the longest time between two records of the polling of an agent that polls all the
// time: how old "last polled" may be shown.
const pollRecordMax = 10 * time.Second

// pollRecordInterval is the time between two records: a tenth of the patience at most, so
// that it never lapses between two polls that are close enough.
func pollRecordInterval(patience time.Duration) time.Duration { return min(patience/10, pollRecordMax) }

// Beat registers a holder, or prolongs its presence by its lease. That of one that
// polls says when its agent was last heard of.
func (b *Broker) Beat(ctx context.Context, h protocol.Holder) error {
	if h.Polling {
		h.PolledAt = b.clock().UTC().Truncate(time.Millisecond)
	}
	return b.directory.Beat(ctx, h)
}

// RecordPoll makes an agent present for its patience from now on, because it has
// asked for work. It reads one entry, and writes it only where that is older than
// pollRecordInterval. A person is present without it.
func (b *Broker) RecordPoll(ctx context.Context, agent protocol.Profile) error {
	if agent.ID == protocol.Human {
		return nil
	}
	patience := agent.PollPatience()
	note := protocol.Holder{ID: protocol.PollerID(agent.ID), Agent: agent.ID, LeaseMS: patience.Milliseconds(), Polling: true}
	last, err := b.directory.Holder(ctx, note.ID)
	switch age := b.clock().Sub(last.PolledAt); {
	case errors.Is(err, ErrNotFound):
	case err != nil:
		return err
	case last.LeaseMS == note.LeaseMS && age >= 0 && age < pollRecordInterval(patience):
		return nil
	}
	return b.Beat(ctx, note)
}

// EndPolling ends the presence of a claim that holds nothing any more. Its agent
// stays present for its patience.
func (b *Broker) EndPolling(ctx context.Context, h protocol.Holder) error {
	directory, _, err := b.recentAgent(ctx, h.Agent)
	if err == nil {
		if profile, known := directory.Agents[h.Agent]; known {
			err = b.RecordPoll(ctx, profile)
		}
	}
	return errors.Join(err, b.directory.RemoveHolder(ctx, h.ID))
}
