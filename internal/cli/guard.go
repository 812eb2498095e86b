package cli

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/embedded"
	"github.com/agenthandoff/handoff/internal/index"
	"github.com/agenthandoff/handoff/internal/index/ask"
	"github.com/agenthandoff/handoff/internal/integrity"
	"github.com/agenthandoff/handoff/internal/jetstream"
)

const (
	// seenFile, in the data directory, has the last state of the ledger's files.
	seenFile = "handoff.seen"
	// recordEvery is the time between two records of how far the ledger is.
	recordEvery = time.Minute
	// concernedShownMax bounds the handoffs that an error names.
	concernedShownMax = 5
	// fsyncWindow is the time whose writes a power cut may take under --fsync interval.
	fsyncWindow = time.Second
)

// seen is the content of seenFile.
type seen struct {
	integrity.Witness
	Meta   embedded.Meta    `json:"meta"`
	Blocks []embedded.Block `json:"blocks"`
	Others []seen           `json:"others,omitempty"` // the further partitions of the ledger
}

// part returns the part about a partition.
func (s *seen) part(p int) seen {
	switch {
	case p == 0:
		return *s
	case p <= len(s.Others):
		return s.Others[p-1]
	}
	return seen{}
}

// ledgerGuard makes sure that a node offers nothing from a damaged ledger. It compares the ledger's
// files with earlier positions of it: those of the node itself (seenFile), of the index and of a
// witness outside of the data directory.
type ledgerGuard struct {
	a   *app
	cfg devConfig
	log *slog.Logger

	witnesses string // directory; empty is none
	known     seen
	files     []embedded.LedgerFiles // of each partition
	verdict   integrity.Verdict
	// remembered are the handoffs whose last entries are lost, where the damage is accepted.
	remembered []broker.Remembered
	writing    sync.Mutex
	warned     bool
}

func newLedgerGuard(a *app, cfg devConfig, log *slog.Logger) *ledgerGuard {
	g := &ledgerGuard{a: a, cfg: cfg, log: log}
	dir, err := a.stateHome()
	if err != nil {
		log.Warn("no witness outside of the data directory: an older copy of it will not be noticed", "err", err)
	}
	g.witnesses = dir
	return g
}

// check refuses a damaged ledger, unless a person accepts the damage. It changes no file.
func (g *ledgerGuard) check(ctx context.Context) error {
	began := time.Now()
	if _, err := integrity.ReadFile(filepath.Join(g.cfg.Dir, seenFile), &g.known); err != nil {
		return err
	}
	evidence, err := index.OpenEvidence(filepath.Join(g.cfg.Dir, indexFile))
	if err != nil {
		return err
	}
	defer func() { _ = evidence.Close() }()
	witnesses := make([]integrity.Witness, broker.PartitionsMax)
	g.files, err = g.readFiles(func(p int, created time.Time) []uint64 {
		if g.witnesses != "" {
			if _, err := integrity.ReadFile(integrity.WitnessFile(g.witnesses, created, p), &witnesses[p]); err != nil {
				g.log.Warn("the witness of the ledger cannot be read", "err", err)
			}
		}
		return []uint64{g.known.part(p).Last, witnesses[p].Last}
	})
	if err != nil {
		return fmt.Errorf("read the ledger in %s: %w", g.cfg.Dir, err)
	}
	for p, files := range g.files {
		g.verdict.Join(integrity.Judge(g.facts(ctx, p, evidence, witnesses[p])))
		g.log.Debug("ledger checked", "last", files.Last, "blocks", len(files.Blocks), "read_bytes", files.Read, "took", time.Since(began))
	}
	for _, w := range g.verdict.Warnings {
		g.log.Warn(w)
	}
	if len(g.verdict.Warnings) > 0 && g.verdict.OK() { // the index is ahead, and would wait for the lost entries
		_ = evidence.Close()
		evidence = nil
		if _, err := index.KeepAside(filepath.Join(g.cfg.Dir, indexFile), ".before-power-cut"); err != nil {
			return err
		}
	}
	if g.verdict.OK() {
		g.write(g.files)
		return nil
	}
	damaged := &integrity.DamagedError{Where: "the ledger in " + g.cfg.Dir, Verdict: g.verdict, Ways: []integrity.Way{
		{For: "Restore a backup into a new directory", Command: "handoff restore BACKUP --data NEW"},
		{For: "Or continue without the lost entries", Command: "handoff dev --data " + g.cfg.Dir + " --accept-damage"}}}
	g.concern(ctx, damaged, evidence)
	if !g.cfg.Accept {
		return damaged
	}
	g.log.Warn("damage of the ledger accepted", "damage", strings.Join(g.verdict.Damage, "; "))
	if evidence != nil {
		err = evidence.Concerned(ctx, g.verdict.Missing, func(r broker.Remembered) error {
			g.remembered = append(g.remembered, r)
			return nil
		})
	}
	aside := filepath.Join(g.cfg.Dir, "damaged-"+began.UTC().Format("20060102T150405"))
	for p, files := range g.files {
		err = errors.Join(err, files.Salvage(g.cfg.Dir, aside, g.known.part(p).Meta))
	}
	return err
}

