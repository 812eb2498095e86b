package cli

import (
	"context"
	"errors"
	"time"

	"github.com/agenthandoff/handoff/api"
	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/index/ask"
)

// topWatch is what a picture is made of.
type topWatch struct {
	api       *api.Session
	connected func() bool // to the engine
	seen      *topRates
	stop      func() // ends what goes on beside, and waits for it
}

// topAsker asks no index for a while after none has answered: that takes
// topIndexWithin each time.
type topAsker struct {
	asker
	silentSince time.Time
}

func (t *topAsker) Ask(ctx context.Context, verb string, question []byte) ([]byte, error) {
	if time.Since(t.silentSince) < noIndexFor {
		return nil, broker.ErrNoAnswer
	}
	answer, err := t.asker.Ask(ctx, verb, question)
	if errors.Is(err, broker.ErrNoAnswer) {
		t.silentSince = time.Now()
	}
	return answer, err
}

// topIndexWithin is how long a picture waits for one answer of an index.
const topIndexWithin = 2 * time.Second

// noIndexFor is how long no index is asked after none has answered.
const noIndexFor = 15 * time.Second

// startTop begins to follow the ledger, a minute back.
func startTop(ctx context.Context, a *app, b *broker.Broker) (*topWatch, error) {
	ledger, err := b.LedgerInfo(ctx)
	if err != nil {
		return nil, err
	}
	index := ask.Client{Asker: &topAsker{asker: asker{engine: b, timeout: topIndexWithin}}}
	w := &topWatch{api: api.New(b, api.Config{Index: index}).As(api.Local(a.me())), connected: a.engine.Conn().IsConnected}
	if _, err := w.api.Agents(ctx); err != nil { // its watch begins
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
	w.seen = newTopRates(covers, past)
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
	if !w.connected() { // no need to wait for an answer
		return topView{}, broker.ErrUnreachable
	}
	agents, err := w.api.Agents(ctx)
	if err != nil {
		return topView{}, err
	}
	queues, err := w.api.Queues(ctx)
	if err != nil {
		return topView{}, err
	}
	now := time.Now().UTC()
	v := topView{At: now}
	all, byAgent := w.seen.now(now)
	v.Rates, v.Agents = all, topAgents(agents, queues, byAgent)
	for _, a := range v.Agents {
		if a.Workers > 0 {
			v.Served++
		}
	}
	needs, err := w.api.Attention(ctx, w.seen.noticedTickets())
	switch {
	case errors.Is(err, broker.ErrNoAnswer):
		v.Note = "no index answers, so that handoffs which need attention are not shown; start one: handoff index"
	case err != nil:
		return topView{}, err
	case !needs.Complete:
		v.Note = "the index is catching up: more handoffs may need attention than are shown"
	}
	v.Open, v.Attention = needs.Open, topAttention(needs.Handoffs)
	return v, nil
}
