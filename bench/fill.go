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

// stored are handoffs that are in the ledger before a run, closed. Their entries are what
// a submission, an acceptance and a completion write, through the same codec.
type stored struct {
	n        int
	source   string
	agent    string
	packages []protocol.Package
}

// storedEntries is how many entries each has.
const storedEntries = 3

// storedBlock is how many handoffs are under way at once: the entries of one lie this
// far apart in the ledger.
const storedBlock = 500

// ticket is that of one of them: derived, so that a million need not be remembered.
func (s stored) ticket(n int) string { return protocol.TicketForKey(s.source, strconv.Itoa(n)) }

// fill puts them into the ledger. A node of our own does not sync each write for it.
func (s stored) fill(ctx context.Context, cfg Config) (err error) {
	begun := time.Now()
	h := &home{cfg: cfg, dir: cfg.Dir, relaxed: true}
	if cfg.Connect == nil {
		err = h.start(ctx)
	}
	if err != nil {
		return errors.Join(err, h.close())
	}
	defer func() { err = errors.Join(err, h.close()) }()
	engine, done, err := h.connect(ctx)
	if err != nil {
		return err
	}
	defer done()
	js, ok := engine.(*jetstream.Engine)
	if !ok {
		return fmt.Errorf("bench: an engine of kind %T cannot be filled", engine)
	}
	ledger, err := js.LedgerInfo(ctx)
	if err != nil {
		return err
	}
	told := time.Now()
	err = js.Load(ctx, s.entries(ledger.Last+1, func(n int) {
		if time.Since(told) > tellEvery {
			told = time.Now()
			cfg.progressf("%d of %d handoffs stored", n, s.n)
		}
	}))
	if err == nil {
		cfg.progressf("%d handoffs stored in %v", s.n, time.Since(begun).Round(100*time.Millisecond))
	}
	return err
}

// entries are those of all, in their order, the first at a sequence. Each block is
// made by several goroutines while the one before is stored.
func (s stored) entries(first uint64, tell func(handoffs int)) iter.Seq2[jetstream.LoadEntry, error] {
	type made struct {
		entries []jetstream.LoadEntry
		err     error
	}
	return func(yield func(jetstream.LoadEntry, error) bool) {
		blocks := make(chan made, 1)
		stop := make(chan struct{})
		var maker sync.WaitGroup
		maker.Go(func() {
			defer close(blocks)
			for from := 0; from < s.n; from += storedBlock {
				size := min(storedBlock, s.n-from)
				entries, err := s.block(from, size, first+uint64(from)*storedEntries)
				select {
				case blocks <- made{entries, err}:
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
			handoffs += len(block.entries) / storedEntries
			tell(handoffs)
		}
	}
}

// block makes the entries of some handoffs: first all submissions, then all acceptances,
// then all completions.
func (s stored) block(from, size int, first uint64) ([]jetstream.LoadEntry, error) {
	entries := make([]jetstream.LoadEntry, size*storedEntries)
	errs := make([]error, runtime.GOMAXPROCS(0))
	var wg sync.WaitGroup
	for w := range errs {
		wg.Go(func() {
			for i := w; i < size && errs[w] == nil; i += len(errs) {
				errs[w] = s.life(from+i, i, size, first, entries)
			}
		})
	}
	wg.Wait()
	return entries, errors.Join(errs...)
}

// life makes the entries of one handoff, the i-th of a block.
func (s stored) life(n, i, size int, first uint64, entries []jetstream.LoadEntry) error {
	now := time.Now().UTC().Truncate(time.Microsecond)
	pkg := s.packages[n%len(s.packages)]
	pkg.Source, pkg.Target.Agent, pkg.CreatedAt, pkg.Task.ID = s.source, s.agent, now, instantID(now.UnixNano())
	body, err := protocol.EncodePackage(pkg)
	if err != nil {
		return err
	}
	agents := &lifecycle.Directory{Agents: map[string]protocol.Profile{s.agent: {ID: s.agent}}}
	made, err := lifecycle.Submit(s.ticket(n), pkg.Summarize(broker.RefOf(body).Digest), protocol.Submitted{Package: body}, agents, now)
	if err != nil {
		return err
	}
	var state protocol.State
	hash, after := "", uint64(0)
	for step := range storedEntries {
		switch step {
		case 1:
			m := protocol.Meta{At: now.Add(time.Millisecond), By: s.agent + ".1"}
			made, err = lifecycle.StepOf(state, &protocol.Accepted{Meta: m, Offer: state.Offer, Agent: s.agent, Holder: m.By, LeaseMS: protocol.LeaseDefaultMS, Attempt: 1},
				&protocol.Started{Meta: m})
		case 2:
			m := protocol.Meta{At: now.Add(2 * time.Millisecond), By: s.agent + ".1"}
			made, err = lifecycle.StepOf(state, &protocol.Completed{Meta: m, Fence: state.Fence, Status: protocol.Success, Result: []byte(`{"status":"success","body":"done"}`)})
		}
		if err != nil {
			return fmt.Errorf("a stored handoff: %w", err)
		}
		state = made.State
		state.PrevHash = hash
		own := protocol.Record{ID: uuid.NewString(), Events: made.Events, State: state}
		body, err := record.Encode(own)
		if err != nil {
			return err
		}
		place := step*size + i
		seq := first + uint64(place)
		entries[place] = jetstream.LoadEntry{Ticket: state.Ticket, After: after, ID: own.ID, Body: body, Seq: seq}
		state.Bind(seq)
		hash, after = broker.HashOf(body), seq
	}
	if !state.Closed {
		return errors.New("a stored handoff does not close")
	}
	return nil
}

// prepareStored fills the ledger if that is asked for. The configuration it returns
// has the directory in which it lies; done removes it if it is a temporary one.
func prepareStored(ctx context.Context, cfg Config, run string, packages []protocol.Package) (_ Config, s stored, done func() error, err error) {
	s = stored{n: cfg.Stored, source: "bench-" + run + "-stored", agent: "bench-" + run + "-0", packages: packages}
	done = func() error { return nil }
	if cfg.Stored == 0 {
		return cfg, s, done, nil
	}
	if cfg.Connect == nil && cfg.Dir == "" {
		if cfg.Dir, err = os.MkdirTemp("", "handoff-bench-"); err != nil {
			return cfg, s, done, err
		}
		dir := cfg.Dir
		done = func() error { return os.RemoveAll(dir) }
	}
	return cfg, s, done, s.fill(ctx, cfg)
}

// fsync is how the nodes of a home write.
func (h *home) fsync() embedded.Fsync {
	if h.relaxed {
		return embedded.FsyncInterval
	}
	return h.cfg.Fsync
}
