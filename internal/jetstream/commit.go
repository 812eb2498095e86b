package jetstream

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nuid"

	"github.com/agenthandoff/handoff/broker"
)

// Headers of the engine's atomic batches.
const (
	batchIDHeader     = "Nats-Batch-Id"
	batchSeqHeader    = "Nats-Batch-Sequence"
	batchCommitHeader = "Nats-Batch-Commit"
)

// Limits of the group commit. The measurements for them are in docs/design/commits.md.
const (
	// singlesMax is the number of single appends in flight: the engine always has the next one ready
	// when it has synced one.
	singlesMax = 2
	// batchLeastMin and batchLeastMax bound, and batchLeast0 initializes, the number of appends that
	// have to wait before a batch is faster than single appends.
	batchLeastMin, batchLeastMax, batchLeast0 = 3, 32, 4
	// singlesCount is the number of consecutive single appends timed together: the engine may answer
	// two at once, so a single sample is noise.
	singlesCount = 4
	// batchAgain is how long to wait, in multiples of the last batch time, before a small batch is
	// tried even if it seems too small to be worth it, so that one slow batch is not the last.
	// singlesAgain is the same for a few singles while batches are small, so that the cost of a single
	// stays current. Together they cost about 3 %.
	batchAgain, singlesAgain = 32, 64
	// batchMost and batchBytesMax limit one batch. The engine refuses more than
	// 1,000 messages.
	batchMost     = 256
	batchBytesMax = 4 << 20
	// batchEachBytesMax is the largest append that joins a batch. A larger one gains nothing from a
	// batch, and if the connection refuses it for its size, the others would be refused with it.
	batchEachBytesMax = 256 << 10
	// batchBackoff is how long appends are sent singly after the engine refused a batch for any reason
	// other than a conflict in it.
	batchBackoff = 5 * time.Second
)

// committer is the group commit of one partition of the ledger. A single node that syncs every write syncs once per
// append, but also once per atomic batch, before it acknowledges it. So while one commit is in
// flight the committer queues new appends, and sends those of different tickets as one batch, each
// with its own compare-and-set.
//
// A batch does not change the guarantees of Append. One conflict refuses it as a whole, and after a
// timeout its outcome is unknown: then each of its appends is tried singly, under the same id, and
// judged as if there had been no batch. A batch that its sender did not finish is never stored.
//
// The committer has a goroutine only while a batch is in flight, and Close waits for it.
type committer struct {
	j      *Engine
	on     atomic.Bool // group commit is worthwhile for this ledger
	prefix string      // of the ids of batches; unique per engine

	mu           sync.Mutex
	waiting      []*pendingAppend
	singles      int       // single appends in flight; never together with a batch
	batching     bool      // a batch is in flight
	batches      uint64    // sent so far
	backoffUntil time.Time // until then no batch is sent

	// The recent cost of one single and one batch; 0 is unknown. Their ratio decides from how many
	// appends on a batch is faster.
	single, batch time.Duration
	took          time.Duration // duration of the previous batch, which is not yet averaged into batch
	batched       time.Time     // when the last batch ended
	singled       time.Time     // when single was last measured
	began         time.Time     // start of the current group of measured singles
	count         int           // how many of them have ended
}

// pendingAppend is an append that waits to be sent.
type pendingAppend struct {
	msg       *nats.Msg
	admitted  chan admission // has room for one admission
	cancelled bool           // cancelled; under mu
	copied    chan struct{}  // of its batch: closed once the batch no longer needs msg; under mu
}

// admission is the outcome of the wait: the append is stored as seq, or must be sent singly.
type admission struct {
	seq uint64
	c   *committer // not nil: it counts as a single until release
}

func newCommitter(j *Engine) *committer {
	// nuid.Next would not do: all its values in one process share a prefix, and the engine treats two
	// batches with the same id as one that is out of order.
	return &committer{j: j, prefix: nuid.New().Next()[:10]}
}

// readConfig reads from the first ledger stream whether appends are to be grouped. Only the creator of
// the streams knows how the server syncs, and records it (Topology.Fsync).
func (j *Engine) readConfig(cfg jetstream.StreamConfig) {
	synced := cfg.Metadata[metaFsync] == FsyncAlways || cfg.Metadata[metaAsyncWork] == "true"
	for _, c := range j.commits {
		c.on.Store(cfg.AllowAtomicPublish && cfg.Replicas == 1 && synced)
	}
}

