// Package demo is the show of "handoff demo": agents in their own processes review a directory.
// On the way a worker is killed, one agent refuses, one asks a question, one stays silent, an
// attempt fails, and one handoff waits for the approval of a person. At the end the ledger must have every ticket of the relay: nothing is lost,
// nothing was done twice.
//
// The agents use the public API of package worker, or the exec runner of handoff work. The demo
// reacts to the ledger, never to the clock: a slow machine shows the same.
package demo

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/explain"
	"github.com/agenthandoff/handoff/internal/supervisor"
	"github.com/agenthandoff/handoff/protocol"
)

const (
	// TetherCommand is the hidden command that runs the rest of its command line while its stdin is open.
	TetherCommand = "demo-tether"
	// AgentCommand is the hidden command that runs Agent.
	AgentCommand = "demo-agent"

	// The files in a run's own directory.
	dataName   = "data" // of the engine
	reportName = "handoff-review.md"
	scriptName = "reviewer.sh"
	agentsLog  = "agents.log"

	runTimeout    = 50 * time.Second // with the clean-up, the demo ends within a minute
	pageTimeout   = 10 * time.Minute // with a page, where people may decide
	personWaits   = 4                // steps that the demo leaves a decision to a person at the page
	pollInterval  = 100 * time.Millisecond
	longFileLines = 500 // the demo's answer to the inspector
)

// Engine is a NATS node in this process.
type Engine struct {
	Broker     *broker.Broker
	Supervised supervisor.Engine // the engine of Broker
	URL        string
	Page       string // link to the page; "" without one
	Stop       func() error
}

// Config configures a run.
type Config struct {
	Dir    string // under review
	Report string // the file of the report; "" is one in the run's own directory
	Keep   bool   // keep the ledger
	// Pace is how long each step takes with a page; there the demo leaves its decisions to a person for
	// four times as long. The page stays until the context of Run ends.
	Pace   time.Duration
	Screen Screen
	Start  func(ctx context.Context, dir string) (Engine, error) // starts an engine with its data in dir
}

// run is one run of the demo.
type run struct {
	cfg               Config
	dir, home, report string // under review; of this run; of the final report
	began             time.Time
	engine            Engine
	processes         []*os.Process
	first             string         // ticket of the first handoff
	last              protocol.State // latest state of the last handoff
	killed            atomic.Int64   // process id of the killed worker
}

// Run runs the demo and returns the sums of its ledger. It fails if the relay does not get to its
// end or the sums are not sound.
func Run(ctx context.Context, cfg Config) (sums Sums, err error) {
	r := &run{cfg: cfg, began: time.Now()}
	if r.dir, err = filepath.Abs(cfg.Dir); err == nil {
		_, err = os.Stat(r.dir + string(filepath.Separator)) // fails for a file
	}
	if err == nil {
		r.home, err = os.MkdirTemp("", "handoff-demo-")
	}
	if err == nil {
		r.report, err = filepath.Abs(cmp.Or(cfg.Report, r.in(reportName)))
	}
	if err != nil {
		return sums, err
	}
	if sums, err = r.do(ctx); err == nil && !sums.Sound() {
		err = fmt.Errorf("the sums of the ledger are not sound: %+v", sums)
	}
	return sums, errors.Join(err, r.cleanUp(ctx, err))
}

// in is the path of a file in the run's own directory.
func (r *run) in(name string) string { return filepath.Join(r.home, name) }

// do starts engine, supervisor and agents, runs the relay, stops them all, and counts.
func (r *run) do(ctx context.Context) (sums Sums, err error) {
	r.opening()
	if r.engine, err = r.cfg.Start(ctx, r.in(dataName)); err != nil {
		return sums, err
	}
	defer func() { err = errors.Join(err, r.engine.Stop()) }()
	s, err := supervisor.New(r.engine.Broker, r.engine.Supervised, supervisor.Config{})
	if err != nil {
		return sums, err
	}
	limit := runTimeout
	if r.engine.Page != "" {
		limit = pageTimeout
		r.cfg.Screen.note("Watch it on the page, and decide there: %s\n", r.engine.Page)
	}
	tooLong := fmt.Errorf("the demo did not end within %v", limit)
	limited, cancel := context.WithTimeoutCause(ctx, limit, tooLong)
	defer cancel()
	group, playing := errgroup.WithContext(limited)
	playing, stop := context.WithCancel(playing)
	defer stop()
	group.Go(func() error { return s.Run(playing) })
	group.Go(func() error {
		defer stop()
		return r.play(playing, group)
	})
	if err = group.Wait(); context.Cause(limited) == tooLong {
		err = tooLong
	}
	counting, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	changes, ledgerErr := readFrom(counting, r.engine.Broker, 0)
	sums = sum(changes, tickets(r.first, changes))
	if err = errors.Join(err, ledgerErr); err != nil {
		return sums, err
	}
	if err = r.finish(changes, sums); err == nil && r.engine.Page != "" {
		r.cfg.Screen.note("\nThe page stays until Ctrl-C.")
		<-ctx.Done()
	}
	return sums, err
}

