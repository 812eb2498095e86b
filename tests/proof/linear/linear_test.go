//go:build proof

// Package linear checks linearizability. Many clients run all operations on the same few handoffs, on
// three real servers whose leader is killed meanwhile. Porcupine then searches for an order of the
// observed operations that the pure core agrees with.
package linear

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/jetstream"
	"github.com/agenthandoff/handoff/internal/testworld"
	"github.com/agenthandoff/handoff/protocol"
)

var (
	operationsWanted = flag.Int("operations", 10_000, "how many")
	killsWanted      = flag.Int("kills", 2, "how often the leader of a stream is killed")
)

const (
	clients        = 12
	handoffsAtOnce = 10 // handoffs that all clients use at a time
	agent          = "racer"
	// redeliver is so short that other clients get an offer while one has it.
	redeliver = 300 * time.Millisecond
	leaseMS   = 3_600_000
	// operationTimeout is how long one operation may take, elections included, and still end well.
	operationTimeout = 30 * time.Second
	testTimeout      = 10 * time.Minute // everything
)

func TestMain(m *testing.M) { testworld.Main(m) }

// kind is what an operation does.
type kind string

const (
	submit   kind = "submit"
	status   kind = "status"
	claim    kind = "claim"
	complete kind = "complete"
	progress kind = "progress"
	cancel   kind = "cancel"
	answer   kind = "answer"
)

// operation is one that has ended.
type operation struct {
	kind   kind
	ticket string
	client int
	call   int64
	ended  int64

	appended []uint64 // by it, as its observer was told
	read     uint64   // the sequence that it saw; 0 where it says none
	refused  bool     // it was told no
	skip     bool     // what it was told depends on more than one state

	// What the core is asked with.
	claimant protocol.Holder
	offer    uint64
	ack      protocol.Ack
	fence    uint64
}

// client is one process, as far as the engine can tell.
type client struct {
	n      int
	b      *broker.Broker
	holder protocol.Holder
	chance *rand.Rand
	own    []operation
}

// race is the state that all clients share.
type race struct {
	*testing.T
	ctx  context.Context
	done atomic.Int64

	mu     sync.Mutex
	keys   [handoffsAtOnce]int
	leases []lease
}

// lease is a claim that any client may use: fences must sort out two results under the same one.
type lease struct {
	token  string
	ticket string
	holder protocol.Holder
	offer  uint64
	fence  uint64
}

// opKey is where a context carries the operation that an append belongs to.
type opKey struct{}

// watcher notes what was appended by which operation.
type watcher struct{}

func (watcher) Appended(ctx context.Context, _ protocol.State, after broker.Head, _ []protocol.Event) {
	if op, ok := ctx.Value(opKey{}).(*operation); ok && op.ticket == after.Ticket {
		op.appended = append(op.appended, after.Seq)
	}
}

func (watcher) Conflicted(context.Context, string) {}

func TestLinearizable(t *testing.T) {
	for _, partitions := range []int{1, 4} {
		t.Run(fmt.Sprint(partitions), func(t *testing.T) { raceOn(t, partitions) })
	}
}

func raceOn(t *testing.T, partitions int) {
	if testworld.Race {
		t.Skip("a fleet of processes with the race detector in them outlasts its own timeouts: run it without -race")
	}
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	cluster := testworld.StartDivided(t, 3, 0, partitions)
	c := &race{T: t, ctx: ctx}
	all := make([]*client, clients)
	for i := range all {
		all[i] = c.client(cluster.URL(), i)
	}
	c.must(all[0].b.PutProfile(ctx, protocol.Profile{ID: agent}))
	c.must(all[0].b.EnsureQueue(ctx, agent))

	began := time.Now()
	var running sync.WaitGroup
	for _, one := range all {
		running.Go(func() {
			for c.done.Load() < int64(*operationsWanted) && ctx.Err() == nil && !t.Failed() {
				c.step(one, began)
			}
		})
	}
	running.Go(func() { c.killLeaders(cluster, jetstream.LedgerStreams(partitions), int64(*operationsWanted)) })
	running.Wait()
	if t.Failed() {
		return
	}
	c.check(all, began)
}

func (c *race) must(err error) {
	c.Helper()
	if err != nil {
		c.Fatal(err)
	}
}

func (c *race) client(url string, n int) *client {
	c.Helper()
	engine, err := jetstream.Dial(c.ctx, jetstream.DialConfig{URL: url, Name: fmt.Sprint("client ", n), Config: jetstream.Config{AckWait: redeliver}})
	c.must(err)
	c.Cleanup(func() { _ = engine.Close() })
	b, err := broker.New(engine, broker.Config{Observer: watcher{}})
	c.must(err)
	one := &client{n: n, b: b, holder: protocol.Holder{ID: protocol.NewTicket(), Agent: agent, LeaseMS: leaseMS, Slots: 1000}, chance: rand.New(rand.NewPCG(uint64(n), 5))}
	c.must(b.Beat(c.ctx, one.holder))
	return one
}

