package doctor

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/index/ask"
	handoffjs "github.com/agenthandoff/handoff/internal/jetstream"
	"github.com/agenthandoff/handoff/internal/lifecycle"
	"github.com/agenthandoff/handoff/protocol"
)

// healthy is an examination without a problem, at noon.
func healthy() Examination {
	noon := time.Date(2026, 1, 31, 12, 0, 0, 0, time.UTC)
	x := Examination{now: noon, where: "nats://here:4222", index: ask.PositionAnswer{Handoffs: 7, Position: ask.Position{Complete: true}}}
	x.engine.Server = handoffjs.ServerFacts{Name: "one", Version: "2.15.2", RTT: time.Millisecond, Ahead: -time.Millisecond, Within: time.Millisecond}
	x.engine.Unanswered = map[string]error{}
	for _, name := range []string{handoffjs.LedgerStream, handoffjs.WorkStream, handoffjs.TimerStream} {
		x.engine.Streams = append(x.engine.Streams, handoffjs.StreamFacts{
			StreamStatus: handoffjs.StreamStatus{Name: name, Replicas: 1, MaxAge: 190 * 24 * time.Hour}, Synced: true})
	}
	x.engine.Consumers = []handoffjs.ConsumerFacts{
		{Stream: handoffjs.LedgerStream, Name: handoffjs.SupervisorConsumer, Waiting: 1, AckPendingMax: 100},
		{Stream: handoffjs.TimerStream, Name: handoffjs.SupervisorConsumer, Waiting: 1, AckPendingMax: 100},
		{Stream: handoffjs.WorkStream, Name: "clerk-normal", Agent: "clerk", Lane: protocol.Normal, AckPendingMax: 100, Pending: 3},
	}
	x.agents = []agentFacts{{id: "clerk", registered: true, workers: 1, queued: 3, oldest: noon.Add(-time.Minute)}}
	x.ledger = broker.LedgerInfo{Created: noon.Add(-time.Hour), Began: noon.Add(-time.Hour), First: 1, Last: 20, Messages: 20, Handoffs: 7}
	x.indexed = ask.PositionAnswer{Handoffs: 7, Position: ask.Position{Seq: 20}}
	x.heads = headFacts{handoffs: 7, open: 3, oldestOpen: noon.Add(-time.Hour)}
	return x
}