// readFiles reads the files of all partitions, at least of the first one. wanted may be nil.
func (g *ledgerGuard) readFiles(wanted func(p int, created time.Time) []uint64) (all []embedded.LedgerFiles, err error) {
	n := max(1, embedded.LedgersIn(g.cfg.Dir), len(g.known.Others)+1)
	var created time.Time
	for p := 0; p < n; p++ {
		of := func(own time.Time) []uint64 {
			if p == 0 {
				created = own
			}
			return wanted(p, created)
		}
		if wanted == nil {
			of = nil
		}
		files, err := embedded.ReadLedgerFiles(g.cfg.Dir, p, g.known.part(p).Blocks, of)
		if err != nil {
			return nil, err
		}
		if p == 0 {
			created, n = files.Created, max(n, files.Partitions)
		}
		if !files.Created.IsZero() && !created.IsZero() {
			files.Created = created // the first partition identifies the ledger
		}
		all = append(all, files)
	}
	return all, nil
}

// accept carries out --accept-damage before anything is offered: a handoff that the index knows as
// closed stays closed, and the loss is recorded in the ledger.
func (g *ledgerGuard) accept(ctx context.Context, nc *nats.Conn) error {
	if g == nil || g.verdict.OK() {
		return nil
	}
	b, _, done, err := openNode(ctx, nc, broker.Config{Log: g.log})
	if err != nil {
		return err
	}
	defer done()
	var ends []uint64
	for _, files := range g.files {
		ends = append(ends, files.Last)
	}
	if err := acceptLoss(ctx, b, nc, g.log, g.remembered, g.verdict.Missing, ends); err != nil {
		return err
	}
	kept, err := index.KeepAside(filepath.Join(g.cfg.Dir, indexFile), ".before-damage")
	g.log.Warn("the index begins anew", "old_index", kept)
	return err
}

// acceptLoss keeps the handoffs closed that an index remembers as closed, and records the loss in the
// ledger. ends are the last entries of its partitions.
func acceptLoss(ctx context.Context, b *broker.Broker, nc *nats.Conn, log *slog.Logger, remembered []broker.Remembered, missing []broker.Range, ends []uint64) error {
	closed := 0
	for _, r := range remembered {
		did, err := b.CloseRemembered(ctx, r)
		if err != nil {
			return fmt.Errorf("keep %s closed: %w", r.Ticket, err)
		}
		if did {
			closed++
		}
	}
	log.Warn("the ledger continues without the lost entries", "closed_as_the_index_knew", closed, "go_on_as_the_ledger_has_them", len(remembered)-closed)
	var lost []broker.Range
	for p, end := range ends {
		lost = append(lost, broker.Within(missing, broker.PartitionBase(p)+1, end)...)
	}
	return jetstream.AcceptLoss(ctx, nc, lost, time.Now())
}

