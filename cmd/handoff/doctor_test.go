package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/broker/embedded"
	"github.com/agenthandoff/handoff/index"
	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/protocol/lifecycle"
	"github.com/agenthandoff/handoff/supervisor"
)

// healthy is an engine that has nothing amiss, at noon.
func healthy() examined {
	noon := time.Date(2026, 1, 31, 12, 0, 0, 0, time.UTC)
	x := examined{now: noon, where: "nats://here:4222", index: index.StandAnswer{Handoffs: 7, Stand: index.Stand{Complete: true}}}
	x.engine.Server = broker.ServerFacts{Name: "one", Version: "2.15.2", RTT: time.Millisecond, Ahead: -time.Millisecond, Within: time.Millisecond}
	x.engine.Unanswered = map[string]error{}
	for _, name := range []string{broker.LedgerStream, broker.WorkStream, broker.TimerStream} {
		x.engine.Streams = append(x.engine.Streams, broker.StreamFacts{
			StreamStatus: broker.StreamStatus{Name: name, Replicas: 1, MaxAge: 190 * 24 * time.Hour}, Synced: true})
	}
	x.engine.Consumers = []broker.ConsumerFacts{
		{Stream: broker.LedgerStream, Name: broker.SupervisorConsumer, Waiting: 1, AckPendingMax: 100},
		{Stream: broker.TimerStream, Name: broker.SupervisorConsumer, Waiting: 1, AckPendingMax: 100},
		{Stream: broker.WorkStream, Name: "clerk-normal", Agent: "clerk", Lane: protocol.Normal, AckPendingMax: 100, Pending: 3},
	}
	x.agents = []agentFacts{{id: "clerk", registered: true, workers: 1, queued: 3, oldest: noon.Add(-time.Minute)}}
	x.heads = headFacts{handoffs: 7, open: 3, oldestOpen: noon.Add(-time.Hour)}
	return x
}