// faultCases are single problems, each with the check that must find it.
var faultCases = []struct {
	name  string
	make  func(*Examination)
	check string
	want  Status
	words string // in the message, or in the advice
}{
	{"strays", func(x *Examination) {
		x.strays = []handoffjs.Strays{{Stream: handoffjs.WorkStream, N: 7, Subjects: []string{"handoff.work.x"}}, {Stream: "KV_HANDOFF_AGENTS", N: 1, Subjects: []string{"$KV.HANDOFF_AGENTS.y"}}}
	}, "strays", StatusWarn, "7 in HANDOFF_WORK, such as handoff.work.x; 1 in KV_HANDOFF_AGENTS, such as $KV.HANDOFF_AGENTS.y"},
	{"no engine", func(x *Examination) { x.reachErr = broker.ErrUnreachable }, "engine", StatusFail, "[dev] [connect]"},
	{"far away", func(x *Examination) { x.engine.Server.RTT = time.Second }, "engine", StatusWarn, "takes 1s"},
	{"an old server", func(x *Examination) { x.engine.Server.Version = "2.11.9" }, "version", StatusFail, "2.12.0 or newer"},
	{"a preview", func(x *Examination) { x.engine.Server.Version = "2.12.0-beta.1" }, "version", StatusFail, "2.12.0 or newer"},
	{"no version", func(x *Examination) { x.engine.Server.Version = "git" }, "version", StatusWarn, "cannot determine"},
	{"no JetStream", func(x *Examination) { x.engine.Unanswered["account"] = jetstream.ErrJetStreamNotEnabled }, "store", StatusFail, "JetStream on"},
	{"the disk refuses writes", func(x *Examination) { x.engine.Server.Disk = "no space left on /data" }, "store", StatusFail, "no space left on /data"},
	{"the disk fills", func(x *Examination) { x.engine.Account = handoffjs.AccountFacts{Storage: 85, StorageMax: 100} }, "store", StatusWarn, "85%"},
	{"the disk is full", func(x *Examination) { x.engine.Account = handoffjs.AccountFacts{Storage: 96, StorageMax: 100} }, "store", StatusFail, "96%"},
	{"no streams", func(x *Examination) {
		x.openErr = broker.ErrNoTopology
		for i := range x.engine.Streams {
			x.engine.Streams[i].Missing = true
		}
	}, "streams", StatusFail, "[topology]"},
	{"no wake-ups", func(x *Examination) { x.engine.Streams[2].Missing = true }, "streams", StatusFail, "[supervise] [repair]"},
	{"a short ledger", func(x *Examination) {
		x.engine.Streams[0].Weaker = []string{"max_age is 1h0m0s and should be 4560h0m0s"}
	}, "streams", StatusFail, "max_age is 1h0m0s"},
	{"in memory", func(x *Examination) { x.engine.Streams[0].Memory = true }, "streams", StatusFail, "in memory"},
	{"sealed", func(x *Examination) { x.engine.Streams[1].Sealed = true }, "streams", StatusFail, "sealed"},
	{"no rights", func(x *Examination) { x.engine.Unanswered["streams"] = errors.New("permissions violation") }, "streams", StatusFail, "credentials"},
	{"a full stream", func(x *Examination) { x.engine.Streams[1].Bytes, x.engine.Streams[1].BytesMax = 99, 100 }, "space", StatusFail, "99%"},
	{"a ledger with a limit", func(x *Examination) { x.engine.Streams[0].MessageMax, x.engine.Streams[0].Drops = 1000, true }, "space", StatusWarn, "drops its oldest"},
	{"no leader", func(x *Examination) { x.engine.Streams[0].Leaderless = true }, "replicas", StatusFail, "nothing can be written"},
	{"a server is gone", func(x *Examination) { x.engine.Streams[0].Behind = []string{"three"} }, "replicas", StatusWarn, "three is offline"},
	{"one replica of a cluster", func(x *Examination) { x.engine.Server.Cluster = "c" }, "replicas", StatusWarn, "--replicas 3"},
	{"synced now and then", func(x *Examination) { x.engine.Streams[0].Synced = false }, "fsync", StatusWarn, "[dev always]"},
	{"a clock goes fast", func(x *Examination) { x.engine.Server.Ahead = 3 * time.Second }, "clock", StatusWarn, "3s ahead"},
	{"a clock is wrong", func(x *Examination) { x.engine.Server.Ahead = -time.Hour }, "clock", StatusFail, "1h behind"},
	{"no supervisor ever", func(x *Examination) { x.engine.Consumers[1].Missing = true }, "supervisors", StatusFail, "[supervise]"},
	{"no supervisor now", func(x *Examination) { x.engine.Consumers[1].Waiting = 0 }, "supervisors", StatusFail, "none is running"},
	{"supervisors get nothing", func(x *Examination) { x.engine.Consumers[1].Pending = 5 }, "supervisors", StatusFail, "stuck: 5 messages"},
	{"supervisors lag", func(x *Examination) { x.engine.Consumers[1].Pending, x.engine.Consumers[1].Moved = 1_000_000, true }, "supervisors", StatusWarn, "1000000 announcements"},
	{"supervisors are full", func(x *Examination) { x.engine.Consumers[1].AckPending = 100 }, "supervisors", StatusFail, "no more"},
	{"metrics are paused", func(x *Examination) { x.engine.Consumers[0].Paused = true }, "supervisors", StatusWarn, "consumer resume"},
	{"metrics get nothing", func(x *Examination) { x.engine.Consumers[0].Pending = 5 }, "supervisors", StatusWarn, "have stopped: 5 entries"},
	{"metrics lag", func(x *Examination) { x.engine.Consumers[0].Pending, x.engine.Consumers[0].Moved = 1_000_000, true }, "supervisors", StatusWarn, "1000000 entries"},
	{"odd metrics", func(x *Examination) { x.engine.Consumers[0].Odd = []string{"max_deliver is 3 and should be -1"} }, "supervisors", StatusWarn, "max_deliver"},
	{"a queue is stuck", func(x *Examination) { x.engine.Consumers[2].Waiting = 1 }, "queues", StatusFail, "normal lane of clerk is stuck"},
	{"a queue is full", func(x *Examination) { x.engine.Consumers[2].AckPending = 100 }, "queues", StatusFail, "delivers no more"},
	{"a queue is paused", func(x *Examination) { x.engine.Consumers[2].Paused = true }, "queues", StatusFail, "consumer resume"},
	{"an odd queue", func(x *Examination) { x.engine.Consumers[2].Odd = []string{"max_deliver is 3 and should be -1"} }, "queues", StatusWarn, "max_deliver"},
	{"no worker", func(x *Examination) { x.agents[0].why, x.agents[0].workers = lifecycle.UnfitAbsent, 0 }, "workers", StatusFail, "clerk (3 offers), the oldest for 1m"},
	{"a key is paused", func(x *Examination) {
		x.limits = []lifecycle.KeyStatus{{KeyLimit: protocol.KeyLimit{Key: "model:m"}, Waiting: 3, PausedUntil: x.now.Add(time.Minute)}}
	}, "limits", StatusWarn, "model:m is paused until"},
	{"limits cannot be read", func(x *Examination) { x.limitsErr = errors.New("no answer") }, "limits", StatusWarn, "could not be read: no answer"},
	{"a schedule is late", func(x *Examination) {
		x.schedules = []protocol.Schedule{{Name: "report", Cron: "* * * * *", DecidedTo: x.now.Add(-time.Hour)}}
	}, "schedules", StatusWarn, "report was not fired at"},
	{"a schedule was refused", func(x *Examination) {
		x.schedules = []protocol.Schedule{{Name: "report", Cron: "@yearly", DecidedTo: x.now, Refused: &protocol.Firing{At: x.now, FiredAt: x.now, Message: "no agent is called coder"}}}
	}, "schedules", StatusWarn, "report was refused at"},
	{"a rule was refused", func(x *Examination) {
		x.rules = []protocol.Rule{{Name: "order", Rate: 1, Refused: &protocol.Signalled{ID: "7", At: x.now, Message: "the payload has no /id"}}}
	}, "signals", StatusWarn, "order refused the signal 7 at"},
	{"a rule is at its rate", func(x *Examination) {
		x.rules = []protocol.Rule{{Name: "order", Rate: 1, FullAt: x.now}}
	}, "signals", StatusWarn, "signals wait for the rate of order"},
	{"a breaker is open", func(x *Examination) { x.agents[0].breaker = lifecycle.BreakerOpen }, "breakers", StatusWarn, "[breaker clerk]"},
	{"paused with offers", func(x *Examination) { x.agents[0].why = lifecycle.UnfitPaused }, "paused", StatusWarn, "[resume clerk]"},
	{"an agent is gone", func(x *Examination) { x.heads.unknownAgent.add("t1", "ghost") }, "takers", StatusFail, "[register ghost] [reroute t1]"},
	{"offers of an unknown agent", func(x *Examination) { x.agents[0].registered = false }, "takers", StatusWarn, "clerk, which is not registered"},
	{"stuck", func(x *Examination) { x.heads.stuck.add("t1", "its package is gone") }, "stuck", StatusFail, "t1: its package is gone"},
	{"a circle", func(x *Examination) { x.heads.deadlocks.add("t1", "a, b") }, "deadlocks", StatusWarn, "1 handoff was in a circle of handoffs that wait for one another's slots, such as t1 (a, b)"},
	{"an approver is away", func(x *Examination) { x.heads.unanswered.add("t1", "lead") }, "gates", StatusWarn, "1 handoff waits for an approver without a worker, such as t1 for lead"},
	{"an approver to start", func(x *Examination) { x.heads.unanswered.add("t1", "lead") }, "gates", StatusWarn, "[approve t1] [work lead]"},
	{"a gate whose time is over", func(x *Examination) { x.heads.lapsed.add("t1", "approval since noon") }, "gates", StatusFail, "t1 (approval since noon)"},
	{"a lock left over", func(x *Examination) { x.locks = []strayLock{{"W", "a/b", "t1"}} }, "gates", StatusWarn, "1 lock is held by closed handoffs, such as a/b of W by t1"},
	{"two at the gates", func(x *Examination) {
		x.heads.lapsed.add("t1", "approval since noon")
		x.locks = []strayLock{{"W", "a/b", "t2"}}
	}, "gates", StatusFail, "such as a/b of W by t2 check every"},
	{"no locks", func(x *Examination) { x.locksErr = broker.ErrUnreachable }, "gates", StatusFail, "could not be read"},
	{"people", func(x *Examination) { x.heads.people.add("t1", ""); x.heads.peopleSince = time.Now() }, CheckPeople, StatusOK, "1 handoff waits for a person"},
	{"a deep lineage", func(x *Examination) { x.heads.deep.add("t1", "30 hand-offs deep") }, "lineages", StatusWarn, "1 handoff was deep in a lineage, such as t1, 30 hand-offs deep"},
	{"late", func(x *Examination) { x.heads.overdue.add("t1", "retrying since noon"); x.heads.overdue.add("t2", "") }, "late", StatusFail, "2 handoffs were"},
	{"too old", func(x *Examination) { x.heads.expiring.add("t1", ""); x.heads.expiresIn = time.Hour }, "age", StatusFail, "in 1h"},
	{"of another time", func(x *Examination) { x.heads.addUnreadable(&broker.UnreadableError{Ticket: "t1", Seq: 9, Why: "w"}) }, "stuck", StatusFail, "t1 (entry 9: w)"},
	{"two stuck", func(x *Examination) {
		x.heads.stuck.add("t2", "its package is gone")
		x.heads.addUnreadable(&broker.UnreadableError{Ticket: "t1", Seq: 9, Why: "w"})
	}, "stuck", StatusFail, "t2: its package is gone; the last entry of 1 handoff cannot be read: t1 (entry 9: w)"},
	{"unread", func(x *Examination) { x.headsErr = broker.ErrUnreachable }, "ledger", StatusFail, "could not be read"},
	{"a ledger with a gap", func(x *Examination) { x.ledger.Messages = 17 }, "ledger", StatusFail, "3 entries of 1 to 20 are missing"},
	{"a ledger that is shorter than its index", func(x *Examination) { x.indexed.Seq = 25 }, "ledger", StatusFail, "ends at entry 20, and the index has seen entry 25"},
	{"heads that cannot be read", func(x *Examination) { x.ledger.Handoffs = 9 }, "ledger", StatusFail, "last entry of 2 handoffs cannot be read"},
	{"an index with more handoffs", func(x *Examination) { x.indexed.Handoffs = 8 }, "ledger", StatusFail, "the index has 8 handoffs, and the ledger 7"},
	{"no index", func(x *Examination) { x.indexErr = broker.ErrNoAnswer }, "index", StatusWarn, "[index]"},
	{"an index behind", func(x *Examination) {
		x.index = ask.PositionAnswer{Position: ask.Position{Behind: 1000, BehindMS: 60_000}}
	}, "index", StatusWarn, "1000 entries"},
}

