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

// Limits of the group commit. What was measured for them is in
// docs/decisions/0018-group-commit.md.
const (
	// singlesMax is how many appends are in flight by themselves: the engine
	// always has the next one at hand when it has synced one.
	singlesMax = 2
	// batchLeastMin, batchLeastMax and batchLeast0 are the bounds of how many
	// appends have to wait before a batch is worth more than one after another,
	// and what is taken for it before anything was measured.
	batchLeastMin, batchLeastMax, batchLeast0 = 3, 32, 4
	// singlesCount is of how many singles in a row the time is taken: the engine
	// answers two that it has at hand together, so that of one it says little.
	singlesCount = 4
	// batchAgain is after how many times its own time a batch is tried even if it
	// seems too small to be worth it, so that one slow batch is not the last, and
	// singlesAgain after how many a few go by themselves where batches are small,
	// so that what a single costs is not of long ago. They bound what is lost by
	// that, to some 3 %.
	batchAgain, singlesAgain = 32, 64
	// batchMost and batchBytesMax limit one batch. The engine refuses more than
	// 1,000 messages.
	batchMost     = 256
	batchBytesMax = 4 << 20
	// batchEachBytesMax: a larger append goes by itself. It takes its time
	// however it is synced, and what the connection refuses for its size would
	// take the others with it.
	batchEachBytesMax = 256 << 10
	// batchBackoff is how long appends go by themselves after the engine refused a
	// batch for anything but a conflict in it.
	batchBackoff = 5 * time.Second
)

// committer is the group commit of the ledger. A single node that syncs every
// write syncs each append by itself, but an atomic batch once, before it
// acknowledges it. So while one commit is in flight the committer lets the
// appends that come queue, and sends those of different tickets as one batch,
// each with its own compare-and-set.
//
// A batch changes nothing of what Append promises. It is refused as a whole, by
// one conflict in it, and after a time-out it is not known what became of it: then
// each of its appends is tried by itself, under the same id, and judged as if
// there had been no batch. One that its sender did not finish is never stored.
//
// It has a goroutine only while a batch is in flight, and Close waits for that.
type committer struct {
	j      *Engine
	on     atomic.Bool // this ledger gains by it
	prefix string      // of the ids of batches; two engines of one process have not the same

	mu           sync.Mutex
	waiting      []*pendingAppend
	singles      int       // appends in flight by themselves; never beside a batch
	batching     bool      // a batch is in flight
	batches      uint64    // sent so far
	backoffUntil time.Time // until then no batch is sent

	// What one single and one batch cost of late; 0 is not known. Their ratio says
	// from how many appends on a batch is the quicker way.
	single, batch time.Duration
	took          time.Duration // by the batch right before, which is not in batch yet
	batched       time.Time     // when the last batch ended
	singled       time.Time     // when single was last learned
	began         time.Time     // the first of those singles that are measured together
	count         int           // how many of them have ended
}

// pendingAppend is an append that waits to be sent.
type pendingAppend struct {
	msg       *nats.Msg
	admitted  chan admission // has room for the one that is sent
	cancelled bool           // cancelled; under mu
	copied    chan struct{}  // of the batch that it is in: closed once that needs msg no more; under mu
}

// admission is the outcome of the wait: the append is stored as seq, or has to be tried by
// itself.
type admission struct {
	seq uint64
	c   *committer // not nil: it counts as a single until release
}

func newCommitter(j *Engine) *committer {
	// nuid.Next would not do: in one process all that it returns begins alike, and
	// the engine takes two batches of one id for one that is out of order.
	return &committer{j: j, prefix: nuid.New().Next()[:10]}
}

// readConfig takes from the ledger's stream whether appends are to be grouped. Only
// who made the streams knows how the node syncs, and has said so: work that is
// persisted asynchronously is there because everything else is synced.
func (c *committer) readConfig(cfg jetstream.StreamConfig) {
	c.on.Store(cfg.AllowAtomicPublish && cfg.Replicas == 1 && cfg.Metadata[metaAsyncWork] == "true")
}

// rereadConfig is readConfig after a reconnection: the node may have
// restarted with another configuration.
func (c *committer) rereadConfig() {
	ctx, cancel := context.WithTimeout(c.j.closing, tryTimeout)
	defer cancel()
	if stream, err := c.j.js.Stream(ctx, LedgerStream); err == nil {
		c.readConfig(stream.CachedInfo().Config)
	}
}

// awaitAdmission waits until an append may be sent. Its error is that of ctx, or that the
// engine is closed; the message is the caller's again in any case.
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

// release ends the first try of a single. It may be called again.
// Further tries are not counted: they wait for the engine to come back.
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

// recordSingles learns from a few singles. The engine answers a batch before it
// has cleared it away: what those right after wait for that is the batch's. Under
// mu.
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

// recordBatch learns from a batch. A large one counts by its share: what has to be
// known is what a small one costs. Under mu.
func (c *committer) recordBatch(took time.Duration, count int) {
	if c.took > 0 {
		updateMean(&c.batch, c.took)
	}
	c.took = took * batchLeastMax / time.Duration(max(count, batchLeastMax))
}

// updateMean moves a mean an eighth of the way to a new value. A disk that stops for
// a moment says little of the next time.
func updateMean(mean *time.Duration, took time.Duration) {
	if *mean == 0 {
		*mean = took
	}
	*mean += (min(took, 4**mean) - *mean) / 8
}

// minBatch is how many appends are worth a batch: half as many again as would take as
// long one after another. Under mu.
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

// admitNext admits what may be sent. While a batch is in flight all wait:
// the engine would take them after it, and together they cost less. Under mu.
func (c *committer) admitNext() {
	if c.batching {
		return
	}
	if least := c.minBatch(); len(c.waiting) >= least && time.Now().After(c.backoffUntil) {
		// Not beside singles: the engine may answer those after the batch, and what
		// each costs could not be told.
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

// takeBatch takes the next batch out of those that wait: the engine refuses one that
// has a ticket twice. It takes none if there would be fewer than least. Under mu.
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

// startBatch sends a batch, unless the engine is closed: then each append that waits
// ends with ErrClosed. Under mu.
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
	// First those who wait for it, who may have more to append at once, then
	// the next.
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
		c.j.cfg.Log.Warn("a batch of appends was refused, each is tried by itself", "appends", len(appends), "err", err)
	}
	c.admitNext()
}

// sendBatch publishes a batch and returns the sequence that its last message got; the
// others have those before it, without a gap. One try. It closes copied.
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
	final.Data = bytes.Clone(final.Data) // the append may give up, and its message be used again, before the answer comes
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

// batchMessage is the append as one of a batch.
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
		Seq   uint64    `json:"seq"`
		Batch string    `json:"batch"`
		Count int       `json:"count"`
		Error *apiError `json:"error"`
	}
	if err := json.Unmarshal(body, &ack); err != nil {
		return 0, fmt.Errorf("acknowledgement of a batch: %w", err)
	}
	if ack.Error != nil {
		return 0, ack.Error
	}
	if ack.Batch != id || ack.Count != count || ack.Seq < uint64(count) {
		return 0, fmt.Errorf("the batch %s of %d was acknowledged as %q of %d, ending at %d", id, count, ack.Batch, ack.Count, ack.Seq)
	}
	return ack.Seq, nil
}
