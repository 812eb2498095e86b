package index

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/cenkalti/backoff/v4"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/index/ask"
	"github.com/agenthandoff/handoff/protocol"
)

const (
	// batchSteps bounds a transaction. Large batches make a fill fast: they write each page
	// fewer times, and write the entries of one handoff at once.
	batchSteps = 32_000
	// batchTextBytes bounds the text of a transaction in memory.
	batchTextBytes = 16 << 20
	// batchWait is how long a fill waits for a full batch.
	batchWait = 100 * time.Millisecond
	// fillPollInterval is the time between two looks for more steps meanwhile.
	fillPollInterval = 2 * time.Millisecond
	// fillBehindDefault is how many entries behind the index must be to be in a fill.
	fillBehindDefault = 20_000
	// checkEvery is the time between two checks of the files.
	checkEvery = 250 * time.Millisecond
	// pruneEvery is the time between two searches for handoffs that the ledger has dropped.
	pruneEvery = time.Minute
	// analyzeGrown samples the tables that have no statistics yet, or have grown tenfold since.
	analyzeGrown = "PRAGMA optimize = 0x10012"
	// walBytesMax is the length of the write-ahead log that makes a checkpoint.
	walBytesMax = 128 << 20
)

// Run keeps the index up to date with a ledger until ctx ends, and then returns nil. It blocks; only
// one Run may run at a time. It retries an engine that does not answer, and rebuilds a damaged file.
// It fails, with errNewer or errForeign, only if another program has replaced the file.
func (ix *Index) Run(ctx context.Context, src Source) error {
	ix.mu.Lock()
	ix.src = src
	ix.notifyLocked()
	ix.mu.Unlock()
	pause := backoff.NewExponentialBackOff(backoff.WithInitialInterval(50*time.Millisecond),
		backoff.WithMaxInterval(3*time.Second), backoff.WithMaxElapsedTime(0))
	logged := false
	for {
		before := ix.read()
		err := ix.follow(ctx, src)
		if err == nil || ctx.Err() != nil {
			return nil
		}
		if ix.read() != before { // it has made progress
			pause.Reset()
			logged = false
		}
		err, fatal := ix.recover(err)
		if fatal {
			ix.mu.Lock()
			ix.ended = err
			ix.notifyLocked()
			ix.mu.Unlock()
			return err
		}
		if err != nil && !logged {
			ix.log.Warn("index stalled; retrying", "err", err)
			logged = true
		}
		if err == nil {
			continue
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause.NextBackOff()):
		}
	}
}

// read is how many entries the store has read; zero without a store.
func (ix *Index) read() uint64 {
	st, _ := ix.current()
	if st == nil {
		return 0
	}
	defer st.release()
	return st.currentPosition().next.Count()
}

// errLedgerShorter is the error of a ledger that has lost its end. The index is evidence of the lost
// entries, so it stays as it is until the ledger is restored or its loss is accepted: the ledger is
// another one then.
var errLedgerShorter = errors.New("the ledger has lost its end; the doctor has more")

// recover handles an error of follow. It returns the error that remains, and whether it is fatal.
func (ix *Index) recover(err error) (left error, fatal bool) {
	st, _ := ix.current()
	var changed error
	if st != nil {
		changed = st.checkFiles(false)
		st.release()
	}
	var write *writeError
	switch {
	case st != nil && errors.Is(err, errLedgerShorter):
		return err, false
	case st == nil, isDamage(err), errors.Is(err, broker.ErrLedgerChanged):
		left = ix.rebuild(err)
	case errors.As(err, &write): // its memory may be ahead of its file
		left = ix.reopen(err)
	case changed == nil:
		return err, false
	default:
		left = ix.rebuild(changed)
	}
	return left, errors.Is(left, errNewer) || errors.Is(left, errForeign) || errors.Is(left, errClosed)
}

// reopen reads the file again.
func (ix *Index) reopen(why error) error {
	old := ix.dropStore()
	st, err := ix.openStore()
	if err != nil {
		return err
	}
	st.checkDuplicates = old != nil && old.checkDuplicates || strings.Contains(why.Error(), "constraint failed")
	return cmp.Or(ix.install(st, ix.rebuilds), why)
}

// writeError is an error of writing the file.
type writeError struct{ err error }

func (e *writeError) Error() string { return "write the index: " + e.err.Error() }
func (e *writeError) Unwrap() error { return e.err }

