package cli

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cenkalti/backoff/v4"

	"github.com/agenthandoff/handoff/broker"
)

// tailed is what followLedger asks of an engine.
type tailed interface {
	LedgerInfo(ctx context.Context) (broker.LedgerInfo, error)
	Tail(ctx context.Context, from uint64, fn func(broker.Entry) error) error
}

// followLedger gives fn every entry of a ledger from sequence next on, in order
// and each once, until ctx ends or fn returns an error, which it returns. Where the
// engine does not answer it waits for it for as long as ctx lives. say is told in
// words that it was cut off, that it goes on, and what is missing if anything is.
func followLedger(ctx context.Context, b tailed, ledger broker.LedgerInfo, next uint64, say func(string), fn func(broker.Entry) error) error {
	pauses := backoff.NewExponentialBackOff(backoff.WithInitialInterval(20*time.Millisecond),
		backoff.WithMaxInterval(2*time.Second), backoff.WithMaxElapsedTime(0))
	for {
		var mine error // of fn
		begun := time.Now()
		err := b.Tail(ctx, next, func(e broker.Entry) error {
			if mine = fn(e); mine == nil {
				next = e.Seq + 1
			}
			return mine
		})
		switch {
		case mine != nil:
			return mine
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil && !errors.Is(err, broker.ErrUnreachable) && !errors.Is(err, broker.ErrLedgerChanged):
			return err
		}
		if time.Since(begun) > pauses.MaxInterval {
			pauses.Reset()
		}
		if next, ledger, err = resumeLedger(ctx, b, ledger, next, pauses, say); err != nil {
			return err
		}
	}
}

// resumeTry is how long the engine may be silent before the reader is told.
const resumeTry = time.Second

// resumeLedger waits until the ledger can be asked again, and says where to go on.
func resumeLedger(ctx context.Context, b tailed, was broker.LedgerInfo, next uint64, pauses backoff.BackOff, say func(string)) (uint64, broker.LedgerInfo, error) {
	for told := false; ; {
		select {
		case <-ctx.Done():
			return 0, was, ctx.Err()
		case <-time.After(pauses.NextBackOff()):
		}
		try, cancel := context.WithTimeout(ctx, resumeTry)
		is, err := b.LedgerInfo(try)
		cancel()
		switch {
		case err == nil:
			from, words := goOn(was, is, next)
			if told && words == "" {
				words = fmt.Sprintf("the engine answers again; going on with entry %d, nothing is left out", next)
			}
			if words != "" {
				say(words)
			}
			return from, is, nil
		case ctx.Err() != nil:
			return 0, was, ctx.Err()
		case !errors.Is(err, broker.ErrUnreachable) && !errors.Is(err, context.DeadlineExceeded):
			return 0, was, err
		case !told:
			told = true
			say(fmt.Sprintf("cut off from the engine behind entry %d; waiting for it", next-1))
		}
	}
}

// goOn says with which entry a reader that has read up to next goes on, and in words
// what is not there any more; empty where nothing is missing.
func goOn(was, is broker.LedgerInfo, next uint64) (from uint64, words string) {
	switch {
	case !is.Created.Equal(was.Created):
		return is.First, "the ledger is another one now; going on with its first entry"
	case next < is.First:
		return is.First, fmt.Sprintf("the ledger has dropped entries %d to %d for their age; going on with %d", next, is.First-1, is.First)
	case next > is.Last+1:
		return is.Last + 1, fmt.Sprintf("the ledger has lost entries %d to %d, which were shown here; going on with what takes their place", is.Last+1, next-1)
	}
	return next, ""
}
