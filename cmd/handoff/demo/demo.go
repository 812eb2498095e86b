// Package demo is what "handoff demo" does: it has a directory reviewed by
// agents that are processes of their own, and lets go wrong on the way what
// goes wrong in practice. A worker is killed, an agent refuses, one asks, one
// stays silent, one attempt fails. At the end the ledger is held against what
// the agents were told: nothing is lost, nothing was done twice.
//
// The agents use the public API of package worker, or the exec runner of
// "handoff work"; nothing here reaches into the engine. The director reacts to
// the ledger alone, never to the clock, so that a slow machine shows the same.
package demo

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/agenthandoff/handoff/broker"
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
	Broker *broker.Broker
	URL    string
	Stop   func() error
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
	// runFor bounds a run: with the time that cleaning up takes, it ends within a minute.
	runFor = 50 * time.Second
	// pollEvery is how often the ledger is read: fast enough for the eye.
	pollEvery = 100 * time.Millisecond
	// accountWithin bounds the reading of the ledger at the end.
	accountWithin = 10 * time.Second
)

var errTooLong = fmt.Errorf("the demo did not come to its end within %v", runFor)

// Run runs the demo. The sums are those of the ledger; an error says that the
// relay did not get to its end, or that the sums are not sound.
func Run(ctx context.Context, cfg Config) (Sums, error) {
	dir, err := reviewable(cfg.Dir)
	if err != nil {
		return Sums{}, err
	}
	home, err := os.MkdirTemp("", "handoff-demo-")
	if err != nil {
		return Sums{}, err
	}
	if home, err = filepath.Abs(home); err != nil { // the agents are told of it
		return Sums{}, err
	}
	r := &run{cfg: cfg, dir: dir, home: home, view: &view{Screen: cfg.Screen, began: time.Now()}}
	sums, err := r.do(ctx)
	if err == nil && !sums.Sound() {
		err = fmt.Errorf("the ledger says otherwise: %+v", sums)
	}
	return sums, errors.Join(err, r.leave(ctx, err))
}

func reviewable(dir string) (string, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	info, err := os.Stat(dir)
	switch {
	case err != nil:
		return "", err
	case !info.IsDir():
		return "", fmt.Errorf("%s is no directory", dir)
	}
	return dir, nil
}

// run is one run of the demo.
type run struct {
	cfg    Config
	dir    string // under review
	home   string // this run's own directory
	view   *view
	engine Engine
	crew   *crew
	relay  relay
	killed int    // process id of the worker that was killed
	report string // where it lies in the end
}

// data is where the ledger of a run lies.
func (r *run) data() string { return filepath.Join(r.home, "data") }

// do starts everything, runs the relay, and stops everything in the opposite order.
func (r *run) do(ctx context.Context) (sums Sums, err error) {
	r.opening()
	if r.engine, err = r.cfg.Start(ctx, r.data()); err != nil {
		return sums, err
	}
	defer func() { err = errors.Join(err, r.engine.Stop()) }()
	limited, cancel := context.WithTimeoutCause(ctx, runFor, errTooLong)
	defer cancel()
	group, playing := errgroup.WithContext(limited)
	playing, stop := context.WithCancel(playing)
	s, err := supervisor.New(r.engine.Broker, supervisor.Config{})
	if err != nil {
		stop()
		return sums, err
	}
	group.Go(func() error { return s.Run(playing) })
	group.Go(func() error {
		defer stop()
		return r.play(playing)
	})
	err = group.Wait()
	sums, changes, ledgerErr := r.count(ctx)
	if err = errors.Join(err, ledgerErr); err != nil {
		return sums, r.explain(limited, err)
	}
	return sums, r.finish(changes, sums)
}

// play hires the agents, runs the relay and dismisses them.
func (r *run) play(ctx context.Context) (err error) {
	b := r.engine.Broker
	r.relay = relay{b: b, run: r.home}
	silent := protocol.Profile{ID: maintainer, Name: maintainer, Description: "decides what comes first, and is served by nobody"}
	if err := b.PutProfile(ctx, silent); err != nil {
		return err
	}
	if r.crew, err = newCrew(r.engine.URL, r.home); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.crew.dismissAll()) }()
	if err := r.crew.hire(); err != nil {
		return err
	}
	if err := r.crew.ready(ctx, b); err != nil {
		return err
	}
	r.view.note("%s are ready, two of them the %s's; the %s is registered, and nobody serves it.\n", many(len(r.crew.members), "process", "processes"), surveyor, maintainer)
	if _, err := r.relay.submit(ctx, first(r.home, filepath.Base(r.home), r.dir)); err != nil {
		return err
	}
	return r.direct(ctx)
}

// opening says what will be seen, and which waits are shortened for it.
func (r *run) opening() {
	lease, ack := time.Duration(showLeaseMS)*time.Millisecond, time.Duration(showAckTimeoutMS)*time.Millisecond
	policy := protocol.DefaultPolicy()
	r.view.note("A review of %s, handed from agent to agent.", printable(r.dir))
	r.view.note("Changed for the show, all else is as always:")
	r.view.note("  the %s's lease is %v instead of %v, so that its death is noticed soon", surveyor, lease, time.Duration(protocol.LeaseDefaultMS)*time.Millisecond)
	r.view.note("  its step may take %d attempts instead of %d, for a busy machine may lose so short a lease", *steps[0].policy.MaxAttempts, policy.MaxAttempts)
	r.view.note("  the %s is given up after %v of silence instead of %v", maintainer, ack, time.Duration(policy.AckTimeoutMS)*time.Millisecond)
}

// explain says what was still open when a run had to end.
func (r *run) explain(limited context.Context, err error) error {
	if !errors.Is(context.Cause(limited), errTooLong) {
		return err
	}
	var open []string
	for _, row := range r.view.rows {
		if s := row.state; !s.Closed {
			open = append(open, fmt.Sprintf("%s (%s, %s at %s)", short(s.Ticket), s.TaskID, s.Phase, s.Agent))
		}
	}
	if len(open) == 0 {
		return errTooLong
	}
	return fmt.Errorf("%w; still open: %s", errTooLong, strings.Join(open, ", "))
}

// leave cleans up, and says what is left and how to look at it.
func (r *run) leave(ctx context.Context, failed error) error {
	switch {
	case ctx.Err() != nil: // Ctrl-C: nothing is left
		return os.RemoveAll(r.home)
	case r.cfg.Keep:
		r.view.note("\nThe ledger is kept. To look at it:\n  handoff dev --data %s\n  handoff history %s", r.data(), r.lastTicket())
		return nil
	case failed != nil:
		r.view.note("\nWhat the agents logged: %s", filepath.Join(r.home, agentsLog))
		return nil
	}
	entries, err := os.ReadDir(r.home)
	for _, entry := range entries {
		if entry.Name() != reportName {
			err = errors.Join(err, os.RemoveAll(filepath.Join(r.home, entry.Name())))
		}
	}
	if r.cfg.Report != "" {
		err = errors.Join(err, os.RemoveAll(r.home))
	}
	return err
}

func (r *run) lastTicket() string {
	if len(r.view.rows) == 0 {
		return "TICKET"
	}
	return r.view.rows[len(r.view.rows)-1].state.Ticket
}
