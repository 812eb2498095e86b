package broker

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/protocol/lifecycle"
	"github.com/agenthandoff/handoff/protocol/schema"
)

const (
	// profileFresh is how long a profile that was read at the leader serves the
	// submissions of this process. One that submits now and then asks each time;
	// one that submits all the time asks a few times a second. What another
	// process changed meanwhile is not seen for as long: the handoff is as one
	// that was submitted a moment earlier. Who is to be refused is asked for again.
	profileFresh = 250 * time.Millisecond
	// profilesMax bounds the agents that are remembered. Over it all are forgotten.
	profilesMax = 10_000
)

// profiles remembers the agents that were read a moment ago, each as a directory
// with no other. What this process itself has written is never older there.
type profiles struct {
	mu     sync.Mutex
	recent map[string]*recentProfile
	writes uint64 // of this process, also those under way
}

type recentProfile struct {
	directory *lifecycle.Directory
	at        time.Time // it was asked for
	renewing  bool      // a caller has gone to ask again
}

// lookup returns what is remembered of an agent, for as long as fresh says. nil is to be asked for,
// and remembered under the count of writes that is returned. A directory without an agent says that
// there was none.
func (p *profiles) lookup(agent string, now time.Time, fresh time.Duration) (known *lifecycle.Directory, writes uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	r := p.recent[agent]
	if r == nil {
		return nil, p.writes
	}
	age := now.Sub(r.at)
	if age < 0 || age >= fresh {
		return nil, p.writes
	}
	if age >= fresh/2 && !r.renewing { // one goes, so that not all do a little later
		r.renewing = true
		return nil, p.writes
	}
	return r.directory, p.writes
}

// remember keeps what was read, unless this process has written since.
func (p *profiles) remember(agent string, d *lifecycle.Directory, asked time.Time, writes uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.writes != writes {
		return
	}
	if p.recent == nil || len(p.recent) >= profilesMax {
		p.recent = map[string]*recentProfile{}
	}
	p.recent[agent] = &recentProfile{directory: d, at: asked}
}

// invalidate is called when a write of this process begins, and when it has ended:
// it may have happened whatever was answered.
func (p *profiles) invalidate(agent string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.writes++
	delete(p.recent, agent)
}

// PutProfile registers or replaces an agent, whose contract can be used. What this process
// submits behind it goes by the new profile.
func (b *Broker) PutProfile(ctx context.Context, p protocol.Profile) error {
	if err := protocol.CheckBy("id", p.ID); err != nil {
		return err
	}
	b.profiles.invalidate(p.ID)
	defer b.profiles.invalidate(p.ID)
	if err := schema.CheckContract(p.Contract); err != nil {
		return err
	}
	return b.directory.PutProfile(ctx, p)
}

// RemoveProfile forgets an agent, and when it last polled. Its queue and offers stay.
func (b *Broker) RemoveProfile(ctx context.Context, agent string) error {
	b.profiles.invalidate(agent)
	defer b.profiles.invalidate(agent)
	if err := b.directory.RemoveProfile(ctx, agent); err != nil {
		return err
	}
	return b.directory.RemoveHolder(ctx, protocol.PollerID(agent))
}

// Profile reads an agent from the leader, and remembers it for what this process does
// next; ErrNotFound.
func (b *Broker) Profile(ctx context.Context, agent string) (protocol.Profile, error) {
	now := b.clock()
	_, writes := b.profiles.lookup(agent, now, profileFresh)
	p, err := b.directory.Profile(ctx, agent)
	if err == nil {
		b.profiles.remember(agent, directoryOf(p), now, writes)
	}
	return p, err
}

func directoryOf(p protocol.Profile) *lifecycle.Directory {
	return &lifecycle.Directory{Agents: map[string]protocol.Profile{p.ID: p}}
}

// directoryFor reads as little of the directory as the target needs: one agent by name, at the
// leader, the source where its profile says what it hands off, and the settings of the fleet; all
// of it, as this process knows it, for a capability.
func (b *Broker) directoryFor(ctx context.Context, s protocol.Summary) (*lifecycle.Directory, error) {
	if s.Target.Agent == "" || len(s.Excluded) > 0 { // another agent may stand in
		return b.Directory(ctx)
	}
	return b.agentFor(ctx, s.Target.Agent, s, lifecycle.ReadsSource(s) || lifecycle.NeedsSource(s))
}

// checkApprover refuses a handoff that waits for an approver which its package names and that is not
// there.
func (b *Broker) checkApprover(ctx context.Context, s protocol.Summary, d *lifecycle.Directory) error {
	if s.Approval == nil || s.Approval.By == "" {
		return nil
	}
	if _, known := d.Agent(s.Approval.By); known {
		return nil
	}
	d, err := b.onlyAgent(ctx, s.Approval.By) // the snapshot may lag behind its registration
	if err != nil || len(d.Agents) > 0 {
		return err
	}
	return protocol.Errorf(protocol.CodeUnknownAgent, "approval.by", "no agent is called %s", s.Approval.By)
}

