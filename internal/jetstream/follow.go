package jetstream

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/lifecycle"
)

const (
	// followBatch is how many messages a follower requests at once: enough to hide the latency of the
	// engine, few enough to leave others a share.
	followBatch = 128
	// followAckPendingMax bounds the unacknowledged messages of all followers. A supervisor keeps few;
	// messages that no supervisor can process must not block the others.
	followAckPendingMax = 50_000
)

// ledgerFollower and dueFollower return the consumers of a partition that supervisors share.
func ledgerFollower(p int) jetstream.ConsumerConfig {
	return jetstream.ConsumerConfig{Durable: SupervisorConsumer, DeliverPolicy: jetstream.DeliverNewPolicy, FilterSubject: ledgerPrefixes[p] + ">"}
}

func dueFollower(p int) jetstream.ConsumerConfig {
	return jetstream.ConsumerConfig{Durable: SupervisorConsumer, FilterSubject: duePrefixes[p] + ">"}
}

// followConfig returns the configuration of a shared consumer.
func followConfig(cfg jetstream.ConsumerConfig, ackWait time.Duration) jetstream.ConsumerConfig {
	cfg.AckPolicy, cfg.AckWait, cfg.MaxDeliver, cfg.MaxAckPending = jetstream.AckExplicitPolicy, ackWait, -1, followAckPendingMax
	return cfg
}

// attentionHeader is the attention of an announced append. A wake-up has none.
const attentionHeader = "Handoff-Attention"

// Follow implements broker.Engine. It retries until ctx ends or the engine is closed.
func (j *Engine) Follow(ctx context.Context, fn func(broker.Entry, func())) error {
	err := j.followAll(ctx, ledgerStreams, ledgerFollower, func(m *nats.Msg, done func()) {
		sent := readAckSubject(m.Reply)
		ticket, ok := parseLedgerSubject(m.Subject)
		if sent.deliveries == 0 || !ok {
			done() // never an entry of ours
			return
		}
		fn(broker.Entry{Ticket: ticket, Seq: sent.sequence, At: time.Unix(0, sent.at).UTC(), Body: m.Data}, done)
	})
	return fmt.Errorf("follow the ledger: %w", err)
}

// Due implements broker.Engine. It retries until ctx ends or the engine is closed.
func (j *Engine) Due(ctx context.Context, fn func(broker.WakeUp, func())) error {
	err := j.followAll(ctx, timerStreams, dueFollower, func(m *nats.Msg, done func()) {
		ticket, seq, ok := parseDueSubject(m.Subject)
		if !ok {
			done()
			return
		}
		at, _ := time.Parse(time.RFC3339Nano, string(m.Data)) // an announcement has no body
		fn(broker.WakeUp{Ticket: ticket, Seq: seq, At: at, Attention: lifecycle.Attention(m.Header.Get(attentionHeader))}, done)
	})
	return fmt.Errorf("wait for due wake-ups: %w", err)
}

// wakeUpMessage returns the schedule of a wake-up, formatted here because the library's would be
// truncated to whole seconds. The fired message no longer has the schedule, so its body repeats the
// instant.
func wakeUpMessage(ticket string, seq uint64, at time.Time) *message {
	when := at.UTC().Format(time.RFC3339Nano)
	msg := newMessage(timerSubject(ticket, seq), []byte(when))
	msg.set(jetstream.ScheduleHeader, "@at "+when)
	msg.set(jetstream.ScheduleTargetHeader, dueSubject(ticket, seq))
	return msg
}

// announcement returns the message that announces an append: a wake-up that is due already.
func announcement(w *broker.WakeUp) *message {
	msg := newMessage(dueSubject(w.Ticket, w.Seq), nil)
	msg.set(attentionHeader, string(w.Attention))
	return msg
}

// follower is one share in a durable consumer.
type follower struct {
	j      *Engine
	stream string
	cfg    jetstream.ConsumerConfig
	inbox  string // ends with a dot
	msgs   chan *nats.Msg

	id      uint64 // of the current request; 0: none
	left    int
	expires time.Time
	epoch   uint64

	came int // messages for the last request

	delivered uint64 // by the consumer, to any follower, as far as known
	overdue   uint64 // the last undelivered message when the last request ended empty
}

