package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/agenthandoff/handoff/api"
	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/jetstream"
	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/worker"
)

// agent is an agent written in Go. The reviewer is a shell script, the maintainer has no worker.
type agent struct {
	name, description string
	lease             time.Duration // 0 is the default
	pace              time.Duration // that it works at least
	work              func(context.Context, job) (found, summary string, err error)
}

// job is a claimed handoff with the variables of its package.
type job struct {
	worker.Handoff
	Directory     string // under review
	Run           string // where the agents of this run keep their files
	LongFileLines int    `json:"long_file_lines"` // the inspector asks for it
}

var agents = map[string]agent{
	surveyor:       {surveyor, "counts files, lines and languages", showLeaseMS * time.Millisecond, 0, doSurvey},
	historian:      {historian, "reads the git history", 0, 0, doHistory},
	inspector:      {inspector, "looks for what needs care in code", 0, 0, doInspection},
	protocol.Human: {protocol.Human, "", 0, 0, doDecision}, // the demo plays the person
	reporter:       {reporter, "writes the report", 0, 0, doReport},
}

// Agent serves an agent of the demo in a process of its own until ctx ends.
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
	a := agents[name]
	a.pace, _ = time.ParseDuration(os.Getenv(paceEnv))
	w, err := worker.New(api.Direct(b, name), worker.Config{Agent: name, Lease: a.lease, DrainTimeout: 2 * time.Second, Log: log,
		Profile: protocol.Profile{Name: name, Description: a.description}}, a)
	if err != nil {
		return err
	}
	return w.Run(ctx)
}

// Acknowledge accepts an offer. The inspector first asks how long a file may be.
func (a agent) Acknowledge(_ context.Context, h worker.Handoff) (protocol.Ack, error) {
	if a.name != inspector || h.Package.Context.Variables[varLongFile] != nil {
		return protocol.Ack{Status: protocol.AckAccepted}, nil
	}
	return protocol.Ack{Status: protocol.AckConditional, NeedsContext: []string{varLongFile},
		Reason: "what counts as long here? The house rules are not in the package"}, nil
}

// Handle does the agent's work and hands off to the agent of the next step. The successor
// begins with the result: it is dropped if the attempt dies before it reports.
func (a agent) Handle(ctx context.Context, h worker.Handoff) (protocol.Result, error) {
	i := stepIndex(h.Package.Task.ID)
	if i < 0 || i+1 == len(steps) {
		return protocol.Result{}, worker.Permanent(fmt.Errorf("the demo has no step %q for the %s", h.Package.Task.ID, a.name))
	}
	j := job{Handoff: h}
	raw, err := json.Marshal(h.Package.Context.Variables)
	if err = errors.Join(err, json.Unmarshal(raw, &j)); err != nil {
		return protocol.Result{}, worker.Permanent(err)
	}
	found, summary, err := a.work(ctx, j)
	if err == nil {
		err = pauseFor(ctx, a.pace)
	}
	if err != nil {
		return protocol.Result{}, err
	}
	next := h.Continue(steps[i+1].to)
	address(&next, i+1)
	addResult(&next.Context, steps[i].id, text(found), summary)
	_, err = h.HandOff(ctx, next)
	return protocol.Result{Body: text(found), Summary: summary}, err
}

// paceEnv has how long a step takes, for the processes of agents.
const paceEnv = "HANDOFF_DEMO_PACE"

// startAgents starts two processes of the surveyor, one of which will be killed, the reviewer
// under handoff work, and one process of each other agent. It waits until the directory shows
// all of them: the supervisor would take a late one for absent.
func (r *run) startAgents(ctx context.Context, group *errgroup.Group) error {
	exe, err := os.Executable()
	if err != nil {
		return err
	}
	if err := os.WriteFile(r.in(scriptName), reviewerScript, 0o600); err != nil {
		return err
	}
	log, err := os.OpenFile(r.in(agentsLog), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close() // the processes have it open
	all := [][]string{{"work", "--agent", reviewer, "--", "sh", r.in(scriptName), r.home}}
	for _, name := range []string{surveyor, surveyor, historian, inspector, reporter} {
		all = append(all, []string{AgentCommand, name})
	}
	for _, args := range all {
		cmd := exec.CommandContext(ctx, exe, append([]string{TetherCommand}, args...)...)
		cmd.Stdout, cmd.Stderr = log, log
		if err := r.start(ctx, group, cmd); err != nil {
			return fmt.Errorf("start %s: %w", strings.Join(args, " "), err)
		}
	}
	for {
		directory, err := r.engine.Broker.Directory(ctx)
		if err != nil {
			return err
		}
		if len(directory.Holders) == len(all) {
			return nil
		}
		if err := pause(ctx); err != nil {
			return fmt.Errorf("%d of %d agent processes are present: %w", len(directory.Holders), len(all), err)
		}
	}
}

// start starts the process of an agent. Its stdin is a pipe from this process, and it ends when
// the pipe closes: no agent survives the demo. An agent that ends by itself ends the group.
func (r *run) start(ctx context.Context, group *errgroup.Group, cmd *exec.Cmd) error {
	// Without the variables that lead an agent to another engine.
	env := slices.DeleteFunc(os.Environ(), func(pair string) bool { return strings.HasPrefix(pair, "NATS_") || strings.HasPrefix(pair, "HANDOFF_") })
	cmd.Env = append(env, "NATS_URL="+r.engine.URL, paceEnv+"="+r.pace().String())
	tether, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	cmd.Cancel, cmd.WaitDelay = tether.Close, 6*time.Second // to end by itself
	if err := cmd.Start(); err != nil {
		return err
	}
	r.processes = append(r.processes, cmd.Process)
	group.Go(func() error {
		if err := cmd.Wait(); ctx.Err() == nil && r.killed.Load() != int64(cmd.Process.Pid) {
			return fmt.Errorf("%v ended too early (%v)", cmd.Args, err)
		}
		return nil
	})
	return nil
}
