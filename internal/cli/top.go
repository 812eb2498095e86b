package cli

import (
	"context"
	"errors"
	"time"

	"github.com/spf13/cobra"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/explain"
)

const (
	// topEvery is how often the picture is made anew without --interval.
	topEvery = 2 * time.Second
	// topEveryMin and topEveryMax bound that.
	topEveryMin = 200 * time.Millisecond
	topEveryMax = time.Hour
)

func newTop(a *app) *cobra.Command {
	var (
		every time.Duration
		once  bool
	)
	cmd := &cobra.Command{
		Use:   "top",
		Short: "Watch agents, their queues, and what needs attention",
		Long: `Top shows all agents and draws them again every few seconds: whether they are there, how
many workers serve them and how many of their slots are busy, what stands in their queues
by priority (critical/high/normal/low), how long the first that no worker has taken waits, and
how many handoffs they accepted, completed and failed a minute, over the last minute (up
to the last 50,000 entries of the ledger). A refusal, a time-out and a worker that went are
failures, too.

Beneath are open handoffs that need attention:

  stuck      a supervisor could not go on: handoff history TICKET
  deep       it follows from 25 hand-offs or more: handoff tree TICKET
  late       something was due a minute ago and was not done: handoff doctor
  person     it is with a person: handoff inbox
  approval   it waits until it is approved: handoff approve TICKET
  budget     it waits until its limits are raised: handoff budget raise TICKET
  question   an agent waits for an answer: handoff answer TICKET
  undecided  it failed, was refused or timed out, and nothing has been decided yet
  oldest     open for longest

They come from an index (handoff index; handoff dev has one); without one they are left out.

On a terminal it is drawn in place, and fits it; q or Ctrl-C ends it. Elsewhere, and with
-o json or jsonl, one picture follows the other. --once makes one and ends.

Exit codes: 0 ended by q, by Ctrl-C on a terminal, or by --once; 130 ended by Ctrl-C
elsewhere; 6 no engine to begin with.`,
		Example: `  handoff top
  handoff top --interval 10s
  handoff top --once -o json | jq -r '.agents[] | select(.queued > 0) | .agent'`,
		Args: takes(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if every < topEveryMin || every > topEveryMax {
				return usagef("--interval %s: draw it every %s to %s", explain.Duration(every), explain.Duration(topEveryMin), explain.Duration(topEveryMax))
			}
			return a.top(cmd.Context(), every, once)
		},
	}
	durationVar(cmd.Flags(), &every, "interval", topEvery, "time between two pictures")
	cmd.Flags().BoolVar(&once, "once", false, "make one picture, and end")
	return cmd
}

func (a *app) top(ctx context.Context, every time.Duration, once bool) (err error) {
	ctx, end := context.WithCancel(ctx)
	defer end()
	b, done, err := a.connect(ctx)
	if err != nil {
		return err
	}
	defer done()
	watch, err := startTop(ctx, a, b)
	if err != nil {
		return err
	}
	defer watch.stop()
	if once {
		return a.ask(ctx, func(ctx context.Context) error { return a.onePicture(ctx, watch) })
	}
	screen := a.openScreen()
	if screen == nil {
		return topLoop(ctx, every, watch.view, a.topOnce)
	}
	defer func() { err = errors.Join(err, screen.close()) }()
	go func() { // it ends with ctx; a picture under way is let go of
		select {
		case <-screen.ends:
			end()
		case <-ctx.Done():
		}
	}()
	if err := topLoop(ctx, every, watch.view, screen.draw); ctx.Err() == nil {
		return err
	}
	return nil // it was told to end
}

// onePicture makes a picture, also where the engine does not answer at first.
func (a *app) onePicture(ctx context.Context, watch *topWatch) error {
	for {
		view, err := watch.view(ctx)
		if err == nil {
			return a.topOnce(view)
		}
		if !errors.Is(err, broker.ErrUnreachable) && !errors.Is(err, context.DeadlineExceeded) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(topEveryMin):
		}
	}
}

// topLoop shows one picture after the other until ctx ends. An engine that does not
// answer is part of the picture.
func topLoop(ctx context.Context, every time.Duration, view func(context.Context) (topView, error), show func(topView) error) error {
	tick := time.NewTicker(every)
	defer tick.Stop()
	var last topView
	for {
		next, err := view(ctx)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, broker.ErrUnreachable), errors.Is(err, context.DeadlineExceeded):
			last.Note = "cut off from the engine; what is shown is of " + explain.Instant(last.At)
		case err != nil:
			return err
		default:
			last = next
		}
		if err := show(last); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
		case <-tick.C:
		}
	}
}
