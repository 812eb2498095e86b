//go:build proof

package hostile

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/audit"
	"github.com/agenthandoff/handoff/internal/brokertest"
	"github.com/agenthandoff/handoff/internal/index"
	"github.com/agenthandoff/handoff/internal/index/ask"
	"github.com/agenthandoff/handoff/internal/jetstream"
	"github.com/agenthandoff/handoff/internal/testworld"
	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/tests/mutate"
)

const (
	// records is how many mutated records go into the ledger.
	records       = 10_000
	recordsWithin = 8 * time.Minute
	// idle are agents without a worker: what is meant for them stands.
	idle, idleToo = "idle", "idle-too"
	victimsOpen   = 40
)

// TestRecords writes mutated records into the ledger of a running handoff dev: under
// tickets of their own, onto the heads of open handoffs, under each other's. Then the
// process is killed, and started again. All honest handoffs complete, those before,
// beside and after; doctor says what is stuck, and a new index answers.
func TestRecords(t *testing.T) {
	if testworld.Race {
		t.Skip("processes that have the race detector in them are not what is looked at: run it without -race")
	}
	ctx, cancel := context.WithTimeout(t.Context(), recordsWithin)
	defer cancel()
	f := startRecords(ctx, t)
	open := f.victims(ctx, t)
	real := f.readRecords(ctx, t)

	stop := make(chan struct{})
	var tickets []string
	var running sync.WaitGroup
	running.Go(func() { tickets = submit(ctx, t, f.b, stop) })
	f.write(ctx, t, real, open)
	close(stop)
	running.Wait()
	if len(tickets) == 0 {
		t.Fatal("nothing honest was submitted beside")
	}
	f.dev.Kill() // with the last of them open, as a rule
	f.begin(ctx, t)
	for range 20 {
		tickets = append(tickets, f.submit(ctx, t, honest))
	}
	f.completed(ctx, t, append(tickets, f.before...))
	f.doctor(ctx, t, open[0])
	f.checkNewIndex(ctx, t, append(tickets, f.before...))
	report, err := audit.VerifyLedger(ctx, f.b, nil)
	if err != nil || report.Found < records/4 {
		t.Errorf("audit finds %d problems, %v", report.Found, err)
	}
	for _, p := range []*testworld.Process{f.dev, f.worker} {
		if !p.Running() || strings.Contains(p.Output(), "panic:") || strings.Contains(p.Output(), "this is a bug") {
			t.Errorf("%s has ended, or panicked", p.Name)
		}
	}
}

// recordFleet is a handoff dev and a worker.
type recordFleet struct {
	dir, url    string
	port        string
	dev, worker *testworld.Process
	engine      *jetstream.Engine
	b           *broker.Broker
	before      []string // honest handoffs of before
}

