package bench

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"os"
	"runtime"
	"strconv"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/broker/embedded"
	"github.com/agenthandoff/handoff/broker/jetstream"
	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/protocol/lifecycle"
	"github.com/agenthandoff/handoff/protocol/record"
)

// storedHandoffs are closed handoffs that the ledger has before a run. Their entries are those of
// a submission, an acceptance and a completion, written with the same codec.
type storedHandoffs struct {
	count    int
	source   string
	agent    string
	packages []protocol.Package
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
	pkg := s.packages[n%len(s.packages)]
	pkg.Source, pkg.Target.Agent, pkg.CreatedAt, pkg.Task.ID = s.source, s.agent, now, instantID(now.UnixNano())
	body, err := protocol.EncodePackage(pkg)
	if err != nil {
		return err
	}
	agents := &lifecycle.Directory{Agents: map[string]protocol.Profile{s.agent: {ID: s.agent}}}
	applied, err := lifecycle.Submit(s.ticket(n), pkg.Summarize(broker.RefOf(body).Digest), protocol.Submitted{Package: body}, agents, now)
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
func loadStored(ctx context.Context, cfg Config, run string, packages []protocol.Package) (_ Config, s storedHandoffs, cleanUp func() error, err error) {
	s = storedHandoffs{count: cfg.Stored, source: "bench-" + run + "-stored", agent: "bench-" + run + "-0", packages: packages}
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
