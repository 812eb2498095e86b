package doctor

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/mod/semver"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/explain"
	"github.com/agenthandoff/handoff/internal/index/ask"
	"github.com/agenthandoff/handoff/internal/jetstream"
	"github.com/agenthandoff/handoff/internal/lifecycle"
	"github.com/agenthandoff/handoff/protocol"
)

// Status is the result of a check.
type Status string

// The statuses, the best first.
const (
	StatusOK   Status = "ok"
	StatusWarn Status = "warn" // it works, but needs attention
	StatusFail Status = "fail" // it does not work, or soon will not
)

// Finding is the finding of one check.
type Finding struct {
	Check   string   `json:"check"`
	Status  Status   `json:"status"`
	Message string   `json:"message"`
	Do      string   `json:"do,omitempty"`    // in words; Actions has the operations
	About   []string `json:"about,omitempty"` // tickets, agents, streams: the first aboutMax

	Actions []explain.Action `json:"-"` // of Do, in their order
}

// aboutMax bounds the tickets or names of a finding.
const aboutMax = 100

// OK is the finding of a check without a problem.
func OK(format string, args ...any) Finding {
	return Finding{Status: StatusOK, Message: fmt.Sprintf(format, args...)}
}

// Warn is the finding of a problem that needs attention.
func Warn(do, format string, args ...any) Finding {
	return Finding{Status: StatusWarn, Message: fmt.Sprintf(format, args...), Do: do}
}

// Fail is the finding of something that does not work.
func Fail(do, format string, args ...any) Finding {
	return Finding{Status: StatusFail, Message: fmt.Sprintf(format, args...), Do: do}
}

// withAction adds an action to a finding. args are names and values in turn.
func (f Finding) withAction(op string, args ...string) Finding {
	f.Actions = append(slices.Clone(f.Actions), explain.NewAction(f.Do, op, args...))
	return f
}

func (f Finding) aboutNames(names []string) Finding {
	f.About = names[:min(len(names), aboutMax)]
	return f
}

// Examination has the facts for all checks.
type Examination struct {
	now      time.Time
	where    string // the address of the engine
	reachErr error
	engine   jetstream.Diagnosis
	openErr  error // the streams are missing

	agents    []agentFacts
	agentsErr error
	schedules []protocol.Schedule
	rules     []protocol.Rule
	limits    []lifecycle.KeyStatus
	limitsErr error
	strays    []jetstream.Strays
	straysErr error
	heads     headFacts
	headsErr  error
	ledger    broker.LedgerInfo  // before the heads were read
	indexed   ask.PositionAnswer // likewise; zero without an index
	locks     []strayLock
	locksErr  error
	index     ask.PositionAnswer
	indexErr  error
}

// needs are the parts of an examination that a check requires.
type needs int

const (
	needsNothing needs = iota
	needsServer        // a connection
	needsStore         // JetStream
	needsStreams       // those of Handoff
	needsHeads         // the handoffs; it fails if they could not be read
)

// check is one line of the doctor.
type check struct {
	name  string
	needs needs
	asks  string // the question of broker.Diagnose that it judges
	judge func(Examination) Finding
}

