// Package demo is the show of "handoff demo": agents that are processes of their own review a
// directory, and what goes wrong in practice goes wrong on the way. A worker is killed, an
// agent refuses, one asks, one stays silent, one attempt fails. At the end the ledger is held
// against the tickets of the relay: nothing is lost, nothing was done twice.
//
// The agents use the public API of package worker, or the exec runner of handoff work. The
// director reacts to the ledger alone, never to the clock: a slow machine shows the same.
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
	"github.com/agenthandoff/handoff/explain"
	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/supervisor"
)

// TetherCommand is the hidden command that runs the rest of its command line
// for as long as its stdin is open. AgentCommand is the one that runs Agent.
const (
	TetherCommand = "demo-tether"
	AgentCommand  = "demo-agent"
)

// Engine is a node of our own in this process.
type Engine struct {
	Broker     *broker.Broker
	Supervised supervisor.Engine // what Broker works with
	URL        string
	Stop       func() error
}

// Config configures a run.
type Config struct {
	Dir    string // to be reviewed
	Report string // where the report goes; "" is the run's own directory
	Keep   bool   // leave the ledger behind
	Screen Screen
	Start  func(ctx context.Context, dir string) (Engine, error) // on a directory
}

// Files of a run's own directory.
const (
	dataName   = "data"              // the ledger's
	reportName = "handoff-review.md" // where the reporter writes
	scriptName = "reviewer.sh"
	agentsLog  = "agents.log" // where the agents log
)

const (
	runTimeout   = 50 * time.Second       // of a run: with the cleaning up it ends within a minute
	pollInterval = 100 * time.Millisecond // from one reading of the ledger to the next: fast enough for the eye
	countTimeout = 10 * time.Second       // of the reading of the ledger at the end
)

// run is one run of the demo.
type run struct {
	cfg               Config
	dir, home, report string // under review; this run's own; where the report lies in the end
	began             time.Time
	engine            Engine
	processes         []*os.Process
	first             string         // the ticket that begins the relay
	last              protocol.State // the newest of the handoff that was submitted last
	killed            atomic.Int64   // process id of the worker that was killed
}

// Run runs the demo. The sums are those of the ledger; an error says that the relay did not
// get to its end, or that the sums are not sound.
func Run(ctx context.Context, cfg Config) (sums Sums, err error) {
	r := &run{cfg: cfg, began: time.Now()}
	if r.dir, err = filepath.Abs(cfg.Dir); err == nil {
		_, err = os.Stat(r.dir + string(filepath.Separator)) // which a file is not
	}
	if err != nil {
		return sums, err
	}
	if r.home, err = os.MkdirTemp("", "handoff-demo-"); err == nil {
		r.home, err = filepath.Abs(r.home) // the agents are told of it
	}
	if err == nil {
		r.report, err = filepath.Abs(cmp.Or(cfg.Report, r.in(reportName)))
	}
	if err != nil {
		return sums, err
	}
	if sums, err = r.do(ctx); err == nil && !sums.Sound() {
		err = fmt.Errorf("the ledger says otherwise: %+v", sums)
	}
	return sums, errors.Join(err, r.cleanUp(ctx, err))
}

// in is a file of a run's own directory.
func (r *run) in(name string) string { return filepath.Join(r.home, name) }

// do starts everything, runs the relay, stops everything, and counts.
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
	tooLong := fmt.Errorf("the demo did not come to its end within %v", runTimeout)
	limited, cancel := context.WithTimeoutCause(ctx, runTimeout, tooLong)
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
	counting, cancel := context.WithTimeout(ctx, countTimeout)
	defer cancel()
	changes, ledgerErr := readFrom(counting, r.engine.Broker, 0)
	sums = sum(changes, tickets(r.first, changes))
	if err = errors.Join(err, ledgerErr); err != nil {
		return sums, err
	}
	return sums, r.finish(changes, sums)
}

// play starts the agents and runs the relay.
func (r *run) play(ctx context.Context, group *errgroup.Group) error {
	b := r.engine.Broker
	silent := protocol.Profile{ID: maintainer, Name: maintainer, Description: "decides what comes first, and has no worker"}
	if err := b.PutProfile(ctx, silent); err != nil {
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
	return r.direct(ctx, group)
}

// opening says what will be seen, and which waits are shortened for it.
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

// finish adds to the report what happened after it was written, and puts it where it was
// asked for. A relay that broke off has none.
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
			fmt.Fprintf(d, "- %s, %s: %s\n", seconds(c.At.Sub(r.began)), c.Record.State.TaskID, words)
		}
	}
	fmt.Fprintf(d, "\n%s\n", sums.words())
	r.cfg.Screen.note("\n%s\nThe report: %s", sums.words(), r.report)
	return os.WriteFile(r.report, d.Bytes(), 0o644)
}

// cleanUp leaves the report alone, and says how to look at what is kept.
func (r *run) cleanUp(ctx context.Context, failed error) error {
	switch {
	case ctx.Err() != nil: // Ctrl-C: nothing is left
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

// longFileLines is the house rule that the demo answers with.
const longFileLines = 500

// direct follows the ledger until the relay has ended. It kills, answers and plays the
// person, each when the ledger says that it is time.
func (r *run) direct(ctx context.Context, group *errgroup.Group) error {
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
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(pollInterval):
		}
	}
}

// react does what the show has to do about an append.
func (r *run) react(ctx context.Context, group *errgroup.Group, c protocol.Change) error {
	s := c.Record.State
	for _, e := range c.Record.Events {
		switch e := e.(type) {
		case *protocol.Progressed:
			if s.TaskID == steps[0].id && r.killed.Load() == 0 {
				return r.killWorker(ctx, s)
			}
		case *protocol.Conditioned:
			_, err := r.engine.Broker.Answer(ctx, s.Ticket, protocol.Answer{By: requester, Text: "These are the house rules.",
				Variables: map[string]json.RawMessage{varLongFile: json.RawMessage(fmt.Sprint(longFileLines))}})
			return err
		case *protocol.Escalated:
			if e.To == protocol.Human {
				r.cfg.Screen.aside("The demo plays the person: claims it, decides, hands off.")
				group.Go(func() error { return serve(ctx, r.engine.Broker, protocol.Human, slog.New(slog.DiscardHandler)) })
			}
		}
	}
	return nil
}

// killWorker ends the process that works on a handoff the hard way.
func (r *run) killWorker(ctx context.Context, s protocol.State) error {
	holder, err := r.engine.Broker.Holder(ctx, s.Holder)
	if errors.Is(err, broker.ErrNotFound) {
		return nil // gone by itself: a machine this slow needs no killing
	}
	i := slices.IndexFunc(r.processes, func(p *os.Process) bool { return p.Pid == holder.PID })
	if err != nil || i < 0 {
		return errors.Join(err, fmt.Errorf("process %d is none of the demo's", holder.PID))
	}
	r.killed.Store(int64(holder.PID))
	r.cfg.Screen.aside("The demo kills the %s's process %d with SIGKILL, in the middle of its work. Another one waits.", s.Agent, holder.PID)
	return r.processes[i].Kill()
}
