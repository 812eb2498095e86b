package doctor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/explain"
	"github.com/agenthandoff/handoff/internal/index/ask"
	"github.com/agenthandoff/handoff/internal/jetstream"
	"github.com/agenthandoff/handoff/internal/lifecycle"
	"github.com/agenthandoff/handoff/protocol"
)

// Access has the functions by which a doctor reads an engine.
type Access struct {
	// Where names the engine for people.
	Where string
	// Diagnose connects and reads the state of the server, without the questions named.
	Diagnose func(ctx context.Context, without ...string) (jetstream.Diagnosis, error)
	// Open returns the broker of the engine. The caller calls done.
	Open func(ctx context.Context) (b *broker.Broker, done func(), err error)
	// Strays finds the messages that no part of Handoff wrote. It requires an earlier call of Open.
	Strays func(ctx context.Context, d *lifecycle.Directory) ([]jetstream.Strays, error)
	// Patience is how long the directory may take, at least 10 s.
	Patience time.Duration
}

// ExamineServer reads the state of the server alone, without the questions named.
func ExamineServer(ctx context.Context, to Access, without ...string) Examination {
	x := Examination{where: to.Where, now: time.Now()}
	x.engine, x.reachErr = to.Diagnose(ctx, without...)
	return x
}

// Examine reads the facts for all checks. If a read fails, the check reports it.
func Examine(ctx context.Context, to Access, skip []string) Examination {
	x := ExamineServer(ctx, to)
	if x.reachErr != nil || x.engine.Unanswered["account"] != nil {
		return x
	}
	b, done, err := to.Open(ctx)
	if err != nil {
		x.openErr = err
		return x
	}
	defer done()
	waiting, cancel := context.WithTimeout(ctx, max(directoryWait, to.Patience))
	directory, err := b.Directory(waiting)
	cancel()
	if err == nil {
		x.schedules = slices.SortedFunc(maps.Values(directory.Schedules), func(a, b protocol.Schedule) int { return strings.Compare(a.Name, b.Name) })
		x.rules = slices.SortedFunc(maps.Values(directory.Rules), func(a, b protocol.Rule) int { return strings.Compare(a.Name, b.Name) })
		x.agents, err = examineAgents(ctx, b, directory)
	}
	x.agentsErr = err
	x.limits, x.limitsErr = b.KeyLimits().Statuses(ctx)
	if x.straysErr = err; err == nil {
		x.strays, x.straysErr = to.Strays(ctx, directory)
	}
	x.now = time.Now()
	// The index is read before the ledger, which must therefore have every entry of the index.
	if !slices.Contains(skip, "index") {
		x.indexed, _ = ask.Client{Asker: b}.Position(ctx, ask.PositionQuery{Question: ask.Question{WaitMS: -1}}) // judged below
	}
	x.ledger, x.headsErr = b.LedgerInfo(ctx)
	if x.headsErr == nil {
		x.heads, x.headsErr = examineHeads(ctx, b, directory)
	}
	if x.headsErr == nil {
		x.headsErr = examineOrphans(ctx, b, &x.heads)
	}
	if !slices.Contains(skip, "gates") {
		x.locks, x.locksErr = examineLocks(ctx, b, x.now)
	}
	if !slices.Contains(skip, "index") {
		x.index, x.indexErr = ask.Client{Asker: b}.Position(ctx, ask.PositionQuery{})
	}
	return x
}

// directoryWait is how long the directory may take at least. It waits for a write of presence, which an engine on a
// full disk does not answer.
const directoryWait = 10 * time.Second

// examineAgents collects the agents with their workers and queues.
func examineAgents(ctx context.Context, b *broker.Broker, d *lifecycle.Directory) ([]agentFacts, error) {
	queues, err := b.Queues(ctx)
	if err != nil {
		return nil, err
	}
	facts := map[string]*agentFacts{}
	of := func(id string) *agentFacts {
		if facts[id] == nil {
			profile, known := d.Agent(id)
			facts[id] = &agentFacts{id: id, registered: known}
			facts[id].why, _ = d.Unavailable(profile)
			facts[id].workers, _, _ = d.Load(id)
			facts[id].polled, facts[id].polls = d.Polled(id)
			if policy := d.BreakerPolicy(id); policy.Threshold > 0 {
				facts[id].breaker, _ = lifecycle.Breaker(d.Health[id].Health, policy, b.Now())
			}
		}
		return facts[id]
	}
	for id := range d.Agents {
		of(id)
	}
	for _, q := range queues {
		f := of(q.Agent)
		f.queued += q.Depth
		if f.oldest.IsZero() || q.Oldest.Before(f.oldest) {
			f.oldest = q.Oldest
		}
	}
	var all []agentFacts
	for _, id := range slices.Sorted(maps.Keys(facts)) {
		all = append(all, *facts[id])
	}
	return all, nil
}