// follow fills the index and then keeps it up to date, until an error.
func (ix *Index) follow(ctx context.Context, src Source) error {
	st, _ := ix.current()
	if st == nil {
		return ask.ErrRebuilding
	}
	defer st.release()
	ledger, err := src.LedgerInfo(ctx)
	if err != nil {
		return err
	}
	m := st.currentPosition()
	switch {
	case m.ledger.IsZero():
		if err := st.setLedger(ctx, ledger.Created); err != nil {
			return &writeError{err}
		}
		ix.notify()
	case !m.ledger.Equal(ledger.Created):
		return fmt.Errorf("%w: the index is of another one", broker.ErrLedgerChanged)
	case len(m.next) > len(ledger.Others)+1:
		return fmt.Errorf("%w: it has %d partitions, and this index has read %d", errLedgerShorter, len(ledger.Others)+1, len(m.next))
	}
	for p, part := range ledger.Partitions() {
		switch next := m.next.Next(p); {
		case next > part.Last+1:
			return fmt.Errorf("%w: it ends at %d, and this index has read %d", errLedgerShorter, part.Last, next-1)
		case next > 0 && next < part.First:
			return fmt.Errorf("%w: it begins at %d, after %d", broker.ErrLedgerChanged, part.First, next-1)
		}
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	f := &filler{ix: ix, st: st, src: src, steps: make(chan step, batchSteps/8), ledger: ledger}
	tailed := make(chan struct{})
	go func() {
		defer close(tailed)
		cancel(f.tail(ctx, src, m.next))
	}()
	err = f.write(ctx)
	cancel(err)
	<-tailed
	if cause := context.Cause(ctx); cause != nil && (err == nil || errors.Is(err, context.Canceled)) {
		err = cause
	}
	return err
}

// filler copies entries into a store: one goroutine reads and decodes, another writes.
type filler struct {
	ix     *Index
	st     *store
	src    Source
	steps  chan step
	ledger broker.LedgerInfo // at its start
}

// tail reads the ledger. It never returns nil.
func (f *filler) tail(ctx context.Context, src Source, from broker.Cursor) error {
	err := src.Tail(ctx, from, func(e broker.Entry) error {
		s := decode(e)
		if s.failed != nil {
			f.ix.logUnreadable(e, s.failed)
		}
		if err := fetchPackage(ctx, src, &s); err != nil {
			return err
		}
		select {
		case f.steps <- s:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	})
	if err == nil {
		err = errors.New("the ledger's tail has ended")
	}
	return err
}

// unreadableLoggedMax is how many unreadable entries an index logs.
const unreadableLoggedMax = 100

// logUnreadable logs an unreadable entry. Its handoff stays as of the entry before; handoff doctor
// lists stuck handoffs.
func (ix *Index) logUnreadable(e broker.Entry, why error) {
	switch n := ix.unreadable.Add(1); {
	case n < unreadableLoggedMax:
		ix.log.Warn("skipping an unreadable ledger entry", "ticket", e.Ticket, "seq", e.Seq, "err", why)
	case n == unreadableLoggedMax:
		ix.log.Warn("skipping an unreadable ledger entry; further ones are not logged", "ticket", e.Ticket, "seq", e.Seq, "err", why)
	}
}

// fetchPackage reads the words of a package in a blob; none if the blob is lost.
func fetchPackage(ctx context.Context, src Source, s *step) error {
	if s.first == nil || s.first.blob == nil || s.first.blob.Size > protocol.PackageBytesMax {
		return nil
	}
	body, err := src.Blob(ctx, *s.first.blob)
	switch {
	case errors.Is(err, broker.ErrUnreachable), errors.Is(err, broker.ErrNotAllowed), errors.Is(err, broker.ErrClosed), ctx.Err() != nil:
		return fmt.Errorf("package of %s: %w", s.ticket, err)
	case err != nil: // an entry may name any blob
		s.first = &firstEntry{}
	default:
		s.first = firstEntryIn(body)
	}
	return nil
}

// write stores the steps from tail, until ctx ends or an error.
func (f *filler) write(ctx context.Context) error {
	if err := f.prepareIndexes(ctx); err != nil {
		return &writeError{err}
	}
	check := time.NewTicker(checkEvery)
	defer check.Stop()
	prune := time.NewTicker(pruneEvery)
	defer prune.Stop()
	steps := make([]step, 0, batchSteps)
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-check.C:
			if err := f.st.checkFiles(false); err != nil {
				return err
			}
		case err := <-f.st.suspected:
			return err
		case <-prune.C:
			if err := f.prune(ctx); err != nil {
				return err
			}
		case s := <-f.steps:
			steps = f.fillBatch(append(steps[:0], s))
			if err := f.store(ctx, steps); err != nil {
				return err
			}
			clear(steps)
		}
	}
}

