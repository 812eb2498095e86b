package jetstream

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/protocol"
)

const (
	// workAckPendingMax bounds the delivered offers of one lane. It does not limit workers, which hold
	// one per slot: only an agent with 100,000 busy slots in one lane would reach it.
	workAckPendingMax = 100_000
	// workWaitingMax bounds the pulls that wait on one lane.
	workWaitingMax = 10_000
)

// EnsureQueue implements broker.Engine: one durable consumer per lane, in memory. A single node
// forgets them when it restarts; the offers remain.
func (j *Engine) EnsureQueue(ctx context.Context, agent string) error {
	err := j.retryWithTimeout(ctx, func(ctx context.Context) error { return j.ensureLanes(ctx, agent) })
	return inContext(err, "queue of %s", agent)
}

// KeepOffers implements broker.Engine. The consumers of a queue have one ack wait, which serves the
// worker with the longest lease.
func (j *Engine) KeepOffers(ctx context.Context, agent string, wait time.Duration) error {
	wait = min(max(wait, broker.AckWaitMin), j.cfg.AckWait)
	j.mu.Lock()
	j.ackWaits[agent] = wait
	j.mu.Unlock()
	err := j.retryWithTimeout(ctx, func(ctx context.Context) error {
		errs := make([]error, len(protocol.Priorities))
		var wg sync.WaitGroup
		for i, lane := range protocol.Priorities {
			wg.Go(func() { errs[i] = j.keepLane(ctx, j.queueIn(agent), laneConsumer(agent, lane), wait) })
		}
		wg.Wait()
		return errors.Join(errs...)
	})
	return inContext(err, "queue of %s", agent)
}

func (j *Engine) keepLane(ctx context.Context, p int, name string, wait time.Duration) error {
	consumer, err := j.js.Consumer(ctx, workStreams[p], name)
	if errors.Is(err, jetstream.ErrConsumerNotFound) || errors.Is(err, jetstream.ErrStreamNotFound) {
		return nil // the process that recreates it sets it
	}
	if err != nil {
		return err
	}
	info := consumer.CachedInfo()
	idle := info.NumWaiting == 0 && info.NumAckPending == 0
	if wait == info.Config.AckWait || wait < info.Config.AckWait && !idle {
		return nil
	}
	cfg := info.Config
	cfg.AckWait = wait
	_, err = j.js.UpdateConsumer(ctx, workStreams[p], cfg)
	return err
}

// ackWait returns the ack wait for a queue's consumers that this process creates.
func (j *Engine) ackWait(agent string) time.Duration {
	j.mu.Lock()
	defer j.mu.Unlock()
	return cmp.Or(j.ackWaits[agent], j.cfg.AckWait)
}

// ensureLanes creates the four consumers concurrently: on three replicas each takes 50 ms or more.
// If the engine has no room for all of them, it creates none.
func (j *Engine) ensureLanes(ctx context.Context, agent string) error {
	errs, made := make([]error, len(protocol.Priorities)), make([]bool, len(protocol.Priorities))
	var wg sync.WaitGroup
	p := j.queueIn(agent)
	for i, lane := range protocol.Priorities {
		wg.Go(func() { made[i], errs[i] = j.ensureLane(ctx, p, agent, lane) })
	}
	wg.Wait()
	err := errors.Join(errs...)
	if !hasCode(err, codeNoMoreConsumers) {
		return err
	}
	for i, lane := range protocol.Priorities {
		if made[i] {
			err = errors.Join(err, j.js.DeleteConsumer(ctx, workStreams[p], laneConsumer(agent, lane)))
		}
	}
	return fmt.Errorf("%w (%w)", protocol.Errorf(protocol.CodeTooLarge, "agent",
		"the engine has no room for the queue of %s: stream %s accepts no more consumers, and every queue has %d; delete those of removed agents (nats consumer rm %s AGENT-LANE)",
		agent, workStreams[p], len(protocol.Priorities), workStreams[p]), err)
}

// laneConfig returns the configuration of a lane's consumer.
func laneConfig(p int, agent string, lane protocol.Priority, ackWait time.Duration) jetstream.ConsumerConfig {
	return jetstream.ConsumerConfig{
		Durable: laneConsumer(agent, lane), FilterSubject: laneFilter(p, agent, lane),
		AckPolicy: jetstream.AckExplicitPolicy, AckWait: ackWait, MaxDeliver: -1,
		MaxAckPending: workAckPendingMax, MaxWaiting: workWaitingMax, MemoryStorage: true,
	}
}

