//go:build proof

package hostile

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/brokertest"
	"github.com/agenthandoff/handoff/internal/jetstream"
	"github.com/agenthandoff/handoff/internal/testworld"
	"github.com/agenthandoff/handoff/protocol"
)

// world is a handoff dev with a gateway, workers, and an agent that polls, and what is
// sent to it.
type world struct {
	t        *testing.T
	ctx      context.Context
	handoff  string
	url      string
	dev      *testworld.Process
	nc       *nats.Conn
	b        *broker.Broker
	lines    *lineCount
	honest   []string // tickets
	victim   string   // a handoff that is sent junk itself, and its offer
	offer    []byte
	offerKey broker.OfferKey
}

// kind is a sort of subject that a part of Handoff reads.
type kind struct {
	name   string
	covers []string // subjects, or the beginnings of subjects
	posts  func(*world) []message
}

var kinds = []kind{
	{"queues", []string{"handoff.work."}, (*world).toQueues},
	{"timers", []string{"handoff.timer.", "handoff.due."}, (*world).toTimers},
	{"agents", []string{"$KV.HANDOFF_AGENTS."}, (*world).toAgents},
	{"holders", []string{"$KV.HANDOFF_HOLDERS."}, (*world).toHolders},
	{"workspaces", []string{"handoff.workspace."}, (*world).toWorkspaces},
	{"bodies", []string{"$O.HANDOFF_BLOBS."}, (*world).toBodies},
	{"questions", []string{"handoff.query.", "handoff.node", "handoff.v1.", "$SRV."}, (*world).toServices},
	{"signals", []string{"handoff.signal."}, (*world).toSignals},
	{"hints", []string{"handoff.feed.", "$JS.ACK.", "_INBOX."}, (*world).toHints},
}

// TestSubjects: whatever stands at a subject that is not the ledger's, handoffs that are
// not themselves meant go on, also after a kill.
func TestSubjects(t *testing.T) {
	if testworld.Race {
		t.Skip("processes that have the race detector in them are not what is looked at: run it without -race")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 25*time.Minute)
	defer cancel()
	began := time.Now()
	w := newWorld(ctx, t)
	w.streams()
	w.round("before")
	for _, k := range kinds {
		sent := w.send(k.posts(w))
		w.round("beside " + k.name)
		w.commands()
		t.Logf("%s: %d messages, %d MB resident", k.name, sent, memory(t, w.dev)>>20)
	}
	if !w.dev.Running() || strings.Contains(w.dev.Output(), "panic") {
		t.Error("dev has ended, or panicked")
	}
	if resident := memory(t, w.dev); resident > residentBytesMax {
		t.Errorf("dev has %d MB of memory", resident>>20)
	}
	w.checkDoctor(" in HANDOFF_WORK, such as handoff.work.", " in HANDOFF_TIMERS, such as handoff.", " in KV_HANDOFF_AGENTS, such as $KV.", " in KV_HANDOFF_HOLDERS, such as $KV.")
	w.dev.Kill()
	w.dev.Restart()
	w.awaitServing()
	w.round("after the kill")
	w.commands()
	w.checkDoctor(" in KV_HANDOFF_AGENTS, such as $KV.", " in KV_HANDOFF_HOLDERS, such as $KV.") // the others were emptied
	w.lines.check(t, time.Since(began))
}

// residentBytesMax is how much memory dev may have, of which 512 MiB is its limit for what
// it may collect.
const residentBytesMax = 1 << 30

// checkDoctor fails where doctor does not name what was sent, and what to do.
func (w *world) checkDoctor(where ...string) {
	w.t.Helper()
	found := w.run(1, "doctor")
	if strings.Contains(found, "the locks of workflows could not be read") {
		w.t.Errorf("doctor reads no locks:\n%s", found)
	}
	for _, want := range append(where, "strays", "nats stream purge") {
		if !strings.Contains(found, want) {
			w.t.Errorf("doctor does not say %q:\n%s", want, found)
		}
	}
}

