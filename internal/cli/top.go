package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/agenthandoff/handoff/api"
	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/explain"
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
  late       something was due a minute ago and was not done: handoff doctor
  person     it is with a person: handoff inbox
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

// topOnce prints a picture.
func (a *app) topOnce(v topView) error {
	if !a.text() {
		return a.value(v)
	}
	for _, line := range topLines(v, a.width, 0) {
		a.printf("%s\n", line)
	}
	return nil
}

// topLines are a picture as text: at most so wide and so high, where these are
// not 0. Every line is safe for a terminal.
func topLines(v topView, width, height int) []string {
	head := fmt.Sprintf("%s  %s, %d served  %d open  accepted %s/min  completed %s/min  failed %s/min",
		explain.Instant(v.At), explain.Count(len(v.Agents), "agent"), v.Served, v.Open, rate(v.Rates.Accepted), rate(v.Rates.Completed), rate(v.Rates.Failed))
	lines := []string{head}
	if v.Open < 0 {
		lines[0] = strings.Replace(head, "  -1 open", "", 1)
	}
	if v.Note != "" {
		lines = append(lines, v.Note)
	}
	attention := attentionLines(v)
	agents := agentLines(v)
	if height > 0 {
		// What needs attention gets up to half of what is left.
		left := height - len(lines) - 2 // empty ones
		most := max(left/2, left-len(agents))
		attention = cutLines(attention, most, "more need attention")
		agents = cutLines(agents, left-len(attention), "more agents")
	}
	lines = append(append(lines, ""), agents...)
	if len(attention) > 0 {
		lines = append(append(lines, ""), attention...)
	}
	if height > 0 && len(lines) > height {
		lines = lines[:height]
	}
	for i, line := range lines {
		if width > 0 {
			line = cutColumns(line, width)
		}
		lines[i] = strings.TrimRight(line, " ")
	}
	return lines
}

// cutLines keeps so many lines of a table, and counts the rest in its last one.
func cutLines(lines []string, most int, what string) []string {
	most = max(most, 0)
	if len(lines) <= most {
		return lines
	}
	if most < 3 {
		return lines[:most]
	}
	return append(lines[:most-1:most-1], fmt.Sprintf("… %d %s", len(lines)-most+1, what))
}

func agentLines(v topView) []string {
	if len(v.Agents) == 0 {
		return []string{"no agents yet; start one: handoff work --agent NAME -- CMD"}
	}
	rows := [][]string{{"AGENT", "IS", "WORKERS", "BUSY", "QUEUED", "C/H/N/L", "WAITS", "ACCEPTED", "DONE", "FAILED/MIN"}}
	for _, a := range v.Agents {
		lanes := "-"
		if a.Queued > 0 {
			lanes = fmt.Sprintf("%d/%d/%d/%d", a.Lanes.Critical, a.Lanes.High, a.Lanes.Normal, a.Lanes.Low)
		}
		is := string(a.Availability)
		if a.Availability == api.Polling {
			is = explain.Polls(a.PolledAt, v.At)
		}
		rows = append(rows, []string{a.Agent, is, fmt.Sprint(a.Workers), fmt.Sprintf("%d/%d", a.Busy, a.Slots), fmt.Sprint(a.Queued),
			lanes, explain.Ago(a.Waiting, v.At), rate(a.Accepted), rate(a.Completed), rate(a.Failed)})
	}
	return tableLines(rows)
}

func attentionLines(v topView) []string {
	if len(v.Attention) == 0 {
		return nil
	}
	rows := [][]string{{"WHY", "TICKET", "AGENT", "AGE", "WAITS FOR"}}
	for _, t := range v.Attention {
		rows = append(rows, []string{t.Why, t.Ticket, t.Agent, explain.Ago(t.SubmittedAt, v.At), t.Words})
	}
	return tableLines(rows)
}

func tableLines(rows [][]string) []string {
	var b strings.Builder
	_ = writeTable(&b, rows) // a builder takes everything
	return strings.Split(strings.TrimRight(b.String(), "\n"), "\n")
}

// rate writes a number of things a minute, as short as a table wants it.
func rate(perMinute float64) string {
	if perMinute >= 10 {
		return fmt.Sprintf("%.0f", perMinute)
	}
	return explain.Number(perMinute)
}