// fillBatch adds the waiting steps to a batch. During a fill it also waits a moment for more.
func (f *filler) fillBatch(steps []step) []step {
	bytes, naps := steps[0].textBytes(), 0
	for len(steps) < batchSteps && bytes < batchTextBytes {
		select {
		case s := <-f.steps:
			steps, bytes, naps = append(steps, s), bytes+s.textBytes(), 0
			continue
		default:
		}
		if f.caughtUp(steps) { // not a fill: readers see the steps at once
			return steps
		}
		// It sleeps: to be woken for each step costs more than some steps do.
		if naps++; naps > int(batchWait/fillPollInterval) {
			return steps
		}
		time.Sleep(fillPollInterval)
	}
	return steps
}

// caughtUp reports whether few entries are missing once the steps are stored: there is no fill.
func (f *filler) caughtUp(steps []step) bool {
	return f.ledger.Behind(f.st.currentPosition().next) < f.ix.fillBehind+uint64(len(steps))
}

func (f *filler) store(ctx context.Context, steps []step) error {
	if err := f.st.checkFiles(false); err != nil {
		return err
	}
	if err := f.st.apply(steps); err != nil {
		return f.fail(err)
	}
	f.ix.notify()
	if !f.st.indexed.Load() && f.ledger.Behind(f.st.currentPosition().next) == 0 {
		if err := f.st.addIndexes(ctx); err != nil {
			return f.fail(err)
		}
		f.ix.log.Info("index caught up", "entries", f.st.currentPosition().next.Count())
	}
	return f.fail(f.st.checkpoint(ctx, walBytesMax))
}

// prune removes the handoffs that the ledger has dropped for their age, and renews the statistics.
func (f *filler) prune(ctx context.Context) error {
	ledger, err := f.src.LedgerInfo(ctx)
	if err != nil || !f.st.indexed.Load() {
		return nil // the next tick tries again
	}
	for {
		n, err := f.st.prune(ctx, ledger)
		if err != nil {
			return f.fail(err)
		}
		if n > 0 {
			f.ix.notify()
			continue
		}
		_, err = f.st.db.ExecContext(ctx, analyzeGrown)
		return f.fail(err)
	}
}

func (f *filler) fail(err error) error {
	if err == nil || isDamage(err) {
		return err
	}
	return &writeError{err}
}

// prepareIndexes makes the indexes now if there is little to fill.
func (f *filler) prepareIndexes(ctx context.Context) error {
	if f.st.indexed.Load() {
		return nil
	}
	if f.caughtUp(nil) {
		return f.st.addIndexes(ctx)
	}
	_, err := f.st.db.ExecContext(ctx, fillSearch)
	return err
}

// Settings of the search engine. During a fill it keeps more in memory and merges only when it
// must; later merges are small.
const (
	fillSearch = `INSERT INTO text (text, rank) VALUES ('hashsize', 16777216);
		INSERT INTO text (text, rank) VALUES ('automerge', 0)`
	followSearch = `INSERT INTO text (text, rank) VALUES ('hashsize', 1048576);
		INSERT INTO text (text, rank) VALUES ('automerge', 4)`
)

// addIndexes makes the secondary indexes. If it is interrupted, the next call continues with the
// missing ones. Making an index reads all rows once, and sorts in memory: a large page cache does not
// help.
func (st *store) addIndexes(ctx context.Context) error {
	for _, statement := range slices.Concat([]string{fmt.Sprintf("PRAGMA cache_size = -%d; PRAGMA shrink_memory", indexingCacheKB)}, secondary,
		[]string{followSearch, fmt.Sprintf("UPDATE position SET indexed = 1; PRAGMA cache_size = -%d", writerCacheKB)}) {
		if _, err := st.db.ExecContext(ctx, statement); err != nil {
			return err
		}
		if err := st.checkpoint(ctx, walBytesMax); err != nil {
			return err
		}
	}
	st.indexed.Store(true)
	return nil
}

// checkpoint copies the log into the file once it is longer than most. It checks the files first:
// in a file that was cut short, it would leave a hole.
func (st *store) checkpoint(ctx context.Context, most int64) error {
	if err := st.checkFiles(true); err != nil || st.logSize() <= most {
		return err
	}
	var busy, frames, copied int64
	if err := st.db.QueryRowContext(ctx, "PRAGMA wal_checkpoint(passive)").Scan(&busy, &frames, &copied); err != nil {
		return err
	}
	return st.checkFiles(true)
}
