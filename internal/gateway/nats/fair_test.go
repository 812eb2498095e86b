package natsgateway_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/agenthandoff/handoff/api"
	"github.com/agenthandoff/handoff/broker"
	natsgateway "github.com/agenthandoff/handoff/internal/gateway/nats"
	"github.com/agenthandoff/handoff/internal/testworld"
	"github.com/agenthandoff/handoff/protocol"
)

// Agents that hold everything that they can get, and never stop asking for more, do not
// keep another agent from anything: no request of it is refused as busy.
func TestGreedyAgentsHarmThemselves(t *testing.T) {
	for _, c := range []struct{ greedy, rounds int }{{2, 20}, {20, 10}, {100, 5}} {
		t.Run(fmt.Sprint(c.greedy), func(t *testing.T) {
			if (testing.Short() || testworld.Race) && c.greedy > 2 {
				t.Skip("many agents take a while, and six times that under the race detector")
			}
			if testworld.Race {
				c.rounds = 2
			}
			w := newWorld(t)
			cfg := natsgateway.Config{Requests: 256, Claims: 256, MemoryBytes: natsgateway.MemoryBytesMin}
			d := w.open(cfg)
			for n := range c.greedy {
				w.greedy(d, n, c.greedy, cfg)
			}
			w.eventually("a full gateway", func() bool {
				load := d.Load()
				return load.Busy["requests"] > 0 && load.Busy["bodies"] > 0
			})
			refused := []*atomic.Int64{w.refusals("honest"), w.refusals("mate")}
			w.register("honest", "mate")
			honest, mate := w.client("honest"), w.client("mate")
			for round := range c.rounds {
				w.honestRound(honest, mate, round)
			}
			load := d.Load()
			if n := refused[0].Load() + refused[1].Load(); n > 0 {
				t.Errorf("%d requests of honest agents were refused", n)
			}
			if load.Requests > int64(cfg.Requests) || load.Bytes > cfg.MemoryBytes {
				t.Errorf("over a limit: %+v", load)
			}
			t.Logf("%+v", load)
		})
	}
}

// refusals counts the answers to an agent that say busy.
func (w *world) refusals(agent string) *atomic.Int64 {
	w.Helper()
	nc, err := nats.Connect(w.inside)
	if err != nil {
		w.Fatal(err)
	}
	w.Cleanup(nc.Close)
	n := new(atomic.Int64)
	if _, err := nc.Subscribe(natsgateway.InboxPrefix(agent)+".>", func(m *nats.Msg) {
		if m.Header.Get("Nats-Service-Error") == string(protocol.CodeBusy) {
			w.Logf("refused: %s", m.Data)
			n.Add(1)
		}
	}); err != nil {
		w.Fatal(err)
	}
	if err := nc.FlushTimeout(patience); err != nil {
		w.Fatal(err)
	}
	return n
}

// honestRound has one handoff submitted and waited for, and claimed, reported on and
// completed by another agent, with a result that comes and goes in parts.
func (w *world) honestRound(c, mate *natsgateway.Client, round int) {
	w.Helper()
	try := func(do func() error) {
		w.Helper()
		err := do()
		for errors.Is(err, broker.ErrUnreachable) && w.ctx.Err() == nil { // a machine that does much else
			w.Logf("round %d: once more: %v", round, err)
			err = do()
		}
		if err != nil {
			w.Fatalf("round %d: %v", round, err)
		}
	}
	var ticket string
	try(func() error {
		state, err := c.Submit(w.ctx, protocol.Package{Key: fmt.Sprint("key ", round), Target: protocol.Target{Agent: "mate"}, Reason: "ready", Task: protocol.Task{Description: "work"}})
		ticket = state.Ticket
		return err
	})
	waited := make(chan struct{})
	go func() {
		defer close(waited)
		try(func() error { _, err := c.Wait(w.ctx, ticket, "closed"); return err })
	}()
	var claim api.Held
	try(func() error {
		_, err := mate.Present(w.ctx, api.Presence{Agent: "mate", Key: key, LeaseMS: 120_000, Slots: 10})
		return err
	})
	for claim.Lease == "" {
		try(func() error {
			claims, err := mate.ClaimMany(w.ctx, api.ClaimMany{Agent: "mate", Key: key, Lease: 2 * time.Minute, Most: 1, Wait: 5 * time.Second, Accept: true})
			if len(claims.Held) > 0 {
				claim = claims.Held[0]
			}
			return err
		})
	}
	try(func() error {
		_, err := mate.Progress(w.ctx, claim.Lease, protocol.Progress{Percent: 50})
		return err
	})
	try(func() error { _, err := mate.Heartbeat(w.ctx, api.Heartbeat{Lease: claim.Lease}); return err })
	large := strings.Repeat("x", 1<<20)
	try(func() error {
		_, err := mate.Complete(w.ctx, claim.Lease, protocol.Result{Body: text(large)})
		return err
	})
	<-waited
	var result protocol.Result
	try(func() (err error) { result, _, err = c.Result(w.ctx, ticket); return err })
	if len(result.Body) != len(large)+2 {
		w.Errorf("round %d: a result of %d bytes", round, len(result.Body))
	}
}

// greedy is an agent that asks for all that there is, and asks again at once.
type greedy struct {
	w     *world
	d     *gateway
	nc    *nats.Conn
	agent string
	pause time.Duration // between two requests of a kind: all together make some hundreds a second
}