// ensureLane creates a lane's consumer. made reports whether it is new, by the engine's clock.
func (j *Engine) ensureLane(ctx context.Context, p int, agent string, lane protocol.Priority) (made bool, err error) {
	cfg := laneConfig(p, agent, lane, j.ackWait(agent))
	consumer, err := j.js.CreateConsumer(ctx, workStreams[p], cfg)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		if err := j.recreate(ctx); err != nil {
			return false, err
		}
		consumer, err = j.js.CreateConsumer(ctx, workStreams[p], cfg)
	}
	if errors.Is(err, jetstream.ErrConsumerExists) {
		j.warnConfigDrift(ctx, p, cfg)
		return false, nil // changed by an operator, or from an older version: keep it
	}
	if err != nil {
		return false, err
	}
	info := consumer.CachedInfo()
	return info.TimeStamp.Sub(info.Created) < time.Second, nil
}

// warnConfigDrift logs the settings in which a lane's consumer differs from ours, once per
// consumer. Such a consumer may explain why a lane serves no worker.
func (j *Engine) warnConfigDrift(ctx context.Context, p int, ours jetstream.ConsumerConfig) {
	j.mu.Lock()
	told := j.configDriftWarned[ours.Durable]
	j.mu.Unlock()
	if told {
		return
	}
	consumer, err := j.js.Consumer(ctx, workStreams[p], ours.Durable)
	if err != nil {
		return // only the warning is lost, and repeated next time
	}
	if is := consumer.CachedInfo().Config.AckWait; is >= broker.AckWaitMin && is <= broker.AckWait {
		ours.AckWait = is // that of another worker: see KeepOffers
	}
	for _, d := range consumerDifferences(consumer.CachedInfo().Config, ours) {
		j.cfg.Log.Warn("a queue's consumer has other settings than those of Handoff, and is kept; delete it to have it recreated",
			"consumer", ours.Durable, "field", d.field, "is", d.is, "ours", d.ours)
	}
	j.mu.Lock()
	j.configDriftWarned[ours.Durable] = true
	j.mu.Unlock()
}

// difference is a field of a consumer's configuration by its name in the engine, with its values as
// JSON (durations in nanoseconds), "" if not set.
type difference struct{ field, is, ours string }

func (d difference) String() string {
	return fmt.Sprintf("%s is %s and should be %s", d.field, settingValue(d.field, d.is), settingValue(d.field, d.ours))
}

func consumerDifferences(is, ours jetstream.ConsumerConfig) []difference {
	is.Name, is.Metadata = ours.Name, ours.Metadata // the engine sets them
	return differences(is, ours)
}

// differences compares all fields, including those set by an operator that we do not know.
func differences(is, ours any) []difference {
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
		_ = json.Unmarshal(raw, &all) // always an object, since cfg is a struct
	}
	return all
}

func offerMessage(p int, key broker.OfferKey, body []byte, trace protocol.TraceContext) *message {
	msg := newMessage(workSubject(p, key), body)
	// No message id: a duplicate window would drop an offer that is needed again, and accept a
	// duplicate after its end.
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
	return depth, inContext(err, "depth of the queue of %s", agent)
}

func (j *Engine) laneDepth(ctx context.Context, agent string, lane protocol.Priority) (int, error) {
	p := j.queueIn(agent)
	consumer, err := j.js.Consumer(ctx, workStreams[p], laneConsumer(agent, lane))
	switch {
	case err == nil:
		info := consumer.CachedInfo()
		return int(info.NumPending) + info.NumAckPending, nil
	case errors.Is(err, jetstream.ErrStreamNotFound):
		return 0, nil
	case !errors.Is(err, jetstream.ErrConsumerNotFound):
		return 0, err
	}
	// Without a worker it has no consumer: the stream counts its subjects, one per offer.
	info, err := j.countSubjects(ctx, workStreams[p], laneFilter(p, agent, lane), subjectsMax)
	if err != nil {
		return 0, err
	}
	return info.Total, nil
}

// Pull implements broker.Engine. While the engine does not answer it retries until wait is over; it
// returns ErrUnreachable if there was no answer at all.
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
	got, err := p.pull(ctx, min(most, workAckPendingMax), wait) // no lane delivers more
	if err != nil {
		return nil, fmt.Errorf("pull for %s: %w", agent, err)
	}
	return got, nil
}

