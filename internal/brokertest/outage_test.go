package brokertest

import (
	"bytes"
	"context"
	"errors"
	"net"
	"net/url"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/embedded"
	"github.com/agenthandoff/handoff/internal/jetstream"
	"github.com/agenthandoff/handoff/internal/lifecycle"
	"github.com/agenthandoff/handoff/protocol"
)

// freePort is for a node that has to be found again after a restart.
func freePort(t testing.TB) int {
	ports, err := embedded.FreePorts(1)
	if err != nil {
		t.Fatal(err)
	}
	return ports[0]
}

func portOf(t testing.TB, n *embedded.Node) int {
	u, err := url.Parse(n.ClientURL())
	if err != nil {
		t.Fatal(err)
	}
	port, err := strconv.Atoi(u.Port())
	if err != nil {
		t.Fatal(err)
	}
	return port
}

// TestOutage stops a node and starts it again: waiting calls continue, nothing is lost, and judges
// of leases see that they were cut off.
func TestOutage(t *testing.T) {
	dir := t.TempDir()
	k, n, _ := newSingleNodeKit(t, embedded.Config{Dir: dir, Port: freePort(t)})
	port := portOf(t, n)
	agent := k.agentWithQueue()
	reconnected := k.Reconnected(k.ctx)
	gone, err := k.Departures(k.ctx)
	k.must(err)
	lapses := k.holder(agent)
	lapses.LeaseMS = 2000
	k.must(k.Beat(k.ctx, lapses))
	before := k.awaitDirectory("the holder", func(d *lifecycle.Directory) bool { return d.Present(lapses.ID) })

	set, mu, is := ticketSet()
	f, _ := k.follow(is, func(uint64, int) bool { return true })
	k.awaitFollowing(set, mu, f)
	ticket := protocol.NewTicket()
	mu.Lock()
	set[ticket] = true
	mu.Unlock()
	pulled := make(chan broker.Delivery, 1)
	go func() { pulled <- k.pull(agent, 1)[0] }()

	k.must(n.Stop())
	k.awaitDirectory("being cut off", func(d *lifecycle.Directory) bool { return d.ConnectedSince.IsZero() })
	if d, err := k.Directory(k.ctx); err != nil || !d.Present(lapses.ID) {
		k.Errorf("the last snapshot is gone: %v", err)
	}
	appended := make(chan uint64, 1)
	go func() { appended <- k.append(ticket, 0, "while it was down") }()
	ctx, cancel := context.WithTimeout(k.ctx, 100*time.Millisecond)
	defer cancel()
	_, err = k.Append(ctx, protocol.NewTicket(), 0, "x", "", nil)
	k.wantErr(err, context.DeadlineExceeded)
	k.wantErr(err, broker.ErrUnreachable)
	<-time.After(time.Duration(lapses.LeaseMS) * time.Millisecond) // it lapses during the outage

	startNode(t, embedded.Config{Dir: dir, Port: port})
	receive(k, "word of the reconnection", reconnected)
	seq := receive(k, "the append", appended)
	k.until("the entry at the follower", func() bool { return f.times(seq) > 0 })
	key := k.offer(agent, protocol.Normal)
	if d := receive(k, "the offer", pulled); d.Key() != key {
		k.Errorf("pulled %v, want %v", d.Key(), key)
	}
	if h := receive(k, "the departure", gone); h.ID != lapses.ID {
		k.Errorf("departed %s, want %s", h.ID, lapses.ID)
	}
	after := k.awaitDirectory("being connected", func(d *lifecycle.Directory) bool { return !d.ConnectedSince.IsZero() })
	if !after.ConnectedSince.After(before.ConnectedSince) || after.Present(lapses.ID) {
		k.Errorf("connected since %v, before it was %v", after.ConnectedSince, before.ConnectedSince)
	}
	if after.LastPresent[agent].IsZero() {
		k.Error("the agent's absence was not noted")
	}
}