func (w *world) greedy(d *gateway, n, of int, cfg natsgateway.Config) {
	w.Helper()
	agent, requests := fmt.Sprint("greedy", n), 2*cfg.Requests/of
	w.register(agent)
	g := &greedy{w: w, d: d, nc: w.conn(agent), agent: agent, pause: time.Duration(of) * 10 * time.Millisecond}
	var open string
	for range 1 + cfg.Claims/of {
		open = w.submit(agent, func(p *protocol.Package) {
			p.Context.Variables = map[string]json.RawMessage{"it": text(strings.Repeat("x", 10_000))}
		})
	}
	ctx, cancel := context.WithCancel(w.ctx)
	var all sync.WaitGroup
	w.Cleanup(func() { cancel(); all.Wait() })
	all.Go(func() { g.hoard(ctx) })
	all.Go(func() { g.upload(ctx) })
	// Each of these waits as long as it may. A large message is held all the time.
	wait := fmt.Sprintf(`{"ticket":%q,"wait_ms":20000}`, open)
	all.Go(func() { g.keep(ctx, requests/4, "ClaimMany", claimBody(agent, 20_000)) })
	all.Go(func() { g.keep(ctx, requests/2, "Wait", wait) })
	all.Go(func() { g.keep(ctx, requests/4, "Wait", wait+strings.Repeat(" ", 300_000)) })
}

// keep has so many requests under way all the time.
func (g *greedy) keep(ctx context.Context, n int, verb, body string) {
	n = max(n, 1)
	answers := make(chan *nats.Msg, 4*n)
	inbox := g.nc.NewInbox()
	if _, err := g.nc.ChanSubscribe(inbox, answers); err != nil {
		g.w.Error(err)
		return
	}
	ask := func() {
		_ = g.nc.PublishMsg(&nats.Msg{Subject: natsgateway.Subject(g.agent, verb), Reply: inbox, Header: nats.Header{"Handoff-Request": {"1"}}, Data: []byte(body)})
	}
	for range n {
		ask()
	}
	for {
		select {
		case <-answers:
			ask()
		case <-ctx.Done():
			return
		}
		g.rest(ctx)
	}
}

func (g *greedy) rest(ctx context.Context) {
	select {
	case <-time.After(g.pause):
	case <-ctx.Done():
	}
}

// ask sends one request and returns the answer; nil at the end.
func (g *greedy) ask(ctx context.Context, subject string, header nats.Header, body string) *nats.Msg {
	header.Set("Handoff-Request", "1")
	limited, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	msg, err := g.nc.RequestMsgWithContext(limited, &nats.Msg{Subject: subject, Header: header, Data: []byte(body)})
	if err != nil {
		return nil
	}
	return msg
}

// hoard claims every offer and keeps it.
func (g *greedy) hoard(ctx context.Context) {
	var leases []string
	present := fmt.Sprintf(`{"agent":%q,"key":%q,"lease_ms":60000,"slots":9}`, g.agent, key)
	for ctx.Err() == nil {
		g.ask(ctx, natsgateway.Subject(g.agent, "Present"), nats.Header{}, present)
		var answer struct{ Held []struct{ Lease string } }
		if msg := g.ask(ctx, natsgateway.Subject(g.agent, "ClaimMany"), nats.Header{}, strings.Replace(claimBody(g.agent, 0), `"most":1`, `"most":256`, 1)); msg != nil {
			_ = json.Unmarshal(msg.Data, &answer)
		}
		for _, held := range answer.Held {
			leases = append(leases, held.Lease)
		}
		for _, lease := range leases {
			g.ask(ctx, natsgateway.SubjectAt(g.agent, g.d.ID(), "Heartbeat"), nats.Header{}, fmt.Sprintf(`{"lease":%q}`, lease))
			g.rest(ctx)
		}
		g.rest(ctx)
	}
}

// upload announces bodies, as large as the gateway takes them, and never sends the rest.
func (g *greedy) upload(ctx context.Context) {
	for size := natsgateway.CallBytesMax; ctx.Err() == nil; {
		msg := g.ask(ctx, natsgateway.Subject(g.agent, "put"), nats.Header{"Handoff-Total": {fmt.Sprint(size)}}, strings.Repeat("x", 100_000))
		switch {
		case msg == nil:
		case msg.Header.Get("Nats-Service-Error") == "":
			continue
		default:
			if size /= 2; size < 200_000 {
				size = natsgateway.CallBytesMax
			}
		}
		g.rest(ctx)
	}
}

// A client that is refused as busy asks again by itself.
func TestBusyIsAskedAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.register("coder")
	w.open(natsgateway.Config{Requests: 2})
	nc, c := w.conn("coder"), w.client("coder")
	ticket := w.submit("coder", nil)
	held, err := nc.SubscribeSync(nc.NewInbox())
	if err != nil {
		t.Fatal(err)
	}
	wait := []byte(fmt.Sprintf(`{"ticket":%q,"wait_ms":20000}`, ticket))
	if err := nc.PublishMsg(&nats.Msg{Subject: natsgateway.Subject("coder", "Wait"), Reply: held.Subject, Header: nats.Header{"Handoff-Request": {"1"}}, Data: wait}); err != nil {
		t.Fatal(err)
	}
	if err := nc.FlushTimeout(patience); err != nil { // the gateway gets it first
		t.Fatal(err)
	}
	refused := w.refusals("coder")
	asked := make(chan error, 1)
	go func() { _, err := c.Status(w.ctx, ticket); asked <- err }()
	w.eventually("a second refusal of one question", func() bool { return refused.Load() > 1 })
	if _, err := w.b.Cancel(w.ctx, ticket, "lead", "enough"); err != nil { // which ends the wait
		t.Fatal(err)
	}
	if err := <-asked; err != nil && !errors.Is(err, broker.ErrUnreachable) { // after 5 s it gives up
		t.Error(err)
	}
	if _, err := c.Status(w.ctx, ticket); err != nil {
		t.Error(err)
	}
}
