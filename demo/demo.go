// Package demo is the show of "handoff demo": agents that are processes of their own review a
// directory, and what goes wrong in practice goes wrong on the way. A worker is killed, an
// agent refuses, one asks, one stays silent, one attempt fails. At the end the ledger is held
// against the tickets of the relay: nothing is lost, nothing was done twice.
//
// The agents use the public API of package worker, or the exec runner of handoff work. The
// director reacts to the ledger alone, never to the clock: a slow machine shows the same.
package demo

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
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
	// Start starts the engine on a directory.
	Start func(ctx context.Context, dir string) (Engine, error)
}

const (
	// runTimeout bounds a run: with the time that cleaning up takes, it ends within a minute.
	runTimeout = 50 * time.Second
	// pollInterval is how often the ledger is read: fast enough for the eye.
	pollInterval = 100 * time.Millisecond
	// countTimeout bounds the reading of the ledger at the end.
	countTimeout = 10 * time.Second
)

var errTooLong = fmt.Errorf("the demo did not come to its end within %v", runTimeout)

// run is one run of the demo.
type run struct {
	cfg       Config
	dir       string // under review
	home      string // this run's own directory
	began     time.Time
	engine    Engine
	processes []*process
	first     string           // the ticket that begins the relay
	states    []protocol.State // the newest of each handoff, in the order of their submission
	killed    int              // process id of the worker that was killed
	report    string           // where it lies in the end
}

// Run runs the demo. The sums are those of the ledger; an error says that the relay did not
// get to its end, or that the sums are not sound.
func Run(ctx context.Context, cfg Config) (Sums, error) {
	dir, err := filepath.Abs(cfg.Dir)
	if err != nil {
		return Sums{}, err
	}
	if info, err := os.Stat(dir); err != nil {
		return Sums{}, err
	} else if !info.IsDir() {
		return Sums{}, fmt.Errorf("%s is no directory", dir)
	}
	home, err := os.MkdirTemp("", "handoff-demo-")
	if err != nil {
		return Sums{}, err
	}
	if home, err = filepath.Abs(home); err != nil { // the agents are told of it
		return Sums{}, err
	}
	r := &run{cfg: cfg, dir: dir, home: home, began: time.Now()}
	sums, err := r.do(ctx)
	if err == nil && !sums.Sound() {
		err = fmt.Errorf("the ledger says otherwise: %+v", sums)
	}
	return sums, errors.Join(err, r.cleanUp(ctx, err))
}

// data is where the ledger of a run lies.
func (r *run) data() string { return filepath.Join(r.home, "data") }

// do starts everything, runs the relay, stops everything, and counts.
func (r *run) do(ctx context.Context) (sums Sums, err error) {
	r.opening()
	if r.engine, err = r.cfg.Start(ctx, r.data()); err != nil {
		return sums, err
	}
	defer func() { err = errors.Join(err, r.engine.Stop()) }()
	s, err := supervisor.New(r.engine.Broker, r.engine.Supervised, supervisor.Config{})
	if err != nil {
		return sums, err
	}
	limited, cancel := context.WithTimeoutCause(ctx, runTimeout, errTooLong)
	defer cancel()
	group, playing := errgroup.WithContext(limited)
	playing, stop := context.WithCancel(playing)
	defer stop()
	group.Go(func() error { return s.Run(playing) })
	group.Go(func() error {
		defer stop()
		return r.play(playing, group)
	})
	if err = group.Wait(); errors.Is(context.Cause(limited), errTooLong) {
		err = fmt.Errorf("%w; %d handoffs were seen", errTooLong, len(r.states))
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
func (r *run) play(ctx context.Context, group *errgroup.Group) (err error) {
	b := r.engine.Broker
	silent := protocol.Profile{ID: maintainer, Name: maintainer, Description: "decides what comes first, and has no worker"}
	if err := b.PutProfile(ctx, silent); err != nil {
		return err
	}
	if r.processes, err = startAgents(ctx, group, r.engine.URL, r.home); err != nil {
		return err
	}
	if err := ready(ctx, b, r.processes); err != nil {
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
	policy, note := protocol.DefaultPolicy(), r.cfg.Screen.note
	note("A review of %s, handed from agent to agent.", plain(r.dir))
	note("Changed for the show, all else is as always:")
	note("  the %s's lease is %v instead of %v, so that its death is noticed soon", surveyor, ms(showLeaseMS), ms(protocol.LeaseDefaultMS))
	note("  its step may take %d attempts instead of %d, for a busy machine may lose so short a lease", *steps[0].policy.MaxAttempts, policy.MaxAttempts)
	note("  the %s is given up after %v of silence instead of %v", maintainer, ms(showAckTimeoutMS), ms(policy.AckTimeoutMS))
}

// finish completes the report with what the ledger says. A relay that broke off has none.
func (r *run) finish(changes []protocol.Change, sums Sums) error {
	if last := r.states[len(r.states)-1]; last.TaskID != steps[len(steps)-1].id || last.Outcome != protocol.OutcomeSuccess {
		return fmt.Errorf("the relay ended with the %s: %s %s", last.TaskID, last.Outcome, plain(last.Message))
	}
	if err := r.complete(changes, sums); err != nil {
		return fmt.Errorf("report: %w", err)
	}
	r.cfg.Screen.note("\n%s\nThe report: %s", sums.words(), r.report)
	return nil
}

// cleanUp leaves the report alone, and says how to look at what is kept.
func (r *run) cleanUp(ctx context.Context, failed error) error {
	switch {
	case ctx.Err() != nil: // Ctrl-C: nothing is left
		return os.RemoveAll(r.home)
	case r.cfg.Keep && len(r.states) > 0:
		r.cfg.Screen.note("\nThe ledger is kept. To look at it:\n  handoff dev --data %s\n  handoff history %s", r.data(), r.states[len(r.states)-1].Ticket)
		return nil
	case failed != nil:
		r.cfg.Screen.note("\nThe log of the agents: %s", filepath.Join(r.home, agentsLog))
		return nil
	case r.cfg.Report != "":
		return os.RemoveAll(r.home)
	}
	entries, err := os.ReadDir(r.home)
	for _, entry := range entries {
		if entry.Name() != reportName {
			err = errors.Join(err, os.RemoveAll(filepath.Join(r.home, entry.Name())))
		}
	}
	return err
}