// checks lists all checks. A check comes after those that it depends on.
var checks = []check{
	{"engine", needsNothing, "", judgeEngine},
	{"version", needsServer, "", judgeVersion},
	{"store", needsServer, "", judgeStore},
	{"streams", needsStore, "streams", judgeStreams},
	{"space", needsStore, "streams", judgeSpace},
	{"replicas", needsStreams, "streams", judgeReplicas},
	{"fsync", needsStreams, "streams", judgeFsync},
	{"clock", needsStreams, "clock", judgeClock},
	{"supervisors", needsStreams, "consumers", judgeSupervisors},
	{"queues", needsStreams, "consumers", judgeQueues},
	{"workers", needsStreams, "", judgeWorkers},
	{"paused", needsStreams, "", judgePaused},
	{"breakers", needsStreams, "", judgeBreakers},
	{"limits", needsStreams, "", judgeLimits},
	{"schedules", needsStreams, "", judgeSchedules},
	{"signals", needsStreams, "", judgeSignals},
	{"gates", needsHeads, "", judgeGates},
	{"takers", needsHeads, "", judgeUnknownAgents},
	{"strays", needsStreams, "", judgeStrays},
	{"stuck", needsHeads, "", judgeStuck},
	{"deadlocks", needsHeads, "", judgeDeadlocks},
	{"late", needsHeads, "", judgeLate},
	{"age", needsHeads, "", judgeAge},
	{"lineages", needsHeads, "", judgeLineages},
	{CheckPeople, needsStreams, "", judgePeople},
	{"ledger", needsHeads, "", judgeLedger},
	{"index", needsStreams, "", judgeIndex},
}

// Judge makes all checks whose needs are met, except for those to skip.
func Judge(x Examination, skip []string) []Finding {
	var all []Finding
	for _, c := range checks {
		if slices.Contains(skip, c.name) || c.needs > x.reached() {
			continue
		}
		f := Finding{}
		if err := x.engine.Unanswered[c.asks]; c.asks != "" && err != nil {
			f = Fail("see that these credentials may ask the engine about its streams", "could not be read: %v", err)
		} else if c.needs == needsHeads && x.headsErr != nil {
			f = Fail("check the engine, and try again", "the handoffs could not be read: %v", x.headsErr)
		} else {
			f = c.judge(x)
		}
		f.Check = c.name
		all = append(all, f)
	}
	return all
}

// reached returns the facts that the examination could read.
func (x Examination) reached() needs {
	switch {
	case x.reachErr != nil:
		return needsNothing
	case x.engine.Unanswered["account"] != nil:
		return needsServer
	case x.openErr != nil:
		return needsStore
	}
	return needsHeads
}

// Thresholds.
const (
	rttSlow     = 250 * time.Millisecond // every step of a handoff takes at least as long
	clockWarn   = time.Second            // deadlines and histories are off by as much
	clockFail   = 10 * time.Second       // a third of a lease
	spaceWarn   = 0.8
	spaceFail   = 0.95
	entriesMany = 10_000 // that wait for supervisors
	indexBehind = 5 * time.Second
)

const doClock = "keep the clocks of this machine and the engine's together (NTP)"

func judgeEngine(x Examination) Finding {
	s := x.engine.Server
	switch {
	case x.reachErr != nil:
		return Fail("start one, or set its address", "%v", x.reachErr).withAction(explain.OpDev).withAction(explain.OpConnect)
	case s.RTT > rttSlow:
		return Warn("move closer to it, or look at the network between", "answers at %s, and takes %s for it", x.where, explain.Duration(s.RTT))
	case s.Cluster != "":
		return OK("answers at %s in %s: server %s of cluster %s", x.where, s.RTT.Round(10*time.Microsecond), s.Name, s.Cluster)
	}
	return OK("answers at %s in %s", x.where, s.RTT.Round(10*time.Microsecond))
}

func judgeVersion(x Examination) Finding {
	version := x.engine.Server.Version
	switch canonical := "v" + strings.TrimPrefix(version, "v"); {
	case !semver.IsValid(canonical):
		return Warn("use a release of nats-server", "NATS %s: cannot determine whether that is %s or newer", version, jetstream.VersionMin)
	case semver.Compare(canonical, "v"+jetstream.VersionMin) < 0:
		return Fail("update nats-server", "NATS %s: Handoff needs %s or newer, for wake-ups", version, jetstream.VersionMin)
	}
	return OK("NATS %s", version)
}

