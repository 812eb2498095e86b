package broker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/agenthandoff/handoff/internal/lifecycle"
	"github.com/agenthandoff/handoff/internal/schema"
	"github.com/agenthandoff/handoff/protocol"
)

const (
	// profileFresh is how long this process uses a profile for its submissions after reading it from
	// the leader. A process that submits rarely reads it each time; one that submits continuously reads
	// it a few times per second. A change by another process is visible after that time: the handoff is
	// treated like one that was submitted a moment earlier. Before a refusal the profile is reread.
	profileFresh = 250 * time.Millisecond
	// cachedMax bounds the entries of a cache. Beyond it the cache is cleared.
	cachedMax = 10_000
)

// cache has what this process has read recently, by name. It is never older than this process's own
// writes.
type cache[T any] struct {
	early bool // one caller rereads a value that is half as old as it may be

	mu     sync.Mutex
	of     map[string]*cached[T]
	writes uint64 // of this process, including those in progress
}

type cached[T any] struct {
	value    T
	at       time.Time // when it was read
	renewing bool      // a caller is rereading it
}

// lookup returns a value unless it is older than fresh. If it is not known, the caller reads it, and
// remembers it under the returned count of writes.
func (c *cache[T]) lookup(name string, now time.Time, fresh time.Duration) (value T, known bool, writes uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	r := c.of[name]
	if r == nil {
		return value, false, c.writes
	}
	age := now.Sub(r.at)
	if age < 0 || age >= fresh {
		return value, false, c.writes
	}
	if c.early && age >= fresh/2 && !r.renewing { // so that not all callers reread it a little later
		r.renewing = true
		return value, false, c.writes
	}
	return r.value, true, c.writes
}

// remember keeps a value, unless this process has written since it was read.
func (c *cache[T]) remember(name string, value T, asked time.Time, writes uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.writes != writes {
		return
	}
	if c.of == nil || len(c.of) >= cachedMax {
		c.of = map[string]*cached[T]{}
	}
	c.of[name] = &cached[T]{value: value, at: asked}
}

// invalidate is called before and after a write of this process: the write may be stored even if it
// failed.
func (c *cache[T]) invalidate(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.writes++
	delete(c.of, name)
}

// PutProfile registers or replaces an agent with a usable contract. This process uses the new
// profile at once.
func (b *Broker) PutProfile(ctx context.Context, p protocol.Profile) error {
	if err := protocol.CheckBy("id", p.ID); err != nil {
		return err
	}
	b.profiles.invalidate(p.ID)
	defer b.profiles.invalidate(p.ID)
	if err := schema.CheckContract(p.Contract); err != nil {
		return err
	}
	return b.engine.PutProfile(ctx, p)
}

// RemoveProfile removes an agent, and the time of its last poll. Its queue and offers remain.
func (b *Broker) RemoveProfile(ctx context.Context, agent string) error {
	b.profiles.invalidate(agent)
	defer b.profiles.invalidate(agent)
	if err := b.engine.RemoveProfile(ctx, agent); err != nil {
		return err
	}
	return b.engine.RemoveHolder(ctx, protocol.PollerID(agent))
}

// Profile reads an agent from the leader, and caches it for this process; ErrNotFound.
func (b *Broker) Profile(ctx context.Context, agent string) (protocol.Profile, error) {
	now := b.clock()
	_, _, writes := b.profiles.lookup(agent, now, 0)
	p, err := b.engine.Profile(ctx, agent)
	if err == nil {
		b.profiles.remember(agent, &p, now, writes)
	}
	return p, err
}

// recentProfile is Profile for data of at most an age: nil is no such agent. It also returns whether
// the answer was cached. A missing agent is reread sooner: after 250 ms at most it may be there.
func (b *Broker) recentProfile(ctx context.Context, agent string, age time.Duration) (profile *protocol.Profile, remembered bool, err error) {
	now := b.clock()
	known, ok, writes := b.profiles.lookup(agent, now, age)
	if ok && (known != nil || age > profileFresh) {
		return known, true, nil
	}
	read, err := b.engine.Profile(ctx, agent)
	switch {
	case err == nil:
		profile = &read
	case !errors.Is(err, ErrNotFound):
		return nil, false, err
	}
	b.profiles.remember(agent, profile, now, writes)
	return profile, false, nil
}

