//go:build proof

package sim

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agenthandoff/handoff/api"
	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/brokertest"
	"github.com/agenthandoff/handoff/internal/supervisor"
	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/worker"
)

// The size of a simulation.
const (
	handoffsMin = 20
	stepsMin    = 200
	faultsMin   = 5

	faultsFor    = 150 * time.Second // how long there are faults
	settledAfter = time.Minute       // after the last fault, until all that is called for stands
	patience     = 8 * time.Minute   // after the last fault, until all has closed

	finalKillsFor    = 30 * time.Second // before the last fault: who dies then stays dead
	mortalSupervisor = 1                // the supervisor whose machine goes in the end
)

// agents, and how many workers each has. That of late comes when the trouble is over;
// absent never has one, so that what stands in its queue only supervisors remove. That of desk polls.
var agents = map[string]int{"lead": 1, "a": 2, "b": 2, "c": 1, protocol.Human: 1, late: 1, absent: 0, pollingAgent: 0, tie: 1, bow: 1}

const (
	late    = "late"
	absent  = "absent"
	nowhere = "nowhere" // no agent has this name
)

// specialization makes these agents equivalent: what one does not take another gets.
var specialization = map[string]string{"lead": "work", "a": "work", "b": "work", "c": "work", late: "away", absent: "away"}

// simulation is one run: supervisors, workers and sources on the engine in memory, with faults at
// first, and then without.
type simulation struct {
	*testing.T
	seed  uint64
	bug   bug
	ctx   context.Context
	m     *brokertest.Memory
	sched *scheduler
	all   sync.WaitGroup

	mu           sync.Mutex
	chance       *rand.Rand // of the faults
	trouble      bool
	faults       map[string]int
	incarnations map[string]int
	supervisors  []*process
	workers      []*process
	pollers      []*process
	conns        map[*process]*brokertest.Memory
	mixedUp      []byte       // a previous result that was handed on
	untied       atomic.Int64 // deadlocks that were broken
	judge        judge
}

// run runs a simulation in its synctest bubble, and returns the faults that its judge found.
func run(t *testing.T, seed uint64, planted bug, trace func(string, ...any)) (found []string, figures figures) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		l := &simulation{T: t, seed: seed, bug: planted, ctx: ctx, m: brokertest.NewMemory().Divide(*partitions), sched: newScheduler(seed), chance: rand.New(rand.NewPCG(seed, 2)),
			trouble: true, faults: map[string]int{}, incarnations: map[string]int{}, conns: map[*process]*brokertest.Memory{}}
		l.judge = newJudge(l)
		if trace != nil {
			l.sched.trace = trace
		}
		l.sched.slow = true
		l.m.SetFaults(brokertest.Faults{
			DuplicateOffer: func(k broker.OfferKey) bool { return l.faultHits("duplicate offer", 20, k) },
			DuplicateTimer: func(ticket string, seq uint64) bool { return l.faultHits("duplicate wake-up", 20, ticket, seq) },
			DropFeed:       func(ticket string, seq uint64) bool { return l.faultHits("lost hint of the feed", 20, ticket, seq) },
			Yield:          l.yield,
		})
		var scheduling sync.WaitGroup
		scheduling.Go(l.sched.run)
		l.runAll()
		cancel()
		l.killAll()
		l.all.Wait()
		close(l.sched.stop)
		scheduling.Wait()
		_ = l.m.Close()
		found, figures = l.judge.found, l.figures()
	})
	return found, figures
}

// faultsOn reports whether faults are on.
func (l *simulation) faultsOn() bool { l.mu.Lock(); defer l.mu.Unlock(); return l.trouble }