func TestJudge(t *testing.T) {
	well := Judge(healthy(), nil)
	for _, f := range well {
		if f.Status != StatusOK || f.Message == "" || f.Do != "" {
			t.Errorf("all is well, and %+v", f)
		}
	}
	if len(well) != len(checks) {
		t.Errorf("%d checks of %d", len(well), len(checks))
	}
	seen := map[string]bool{}
	for _, ailment := range faultCases {
		t.Run(ailment.name, func(t *testing.T) {
			x := healthy()
			ailment.make(&x)
			all := Judge(x, nil)
			i := slices.IndexFunc(all, func(f Finding) bool { return f.Check == ailment.check })
			if i < 0 {
				t.Fatalf("no finding of %s: %+v", ailment.check, all)
			}
			if f := all[i]; f.Status != ailment.want || f.Do == "" && f.Status != StatusOK || !strings.Contains(findingWords(f), ailment.words) {
				t.Errorf("%+v, want %s with %q", f, ailment.want, ailment.words)
			}
			if skipped := Judge(x, []string{ailment.check}); slices.ContainsFunc(skipped, func(f Finding) bool { return f.Check == ailment.check }) {
				t.Error("the check is not skipped")
			}
		})
		seen[ailment.check] = true
	}
	for _, c := range checks {
		if !seen[c.name] {
			t.Errorf("no test of a problem that %s finds", c.name)
		}
	}
}

