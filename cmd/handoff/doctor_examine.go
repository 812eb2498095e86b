package main

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"time"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/index"
	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/protocol/lifecycle"
)

// diagnose connects, and asks the server how the engine is, without the questions
// named.
func (a *app) diagnose(ctx context.Context, without ...string) (examined, error) {
	conn := a.conn.resolve(a.env)
	x := examined{where: conn.where(), now: time.Now()}
	nc, err := conn.dial(ctx)
	if err != nil {
		x.reachErr = err
		return x, nil
	}
	defer nc.Close()
	x.engine, err = broker.Diagnose(ctx, nc, without...)
	return x, err
}

// examine gathers all that the checks need which are not to be skipped. What
// could not be told is told by the check.
func (a *app) examine(ctx context.Context, skip []string) examined {
	x, err := a.diagnose(ctx)
	if err != nil {
		x.reachErr = cmp.Or(x.reachErr, err)
	}
	if x.reachErr != nil || x.engine.Unanswered["account"] != nil {
		return x
	}
	b, done, err := a.connect(ctx)
	if err != nil {
		x.openErr = err
		return x
	}
	defer done()
	directory, err := b.Directory(ctx)
	if err == nil {
		x.agents, err = examineAgents(ctx, b, directory)
	}
	x.agentsErr = err
	if x.straysErr = err; err == nil {
		x.strays, x.straysErr = examineStrays(ctx, b, directory)
	}
	x.now = time.Now()
	x.heads, x.headsErr = examineHeads(ctx, b, directory)
	if x.headsErr == nil {
		x.headsErr = examineOrphans(ctx, b, &x.heads)
	}
	if !slices.Contains(skip, "index") {
		x.index, x.indexErr = index.Client{Asker: b}.Stand(ctx, index.StandQuery{})
	}
	return x
}

// examineAgents puts together who is there and what waits for them.
func examineAgents(ctx context.Context, b *broker.Broker, d *lifecycle.Directory) ([]agentFacts, error) {
	queues, err := b.Queues(ctx)
	if err != nil {
		return nil, err
	}
	facts := map[string]*agentFacts{}
	of := func(id string) *agentFacts {
		if facts[id] == nil {
			profile, known := d.Agent(id)
			facts[id] = &agentFacts{id: id, registered: known, paused: profile.Paused}
			facts[id].workers, _, _ = d.Load(id)
			facts[id].polled, facts[id].polls = d.Polled(id)
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

// examineStrays looks for what nobody of Handoff has written. Only an engine on NATS has any.
func examineStrays(ctx context.Context, b *broker.Broker, d *lifecycle.Directory) ([]broker.Strays, error) {
	engine, ok := b.Engine.(*broker.JetStream)
	if !ok {
		return nil, nil
	}
	return engine.Strays(ctx, d)
}

// examineHeads reads the head of every handoff.
func examineHeads(ctx context.Context, b *broker.Broker, d *lifecycle.Directory) (headFacts, error) {
	var f headFacts
	err := b.Heads(ctx, func(e broker.Entry) error {
		head, err := broker.HeadOf(e)
		var unread *broker.UnreadableError
		if errors.As(err, &unread) {
			f.unread(unread)
		} else {
			f.see(head, d, time.Now())
		}
		return ctx.Err()
	})
	return f, err
}

const (
	// orphanWithin is how long a supervisor may take for a handoff whose holder
	// has gone; five seconds are promised.
	orphanWithin = 10 * time.Second
	// orphanEvery is how often it is looked at meanwhile.
	orphanEvery = 500 * time.Millisecond
)

// examineOrphans waits for handoffs whose holder is gone to be seen to. What is
// left as it was is late. Nobody waits where there is none.
func examineOrphans(ctx context.Context, b *broker.Broker, f *headFacts) error {
	end := time.Now().Add(orphanWithin)
	for {
		left := f.orphans[:0:0]
		for _, o := range f.orphans {
			still, err := orphaned(ctx, b, o)
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
		case <-time.After(orphanEvery):
		}
	}
	for _, o := range f.orphans {
		f.late.add(o.ticket, "whose worker of "+o.agent+" is gone")
	}
	return nil
}

// orphaned tells, by the leader's word, whether a handoff is still held by a
// holder that is gone.
func orphaned(ctx context.Context, b *broker.Broker, o orphan) (bool, error) {
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

// examineSelf is about this process and how it reaches the engine; or about the
// one that shows how it is, where the environment names it.
func (a *app) examineSelf(ctx context.Context, skip []string) []finding {
	var all []finding
	add := func(name string, f finding) {
		f.Check = name
		all = append(all, f)
	}
	add("program", judgeProgram())
	add("settings", a.judgeSettings())
	if addr := a.env(metricsEnv); addr != "" {
		add("process", askProcess(ctx, addr))
		return all
	}
	x, err := a.diagnose(ctx, "streams", "consumers")
	x.reachErr = cmp.Or(x.reachErr, err)
	return append(all, judge(x, append(slices.Clone(skip), slices.DeleteFunc(checkNames(), aboutConnection)...))...)
}

// aboutConnection tells which checks of the engine say something of this process.
func aboutConnection(name string) bool {
	return slices.Contains([]string{"engine", "version", "store", "clock"}, name)
}

func judgeProgram() finding {
	path, err := os.Executable()
	if err != nil {
		return warn("start it by its path", "cannot tell where it is: %v", err)
	}
	return ok("handoff %s, protocol %s, %s, %s/%s, at %s", programVersion(), protocol.Version, runtime.Version(), runtime.GOOS, runtime.GOARCH, path)
}

// programVersion is what this program was built from.
func programVersion() string {
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" && info.Main.Version != "(devel)" {
		return info.Main.Version
	}
	return "devel"
}

// judgeSettings says where the engine is looked for, and why there.
func (a *app) judgeSettings() finding {
	given, conn := a.conn, a.conn.resolve(a.env)
	why := "nothing else is set"
	switch {
	case given.context != "":
		why = "--context says so"
	case given.url != "":
		why = "--nats says so"
	case conn.context != "":
		why = "$NATS_CONTEXT says so"
	case conn.url != "":
		why = "$NATS_URL says so"
	}
	if err := conn.checkURL(); err != nil {
		return fail("write nats://HOST:4222", "%v", err)
	}
	for name, path := range map[string]string{"credentials file": conn.creds, "certificate authority": conn.tlsCA} {
		if path == "" {
			continue
		}
		if _, err := os.ReadFile(path); err != nil {
			return fail("say which file it is: --creds, --tlsca, $NATS_CREDS, $NATS_CA", "the %s cannot be read: %v", name, err)
		}
	}
	if me := a.env("HANDOFF_AGENT"); me != "" {
		if err := protocol.CheckAgent("HANDOFF_AGENT", me); err != nil {
			return fail("set $HANDOFF_AGENT to the name of an agent, or to nothing", "%v", err)
		}
		return ok("the engine is looked for at %s (%s); commands speak for %s ($HANDOFF_AGENT)", conn.where(), why, me)
	}
	return ok("the engine is looked for at %s (%s)", conn.where(), why)
}
