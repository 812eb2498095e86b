// Package bare does the same stored messages, deliveries and acknowledgements as handoffs, with no
// protocol, for comparison.
//
// For each handoff a source appends to its subject in the ledger, with a
// compare-and-set against nothing, and puts an offer into the queue, one after the
// other, each acknowledged by the engine before it goes on. A pull consumer
// like that of a worker delivers the offer; a slot makes the further appends, each with a
// compare-and-set against the one before and acknowledged, and then acknowledges the
// offer, without waiting, as workers do. The number of appends of a handoff, and their
// bytes, come from a run of handoffs.
//
// Everything else is left out: packages that are checked, redacted, digested
// and encoded, states, their decoding and hashing, records of a directory, leases and
// beats, lanes and their turns, the supervisor and its timers. Bodies are bytes of
// the right number. The streams are those of Handoff, as broker.EnsureTopology makes
// them, and so is the consumer.
//
// It is as good a client as we know how to write: requests over the connection with no
// layer between, acknowledgements read without a decoder, offers asked for ahead in
// batches.
package bare

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"github.com/google/uuid"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// node is where connections come from. *embedded.Node is one.
type node interface {
	Conn(options ...nats.Option) (*nats.Conn, error)
}

// Config describes a run. All fields are needed, except where noted.
type Config struct {
	// Nodes are connected to in turn: first by the sources, then by the workers, then
	// by the follower. With Spread, sources and workers connect to every one.
	Nodes  []node
	Spread bool
	// Streams are the streams over which handoffs are spread, by a hash of their ticket; none
	// are those of Handoff.
	Streams []Streams

	Submitters, Slots, Agents int
	// Open is how many may be under way at most.
	Open int
	// Duration is how long it is measured, or N how many; the other is 0.
	Duration time.Duration
	N        int
	// Warmup goes before it.
	Warmup time.Duration
	// Drain bounds the time in which handoffs that were begun must end.
	Drain time.Duration

	// Appends is how many there are for a handoff, on average; at least 1. It has
	// one offer: those that a supervisor puts again are left out, in favour of the bare
	// engine. FirstBytes, LaterBytes and OfferBytes are their stored sizes.
	Appends                            float64
	FirstBytes, LaterBytes, OfferBytes float64

	// Follow has a consumer get every entry of the ledger, and acknowledge it, as a supervisor
	// that counts (--metrics) does.
	Follow bool

	// Begin and End, if not nil, are called when the measurement begins and ends.
	Begin, End func()
}

// Figures are the results of a run.
type Figures struct {
	Handoffs int64 // that ended in the window
	Took     time.Duration
	// Complete is how long they took, in nanoseconds: from the beginning of the first
	// append to the acknowledgement of the last.
	Complete *hdrhistogram.Histogram
	// Of the whole run, warm-up included, each handoff.
	Appends, Offers, LedgerBytes float64
}

// runner is a run under way.
type runner struct {
	cfg                    Config
	sources, workers       []*nats.Conn
	keeper                 *nats.Conn
	partitions             []partition
	first, later, offer    []byte
	open                   chan struct{}
	left                   atomic.Int64
	next, served           atomic.Int64
	begun, ended, inWindow atomic.Int64
	measuring              atomic.Bool
	mu                     sync.Mutex
	hist                   *hdrhistogram.Histogram
	clock                  time.Time
	cancel                 context.CancelCauseFunc
}

// requestTimeout is how long the engine may take to acknowledge.
const requestTimeout = 10 * time.Second

// Run runs it once, on streams that exist and that no other process uses meanwhile.
func Run(ctx context.Context, cfg Config) (Figures, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	r := &runner{cfg: cfg, open: make(chan struct{}, cfg.Open), clock: time.Now(), cancel: cancel,
		hist: hdrhistogram.New(100, int64(time.Hour), 3)}
	defer r.close()
	if err := r.connect(); err != nil {
		return Figures{}, err
	}
	js, err := jetstream.New(r.keeper)
	if err != nil {
		return Figures{}, err
	}
	if err := r.prepare(ctx, js); err != nil {
		return Figures{}, err
	}
	before, err := r.standing(ctx, js)
	if err != nil {
		return Figures{}, err
	}
	figures, err := r.run(ctx, js)
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	}
	if err != nil {
		return figures, err
	}
	after, err := r.standing(ctx, js)
	if err != nil {
		return figures, err
	}
	each := func(before, after uint64) float64 { return float64(after-before) / float64(r.ended.Load()) }
	figures.Appends = each(before.appends, after.appends)
	figures.LedgerBytes = each(before.ledgerBytes, after.ledgerBytes)
	figures.Offers = each(before.offers, after.offers)
	return figures, nil
}