// The outbox streams may be deleted at any time: they are made again, with
// sequences that never were, and the supervisors are told.
func TestStreamsDeleted(t *testing.T) {
	k, _, js := newSingleNodeKit(t, embedded.Config{})
	agent, ticket := k.agentWithQueue(), protocol.NewTicket()
	reconnected := k.Reconnected(k.ctx)
	k.offer(agent, protocol.Normal)
	old := k.pull(agent, 1)[0]
	work, timers := k.stream(js, jetstream.WorkStream), k.stream(js, jetstream.TimerStream)
	dues := k.dueWakeUps(ticket)
	k.must(k.Arm(k.ctx, ticket, 1, time.Now()))
	receive(k, "a wake-up before", dues).done()

	pulled := make(chan broker.Delivery, 1)
	go func() { pulled <- k.pull(agent, 1)[0] }()
	for _, name := range []string{jetstream.WorkStream, jetstream.TimerStream} {
		k.must(js.DeleteStream(k.ctx, name))
	}
	receive(k, "word of the loss", reconnected)
	key := k.offer(agent, protocol.Normal)
	if d := receive(k, "the offer", pulled); d.Key() != key {
		k.Errorf("pulled %v, want %v", d.Key(), key)
	}
	k.must(k.Arm(k.ctx, ticket, 2, time.Now()))
	if w := receive(k, "the wake-up", dues); w.seq != 2 {
		k.Errorf("%d fired", w.seq)
	}
	entries := []broker.OutboxEntry{{Offer: broker.OfferKey{Agent: agent, Lane: protocol.Low, Ticket: ticket, Sequence: 3}, Body: []byte("x")},
		{WakeUp: broker.WakeUp{Ticket: ticket, Seq: 3, At: time.Now()}}}
	for _, name := range []string{jetstream.WorkStream, jetstream.TimerStream} {
		k.must(js.DeleteStream(k.ctx, name))
	}
	k.must(errors.Join(k.PublishOutbox(k.ctx, entries)...)) // makes them again, too
	if w := receive(k, "the wake-up of three", dues); w.seq != 3 {
		k.Errorf("%d fired", w.seq)
	} else {
		w.done()
	}
	k.must(old.Remove()) // of the stream before
	k.pull(agent, 1)     // the offer comes again: it was not removed
	if now := k.stream(js, jetstream.WorkStream); now.State.FirstSeq <= work.State.LastSeq || now.Created.Equal(work.Created) {
		k.Errorf("work begins at %d, ended at %d", now.State.FirstSeq, work.State.LastSeq)
	} else if now.Config.PersistMode != work.Config.PersistMode {
		k.Errorf("work persists %v, was %v", now.Config.PersistMode, work.Config.PersistMode)
	}
	if now := k.stream(js, jetstream.TimerStream); now.State.FirstSeq <= timers.State.LastSeq {
		k.Errorf("timers begin at %d, ended at %d", now.State.FirstSeq, timers.State.LastSeq)
	}
}

// TestRecreatedStreams: presence and bodies may be lost while everything runs. Their streams are made
// again, a client that opens meanwhile waits for them, and a watch that was there before sees what
// the new stream has, and nothing that only the old one had.
func TestRecreatedStreams(t *testing.T) {
	k, _, js := newSingleNodeKit(t, embedded.Config{})
	before, after := k.holder(k.agent()), k.holder(k.agent())
	reconnected := k.Reconnected(k.ctx)
	k.must(k.Beat(k.ctx, before))
	k.awaitDirectory("the first holder", func(d *lifecycle.Directory) bool { return d.Present(before.ID) })
	body := bytes.Repeat([]byte("large "), 100_000)
	ref, err := k.PutBlob(k.ctx, body)
	k.must(err)
	k.must(k.HasBlob(k.ctx, ref))
	holders, bodies := "KV_"+jetstream.HolderBucket, "OBJ_"+jetstream.BlobBucket
	was := k.stream(js, holders)
	k.until("a moment in which a stream is another one", func() bool { return time.Since(was.Created) > time.Second/16 })
	for _, name := range []string{holders, bodies} {
		k.must(js.DeleteStream(k.ctx, name))
	}
	other := dial(t, js.Conn().ConnectedUrl())
	receive(k, "word of the loss", reconnected)
	k.must(other.Beat(k.ctx, after))
	k.awaitDirectory("the holder of the new stream alone", func(d *lifecycle.Directory) bool { return d.Present(after.ID) && !d.Present(before.ID) })
	k.wantErr(k.HasBlob(k.ctx, ref), broker.ErrNotFound)
	_, err = k.PutBlob(k.ctx, body)
	k.must(err)
	if got, err := other.Blob(k.ctx, ref); err != nil || !bytes.Equal(got, body) {
		k.Errorf("the body that was put again has %d bytes: %v", len(got), err)
	}
	if now := k.stream(js, holders); now.State.FirstSeq <= was.State.LastSeq || now.Config.PersistMode != was.Config.PersistMode || now.Config.MaxMsgsPerSubject != 1 {
		k.Errorf("holders begin at %d and ended at %d, as %+v", now.State.FirstSeq, was.State.LastSeq, now.Config)
	}
}

func TestDialNobodyThere(t *testing.T) {
	t.Parallel()
	closed := "nats://127.0.0.1:" + strconv.Itoa(freePort(t))
	l, err := net.Listen("tcp", "127.0.0.1:0") // accepts, and says nothing
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	silent := "nats://" + l.Addr().String()
	for _, where := range []string{closed, silent, closed + "," + silent} {
		k := newKit(t, nil)
		_, err := jetstream.Dial(k.ctx, jetstream.DialConfig{URL: where, Config: jetstream.Config{Timeout: broker.TimeoutMin}})
		k.wantErr(err, broker.ErrUnreachable)
		if silence := new(broker.SilenceError); !errors.As(err, &silence) || silence.After < broker.TimeoutMin {
			t.Errorf("%s: the error does not say that nothing answered in %v: %v", where, broker.TimeoutMin, err)
		}
		if !strings.Contains(err.Error(), where) || !strings.Contains(err.Error(), "handoff dev") {
			t.Errorf("the error does not say where it looked and what to do: %v", err)
		}
	}
}

