package bench

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"time"

	"github.com/agenthandoff/handoff/broker/bare"
)

// runBaseline runs the bare engine twice with the load of the round: alone, and with a follower
// of the ledger. Each run stores messages of the sizes that the round measured, on a fresh
// engine of the same kind.
func (r *Round) runBaseline(ctx context.Context, cfg Config) error {
	alone, err := runBare(ctx, cfg, r.Figures, false)
	if err != nil {
		return err
	}
	followed, err := runBare(ctx, cfg, r.Figures, true)
	if err != nil {
		return err
	}
	r.Baseline = &Baseline{Bare: alone, Followed: &followed}
	r.Ratio, r.RatioFollowed = r.PerSecond/alone.PerSecond, r.PerSecond/followed.PerSecond
	return nil
}

func runBare(ctx context.Context, cfg Config, like Figures, follow bool) (_ BareFigures, err error) {
	label := "the bare engine"
	if follow {
		label += " with a follower"
	}
	cfg.progressf("%s", label)
	runtime.GC() // the garbage of the run before is not charged to this one
	d, err := openDeployment(ctx, cfg, "")
	if err != nil {
		return BareFigures{}, err
	}
	defer func() { err = errors.Join(err, d.close()) }()
	var atStart, atEnd usage
	laterBytes := 0.0
	if like.Engine.Appends > 1 {
		laterBytes = (like.Engine.LedgerBytes - like.Engine.FirstBytes) / (like.Engine.Appends - 1)
	}
	b := bare.Config{
		Submitters: cfg.Submitters, Slots: cfg.Slots, Agents: cfg.Agents, Open: cfg.Open,
		Duration: cfg.Duration, N: cfg.N, Warmup: cfg.Warmup, Drain: cfg.Drain,
		Appends: max(like.Engine.Appends, 1), FirstBytes: like.Engine.FirstBytes, LaterBytes: laterBytes, OfferBytes: like.Engine.OfferBytes,
		Follow: follow,
		Begin:  func() { atStart = readUsage() },
		End:    func() { atEnd = readUsage() },
	}
	if cfg.N > 0 {
		b.Duration = 0
	}
	for _, node := range d.nodes() {
		b.Nodes = append(b.Nodes, node)
	}
	f, err := bare.Run(ctx, b)
	if err != nil {
		return BareFigures{}, fmt.Errorf("%s: %w", label, err)
	}
	if f.Handoffs == 0 {
		return BareFigures{}, fmt.Errorf("%s: nothing completed in the window", label)
	}
	return BareFigures{
		Handoffs: f.Handoffs, Seconds: f.Took.Seconds(), PerSecond: perSecond(f.Handoffs, f.Took),
		Complete:      (&histogram{hist: f.Complete}).latency(),
		CPUPerHandoff: float64((atEnd.cpu - atStart.cpu).Nanoseconds()) / float64(time.Microsecond) / float64(f.Handoffs),
		Appends:       f.Appends, Offers: f.Offers, LedgerBytes: f.LedgerBytes,
	}, nil
}