// faultHits reports whether a fault hits its object, one of oneIn.
func (l *simulation) faultHits(fault string, oneIn uint64, about ...any) bool {
	if dice(l.seed, append([]any{fault}, about...)...)%oneIn != 0 {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.trouble {
		l.faults[fault]++
	}
	return l.trouble
}

// dies kills a process at an append, now and then, and reports it.
func (l *simulation) dies(p *process, ticket string, after uint64, when string) bool {
	if !l.faultHits("death "+when+" an append", 60, p.name, ticket, after) {
		return false
	}
	p.kill()
	return true
}

// killSupervisorAfter kills a supervisor within a second of an append, now and then, while it still
// holds the entry. Towards the end it is often the supervisor that is not restarted, so that no
// start-up sweep finds what it has left.
func (l *simulation) killSupervisorAfter(ticket string, seq uint64) {
	oneIn, which := uint64(25), uint64(len(l.supervisors))
	d := dice(l.seed, "strike", ticket, seq)
	if which = d >> 32 % which; l.since() > faultsFor-finalKillsFor {
		oneIn, which = 4, mortalSupervisor
	}
	if !l.faultHits("supervisor killed behind an append", oneIn, ticket, seq) {
		return
	}
	l.all.Go(func() {
		l.sleep(time.Duration(d%1_200_000) * time.Microsecond)
		l.mu.Lock()
		p := l.supervisors[which]
		l.mu.Unlock()
		if p != nil && l.faultsOn() {
			p.kill()
		}
	})
}

// yield makes an engine call that has waited wait for the scheduler again.
func (l *simulation) yield(m *brokertest.Memory, what string) {
	l.mu.Lock()
	var p *process
	for of, conn := range l.conns {
		if conn == m {
			p = of
		}
	}
	l.mu.Unlock()
	if p != nil {
		_ = l.sched.await(context.Background(), p, what) // a dead process finds its connection closed
	}
}

// process starts a program again.
func (l *simulation) process(name string) (p *process, e *engine, b *broker.Broker, ctx context.Context) {
	l.mu.Lock()
	l.incarnations[name]++
	p = &process{name: fmt.Sprint(name, "#", l.incarnations[name]), s: l.sched, dead: make(chan struct{})}
	l.mu.Unlock()
	ctx, p.end = context.WithCancel(l.ctx)
	e = &engine{Memory: l.m.Connect(), p: p, l: l}
	e.announcer = broker.NewAnnouncer(e, nil)
	l.mu.Lock()
	l.conns[p] = e.Memory
	l.mu.Unlock()
	b, err := broker.New(e, broker.Config{})
	if err != nil {
		panic(err)
	}
	return p, e, b, ctx
}

// closeProcess closes the connection of a dead process.
func (l *simulation) closeProcess(p *process, e *engine) {
	p.kill()
	l.mu.Lock()
	delete(l.conns, p)
	l.mu.Unlock()
	e.announcer.Close(l.ctx) // what it has not announced is lost
	_ = e.Memory.Close()
}

func (l *simulation) killAll() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for p := range l.conns {
		p.kill()
	}
}

// keepRunning runs a program, and again some time after each death. It does not restart a mortal
// one towards the end of the faults.
func (l *simulation) keepRunning(name string, slot *[]*process, mortal bool, program func(ctx context.Context, e *engine, b *broker.Broker) error) {
	l.mu.Lock()
	i := len(*slot)
	*slot = append(*slot, nil)
	l.mu.Unlock()
	l.all.Go(func() {
		for n := 0; l.ctx.Err() == nil && (n == 0 || !mortal || l.since() < faultsFor-finalKillsFor); n++ {
			p, e, b, ctx := l.process(name)
			l.mu.Lock()
			(*slot)[i] = p
			l.mu.Unlock()
			ended := make(chan struct{})
			l.all.Go(func() { // a dead process unwinds while the next one runs
				defer close(ended)
				if err := program(ctx, e, b); err != nil && ctx.Err() == nil && !errors.Is(err, broker.ErrUnreachable) {
					l.judge.fault("%s ended: %v", p.name, err)
				}
				l.closeProcess(p, e)
			})
			select {
			case <-p.dead:
			case <-ended:
			}
			l.sleep(time.Second + time.Duration(dice(l.seed, "rest", name, n)%15_000_000)*time.Microsecond)
		}
	})
}

func (l *simulation) sleep(d time.Duration) {
	select {
	case <-l.ctx.Done():
	case <-time.After(d): // the bubble's clock
	}
}

// limited is an agent whose two workers, of two slots each, may have three handoffs
// in hand together.
const (
	limited   = "b"
	limitedTo = 3
)

// runAll runs the whole simulation.
func (l *simulation) runAll() {
	l.registerAll()
	l.setFleet()
	l.setEdges()
	l.openWorkspaces()
	for i := range 2 {
		l.keepRunning(fmt.Sprint("supervisor", i), &l.supervisors, i == mortalSupervisor, func(ctx context.Context, e *engine, b *broker.Broker) error {
			own, parts := l.supervised(e, b)
			s, err := supervisor.New(own, parts, supervisor.Config{Concurrency: 4, SweepInterval: 24 * time.Hour})
			if err != nil {
				return err
			}
			return s.Run(ctx)
		})
	}
	for _, agent := range []string{"lead", "a", "b", "c", protocol.Human, tie, bow} {
		if agent == protocol.Human && l.personComesLate() || (agent == tie || agent == bow) && !l.hasKnots() {
			continue
		}
		for i := range agents[agent] {
			l.keepWorker(agent, i)
		}
	}
	for i := range 2 {
		l.keepPoller(pollingAgent, i, i == 0)
	}
	for i := range 2 {
		l.all.Go(func() { l.submitAll(i) })
	}
	l.all.Go(l.approveAll)
	l.all.Go(l.rerouteSome)
	l.all.Go(l.keepSchedules)
	l.sleep(2 * time.Second)
	for l.since() < faultsFor {
		l.injectFault()
		l.sleep(time.Duration(3_000_000+l.randomBelow(20_000_000)) * time.Microsecond)
	}
	l.endFaults()
	l.sleep(settledAfter + 30*time.Second)
	l.keepWorker(late, 0)
	if err := l.m.PutProfile(l.ctx, protocol.Profile{ID: newcomer}); err != nil {
		l.judge.fault("register %s: %v", newcomer, err)
	}
	l.keepWorker(newcomer, 0)
	if l.personComesLate() {
		l.sleep(2 * backWithin)
		l.judge.done()
		l.keepWorker(protocol.Human, 0)
	}
	for !l.judge.done() && l.since() < faultsFor+patience {
		l.sleep(time.Second)
	}
	l.sweepOnce()
	l.awaitWorkspaces()
	l.judge.checkAtEnd()
}

