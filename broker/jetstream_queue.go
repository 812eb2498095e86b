package broker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/agenthandoff/handoff/protocol"
)

const (
	// workAckPendingMax is how many offers of one lane may be in hands at
	// once. It is no limit for workers, who hold one each a slot: an agent
	// with 100,000 busy slots in one lane would meet it.
	workAckPendingMax = 100_000
	// workWaitingMax is how many pulls may wait on one lane at once.
	workWaitingMax = 10_000
)

// EnsureQueue implements Engine: one durable consumer a lane, in memory. A
// single node forgets them when it restarts, while the offers stay.
func (j *JetStream) EnsureQueue(ctx context.Context, agent string) error {
	err := j.patiently(ctx, func(ctx context.Context) error { return j.ensureLanes(ctx, agent) })
	if err != nil {
		return fmt.Errorf("queue of %s: %w", agent, err)
	}
	return nil
}

// ensureLanes makes the four consumers at once: on three replicas each takes
// 50 ms and more.
func (j *JetStream) ensureLanes(ctx context.Context, agent string) error {
	errs := make([]error, len(protocol.Priorities))
	var wg sync.WaitGroup
	for i, lane := range protocol.Priorities {
		wg.Go(func() { errs[i] = j.ensureLane(ctx, agent, lane) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// laneConfig is how the consumer of a lane is made.
func laneConfig(agent string, lane protocol.Priority, ackWait time.Duration) jetstream.ConsumerConfig {
	return jetstream.ConsumerConfig{
		Durable: laneConsumer(agent, lane), FilterSubject: laneFilter(agent, lane),
		AckPolicy: jetstream.AckExplicitPolicy, AckWait: ackWait, MaxDeliver: -1,
		MaxAckPending: workAckPendingMax, MaxWaiting: workWaitingMax, MemoryStorage: true,
	}
}

func (j *JetStream) ensureLane(ctx context.Context, agent string, lane protocol.Priority) error {
	cfg := laneConfig(agent, lane, j.cfg.AckWait)
	_, err := j.js.CreateConsumer(ctx, WorkStream, cfg)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		if err := j.makeHints(ctx); err != nil {
			return err
		}
		_, err = j.js.CreateConsumer(ctx, WorkStream, cfg)
	}
	if errors.Is(err, jetstream.ErrConsumerExists) {
		j.tellForeign(ctx, cfg)
		return nil // an operator's, or an older version's: it stays as it is
	}
	return err
}

// tellForeign logs in which settings a lane's consumer is not as we make it,
// once for each consumer. A lane that serves nobody, or nobody any more, may be
// such a one.
func (j *JetStream) tellForeign(ctx context.Context, ours jetstream.ConsumerConfig) {
	j.mu.Lock()
	told := j.foreign[ours.Durable]
	j.mu.Unlock()
	if told {
		return
	}
	consumer, err := j.js.Consumer(ctx, WorkStream, ours.Durable)
	if err != nil {
		return // it is no more than a word, and comes the next time
	}
	for _, d := range differences(consumer.CachedInfo().Config, ours) {
		j.cfg.Log.Warn("a queue's consumer is not as Handoff makes it, and stays so; to have it made anew, delete it",
			"consumer", ours.Durable, "field", d.field, "is", d.is, "ours", d.ours)
	}
	j.mu.Lock()
	j.foreign[ours.Durable] = true
	j.mu.Unlock()
}

// difference is a field of a consumer's configuration as the engine names it,
// with what it holds as JSON (durations in nanoseconds), "" where it is not set.
type difference struct{ field, is, ours string }

// differences compares by field, for all there are: an operator may have set one
// that we do not know.
func differences(is, ours jetstream.ConsumerConfig) []difference {
	is.Name, is.Metadata = ours.Name, ours.Metadata // the engine fills them in
	has, want := fields(is), fields(ours)
	all := maps.Clone(has)
	maps.Copy(all, want)
	var found []difference
	for _, field := range slices.Sorted(maps.Keys(all)) {
		if string(has[field]) != string(want[field]) {
			found = append(found, difference{field, string(has[field]), string(want[field])})
		}
	}
	return found
}

func fields(cfg any) map[string]json.RawMessage {
	var all map[string]json.RawMessage
	if raw, err := json.Marshal(cfg); err == nil {
		_ = json.Unmarshal(raw, &all) // an object, as it was made from a struct
	}
	return all
}

// PutOffer implements Engine. A time-out is tried again for 5 s.
func (j *JetStream) PutOffer(ctx context.Context, key OfferKey, body []byte) error {
	msg := nats.NewMsg(workSubject(key))
	msg.Data = body
	// No message id: a window of duplicates would lose an offer that is
	// wanted again, and let a second one in when it is over.
	msg.Header[jetstream.ExpectedLastSubjSeqHeader] = []string{"0"}
	traceHeaders(ctx, msg)
	err := j.publishHint(ctx, msg)
	if err != nil && !hasCode(err, codeConflict) {
		return fmt.Errorf("offer %s to %s: %w", key.Ticket, key.Agent, err)
	}
	return nil
}

// QueueDepth implements Engine.
func (j *JetStream) QueueDepth(ctx context.Context, agent string) (int, error) {
	depth := 0
	err := j.patiently(ctx, func(ctx context.Context) error {
		depth = 0
		for _, lane := range protocol.Priorities {
			n, err := j.laneDepth(ctx, agent, lane)
			if err != nil {
				return err
			}
			depth += n
		}
		return nil
	})
	if err != nil {
		return 0, fmt.Errorf("depth of the queue of %s: %w", agent, err)
	}
	return depth, nil
}

func (j *JetStream) laneDepth(ctx context.Context, agent string, lane protocol.Priority) (int, error) {
	consumer, err := j.js.Consumer(ctx, WorkStream, laneConsumer(agent, lane))
	switch {
	case err == nil:
		info := consumer.CachedInfo()
		return int(info.NumPending) + info.NumAckPending, nil
	case errors.Is(err, jetstream.ErrStreamNotFound):
		return 0, nil
	case !errors.Is(err, jetstream.ErrConsumerNotFound):
		return 0, err
	}
	// Nobody pulls from it, so that it has no consumer: the stream counts its
	// subjects, one an offer.
	info, err := j.countSubjects(ctx, WorkStream, laneFilter(agent, lane), subjectsMax)
	if err != nil {
		return 0, err
	}
	return info.Total, nil
}

// queued is an offer as delivered. It implements Delivery.
type queued struct {
	key   OfferKey
	body  []byte
	reply string // what an acknowledgement is published to
	nc    *nats.Conn
}

var (
	ackRemove   = []byte("+ACK")
	ackGiveBack = []byte("-NAK")
	ackExtend   = []byte("+WPI")
)

func (q *queued) Key() OfferKey   { return q.key }
func (q *queued) Body() []byte    { return q.body }
func (q *queued) Remove() error   { return q.say("remove", ackRemove) }
func (q *queued) GiveBack() error { return q.say("give back", ackGiveBack) }
func (q *queued) Extend() error   { return q.say("extend", ackExtend) }

func (q *queued) say(what string, word []byte) error {
	if err := q.nc.Publish(q.reply, word); err != nil {
		return fmt.Errorf("%s offer %s: %w: %w", what, q.key.Ticket, ErrUnreachable, err)
	}
	return nil
}

// Pull implements Engine. While the engine does not answer it tries again
// until wait is over; it is ErrUnreachable when there was no answer at all.
func (j *JetStream) Pull(ctx context.Context, agent string, most int, wait time.Duration) ([]Delivery, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if most <= 0 {
		return nil, nil
	}
	p, err := j.takePuller(agent)
	if err != nil {
		return nil, fmt.Errorf("pull for %s: %w", agent, err)
	}
	defer j.returnPuller(p)
	got, err := p.pull(ctx, min(most, workAckPendingMax), wait) // no lane gives out more
	if err != nil {
		return nil, fmt.Errorf("pull for %s: %w", agent, err)
	}
	return got, nil
}

// takePuller returns a puller that nobody uses: the one used last, whose
// requests may still stand.
func (j *JetStream) takePuller(agent string) (*puller, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.closed {
		return nil, errClosed
	}
	idle := j.pullers[agent]
	if n := len(idle); n > 0 {
		p := idle[n-1]
		j.pullers[agent] = idle[:n-1]
		p.idle.Stop()
		return p, nil
	}
	return newPuller(j, agent)
}

// takenBy is the count of an agent's offers that this process has taken. It is
// kept when no puller is: the turns of those who wait go by it. The caller has
// j.mu.
func (j *JetStream) takenBy(agent string) *atomic.Int64 {
	count := j.taken[agent]
	if count == nil {
		count = new(atomic.Int64)
		j.taken[agent] = count
	}
	return count
}

// CountOn counts an agent's offers on from all that was ever delivered of them
// since its consumers were made, to whatever process. It is for processes that
// take an offer or two and end: counting from nothing each time, none would ever
// come to the turn of those who wait.
func (j *JetStream) CountOn(ctx context.Context, agent string) error {
	delivered := uint64(0)
	for _, lane := range protocol.Priorities {
		consumer, err := j.js.Consumer(ctx, WorkStream, laneConsumer(agent, lane))
		if err != nil {
			return fmt.Errorf("consumer of %s at %s: %w", lane, agent, err)
		}
		delivered += consumer.CachedInfo().Delivered.Consumer
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.takenBy(agent).Store(int64(delivered))
	return nil
}

// pullerIdle is how long a puller is kept: longer than any of its requests.
const pullerIdle = 2 * standing

func (j *JetStream) returnPuller(p *puller) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.closed {
		p.close()
		return
	}
	j.pullers[p.agent] = append(j.pullers[p.agent], p)
	p.idle = time.AfterFunc(pullerIdle, func() { j.dropPuller(p) })
}

func (j *JetStream) dropPuller(p *puller) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for i, other := range j.pullers[p.agent] {
		if other == p {
			j.pullers[p.agent] = append(j.pullers[p.agent][:i:i], j.pullers[p.agent][i+1:]...)
			p.close()
		}
	}
	if len(j.pullers[p.agent]) == 0 {
		delete(j.pullers, p.agent)
	}
}

func (j *JetStream) closePullers() {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, idle := range j.pullers {
		for _, p := range idle {
			p.idle.Stop()
			p.close()
		}
	}
	clear(j.pullers)
}