// instant is how an offer carries since when it counts: its first bytes.
func instant(at int64) []byte { return fmt.Appendf(nil, "%016x", at) }

func (r *runner) now() int64 { return int64(time.Since(r.clock)) }

// inFlight is in the answer of replicas while a write to the subject is in flight, or seems to be: an
// append of a lone writer gets it, too, and is repeated.
const inFlight = `"err_code":10164`

// publishTries and publishPause bound the repetitions.
const (
	publishTries = 100
	publishPause = 2 * time.Millisecond
)

// publish stores a message as the successor of a sequence on its subject.
func publish(nc *nats.Conn, subject string, after uint64, body []byte) (seq uint64, err error) {
	for range publishTries {
		seq, err = publishOnce(nc, subject, after, body)
		if err == nil || !strings.Contains(err.Error(), inFlight) {
			break
		}
		time.Sleep(publishPause)
	}
	return seq, err
}

func publishOnce(nc *nats.Conn, subject string, after uint64, body []byte) (uint64, error) {
	msg := &nats.Msg{Subject: subject, Data: body, Header: nats.Header{
		jetstream.ExpectedLastSubjSeqHeader: []string{strconv.FormatUint(after, 10)}}}
	reply, err := nc.RequestMsg(msg, requestTimeout)
	if err != nil {
		return 0, fmt.Errorf("publish %s: %w", subject, err)
	}
	seq := ackedSeq(reply.Data)
	if seq == 0 {
		return 0, fmt.Errorf("publish %s: the engine answers %s", subject, reply.Data)
	}
	return seq, nil
}

// ackedSeq finds the sequence in an acknowledgement; 0 if it is none.
func ackedSeq(ack []byte) (seq uint64) {
	text := string(ack)
	_, rest, ok := strings.Cut(text, `"seq":`)
	if !ok || strings.Contains(text, `"error"`) {
		return 0
	}
	for _, c := range []byte(strings.TrimLeft(rest, " ")) {
		if c < '0' || c > '9' {
			break
		}
		seq = seq*10 + uint64(c-'0')
	}
	return seq
}

// share is how many of something that there are on average fall to the n-th.
func share(each float64, n int64) int {
	return int(math.Floor(each*float64(n+1)) - math.Floor(each*float64(n)))
}

func (r *runner) run(ctx context.Context, js jetstream.JetStream) (Figures, error) {
	if r.cfg.Follow {
		stop, err := r.follow(ctx, js)
		if err != nil {
			return Figures{}, err
		}
		defer stop()
	}
	end, err := r.work(ctx)
	if err != nil {
		return Figures{}, err
	}
	defer end()
	stop := make(chan struct{})
	var wg sync.WaitGroup
	r.left.Store(math.MaxInt64)
	if r.cfg.N > 0 && r.cfg.Warmup == 0 {
		r.left.Store(int64(r.cfg.N))
	}
	start := func() {
		for i := range r.cfg.Submitters {
			wg.Go(func() { r.source(ctx, r.sources[i%len(r.sources)], stop) })
		}
	}
	if r.cfg.Warmup > 0 {
		start()
		pause(ctx, r.cfg.Warmup)
	}
	call(r.cfg.Begin)
	begun := time.Now()
	r.measuring.Store(true)
	if r.cfg.Warmup == 0 {
		start()
	} else if r.cfg.N > 0 {
		r.left.Store(int64(r.cfg.N))
	}
	if r.cfg.N > 0 {
		r.until(ctx, time.Hour, func() bool { return r.inWindow.Load() >= int64(r.cfg.N) })
	} else {
		pause(ctx, r.cfg.Duration)
	}
	r.measuring.Store(false)
	figures := Figures{Handoffs: r.inWindow.Load(), Took: time.Since(begun)}
	call(r.cfg.End)
	close(stop)
	wg.Wait()
	if !r.until(ctx, r.cfg.Drain, func() bool { return r.ended.Load() == r.begun.Load() }) {
		return figures, fmt.Errorf("the bare engine: %d of %d did not end within %v", r.begun.Load()-r.ended.Load(), r.begun.Load(), r.cfg.Drain)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	figures.Complete = r.hist
	return figures, nil
}

func call(fn func()) {
	if fn != nil {
		fn()
	}
}

func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// until waits until something holds.
func (r *runner) until(ctx context.Context, most time.Duration, holds func() bool) bool {
	ctx, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !holds() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return holds()
		}
	}
	return true
}