// followAll passes fn this process's share of the shared consumers of all partitions, one message at a
// time.
func (j *Engine) followAll(ctx context.Context, streams names, cfg func(p int) jetstream.ConsumerConfig, fn func(*nats.Msg, func())) error {
	return j.whileGrowing(ctx, func(ctx context.Context, p int, one *sync.Mutex) error {
		return j.follow(ctx, streams[p], cfg(p), func(m *nats.Msg, done func()) {
			one.Lock()
			defer one.Unlock()
			fn(m, done)
		})
	})
}

// follow passes fn this process's share of a shared consumer.
func (j *Engine) follow(ctx context.Context, stream string, cfg jetstream.ConsumerConfig, fn func(*nats.Msg, func())) error {
	cfg = followConfig(cfg, min(j.cfg.AckWait, broker.FollowWait))
	// One request is active at a time, so this never overflows.
	f := &follower{j: j, stream: stream, cfg: cfg, inbox: j.nc.NewInbox() + ".", msgs: make(chan *nats.Msg, 4*followBatch)}
	sub, err := j.nc.ChanSubscribe(f.inbox+"*", f.msgs)
	switch {
	case err != nil && j.isClosed():
		return broker.ErrClosed
	case err != nil:
		return fmt.Errorf("%w: %w", broker.ErrUnreachable, err)
	}
	defer f.releaseRest(sub)
	pauses := newBackOff(ctx)
	ensured := false
	for {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if j.isClosed() {
			return broker.ErrClosed
		}
		link := j.connectionChange()
		err := f.request(ctx, &ensured)
		if err == nil {
			err = f.receive(ctx, link, fn)
		}
		if err == nil {
			pauses.Reset()
			if f.left == 0 && f.came == 0 && ctx.Err() == nil {
				f.recoverStuck(ctx)
			}
			continue
		}
		ensured, f.delivered, f.overdue = false, 0, 0
		j.pause(ctx, pauses.NextBackOff(), link)
	}
}

// pause waits for a time, at least a millisecond, or until ctx, the engine or link ends; nil is no
// link.
func (j *Engine) pause(ctx context.Context, d time.Duration, link <-chan struct{}) {
	timer := time.NewTimer(max(d, time.Millisecond))
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-j.closing.Done():
	case <-link:
	case <-timer.C:
	}
}

// request creates the consumer unless it is known to exist, and requests the next messages unless a
// request is active.
func (f *follower) request(ctx context.Context, ensured *bool) error {
	if !f.j.nc.IsConnected() {
		return errDisconnected
	}
	if !*ensured {
		if err := f.ensure(ctx); err != nil {
			return err
		}
		*ensured = true
	}
	if f.id != 0 && f.epoch == f.j.connectionCount.Load() && time.Now().Before(f.expires) {
		return nil
	}
	return f.send()
}

// ensure creates the consumer if it does not exist. An existing one is not changed: others share
// it.
func (f *follower) ensure(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, tryTimeout)
	defer cancel()
	_, err := f.j.js.Consumer(ctx, f.stream, f.cfg.Durable)
	if errors.Is(err, jetstream.ErrConsumerNotFound) {
		if _, err = f.j.js.CreateConsumer(ctx, f.stream, f.cfg); err == nil && BaseOf(f.stream) == LedgerStream {
			f.j.notifyReconnected() // it starts with new entries: no supervisor has seen those before
		}
	}
	if errors.Is(err, jetstream.ErrStreamNotFound) && BaseOf(f.stream) != LedgerStream {
		if err := f.j.recreate(ctx); err != nil {
			return err
		}
		_, err = f.j.js.CreateConsumer(ctx, f.stream, f.cfg)
	}
	if errors.Is(err, jetstream.ErrConsumerExists) {
		return nil // another supervisor was first
	}
	return err
}

// send requests messages. The request is active until it is used up.
func (f *follower) send() error {
	f.id++
	f.left, f.came, f.epoch = followBatch, 0, f.j.connectionCount.Load()
	f.expires = time.Now().Add(standing + standingGrace)
	body := fmt.Appendf(nil, `{"batch":%d,"expires":%d}`, followBatch, standing.Nanoseconds())
	subject := apiPrefix + "CONSUMER.MSG.NEXT." + f.stream + "." + f.cfg.Durable
	if err := f.j.nc.PublishRequest(subject, f.inbox+strconv.FormatUint(f.id, 10), body); err != nil {
		f.left = 0
		return fmt.Errorf("%w: %w", broker.ErrUnreachable, err)
	}
	return nil
}