// ailments are what may be wrong, each alone, with the check that must say so.
var ailments = []struct {
	name  string
	make  func(*examined)
	check string
	want  health
	words string // in what is said, or what is to be done
}{
	{"strays", func(x *examined) {
		x.strays = []broker.Strays{{Stream: broker.WorkStream, N: 7, Subjects: []string{"handoff.work.x"}}, {Stream: "KV_HANDOFF_AGENTS", N: 1, Subjects: []string{"$KV.HANDOFF_AGENTS.y"}}}
	}, "strays", healthWarn, "7 in HANDOFF_WORK, such as handoff.work.x; 1 in KV_HANDOFF_AGENTS, such as $KV.HANDOFF_AGENTS.y"},
	{"no engine", func(x *examined) { x.reachErr = broker.ErrUnreachable }, "engine", healthFail, "handoff dev"},
	{"far away", func(x *examined) { x.engine.Server.RTT = time.Second }, "engine", healthWarn, "takes 1s"},
	{"an old server", func(x *examined) { x.engine.Server.Version = "2.11.9" }, "version", healthFail, "2.12.0 or newer"},
	{"a preview", func(x *examined) { x.engine.Server.Version = "2.12.0-beta.1" }, "version", healthFail, "2.12.0 or newer"},
	{"no version", func(x *examined) { x.engine.Server.Version = "git" }, "version", healthWarn, "cannot be told"},
	{"no JetStream", func(x *examined) { x.engine.Unanswered["account"] = jetstream.ErrJetStreamNotEnabled }, "store", healthFail, "JetStream on"},
	{"the disk refuses writes", func(x *examined) { x.engine.Server.Disk = "no space left on /data" }, "store", healthFail, "no space left on /data"},
	{"the disk fills", func(x *examined) { x.engine.Account = broker.AccountFacts{Storage: 85, StorageMax: 100} }, "store", healthWarn, "85%"},
	{"the disk is full", func(x *examined) { x.engine.Account = broker.AccountFacts{Storage: 96, StorageMax: 100} }, "store", healthFail, "96%"},
	{"no streams", func(x *examined) {
		x.openErr = broker.ErrNoTopology
		for i := range x.engine.Streams {
			x.engine.Streams[i].Missing = true
		}
	}, "streams", healthFail, "EnsureTopology"},
	{"no wake-ups", func(x *examined) { x.engine.Streams[2].Missing = true }, "streams", healthFail, "--repair"},
	{"a short ledger", func(x *examined) { x.engine.Streams[0].Weaker = []string{"max_age is 1h0m0s and should be 4560h0m0s"} }, "streams", healthFail, "max_age is 1h0m0s"},
	{"in memory", func(x *examined) { x.engine.Streams[0].Memory = true }, "streams", healthFail, "in memory"},
	{"sealed", func(x *examined) { x.engine.Streams[1].Sealed = true }, "streams", healthFail, "sealed"},
	{"no rights", func(x *examined) { x.engine.Unanswered["streams"] = errors.New("permissions violation") }, "streams", healthFail, "credentials"},
	{"a full stream", func(x *examined) { x.engine.Streams[1].Bytes, x.engine.Streams[1].BytesMax = 99, 100 }, "space", healthFail, "99%"},
	{"a ledger with a limit", func(x *examined) { x.engine.Streams[0].MessageMax, x.engine.Streams[0].Drops = 1000, true }, "space", healthWarn, "drops its oldest"},
	{"no leader", func(x *examined) { x.engine.Streams[0].Leaderless = true }, "replicas", healthFail, "nothing can be written"},
	{"a server is gone", func(x *examined) { x.engine.Streams[0].Behind = []string{"three"} }, "replicas", healthWarn, "three is offline"},
	{"one replica of a cluster", func(x *examined) { x.engine.Server.Cluster = "c" }, "replicas", healthWarn, "--replicas 3"},
	{"synced now and then", func(x *examined) { x.engine.Streams[0].Synced = false }, "fsync", healthWarn, "--fsync always"},
	{"a clock goes fast", func(x *examined) { x.engine.Server.Ahead = 3 * time.Second }, "clock", healthWarn, "3s ahead"},
	{"a clock is wrong", func(x *examined) { x.engine.Server.Ahead = -time.Hour }, "clock", healthFail, "1h behind"},
	{"no supervisor ever", func(x *examined) { x.engine.Consumers[0].Missing = true }, "supervisors", healthFail, "handoff supervise"},
	{"no supervisor now", func(x *examined) { x.engine.Consumers[1].Waiting = 0 }, "supervisors", healthFail, "none is there"},
	{"supervisors get nothing", func(x *examined) { x.engine.Consumers[1].Pending = 5 }, "supervisors", healthFail, "stuck: 5 entries"},
	{"supervisors lag", func(x *examined) { x.engine.Consumers[0].Pending, x.engine.Consumers[0].Moved = 1_000_000, true }, "supervisors", healthWarn, "1000000 entries"},
	{"supervisors are full", func(x *examined) { x.engine.Consumers[0].AckPending = 100 }, "supervisors", healthFail, "no more"},
	{"a queue is stuck", func(x *examined) { x.engine.Consumers[2].Waiting = 1 }, "queues", healthFail, "normal lane of clerk is stuck"},
	{"a queue is full", func(x *examined) { x.engine.Consumers[2].AckPending = 100 }, "queues", healthFail, "gives out no more"},
	{"a queue is paused", func(x *examined) { x.engine.Consumers[2].Paused = true }, "queues", healthFail, "consumer resume"},
	{"an odd queue", func(x *examined) { x.engine.Consumers[2].Odd = []string{"max_deliver is 3 and should be -1"} }, "queues", healthWarn, "max_deliver"},
	{"nobody works", func(x *examined) { x.agents[0].workers = 0 }, "workers", healthFail, "clerk (3 offers), the oldest for 1m"},
	{"paused with offers", func(x *examined) { x.agents[0].paused, x.agents[0].workers = true, 0 }, "paused", healthWarn, "agents resume clerk"},
	{"an agent is gone", func(x *examined) { x.heads.homeless.add("t1", "ghost") }, "takers", healthFail, "agents put ghost"},
	{"offers of nobody", func(x *examined) { x.agents[0].registered = false }, "takers", healthWarn, "clerk, which is no agent"},
	{"stuck", func(x *examined) { x.heads.stuck.add("t1", "its package is gone") }, "stuck", healthFail, "t1: its package is gone"},
	{"late", func(x *examined) { x.heads.late.add("t1", "retrying since noon"); x.heads.late.add("t2", "") }, "late", healthFail, "2 handoffs were"},
	{"too old", func(x *examined) { x.heads.aged.add("t1", ""); x.heads.agedLeft = time.Hour }, "age", healthFail, "in 1h"},
	{"of another time", func(x *examined) { x.heads.unread(&broker.UnreadableError{Ticket: "t1", Seq: 9, Why: "w"}) }, "stuck", healthFail, "t1 (entry 9: w)"},
	{"two stuck", func(x *examined) {
		x.heads.stuck.add("t2", "its package is gone")
		x.heads.unread(&broker.UnreadableError{Ticket: "t1", Seq: 9, Why: "w"})
	}, "stuck", healthFail, "t2: its package is gone; the last entry of 1 handoff cannot be read: t1 (entry 9: w)"},
	{"unread", func(x *examined) { x.headsErr = broker.ErrUnreachable }, "ledger", healthFail, "could not be read"},
	{"no index", func(x *examined) { x.indexErr = broker.ErrNoAnswer }, "index", healthWarn, "handoff index"},
	{"an index behind", func(x *examined) { x.index = index.StandAnswer{Stand: index.Stand{Behind: 1000, BehindMS: 60_000}} }, "index", healthWarn, "1000 entries"},
}

