package bench

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/embedded"
	"github.com/agenthandoff/handoff/internal/jetstream"
	"github.com/agenthandoff/handoff/internal/lifecycle"
	"github.com/agenthandoff/handoff/internal/record"
	"github.com/agenthandoff/handoff/protocol"
)

// storedHandoffs are closed handoffs that the ledger has before a run. Their entries are those of
// a submission, an acceptance and a completion, written with the same codec.
type storedHandoffs struct {
	count  int
	source string
	agent  string
	pkg    protocol.Package
}

// entriesPerHandoff is the number of ledger entries of a stored handoff.
const entriesPerHandoff = 3

// handoffsPerBlock is how many handoffs overlap in the ledger: this many entries lie from one
// entry of a handoff to its next.
const handoffsPerBlock = 500

// ticket derives the ticket of the n-th handoff, so that a million need no table.
func (s storedHandoffs) ticket(n int) string { return protocol.TicketForKey(s.source, strconv.Itoa(n)) }

// load puts them into the ledger. A node of our own does not sync each write meanwhile.
func (s storedHandoffs) load(ctx context.Context, cfg Config) (err error) {
	startedAt := time.Now()
	d := &deployment{cfg: cfg, dir: cfg.Dir, loading: true}
	if cfg.Connect == nil {
		err = d.start(ctx)
	}
	if err != nil {
		return errors.Join(err, d.close())
	}
	defer func() { err = errors.Join(err, d.close()) }()
	engine, closeEngine, err := d.connect(ctx)
	if err != nil {
		return err
	}
	defer closeEngine()
	js, ok := engine.(*jetstream.Engine)
	if !ok {
		return fmt.Errorf("bench: an engine of kind %T cannot be filled", engine)
	}
	ledger, err := js.LedgerInfo(ctx)
	if err != nil {
		return err
	}
	lastProgress := time.Now()
	err = js.Load(ctx, s.entries(ledger.Last+1, func(n int) {
		if time.Since(lastProgress) > progressInterval {
			lastProgress = time.Now()
			cfg.progressf("%d of %d handoffs stored", n, s.count)
		}
	}))
	if err == nil {
		cfg.progressf("%d handoffs stored in %v", s.count, time.Since(startedAt).Round(100*time.Millisecond))
	}
	return err
}

// entries returns the ledger entries of all handoffs in their order; first is the sequence of
// the first. Several goroutines make a block while the block before is stored.
func (s storedHandoffs) entries(first uint64, progress func(handoffs int)) iter.Seq2[jetstream.LoadEntry, error] {
	type blockResult struct {
		entries []jetstream.LoadEntry
		err     error
	}
	return func(yield func(jetstream.LoadEntry, error) bool) {
		blocks := make(chan blockResult, 1)
		stop := make(chan struct{})
		var maker sync.WaitGroup
		maker.Go(func() {
			defer close(blocks)
			for from := 0; from < s.count; from += handoffsPerBlock {
				size := min(handoffsPerBlock, s.count-from)
				entries, err := s.block(from, size, first+uint64(from)*entriesPerHandoff)
				select {
				case blocks <- blockResult{entries, err}:
				case <-stop:
					return
				}
			}
		})
		defer maker.Wait()
		defer close(stop)
		handoffs := 0
		for block := range blocks {
			if block.err != nil {
				yield(jetstream.LoadEntry{}, block.err)
				return
			}
			for _, e := range block.entries {
				if !yield(e, nil) {
					return
				}
			}
			handoffs += len(block.entries) / entriesPerHandoff
			progress(handoffs)
		}
	}
}

// block makes the entries of size handoffs: all submissions, then all acceptances, then all
// completions.
func (s storedHandoffs) block(from, size int, first uint64) ([]jetstream.LoadEntry, error) {
	entries := make([]jetstream.LoadEntry, size*entriesPerHandoff)
	errs := make([]error, runtime.GOMAXPROCS(0))
	var wg sync.WaitGroup
	for w := range errs {
		wg.Go(func() {
			for i := w; i < size && errs[w] == nil; i += len(errs) {
				errs[w] = s.handoffEntries(from+i, i, size, first, entries)
			}
		})
	}
	wg.Wait()
	return entries, errors.Join(errs...)
}

// handoffEntries makes the entries of one handoff, the i-th of a block.
func (s storedHandoffs) handoffEntries(n, i, size int, first uint64, entries []jetstream.LoadEntry) error {
	now := time.Now().UTC().Truncate(time.Microsecond)
	pkg := s.pkg
	pkg.Source, pkg.Target.Agent, pkg.CreatedAt, pkg.Task.ID = s.source, s.agent, now, instantID(now.UnixNano())
	body, err := protocol.EncodePackage(pkg)
	if err != nil {
		return err
	}
	agents := &lifecycle.Directory{Agents: map[string]*protocol.Profile{s.agent: {ID: s.agent}}}
	applied, err := lifecycle.Submit(s.ticket(n), pkg.Summarize(broker.RefOf(body).Digest), protocol.Submitted{Package: body}, agents.At(now))
	if err != nil {
		return err
	}
	var state protocol.State
	hash, after := "", uint64(0)
	for step := range entriesPerHandoff {
		switch step {
		case 1:
			m := protocol.Meta{At: now.Add(time.Millisecond), By: s.agent + ".1"}
			applied, err = lifecycle.StepOf(state, &protocol.Accepted{Meta: m, Offer: state.Offer, Agent: s.agent, Holder: m.By, LeaseMS: protocol.LeaseDefaultMS, Attempt: 1},
				&protocol.Started{Meta: m})
		case 2:
			m := protocol.Meta{At: now.Add(2 * time.Millisecond), By: s.agent + ".1"}
			applied, err = lifecycle.StepOf(state, &protocol.Completed{Meta: m, Fence: state.Fence, Status: protocol.Success, Result: []byte(`{"status":"success","body":"done"}`)})
		}
		if err != nil {
			return fmt.Errorf("a stored handoff: %w", err)
		}
		state = applied.State
		state.PrevHash = hash
		entry := protocol.Record{ID: uuid.NewString(), Events: applied.Events, State: state}
		body, err := record.Encode(entry)
		if err != nil {
			return err
		}
		position := step*size + i
		seq := first + uint64(position)
		entries[position] = jetstream.LoadEntry{Ticket: state.Ticket, After: after, ID: entry.ID, Body: body, Seq: seq}
		state.Bind(seq)
		hash, after = broker.HashOf(body), seq
	}
	if !state.Closed {
		return errors.New("a stored handoff does not close")
	}
	return nil
}