// awaitAdmission waits until an append may be sent. It fails only if ctx ends or the engine is
// closed. The caller may reuse the message in any case.
func (c *committer) awaitAdmission(ctx context.Context, msg *nats.Msg) (admission, error) {
	if !c.on.Load() || len(msg.Data) > batchEachBytesMax {
		return admission{}, nil
	}
	c.mu.Lock()
	if len(c.waiting) == 0 && !c.batching && c.singles < singlesMax {
		defer c.mu.Unlock()
		return c.admitSingle(), nil
	}
	t := &pendingAppend{msg: msg, admitted: make(chan admission, 1)}
	c.waiting = append(c.waiting, t)
	c.admitNext()
	c.mu.Unlock()
	select {
	case p := <-t.admitted:
		return p, nil
	case <-ctx.Done():
		return c.cancelWait(t, ctx.Err())
	case <-c.j.closing.Done():
		return c.cancelWait(t, broker.ErrClosed)
	}
}

// cancelWait ends the wait of an append that may have been admitted meanwhile.
func (c *committer) cancelWait(t *pendingAppend, why error) (admission, error) {
	c.mu.Lock()
	t.cancelled = true
	copied := t.copied
	c.mu.Unlock()
	if copied != nil {
		<-copied
	}
	select {
	case p := <-t.admitted:
		if p.seq > 0 {
			return p, nil
		}
		p.release()
	default:
	}
	return admission{}, why
}

// admitSingle counts one more single. Under mu.
func (c *committer) admitSingle() admission {
	if c.singles == 0 {
		c.began, c.count = time.Now(), 0
	}
	c.singles++
	return admission{c: c}
}

// release ends the first try of a single. It is idempotent. Further tries are not counted: they
// wait for the engine to recover.
func (p *admission) release() {
	c := p.c
	if c == nil {
		return
	}
	p.c = nil
	c.mu.Lock()
	defer c.mu.Unlock()
	c.singles--
	if c.count++; c.singles == 0 || c.count == singlesCount {
		now := time.Now()
		c.recordSingles(now.Sub(c.began), c.count)
		c.began, c.count = now, 0
	}
	c.admitNext()
}

// recordSingles averages the cost of a few singles. The engine answers a batch before it has
// cleaned up after it, so the delay of the singles right after it counts as the batch's. Under mu.
func (c *committer) recordSingles(took time.Duration, count int) {
	if c.took == 0 {
		updateMean(&c.single, took/time.Duration(count))
		c.singled = time.Now()
		return
	}
	if c.single > 0 {
		c.took += max(took-time.Duration(count)*c.single, 0)
	}
	updateMean(&c.batch, c.took)
	c.took = 0
}

// recordBatch records the cost of a batch. The cost of a large batch is scaled down, since only the
// cost of a small one matters. Under mu.
func (c *committer) recordBatch(took time.Duration, count int) {
	if c.took > 0 {
		updateMean(&c.batch, c.took)
	}
	c.took = took * batchLeastMax / time.Duration(max(count, batchLeastMax))
}

// updateMean moves a mean an eighth of the way to a new value. A disk's momentary stall does not
// predict the next duration.
func updateMean(mean *time.Duration, took time.Duration) {
	if *mean == 0 {
		*mean = took
	}
	*mean += (min(took, 4**mean) - *mean) / 8
}

// minBatch returns the number of appends that are worth a batch: 1.5 times the number that would
// take as long singly. Under mu.
func (c *committer) minBatch() int {
	if c.single <= 0 || c.batch <= 0 {
		return batchLeast0
	}
	switch {
	case time.Since(c.batched) > batchAgain*c.batch:
		return batchLeastMin
	case time.Since(c.singled) > singlesAgain*c.batch:
		return batchLeastMax
	}
	return int(min(max(c.batch*3/2/c.single, batchLeastMin), batchLeastMax))
}

// admitNext admits the appends that may be sent. While a batch is in flight all wait: the engine
// would process them after it, and together they cost less. Under mu.
func (c *committer) admitNext() {
	if c.batching {
		return
	}
	if least := c.minBatch(); len(c.waiting) >= least && time.Now().After(c.backoffUntil) {
		// Not together with singles: the engine may answer those after the batch, and the costs could not
		// be separated.
		if c.singles > 0 {
			return
		}
		if appends := c.takeBatch(least); appends != nil {
			c.startBatch(appends)
			return
		}
	}
	for len(c.waiting) > 0 && c.singles < singlesMax {
		t := c.waiting[0]
		c.waiting[0] = nil
		c.waiting = c.waiting[1:]
		if !t.cancelled {
			t.admitted <- c.admitSingle()
		}
	}
}

