package supervisor_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/brokertest"
	"github.com/agenthandoff/handoff/internal/supervisor"
	"github.com/agenthandoff/handoff/protocol"
)

// world is an engine in memory under a fake clock, and a connection to it for
// the test itself, which plays source and worker. Instants are exact there, so
// the tests assert them.
type world struct {
	*testing.T
	ctx     context.Context
	m       *brokertest.Memory
	b       *broker.Broker
	begun   time.Time
	running sync.WaitGroup
}

// inBubble runs a test in its own world and joins everything it started.
func inBubble(t *testing.T, test func(w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		m := brokertest.NewMemory()
		w := &world{T: t, ctx: ctx, m: m, b: brokertest.Over(t, m), begun: time.Now()}
		defer func() {
			cancel()
			w.running.Wait()
			if err := m.Close(); err != nil {
				t.Error(err)
			}
		}()
		test(w)
	})
}

// supervise starts a supervisor on a connection of its own and returns when it
// is under way. stop ends and joins it.
func (w *world) supervise(cfg supervisor.Config) (own *brokertest.Memory, stop func()) {
	w.Helper()
	own = w.m.Connect()
	return own, w.superviseOver(own, brokertest.Over(w.T, own), own, cfg)
}

func (w *world) superviseOver(own *brokertest.Memory, b supervisor.Broker, engine supervisor.Engine, cfg supervisor.Config) (stop func()) {
	w.Helper()
	s, err := supervisor.New(b, engine, cfg)
	if err != nil {
		w.Fatal(err)
	}
	ctx, cancel := context.WithCancel(w.ctx)
	ended := make(chan struct{})
	w.running.Go(func() {
		defer close(ended)
		if err := s.Run(ctx); err != nil {
			w.Errorf("supervisor ended: %v", err)
		}
		_ = own.Close()
	})
	synctest.Wait()
	return func() { cancel(); <-ended }
}

func (w *world) agent(id string, change func(*protocol.Profile)) {
	w.Helper()
	profile := protocol.Profile{ID: id}
	if change != nil {
		change(&profile)
	}
	if err := w.b.PutProfile(w.ctx, profile); err != nil {
		w.Fatal(err)
	}
}

// holder makes a worker's presence that lasts for its lease and is not renewed.
func (w *world) holder(agent string, lease time.Duration) protocol.Holder {
	w.Helper()
	return brokertest.PutHolder(w, w.b, agent, lease)
}

// staying is a lease that no test outlasts.
const staying = 24 * time.Hour

// submit hands something from lead to coder; change may change the package.
func (w *world) submit(change func(*protocol.Package)) string {
	w.Helper()
	var pkg protocol.Package
	pkg.Policy.BackoffSpreadPct = new(int) // none: instants are easier to read
	if change != nil {
		change(&pkg)
	}
	return brokertest.Submit(w, w.b, pkg).Ticket
}

// offer waits for an offer in an agent's queue.
func (w *world) offer(agent string) *broker.Offer {
	w.Helper()
	return brokertest.Offer(w, w.b, agent)
}

// work waits for an offer that is to be had and begins to work on it. The
// holder beats when it begins, and the test sees to what beats there are later.
func (w *world) work(h protocol.Holder) *broker.Claim {
	w.Helper()
	return brokertest.Accept(w, w.b, h)
}

func (w *world) complete(c *broker.Claim) {
	w.Helper()
	if err := c.Complete(w.ctx, protocol.Result{Body: []byte(`"done"`)}); err != nil {
		w.Fatal(err)
	}
}

func (w *world) fail(c *broker.Claim) {
	w.Helper()
	if err := c.Fail(w.ctx, broker.Failure{Code: "handler", Message: "no luck", Retryable: true}); err != nil {
		w.Fatal(err)
	}
}

// closed waits for the end of a handoff.
func (w *world) closed(ticket string) protocol.State {
	w.Helper()
	return w.until(ticket, brokertest.Closed)
}

func (w *world) until(ticket string, cond func(protocol.State) bool) protocol.State {
	w.Helper()
	return brokertest.Until(w, w.b, ticket, cond)
}

// pass lets fake time pass, and all that happens in it.
func pass(d time.Duration) {
	time.Sleep(d) // the bubble's clock: nothing waits
	synctest.Wait()
}

// story tells a handoff's life, one line an append: when it was, and which facts.
func (w *world) story(ticket string) []string {
	w.Helper()
	appends, events := brokertest.History(w, w.b, ticket, " ")
	for i, a := range appends {
		events[i] = fmt.Sprintf("%v %s", a.Record.Events[0].When().Sub(w.begun), events[i])
	}
	return events
}

func (w *world) want(ticket string, lines ...string) {
	w.Helper()
	if got := w.story(ticket); !slices.Equal(got, lines) {
		w.Errorf("the story is\n\t%s\nwant\n\t%s", strings.Join(got, "\n\t"), strings.Join(lines, "\n\t"))
	}
}

// plot is a story without its instants.
func (w *world) plot(ticket string) string {
	w.Helper()
	var facts []string
	for _, line := range w.story(ticket) {
		_, names, _ := strings.Cut(line, " ")
		facts = append(facts, names)
	}
	return strings.Join(facts, ", ")
}

func ptr[T any](v T) *T { return &v }

// child is the ticket of a child of a handoff.
func (w *world) child(parent string, n int) string {
	w.Helper()
	s, err := w.b.Status(w.ctx, parent)
	if err != nil {
		w.Fatal(err)
	}
	return s.ChildTicket(n)
}