func TestJudge(t *testing.T) {
	well := judge(healthy(), nil)
	for _, f := range well {
		if f.Status != healthOK || f.Message == "" || f.Do != "" {
			t.Errorf("all is well, and %+v", f)
		}
	}
	if len(well) != len(checks) {
		t.Errorf("%d checks of %d", len(well), len(checks))
	}
	seen := map[string]bool{}
	for _, ailment := range ailments {
		t.Run(ailment.name, func(t *testing.T) {
			x := healthy()
			ailment.make(&x)
			all := judge(x, nil)
			i := slices.IndexFunc(all, func(f finding) bool { return f.Check == ailment.check })
			if i < 0 {
				t.Fatalf("nothing is said of %s: %+v", ailment.check, all)
			}
			if f := all[i]; f.Status != ailment.want || f.Do == "" || !strings.Contains(f.Message+" "+f.Do, ailment.words) {
				t.Errorf("%+v, want %s with %q", f, ailment.want, ailment.words)
			}
			if skipped := judge(x, []string{ailment.check}); slices.ContainsFunc(skipped, func(f finding) bool { return f.Check == ailment.check }) {
				t.Error("it is not left out")
			}
		})
		seen[ailment.check] = true
	}
	for _, c := range checks {
		if !seen[c.name] {
			t.Errorf("no test of what %s may find", c.name)
		}
	}
}

