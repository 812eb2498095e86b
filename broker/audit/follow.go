package audit

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/agenthandoff/handoff/broker"
)

// FollowConfig configures Follow. The zero value follows the ledger from its oldest entry without
// an end.
type FollowConfig struct {
	// Once stops at the entry that was the ledger's last at the start.
	Once bool
	// From is the first entry of an empty archive; 0 is the oldest of the ledger.
	From uint64
	// Progress receives, now and then and at the end, the position that is durable. It may be nil.
	Progress func(seq, last uint64)
	// Unreachable receives the error if the engine does not answer; Follow retries. It may be nil.
	Unreachable func(error)
}

// The delays between attempts to reach the engine.
const (
	retryMin = 500 * time.Millisecond
	retryMax = 10 * time.Second
)

// Follow archives the entries that the ledger has and gets, until ctx ends, which is no error. It
// retries if the engine does not answer, except with Once. It returns ErrLedgerChanged if the
// archive belongs to another ledger, or if the ledger has dropped the next entry.
func (a *Archive) Follow(ctx context.Context, ledger Ledger, cfg FollowConfig) error {
	wait := retryMin
	for {
		before := a.seq
		err := a.followOnce(ctx, ledger, cfg)
		switch {
		case ctx.Err() != nil:
			return a.Flush()
		case err == nil || cfg.Once || !errors.Is(err, broker.ErrUnreachable):
			return err
		}
		if cfg.Unreachable != nil {
			cfg.Unreachable(err)
		}
		if a.seq > before {
			wait = retryMin
		}
		select {
		case <-ctx.Done():
		case <-time.After(wait):
		}
		wait = min(2*wait, retryMax)
	}
}

// errTailDone ends a tail at the last entry that is wanted.
var errTailDone = errors.New("tail done")

func (a *Archive) followOnce(ctx context.Context, ledger Ledger, cfg FollowConfig) error {
	span, err := ledger.LedgerInfo(ctx)
	if err != nil {
		return err
	}
	from, err := a.startSequence(span, cfg.From)
	if err != nil {
		return err
	}
	if cfg.Once && from > span.Last {
		return nil
	}
	ctx, cancel := context.WithCancel(ctx)
	entries, failed := make(chan broker.Entry, 1024), make(chan error, 1)
	go func() { // joined by the receive from failed, or by drain
		defer close(entries)
		failed <- ledger.Tail(ctx, from, func(e broker.Entry) error {
			select {
			case entries <- e:
			case <-ctx.Done():
				return ctx.Err()
			}
			if cfg.Once && e.Seq >= span.Last {
				return errTailDone
			}
			return nil
		})
	}()
	err = a.archiveEntries(ctx, NewReader(ledger), entries, span.Last, cfg.Progress)
	cancel()
	for range entries { // until the tail has ended
	}
	if ended := <-failed; err == nil && !errors.Is(ended, errTailDone) {
		err = ended
	}
	return errors.Join(err, a.Flush())
}

// startSequence is where to read the ledger from: at the last append in the archive, if the ledger
// still has it, to compare both.
func (a *Archive) startSequence(span broker.LedgerInfo, from uint64) (uint64, error) {
	switch {
	case a.seq == 0 && from > 0 && (from < span.First || from > span.Last+1):
		return 0, fmt.Errorf("%w: it has the entries %d to %d, and entry %d was asked for", broker.ErrLedgerChanged, span.First, span.Last, from)
	case a.seq == 0:
		return max(from, span.First), nil
	case a.seq > span.Last:
		return 0, fmt.Errorf("%w: it ends at entry %d, and the archive in %s at entry %d of another; archive into a directory of its own", broker.ErrLedgerChanged, span.Last, a.dir, a.seq)
	case a.seq+1 < span.First:
		return 0, fmt.Errorf("%w: the entries %d to %d were dropped for their age before they were archived; archive what there is into a new directory", broker.ErrLedgerChanged, a.seq+1, span.First-1)
	case a.seq+1 == span.First:
		return span.First, nil
	}
	return a.seq, nil
}

// syncInterval is the longest time between two syncs while an archive catches up.
const syncInterval = time.Second

// archiveEntries adds entries as they come, and syncs whenever none is waiting.
func (a *Archive) archiveEntries(ctx context.Context, reader *Reader, entries <-chan broker.Entry, last uint64, progress func(seq, last uint64)) error {
	reported, synced := time.Now(), time.Now()
	for e := range entries {
		if e.Seq == a.seq {
			if hash := broker.HashOf(e.Body); hash != a.hash {
				return fmt.Errorf("%w: its entry %d is not the one in %s; archive into a directory of its own", broker.ErrLedgerChanged, e.Seq, a.dir)
			}
		} else {
			records, err := reader.Records(ctx, e)
			if err != nil {
				return err
			}
			if err := a.copyBodies(ctx, reader.ledger, e); err != nil {
				return err
			}
			if err := a.Add(e, records); err != nil {
				return err
			}
		}
		if len(entries) > 0 && time.Since(synced) < syncInterval {
			continue
		}
		if err := a.Flush(); err != nil {
			return err
		}
		synced = time.Now()
		if progress != nil && (time.Since(reported) > progressInterval || e.Seq == last) {
			progress(a.seq, max(last, a.seq))
			reported = time.Now()
		}
	}
	return nil
}
