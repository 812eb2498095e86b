package jetstream

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

	"github.com/nats-io/nats.go/jetstream"

	"github.com/agenthandoff/handoff/broker"
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

// EnsureQueue implements broker.Engine: one durable consumer a lane, in memory. A
// single node forgets them when it restarts, while the offers stay.
func (j *Engine) EnsureQueue(ctx context.Context, agent string) error {
	err := j.retryWithTimeout(ctx, func(ctx context.Context) error { return j.ensureLanes(ctx, agent) })
	if err != nil {
		return fmt.Errorf("queue of %s: %w", agent, err)
	}
	return nil
}

// ensureLanes makes the four consumers at once: on three replicas each takes
// 50 ms and more. Where the engine has no room for all of them it makes none.
func (j *Engine) ensureLanes(ctx context.Context, agent string) error {
	errs, made := make([]error, len(protocol.Priorities)), make([]bool, len(protocol.Priorities))
	var wg sync.WaitGroup
	for i, lane := range protocol.Priorities {
		wg.Go(func() { made[i], errs[i] = j.ensureLane(ctx, agent, lane) })
	}
	wg.Wait()
	err := errors.Join(errs...)
	if !hasCode(err, codeNoMoreConsumers) {
		return err
	}
	for i, lane := range protocol.Priorities {
		if made[i] {
			err = errors.Join(err, j.js.DeleteConsumer(ctx, WorkStream, laneConsumer(agent, lane)))
		}
	}
	return fmt.Errorf("%w (%w)", protocol.Errorf(protocol.CodeTooLarge, "agent",
		"%s is one more than the engine has room for: stream %s takes no more consumers, of which every queue has %d; delete those of agents that are gone (nats consumer rm %s AGENT-LANE)",
		agent, WorkStream, len(protocol.Priorities), WorkStream), err)
}

// laneConfig is how the consumer of a lane is made.
func laneConfig(agent string, lane protocol.Priority, ackWait time.Duration) jetstream.ConsumerConfig {
	return jetstream.ConsumerConfig{
		Durable: laneConsumer(agent, lane), FilterSubject: laneFilter(agent, lane),
		AckPolicy: jetstream.AckExplicitPolicy, AckWait: ackWait, MaxDeliver: -1,
		MaxAckPending: workAckPendingMax, MaxWaiting: workWaitingMax, MemoryStorage: true,
	}
}

// ensureLane tells whether the consumer was not there before, by the engine's clock.
func (j *Engine) ensureLane(ctx context.Context, agent string, lane protocol.Priority) (made bool, err error) {
	cfg := laneConfig(agent, lane, j.cfg.AckWait)
	consumer, err := j.js.CreateConsumer(ctx, WorkStream, cfg)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		if err := j.makeOutboxStreams(ctx); err != nil {
			return false, err
		}
		consumer, err = j.js.CreateConsumer(ctx, WorkStream, cfg)
	}
	if errors.Is(err, jetstream.ErrConsumerExists) {
		j.warnConfigDrift(ctx, cfg)
		return false, nil // an operator's, or an older version's: it stays as it is
	}
	if err != nil {
		return false, err
	}
	info := consumer.CachedInfo()
	return info.TimeStamp.Sub(info.Created) < time.Second, nil
}

// warnConfigDrift logs in which settings a lane's consumer is not as we make it,
// once for each consumer. A lane that serves no worker, or none any more, may be
// such a one.
func (j *Engine) warnConfigDrift(ctx context.Context, ours jetstream.ConsumerConfig) {
	j.mu.Lock()
	told := j.configDriftWarned[ours.Durable]
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
	j.configDriftWarned[ours.Durable] = true
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

// PutOffer implements broker.Engine. A time-out is tried again for 12 s.
func (j *Engine) PutOffer(ctx context.Context, key broker.OfferKey, body []byte) error {
	if err := key.Validate(); err != nil {
		return err
	}
	msg := offerMessage(key, body, broker.TraceFrom(ctx))
	defer msg.release()
	err := j.storeEntry(ctx, &msg.Msg)
	if err != nil && !hasCode(err, codeConflict) {
		return fmt.Errorf("offer %s to %s: %w", key.Ticket, key.Agent, err)
	}
	return nil
}

func offerMessage(key broker.OfferKey, body []byte, trace protocol.TraceContext) *message {
	msg := newMessage(workSubject(key), body)
	// No message id: a window of duplicates would lose an offer that is
	// wanted again, and let a second one in when it is over.
	msg.set(jetstream.ExpectedLastSubjSeqHeader, "0")
	msg.setTrace(trace)
	return msg
}

// QueueDepth implements broker.Engine.
func (j *Engine) QueueDepth(ctx context.Context, agent string) (int, error) {
	depth := 0
	err := j.retryWithTimeout(ctx, func(ctx context.Context) error {
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

func (j *Engine) laneDepth(ctx context.Context, agent string, lane protocol.Priority) (int, error) {
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
	// No worker pulls from it, so that it has no consumer: the stream counts its
	// subjects, one an offer.
	info, err := j.countSubjects(ctx, WorkStream, laneFilter(agent, lane), subjectsMax)
	if err != nil {
		return 0, err
	}
	return info.Total, nil
}

// Pull implements broker.Engine. While the engine does not answer it tries again
// until wait is over; it is ErrUnreachable when there was no answer at all.
func (j *Engine) Pull(ctx context.Context, agent string, most int, wait time.Duration) ([]broker.Delivery, error) {
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

// takePuller returns a puller that is not in use: the one used last, whose
// requests may still stand.
func (j *Engine) takePuller(agent string) (*puller, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.closed {
		return nil, broker.ErrClosed
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

// takenCount is the count of an agent's offers that this process has taken. It is
// kept when no puller is: the turns of those who wait go by it. The caller has
// j.mu.
func (j *Engine) takenCount(agent string) *atomic.Int64 {
	count := j.taken[agent]
	if count == nil {
		count = new(atomic.Int64)
		j.taken[agent] = count
	}
	return count
}

// ResumeCount resumes the count of an agent's taken offers from all deliveries since its
// consumers were made, by any process. It is for processes that take an offer or two and end:
// with a count from zero, none would ever reach the turns of the less urgent lanes (weighted
// fair queueing, 7:1).
func (j *Engine) ResumeCount(ctx context.Context, agent string) error {
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
	j.takenCount(agent).Store(int64(delivered))
	return nil
}

// pullerIdle is how long a puller is kept: longer than any of its requests.
const pullerIdle = 2 * standing

func (j *Engine) returnPuller(p *puller) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.closed {
		p.close()
		return
	}
	j.pullers[p.agent] = append(j.pullers[p.agent], p)
	if p.idle == nil {
		p.idle = time.AfterFunc(pullerIdle, func() { j.dropPuller(p) })
	} else {
		p.idle.Reset(pullerIdle)
	}
}

func (j *Engine) dropPuller(p *puller) {
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

func (j *Engine) closePullers() {
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
