package worker_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agenthandoff/handoff/api"
	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/brokertest"
	"github.com/agenthandoff/handoff/internal/lifecycle"
	"github.com/agenthandoff/handoff/internal/supervisor"
	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/worker"
)

// world is an engine in memory under a fake clock, and a connection to it for
// the test, which plays source, supervisor and other workers.
type world struct {
	*testing.T
	ctx     context.Context
	m       *brokertest.Memory
	b       *broker.Broker
	running sync.WaitGroup
}

// inBubble runs a test in its own world. The bubble does not end while a
// goroutine is left in it: every test here is also one for leaks.
func inBubble(t *testing.T, test func(w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		m := brokertest.NewMemory()
		w := &world{T: t, ctx: ctx, m: m, b: brokertest.Over(t, m)}
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

// serving is a worker that runs.
type serving struct {
	*worker.Worker
	m     *brokertest.Memory // its connection
	stop  context.CancelFunc
	ended chan struct{}
	err   error // of Run, once ended is closed
}

// drain ends the worker and waits for it.
func (s *serving) drain() error {
	s.stop()
	<-s.ended
	return s.err
}

// serve starts a worker of coder on a connection of its own.
func (w *world) serve(cfg worker.Config, h worker.Handler) *serving {
	w.Helper()
	m := w.m.Connect()
	return w.serveOver(m, sessionOf(brokertest.Over(w.T, m)), cfg, h)
}

func (w *world) serveOver(m *brokertest.Memory, by worker.Session, cfg worker.Config, h worker.Handler) *serving {
	w.Helper()
	if cfg.Agent == "" {
		cfg.Agent = "coder"
	}
	it, err := worker.New(by, cfg, h)
	if err != nil {
		w.Fatal(err)
	}
	s := &serving{Worker: it, m: m, ended: make(chan struct{})}
	var ctx context.Context
	ctx, s.stop = context.WithCancel(w.ctx)
	w.running.Go(func() {
		defer close(s.ended)
		s.err = it.Run(ctx)
		_ = m.Close()
	})
	synctest.Wait()
	return s
}

// sessionOf has the operations of a worker over a connection.
func sessionOf(b *broker.Broker) *api.Session { return api.Direct(b, "coder") }

// submit hands something from lead to coder; change may change the package.
func (w *world) submit(change func(*protocol.Package)) string {
	w.Helper()
	return submitTo(w.T, w.b, change)
}

func submitTo(t testing.TB, b *broker.Broker, change func(*protocol.Package)) string {
	t.Helper()
	var pkg protocol.Package
	if change != nil {
		change(&pkg)
	}
	return brokertest.Submit(t, b, pkg).Ticket
}

// register makes the agent before there is a worker of it.
func (w *world) register(profile protocol.Profile) {
	w.Helper()
	if err := w.b.PutProfile(w.ctx, profile); err != nil {
		w.Fatal(err)
	}
}

func (w *world) status(ticket string) protocol.State {
	w.Helper()
	return brokertest.Status(w, w.b, ticket)
}

// closed waits until the handoff is, and what follows from it at once is done.
func (w *world) closed(ticket string) protocol.State {
	w.Helper()
	defer synctest.Wait()
	return brokertest.Until(w, w.b, ticket, brokertest.Closed)
}

// supervise starts a supervisor on a connection of its own.
func (w *world) supervise() {
	w.Helper()
	m := w.m.Connect()
	s, err := supervisor.New(brokertest.Over(w.T, m), m, supervisor.Config{})
	if err != nil {
		w.Fatal(err)
	}
	w.running.Go(func() {
		if err := s.Run(w.ctx); err != nil {
			w.Error(err)
		}
		_ = m.Close()
	})
	synctest.Wait()
}

// look does what a supervisor does about the handoff itself.
func (w *world) look(ticket string) protocol.State {
	w.Helper()
	head, _, err := brokertest.Update(w.ctx, w.b, ticket, func(h broker.Head, q lifecycle.Query) (lifecycle.Step, error) {
		return lifecycle.Decide(h.State, q)
	})
	if err != nil {
		w.Fatal(err)
	}
	return head.State
}

// events are the types of all events of a handoff, one append a word.
func (w *world) events(ticket string) string {
	w.Helper()
	_, events := brokertest.History(w, w.b, ticket, "+")
	return strings.Join(events, " ")
}

// others tries to take an offer as another worker would, without waiting, and
// releases it.
func (w *world) others() (free int) {
	w.Helper()
	offers, err := w.b.Pull(w.ctx, "coder", 100, 0)
	if err != nil {
		w.Fatal(err)
	}
	for _, o := range offers {
		if err := o.Release(); err != nil {
			w.Fatal(err)
		}
	}
	return len(offers)
}

// holder makes another holder of coder that is present for a day.
func (w *world) holder() protocol.Holder {
	w.Helper()
	return brokertest.PutHolder(w, w.b, "coder", 24*time.Hour)
}

// pass lets fake time pass.
func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// done is a handler that completes at once.
var done = worker.HandlerFunc(func(context.Context, worker.Handoff) (protocol.Result, error) {
	return protocol.Result{Body: []byte(`"done"`)}, nil
})

// working is a handler that works until it is told to return, or until its
// context ends; then it returns the cause.
type working struct {
	began chan worker.Handoff
	end   chan error
	cause chan error // of the context's end
}

func newWorking() *working {
	return &working{began: make(chan worker.Handoff, 100), end: make(chan error), cause: make(chan error, 100)}
}

func (h *working) Handle(ctx context.Context, handoff worker.Handoff) (protocol.Result, error) {
	h.began <- handoff
	select {
	case err := <-h.end:
		return protocol.Result{}, err
	case <-ctx.Done():
		h.cause <- context.Cause(ctx)
		return protocol.Result{}, context.Cause(ctx)
	}
}

// cancelledBy tells by what the handler's context ended.
func (w *world) cancelledBy(h *working, want error) {
	w.Helper()
	select {
	case cause := <-h.cause:
		if !errors.Is(cause, want) {
			w.Errorf("the handler's context ended by %v, want %v", cause, want)
		}
	default:
		w.Errorf("the handler's context has not ended, want %v", want)
	}
}

// child is the ticket of a child of a handoff.
func (w *world) child(parent string, n int) string {
	w.Helper()
	s := w.status(parent)
	return s.ChildTicket(n)
}