// play starts the agents and runs the relay.
func (r *run) play(ctx context.Context, group *errgroup.Group) error {
	b := r.engine.Broker
	if err := b.PutProfile(ctx, protocol.Profile{ID: maintainer, Name: maintainer, Description: "decides what comes first, and has no worker"}); err != nil {
		return err
	}
	if err := r.startAgents(ctx, group); err != nil {
		return err
	}
	r.cfg.Screen.note("%s are ready, two of them the %s's; the %s is registered, and has no worker.\n",
		explain.Count(len(r.processes), "worker"), surveyor, maintainer)
	prepared, err := b.Prepare(ctx, firstPackage(r.home, r.dir))
	if err != nil {
		return err
	}
	r.first = prepared.Ticket
	if _, err := b.Submit(ctx, prepared); err != nil {
		return err
	}
	return r.follow(ctx, group)
}

// opening writes the settings that the demo changes.
func (r *run) opening() {
	ms := func(n int64) time.Duration { return time.Duration(n) * time.Millisecond }
	policy := protocol.DefaultPolicy()
	r.cfg.Screen.note(`A review of %s, handed from agent to agent.
Changed for the show, all else is as always:
  the %s's lease is %v instead of %v, so that its death is noticed soon
  its step may take %d attempts instead of %d, for a busy machine may lose so short a lease
  the %s is given up after %v of silence instead of %v`,
		plain(r.dir), surveyor, ms(showLeaseMS), ms(protocol.LeaseDefaultMS), *steps[0].policy.MaxAttempts, policy.MaxAttempts,
		maintainer, ms(showAckTimeoutMS), ms(policy.AckTimeoutMS))
}

// finish adds to the report the events of the handoffs, and moves it to its final place. A
// relay that broke off has no report.
func (r *run) finish(changes []protocol.Change, sums Sums) error {
	if r.last.TaskID != steps[len(steps)-1].id || r.last.Outcome != protocol.OutcomeSuccess {
		return fmt.Errorf("the relay ended with the %s: %s %s", r.last.TaskID, r.last.Outcome, plain(r.last.Message))
	}
	body, err := os.ReadFile(r.in(reportName))
	if err != nil {
		return err
	}
	d := bytes.NewBuffer(body)
	d.WriteString("\n## What happened on the way\n\n")
	if killed := r.killed.Load(); killed != 0 {
		fmt.Fprintf(d, "- The demo killed process %d, the first worker of the %s, with SIGKILL. The ledger knows only that its lease ran out.\n", killed, surveyor)
	}
	for _, c := range changes {
		if words, unusual := describe(c); unusual {
			fmt.Fprintf(d, "- %.1f s, %s: %s\n", c.At.Sub(r.began).Seconds(), c.Record.State.TaskID, words)
		}
	}
	fmt.Fprintf(d, "\n%s\n", sums.words())
	r.cfg.Screen.note("\n%s\nThe report: %s", sums.words(), r.report)
	return os.WriteFile(r.report, d.Bytes(), 0o644)
}

// cleanUp removes all but the report, and prints the place of the rest if it is kept.
func (r *run) cleanUp(ctx context.Context, failed error) error {
	switch {
	case ctx.Err() != nil && failed != nil: // Ctrl-C removes all
	case r.cfg.Keep && r.last.Ticket != "":
		r.cfg.Screen.note("\nThe ledger is kept. To look at it:\n  handoff dev --data %s\n  handoff history %s", r.in(dataName), r.last.Ticket)
		return nil
	case failed != nil:
		r.cfg.Screen.note("\nThe log of the agents: %s", r.in(agentsLog))
		return nil
	case r.cfg.Report == "":
		return errors.Join(os.RemoveAll(r.in(dataName)), os.Remove(r.in(agentsLog)), os.Remove(r.in(scriptName)))
	}
	return os.RemoveAll(r.home)
}

