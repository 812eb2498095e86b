package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/protocol"
)

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
			r.note(c.Record.State)
			r.show(c)
			if err := r.react(ctx, group, c); err != nil {
				return err
			}
			from = c.Seq + 1
		}
		if slices.ContainsFunc(r.states, endsRelay) {
			return nil
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(pollInterval):
		}
	}
}

// note keeps the newest state of each handoff.
func (r *run) note(s protocol.State) {
	i := slices.IndexFunc(r.states, func(other protocol.State) bool { return other.Ticket == s.Ticket })
	if i < 0 {
		r.states = append(r.states, s)
		return
	}
	r.states[i] = s
}

// endsRelay tells whether a handoff is the last step and has closed, or has closed without
// success.
func endsRelay(s protocol.State) bool {
	return s.Closed && (s.TaskID == steps[len(steps)-1].id || s.Outcome != protocol.OutcomeSuccess)
}

// react does what the show has to do about an append.
func (r *run) react(ctx context.Context, group *errgroup.Group, c protocol.Change) error {
	s := c.Record.State
	for _, e := range c.Record.Events {
		switch e := e.(type) {
		case *protocol.Progressed:
			if s.TaskID == steps[0].id && r.killed == 0 {
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
	if err != nil {
		return err
	}
	i := slices.IndexFunc(r.processes, func(p *process) bool { return p.cmd.Process.Pid == holder.PID })
	if i < 0 {
		return fmt.Errorf("process %d is none of the demo's", holder.PID)
	}
	r.processes[i].killed.Store(true)
	if err := r.processes[i].cmd.Process.Kill(); err != nil {
		return err
	}
	r.killed = holder.PID
	r.cfg.Screen.aside("The demo kills the %s's process %d with SIGKILL, in the middle of its work. Another one waits.", s.Agent, holder.PID)
	return nil
}