// facts collects the known facts about a partition of the ledger.
func (g *ledgerGuard) facts(ctx context.Context, p int, evidence *index.Evidence, witness integrity.Witness) integrity.Facts {
	files := g.files[p]
	f := integrity.Facts{
		Created: files.Created, Began: files.Began, Base: broker.PartitionBase(p), First: files.First, Last: files.Last, LastAt: files.LastAt,
		Missing: files.Missing, Accepted: files.Accepted, Broken: files.Broken, Headless: files.Headless, Now: time.Now(),
	}
	if g.cfg.Fsync == embedded.FsyncInterval {
		f.Window = fsyncWindow
	}
	add := func(s integrity.Seen, sum string) {
		if s.Created.IsZero() {
			return
		}
		now, read := files.Sums[s.Last]
		s.Differs = sum != "" && read && now != sum
		f.Seen = append(f.Seen, s)
	}
	if evidence != nil {
		last := max(evidence.Next.Next(p), f.Base+1) - 1
		if last > f.Last && f.Window > 0 {
			f.LostSince, _ = evidence.Since(ctx, max(f.Last, f.Base)) // zero is unknown
		}
		add(integrity.Seen{By: "its index", Created: evidence.Ledger, Last: last, LastAt: evidence.At}, "")
	}
	known := g.known.part(p)
	add(known.Seen("this node"), known.LastSum)
	add(witness.Seen("its witness in "+g.witnesses), witness.LastSum)
	return f
}

// concern adds the handoffs that the damage concerns.
func (g *ledgerGuard) concern(ctx context.Context, e *integrity.DamagedError, evidence *index.Evidence) {
	h := &e.Handoffs
	var err error
	if created := g.files[0].Created; evidence != nil && (created.IsZero() || evidence.Ledger.Equal(created)) {
		err = evidence.Concerned(ctx, g.verdict.Missing, func(k broker.Remembered) error {
			h.Add(k.Ticket, k.Outcome != "", concernedShownMax)
			return nil
		})
	}
	if err != nil {
		g.log.Warn("the index does not show which handoffs are concerned", "err", err)
	}
	if h.Count == 0 { // the subjects of unreadable entries may be whole
		for _, files := range g.files {
			for _, ticket := range files.Tickets {
				h.Add(ticket, false, concernedShownMax)
			}
		}
	}
}

// watch records now and then how far the ledger is, until the returned function is called.
func (g *ledgerGuard) watch(ctx context.Context) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var recording sync.WaitGroup
	recording.Go(func() {
		every := time.NewTicker(recordEvery)
		defer every.Stop()
		g.record()
		for {
			select {
			case <-ctx.Done():
				return
			case <-every.C:
				g.record()
			}
		}
	})
	return func() { cancel(); recording.Wait() }
}

// record reads the new entries of the ledger's files, and writes its position to seenFile.
func (g *ledgerGuard) record() {
	g.writing.Lock()
	defer g.writing.Unlock()
	all, err := g.readFiles(nil)
	if err != nil || all[0].Created.IsZero() {
		return
	}
	for p, files := range all {
		if files.Created.Equal(g.known.Created) && files.Last < g.known.part(p).Last {
			return
		}
	}
	g.write(all)
}