// killLeaders kills the leader of one of the streams now and then, while so many operations are done, and
// starts it again.
func (c *race) killLeaders(cluster *testworld.Cluster, streams []string, operations int64) {
	for kill := range *killsWanted {
		at := operations * int64(kill+1) / int64(*killsWanted+1)
		for c.done.Load() < at && c.ctx.Err() == nil && !c.Failed() {
			c.pause(10 * time.Millisecond)
		}
		stream := streams[kill%len(streams)]
		leader := cluster.Leader(c.ctx, stream)
		if leader < 0 {
			c.Logf("%s has no leader to be killed", stream)
			continue
		}
		cluster.Nodes[leader].Kill()
		c.Logf("killed %s, which led %s, at operation %d", cluster.Nodes[leader].Name, stream, c.done.Load())
		c.pause(3 * time.Second)
		cluster.Nodes[leader].Restart()
		if err := cluster.Recover(c.ctx); err != nil {
			c.Error(err)
		}
	}
}

func (c *race) pause(d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-c.ctx.Done():
	}
}

// source and key name a handoff before it exists.
const source = "sources"

func (c *race) pickHandoff(one *client) (slot int, pkg protocol.Package) {
	slot = one.chance.IntN(handoffsAtOnce)
	c.mu.Lock()
	n := c.keys[slot]
	c.mu.Unlock()
	return slot, protocol.Package{Source: source, Key: fmt.Sprint(slot, "-", n), Target: protocol.Target{Agent: agent}, Reason: "race", Task: protocol.Task{Description: "win"}}
}

// closed lets the next handoff take the place of one that has ended.
func (c *race) closed(slot int, pkg protocol.Package) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if fmt.Sprint(slot, "-", c.keys[slot]) == pkg.Key {
		c.keys[slot]++
	}
}

// step is one operation of a client.
func (c *race) step(one *client, began time.Time) {
	slot, pkg := c.pickHandoff(one)
	op := operation{client: one.n, ticket: protocol.TicketForKey(source, pkg.Key)}
	do := c.choose(one, &op, slot, pkg)
	if do == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithValue(c.ctx, opKey{}, &op), operationTimeout)
	defer cancel()
	op.call = time.Since(began).Nanoseconds()
	err := do(ctx)
	op.ended = time.Since(began).Nanoseconds()
	var refused *protocol.Error
	switch {
	case err == nil:
	case errors.As(err, &refused), errors.Is(err, broker.ErrOfferGone), errors.Is(err, broker.ErrLeaseLost):
		op.refused = true
		// An answer to what has moved on while it was answered is refused by two states.
		op.skip = op.kind == answer && refused != nil && len(op.appended) == 0
	default:
		c.Errorf("%s of %s took %v and failed: %v", op.kind, op.ticket, time.Duration(op.ended-op.call), err)
		return
	}
	one.own = append(one.own, op)
	c.done.Add(1)
}

// choose says what the client does next; nil is nothing.
func (c *race) choose(one *client, op *operation, slot int, pkg protocol.Package) func(context.Context) error {
	b := one.b
	switch roll := one.chance.IntN(100); {
	case roll < 15:
		op.kind = submit
		in, err := b.Prepare(c.Context(), pkg)
		c.must(err)
		return func(ctx context.Context) error {
			head, err := b.Submit(ctx, in)
			op.read = head.Seq
			return err
		}
	case roll < 40:
		op.kind = status
		return func(ctx context.Context) error {
			head, err := b.Head(ctx, op.ticket, 0)
			if errors.Is(err, broker.ErrNotFound) {
				return nil
			}
			if op.read = head.Seq; head.State.Closed {
				c.closed(slot, pkg)
			}
			return err
		}
	case roll < 65:
		return c.claim(one, op)
	case roll < 85:
		return c.report(one, op, roll%5 == 0)
	case roll < 89:
		op.kind = cancel
		return func(ctx context.Context) error {
			_, err := b.Cancel(ctx, op.ticket, source, "enough")
			return err
		}
	}
	op.kind = answer
	return func(ctx context.Context) error {
		_, err := b.Answer(ctx, op.ticket, protocol.Answer{By: source, Question: 1, Text: "this"})
		return err
	}
}

