package jetstream_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"runtime/pprof"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/embedded"
	handoffjs "github.com/agenthandoff/handoff/internal/jetstream"
	"github.com/agenthandoff/handoff/protocol"
)

const batchID = "Nats-Batch-Id" // which messages were stored as one batch

// group is a node that syncs every write, and an engine on it that groups.
type group struct {
	*testing.T
	*handoffjs.Engine
	ctx  context.Context
	node *embedded.Node
	js   jetstream.JetStream // a view beside it
}

func newGroup(t *testing.T, cfg embedded.Config, options ...nats.Option) *group {
	t.Helper()
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	t.Cleanup(cancel)
	if cfg.Dir == "" {
		cfg.Dir = t.TempDir()
	}
	g := &group{T: t, ctx: ctx}
	cfg.Prepare = asyncWork
	var err error
	g.node, err = embedded.Start(ctx, cfg)
	g.must(err)
	t.Cleanup(func() { _ = g.node.Stop() }) // a test may have stopped it
	nc, err := g.node.Conn()
	g.must(err)
	t.Cleanup(nc.Close)
	g.js, err = jetstream.New(nc)
	g.must(err)
	g.Engine, err = handoffjs.Dial(ctx, handoffjs.DialConfig{URL: g.node.ClientURL(), Options: options})
	g.must(err)
	t.Cleanup(func() { _ = g.Close() })
	if !g.Groups() {
		t.Fatal("a node that syncs every write does not group")
	}
	return g
}

func asyncWork(ctx context.Context, nc *nats.Conn, _ bool) error {
	return handoffjs.EnsureTopology(ctx, nc, handoffjs.Topology{AsyncWork: true})
}

func (g *group) must(err error) {
	g.Helper()
	if err != nil {
		g.Fatal(err)
	}
}

// one is one append and what became of it.
type one struct {
	ticket, id string
	after      uint64
	body       []byte
	ctx        context.Context

	seq uint64
	err error
}

func newOne() *one {
	ticket := protocol.NewTicket()
	return &one{ticket: ticket, id: "id of " + ticket, body: []byte(ticket)}
}

func some(n int) []*one {
	all := make([]*one, n)
	for i := range all {
		all[i] = newOne()
	}
	return all
}

// together begins all appends while the line is held, calls held, if any, and
// lets go. It returns when all have ended.
func (g *group) together(all []*one, held func()) {
	g.Helper()
	release := g.HoldCommits()
	var wg sync.WaitGroup
	for _, o := range all {
		if o.ctx == nil {
			o.ctx = g.ctx
		}
		wg.Go(func() { o.seq, o.err = g.Append(o.ctx, o.ticket, o.after, o.id, "", o.body) })
	}
	g.until("all of them to wait", func() bool { return g.CommitsWaiting() == len(all) })
	if held != nil {
		held()
	}
	release()
	wg.Wait()
}

func (g *group) until(what string, is func() bool) {
	g.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !is() {
		select {
		case <-tick.C:
		case <-g.ctx.Done():
			g.Fatalf("no end of waiting for %s", what)
		}
	}
}

// stored checks that an append is where it says, once, and returns the id of
// the batch that it came in.
func (g *group) stored(o *one) string {
	g.Helper()
	if o.err != nil {
		g.Fatalf("append of %s: %v", o.ticket, o.err)
	}
	e, err := g.Next(g.ctx, o.ticket, o.after)
	g.must(err)
	if e.Seq != o.seq || !bytes.Equal(e.Body, o.body) {
		g.Fatalf("%s is at %d with %d bytes, not at %d with %d", o.ticket, e.Seq, len(e.Body), o.seq, len(o.body))
	}
	head, err := g.Last(g.ctx, o.ticket, 0)
	g.must(err)
	if head.Seq != o.seq {
		g.Fatalf("%s was stored again at %d", o.ticket, head.Seq)
	}
	ledger, err := g.js.Stream(g.ctx, handoffjs.LedgerStream)
	g.must(err)
	msg, err := ledger.GetMsg(g.ctx, o.seq)
	g.must(err)
	if id := msg.Header.Get("Handoff-Record"); id != o.id {
		g.Fatalf("%s has the record %q, not %q", o.ticket, id, o.id)
	}
	return msg.Header.Get(batchID)
}