// loadStored loads the stored handoffs of a configuration, if it has any. The configuration
// that it returns names the directory of the ledger; cleanUp removes a temporary one.
func loadStored(ctx context.Context, cfg Config, run string, pkg protocol.Package) (_ Config, s storedHandoffs, cleanUp func() error, err error) {
	s = storedHandoffs{count: cfg.Stored, source: "bench-" + run + "-stored", agent: "bench-" + run + "-0", pkg: pkg}
	cleanUp = func() error { return nil }
	if cfg.Stored == 0 {
		return cfg, s, cleanUp, nil
	}
	if cfg.Connect == nil && cfg.Dir == "" {
		if cfg.Dir, err = os.MkdirTemp("", "handoff-bench-"); err != nil {
			return cfg, s, cleanUp, err
		}
		dir := cfg.Dir
		cleanUp = func() error { return os.RemoveAll(dir) }
	}
	return cfg, s, cleanUp, s.load(ctx, cfg)
}

// fsync is the sync policy of the nodes.
func (d *deployment) fsync() embedded.Fsync {
	if d.loading {
		return embedded.FsyncInterval
	}
	return d.cfg.Fsync
}

// sweepTimes receives the duration of each sweep of a supervisor over all heads. The sweeps at
// a supervisor's start are no part of a measurement: with a million handoffs they read for
// seconds. A supervisor.Watch would report them as well, but with a Watch a supervisor
// follows the ledger, which would change the measurement.
type sweepTimes chan time.Duration

func newSweepTimes() sweepTimes { return make(sweepTimes, 8) }

// add records a sweep. A full channel, after its reader has ended, drops it.
func (p sweepTimes) add(took time.Duration) {
	select {
	case p <- took:
	default:
	}
}

const (
	// quietPeriod is the time without a sweep after which a supervisor has settled. For a
	// long sweep it is half as long again as the sweep.
	quietPeriod = 500 * time.Millisecond
	// settleTimeout is how long a supervisor may take to settle.
	settleTimeout = 2 * time.Minute
)

// awaitQuiet waits until the sweeps of a supervisor's start are over: one, or more if it was the
// first to make its consumers.
func (p sweepTimes) awaitQuiet(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, settleTimeout)
	defer cancel()
	timer := time.NewTimer(settleTimeout)
	defer timer.Stop()
	for {
		select {
		case took := <-p:
			timer.Reset(max(quietPeriod, took*3/2))
		case <-timer.C:
			return
		case <-ctx.Done():
			return
		}
	}
}

// sizeMin is the smallest size of a generated package: that of its required fields.
const sizeMin = 512

// fillerText fills the summary of generated packages.
const fillerText = "the login form keeps the session open after a password change so that a second tab still acts as the user who has left " +
	"please review the handler and its tests and say whether a token that was issued before the change is refused afterwards "

// generatePackage returns a package of a size as stored, give or take the digits of an instant
// and of an agent's number.
func generatePackage(size int, source, agent string) (protocol.Package, error) {
	pkg := protocol.Package{
		Source: source, Target: protocol.Target{Agent: agent}, Reason: "the change is ready for a review",
		Task:    protocol.Task{ID: instantID(0), Type: "review", Description: "review the change and say what is wrong with it"},
		Context: protocol.Context{WorkflowID: "bench"},
	}
	normalize(&pkg, time.Date(2026, 1, 2, 3, 4, 5, 123_456_000, time.UTC)) // an instant of the greatest length
	body, err := protocol.EncodePackage(pkg)
	if err != nil {
		return pkg, err
	}
	const field = `,"summary":""` // the field around the filler
	missing := size - len(body) - len(field)
	if missing < 1 {
		return pkg, protocol.Errorf(protocol.CodeInvalid, "size", "is %d, and a package has at least %d bytes", size, len(body)+len(field)+1)
	}
	pkg.Context.Summary = strings.Repeat(fillerText, missing/len(fillerText)+1)[:missing]
	if strings.HasSuffix(pkg.Context.Summary, " ") {
		pkg.Context.Summary = pkg.Context.Summary[:missing-1] + "."
	}
	return pkg, nil
}

// normalize fills in the fields that every package gets at its submission, so that its size is
// known.
func normalize(pkg *protocol.Package, now time.Time) {
	pkg.CreatedAt = now.UTC().Truncate(time.Microsecond)
	pkg.Normalize(now)
}