// findingWords is a finding in words, with its actions in brackets.
func findingWords(f Finding) string {
	words := f.Message + " " + f.Do
	for _, action := range f.Actions {
		words += " [" + strings.Join(slices.Concat([]string{action.Op}, slices.Sorted(maps.Values(action.Args))), " ") + "]"
	}
	return words
}

// TestJudgeStopsWhereItSees checks that checks without their needs are left out.
func TestJudgeStopsWhereItSees(t *testing.T) {
	for want, make := range map[string]func(*Examination){
		"engine":                             func(x *Examination) { x.reachErr = broker.ErrUnreachable },
		"engine version store":               func(x *Examination) { x.engine.Unanswered["account"] = errors.New("no") },
		"engine version store streams space": func(x *Examination) { x.openErr = broker.ErrNoTopology },
	} {
		x := healthy()
		make(&x)
		var names []string
		for _, f := range Judge(x, nil) {
			names = append(names, f.Check)
		}
		if got := strings.Join(names, " "); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}

// TestJudgePolls checks that offers of a polling agent are no problem.
func TestJudgePolls(t *testing.T) {
	x := healthy()
	x.agents[0].workers, x.agents[0].polls, x.agents[0].polled = 0, true, x.now.Add(-40*time.Second)
	if f := judgeWorkers(x); f.Status != StatusOK || !strings.Contains(f.Message, "clerk polls, last 40 s ago") {
		t.Errorf("%+v", f)
	}
}

// TestGateFacts checks which gates a head adds to the facts.
func TestGateFacts(t *testing.T) {
	noon := time.Date(2026, 1, 31, 12, 0, 0, 0, time.UTC)
	there := protocol.Holder{ID: "h", Agent: "there", Slots: 1}
	d := &lifecycle.Directory{Agents: map[string]*protocol.Profile{"there": {ID: "there"}, "away": {ID: "away"}},
		Holders: map[string]protocol.Holder{"h": there}}
	for _, c := range []struct {
		name, approver             string
		until                      time.Time
		unanswered, lapsed, gateds int
	}{
		{"a person", protocol.Human, time.Time{}, 0, 0, 1},
		{"an agent with a worker", "there", noon.Add(time.Hour), 0, 0, 1},
		{"an agent without", "away", noon.Add(time.Hour), 1, 0, 1},
		{"no agent", "ghost", noon.Add(time.Hour), 1, 0, 1},
		{"just over", "there", noon.Add(-time.Second), 0, 0, 1},
		{"over", "away", noon.Add(-time.Hour), 0, 1, 1},
	} {
		var f headFacts
		gate := protocol.Gate{GateTerms: protocol.GateTerms{Waits: []protocol.GateKind{protocol.GateApproval}, Approver: c.approver, Until: c.until}}
		f.addGate(protocol.State{Ticket: "t1", Gate: &gate}, d, noon)
		if f.unanswered.n != c.unanswered || f.lapsed.n != c.lapsed || f.gated != c.gateds {
			t.Errorf("%s: %d unanswered, %d lapsed, %d in all", c.name, f.unanswered.n, f.lapsed.n, f.gated)
		}
	}
}