// agentFor reads one agent at the leader, with the settings of the fleet, and where readsSource says
// so with the source of a handoff.
func (b *Broker) agentFor(ctx context.Context, agent string, s protocol.Summary, readsSource bool) (*lifecycle.Directory, error) {
	d, err := b.onlyAgent(ctx, agent)
	if err == nil && readsSource {
		var source *lifecycle.Directory
		if source, err = b.onlyAgent(ctx, s.Source); err == nil {
			d = d.WithAgent(restricted(source, s.Source))
		}
	}
	if err != nil {
		return nil, err
	}
	if d, err = b.withFleet(ctx, d); err != nil {
		return nil, err
	}
	return b.withHealth(ctx, d, s.Target.Agent, true)
}

// onlyAgent is the directory with no more than one agent, as the leader has it.
func (b *Broker) onlyAgent(ctx context.Context, agent string) (*lifecycle.Directory, error) {
	profile, err := b.directory.Profile(ctx, agent)
	if errors.Is(err, ErrNotFound) {
		return &lifecycle.Directory{}, nil
	}
	if err != nil {
		return nil, err
	}
	return directoryOf(profile), nil
}

// recentAgent is onlyAgent as it was at most profileFresh ago, and tells whether it
// was remembered. An agent that is not there is always asked for.
func (b *Broker) recentAgent(ctx context.Context, agent string) (d *lifecycle.Directory, remembered bool, err error) {
	now := b.clock()
	known, writes := b.profiles.lookup(agent, now, profileFresh)
	if known != nil && len(known.Agents) > 0 {
		return known, true, nil
	}
	if d, err = b.onlyAgent(ctx, agent); err == nil && len(d.Agents) > 0 {
		b.profiles.remember(agent, d, now, writes)
	}
	return d, false, err
}

// decideSubmission decides the first append of a handoff that has no members. Before it is
// refused by a profile that is only remembered the leader is asked.
func (b *Broker) decideSubmission(ctx context.Context, in Prepared) (lifecycle.Step, *lifecycle.Directory, error) {
	ticket, s := in.Ticket, in.summary
	fleet, err := b.recentFleet(ctx)
	if err != nil {
		return lifecycle.Step{}, nil, err
	}
	source, sourceRemembered, err := b.recentSource(ctx, s)
	if err != nil {
		return lifecycle.Step{}, nil, err
	}
	decide := func(d *lifecycle.Directory) (lifecycle.Step, *lifecycle.Directory, error) {
		d = withContract(d, in.Body, &in.Package.Context)
		step, err := lifecycle.Submit(ticket, s, protocol.Submitted{}, d, b.now(Head{}))
		if err == nil && step.Gates() { // who is above its source is to be known
			if d, err = b.Directory(ctx); err == nil {
				d = withContract(d, in.Body, &in.Package.Context)
				step, err = lifecycle.Submit(ticket, s, protocol.Submitted{}, d, b.now(Head{}))
			}
			if err == nil {
				err = b.checkApprover(ctx, s, d)
			}
		}
		return step, d, err
	}
	moved, moves := lifecycle.MovesTarget(ticket, s, fleet)
	if s.Target.Agent != "" && len(s.Excluded) == 0 && !moves {
		directory, remembered, err := b.recentAgent(ctx, s.Target.Agent)
		if err == nil {
			directory, err = b.withHealth(ctx, directory.WithAgent(source).WithFleet(fleet), s.Target.Agent, false)
		}
		if err != nil {
			return lifecycle.Step{}, nil, err
		}
		if step, directory, err := decide(directory); err == nil || !remembered && (source == nil || !sourceRemembered) {
			return step, directory, err
		}
	}
	directory, err := b.directoryFor(ctx, s)
	if err == nil && moves { // either of them may get it
		directory, err = b.alsoFor(ctx, directory, s, moved)
	}
	if err != nil {
		return lifecycle.Step{}, nil, err
	}
	return decide(directory)
}

// alsoFor adds the target of a variant to the directory for a submission.
func (b *Broker) alsoFor(ctx context.Context, d *lifecycle.Directory, s protocol.Summary, to protocol.Target) (*lifecycle.Directory, error) {
	if to.Agent == "" || s.Target.Agent == "" {
		return b.Directory(ctx)
	}
	other, err := b.onlyAgent(ctx, to.Agent)
	if err != nil {
		return nil, err
	}
	if profile, known := other.Agents[to.Agent]; known {
		d = d.WithAgent(&profile)
	}
	return b.withHealth(ctx, d, to.Agent, true)
}
