package natsgateway_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/agenthandoff/handoff/api"
	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/brokertest"
	"github.com/agenthandoff/handoff/internal/embedded"
	natsgateway "github.com/agenthandoff/handoff/internal/gateway/nats"
	"github.com/agenthandoff/handoff/internal/jetstream"
	"github.com/agenthandoff/handoff/protocol"
)

// patience is how long anything may take, on a machine that does much else.
const patience = time.Minute

// world is a real engine in this process, and a trusted connection to it for the
// test, which plays source, supervisor and onlooker.
type world struct {
	testing.TB
	ctx context.Context
	b   *broker.Broker
	nc  *nats.Conn // of b

	inside  string                    // where the engine is
	ackWait time.Duration             // of queues that are made through here; 0 is the engine's own
	outside func(agent string) string // where it is for agents that are not trusted
}

func newWorld(t testing.TB) *world {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*patience)
	t.Cleanup(cancel)
	n, err := embedded.Start(ctx, embedded.Config{Dir: t.TempDir(), Fsync: embedded.FsyncInterval})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = n.Stop() })
	return worldAt(t, ctx, n.ClientURL(), func(string) string { return n.ClientURL() })
}

func worldAt(t testing.TB, ctx context.Context, inside string, outside func(string) string) *world {
	t.Helper()
	nc, err := nats.Connect(inside, nats.RetryOnFailedConnect(true), nats.MaxReconnects(-1), nats.ReconnectWait(50*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	if err := nc.FlushTimeout(patience); err != nil {
		t.Fatal(err)
	}
	if err := jetstream.EnsureTopology(ctx, nc, jetstream.Topology{AsyncWork: true}); err != nil {
		t.Fatal(err)
	}
	w := &world{TB: t, ctx: ctx, inside: inside, outside: outside}
	engine := w.engine()
	w.b, w.nc = w.brokerOver(engine), engine.Conn()
	return w
}

// in is the same world in a subtest.
func (w *world) in(t testing.TB) *world {
	return &world{TB: t, ctx: w.ctx, b: w.b, nc: w.nc, inside: w.inside, ackWait: w.ackWait, outside: w.outside}
}

func (w *world) broker() *broker.Broker {
	w.Helper()
	return w.brokerOver(w.engine())
}

func (w *world) brokerOver(engine *jetstream.Engine) *broker.Broker {
	w.Helper()
	return brokertest.Over(w, engine)
}

func (w *world) engine() *jetstream.Engine {
	w.Helper()
	engine, err := jetstream.Dial(w.ctx, jetstream.DialConfig{URL: w.inside, Config: jetstream.Config{AckWait: w.ackWait, Timeout: patience}})
	if err != nil {
		w.Fatal(err)
	}
	w.Cleanup(func() { _ = engine.Close() })
	return engine
}

// gateway is one that runs.
type gateway struct {
	*natsgateway.Gateway
	nc   *nats.Conn
	stop func()
}

// open starts a gateway. stop ends it; kill makes it vanish.
func (w *world) open(cfg natsgateway.Config) *gateway {
	w.Helper()
	engine := w.engine()
	b, nc := w.brokerOver(engine), engine.Conn()
	d, err := natsgateway.New(b, nc, cfg)
	if err != nil {
		w.Fatal(err)
	}
	ctx, cancel := context.WithCancel(w.ctx)
	ready, ended := make(chan struct{}), make(chan error, 1)
	go func() { ended <- d.Run(ctx, func() { close(ready) }) }()
	select {
	case <-ready:
	case err := <-ended:
		w.Fatal(err)
	}
	stopped := false
	stop := func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-ended; err != nil && !nc.IsClosed() {
			w.Error(err)
		}
	}
	w.Cleanup(stop)
	return &gateway{d, nc, stop}
}

// kill cuts the gateway off for ever, with all that it had in hand.
func (d *gateway) kill() {
	d.nc.Close()
	d.stop()
}

// conn is a connection as an agent outside has one: with inboxes of its own alone.
func (w *world) conn(agent string) *nats.Conn {
	w.Helper()
	nc, err := nats.Connect(w.outside(agent), nats.CustomInboxPrefix(natsgateway.InboxPrefix(agent)),
		nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {})) // what is forbidden, a test asks for
	if err != nil {
		w.Fatal(err)
	}
	w.Cleanup(nc.Close)
	return nc
}

// hasty is a client that gives up soon.
func (w *world) hasty(agent string) *natsgateway.Client {
	w.Helper()
	c, err := natsgateway.NewClient(w.conn(agent), natsgateway.ClientConfig{Agent: agent, Timeout: broker.TimeoutMin})
	if err != nil {
		w.Fatal(err)
	}
	w.Cleanup(c.Close)
	return c
}

