//go:build proof

// Package hostile sends malformed messages to every subject that Handoff listens to, beside honest
// traffic.
//
//	go test -tags proof ./tests/proof/hostile                       # 40,000 messages
//	go test -tags proof ./tests/proof/hostile -messages 1000000 -v  # a million
package hostile

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/brokertest"
	"github.com/agenthandoff/handoff/internal/jetstream"
	"github.com/agenthandoff/handoff/internal/testworld"
	"github.com/agenthandoff/handoff/protocol"
)

var messages = flag.Int("messages", 40_000, "how many are sent")

const (
	honest = "honest"
	// victims is how many subjects of a kind there are: what each new one costs the
	// engine is not what is looked at.
	victims = 500
	pace    = 100 * time.Millisecond
	within  = 20 * time.Minute
	// The process may have so much more memory at the end than half way: the engine's
	// caches come and go, and of what it has stored, as it was told to, it keeps the
	// subjects.
	growthBytesMax           = 256 << 20
	growthBytesPerSubjectMax = 1 << 10
)

func TestMain(m *testing.M) { testworld.Main(m) }

func TestHostile(t *testing.T) {
	if testworld.Race {
		t.Skip("processes that have the race detector in them are not what is looked at: run it without -race")
	}
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	dev := testworld.Start(t, "dev", []string{"GOMEMLIMIT=512MiB"}, testworld.Handoff(t), "dev", "--port", "0", "--data", filepath.Join(t.TempDir(), "data"), "--fsync", "interval")
	url := ready(ctx, t, dev)
	engine, err := jetstream.Dial(ctx, jetstream.DialConfig{URL: url, Name: "honest"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = engine.Close() })
	b := brokertest.Over(t, engine)
	program := filepath.Join(t.TempDir(), "agent")
	if err := os.WriteFile(program, []byte("#!/bin/sh\ncat >/dev/null\necho done\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := b.PutProfile(ctx, protocol.Profile{ID: honest}); err != nil {
		t.Fatal(err)
	}
	worker := testworld.Start(t, "worker", nil, testworld.Handoff(t), "work", "--nats", url, "--agent", honest, "--concurrency", "4", "--", program)

	stop := make(chan struct{})
	var tickets []string
	var running sync.WaitGroup
	running.Go(func() { tickets = submit(ctx, t, b, stop) })
	half := int64(*messages / 2)
	var sent atomic.Int64
	began := time.Now()
	attack(ctx, t, url, half, &sent)
	middle := memory(t, dev)
	attack(ctx, t, url, 2*half, &sent)
	end := memory(t, dev)
	took := time.Since(began)
	close(stop)
	running.Wait()

	attempts := 0
	for _, ticket := range tickets {
		s, err := brokertest.Wait(ctx, b, ticket, brokertest.Closed)
		if err != nil {
			t.Fatal(err)
		}
		if s.Outcome != protocol.OutcomeSuccess {
			t.Errorf("%s closed as %s: %s", ticket, s.Outcome, s.Reason)
		}
		attempts += s.AttemptsTotal
	}
	for _, p := range []*testworld.Process{dev, worker} {
		if !p.Running() || strings.Contains(p.Output(), "panic") {
			t.Errorf("%s has ended, or panicked", p.Name)
		}
	}
	t.Logf("%d messages in %v; %d honest handoffs beside them, %d attempts; memory %d MB half way, %d MB at the end",
		sent.Load(), took.Round(time.Second), len(tickets), attempts, middle>>20, end>>20)
	if len(tickets) == 0 || attempts != len(tickets) {
		t.Errorf("%d honest handoffs took %d attempts", len(tickets), attempts)
	}
	if end > middle+growthBytesMax+half*growthBytesPerSubjectMax {
		t.Errorf("memory grew from %d to %d MB", middle>>20, end>>20)
	}
}

// ready waits for the line that says where the engine is.
func ready(ctx context.Context, t *testing.T, dev *testworld.Process) string {
	t.Helper()
	return strings.Fields(dev.AwaitOutput(ctx, "ready "))[0]
}

// submit is the honest source.
func submit(ctx context.Context, t *testing.T, b *broker.Broker, stop <-chan struct{}) (tickets []string) {
	tick := time.NewTicker(pace)
	defer tick.Stop()
	for {
		select {
		case <-stop:
			return tickets
		case <-ctx.Done():
			return tickets
		case <-tick.C:
		}
		in, err := b.Prepare(ctx, protocol.Package{Source: "source", Target: protocol.Target{Agent: honest}, Reason: "honest", Task: protocol.Task{Description: "work"}})
		if err == nil {
			_, err = b.Submit(ctx, in)
		}
		if err != nil {
			t.Errorf("an honest submission: %v", err)
			continue
		}
		tickets = append(tickets, in.Ticket)
	}
}

// attack sends until so many were sent in all.
func attack(ctx context.Context, t *testing.T, url string, until int64, sent *atomic.Int64) {
	t.Helper()
	var all sync.WaitGroup
	for i := range 2 {
		all.Go(func() {
			nc, err := nats.Connect(url, nats.MaxReconnects(-1), nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}))
			if err != nil {
				t.Error(err)
				return
			}
			defer nc.Close()
			rng := rand.New(rand.NewPCG(uint64(until), uint64(i)))
			for n := sent.Add(1); n <= until && ctx.Err() == nil; n = sent.Add(1) {
				if err := nc.PublishMsg(bad(rng)); err != nil && !errors.Is(err, nats.ErrBadSubject) {
					t.Errorf("publish: %v", err)
					return
				}
				if n%200 == 0 { // as fast as the engine takes them
					if err := nc.FlushTimeout(30 * time.Second); err != nil {
						t.Errorf("flush: %v", err)
						return
					}
				}
			}
			sent.Add(-1)
		})
	}
	all.Wait()
}