// takePuller returns an unused puller: the most recently used one, whose requests may still be
// active.
func (j *Engine) takePuller(agent string) (*puller, error) {
	queue := j.queueIn(agent)
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.closed {
		return nil, broker.ErrClosed
	}
	for idle := j.pullers[agent]; len(idle) > 0; {
		p := idle[len(idle)-1]
		idle = idle[:len(idle)-1]
		j.pullers[agent] = idle
		p.idle.Stop()
		if p.queue == queue {
			return p, nil
		}
		p.close() // of the partition before
	}
	return newPuller(j, agent, queue)
}

// takenCount returns the count of an agent's offers that this process has taken. It outlives the
// pullers, because the turns of waiting lanes depend on it. The caller holds j.mu.
func (j *Engine) takenCount(agent string) *atomic.Int64 {
	count := j.taken[agent]
	if count == nil {
		count = new(atomic.Int64)
		j.taken[agent] = count
	}
	return count
}

// ResumeCount sets the count of an agent's taken offers to all deliveries since its consumers were
// created, by any process. It is for processes that take an offer or two and end: with a count from
// zero, none would ever reach the turns of the less urgent lanes (weighted fair queueing, 7:1).
func (j *Engine) ResumeCount(ctx context.Context, agent string) error {
	delivered := uint64(0)
	for _, lane := range protocol.Priorities {
		consumer, err := j.js.Consumer(ctx, workStreams[j.queueIn(agent)], laneConsumer(agent, lane))
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

// crowdMin is the number of consumers on the work stream from which on offers are removed by their
// sequence rather than by an acknowledgement: with each acknowledgement the engine checks for every
// consumer of the stream whether it needs the message, 0.45 µs each, and stores nothing else
// meanwhile. A removal by sequence checks only the consumer of the offer, and costs a request to
// the engine's API, about as much as 50 consumers. Below half of crowdMin, acknowledgements are
// used again.
const crowdMin = 100

// recordOfferCount gets the state of a work stream every few seconds. Offers are removed by
// sequence if there are many consumers, and a probe succeeded: an operator may deny it. On replicas
// acknowledgements are always used.
func (j *Engine) recordOfferCount(ctx context.Context, p int, info *jetstream.StreamInfo) {
	many := &j.manyOffers[p]
	consumers, crowded := info.State.Consumers, many.Load()
	switch {
	case info.Config.Replicas > 1 || consumers < crowdMin/2:
		many.Store(false)
	case !crowded && consumers >= crowdMin && j.removeCheckedOn[p] != j.connectionCount.Load()+1:
		j.removeCheckedOn[p] = j.connectionCount.Load() + 1
		many.Store(j.mayRemove(ctx, p, info.State.LastSeq))
	}
}

// mayRemove reports whether the engine permits removal by sequence. It probes with a sequence that
// the stream will never reach.
func (j *Engine) mayRemove(ctx context.Context, p int, last uint64) bool {
	const far = 1 << 50
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	reply, err := j.nc.RequestWithContext(ctx, removeSubjects[p], removeBody(last+far))
	var answer struct {
		Type string `json:"type"`
	}
	return err == nil && json.Unmarshal(reply.Data, &answer) == nil && answer.Type == "io.nats.jetstream.api.v1.stream_msg_delete_response"
}

const (
	removeRequest = "STREAM.MSG.DELETE."
	removePrefix  = apiPrefix + removeRequest
)

var removeSubjects = namesOf(removePrefix+WorkStream, partitioned)

func removeBody(sequence uint64) []byte {
	body := make([]byte, 0, 64)
	body = append(body, `{"seq":`...)
	body = strconv.AppendUint(body, sequence, 10)
	return append(body, `,"no_erase":true}`...)
}

// Remove implements Delivery. Like every acknowledgement it is sent without waiting for an answer.
func (q *delivery) Remove() error {
	if q.j.manyOffers[q.queue].Load() {
		if sent := readAckSubject(q.reply); sent.deliveries > 0 {
			if err := q.j.nc.Publish(removeSubjects[q.queue], removeBody(sent.sequence)); err != nil {
				return fmt.Errorf("remove offer %s: %w: %w", q.key.Ticket, broker.ErrUnreachable, err)
			}
			return nil
		}
	}
	return q.acknowledge("remove", ackRemove)
}