func judgeStore(x Examination) Finding {
	if disk := x.engine.Server.Disk; disk != "" {
		return Fail("make room; a server that Handoff runs then continues by itself", "the engine cannot write: %s", disk)
	}
	if err := x.engine.Unanswered["account"]; err != nil {
		return Fail("start the server with JetStream on, or use credentials that may use it", "JetStream is not available: %v", err).withAction(explain.OpDev)
	}
	a := x.engine.Account
	if full, f := fullness("the account", a.Storage, a.StorageMax); full {
		return f
	}
	limit := "no limit is set: see that the server's disk has room"
	if a.StorageMax > 0 {
		limit = "of " + protocol.Size(a.StorageMax)
	}
	return OK("%s on the disk, %s", protocol.Size(a.Storage), limit)
}

// fullness judges usage against a limit. It returns false far below the limit, or without a limit.
func fullness(what string, used, most int64) (bool, Finding) {
	const do = "raise the limit, or add a disk: at the limit no handoff can be submitted"
	share := float64(used) / float64(most)
	switch {
	case most < 1 || share < spaceWarn:
		return false, Finding{}
	case share < spaceFail:
		return true, Warn(do, "%s uses %s of %s (%.0f%%)", what, protocol.Size(used), protocol.Size(most), 100*share)
	}
	return true, Fail(do, "%s uses %s of %s (%.0f%%)", what, protocol.Size(used), protocol.Size(most), 100*share)
}

func judgeStreams(x Examination) Finding {
	var missing, weak []string
	derived := true // supervisors recreate these streams
	for _, s := range x.engine.Streams {
		switch {
		case s.Missing:
			missing = append(missing, s.Name)
			base := jetstream.BaseOf(s.Name)
			derived = derived && (base == jetstream.WorkStream || base == jetstream.TimerStream)
		case s.Sealed:
			weak = append(weak, s.Name+" is sealed and accepts no messages")
		case s.Memory:
			weak = append(weak, s.Name+" is kept in memory, and lost when the server stops")
		case len(s.Weaker) > 0:
			weak = append(weak, s.Name+": "+strings.Join(s.Weaker, ", "))
		}
	}
	switch {
	case len(missing) > 0 && derived:
		return Fail("start a supervisor, which recreates it, then check every handoff",
			"%s is missing", strings.Join(missing, " and ")).aboutNames(missing).withAction(explain.OpSupervise).withAction(explain.OpRepair)
	case len(missing) > 0:
		return Fail("create the streams", "%s missing", explain.Is(explain.Some(missing), len(missing))).aboutNames(missing).withAction(explain.OpTopology)
	case len(weak) > 0:
		return Fail("create the streams again, which repairs some settings; for the others: nats stream edit NAME",
			"%s", strings.Join(weak, "; ")).withAction(explain.OpTopology)
	}
	return OK("all %d exist, with the right settings", len(x.engine.Streams))
}

func judgeSpace(x Examination) Finding {
	worst := OK("no stream is near a limit")
	for _, s := range x.engine.Streams {
		for _, limit := range []struct {
			used, most int64
		}{{int64(s.Bytes), s.BytesMax}, {int64(s.Messages), s.MessageMax}} {
			if full, f := fullness("stream "+s.Name, limit.used, limit.most); full && rank(f.Status) > rank(worst.Status) {
				worst = f
			}
			if limit.most > 0 && s.Drops && jetstream.BaseOf(s.Name) == jetstream.LedgerStream && worst.Status == StatusOK {
				worst = Warn(fmt.Sprintf("nats stream edit %s --max-bytes=-1 --max-msgs=-1", s.Name), "the ledger has a limit, and drops its oldest entries when it is full, including those of open handoffs")
			}
		}
	}
	return worst
}

func rank(h Status) int { return slices.Index([]Status{StatusOK, StatusWarn, StatusFail}, h) }