// claim takes what the queue has, which another may have as well.
func (c *race) claim(one *client, op *operation) func(context.Context) error {
	pulling, cancel := context.WithTimeout(c.ctx, operationTimeout)
	defer cancel()
	offers, err := one.b.Pull(pulling, agent, 1, 50*time.Millisecond)
	if err != nil {
		if !errors.Is(err, broker.ErrUnreachable) { // a pull may fail without a leader, and is no operation
			c.Errorf("pull: %v", err)
		}
		return nil
	}
	if len(offers) == 0 {
		return nil
	}
	offer := offers[0]
	op.kind, op.ticket, op.claimant, op.offer = claim, offer.Ticket, one.holder, offer.Sequence
	op.ack = protocol.Ack{Status: protocol.AckAccepted}
	if one.chance.IntN(4) == 0 {
		op.ack = protocol.Ack{Status: protocol.AckConditional, NeedsContext: []string{"which"}}
	}
	return func(ctx context.Context) error {
		claimed, err := offer.Acknowledge(ctx, one.holder, op.ack, true)
		if claimed != nil {
			c.mu.Lock()
			c.leases = append(c.leases, lease{claimed.Lease(), op.ticket, one.holder, op.offer, claimed.Fence()})
			c.mu.Unlock()
		}
		return err
	}
}

const leasesMax = 24

// report hands something in under a lease that others use as well.
func (c *race) report(one *client, op *operation, only bool) func(context.Context) error {
	c.mu.Lock()
	if len(c.leases) > leasesMax {
		c.leases = c.leases[len(c.leases)-leasesMax:]
	}
	if len(c.leases) == 0 {
		c.mu.Unlock()
		return nil
	}
	l := c.leases[one.chance.IntN(len(c.leases))]
	c.mu.Unlock()
	op.kind, op.ticket, op.claimant, op.offer, op.fence = complete, l.ticket, l.holder, l.offer, l.fence
	if only {
		op.kind = progress
	}
	return func(ctx context.Context) error {
		claimed, err := one.b.Resume(ctx, l.token)
		if err != nil {
			return err
		}
		if only {
			return claimed.Progress(ctx, protocol.Progress{Percent: 50})
		}
		return claimed.Complete(ctx, protocol.Result{Body: []byte(`"done"`)})
	}
}

// check reads the ledger, and searches for an order.
func (c *race) check(all []*client, began time.Time) {
	histories := map[string][]protocol.Change{}
	var operations []porcupine.Operation
	counts, refusals := map[kind]int{}, map[kind]int{}
	var longest time.Duration
	claimed := map[uint64]bool{}
	for _, one := range all {
		for _, op := range one.own {
			if _, known := histories[op.ticket]; !known {
				changes, err := one.b.History(c.ctx, op.ticket)
				if !notFound(err) {
					c.must(err)
				}
				histories[op.ticket] = changes
			}
			for _, seq := range op.appended {
				claimed[seq] = true
			}
			counts[op.kind]++
			if op.refused {
				refusals[op.kind]++
			}
			longest = max(longest, time.Duration(op.ended-op.call))
			operations = append(operations, porcupine.Operation{ClientId: op.client, Input: op, Output: op.ticket, Call: op.call, Return: op.ended})
		}
	}
	appends := 0
	for ticket, changes := range histories {
		appends += len(changes)
		for _, change := range changes {
			if !claimed[change.Seq] {
				c.Errorf("%s: no operation has appended %d", ticket, change.Seq)
			}
		}
	}
	result, info := porcupine.CheckOperationsVerbose(model(histories), operations, 2*time.Minute)
	c.Logf("%d operations on %d handoffs (%d appends) in %v, the longest took %v; done: %v; refused: %v: %s",
		len(operations), len(histories), appends, time.Since(began).Round(time.Second), longest.Round(time.Millisecond), counts, refusals, result)
	if result == porcupine.Ok {
		c.findsStaleRead(histories, operations)
	}
	if result != porcupine.Ok {
		path := c.T.TempDir() + "/history.html"
		if err := porcupine.VisualizePath(model(histories), info, path); err == nil {
			c.Logf("see %s", path)
		}
		c.Errorf("there is no order of these operations that the core agrees with: %s", result)
	}
}

// findsStaleRead adds a stale read to a correct history, and checks that porcupine finds it.
func (c *race) findsStaleRead(histories map[string][]protocol.Change, operations []porcupine.Operation) {
	for i := len(operations) - 1; i >= 0; i-- {
		op := operations[i].Input.(operation)
		changes := histories[op.ticket]
		if op.kind != status || len(changes) < 3 || op.read != changes[len(changes)-1].Seq {
			continue
		}
		op.read, op.call, op.ended = changes[0].Seq, op.ended+time.Hour.Nanoseconds(), op.ended+2*time.Hour.Nanoseconds()
		late := porcupine.Operation{ClientId: clients, Input: op, Output: op.ticket, Call: op.call, Return: op.ended}
		if porcupine.CheckOperations(model(histories), append(operations[:len(operations):len(operations)], late)) {
			c.Error("a stale read was not found")
		}
		return
	}
	c.Error("no operation has read the end of a handoff")
}

func notFound(err error) bool {
	var refused *protocol.Error
	return errors.As(err, &refused) && refused.Code == protocol.CodeNotFound
}