// What waited goes as one batch, in the order it came, without a gap: the
// acknowledgement tells the last sequence alone.
func TestBatchSequences(t *testing.T) {
	g := newGroup(t, embedded.Config{})
	all := some(40)
	g.together(all, nil)
	id := g.stored(all[0])
	first := all[0].seq
	for _, o := range all {
		if got := g.stored(o); got != id || got == "" {
			t.Errorf("%s came in batch %q, the first in %q", o.ticket, got, id)
		}
		first = min(first, o.seq)
	}
	for _, o := range all {
		if o.seq >= first+uint64(len(all)) {
			t.Errorf("a gap: sequence %d of %d from %d on", o.seq, len(all), first)
		}
	}
}

// One conflict has the engine refuse the batch; it is one append's all the same.
func TestConflictInABatch(t *testing.T) {
	g := newGroup(t, embedded.Config{})
	taken, again := newOne(), newOne()
	taken.seq, taken.err = g.Append(g.ctx, taken.ticket, 0, taken.id, "", taken.body)
	again.seq, again.err = g.Append(g.ctx, again.ticket, 0, again.id, "", again.body)
	g.stored(taken)
	was := again.seq
	all := some(20)
	loser := &one{ticket: taken.ticket, id: "another", body: []byte("another")}
	g.together(append([]*one{loser, again}, all...), nil)
	if !errors.Is(loser.err, broker.ErrConflict) {
		t.Errorf("the one in conflict: %v", loser.err)
	}
	if again.err != nil || again.seq != was {
		t.Errorf("an append sent again: %d, %v, and it was %d", again.seq, again.err, was)
	}
	for _, o := range all {
		g.stored(o)
	}
}

// Engines of one process, as a broker's and its supervisor's, send batches at the
// same time, which the node tells apart by their ids alone.
func TestBatchesOfTwoEngines(t *testing.T) {
	g := newGroup(t, embedded.Config{})
	other := *g
	var err error
	other.Engine, err = handoffjs.Dial(g.ctx, handoffjs.DialConfig{URL: g.node.ClientURL()})
	g.must(err)
	defer func() { g.must(other.Close()) }()
	ours, theirs := some(40), some(40)
	g.together(ours, func() { other.together(theirs, nil) })
	of := map[string]string{}
	for whose, all := range map[string][]*one{"the first": ours, "the second": theirs} {
		for _, o := range all {
			id := g.stored(o)
			if id == "" || of[id] != "" && of[id] != whose {
				t.Fatalf("an append of %s engine came in batch %q, which is of %q", whose, id, of[id])
			}
			of[id] = whose
		}
	}
}

// The engine takes a subject once in a batch.
func TestTicketTwiceInABatch(t *testing.T) {
	g := newGroup(t, embedded.Config{})
	all := some(20)
	for i := range 4 {
		all = append(all, &one{ticket: all[0].ticket, id: fmt.Sprint("rival ", i), body: fmt.Append(nil, "rival ", i)})
	}
	g.together(all, nil)
	won := 0
	for _, o := range all {
		switch {
		case o.err == nil:
			g.stored(o)
			if o.ticket == all[0].ticket {
				won++
			}
		case !errors.Is(o.err, broker.ErrConflict):
			t.Error(o.err)
		}
	}
	if won != 1 {
		t.Errorf("%d rivals won", won)
	}
}