func (w *world) client(agent string) *natsgateway.Client {
	w.Helper()
	c, err := natsgateway.NewClient(w.conn(agent), natsgateway.ClientConfig{Agent: agent, Timeout: patience})
	if err != nil {
		w.Fatal(err)
	}
	w.Cleanup(c.Close)
	return c
}

func (w *world) register(agents ...string) {
	w.Helper()
	brokertest.Register(w, w.b, agents...)
	for _, agent := range agents {
		if err := w.b.EnsureQueue(w.ctx, agent); err != nil {
			w.Fatal(err)
		}
	}
}

// submit hands something from lead to an agent; change may change the package.
func (w *world) submit(to string, change func(*protocol.Package)) string {
	w.Helper()
	pkg := protocol.Package{Target: protocol.Target{Agent: to}}
	if change != nil {
		change(&pkg)
	}
	return brokertest.Submit(w, w.b, pkg).Ticket
}

func (w *world) until(ticket string, so func(protocol.State) bool) protocol.State {
	w.Helper()
	return brokertest.Until(w, w.b, ticket, so)
}

func (w *world) status(ticket string) protocol.State {
	w.Helper()
	return brokertest.Status(w, w.b, ticket)
}

// unchanged calls do and sees to it that it appends nothing.
func (w *world) unchanged(what string, do func()) {
	w.Helper()
	before, err := w.b.LedgerInfo(w.ctx)
	if err != nil {
		w.Fatal(err)
	}
	do()
	after, err := w.b.LedgerInfo(w.ctx)
	if err != nil {
		w.Fatal(err)
	}
	if after.Last != before.Last {
		w.Errorf("%s: the ledger has %d new entries", what, after.Last-before.Last)
	}
}

// key is that of a holder.
const key = "a-key-that-nobody-guesses"

// claimBody is a request for one offer, for a raw connection.
func claimBody(agent string, waitMS int) string {
	return fmt.Sprintf(`{"agent":%q,"key":%q,"lease_ms":30000,"most":1,"wait_ms":%d,"accept":true}`, agent, key, waitMS)
}

// held is a handoff that a client has claimed, and its last state.
type held struct {
	api.Held
	c *natsgateway.Client
}

// accept claims one offer. One that a busy machine lost comes again.
func (w *world) accept(c *natsgateway.Client, agent string) *held {
	w.Helper()
	if _, err := c.Present(w.ctx, api.Presence{Agent: agent, Key: key, LeaseMS: 120_000, Slots: 10}); err != nil {
		w.Fatal(err)
	}
	for {
		claims, err := c.ClaimMany(w.ctx, api.ClaimMany{Agent: agent, Key: key, Lease: 2 * time.Minute, Most: 1, Wait: time.Second, Accept: true})
		if err != nil {
			w.Fatal(err)
		}
		if len(claims.Held) == 1 {
			return &held{claims.Held[0], c}
		}
	}
}

func (h *held) Complete(ctx context.Context, result protocol.Result) error {
	_, err := h.c.Complete(ctx, h.Lease, result)
	return err
}

func (h *held) HandOff(ctx context.Context, child api.HandOff) (ticket string, err error) {
	child.Lease = h.Lease
	made, err := h.c.HandOff(ctx, child)
	if err == nil {
		h.State = &made.Parent
	}
	return made.Ticket, err
}

// ask sends a request as it is, and returns the answer with the code of its error.
func (w *world) ask(nc *nats.Conn, subject, body string) (answer map[string]json.RawMessage, code protocol.Code) {
	w.Helper()
	msg, err := nc.RequestMsgWithContext(w.ctx, &nats.Msg{Subject: subject, Header: nats.Header{"Handoff-Request": {"1"}}, Data: []byte(body)})
	if err != nil {
		w.Fatalf("%s: %v", subject, err)
	}
	if err := json.Unmarshal(msg.Data, &answer); err != nil {
		w.Fatalf("%s: %q: %v", subject, msg.Data, err)
	}
	if word := msg.Header.Get("Nats-Service-Error"); word != "" {
		return answer, protocol.Code(word)
	}
	return answer, ""
}

func hasCode(err error, code protocol.Code) bool {
	return errors.Is(err, &protocol.Error{Code: code})
}

func text(s string) json.RawMessage {
	raw, err := json.Marshal(s)
	if err != nil {
		panic(err)
	}
	return raw
}

// eventually polls for what tells nobody when it is so.
func (w *world) eventually(what string, so func() bool) {
	w.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !so() {
		select {
		case <-tick.C:
		case <-w.ctx.Done():
			w.Fatalf("waited for %s", what)
		}
	}
}
