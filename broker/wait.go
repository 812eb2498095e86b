package broker

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"
)

const (
	// waitPause is the time between two tries at an engine that is not set up yet.
	waitPause = time.Second
	// waitSilent is when the first word of a wait is said, and waitEvery how often another.
	waitSilent = 2 * time.Second
	waitEvery  = time.Minute
)

// WaitForEngine calls open until it succeeds, ctx ends, or open fails for a reason that
// waiting does not change. It waits while no server answers, and while the server is
// there without the streams. It says so in the log after 2 s, and then every minute.
// where names what it waits for.
func WaitForEngine(ctx context.Context, log *slog.Logger, where string, open func(context.Context) error) error {
	log = cmp.Or(log, slog.New(slog.DiscardHandler))
	began := time.Now()
	var mu sync.Mutex
	var last error
	told, over := false, make(chan struct{})
	var telling sync.WaitGroup
	telling.Go(func() {
		next := time.NewTimer(waitSilent)
		defer next.Stop()
		for {
			select {
			case <-over:
				return
			case <-next.C:
			}
			mu.Lock()
			told = true
			log.Warn("waiting for the engine", "at", where, "for", time.Since(began).Round(time.Second), "err", last)
			mu.Unlock()
			next.Reset(waitEvery)
		}
	})
	defer telling.Wait()
	defer close(over)
	for {
		err := open(ctx)
		mu.Lock()
		last = err
		answered := told && err == nil
		mu.Unlock()
		switch {
		case answered:
			log.Info("the engine answers", "at", where, "after", time.Since(began).Round(time.Second))
			return nil
		case err == nil || !isTransient(err) && ctx.Err() == nil:
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(waitPause):
		}
	}
}

// isTransient tells silence from a refusal.
func isTransient(err error) bool {
	return errors.As(err, new(*SilenceError)) || errors.Is(err, ErrNoTopology)
}