// ownProfile returns the profile, never nil, of an agent whose handoffs this process works on: its limit and its
// contract. A process that watches the directory makes no request.
func (b *Broker) ownProfile(ctx context.Context, agent string) (*protocol.Profile, error) {
	if b.watching.Load() {
		d, err := b.engine.Directory(ctx)
		profile, _ := d.Agent(agent)
		return profile, err
	}
	profile, _, err := b.recentProfile(ctx, agent, profileFresh)
	if profile == nil {
		profile = &protocol.Profile{ID: agent}
	}
	return profile, err
}

// part names the part of the directory that a decision depends on. The zero value is none: most
// reports of a holder need no directory.
type part struct {
	whole  bool   // all agents and holders. The first use in a process starts a watch
	holder string // with whole: read from the leader if it seems gone, since a snapshot may lag
	agents names  // by their profiles
	source string // an agent whose profile counts if it restricts its hand-offs
	health names  // agents whose health counts if they have a breaker
	fleet  bool   // the settings of all agents
	fresh  bool   // from the leader, instead of recent reads
}

// names are up to two agents; an empty name is none.
type names [2]string

// partFor returns the part that the target of a handoff needs: the agent that it names, or all.
// readsSource adds its source.
func partFor(s protocol.Summary, readsSource bool) part {
	if s.Target.Agent == "" || len(s.Excluded) > 0 { // another agent may be chosen
		return part{whole: true}
	}
	return partOf(s.Target.Agent, s, readsSource)
}

func partOf(agent string, s protocol.Summary, readsSource bool) part {
	want := part{agents: names{agent}, health: names{s.Target.Agent}, fleet: true}
	if readsSource {
		want.source = s.Source
	}
	return want
}

// readsSource reports whether the admission of a handoff, or a gate before it, depends on its source.
func readsSource(s protocol.Summary) bool {
	return lifecycle.ReadsSource(s) || lifecycle.NeedsSource(s)
}

// wanted returns the part of the directory that a decision about a state depends on.
type wanted func(s protocol.State) part

func wantNothing(protocol.State) part { return part{} }

// wantAll: the decision may choose any agent, and may judge a holder gone.
func wantAll(s protocol.State) part { return part{whole: true, holder: s.Holder} }

// wantSource: the end of a handoff depends on whether a return can be delivered.
func wantSource(s protocol.State) part { return part{agents: names{s.Source}} }

func wantSourceIfReturned(s protocol.State) part {
	if !s.ReturnExpected {
		return part{}
	}
	return wantSource(s)
}

func wantSourceIfCancelled(s protocol.State) part {
	if !s.CancelReturn {
		return part{}
	}
	return wantSource(s)
}

// wantAgent: the decision of a person or a holder about one agent, by the leader.
func wantAgent(agent string) wanted {
	return func(s protocol.State) part {
		want := partOf(agent, s.Summary, lifecycle.NeedsSource(s.Summary))
		want.fresh = true
		return want
	}
}