// TestJudgeStopsWhereItSees: what stands on something that is not there is not
// judged.
func TestJudgeStopsWhereItSees(t *testing.T) {
	for want, make := range map[string]func(*examined){
		"engine":                             func(x *examined) { x.reachErr = broker.ErrUnreachable },
		"engine version store":               func(x *examined) { x.engine.Unanswered["account"] = errors.New("no") },
		"engine version store streams space": func(x *examined) { x.openErr = broker.ErrNoTopology },
	} {
		x := healthy()
		make(&x)
		var names []string
		for _, f := range judge(x, nil) {
			names = append(names, f.Check)
		}
		if got := strings.Join(names, " "); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}

// patient is a real engine that things are taken away from.
type patient struct {
	*testing.T
	node *embedded.Node
	b    *broker.Broker
	js   jetstream.JetStream
}

func newPatient(t *testing.T) *patient {
	t.Helper()
	node, err := embedded.Start(t.Context(), embedded.Config{Dir: t.TempDir(), Prepare: func(ctx context.Context, nc *nats.Conn, _ bool) error {
		return broker.EnsureTopology(ctx, nc, broker.Topology{AsyncWork: true})
	}})
	must(t, err)
	t.Cleanup(func() { _ = node.Stop() })
	nc, err := node.Conn()
	must(t, err)
	t.Cleanup(nc.Close)
	b, done, err := openNode(t.Context(), nc, broker.Config{})
	must(t, err)
	t.Cleanup(done)
	js, err := jetstream.New(nc)
	must(t, err)
	return &patient{T: t, node: node, b: b, js: js}
}

// doctor runs the command and returns what it found, by check.
func (p *patient) doctor() map[string]finding {
	p.Helper()
	var out bytes.Buffer
	a := &app{in: strings.NewReader(""), out: &out, err: p.Output(), env: func(string) string { return "" }}
	code := a.run(p.Context(), []string{"doctor", "-s", p.node.ClientURL(), "-o", "json", "--skip", "index"})
	var got diagnosisView
	must(p.T, json.Unmarshal(out.Bytes(), &got))
	if (code == exitDone) != got.OK {
		p.Errorf("exit code %d, and all is well is %v", code, got.OK)
	}
	all := map[string]finding{}
	for _, f := range got.Checks {
		all[f.Check] = f
	}
	return all
}

// expect wants a check to go so; what was done a moment ago may not show yet.
func (p *patient) expect(when, check string, want health, about ...string) {
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

func (p *patient) supervise() (stop func()) {
	s, err := supervisor.New(p.b, supervisor.Config{})
	must(p.T, err)
	ctx, cancel := context.WithCancel(p.Context())
	ended := make(chan error)
	go func() { ended <- s.Run(ctx) }()
	return func() { cancel(); must(p.T, <-ended) }
}

func (p *patient) submit(to string) broker.Head {
	p.Helper()
	prepared, err := p.b.Prepare(p.Context(), protocol.Package{Source: "author", Target: protocol.Target{Agent: to}, Reason: "r", Task: protocol.Task{Description: "t"}})
	must(p.T, err)
	head, err := p.b.Submit(p.Context(), prepared)
	must(p.T, err)
	return head
}

// TestDoctorOnAnEngine takes one thing after another away from a real engine.
func TestDoctorOnAnEngine(t *testing.T) {
	t.Parallel() // it looks twice at everything, most of a second apart, two dozen times
	p := newPatient(t)
	ctx, b, js, expect, submit := t.Context(), p.b, p.js, p.expect, p.submit
	expect("before any supervisor", "supervisors", healthFail)
	stop := p.supervise()
	expect("with a supervisor", "supervisors", healthOK)

	must(t, b.PutProfile(ctx, protocol.Profile{ID: "clerk"}))
	head := submit("clerk")
	expect("an offer and no worker", "workers", healthFail, "clerk")
	must(t, b.Beat(ctx, protocol.Holder{ID: protocol.NewTicket(), Agent: "clerk", LeaseMS: 600_000, Slots: 1}))
	expect("a worker", "workers", healthOK)

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
	expect("its worker is gone, and nobody sees to it", "late", healthFail, run.Ticket)
	must(t, b.Beat(ctx, runner))
	expect("its worker is back", "late", healthOK)
	expect("no supervisor any more", "supervisors", healthFail)
	_, _, err = b.UpdateFrom(ctx, head, stuckBecause("its package is gone"))
	must(t, err)
	expect("a handoff that cannot go on", "stuck", healthFail, head.Ticket)
	must(t, b.RemoveProfile(ctx, "clerk"))
	expect("its agent is gone", "takers", healthFail, head.Ticket)
	must(t, b.PutProfile(ctx, protocol.Profile{ID: "clerk", Paused: true}))
	expect("its agent is paused", "paused", healthWarn, "clerk")
	must(t, js.DeleteStream(ctx, broker.TimerStream))
	expect("the wake-ups are gone", "streams", healthFail, broker.TimerStream)
	defer p.supervise()()
	expect("a supervisor made them again", "streams", healthOK)
	expect("and is at work", "supervisors", healthOK)
	must(t, js.DeleteStream(ctx, broker.LedgerStream))
	expect("the ledger is gone", "streams", healthFail, broker.LedgerStream)
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// stuckBecause decides what a supervisor does about what it cannot look at.
func stuckBecause(reason string) broker.Decider {
	return func(h broker.Head, _ *lifecycle.Directory, now time.Time) ([]protocol.Event, error) {
		return []protocol.Event{&protocol.Stuck{Meta: protocol.Meta{At: now, By: lifecycle.By}, Reason: reason}}, nil
	}
}

// TestJudgePolls: offers of an agent that polls are in good hands.
func TestJudgePolls(t *testing.T) {
	x := healthy()
	x.agents[0].workers, x.agents[0].polls, x.agents[0].polled = 0, true, x.now.Add(-40*time.Second)
	if f := judgeWorkers(x); f.Status != healthOK || !strings.Contains(f.Message, "clerk polls, last 40 s ago") {
		t.Errorf("%+v", f)
	}
}