func startRecords(ctx context.Context, t *testing.T) *recordFleet {
	f := &recordFleet{dir: filepath.Join(t.TempDir(), "data"), port: "0"}
	f.begin(ctx, t)
	for _, agent := range []string{honest, idle, idleToo} {
		if err := f.b.PutProfile(ctx, protocol.Profile{ID: agent}); err != nil {
			t.Fatal(err)
		}
	}
	program := filepath.Join(t.TempDir(), "agent")
	if err := os.WriteFile(program, []byte("#!/bin/sh\ncat >/dev/null\necho done\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	f.worker = testworld.Start(t, "worker", nil, testworld.Handoff(t), "work", "--nats", f.url, "--agent", honest, "--concurrency", "4", "--", program)
	for range 20 {
		f.before = append(f.before, f.submit(ctx, t, honest))
	}
	f.completed(ctx, t, f.before)
	return f
}

// begin starts the process, at the port that it had, and connects to it.
func (f *recordFleet) begin(ctx context.Context, t *testing.T) {
	t.Helper()
	f.dev = testworld.Start(t, "dev", nil, testworld.Handoff(t), "dev", "--port", f.port, "--data", f.dir, "--fsync", "interval")
	f.url = ready(ctx, t, f.dev)
	at, err := url.Parse(f.url)
	if err != nil {
		t.Fatal(err)
	}
	f.port = at.Port()
	if f.engine != nil {
		_ = f.engine.Close()
	}
	if f.engine, err = jetstream.Dial(ctx, jetstream.DialConfig{URL: f.url, Name: honest}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.engine.Close() })
	if f.b, err = broker.New(f.engine, broker.Config{}); err != nil {
		t.Fatal(err)
	}
}

func (f *recordFleet) submit(ctx context.Context, t *testing.T, agents ...string) string {
	t.Helper()
	pkg := protocol.Package{Source: "source", Target: protocol.Target{Agent: agents[0]}, Reason: "r", Task: protocol.Task{Description: "work"}}
	if len(agents) > 1 {
		pkg.Type, pkg.Target = protocol.Broadcast, protocol.Target{Agents: agents}
	}
	in, err := f.b.Prepare(ctx, pkg)
	if err == nil {
		_, err = f.b.Submit(ctx, in)
	}
	if err != nil {
		t.Fatal(err)
	}
	return in.Ticket
}

// victims are open handoffs, onto which bad records are written, and groups.
func (f *recordFleet) victims(ctx context.Context, t *testing.T) (open []string) {
	for i := range victimsOpen {
		if i%4 == 0 {
			open = append(open, f.submit(ctx, t, idle, idleToo))
		} else {
			open = append(open, f.submit(ctx, t, idle))
		}
	}
	return open
}

// readRecords are the records of the ledger, as of agents without a worker.
func (f *recordFleet) readRecords(ctx context.Context, t *testing.T) (bodies [][]byte) {
	err := f.b.Entries(ctx, broker.From(1), func(e broker.Entry) error {
		bodies = append(bodies, bytes.ReplaceAll(e.Body, []byte(`"`+honest+`"`), []byte(`"`+idle+`"`)))
		return nil
	})
	if err != nil || len(bodies) < 100 {
		t.Fatalf("%d records, %v", len(bodies), err)
	}
	return bodies
}

// announced is what appends are announced with.
var announced = []string{"none; ended=idle.low.1", "later", "none", "now; ended=idle.normal.7", "later; ended=a..x", "x"}

// write puts mutated records into the ledger, and announces them.
func (f *recordFleet) write(ctx context.Context, t *testing.T, real [][]byte, open []string) {
	t.Helper()
	nc, err := nats.Connect(f.url)
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	rng := rand.New(rand.NewPCG(48, 48))
	put := func(subject string, body []byte) {
		m := nats.NewMsg(subject)
		m.Data = body
		attention := "now"
		switch rng.IntN(6) {
		case 0:
			attention = announced[rng.IntN(len(announced))]
		case 1:
			m.Header.Set("Handoff-Record", junk(rng, 8))
		}
		if err := nc.PublishMsg(m); err != nil {
			t.Fatal(err)
		}
		if ticket, ok := strings.CutPrefix(subject, "handoff.ledger."); ok { // as their writers do
			m := nats.NewMsg("handoff.due." + ticket + "." + strconv.Itoa(len(body)))
			m.Header.Set("Handoff-Attention", attention)
			if err := nc.PublishMsg(m); err != nil {
				t.Fatal(err)
			}
		}
	}
	for n := range records {
		body := real[rng.IntN(len(real))]
		var was struct {
			State struct {
				Ticket string `json:"ticket"`
			} `json:"state"`
		}
		_ = json.Unmarshal(body, &was)
		ticket := fmt.Sprintf("%08x-0000-4000-8000-%012x", rng.Uint32(), n)
		own := bytes.ReplaceAll(body, []byte(was.State.Ticket), []byte(ticket))
		switch k := rng.IntN(20); {
		case k == 0: // under another's ticket, as it is
			put("handoff.ledger."+ticket, body)
		case k == 1:
			put("handoff.ledger."+junk(rng, 1+rng.IntN(60)), mutate.Record(rng, own))
		case k < 5: // behind what an open handoff has
			put("handoff.ledger."+open[rng.IntN(len(open))], mutate.Record(rng, body))
		default:
			put("handoff.ledger."+ticket, mutate.Record(rng, own))
		}
		if n%100 == 0 {
			if err := nc.FlushTimeout(30 * time.Second); err != nil {
				t.Fatal(err)
			}
		}
	}
	put("handoff.ledger."+open[0], []byte("no record"))
	if err := nc.FlushWithContext(ctx); err != nil {
		t.Fatal(err)
	}
}

// completed waits for honest handoffs.
func (f *recordFleet) completed(ctx context.Context, t *testing.T, tickets []string) {
	t.Helper()
	for _, ticket := range tickets {
		s, err := brokertest.Wait(ctx, f.b, ticket, brokertest.Closed)
		if err != nil {
			t.Fatalf("%s: %v", ticket, err)
		}
		if s.Outcome != protocol.OutcomeSuccess {
			t.Errorf("%s closed as %s: %s", ticket, s.Outcome, s.Reason)
		}
	}
}

// doctor names what is stuck, in bounds, and mends one.
func (f *recordFleet) doctor(ctx context.Context, t *testing.T, victim string) {
	t.Helper()
	out, _ := exec.CommandContext(ctx, testworld.Handoff(t), "doctor", "--nats", f.url, "-o", "json").Output() // it ends with 1: something is wrong
	var found struct {
		Checks []struct {
			Check, Status, Message string
			About                  []string
		}
	}
	if err := json.Unmarshal(out, &found); err != nil {
		t.Fatalf("doctor: %v in %s", err, out)
	}
	for _, c := range found.Checks {
		if c.Check != "stuck" {
			continue
		}
		t.Logf("doctor: %s", c.Message)
		if c.Status != "fail" || len(c.About) != 100 || len(c.Message) > 4_000 || !strings.Contains(c.Message, "cannot be read") {
			t.Errorf("doctor says %s about %d: %s", c.Status, len(c.About), c.Message)
		}
	}
	if _, err := f.b.Status(ctx, victim); !broker.Unreadable(err) {
		t.Errorf("the status of %s, whose head is no record: %v", victim, err)
	}
	if out, err := exec.CommandContext(ctx, testworld.Handoff(t), "doctor", "--nats", f.url, "--mend", victim).CombinedOutput(); err != nil {
		t.Errorf("mend: %v: %s", err, out)
	}
	if s, err := f.b.Status(ctx, victim); err != nil || s.Ticket != victim {
		t.Errorf("mended: %v", err)
	}
}

// checkNewIndex makes an index of the ledger from nothing.
func (f *recordFleet) checkNewIndex(ctx context.Context, t *testing.T, tickets []string) {
	t.Helper()
	ix, err := index.Open(filepath.Join(t.TempDir(), "index.db"), nil)
	if err != nil {
		t.Fatal(err)
	}
	running, end := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- ix.Run(running, f.b) }()
	defer func() {
		end()
		if err := <-done; err != nil {
			t.Error(err)
		}
		_ = ix.Close()
	}()
	for _, some := range [][]string{tickets[:1], tickets[len(tickets)-1:]} {
		answer, err := ix.List(ctx, ask.ListQuery{Question: ask.Question{WaitMS: 60_000}, Filter: ask.Filter{Ticket: some}})
		if err != nil || !answer.Complete || len(answer.Handoffs) != 1 || answer.Handoffs[0].Outcome != protocol.OutcomeSuccess {
			t.Errorf("a new index says of %s: %+v, %v", some, answer, err)
		}
	}
}