// read returns a part of the directory; nil for none. remembered reports that some of it is not from
// the leader: before a refusal it is read again, with fresh set.
func (b *Broker) read(ctx context.Context, want part) (d *lifecycle.Directory, remembered bool, err error) {
	if want.whole {
		if d, err = b.Directory(ctx); err == nil && want.holder != "" && !d.Present(want.holder) {
			d, err = b.withHolder(ctx, d, want.holder)
		}
		if err != nil || want.agents == (names{}) {
			return d, false, err
		}
		own := *d
		own.Agents = maps.Clone(d.Agents)
		d = &own
	} else if want.agents != (names{}) || want.source != "" || want.fleet {
		d = &lifecycle.Directory{Agents: map[string]*protocol.Profile{}}
	}
	age := profileFresh
	if want.fresh {
		age = 0
	}
	for _, agent := range want.agents {
		if agent == "" {
			continue
		}
		profile, old, err := b.recentProfile(ctx, agent, age)
		if err != nil {
			return nil, false, err
		}
		if remembered = remembered || old; profile != nil {
			d.Agents[agent] = profile
		}
	}
	if want.source != "" {
		profile, old, err := b.sourceProfile(ctx, want.source, want.fresh)
		if err != nil {
			return nil, false, err
		}
		if profile != nil && profile.RestrictsHandoffs() {
			d.Agents[want.source] = profile
			remembered = remembered || old
		}
	}
	if want.fleet && !want.whole {
		if d.Fleet, err = b.recentFleet(ctx); err != nil {
			return nil, false, err
		}
	}
	for _, agent := range want.health {
		if err := b.addHealth(ctx, d, agent, want.fresh); err != nil {
			return nil, false, err
		}
	}
	return d, remembered, nil
}

// sourceProfile returns the profile of a source; nil if there is none.
func (b *Broker) sourceProfile(ctx context.Context, source string, fresh bool) (*protocol.Profile, bool, error) {
	switch {
	case fresh:
		return b.recentProfile(ctx, source, 0)
	case !b.watching.Load():
		return b.recentProfile(ctx, source, sourceFresh)
	}
	d, err := b.engine.Directory(ctx)
	if err != nil {
		return nil, false, err
	}
	return d.Agents[source], true, nil
}

// withHolder returns a snapshot in which a holder is also present, if the leader has it.
func (b *Broker) withHolder(ctx context.Context, d *lifecycle.Directory, id string) (*lifecycle.Directory, error) {
	holder, err := b.engine.Holder(ctx, id)
	if errors.Is(err, ErrNotFound) {
		return d, nil
	}
	if err != nil {
		return nil, err
	}
	next := *d
	next.Holders = maps.Clone(d.Holders)
	next.Holders[id] = holder
	next.Count()
	return &next, nil
}

// Directory returns the current snapshot (see Engine), with newer data of this process.
func (b *Broker) Directory(ctx context.Context) (*lifecycle.Directory, error) {
	d, err := b.engine.Directory(ctx)
	if err != nil {
		return nil, err
	}
	if !b.watching.Load() {
		b.watching.Store(true)
	}
	if health, newer := b.newerHealth(d.Health); newer {
		next := *d
		next.Health = health
		d = &next
	}
	return d, nil
}

// Query returns the arguments of the next decision about a handoff that reads the whole directory:
// with its holder as the leader knows it, and for a member of a group without the agents of the
// other members.
func (b *Broker) Query(ctx context.Context, s protocol.State) (lifecycle.Query, error) {
	d, _, err := b.read(ctx, wantAll(s))
	if err != nil {
		return lifecycle.Query{}, err
	}
	q := d.At(b.now(Head{State: s}))
	if s.Group == "" || s.Closed {
		return q, nil
	}
	group, err := b.Head(ctx, s.Group, 0)
	if isAbsent(err) {
		return q, nil
	}
	if err != nil {
		return q, err
	}
	named, err := b.groupRecipients(ctx, group)
	q.Reserved = lifecycle.ReservedFor(group.State, named, s.N-1)
	return q, err
}

// checkApprover refuses a handoff if its package names an approver that does not exist.
func (b *Broker) checkApprover(ctx context.Context, s protocol.Summary, d *lifecycle.Directory) error {
	if s.Approval == nil || s.Approval.By == "" {
		return nil
	}
	if _, known := d.Agent(s.Approval.By); known {
		return nil
	}
	if _, err := b.Profile(ctx, s.Approval.By); !errors.Is(err, ErrNotFound) { // the snapshot may lag behind its registration
		return err
	}
	return protocol.Errorf(protocol.CodeUnknownAgent, "approval.by", "no agent is called %s", s.Approval.By)
}

