package cli

import (
	"context"
	"errors"
	"time"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/index/ask"
)

// topWatch is what a picture is made of.
type topWatch struct {
	b       *broker.Broker
	answers ask.Answers
	seen    *topRates
	stop    func() // ends what goes on beside, and waits for it

	noIndex time.Time // when none answered
}

// topIndexWithin is how long a picture waits for one answer of an index.
const topIndexWithin = 2 * time.Second

// noIndexFor is how long no index is asked after none has answered: that takes
// topIndexWithin each time.
const noIndexFor = 15 * time.Second

// startTop begins to follow the ledger, a minute back.
func startTop(ctx context.Context, a *app, b *broker.Broker) (*topWatch, error) {
	ledger, err := b.LedgerInfo(ctx)
	if err != nil {
		return nil, err
	}
	if _, err := b.Directory(ctx); err != nil { // it begins its watch
		return nil, err
	}
	from, now := ledger.Last+1, time.Now()
	first, err := b.Since(ctx, now.Add(-rateWindow))
	switch {
	case err == nil:
		from = first.Seq
	case !errors.Is(err, broker.ErrNotFound):
		return nil, err
	}
	covers := now.Add(-rateWindow)
	if ledger.Last > ratesBack && from < ledger.Last-ratesBack {
		from, covers = ledger.Last-ratesBack, time.Time{} // the first entry says from when on
	}
	past := ledger.Last
	if from > past { // nothing happened for a minute
		past = 0
	}
	w := &topWatch{b: b, answers: ask.Client{Asker: asker{engine: b, timeout: topIndexWithin}}, seen: newTopRates(covers, past)}
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = followLedger(ctx, b, ledger, from, func(string) {}, w.seen.take) // it ends with ctx; a cut shows in the picture itself
	}()
	w.stop = func() { cancel(); <-ended }
	return w, w.seen.caughtUp(ctx)
}

// viewWithin is how long one picture may take.
const viewWithin = 5 * time.Second

func (w *topWatch) view(ctx context.Context) (topView, error) {
	ctx, cancel := context.WithTimeout(ctx, viewWithin)
	defer cancel()
	directory, err := w.b.Directory(ctx)
	if err != nil {
		return topView{}, err
	}
	if directory.ConnectedSince.IsZero() { // no need to wait for an answer
		return topView{}, broker.ErrUnreachable
	}
	queues, err := w.b.Queues(ctx)
	if err != nil {
		return topView{}, err
	}
	now := time.Now().UTC()
	v := topView{At: now, Open: -1, Attention: []attention{}}
	all, byAgent := w.seen.now(now)
	v.Rates, v.Agents = all, topAgents(directory, queues, byAgent)
	for _, a := range v.Agents {
		if a.Workers > 0 {
			v.Served++
		}
	}
	candidates, err := w.candidates(ctx, &v)
	switch {
	case errors.Is(err, broker.ErrNoAnswer):
		if time.Since(w.noIndex) >= noIndexFor {
			w.noIndex = time.Now()
		}
		v.Note = "no index answers, so that handoffs which need attention are not shown; start one: handoff index"
		candidates = nil
	case err != nil:
		return topView{}, err
	}
	v.Attention, err = w.attention(ctx, append(candidates, w.seen.stuckTickets()...), directory, now)
	return v, err
}