// source begins one after another.
func (r *runner) source(ctx context.Context, nc *nats.Conn, stop <-chan struct{}) {
	offer := make([]byte, len(r.offer))
	copy(offer, r.offer)
	for {
		select {
		case r.open <- struct{}{}:
		case <-stop:
			return
		case <-ctx.Done():
			return
		}
		select { // the other select chooses at random
		case <-stop:
			return
		default:
		}
		if r.left.Add(-1) < 0 {
			return
		}
		if err := r.begin(nc, r.next.Add(1)-1, offer); err != nil {
			r.cancel(err)
			return
		}
	}
}

func (r *runner) begin(nc *nats.Conn, n int64, offer []byte) error {
	at := r.now()
	ticket := uuid.NewString()
	p := r.partitionOf(ticket)
	seq, err := publish(nc, p.ledgerPrefix+ticket, 0, r.first)
	if err != nil {
		return err
	}
	r.begun.Add(1)
	copy(offer, instant(at))
	_, err = publish(nc, p.workSubject(int(n)%r.cfg.Agents, ticket, seq), 0, offer)
	return err
}

// The consumers' limits, as those of Handoff.
const (
	ackPendingMax = 100_000
	waitingMax    = 10_000
	followPending = 50_000
	followBatch   = 512
)

// work serves the agents. end stops it.
func (r *runner) work(ctx context.Context) (end func(), err error) {
	slots := max(1, r.cfg.Slots/r.cfg.Agents)
	var ends []func()
	end = func() {
		for _, fn := range ends {
			fn()
		}
	}
	for agent := range r.cfg.Agents {
		nc := r.workers[agent%len(r.workers)]
		offers := make(chan jetstream.Msg, 2*slots)
		var consuming []jetstream.ConsumeContext
		var wg sync.WaitGroup
		ends = append(ends, func() {
			for _, c := range consuming {
				c.Stop()
				<-c.Closed()
			}
			close(offers)
			wg.Wait()
		})
		for _, p := range r.partitions {
			c, err := p.consume(ctx, nc, agent, 2*slots, offers)
			if err != nil {
				end()
				return nil, err
			}
			consuming = append(consuming, c)
		}
		for range slots {
			wg.Go(func() {
				for m := range offers {
					if err := r.serve(nc, m); err != nil {
						r.cancel(err)
					}
				}
			})
		}
	}
	return end, nil
}

// serve makes the further appends of a handoff.
func (r *runner) serve(nc *nats.Conn, m jetstream.Msg) error {
	tokens := strings.Split(m.Subject(), ".")
	if len(tokens) < 2 {
		return errors.New("the bare engine: an offer of another kind: " + m.Subject())
	}
	ticket := tokens[len(tokens)-2]
	seq, err := strconv.ParseUint(tokens[len(tokens)-1], 10, 64)
	if err != nil {
		return err
	}
	at, err := strconv.ParseInt(string(m.Data()[:len(instant(0))]), 16, 64)
	if err != nil {
		return err
	}
	p := r.partitionOf(ticket)
	for range share(r.cfg.Appends-1, r.served.Add(1)-1) {
		if seq, err = publish(nc, p.ledgerPrefix+ticket, seq, r.later); err != nil {
			return err
		}
	}
	if r.measuring.Load() {
		r.inWindow.Add(1)
		r.mu.Lock()
		_ = r.hist.RecordValue(r.now() - at)
		r.mu.Unlock()
	}
	if err := m.Ack(); err != nil {
		return err
	}
	r.ended.Add(1)
	<-r.open
	return nil
}

// follow gets every entry of the ledgers and acknowledges it. stop ends it.
func (r *runner) follow(ctx context.Context, js jetstream.JetStream) (stop func(), err error) {
	var following []jetstream.ConsumeContext
	stop = func() {
		for _, c := range following {
			c.Stop()
			<-c.Closed()
		}
	}
	for _, p := range r.partitions {
		c, err := p.follow(ctx, js)
		if err != nil {
			stop()
			return nil, err
		}
		following = append(following, c)
	}
	return stop, nil
}