func newWorld(ctx context.Context, t *testing.T) *world {
	t.Helper()
	w := &world{t: t, ctx: ctx, handoff: testworld.Handoff(t), lines: &lineCount{words: map[string]int{}}}
	port := testworld.Ports(t, 1)[0]
	w.url = fmt.Sprintf("nats://127.0.0.1:%d", port)
	w.dev = testworld.Start(t, "dev", []string{"GOMEMLIMIT=512MiB"}, w.handoff, "dev", "--port", fmt.Sprint(port), "--data", filepath.Join(t.TempDir(), "data"), "--fsync", "interval")
	w.dev.Tee(w.lines)
	ready(ctx, t, w.dev)
	engine, err := jetstream.Dial(ctx, jetstream.DialConfig{URL: w.url, Name: "honest"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = engine.Close() })
	if w.b, err = broker.New(engine, broker.Config{}); err != nil {
		t.Fatal(err)
	}
	if w.nc, err = nats.Connect(w.url, nats.MaxReconnects(-1), nats.ReconnectWait(50*time.Millisecond), nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {})); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.nc.Close)
	w.agents()
	return w
}

func (w *world) agents() {
	w.t.Helper()
	program := filepath.Join(w.t.TempDir(), "agent")
	if err := os.WriteFile(program, []byte("#!/bin/sh\ncat >/dev/null\necho done\n"), 0o700); err != nil {
		w.t.Fatal(err)
	}
	for _, p := range []protocol.Profile{{ID: honest}, {ID: "limited", MaxConcurrency: 2, LimitsBy: []protocol.KeyLimit{{Key: sharedKey, MaxConcurrency: 2, Rate: 1_000, PerMS: 60_000}}}, {ID: "poller"}, {ID: "parked"}, {ID: "spoiled"}} {
		if err := w.b.PutProfile(w.ctx, p); err != nil {
			w.t.Fatal(err)
		}
	}
	for _, agent := range []string{honest, "limited"} {
		worker := testworld.Start(w.t, agent, nil, w.handoff, "work", "--nats", w.url, "--agent", agent, "--concurrency", "4", "--", program)
		worker.Tee(w.lines)
	}
	gateway := testworld.Start(w.t, "gateway", nil, w.handoff, "gateway", "--nats", w.url)
	gateway.Tee(w.lines)
	w.victim = w.submit("parked", "the one that is meant")
	head, err := w.b.Head(w.ctx, w.victim, 0)
	if err != nil {
		w.t.Fatal(err)
	}
	w.offerKey = broker.OfferKey{Agent: "parked", Lane: head.State.Priority, Ticket: w.victim, Sequence: head.State.Offer}
	subject := fmt.Sprintf("handoff.work.parked.normal.%s.%d", w.victim, head.State.Offer)
	w.offer = w.stored("HANDOFF_WORK", subject)
}

// stored is the last message of a subject.
func (w *world) stored(stream, subject string) []byte {
	w.t.Helper()
	reply, err := w.nc.Request("$JS.API.STREAM.MSG.GET."+stream, fmt.Appendf(nil, `{"last_by_subj":%q}`, subject), 10*time.Second)
	if err != nil {
		w.t.Fatal(err)
	}
	var answer struct{ Message struct{ Data []byte } }
	if err := json.Unmarshal(reply.Data, &answer); err != nil || len(answer.Message.Data) == 0 {
		w.t.Fatalf("nothing at %s: %s", subject, reply.Data)
	}
	return answer.Message.Data
}

// awaitServing waits until dev does, after it was started again.
func (w *world) awaitServing() {
	w.t.Helper()
	for w.ctx.Err() == nil {
		if _, err := w.b.LedgerInfo(w.ctx); err == nil {
			return
		}
		testworld.Pause(w.ctx, 50*time.Millisecond)
	}
	w.t.Fatal("dev does not serve again")
}