// examineHeads reads the head of every handoff.
func examineHeads(ctx context.Context, b *broker.Broker, d *lifecycle.Directory) (headFacts, error) {
	f := headFacts{waits: lifecycle.WaitGraph{Early: true}}
	err := b.Heads(ctx, func(e broker.Entry) error {
		head, err := broker.HeadOf(e)
		var unread *broker.UnreadableError
		if errors.As(err, &unread) {
			f.addUnreadable(unread)
		} else {
			f.addHead(head, d, time.Now())
		}
		return ctx.Err()
	})
	for _, found := range f.waits.Deadlocks(d) {
		f.deadlocks.add(found.Youngest.Ticket, strings.Join(found.Agents, ", "))
	}
	return f, err
}

const (
	// orphanTimeout is how long a supervisor may take for a handoff whose holder
	// has gone. The documented time is five seconds.
	orphanTimeout = 10 * time.Second
	// orphanInterval is the time between two checks of an orphan.
	orphanInterval = 500 * time.Millisecond
)

// examineOrphans waits until a supervisor has dealt with the handoffs whose holder is gone. The
// rest are overdue.
func examineOrphans(ctx context.Context, b *broker.Broker, f *headFacts) error {
	end := time.Now().Add(orphanTimeout)
	for {
		left := f.orphans[:0:0]
		for _, o := range f.orphans {
			still, err := isOrphaned(ctx, b, o)
			if err != nil {
				return err
			}
			if still {
				left = append(left, o)
			}
		}
		if f.orphans = left; len(left) == 0 || time.Now().After(end) {
			break
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(orphanInterval):
		}
	}
	for _, o := range f.orphans {
		f.overdue.add(o.ticket, "whose worker of "+o.agent+" is gone")
	}
	return nil
}

// isOrphaned reads from the leader whether a handoff is still held by a holder that is gone.
func isOrphaned(ctx context.Context, b *broker.Broker, o orphan) (bool, error) {
	head, err := b.Head(ctx, o.ticket, 0)
	switch {
	case errors.Is(err, broker.ErrNotFound), broker.Unreadable(err):
		return false, nil
	case err != nil:
		return false, err
	case !head.State.Held() || head.State.Holder != o.holder:
		return false, nil
	}
	_, err = b.Holder(ctx, o.holder)
	if errors.Is(err, broker.ErrNotFound) {
		return true, nil
	}
	return false, err
}

const (
	// processTimeout is how long a process may take to report its health: longer than the
	// timeout of its own checks.
	processTimeout = 5 * time.Second
	// processReportBytesMax bounds the report.
	processReportBytesMax = 64 << 10
)

// Process reports whether the process at a URL is live and ready.
func Process(ctx context.Context, where string) Finding {
	ctx, cancel := context.WithTimeout(ctx, processTimeout)
	defer cancel()
	var well []string
	for _, page := range []struct{ path, do, op string }{
		{"/healthz", "start it again", ""},
		{"/readyz", "wait, or examine the problems that it reports", explain.OpDoctor},
	} {
		passed, problems, err := readHealth(ctx, where+page.path)
		switch f := Fail(page.do, "at %s: %s", where, strings.Join(problems, "; ")); {
		case err != nil:
			return Fail("see whether it runs, and its log", "no health report from %s: %v", where, err)
		case problems != nil && page.op != "":
			return f.withAction(page.op)
		case problems != nil:
			return f
		}
		well = append(well, passed...)
	}
	return OK("at %s is ready%s", where, explain.After(": ", strings.Join(well, ", ")))
}

// readHealth reads /healthz or /readyz: the names of the checks that pass, and the problems of a process
// that is not well; nil if it is.
func readHealth(ctx context.Context, url string) (passed, problems []string, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, nil, err
	}
	request.Header.Set("Accept", "application/json")
	// A proxy of the environment would connect to another machine.
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	answer, err := client.Do(request)
	if err != nil {
		return nil, nil, err
	}
	defer func() { _ = answer.Body.Close() }()
	var report struct {
		OK     bool `json:"ok"`
		Checks []struct {
			Name    string `json:"name"`
			OK      bool   `json:"ok"`
			Problem string `json:"problem"`
		} `json:"checks"`
	}
	if err := json.NewDecoder(io.LimitReader(answer.Body, processReportBytesMax)).Decode(&report); err != nil {
		return nil, nil, fmt.Errorf("%s answers %s without a health report", url, answer.Status)
	}
	ill := []string{}
	for _, c := range report.Checks {
		if c.OK {
			passed = append(passed, c.Name)
		} else {
			ill = append(ill, c.Name+": "+c.Problem)
		}
	}
	if !report.OK {
		problems = ill
	}
	return passed, problems, nil
}