// decideSubmission decides the first append of a handoff. Before a cached profile leads to a
// refusal, it is reread from the leader.
func (b *Broker) decideSubmission(ctx context.Context, in Prepared) (step lifecycle.Step, q lifecycle.Query, err error) {
	ticket, s := in.Ticket, in.summary
	fleet, err := b.recentFleet(ctx)
	if err != nil {
		return step, q, err
	}
	want := part{fleet: true}
	switch moved, moves := lifecycle.MovesTarget(ticket, s, fleet); {
	case s.Aggregate != nil: // its members are decided by themselves
		if readsSource(s) {
			want.source = s.Source
		}
	case moves && (moved.Agent == "" || s.Target.Agent == ""):
		want = part{whole: true}
	default:
		want = partFor(s, readsSource(s))
		if moves && !want.whole { // either of them may get it
			want.agents[1], want.health[1] = moved.Agent, moved.Agent
		}
	}
	for {
		d, remembered, err := b.read(ctx, want)
		if err != nil {
			return step, q, err
		}
		q = d.At(b.now(Head{}))
		q.Contract = contractOf(in.Body, in.Package.Context.Transfer())
		if step, err = lifecycle.Submit(ticket, s, protocol.Submitted{}, q); err == nil && step.Gates() {
			if q.Directory, err = b.Directory(ctx); err == nil { // the approver depends on the agents above the source
				step, err = lifecycle.Submit(ticket, s, protocol.Submitted{}, q)
			}
			if err == nil {
				err = b.checkApprover(ctx, s, q.Directory)
			}
		}
		if err == nil || !remembered {
			return step, q, err
		}
		want.fresh = true
	}
}

// sourceFresh is how long this process uses the profile of a source, or its absence, after reading
// it. It equals that of the fleet's settings: the worker that serves the source has usually just
// read it, and a source without a profile is not reread more often. Before a cached profile leads
// to a refusal, it is reread from the leader.
const sourceFresh = 10 * time.Second

// fleetFresh is how long this process uses the settings of the fleet after reading them. A change
// by another process takes effect in this one after that time.
const fleetFresh = 10 * time.Second

// PutFleet replaces the settings of the fleet if rev is still their revision, and returns the next
// revision; ErrConflict. This process uses the new settings at once.
func (b *Broker) PutFleet(ctx context.Context, fleet protocol.Fleet, rev uint64) (uint64, error) {
	if err := fleet.Validate(); err != nil {
		return 0, err
	}
	b.fleet.invalidate(protocol.FleetKey)
	defer b.fleet.invalidate(protocol.FleetKey)
	return b.engine.PutFleet(ctx, fleet, rev)
}

// recentFleet returns the settings of the fleet, at most fleetFresh old; nil is none. Unreadable
// settings count as none.
func (b *Broker) recentFleet(ctx context.Context) (*protocol.Fleet, error) {
	now := b.clock()
	fleet, known, count := b.fleet.lookup(protocol.FleetKey, now, fleetFresh)
	if known {
		return fleet, nil
	}
	read, rev, err := b.engine.Fleet(ctx)
	var unreadable *protocol.Error
	switch {
	case errors.As(err, &unreadable):
		b.log.Warn("settings of the fleet not readable; the defaults apply", "rev", rev, "err", err)
		rev = 0
	case err != nil:
		return nil, err
	}
	if fleet = nil; rev != 0 {
		fleet = &read
	}
	b.fleet.remember(protocol.FleetKey, fleet, now, count)
	return fleet, nil
}

// EntryIn decodes an entry that has its own name, and at most bytesMax bytes.
func EntryIn[R any, P interface {
	*R
	Validate() error
}](kind, name string, body []byte, bytesMax int, nameOf func(P) string) (R, error) {
	var r R
	if len(body) > bytesMax {
		return r, protocol.Errorf(protocol.CodeTooLarge, kind, "%s", protocol.OverSize(len(body), bytesMax))
	}
	err := json.Unmarshal(body, &r)
	if err == nil {
		err = P(&r).Validate()
	}
	if own := nameOf(&r); err == nil && own != name {
		err = fmt.Errorf("it is of another %s, %q", kind, own)
	}
	return r, err
}