func judgeReplicas(x Examination) Finding {
	var behind, leaderless []string
	replicas := 0
	for _, s := range x.engine.Streams {
		if s.Name == jetstream.LedgerStream {
			replicas = s.Replicas
		}
		behind = append(behind, s.Behind...)
		if s.Leaderless {
			leaderless = append(leaderless, s.Name)
		}
	}
	slices.Sort(behind)
	behind = slices.Compact(behind)
	switch {
	case len(leaderless) > 0:
		return Fail("bring back the servers that are gone: it takes more than half of the replicas", "%s no leader: nothing can be written", explain.Has(explain.Some(leaderless), len(leaderless))).aboutNames(leaderless)
	case len(behind) > 0:
		return Warn("see whether these servers run: one more lost may stop everything", "%s or not up to date", explain.Is(explain.Some(behind), len(behind))+" offline").aboutNames(behind)
	case replicas == 1 && x.engine.Server.Cluster != "":
		return Warn("nats stream edit NAME --replicas 3, for every HANDOFF stream", "1 replica in a cluster: a lost server takes its handoffs with it")
	case replicas == 1:
		return OK("1: all is on this server alone")
	}
	return OK("%d, all up to date", replicas)
}

func judgeFsync(x Examination) Finding {
	for _, s := range x.engine.Streams {
		if s.Name != jetstream.LedgerStream {
			continue
		}
		switch {
		case s.Synced:
			return OK("every change is on the disk before it is acknowledged")
		case s.Replicas > 1:
			return OK("%d replicas; whether each syncs every write cannot be seen from here (sync_interval: always)", s.Replicas)
		}
	}
	return Warn("have every write synced; on a server of yours sync_interval: always, which cannot be seen from here",
		"writes are synced at an interval: a power cut may take the last of them, acknowledged tickets included").withAction(explain.OpDev, "fsync", "always")
}

func judgeClock(x Examination) Finding {
	s := x.engine.Server
	off, side := s.Ahead.Abs()-s.Within, "ahead of"
	if s.Ahead < 0 {
		side = "behind"
	}
	switch {
	case s.Within == 0:
		return Warn(doClock, "the engine does not report its time")
	case off > clockFail:
		return Fail(doClock, "the engine's clock is %s %s ours: deadlines and leases cannot be trusted", explain.Duration(s.Ahead.Abs()), side)
	case off > clockWarn:
		return Warn(doClock, "the engine's clock is %s %s ours", explain.Duration(s.Ahead.Abs()), side)
	}
	return OK("within %s of the engine's", explain.Duration(max(s.Ahead.Abs()+s.Within, time.Millisecond)))
}

// Supervisors judges whether a supervisor is at work. It returns OK if the engine cannot report it.
func Supervisors(x Examination) Finding {
	switch {
	case x.reachErr != nil:
		return judgeEngine(x)
	case x.engine.Unanswered["consumers"] != nil:
		return OK("the engine does not report it")
	}
	return judgeSupervisors(x)
}