// addGate adds a handoff that waits before its next offer.
func (f *headFacts) addGate(s protocol.State, directory *lifecycle.Directory, now time.Time) {
	if s.Gate == nil {
		return
	}
	f.gated++
	asked := lifecycle.AskedAtGate(s)
	switch until := s.Gate.Until; {
	case !until.IsZero() && now.Sub(until) > lifecycle.LateAfter:
		f.lapsed.add(s.Ticket, fmt.Sprintf("%s since %s", s.Gate.First(), explain.Instant(until)))
	case asked != "" && asked != protocol.Human && directory != nil && !directory.Attended(asked):
		f.unanswered.add(s.Ticket, asked)
	}
}

// strayLock is a lock of a handoff that is no longer open.
type strayLock struct{ workspace, path, ticket string }

// examineLocks finds the locks of handoffs that closed more than lifecycle.LateAfter ago, or that
// the ledger has dropped.
func examineLocks(ctx context.Context, b *broker.Broker, now time.Time) (stray []strayLock, err error) {
	all, err := b.Workspaces(ctx)
	if errors.Is(err, &protocol.Error{Code: protocol.CodeUnsupported}) { // an engine without them
		return nil, nil
	}
	over := map[string]bool{}
	for _, w := range all {
		for _, l := range w.Locks {
			gone, known := over[l.Ticket]
			if !known {
				if gone, err = isOver(ctx, b, l.Ticket, now); err != nil {
					return stray, err
				}
				over[l.Ticket] = gone
			}
			if gone {
				stray = append(stray, strayLock{w.Name, l.Path, l.Ticket})
			}
		}
	}
	return stray, err
}

// isOver reports whether a handoff closed so long ago that its locks should be free.
func isOver(ctx context.Context, b *broker.Broker, ticket string, now time.Time) (bool, error) {
	head, err := b.Head(ctx, ticket, 0)
	switch {
	case errors.Is(err, broker.ErrNotFound):
		return true, nil
	case broker.Unreadable(err):
		return false, nil
	}
	return err == nil && head.State.Closed && now.Sub(head.State.ClosedAt) > lifecycle.LateAfter, err
}

// judgeGates finds gates that nothing will open, and locks that nothing will release.
func judgeGates(x Examination) Finding {
	if x.locksErr != nil {
		return Fail("check the engine, and try again", "the locks of workflows could not be read: %v", x.locksErr)
	}
	h := x.heads
	var found []Finding
	if t := h.lapsed; t.n > 0 {
		found = append(found, Fail("check every handoff now; a supervisor must be running",
			"%s at a gate whose time is over, such as %s (%s)", explain.Is(explain.Count(t.n, "handoff"), t.n), t.first[0], t.words).
			aboutNames(t.first).withAction(explain.OpRepair))
	}
	if t := h.unanswered; t.n > 0 {
		found = append(found, Warn(fmt.Sprintf("decide it for %s, or start a worker for it", t.words),
			"%s for an approver without a worker, such as %s for %s", waits(t.n), t.first[0], t.words).
			aboutNames(t.first).withAction(explain.OpApprove, "ticket", t.first[0]).withAction(explain.OpWork, "agent", t.words))
	}
	if n := len(x.locks); n > 0 {
		l := x.locks[0]
		f := Warn("start a supervisor, whose first sweep releases them",
			"%s held by closed handoffs, such as %s of %s by %s", explain.Is(explain.Count(n, "lock"), n), l.path, l.workspace, l.ticket)
		var tickets []string
		for _, l := range x.locks {
			tickets = append(tickets, l.ticket)
		}
		found = append(found, f.aboutNames(tickets).withAction(explain.OpSupervise))
	}
	switch {
	case len(found) > 0:
		return joined(found)
	case h.gated == 0:
		return OK("no handoff waits at a gate, and no lock is left over")
	}
	return OK("%s at one, and can go on", waits(h.gated))
}

func waits(n int) string {
	if n == 1 {
		return "1 handoff waits"
	}
	return fmt.Sprintf("%d handoffs wait", n)
}

// joined combines findings, the worst first.
func joined(all []Finding) Finding {
	one := all[0]
	var words, do []string
	one.Actions, one.About = nil, nil
	for _, f := range all {
		words, do = append(words, f.Message), append(do, f.Do)
		one.Actions, one.About = append(one.Actions, f.Actions...), append(one.About, f.About...)
	}
	one.Message, one.Do = strings.Join(words, "; "), strings.Join(do, "; ")
	return one.aboutNames(one.About)
}