// write writes down how far the ledger is, in the data directory and outside of it.
func (g *ledgerGuard) write(all []embedded.LedgerFiles) {
	if all[0].Created.IsZero() {
		return
	}
	var parts []seen
	changed := false
	for p, files := range all {
		now := seen{Meta: files.Meta, Blocks: files.Blocks, Witness: integrity.Witness{Created: files.Created,
			First: files.First, FirstAt: files.FirstAt, Last: files.Last, LastAt: files.LastAt, LastSum: files.LastSum}}
		known := g.known.part(p)
		changed = changed || now.Witness != known.Witness || now.Meta != known.Meta
		parts = append(parts, now)
	}
	if !changed {
		return
	}
	now := parts[0]
	now.Others = parts[1:]
	err := integrity.WriteFile(filepath.Join(g.cfg.Dir, seenFile), now)
	if err == nil {
		g.known = now
		for p, part := range parts {
			if g.witnesses != "" && !part.Created.IsZero() {
				err = errors.Join(err, integrity.WriteFile(integrity.WitnessFile(g.witnesses, now.Created, p), part.Witness))
			}
		}
	}
	if err != nil && !g.warned {
		g.warned = true
		g.log.Warn("how far the ledger is was not written down: a loss of its end may not be noticed", "err", err)
	}
}

// indexWait bounds the wait of a starting supervisor for the position of an index. It decides nothing
// before.
const indexWait = 500 * time.Millisecond

// servedGuard makes sure that a supervisor offers nothing from a damaged ledger of a server. It
// knows the figures of the stream's leader, the position of an index, and that of a witness here.
type servedGuard struct {
	a   *app
	b   *broker.Broker
	log *slog.Logger
}

func factsOf(p int, l broker.LedgerInfo) integrity.Facts {
	return integrity.Facts{Created: l.Created, Began: l.Began, Base: broker.PartitionBase(p), First: l.First, Last: l.Last, LastAt: l.LastAt,
		Messages: l.Messages, Accepted: l.Accepted, Now: time.Now()}
}

// check refuses a damaged ledger, unless a person accepts the damage.
func (g *servedGuard) check(ctx context.Context, accept bool) error {
	// In this order: the ledger must have every entry that the index has read.
	indexed, _ := g.indexed(ctx) // there may be no index
	ledger, err := g.b.LedgerInfo(ctx)
	if err != nil {
		return err
	}
	dir, err := g.a.stateHome()
	if err != nil {
		g.log.Warn("no witness: a server that was put back to an older state will not be noticed", "err", err)
	}
	var verdict integrity.Verdict
	for p, part := range ledger.Partitions() {
		facts := factsOf(p, part)
		if last := indexed.Cursor().Next(p); last > 0 {
			facts.Seen = []integrity.Seen{{By: "an index", Created: ledger.Created, Last: last - 1}}
		}
		var witness integrity.Witness
		if dir == "" {
		} else if found, err := integrity.ReadFile(integrity.WitnessFile(dir, ledger.Created, p), &witness); err != nil {
			g.log.Warn("the witness of the ledger cannot be read", "err", err)
		} else if found {
			facts.Seen = append(facts.Seen, witness.Seen("a witness in "+dir))
		}
		verdict.Join(g.judge(ctx, facts))
	}
	switch {
	case verdict.OK():
		return g.record(ctx)
	case !accept:
		return g.concern(ctx, g.damaged(verdict))
	}
	return g.accept(ctx, ledger, verdict)
}

func (g *servedGuard) index() ask.Client { return ask.Client{Asker: g.b} }

func (g *servedGuard) indexed(ctx context.Context) (ask.PositionAnswer, error) {
	ctx, cancel := context.WithTimeout(ctx, indexWait)
	defer cancel()
	return g.index().Position(ctx, ask.PositionQuery{Question: ask.Question{WaitMS: -1}})
}

// recheck looks for damage while a supervisor runs: another replica may lead the ledger now.
func (g *servedGuard) recheck(ctx context.Context) error {
	ledger, err := g.b.LedgerInfo(ctx)
	if err != nil {
		return nil // the engine is away
	}
	for p, part := range ledger.Partitions() {
		if verdict := g.judge(ctx, factsOf(p, part)); !verdict.OK() {
			return g.damaged(verdict)
		}
	}
	return nil
}

func (g *servedGuard) judge(ctx context.Context, facts integrity.Facts) integrity.Verdict {
	if facts.Messages < facts.Last-facts.First+1 {
		var err error
		if facts.Missing, err = g.a.engine.MissingEntries(ctx); err != nil {
			g.log.Warn("the missing entries are not known", "err", err)
		}
		facts.Missing = broker.Within(facts.Missing, facts.First, facts.Last)
	}
	return integrity.Judge(facts)
}