func (w *world) submit(agent, text string) string {
	w.t.Helper()
	in, err := w.b.Prepare(w.ctx, protocol.Package{Source: "source", Target: protocol.Target{Agent: agent}, Reason: "honest", Task: protocol.Task{Description: text}})
	if err == nil {
		_, err = w.b.Submit(w.ctx, in)
	}
	if err != nil {
		w.t.Fatalf("an honest submission: %v", err)
	}
	return in.Ticket
}

// round has honest handoffs go through all agents.
func (w *world) round(when string) {
	w.t.Helper()
	var tickets []string
	for i := range 8 {
		tickets = append(tickets, w.submit(honest, fmt.Sprint(when, i)), w.submit("limited", when))
	}
	tickets = append(tickets, w.submit(honest, when+strings.Repeat(" large", 60_000)))
	polled := w.submit("poller", when)
	w.poll(polled)
	for _, ticket := range append(tickets, polled) {
		s, err := brokertest.Wait(w.ctx, w.b, ticket, brokertest.Closed)
		if err != nil {
			w.t.Fatalf("%s: %s: %v", when, ticket, err)
		}
		if s.Outcome != protocol.OutcomeSuccess {
			w.t.Errorf("%s: %s closed as %s: %s", when, ticket, s.Outcome, s.Reason)
		}
	}
	w.honest = append(w.honest, polled)
}

// poll claims and completes one handoff from the command line.
func (w *world) poll(ticket string) {
	w.t.Helper()
	var claim struct{ Lease, Ticket string }
	if err := json.Unmarshal([]byte(w.run(0, "claim", "--agent", "poller", "--accept", "--wait", "60s", "-o", "json")), &claim); err != nil {
		w.t.Fatal(err)
	}
	if claim.Ticket != ticket {
		w.t.Fatalf("claimed %s, not %s", claim.Ticket, ticket)
	}
	w.run(0, "complete", claim.Lease, "--text", "done")
}

// run runs a command, and returns what it said on stdout.
func (w *world) run(code int, args ...string) string {
	w.t.Helper()
	var out, errs strings.Builder
	ctx, cancel := context.WithTimeout(w.ctx, 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, w.handoff, append(args, "--nats", w.url)...)
	cmd.Env = append(os.Environ(), "HANDOFF_TIMEOUT=90s") // on a busy machine
	cmd.Stdout, cmd.Stderr = &out, &errs
	began := time.Now()
	_ = cmd.Run()
	if got := cmd.ProcessState.ExitCode(); got != code {
		w.t.Errorf("handoff %s: exit code %d, not %d, after %v\n%.2000s%.2000s", strings.Join(args, " "), got, code, time.Since(began), out.String(), errs.String())
	}
	return out.String()
}

// commands are those that are to answer whatever stands where.
func (w *world) commands() {
	w.t.Helper()
	ticket := w.honest[0]
	for _, args := range [][]string{{"list"}, {"agents", "list"}, {"top", "--once"}, {"why", ticket}, {"status", ticket}, {"stats"}, {"inbox"}} {
		w.run(0, args...)
	}
	w.run(8, "claim", "--agent", "poller")
}

// send publishes as fast as the engine takes it.
func (w *world) send(posts []message) int {
	w.t.Helper()
	for i, p := range posts {
		p.body = p.body[:min(len(p.body), engineBytesMax)]
		msg := &nats.Msg{Subject: p.subject, Header: p.header, Data: p.body, Reply: "_INBOX.nobody.1"}
		if err := w.nc.PublishMsg(msg); err != nil {
			w.t.Fatalf("publish to %q: %v", p.subject, err)
		}
		if i%50 == 49 {
			if err := w.nc.FlushTimeout(time.Minute); err != nil {
				w.t.Fatal(err)
			}
		}
	}
	if err := w.nc.FlushTimeout(time.Minute); err != nil {
		w.t.Fatal(err)
	}
	return len(posts)
}