func judgeSupervisors(x Examination) Finding {
	none := func(words string) Finding {
		return Fail("start one", "%s: nothing is retried, rerouted, escalated or timed out", words).withAction(explain.OpSupervise)
	}
	pulls, waiting := 0, uint64(0)
	for _, c := range x.engine.Consumers {
		if c.Name != jetstream.SupervisorConsumer || jetstream.BaseOf(c.Stream) != jetstream.TimerStream {
			continue
		}
		switch {
		case c.Missing:
			return none("none has ever run here")
		case c.Paused:
			return Fail("nats consumer resume "+c.Stream+" "+c.Name, "the consumer that supervisors share on %s is paused", c.Stream)
		case c.Waiting == 0 && !c.Moved:
			return none("none is running")
		case c.AckPendingMax > 0 && c.AckPending >= c.AckPendingMax:
			return Fail("see the log of the supervisors, and start more", "they hold %d announcements and wake-ups and accept no more", c.AckPending)
		case c.Pending > 0 && c.Waiting > 0 && !c.Moved:
			return Fail("nats consumer rm "+c.Stream+" "+c.Name+": a supervisor creates it again and reconciles every handoff", "stuck: %d messages of %s wait, supervisors ask, and none is delivered", c.Pending, c.Stream)
		case len(c.Odd) > 0:
			return Warn("nats consumer rm "+c.Stream+" "+c.Name+": a supervisor creates it again", "their consumer on %s has unexpected settings: %s", c.Stream, strings.Join(c.Odd, ", "))
		}
		pulls, waiting = max(pulls, c.Waiting), waiting+c.Pending
	}
	if waiting > entriesMany {
		return Warn("start more", "behind: %d announcements and wake-ups wait for them", waiting).withAction(explain.OpSupervise)
	}
	for _, c := range x.engine.Consumers {
		if c.Name == jetstream.SupervisorConsumer && jetstream.BaseOf(c.Stream) == jetstream.LedgerStream && c.Waiting > 0 {
			if f := judgeWatched(c); f.Status != StatusOK {
				return f
			}
		}
	}
	if pulls == 0 {
		return OK("at work")
	}
	return OK("%s listening", explain.Is(fmt.Sprint(pulls), pulls))
}

// judgeWatched judges the consumer that supervisors with metrics share on the ledger. No handoff
// depends on it. An unused one is no problem: the ledger keeps nothing for it.
func judgeWatched(c jetstream.ConsumerFacts) Finding {
	again := "nats consumer rm " + c.Stream + " " + c.Name + ": a supervisor creates it again"
	switch {
	case c.Paused:
		return Warn("nats consumer resume "+c.Stream+" "+c.Name, "the metrics have stopped: the consumer on %s is paused", c.Stream)
	case c.Pending > 0 && !c.Moved:
		return Warn(again, "the metrics have stopped: %d entries of %s wait, supervisors ask, and none is delivered", c.Pending, c.Stream)
	case c.Pending > entriesMany:
		return Warn("start more", "the metrics are behind: %d entries wait", c.Pending).withAction(explain.OpSupervise)
	case len(c.Odd) > 0:
		return Warn(again, "the consumer for the metrics on %s has unexpected settings: %s", c.Stream, strings.Join(c.Odd, ", "))
	}
	return OK("")
}

func judgeQueues(x Examination) Finding {
	worst := OK("all active queues are moving")
	seen := 0
	for _, c := range x.engine.Consumers {
		if c.Agent == "" {
			continue
		}
		seen++
		again := "nats consumer rm " + c.Stream + " " + c.Name + ": workers create it again, and no offer is lost"
		var f Finding
		switch {
		case c.Paused:
			f = Fail("nats consumer resume "+c.Stream+" "+c.Name, "the %s lane of %s is paused at the engine", c.Lane, c.Agent)
		case c.AckPendingMax > 0 && c.AckPending >= c.AckPendingMax:
			f = Fail("look at its workers", "the %s lane of %s delivers no more: %d offers are held", c.Lane, c.Agent, c.AckPending)
		case c.Pending > 0 && c.Waiting > 0 && !c.Moved:
			f = Fail(again, "the %s lane of %s is stuck: %d offers wait, workers ask, and none is delivered", c.Lane, c.Agent, c.Pending)
		case len(c.Odd) > 0:
			f = Warn(again, "the %s lane of %s has unexpected settings: %s", c.Lane, c.Agent, strings.Join(c.Odd, ", "))
		default:
			continue
		}
		if rank(f.Status) > rank(worst.Status) {
			worst = f
		}
		worst.About = append(worst.About, c.Name)
	}
	if worst.Status == StatusOK && seen == 0 {
		return OK("no worker has asked for offers yet")
	}
	return worst.aboutNames(worst.About)
}

// CheckNames lists the names of all checks, in their order.
func CheckNames() []string {
	var names []string
	for _, c := range checks {
		names = append(names, c.name)
	}
	return names
}
