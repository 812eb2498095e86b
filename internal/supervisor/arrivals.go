package supervisor

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/lifecycle"
	"github.com/agenthandoff/handoff/protocol"
)

// arrivalInterval is the interval at which a supervisor compares the present agents. It reads its
// own copy of the directory, so this costs no requests.
const arrivalInterval = time.Second

// arrivalPause is the pause after reconciling the handoffs of arrived agents, as a multiple of its
// duration, at most a minute. Agents that come and go must not occupy a supervisor.
const arrivalPause = 9

// arrivalLoop reconciles the handoffs that wait for an agent that has just arrived: those that its
// absence had moved return to it, and those that could not be delivered are delivered. The core
// decides both. At most Concurrency of them are reconciled at once. The next sweep reconciles any
// that were missed.
func (s *Supervisor) arrivalLoop(ctx context.Context) error {
	there := s.attended(ctx)
	var rested time.Time
	arrived := map[lifecycle.Awaited]bool{}
	return everyTick(ctx, arrivalInterval, func() {
		before := there
		there = s.attended(ctx)
		for awaited := range there {
			if !before[awaited] {
				arrived[awaited] = true
			}
		}
		if len(arrived) == 0 || time.Now().Before(rested) {
			return
		}
		begun := time.Now()
		for _, ticket := range s.absences.concernedBy(arrived) {
			s.enqueue(ctx, request{ticket: ticket})
		}
		clear(arrived)
		rested = time.Now().Add(min(arrivalPause*time.Since(begun), time.Minute))
	})
}

// attended returns the agents that are present and take handoffs, and their capabilities.
func (s *Supervisor) attended(ctx context.Context) map[lifecycle.Awaited]bool {
	directory, err := s.b.Directory(ctx)
	if err != nil {
		return nil
	}
	there := map[lifecycle.Awaited]bool{}
	for _, holder := range directory.Holders {
		if there[lifecycle.Awaited{Agent: holder.Agent}] || !directory.Attended(holder.Agent) {
			continue
		}
		for _, awaited := range directory.Offers(holder.Agent) {
			there[awaited] = true
		}
	}
	return there
}

// absencesMax bounds the remembered handoffs that wait for an agent. The next sweep reconciles the
// others.
const absencesMax = 100_000

// absences remembers which handoffs wait for which agents. It learns from each head that is read:
// every head is read once its offer is a second old, and by each sweep.
type absences struct {
	mu      sync.Mutex
	tickets map[lifecycle.Awaited]map[string]bool
	awaited map[string][]lifecycle.Awaited // by ticket
}