// Many that want the same ticket make no batch, and none of them is forgotten.
func TestNothingButRivals(t *testing.T) {
	g := newGroup(t, embedded.Config{})
	ticket, all := protocol.NewTicket(), some(40)
	for _, o := range all {
		o.ticket = ticket
	}
	g.together(all, nil)
	for _, o := range all {
		if o.err == nil {
			g.stored(o)
		} else if !errors.Is(o.err, broker.ErrConflict) {
			t.Error(o.err)
		}
	}
}

// Whoever gives up goes at once, and may use its buffer for something else; it
// is neither stored nor in the way.
func TestBatchCancelled(t *testing.T) {
	g := newGroup(t, embedded.Config{})
	all := some(20)
	gone := all[5]
	var cancel context.CancelFunc
	gone.ctx, cancel = context.WithCancel(g.ctx)
	ended := make(chan struct{})
	g.together(all[:5], func() {
		release := make(chan struct{})
		go func() {
			defer close(ended)
			_, gone.err = g.Append(gone.ctx, gone.ticket, 0, gone.id, "", gone.body)
			clear(gone.body)
			<-release
		}()
		g.until("it to wait as well", func() bool { return g.CommitsWaiting() == 6 })
		cancel()
		close(release)
		<-ended
	})
	if !errors.Is(gone.err, context.Canceled) {
		t.Errorf("the one that gave up: %v", gone.err)
	}
	g.together(all[6:], nil)
	for i, o := range all {
		if i != 5 {
			g.stored(o)
		}
	}
	if _, err := g.Last(g.ctx, gone.ticket, 0); !errors.Is(err, broker.ErrNotFound) {
		t.Errorf("what was given up is there: %v", err)
	}
}

// Close ends those who wait, and leaves nothing behind that runs.
func TestBatchClosed(t *testing.T) {
	g := newGroup(t, embedded.Config{})
	all := some(40)
	g.together(all, func() { g.must(g.Close()) })
	for _, o := range all {
		if !errors.Is(o.err, broker.ErrUnreachable) {
			t.Errorf("an append on a closed engine: %v", o.err)
		}
	}
}

// Close in the middle of it all waits for the batch that is in flight.
func TestBatchClosedUnderLoad(t *testing.T) {
	g := newGroup(t, embedded.Config{})
	var wg sync.WaitGroup
	begun := make(chan struct{}, 64)
	for range 64 {
		wg.Go(func() {
			for {
				o := newOne()
				if _, err := g.Append(g.ctx, o.ticket, 0, o.id, "", o.body); err != nil {
					if !errors.Is(err, broker.ErrUnreachable) {
						t.Error(err)
					}
					return
				}
				select {
				case begun <- struct{}{}:
				default:
				}
			}
		})
	}
	for range 64 {
		<-begun
	}
	g.must(g.Close())
	// Other tests of this package run beside it, and group as well: only ours is
	// over, which the engine's own count of goroutines says.
	wg.Wait()
	if n := g.Running(); n != 0 {
		var stacks strings.Builder
		_ = pprof.Lookup("goroutine").WriteTo(&stacks, 1)
		t.Errorf("%d batches in flight after Close:\n%s", n, stacks.String())
	}
}

// Batches have a limit in appends and one in bytes, and what does not fit the
// connection is refused alone.
func TestBatchLimits(t *testing.T) {
	g := newGroup(t, embedded.Config{})
	tooLarge := newOne()
	tooLarge.body = make([]byte, 2<<20)
	large, many := some(30), some(300)
	for _, o := range large {
		o.body = bytes.Repeat([]byte(o.ticket[:4]), 50<<10)
	}
	began := time.Now()
	g.together(append(many, large...), func() {
		_, tooLarge.err = g.Append(g.ctx, tooLarge.ticket, 0, tooLarge.id, "", tooLarge.body) // does not wait
	})
	t.Logf("all of them in %v", time.Since(began))
	if tooLarge.err == nil || errors.Is(tooLarge.err, g.ctx.Err()) {
		t.Errorf("an append of %d bytes: %v", len(tooLarge.body), tooLarge.err)
	}
	count, size := map[string]int{}, map[string]int{}
	for _, o := range append(many, large...) {
		id := g.stored(o)
		count[id]++
		size[id] += len(o.body)
	}
	for id, n := range count {
		if id != "" && (n > 256 || size[id] > 4<<20) {
			t.Errorf("a batch of %d appends, %d bytes", n, size[id])
		}
	}
	if len(count) < 2 {
		t.Errorf("%d batches, want more", len(count))
	}
}