// receive calls fn with each message until the request ends (nil) or is lost.
func (f *follower) receive(ctx context.Context, link <-chan struct{}, fn func(*nats.Msg, func())) error {
	lost := time.NewTimer(time.Until(f.expires))
	defer lost.Stop()
	for f.left > 0 {
		if ctx.Err() != nil { // select would choose at random
			return nil
		}
		select {
		case m := <-f.msgs:
			if m.Reply != "" {
				f.left--
				f.came++
				reply := m.Reply // the only part that done keeps: it may be held for a while, and bodies are large
				fn(m, func() { _ = f.j.nc.Publish(reply, ackRemove) })
				continue
			}
			if m.Subject != f.inbox+strconv.FormatUint(f.id, 10) {
				continue // the status of an older request
			}
			f.left = 0
			f.expires = time.Time{}
			return statusError(m.Header.Get("Status"))
		case <-ctx.Done():
			return nil
		case <-f.j.closing.Done():
			return nil
		case <-link:
			f.expires = time.Time{}
			return errDisconnected
		case <-lost.C:
			return fmt.Errorf("%w: no status of a request", broker.ErrUnreachable)
		}
	}
	f.expires = time.Time{}
	return nil
}

// releaseRest releases the messages that fn did not receive, and those that still arrive for the
// last request, until it ends: otherwise they are redelivered only after an ack wait. Close cuts it
// short; the engine then finds no client to deliver to.
func (f *follower) releaseRest(sub *nats.Subscription) {
	finish := func() {
		defer func() { _ = sub.Unsubscribe() }()
		over := time.NewTimer(time.Until(f.expires))
		defer over.Stop()
		for f.left > 0 {
			select {
			case m := <-f.msgs:
				f.release(m)
			case <-over.C:
				f.left = 0
			case <-f.j.closing.Done():
				f.left = 0
			}
		}
		for {
			select {
			case m := <-f.msgs:
				f.release(m)
			default:
				return
			}
		}
	}
	if !f.j.start(finish) {
		finish()
	}
}

func (f *follower) release(m *nats.Msg) {
	if m.Reply != "" {
		f.left--
		_ = f.j.nc.Publish(m.Reply, ackRelease)
	} else if m.Subject == f.inbox+strconv.FormatUint(f.id, 10) {
		f.left = 0
	}
}

// A server may live, and lead a consumer, while its copy of the stream is stalled. Clients get no
// error: requests end empty, as they do if there is no message. So a follower that gets nothing
// asks the stream's leader.

// recoverStuck is called when a request has ended empty. If the consumer still withholds a message
// that existed when the previous request ended, it makes another server lead the consumer. It takes
// at most two tries; an unanswered request is repeated after the next empty one.
func (f *follower) recoverStuck(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, 2*tryTimeout)
	defer cancel()
	overdue := f.overdue
	f.overdue = 0
	last, err := f.lastMatching(ctx)
	if err != nil || last <= f.delivered {
		return // unanswered, or no message
	}
	consumer, err := f.j.js.Consumer(ctx, f.stream, f.cfg.Durable)
	if err != nil {
		return
	}
	info := consumer.CachedInfo()
	f.delivered = info.Delivered.Stream
	switch {
	case last <= f.delivered: // delivered to others
	case info.NumAckPending >= info.Config.MaxAckPending: // the others have too many
	case overdue <= f.delivered: // it may still be delivered
		f.overdue = last
	default:
		err := f.stepDown(ctx)
		f.j.cfg.Log.Warn("a consumer withholds messages; another server is asked to lead it",
			"stream", f.stream, "consumer", f.cfg.Durable, "delivered", f.delivered, "last", last, "err", err)
	}
}

// lastMatching returns the sequence of the last message for the consumer.
func (f *follower) lastMatching(ctx context.Context) (uint64, error) {
	if BaseOf(f.stream) == LedgerStream { // all messages match; a search by subject would scan them
		ledger, err := f.j.partitionInfo(ctx, slices.Index(ledgerStreams[:], f.stream))
		return ledger.Last, err
	}
	found, err := f.j.getMessage(ctx, f.stream, getRequest{LastFor: f.cfg.FilterSubject})
	return found.Seq, err
}

// stepDown makes the server that leads the consumer pass the lead to another.
func (f *follower) stepDown(ctx context.Context) error {
	return requestAPI(ctx, f.j.nc, "CONSUMER.LEADER.STEPDOWN."+f.stream+"."+f.cfg.Durable, nil, &apiAnswer{})
}
