package cli

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/agenthandoff/handoff/api"
	"github.com/agenthandoff/handoff/internal/explain"
	"github.com/agenthandoff/handoff/internal/index/ask"
)

const (
	// watchEvery is how often a watch asks whether something has changed.
	watchEvery = 500 * time.Millisecond
	// watchRows is how many handoffs are redrawn on a terminal where no limit
	// is given: what fits on most.
	watchRows = 20
	// clearScreen moves to the top left corner and clears the terminal.
	clearScreen = styled("\x1b[H\x1b[2J")
)

// watch prints a list, and what changes of it, until ctx ends.
func (a *app) watch(ctx context.Context, r api.Reader, q ask.ListQuery, flags listFlags) error {
	w := &watcher{a: a, r: r, q: q, flags: flags, redraw: a.text() && a.terminal}
	if w.q.Limit = min(flags.limit, ask.PageMax); w.redraw && flags.limit == ask.PageDefault {
		w.q.Limit = watchRows
	}
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	for {
		stand, err := r.Position(ctx, flags.fresh.ask())
		if err != nil {
			return err
		}
		switch {
		case flags.fresh.check(stand) != nil:
			w.lag(stand)
		case !w.begun || stand.Seq != w.seq:
			if err := w.show(ctx); err != nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}

type watcher struct {
	a     *app
	r     api.Reader
	q     ask.ListQuery
	flags listFlags

	redraw  bool
	begun   bool
	lagging bool
	seq     uint64 // what was shown rests on
}

// lag says once that nothing is shown, and why.
func (w *watcher) lag(s ask.Position) {
	if !w.lagging {
		w.a.notef("handoff: waiting: %s\n", behind(s))
	}
	w.lagging = true
}

// show draws the list, or prints what has changed since it last did.
func (w *watcher) show(ctx context.Context) error {
	if w.redraw || !w.begun {
		page, err := w.r.List(ctx, w.q)
		if err != nil {
			return err
		}
		if w.flags.fresh.check(page.Position) != nil {
			w.lag(page.Position)
			return nil
		}
		w.begun, w.lagging, w.seq = true, false, page.Seq
		if !w.redraw {
			return w.lines(page.Handoffs)
		}
		w.a.printf("%s%s  entry %d\n", clearScreen, explain.Instant(time.Now()), page.Seq)
		return w.a.rows(w.flags.table, page.Handoffs)
	}
	return w.changes(ctx)
}

// changes prints what has changed, the last change at the end. What changed
// last is listed first: a page without news is the last one to ask for.
func (w *watcher) changes(ctx context.Context) error {
	q := w.q
	q.Sort, q.Limit = ask.SortUpdated, ask.PageMax
	var news []ask.Row
	seq := uint64(0)
	for {
		page, err := w.r.List(ctx, q)
		if err != nil {
			return err
		}
		if w.flags.fresh.check(page.Position) != nil {
			w.lag(page.Position)
			return nil
		}
		if seq == 0 {
			seq = page.Seq
		}
		before := len(news)
		for _, r := range page.Handoffs {
			if r.Seq > w.seq {
				news = append(news, r)
			}
		}
		if q.Cursor = page.Cursor; q.Cursor == "" || len(news) == before {
			break
		}
	}
	w.lagging, w.seq = false, seq
	slices.Reverse(news)
	return w.lines(news)
}

// lines prints handoffs as they come: there is no table to fit them into.
func (w *watcher) lines(handoffs []ask.Row) error {
	if !w.a.text() {
		return list(w.a, handoffs)
	}
	for _, r := range handoffs {
		w.a.printf("%s  %s  %s  %s -> %s  %s\n", explain.Instant(r.UpdatedAt), r.Ticket, rowPhase(r), r.Source, cmp.Or(r.Agent, r.Target), rowTask(r))
	}
	return nil
}