// mangled is a connection on which no acknowledgement of a batch can be read.
type mangled struct{ net.Conn }

func (c mangled) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	copy(p, bytes.ReplaceAll(p[:n], []byte(`"batch":`), []byte(`"patch":`)))
	return n, err
}

type mangledDialer struct{ net.Dialer }

func (d *mangledDialer) Dial(network, address string) (net.Conn, error) {
	conn, err := d.Dialer.Dial(network, address)
	if err != nil {
		return nil, err
	}
	return mangled{conn}, nil
}

// A batch that nobody knows the end of was stored, and everything in it is
// found there, once.
func TestBatchOfUnknownEnd(t *testing.T) {
	g := newGroup(t, embedded.Config{}, nats.SetCustomDialer(&mangledDialer{}))
	all, more := some(40), some(40)
	g.together(all, nil)
	g.together(more, nil) // for a while no batch is tried
	id := g.stored(all[0])
	for _, o := range all {
		if got := g.stored(o); got != id || got == "" {
			t.Errorf("%s was stored by itself: batch %q, the first %q", o.ticket, got, id)
		}
	}
	for _, o := range more {
		if id := g.stored(o); id != "" {
			t.Errorf("%s came in batch %s, right after one went wrong", o.ticket, id)
		}
	}
}

// Where writes are not synced one by one nothing is grouped, and an engine that
// was there before a node restarted finds out.
func TestGroupsWhereItPays(t *testing.T) {
	dir := t.TempDir()
	ports, err := embedded.FreePorts(1)
	if err != nil {
		t.Fatal(err)
	}
	g := newGroup(t, embedded.Config{Dir: dir, Port: ports[0]})
	g.must(g.node.Stop())
	node, err := embedded.Start(g.ctx, embedded.Config{Dir: dir, Port: ports[0], Fsync: embedded.FsyncInterval,
		Prepare: handoffjs.Topology{}.Prepare})
	g.must(err)
	defer func() { g.must(node.Stop()) }()
	g.until("the engine to learn", func() bool { return !g.Groups() })
	o := newOne()
	o.seq, o.err = g.Append(g.ctx, o.ticket, 0, o.id, "", o.body)
	if o.err != nil {
		t.Error(o.err)
	}
	g.must(g.Close())
}

// A ledger from before there were batches is told to take them.
func TestLedgerLearnsBatches(t *testing.T) {
	g := newGroup(t, embedded.Config{})
	o := newOne()
	o.seq, o.err = g.Append(g.ctx, o.ticket, 0, o.id, "", o.body)
	ledger, err := g.js.Stream(g.ctx, handoffjs.LedgerStream)
	g.must(err)
	old := ledger.CachedInfo().Config
	old.AllowAtomicPublish = false
	_, err = g.js.UpdateStream(g.ctx, old)
	g.must(err)
	before := some(20)
	g.together(before, nil) // refused as a batch, and stored all the same
	g.must(handoffjs.EnsureTopology(g.ctx, g.js.Conn(), handoffjs.Topology{AsyncWork: true}))
	ledger, err = g.js.Stream(g.ctx, handoffjs.LedgerStream)
	g.must(err)
	if !ledger.CachedInfo().Config.AllowAtomicPublish {
		t.Error("it does not take batches")
	}
	for _, o := range append(before, o) {
		g.stored(o)
	}
}