// sweepOnce makes a supervisor sweep when all handoffs have closed: only a sweep finds an offer that
// was queued after the close.
func (l *simulation) sweepOnce() {
	l.mu.Lock()
	m := l.conns[l.supervisors[0]]
	l.mu.Unlock()
	if m == nil {
		return
	}
	m.Reconnect()
	for range 30 {
		if l.sleep(time.Second); len(l.m.QueuedOffers()) == 0 {
			return
		}
	}
}

func (l *simulation) since() time.Duration { return time.Since(epoch) }

func (l *simulation) randomBelow(n int) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.chance.IntN(n)
}

func (l *simulation) keepWorker(agent string, i int) {
	l.keepRunning(fmt.Sprint("worker of ", agent, " ", i), &l.workers, false, func(ctx context.Context, _ *engine, b *broker.Broker) error {
		slots := 2
		if agent == tie || agent == bow {
			slots = 1
		}
		w, err := worker.New(api.Direct(b, agent), worker.Config{Agent: agent, Concurrency: slots, DrainTimeout: -1, AbandonTimeout: -1}, &handler{l: l, agent: agent})
		if err != nil {
			return err
		}
		return w.Run(ctx)
	})
}

// injectFault injects a fault.
func (l *simulation) injectFault() {
	pick := func(of []*process) *process {
		l.mu.Lock()
		defer l.mu.Unlock()
		var alive []*process
		for _, p := range of {
			if p != nil && !p.isDead() {
				alive = append(alive, p)
			}
		}
		if len(alive) == 0 {
			return nil
		}
		return alive[l.chance.IntN(len(alive))]
	}
	l.mu.Lock()
	both := slices.Concat(l.workers, l.pollers, l.supervisors)
	l.mu.Unlock()
	name := ""
	switch l.randomBelow(8) {
	case 0:
		name = l.onProcess(pick(l.workers), "killed worker", (*process).kill)
	case 1:
		name = l.onProcess(pick(l.supervisors), "killed supervisor", (*process).kill)
	case 2, 3:
		d := time.Duration(l.randomBelow(60_000_000)) * time.Microsecond
		name = l.onProcess(pick(both), "frozen process", func(p *process) { p.freeze(d) })
	case 4, 5:
		d := time.Duration(l.randomBelow(45_000_000)) * time.Microsecond
		name = l.onProcess(pick(both), "cut connection", func(p *process) { l.cut(p, d) })
	case 6:
		name = "restarted engine"
		l.m.Restart()
	case 7:
		if name = "lost queues"; l.randomBelow(2) == 0 {
			l.m.DeleteWork()
		} else {
			name = "lost wake-ups"
			l.judge.loseWakeUps()
		}
	}
	if name != "" {
		l.sched.trace("%v FAULT: %s", l.since(), name)
		l.mu.Lock()
		l.faults[name]++
		l.mu.Unlock()
	}
}

func (l *simulation) onProcess(p *process, name string, do func(*process)) string {
	if p == nil {
		return ""
	}
	do(p)
	return name
}

// cut takes a process from the engine for a while.
func (l *simulation) cut(p *process, d time.Duration) {
	l.mu.Lock()
	m := l.conns[p]
	l.mu.Unlock()
	if m == nil {
		return
	}
	m.Disconnect()
	l.all.Go(func() {
		l.sleep(min(d, faultsFor-l.since()))
		if !p.isDead() {
			m.Reconnect()
		}
	})
}

// endFaults ends all faults. Living processes are not restarted: they know their duties.
func (l *simulation) endFaults() {
	l.mu.Lock()
	l.trouble = false
	all := l.conns
	for p := range all {
		p.freeze(0)
	}
	l.mu.Unlock()
	l.sched.mu.Lock()
	l.sched.slow = false
	now := time.Now()
	for _, t := range l.sched.waiting {
		if t.at.After(now.Add(usualDelay)) {
			t.at = now
		}
	}
	l.sched.mu.Unlock()
	select {
	case l.sched.news <- struct{}{}:
	default:
	}
}

// figures are the counts of a simulation.
type figures struct {
	handoffs, steps, appends, faults int
	kinds                            map[string]int
	outcomes                         map[protocol.Outcome]int
	took                             time.Duration // until all had closed
}

func (l *simulation) figures() figures {
	l.mu.Lock()
	defer l.mu.Unlock()
	f := figures{handoffs: len(l.judge.heads), steps: l.sched.steps, appends: l.judge.appends, kinds: l.faults, outcomes: map[protocol.Outcome]int{}, took: l.judge.closedAfter}
	l.faults["slow operation"], l.faults["deadlock"] = l.sched.delays, int(l.untied.Load())
	for _, n := range l.faults {
		f.faults += n
	}
	l.faults["call for bids"], l.faults["award"] = l.judge.bids.calls, l.judge.bids.awarded // no faults, but counted with them
	for _, h := range l.judge.heads {
		f.outcomes[h.state.Outcome]++
	}
	return f
}