// TestDialEarly dials before the server starts, and connects within the timeout.
func TestDialEarly(t *testing.T) {
	t.Parallel()
	port := freePort(t)
	type dialed struct {
		engine *jetstream.Engine
		err    error
	}
	made, tried := make(chan dialed), make(chan struct{}, 1)
	go func() {
		e, err := jetstream.Dial(t.Context(), jetstream.DialConfig{
			URL:    "nats://127.0.0.1:" + strconv.Itoa(port),
			Config: jetstream.Config{Timeout: broker.TimeoutMax},
			Options: []nats.Option{nats.SetCustomDialer(dialerFunc(func(network, address string) (net.Conn, error) {
				select {
				case tried <- struct{}{}:
				default:
				}
				return net.Dial(network, address)
			}))},
		})
		made <- dialed{e, err}
	}()
	<-tried
	startNode(t, embedded.Config{Port: port, Prepare: jetstream.Topology{}.Prepare})
	d := <-made
	if d.err != nil {
		t.Fatal(d.err)
	}
	_ = d.engine.Close()
}

type dialerFunc func(network, address string) (net.Conn, error)

func (f dialerFunc) Dial(network, address string) (net.Conn, error) { return f(network, address) }

// A timeout out of its limits is refused before anything is done.
func TestTimeoutLimits(t *testing.T) {
	t.Parallel()
	for _, d := range []time.Duration{-1, broker.TimeoutMin - 1, broker.TimeoutMax + 1} {
		_, err := jetstream.Dial(t.Context(), jetstream.DialConfig{Config: jetstream.Config{Timeout: d}})
		if refused := new(protocol.Error); !errors.As(err, &refused) || refused.Field != "timeout" {
			t.Errorf("%v: %v", d, err)
		}
	}
	for _, d := range []time.Duration{0, broker.TimeoutMin, broker.TimeoutMax} {
		if err := broker.CheckTimeout("timeout", d); err != nil {
			t.Error(err)
		}
	}
}

func TestDialWithoutStreams(t *testing.T) {
	t.Parallel()
	n := startNode(t, embedded.Config{})
	_, err := jetstream.Dial(t.Context(), jetstream.DialConfig{URL: n.ClientURL()})
	if !errors.Is(err, broker.ErrNoTopology) || !strings.Contains(err.Error(), jetstream.LedgerStream) || !strings.Contains(err.Error(), "handoff topology ensure") {
		t.Errorf("the error does not say what is missing and how to make it: %v", err)
	}
}

// clientGoroutines returns the stacks of the goroutines of engines and of their connections. Those
// of a server in the process come and go with what it does.
func clientGoroutines() (stacks []string) {
	all := make([]byte, 16<<20)
	for stack := range strings.SplitSeq(string(all[:runtime.Stack(all, true)]), "\n\n") {
		if strings.Contains(stack, "handoff/internal/jetstream.") || strings.Contains(stack, "nats-io/nats.go") || strings.Contains(stack, "nats-io/nats%2ego") {
			stacks = append(stacks, stack)
		}
	}
	return stacks
}

// Everything that an engine runs ends with it. Not parallel: it counts.
func TestCloseLeavesNothing(t *testing.T) {
	n := startNode(t, embedded.Config{})
	ensure(t, n.ClientURL(), jetstream.Topology{})
	k := newKit(t, nil)
	agent, before := k.agent(), len(clientGoroutines())
	for range 4 {
		nc, err := nats.Connect(n.ClientURL(), jetstream.ConnectOptions("leak")...)
		k.must(err)
		e, err := jetstream.Open(k.ctx, nc, jetstream.Config{})
		k.must(err)
		k.Engine = e
		ctx, cancel := context.WithCancel(k.ctx)
		_ = k.Reconnected(ctx)
		_, err = k.Departures(ctx)
		k.must(err)
		_, _, err = k.Feed(ctx, protocol.NewTicket())
		k.must(err)
		k.must(k.EnsureQueue(ctx, agent))
		k.offer(agent, protocol.Low)
		k.pull(agent, 1)
		k.noDelivery(agent)
		ended := make(chan error, 1)
		go func() { ended <- k.Follow(ctx, func(_ broker.Entry, done func()) { done() }) }()
		k.append(protocol.NewTicket(), 0, "x")
		cancel()
		receive(k, "the end of the follower", ended)
		k.must(e.Close())
		if nc.IsClosed() {
			k.Error("Close closed a connection that is not its own")
		}
		nc.Close()
	}
	defer func() {
		if t.Failed() {
			t.Log(strings.Join(clientGoroutines(), "\n\n"))
		}
	}()
	k.until("all goroutines ended", func() bool { return len(clientGoroutines()) <= before })
}