// follow shows the ledger and reacts to it until the relay has ended.
func (r *run) follow(ctx context.Context, group *errgroup.Group) error {
	for from := uint64(0); ; {
		changes, err := readFrom(ctx, r.engine.Broker, from)
		if err != nil {
			return err
		}
		for _, c := range changes {
			if last := c.Record.State; !last.SubmittedAt.Before(r.last.SubmittedAt) {
				r.last = last
			}
			r.show(c)
			if err := r.react(ctx, group, c); err != nil {
				return err
			}
			from = c.Seq + 1
		}
		if r.last.Closed && (r.last.TaskID == steps[len(steps)-1].id || r.last.Outcome != protocol.OutcomeSuccess) {
			return nil
		}
		if err := pause(ctx); err != nil {
			return err
		}
	}
}

// pause waits until the next poll.
func pause(ctx context.Context) error { return pauseFor(ctx, pollInterval) }

func pauseFor(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
		return nil
	}
}

// decided leaves a decision to a person at the page for a while, and reports whether that person has made it.
func (r *run) decided(ctx context.Context, s protocol.State) (bool, error) {
	if r.engine.Page == "" {
		return false, nil
	}
	wait := personWaits * r.cfg.Pace
	r.cfg.Screen.note("         You may decide it on the page. The demo does in %v.", wait)
	for end := time.Now().Add(wait); time.Now().Before(end); {
		if err := pause(ctx); err != nil {
			return false, err
		}
		if now, err := r.engine.Broker.Status(ctx, s.Ticket); err != nil || now.Phase != s.Phase || now.Agent != s.Agent {
			return true, err
		}
	}
	return false, nil
}

// react kills a worker, answers a question, approves, or plays the person, each after its event.
func (r *run) react(ctx context.Context, group *errgroup.Group, c protocol.Change) error {
	s := c.Record.State
	for _, e := range c.Record.Events {
		switch e := e.(type) {
		case *protocol.Submitted:
			if s.Target.Agent == maintainer {
				r.cfg.Screen.note("         The %s has no worker: a person gets its handoff after %d s of silence.", maintainer, showAckTimeoutMS/1000)
			}
		case *protocol.Progressed:
			if s.TaskID == steps[0].id && r.killed.Load() == 0 {
				if err := pauseFor(ctx, r.pace()/2); err != nil {
					return err
				}
				return r.killWorker(ctx, s)
			}
		case *protocol.Gated:
			if by, err := r.decided(ctx, s); err != nil || by {
				return err
			}
			r.cfg.Screen.note("         %s The demo plays the person: approves.", steps[stepIndex(s.TaskID)].asks)
			_, err := r.engine.Broker.Approve(ctx, s.Ticket, broker.ApprovalAnswer{By: protocol.Human, Agent: e.Agent, Reason: "they are only words"})
			return err
		case *protocol.Conditioned:
			if by, err := r.decided(ctx, s); err != nil || by {
				return err
			}
			_, err := r.engine.Broker.Answer(ctx, s.Ticket, protocol.Answer{By: protocol.Human, Question: s.Conditions.Question, Text: "These are the house rules.",
				Variables: map[string]json.RawMessage{varLongFile: json.RawMessage(fmt.Sprint(longFileLines))}})
			return err
		case *protocol.Escalated:
			if e.To == protocol.Human {
				if by, err := r.decided(ctx, s); err != nil || by {
					return err
				}
				r.cfg.Screen.note("         The demo plays the person: claims it, decides, hands off.")
				group.Go(func() error { return serve(ctx, r.engine.Broker, protocol.Human, slog.New(slog.DiscardHandler)) })
			}
		}
	}
	return nil
}

// pace is how long each step takes.
func (r *run) pace() time.Duration {
	if r.engine.Page == "" {
		return 0
	}
	return r.cfg.Pace
}

// killWorker kills the process that works on a handoff.
func (r *run) killWorker(ctx context.Context, s protocol.State) error {
	holder, err := r.engine.Broker.Holder(ctx, s.Holder)
	if errors.Is(err, broker.ErrNotFound) {
		return nil // on a slow machine its lease has run out already
	}
	i := slices.IndexFunc(r.processes, func(p *os.Process) bool { return p.Pid == holder.PID })
	if err != nil || i < 0 {
		return errors.Join(err, fmt.Errorf("the demo did not start process %d", holder.PID))
	}
	r.killed.Store(int64(holder.PID))
	r.cfg.Screen.note("         The demo kills the %s's process %d with SIGKILL, in the middle of its work. Another one waits.", s.Agent, holder.PID)
	return r.processes[i].Kill()
}