// bad makes a message that is not as it should be.
func bad(rng *rand.Rand) *nats.Msg {
	ticket := fmt.Sprintf("%08x-0000-4000-8000-000000000000", rng.IntN(victims))
	number := strconv.Itoa(rng.IntN(victims))
	lane := []string{"normal", "critical", "low", "none", ""}[rng.IntN(5)]
	subjects := []string{
		"handoff.ledger." + ticket, "handoff.ledger." + junk(rng, 12),
		"handoff.work." + honest + "." + lane + "." + ticket + "." + number, "handoff.work." + honest + ".normal." + junk(rng, 8) + "." + junk(rng, 3), "handoff.work.nobody." + number,
		"handoff.timer." + ticket + "." + number, "handoff.due." + ticket + "." + number, "handoff.due." + junk(rng, 6) + "." + junk(rng, 6),
		"handoff.due.no-ticket." + number,
		"handoff.feed." + ticket,
		"$KV.HANDOFF_AGENTS." + junk(rng, 10), "$KV.HANDOFF_AGENTS.a" + number, "$KV.HANDOFF_HOLDERS.holder." + ticket, "$KV.HANDOFF_HOLDERS." + junk(rng, 5),
		"handoff.query.list", "handoff.query.count", "handoff.query.family", "handoff.query.figures", "handoff.query." + junk(rng, 4),
		"$JS.ACK.HANDOFF_WORK." + honest + "-normal.1." + number + ".1.1.1", "$JS.API.CONSUMER.MSG.NEXT.HANDOFF_WORK." + honest + "-none",
		"_INBOX." + junk(rng, 22) + "." + junk(rng, 4),
	}
	m := nats.NewMsg(subjects[rng.IntN(len(subjects))])
	m.Data = body(rng, ticket)
	switch rng.IntN(6) {
	case 0:
		m.Header.Set("Nats-Schedule", []string{"@at never", "@at 2000-01-01T00:00:00Z", "@every 1ns", "\x00"}[rng.IntN(4)])
		m.Header.Set("Nats-Schedule-Target", "handoff.due."+ticket+"."+number)
	case 1:
		m.Header.Set("Nats-Expected-Last-Subject-Sequence", junk(rng, 5))
	case 2:
		m.Subject = "handoff.due." + []string{ticket, "no-ticket", junk(rng, 6)}[rng.IntN(3)] + "." + number
		m.Header.Set("Handoff-Attention", []string{junk(rng, 5), "now", "later", "none; ended=" + honest + ".normal." + number}[rng.IntN(4)])
	case 3:
		m.Reply = "_INBOX.nobody." + number
	}
	return m
}

const letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_"

// junk is a token of a subject.
func junk(rng *rand.Rand, n int) string {
	text := make([]byte, n)
	for i := range text {
		text[i] = letters[rng.IntN(len(letters))]
	}
	return string(text)
}

func body(rng *rand.Rand, ticket string) []byte {
	random := func(n int) []byte {
		b := make([]byte, n)
		for i := range b {
			b[i] = byte(rng.IntN(256))
		}
		return b
	}
	switch rng.IntN(10) {
	case 0:
		return nil
	case 1:
		return random(rng.IntN(200))
	case 2:
		return bytes.Repeat([]byte("["), 2_000)
	case 3:
		return []byte(`{"id":"x","events":[{"type":"completed","at":"2026-01-01T00:00:00Z"}],"state":{"ticket":"` + ticket + `","phase":"complete","closed":true}}`)
	case 4:
		return []byte(`{"id":1e999,"events":{},"state":"\ud800"}`)
	case 5:
		long, _ := json.Marshal(strings.Repeat("x", 40_000))
		return []byte(`{"id":` + string(long) + `}`)
	case 6:
		return []byte(`{"seq":18446744073709551615,"hash":"","state":{"ticket":"` + ticket + `"},"package":null}`)
	case 7:
		return []byte(`{"filter":{"text":"\u0000 OR 1=1; --","agent":["` + strings.Repeat("a", 3_000) + `"]},"limit":-1}`)
	case 8:
		return []byte(`{"id":"` + ticket + `","lease_ms":-1,"slots":1000000000,"max_concurrency":-9,"policy":{"max_attempts":1e9}}`)
	}
	return append([]byte(`{"id":"`), random(30)...)
}

// memory is what a process has resident, in bytes; 0 where that is not told.
func memory(t *testing.T, p *testworld.Process) int64 {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.PID()))
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(status)) {
		if rest, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			kb, _ := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
			return kb << 10
		}
	}
	return 0
}
