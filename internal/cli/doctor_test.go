package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/brokertest"
	"github.com/agenthandoff/handoff/internal/doctor"
	"github.com/agenthandoff/handoff/internal/embedded"
	handoffjs "github.com/agenthandoff/handoff/internal/jetstream"
	"github.com/agenthandoff/handoff/internal/lifecycle"
	"github.com/agenthandoff/handoff/internal/supervisor"
	"github.com/agenthandoff/handoff/protocol"
)

// patient is a real engine that things are taken away from.
type patient struct {
	*testing.T
	node *embedded.Node
	b    *broker.Broker
	js   jetstream.JetStream
}

func newPatient(t *testing.T) *patient {
	t.Helper()
	node, err := embedded.Start(t.Context(), embedded.Config{Dir: t.TempDir(), Prepare: handoffjs.Topology{AsyncWork: true}.Prepare})
	must(t, err)
	t.Cleanup(func() { _ = node.Stop() })
	nc, err := node.Conn()
	must(t, err)
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	must(t, err)
	p := &patient{T: t, node: node, js: js}
	var done func()
	p.b, _, done = p.connect()
	t.Cleanup(done)
	return p
}

// doctor runs the command and returns what it found, by check.
func (p *patient) doctor() map[string]doctor.Finding {
	p.Helper()
	var out bytes.Buffer
	a := &app{in: strings.NewReader(""), out: &out, err: p.Output(), env: func(string) string { return "" }}
	code := a.run(p.Context(), []string{"doctor", "-s", p.node.ClientURL(), "-o", "json", "--skip", "index"})
	var got diagnosisView
	must(p.T, json.Unmarshal(out.Bytes(), &got))
	if (code == exitDone) != got.OK {
		p.Errorf("exit code %d, and all is well is %v", code, got.OK)
	}
	all := map[string]doctor.Finding{}
	for _, f := range got.Checks {
		all[f.Check] = f
	}
	return all
}

// expect wants a check to go so; what was done a moment ago may not show yet.
func (p *patient) expect(when, check string, want doctor.Status, about ...string) {
	p.Helper()
	for n := 0; ; n++ {
		f := p.doctor()[check]
		if f.Status == want && (len(about) == 0 || slices.Equal(f.About, about)) {
			return
		}
		if n == 5 {
			p.Fatalf("%s: %+v, want %s about %v", when, f, want, about)
		}
	}
}

// supervise runs a supervisor on an engine of its own, which recreates streams that are lost until
// the supervisor stops.
func (p *patient) supervise() (stop func()) {
	p.Helper()
	b, engine, done := p.connect()
	s, err := supervisor.New(b, engine, supervisor.Config{})
	must(p.T, err)
	ctx, cancel := context.WithCancel(p.Context())
	ended := make(chan error)
	go func() { ended <- s.Run(ctx) }()
	return func() { cancel(); must(p.T, <-ended); done() }
}

func (p *patient) connect() (b *broker.Broker, engine *handoffjs.Engine, done func()) {
	p.Helper()
	nc, err := p.node.Conn()
	must(p.T, err)
	b, engine, stop, err := openNode(p.Context(), nc, broker.Config{})
	must(p.T, err)
	return b, engine, func() { stop(); nc.Close() }
}

func (p *patient) submit(to string) broker.Head {
	p.Helper()
	return brokertest.Submit(p, p.b, protocol.Package{Target: protocol.Target{Agent: to}})
}

// TestDoctorOnAnEngine takes one thing after another away from a real engine.
func TestDoctorOnAnEngine(t *testing.T) {
	t.Parallel() // it looks twice at everything, most of a second apart, two dozen times
	p := newPatient(t)
	ctx, b, js, expect, submit := t.Context(), p.b, p.js, p.expect, p.submit
	expect("before any supervisor", "supervisors", doctor.StatusFail)
	stop := p.supervise()
	expect("with a supervisor", "supervisors", doctor.StatusOK)

	must(t, b.PutProfile(ctx, protocol.Profile{ID: "clerk"}))
	head := submit("clerk")
	expect("an offer and no worker", "workers", doctor.StatusFail, "clerk")
	must(t, b.Beat(ctx, protocol.Holder{ID: protocol.NewTicket(), Agent: "clerk", LeaseMS: 600_000, Slots: 1}))
	expect("a worker", "workers", doctor.StatusOK)

	stop()
	runner := protocol.Holder{ID: protocol.NewTicket(), Agent: "runner", LeaseMS: 600_000, Slots: 1}
	must(t, b.PutProfile(ctx, protocol.Profile{ID: "runner"}))
	must(t, errors.Join(b.Beat(ctx, runner), b.EnsureQueue(ctx, "runner")))
	run := submit("runner")
	offers, err := b.Pull(ctx, "runner", 1, time.Minute)
	if err != nil || len(offers) != 1 {
		t.Fatalf("%d offers, %v", len(offers), err)
	}
	_, err = offers[0].Acknowledge(ctx, runner, protocol.Ack{Status: protocol.AckAccepted}, true)
	must(t, err)
	must(t, b.RemoveHolder(ctx, runner.ID))
	expect("its worker is gone, and nobody sees to it", "late", doctor.StatusFail, run.Ticket)
	must(t, b.Beat(ctx, runner))
	expect("its worker is back", "late", doctor.StatusOK)
	expect("no supervisor any more", "supervisors", doctor.StatusFail)
	_, _, err = b.Update(ctx, head, stuckBecause("its package is gone"))
	must(t, err)
	expect("a handoff that cannot go on", "stuck", doctor.StatusFail, head.Ticket)
	must(t, b.RemoveProfile(ctx, "clerk"))
	expect("its agent is gone", "takers", doctor.StatusFail, head.Ticket)
	must(t, b.PutProfile(ctx, protocol.Profile{ID: "clerk", Paused: true}))
	expect("its agent is paused", "paused", doctor.StatusWarn, "clerk")
	must(t, js.DeleteStream(ctx, handoffjs.TimerStream))
	expect("the wake-ups are gone", "streams", doctor.StatusFail, handoffjs.TimerStream)
	defer p.supervise()()
	expect("a supervisor made them again", "streams", doctor.StatusOK)
	expect("and is at work", "supervisors", doctor.StatusOK)
	must(t, js.DeleteStream(ctx, handoffjs.LedgerStream))
	expect("the ledger is gone", "streams", doctor.StatusFail, handoffjs.LedgerStream)
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// stuckBecause decides as a supervisor about a handoff that it cannot reconcile.
func stuckBecause(reason string) broker.Decider {
	return func(h broker.Head, q lifecycle.Query) (lifecycle.Step, error) {
		return lifecycle.RecordStuck(h.State, errors.New(reason), q.Now)
	}
}
