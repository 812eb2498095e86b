package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/protocol"
)

// direct follows the ledger until every handoff is closed. It kills, answers
// and plays the person, each when the ledger says that it is time.
func (r *run) direct(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	finished := errors.New("finished")
	group.Go(func() error {
		for from := uint64(0); ; {
			changes, err := readFrom(ctx, r.engine.Broker, from)
			if err != nil {
				return err
			}
			for _, c := range changes {
				r.view.change(c)
				if err := r.react(ctx, group, c); err != nil {
					return err
				}
				from = c.Seq + 1
			}
			r.view.refresh()
			if r.allClosed() {
				return finished // ends what else the group does, too
			}
			select {
			case <-ctx.Done():
				return context.Cause(ctx)
			case err := <-r.crew.gone:
				return err
			case <-time.After(pollEvery):
			}
		}
	})
	if err := group.Wait(); !errors.Is(err, finished) {
		return err
	}
	return nil
}

// allClosed is the end of the relay: each agent hands on before it completes, so
// that there is no moment in between at which nothing is open.
func (r *run) allClosed() bool {
	for _, row := range r.view.rows {
		if !row.state.Closed {
			return false
		}
	}
	return len(r.view.rows) > 0
}

// react does what the show has to do about an append.
func (r *run) react(ctx context.Context, group *errgroup.Group, c protocol.Change) error {
	state := c.Record.State
	for _, e := range c.Record.Events {
		switch e := e.(type) {
		case *protocol.Progressed:
			if state.TaskID == "survey" && r.killed == 0 {
				return r.killWorker(ctx, state)
			}
		case *protocol.Conditioned:
			return r.answer(ctx, state.Ticket)
		case *protocol.Escalated:
			if e.To == protocol.Human {
				r.view.aside("The demo plays the person: claims it, decides, hands on.")
				group.Go(func() error { return playPerson(ctx, r.relay) })
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
	if err := r.crew.kill(holder.PID); err != nil {
		return err
	}
	r.killed = holder.PID
	r.view.aside("The demo kills the %s's process %d with SIGKILL, in the middle of its work. Another one waits.", s.Agent, holder.PID)
	return nil
}

// answer gives the inspector the house rules.
func (r *run) answer(ctx context.Context, ticket string) error {
	_, err := r.engine.Broker.Answer(ctx, ticket, protocol.Answer{By: requester,
		Text: "These are the house rules.",
		Variables: map[string]json.RawMessage{
			asked[0]: json.RawMessage(strconv.Itoa(houseRules.FileLines)),
			asked[1]: json.RawMessage(strconv.Itoa(houseRules.FunctionLines)),
		}})
	if err != nil {
		return fmt.Errorf("answer %s: %w", ticket, err)
	}
	return nil
}