// note remembers the agents that a handoff waits for.
func (a *absences) note(s *protocol.State) {
	var now []lifecycle.Awaited
	if len(s.Absent) > 0 || s.Agent == "" {
		now = lifecycle.AwaitedBy(*s)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(now) == 0 && len(a.awaited) == 0 { // the usual case
		return
	}
	before, known := a.awaited[s.Ticket]
	if slices.Equal(before, now) || !known && len(a.awaited) >= absencesMax {
		return
	}
	for _, awaited := range before {
		if delete(a.tickets[awaited], s.Ticket); len(a.tickets[awaited]) == 0 {
			delete(a.tickets, awaited)
		}
	}
	if len(now) == 0 {
		delete(a.awaited, s.Ticket)
		return
	}
	if a.awaited == nil {
		a.awaited, a.tickets = map[string][]lifecycle.Awaited{}, map[lifecycle.Awaited]map[string]bool{}
	}
	a.awaited[s.Ticket] = now
	for _, awaited := range now {
		if a.tickets[awaited] == nil {
			a.tickets[awaited] = map[string]bool{}
		}
		a.tickets[awaited][s.Ticket] = true
	}
}

// concernedBy returns the handoffs that wait for one of the arrived agents.
func (a *absences) concernedBy(arrived map[lifecycle.Awaited]bool) (all []string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for awaited := range arrived {
		for ticket := range a.tickets[awaited] {
			all = append(all, ticket)
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

const (
	// publishersMax bounds the batches that a sweep publishes in parallel. Most of a batch is
	// processor time; reading for an offer is waiting.
	publishersMax = 16
	// batchMax and batchBytesMax bound a batch, in handoffs and in bytes of the ledger: a batch is
	// sent at once, and its answers are awaited one after the other.
	batchMax      = 32
	batchBytesMax = 256 << 10
	// batchHeadsMax is the number of heads after which a sweep sends an incomplete batch, because
	// open handoffs may be rare.
	batchHeadsMax = 1_000
)

// batchPublisher publishes the outbox entries of a sweep in batches, with workers of its own:
// events and timers do not wait behind a sweep over a million handoffs.
type batchPublisher struct {
	publish func([]broker.Outbox)
	tasks   chan func()
	workers sync.WaitGroup

	pause  time.Duration // between two batches
	sentAt time.Time     // when the last batch was sent

	batch      []broker.Outbox
	batchBytes int
	batchHeads int // read since the last batch was sent
}

// newBatchPublisher starts a batchPublisher over publish. The caller must close it.
func newBatchPublisher(put func([]broker.Outbox)) *batchPublisher {
	c := &batchPublisher{publish: put, tasks: make(chan func())}
	for range publishersMax {
		c.workers.Go(func() {
			for task := range c.tasks {
				task()
			}
		})
	}
	return c
}

// do passes a task to a worker. It blocks while all are busy, and drops the task when ctx ends.
func (b *batchPublisher) do(ctx context.Context, task func()) {
	select {
	case b.tasks <- task:
	case <-ctx.Done():
	}
}

// add puts the outbox entry of a handoff into the batch. Only the sweep's goroutine calls it.
func (b *batchPublisher) add(ctx context.Context, h broker.Outbox) {
	b.batch = append(b.batch, h)
	if b.batchBytes += h.Head.Bytes(); len(b.batch) >= batchMax || b.batchBytes >= batchBytesMax {
		b.send(ctx)
	}
}

// tick counts a head of the sweep.
func (b *batchPublisher) tick(ctx context.Context) {
	if b.batchHeads++; b.batchHeads >= batchHeadsMax {
		b.send(ctx)
	}
}

func (b *batchPublisher) send(ctx context.Context) {
	run := b.batch
	b.batch, b.batchBytes, b.batchHeads = nil, 0, 0
	if len(run) == 0 {
		return
	}
	if wait := b.pause - time.Since(b.sentAt); wait > 0 {
		select {
		case <-time.After(wait):
		case <-ctx.Done():
		}
	}
	b.sentAt = time.Now()
	b.do(ctx, func() { b.publish(run) })
}

// Close sends the last batch and waits until all are published. Nothing may be added after it.
func (b *batchPublisher) Close(ctx context.Context) {
	b.send(ctx)
	close(b.tasks)
	b.workers.Wait()
}

// Watch receives the figures of a supervisor. It is called from any goroutine, and must neither
// block nor change its arguments.
type Watch interface {
	// Followed is called for each entry of the ledger that is delivered to this supervisor. Among
	// all supervisors of an engine each entry is delivered to one, and again to another if that one
	// died before it was done.
	Followed(e broker.Entry, r protocol.Record)
	// Due is called when a wake-up fires. asked is its time; zero if unknown.
	Due(asked time.Time)
	// Reconciled is called after each try to reconcile a handoff.
	Reconciled(err error)
	// Unreadable receives the number of handoffs known to have an unreadable head.
	Unreadable(n int)
	// Swept is called after each sweep, with the numbers of heads and of open handoffs. why is one
	// of SweepReasons.
	Swept(why string, heads, open int, took time.Duration, err error)
	// Tripped is called when this supervisor has opened the breaker of an agent.
	Tripped(agent string)
}

// Reasons for a sweep; they are values of a metric's label.
const (
	sweepAtStart     = "start"
	sweepAtInterval  = "interval"
	sweepExpired     = "may judge"
	sweepReconnected = "reconnected"
	sweepDeparture   = "departure"
)

// SweepReasons lists all reasons for a sweep.
var SweepReasons = []string{sweepAtStart, sweepAtInterval, sweepExpired, sweepReconnected, sweepDeparture}

// noWatch is a Watch that counts nothing.
type noWatch struct{}

func (noWatch) Followed(broker.Entry, protocol.Record)       {}
func (noWatch) Due(time.Time)                                {}
func (noWatch) Reconciled(error)                             {}
func (noWatch) Unreadable(int)                               {}
func (noWatch) Swept(string, int, int, time.Duration, error) {}
func (noWatch) Tripped(string)                               {}

// watchEntry passes an entry of the ledger to the Watch.
func (s *Supervisor) watchEntry(e broker.Entry, done func()) {
	defer done()
	_ = s.recoverPanic(e.Ticket, func() error {
		record, err := broker.RecordOf(e)
		if err != nil {
			s.noteUnreadable(e.Ticket, e.Seq, err)
			return nil
		}
		s.noteReadable(e.Ticket, e.Seq)
		s.cfg.Watch.Followed(e, record)
		return nil
	})
}

// startedAt is the start of a running activity, in Unix nanoseconds; 0 if none runs.
type startedAt struct{ nanos atomic.Int64 }

func (s *startedAt) begin() { s.nanos.Store(time.Now().UnixNano()) }
func (s *startedAt) end()   { s.nanos.Store(0) }

// OldestReconcile returns the age of the oldest try that is running; 0 if none is. A try ends after
// 15 s: a much higher age means that a loop is blocked.
func (s *Supervisor) OldestReconcile() time.Duration {
	var longest time.Duration
	for i := range s.attempts {
		if began := s.attempts[i].nanos.Load(); began != 0 {
			longest = max(longest, time.Since(time.Unix(0, began)))
		}
	}
	return longest
}
