package broker

import (
	"context"
	"time"

	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/protocol/lifecycle"
)

// sourceFresh is how long the profile of a source serves what it hands off, and the absence of one,
// as the settings of the fleet do: the worker that serves the source has just read it as a rule, and
// a source without a profile is asked for no more often. Before a handoff is refused by a profile
// that is only remembered the leader is asked.
const sourceFresh = 10 * time.Second

// recentSource is the profile of the source of a handoff, where that says what the source may hand
// off; else nil. It tells whether it was remembered. A process that watches the directory reads
// nothing.
func (b *Broker) recentSource(ctx context.Context, s protocol.Summary) (source *protocol.Profile, remembered bool, err error) {
	if !lifecycle.ReadsSource(s) && !lifecycle.NeedsSource(s) {
		return nil, false, nil
	}
	if b.watching.Load() {
		d, err := b.directory.Directory(ctx)
		return restricted(d, s.Source), true, err
	}
	now := b.clock()
	known, writes := b.profiles.lookup(s.Source, now, sourceFresh)
	if known != nil {
		return restricted(known, s.Source), true, nil
	}
	d, err := b.onlyAgent(ctx, s.Source)
	if err != nil {
		return nil, false, err
	}
	b.profiles.remember(s.Source, d, now, writes)
	return restricted(d, s.Source), false, nil
}

// restricted is an agent of a directory if its profile says what it may hand off, else nil.
func restricted(d *lifecycle.Directory, agent string) *protocol.Profile {
	if d == nil {
		return nil
	}
	profile := d.Agents[agent]
	if !profile.RestrictsHandoffs() {
		return nil
	}
	own := profile // so that only this one is allocated
	return &own
}