func (g *servedGuard) damaged(verdict integrity.Verdict) error {
	return &integrity.DamagedError{Where: "the ledger at " + g.a.conn.resolve(g.a.env).where(), Verdict: verdict, Ways: []integrity.Way{
		{For: "Another replica may be whole", Command: "nats stream cluster step-down " + jetstream.LedgerStream},
		{For: "Else restore a backup", Command: "handoff restore BACKUP"},
		{For: "Or continue without the lost entries", Command: "handoff supervise --accept-damage"}}}
}

// concern adds the handoffs that the damage concerns to the error of damage.
func (g *servedGuard) concern(ctx context.Context, err error) error {
	var e *integrity.DamagedError
	if !errors.As(err, &e) {
		return err
	}
	if err := g.concerned(ctx, e.Verdict, func(r broker.Remembered) { e.Handoffs.Add(r.Ticket, r.Outcome != "", concernedShownMax) }); err != nil {
		g.log.Warn("no index lists the handoffs concerned", "err", err)
	}
	return e
}

// concerned calls fn with every handoff whose last entry is missing, as an index remembers it.
func (g *servedGuard) concerned(ctx context.Context, verdict integrity.Verdict, fn func(broker.Remembered)) error {
	if len(verdict.Missing) == 0 {
		return nil
	}
	if _, err := g.indexed(ctx); err != nil {
		return err
	}
	q := ask.ListQuery{Question: ask.Question{WaitMS: -1}, Sort: ask.SortOldest}
	_, _, err := ask.Pages(ctx, g.index().List, q, 0, func(page ask.ListAnswer) error {
		for _, r := range page.Handoffs {
			if len(broker.Within(verdict.Missing, r.Seq, r.Seq)) > 0 {
				fn(broker.Remembered{Ticket: r.Ticket, Seq: r.Seq, Outcome: r.Outcome, Source: r.Source, Target: r.Target, Type: r.Type,
					Priority: r.Priority, Description: r.Description, Why: r.Why, Workflow: r.WorkflowID, Conversation: r.ConversationID,
					Submitted: r.SubmittedAt, LastChange: r.UpdatedAt})
			}
		}
		return nil
	})
	return err
}

// accept carries out --accept-damage before anything is offered: a handoff that an index knows as
// closed stays closed, and the loss is recorded in the ledger.
func (g *servedGuard) accept(ctx context.Context, ledger broker.LedgerInfo, verdict integrity.Verdict) error {
	g.log.Warn("damage of the ledger accepted", "damage", verdict.Damage)
	var remembered []broker.Remembered
	err := g.concerned(ctx, verdict, func(r broker.Remembered) { remembered = append(remembered, r) })
	if err != nil {
		g.log.Warn("no index: finished handoffs whose last entries are lost are done again", "err", err)
	}
	var ends []uint64
	for _, part := range ledger.Partitions() {
		ends = append(ends, part.Last)
	}
	return acceptLoss(ctx, g.b, g.a.engine.Conn(), g.log, remembered, verdict.Missing, ends)
}

// record writes down for a witness how far the ledger of a server is.
func (g *servedGuard) record(ctx context.Context) error {
	dir, err := g.a.stateHome()
	if err != nil {
		return nil // it was logged
	}
	ledger, err := g.b.LedgerInfo(ctx)
	if err != nil {
		return err
	}
	for p, part := range ledger.Partitions() {
		err = errors.Join(err, integrity.WriteFile(integrity.WitnessFile(dir, ledger.Created, p), integrity.Witness{Created: ledger.Created, First: part.First, Last: part.Last, LastAt: part.LastAt}))
	}
	if err != nil {
		g.log.Warn("how far the ledger is was not written down: a loss of its end may not be noticed", "err", err)
	}
	return nil
}
