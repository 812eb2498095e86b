package demo

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/broker/jetstream"
	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/worker"
)

// agent is one of those written in Go. The reviewer is a shell script, the maintainer has
// no worker.
type agent struct {
	name        string
	description string
	lease       time.Duration                // 0 is the default
	answer      func(variables) protocol.Ack // nil accepts every offer
	work        func(context.Context, job) (found, summary string, err error)
}

// variables are those that travel with every package.
type variables struct {
	Directory     string `json:"directory"`
	Run           string `json:"run"`
	LongFileLines int    `json:"long_file_lines"`
}

// job is one handoff at work.
type job struct {
	worker.Handoff
	variables
}

var agents = []agent{
	{name: surveyor, description: "counts files, lines and languages", lease: showLeaseMS * time.Millisecond, work: doSurvey},
	{name: historian, description: "reads the git history", work: doHistory},
	{name: inspector, description: "looks for what needs care in code", answer: askLimit, work: doInspection},
	{name: protocol.Human, work: doDecision}, // the demo plays the person
	{name: reporter, description: "writes the report", work: doReport},
}

// drainTimeout is how long a handler may go on after the demo has asked its agent to end.
const drainTimeout = 2 * time.Second

// Agent serves one agent of the demo until ctx ends: what a separate process does. It
// knows nothing but where the engine is.
func Agent(ctx context.Context, name, url string, log *slog.Logger) error {
	engine, err := jetstream.Dial(ctx, jetstream.DialConfig{URL: url, Name: "handoff demo " + name, Config: jetstream.Config{Log: log}})
	if err != nil {
		return err
	}
	defer engine.Close()
	b, err := broker.New(engine, broker.Config{})
	if err != nil {
		return err
	}
	return serve(ctx, b, name, log)
}

func serve(ctx context.Context, b *broker.Broker, name string, log *slog.Logger) error {
	i := slices.IndexFunc(agents, func(a agent) bool { return a.name == name })
	if i < 0 {
		return fmt.Errorf("the demo has no agent %q", name)
	}
	a := agents[i]
	profile := protocol.Profile{Name: name, Description: a.description}
	w, err := worker.New(b, worker.Config{Agent: name, Lease: a.lease, DrainTimeout: drainTimeout, Log: log, Profile: profile}, a)
	if err != nil {
		return err
	}
	return w.Run(ctx)
}

func jobOf(h worker.Handoff) (job, error) {
	j := job{Handoff: h}
	raw, err := json.Marshal(h.Package.Context.Variables)
	if err == nil {
		err = json.Unmarshal(raw, &j.variables)
	}
	return j, err
}

// Acknowledge answers an offer.
func (a agent) Acknowledge(_ context.Context, h worker.Handoff) (protocol.Ack, error) {
	j, err := jobOf(h)
	if err != nil || a.answer == nil {
		return protocol.Ack{Status: protocol.AckAccepted}, err
	}
	return a.answer(j.variables), nil
}

// Handle does the agent's work and hands off to the next one. The successor goes with the
// result: an attempt that dies before its report has handed off nothing.
func (a agent) Handle(ctx context.Context, h worker.Handoff) (protocol.Result, error) {
	i := stepIndex(h.Package.Task.ID)
	if i < 0 || i+1 == len(steps) {
		return protocol.Result{}, worker.Permanent(fmt.Errorf("the demo has no step %q for the %s", h.Package.Task.ID, a.name))
	}
	j, err := jobOf(h)
	if err != nil {
		return protocol.Result{}, worker.Permanent(err)
	}
	found, summary, err := a.work(ctx, j)
	if err != nil {
		return protocol.Result{}, err
	}
	body := text(found)
	next := h.Continue(steps[i+1].to)
	address(&next, i+1)
	addResult(&next.Context, steps[i].id, body, summary)
	if _, err := h.HandOff(ctx, next); err != nil {
		return protocol.Result{}, err
	}
	return protocol.Result{Body: body, Summary: summary}, nil
}

// process is that of an agent. It has a pipe to this one as its stdin, and ends when that
// closes: none survives the demo, however it ends.
type process struct {
	agent  string
	cmd    *exec.Cmd
	killed atomic.Bool
}

const (
	// agentsLog is where the agents log.
	agentsLog = "agents.log"
	// stopTimeout is how long the processes may take to end by themselves.
	stopTimeout = 6 * time.Second
)

// startAgents starts two processes of the surveyor, of which one will be killed, the
// reviewer under handoff work, and one of each other. They end with ctx; one that ends
// unasked ends the group.
func startAgents(ctx context.Context, group *errgroup.Group, url, run string) ([]*process, error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	script := filepath.Join(run, "reviewer.sh")
	if err := os.WriteFile(script, []byte(reviewerScript), 0o600); err != nil {
		return nil, err
	}
	log, err := os.OpenFile(filepath.Join(run, agentsLog), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close() // the processes have it open
	all := []*process{{agent: reviewer, cmd: exec.CommandContext(ctx, exe, TetherCommand, "work", "--agent", reviewer, "--", "sh", script, run)}}
	for _, name := range []string{surveyor, surveyor, historian, inspector, reporter} {
		all = append(all, &process{agent: name, cmd: exec.CommandContext(ctx, exe, TetherCommand, AgentCommand, name)})
	}
	for _, p := range all {
		p.cmd.Stdout, p.cmd.Stderr = log, log
		if err := p.start(ctx, group, url); err != nil {
			return nil, fmt.Errorf("start %s: %w", p.agent, err)
		}
	}
	return all, nil
}

func (p *process) start(ctx context.Context, group *errgroup.Group, url string) error {
	for _, pair := range os.Environ() { // ours, without what would lead an agent to another engine
		if !strings.HasPrefix(pair, "NATS_") && !strings.HasPrefix(pair, "HANDOFF_") {
			p.cmd.Env = append(p.cmd.Env, pair)
		}
	}
	p.cmd.Env = append(p.cmd.Env, "NATS_URL="+url)
	tether, err := p.cmd.StdinPipe()
	if err != nil {
		return err
	}
	p.cmd.Cancel, p.cmd.WaitDelay = tether.Close, stopTimeout
	if err := p.cmd.Start(); err != nil {
		return err
	}
	group.Go(func() error {
		if err := p.cmd.Wait(); ctx.Err() == nil && !p.killed.Load() {
			return fmt.Errorf("the process of the %s ended unasked (%v)", p.agent, err)
		}
		return nil
	})
	return nil
}

// ready waits until the directory shows all processes: a late one would be taken for absent.
func ready(ctx context.Context, b *broker.Broker, all []*process) error {
	for {
		directory, err := b.Directory(ctx)
		if err != nil {
			return err
		}
		live := 0
		for _, name := range []string{reviewer, surveyor, historian, inspector, reporter} {
			n, _, _ := directory.Load(name)
			live += n
		}
		if live == len(all) {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%d of %d processes have come: %w", live, len(all), context.Cause(ctx))
		case <-time.After(pollInterval):
		}
	}
}