// takeBatch removes the next batch from the waiting appends, with each ticket at most once, which
// the engine requires. It takes none if there would be fewer than least. Under mu.
func (c *committer) takeBatch(least int) []*pendingAppend {
	tickets := make(map[string]bool, min(len(c.waiting), batchMost))
	var appends, left []*pendingAppend
	size := 0
	for _, t := range c.waiting {
		switch {
		case t.cancelled:
		case len(appends) == batchMost || size+len(t.msg.Data) > batchBytesMax || tickets[t.msg.Subject]:
			left = append(left, t)
		default:
			tickets[t.msg.Subject] = true
			size += len(t.msg.Data)
			appends = append(appends, t)
		}
	}
	if len(appends) < least {
		return nil
	}
	c.waiting = left
	return appends
}

// startBatch sends a batch. If the engine is closed, each waiting append ends with ErrClosed. Under
// mu.
func (c *committer) startBatch(appends []*pendingAppend) {
	copied := make(chan struct{})
	c.batches++
	id := c.prefix + strconv.FormatUint(c.batches, 36)
	for _, t := range appends {
		t.copied = copied
	}
	c.batching = c.j.start(func() { c.runBatch(id, appends, copied) })
	if !c.batching {
		close(copied)
	}
}

func (c *committer) runBatch(id string, appends []*pendingAppend, copied chan struct{}) {
	began := time.Now()
	last, err := c.sendBatch(id, appends, copied)
	// First the waiting appenders, who may have more to append at once, then the next batch.
	for i, t := range appends {
		var p admission
		if err == nil {
			p.seq = last - uint64(len(appends)-1-i)
		}
		t.admitted <- p
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.batching = false
	c.batched = time.Now()
	switch {
	case err == nil:
		c.recordBatch(c.batched.Sub(began), len(appends))
	case !isConflict(err) && !isTemporary(err):
		c.backoffUntil = time.Now().Add(batchBackoff)
		c.j.cfg.Log.Warn("a batch of appends was refused; each is retried singly", "appends", len(appends), "err", err)
	}
	c.admitNext()
}

// sendBatch publishes a batch and returns the sequence of its last message; the others precede it
// without a gap. It tries once, and closes copied.
func (c *committer) sendBatch(id string, appends []*pendingAppend, copied chan struct{}) (uint64, error) {
	ctx, cancel := context.WithTimeout(c.j.closing, tryTimeout)
	defer cancel()
	free := sync.OnceFunc(func() { close(copied) })
	defer free()
	end := len(appends) - 1
	for i, t := range appends[:end] {
		if err := c.j.nc.PublishMsg(t.batchMessage(id, i+1)); err != nil {
			return 0, err
		}
	}
	final := appends[end].batchMessage(id, end+1)
	final.Header[batchCommitHeader] = []string{"1"}
	final.Data = bytes.Clone(final.Data) // the append may give up, and reuse its message, before the answer arrives
	for key, values := range final.Header {
		final.Header[key] = slices.Clone(values)
	}
	free()
	reply, err := c.j.nc.RequestMsgWithContext(ctx, final)
	if err != nil {
		return 0, err
	}
	return batchAckSeq(reply.Data, id, len(appends))
}

// batchMessage returns the append as a message of a batch.
func (t *pendingAppend) batchMessage(id string, seq int) *nats.Msg {
	header := make(nats.Header, len(t.msg.Header)+3)
	maps.Copy(header, t.msg.Header)
	header[batchIDHeader] = []string{id}
	header[batchSeqHeader] = []string{strconv.Itoa(seq)}
	return &nats.Msg{Subject: t.msg.Subject, Header: header, Data: t.msg.Data}
}

// batchAckSeq reads the sequence of a batch's last message from its acknowledgement.
func batchAckSeq(body []byte, id string, count int) (uint64, error) {
	var ack struct {
		Seq   uint64 `json:"seq"`
		Batch string `json:"batch"`
		Count int    `json:"count"`
		apiAnswer
	}
	if err := json.Unmarshal(body, &ack); err != nil {
		return 0, fmt.Errorf("acknowledgement of a batch: %w", err)
	}
	if err := ack.refusal(); err != nil {
		return 0, err
	}
	if ack.Batch != id || ack.Count != count || ack.Seq < uint64(count) {
		return 0, fmt.Errorf("the batch %s of %d was acknowledged as %q of %d, ending at %d", id, count, ack.Batch, ack.Count, ack.Seq)
	}
	return ack.Seq, nil
}
