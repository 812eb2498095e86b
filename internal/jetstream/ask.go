package jetstream

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/protocol"
)

// tryTimeout bounds one try of a request to the engine.
const tryTimeout = 2 * time.Second

// Error codes of the engine that callers branch on.
const (
	codeConflict        = 10071 // the expected sequence is not the last one
	codeConflictFlying  = 10164 // a write is or was in flight: retry
	codeNoMessage       = 10037
	codeNoStream        = 10059
	codeNoMoreConsumers = 10026 // the stream has as many as it may
	codeNoPeers         = 10005 // currently too few nodes for the replicas
	codeUnavailable     = 10008 // this server's cluster has no leader for it, or it can't write
)

var errDisconnected = fmt.Errorf("%w: no connection", broker.ErrUnreachable)

// apiError is the engine's error answer.
type apiError = jetstream.APIError

func hasCode(err error, code jetstream.ErrorCode) bool {
	if err == nil { // the usual case; errors.As would allocate
		return false
	}
	var e jetstream.JetStreamError
	if errors.As(err, &e) && e.APIError() != nil {
		return e.APIError().ErrorCode == code
	}
	return false
}

func isConflict(err error) bool {
	return hasCode(err, codeConflict) || hasCode(err, codeConflictFlying)
}

// isTemporary reports whether the same request may succeed a moment later.
func isTemporary(err error) bool {
	var e jetstream.JetStreamError
	if errors.As(err, &e) && e.APIError() != nil {
		return e.APIError().Code == 503 || e.APIError().ErrorCode == codeConflictFlying
	}
	for _, known := range []error{
		broker.ErrUnreachable, nats.ErrNoResponders, nats.ErrTimeout, nats.ErrDisconnected, nats.ErrConnectionReconnecting,
		nats.ErrReconnectBufExceeded, context.DeadlineExceeded, jetstream.ErrNoStreamResponse, jetstream.ErrNoHeartbeat,
	} {
		if errors.Is(err, known) {
			return true
		}
	}
	return false
}

// newBackOff spaces tries: 2 ms, then up to a quarter of a second, with 50 % jitter so that clients
// that lost the same leader don't return all at once.
func newBackOff(ctx context.Context) backoff.BackOffContext {
	return backoff.WithContext(backoff.NewExponentialBackOff(
		backoff.WithInitialInterval(2*time.Millisecond),
		backoff.WithMultiplier(2),
		backoff.WithMaxInterval(250*time.Millisecond),
		backoff.WithMaxElapsedTime(0),
	), ctx)
}

// retry repeats op while its error is temporary, until ctx ends. Each try
// has tryTimeout. When ctx ends, the error wraps both its cause and op's last.
func (j *Engine) retry(ctx context.Context, op func(context.Context) error) error {
	return j.retryEach(ctx, tryTimeout, op)
}

// retryEach is retry with a given timeout per try.
func (j *Engine) retryEach(ctx context.Context, each time.Duration, op func(context.Context) error) error {
	return j.retryBounded(ctx, func() error {
		tryCtx, cancel := context.WithTimeout(ctx, each)
		defer cancel()
		return op(tryCtx)
	})
}

// retryBounded is retry for an op that itself ends within tryTimeout, and with ctx.
func (j *Engine) retryBounded(ctx context.Context, op func() error) error {
	var last error
	final := false // the last error is not temporary
	first := time.Now()
	try := func() error {
		switch {
		case ctx.Err() != nil:
			final = true
			var disk *diskError
			switch {
			case errors.As(last, &disk): // its text is complete
			case last == nil || errors.Is(last, ctx.Err()):
				last = ctx.Err()
			default:
				last = fmt.Errorf("%w (before that: %w)", ctx.Err(), last)
			}
		case j.isClosed():
			last, final = broker.ErrClosed, true
		case !j.nc.IsConnected():
			last = errDisconnected
		default:
			began := time.Now()
			last = j.denied.explain(j.nc, began, op())
			j.switchServerAfter(first, last)
			if errors.Is(last, nats.ErrConnectionClosed) && j.isClosed() {
				last = broker.ErrClosed // Close ended the connection during a request
			}
			final = last != nil && !isTemporary(last)
		}
		if final {
			return backoff.Permanent(last)
		}
		return last
	}
	if try() == nil || final {
		return last
	}
	if err := backoff.Retry(try, newBackOff(ctx)); err != nil && !final {
		_ = try() // ctx ended during a pause: record it
	}
	return last
}

const (
	// leaveAfter is how long a server may leave a request without the answer of a leader, or report
	// that it reaches none, before we switch to another server: one try.
	leaveAfter = tryTimeout
	// leaveAgain is the minimum time between two switches. During an election, which takes 4 to 9 s, no
	// server can help.
	leaveAgain = 10 * time.Second
)

// switchServerAfter switches to another server, if there is one, when this one has not answered a
// request since it was first sent. The server may be cut off from the others, frozen, or have a
// full disk, and stay so for hours.
func (j *Engine) switchServerAfter(since time.Time, err error) {
	if err == nil || time.Since(since) < leaveAfter || len(j.nc.Servers()) < 2 || !j.nc.IsConnected() {
		return
	}
	if !hasCode(err, codeUnavailable) && !errors.Is(err, nats.ErrNoResponders) && !errors.Is(err, nats.ErrTimeout) && !errors.Is(err, context.DeadlineExceeded) {
		return
	}
	last, now := j.leftServerAt.Load(), time.Now().UnixNano()
	if last != 0 && time.Duration(now-last) < leaveAgain || !j.leftServerAt.CompareAndSwap(last, now) {
		return
	}
	j.cfg.Log.Warn("no answer from a leader through this server; switching to another one", "server", j.nc.ConnectedUrlRedacted(), "err", err)
	_ = j.nc.ForceReconnect() // an error means that the connection is lost already, and reconnects by itself
	j.acks.disconnected()
}

// retryWithTimeout is retry with an end: after Config.Timeout it returns ErrUnreachable.
func (j *Engine) retryWithTimeout(ctx context.Context, op func(context.Context) error) error {
	patient, cancel := context.WithTimeout(ctx, j.cfg.Timeout)
	defer cancel()
	err := j.retry(patient, op)
	if err != nil && ctx.Err() == nil && patient.Err() != nil {
		return &broker.SilenceError{After: j.cfg.Timeout, Last: err}
	}
	return err
}

// apiAnswer is the part of each answer of the engine that has its refusal.
type apiAnswer struct {
	Error *apiError `json:"error"`
}

func (a *apiAnswer) refusal() error {
	if a.Error != nil {
		return a.Error
	}
	return nil
}

// requestAPI sends one request to the engine's API and decodes its answer. A refusal is an error.
func requestAPI(ctx context.Context, nc *nats.Conn, subject string, request []byte, answer interface{ refusal() error }) error {
	reply, err := nc.RequestWithContext(ctx, apiPrefix+subject, request)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(reply.Data, answer); err != nil {
		return fmt.Errorf("answer of %s: %w", subject, err)
	}
	return answer.refusal()
}

// publish stores one message and returns its sequence. One try, of at most tryTimeout.
func (j *Engine) publish(ctx context.Context, msg *nats.Msg) (uint64, error) {
	reply, err := j.acks.publish(ctx, msg, tryTimeout)
	if err != nil {
		return 0, j.explainSilence(err)
	}
	return seqIn(reply.Data)
}

// seqIn returns the sequence in an acknowledgement, or the refusal.
func seqIn(ack []byte) (uint64, error) {
	if seq, ok := ackedSeq(ack); ok {
		return seq, nil
	}
	var answer struct {
		Seq uint64 `json:"seq"`
		apiAnswer
	}
	if err := json.Unmarshal(ack, &answer); err != nil {
		return 0, fmt.Errorf("acknowledgement: %w", err)
	}
	return answer.Seq, answer.refusal()
}

// ackedSeq parses the sequence of an acknowledgement such as
//
//	{"stream":"HANDOFF_LEDGER","seq":81}
//
// which the engine writes four times per handoff. It returns false for any other form, which needs
// a decoder.
func ackedSeq(ack []byte) (seq uint64, ok bool) {
	rest, ok := bytes.CutPrefix(ack, []byte(`{"stream":"`))
	if !ok {
		return 0, false
	}
	_, rest, _ = bytes.Cut(rest, []byte{'"'})
	rest, ok = bytes.CutPrefix(rest, []byte(`,"seq":`))
	if !ok {
		return 0, false
	}
	for i, c := range rest {
		switch {
		case c >= '0' && c <= '9' && i < 19: // more digits might not fit
			seq = seq*10 + uint64(c-'0')
		case c == '}' && i > 0:
			return seq, i == len(rest)-1
		default:
			return 0, false
		}
	}
	return 0, false
}

// storeEntry stores a message of the work or timer stream, and recreates the stream if it is
// missing.
func (j *Engine) storeEntry(ctx context.Context, msg *nats.Msg) error {
	if !j.isClosed() && j.nc.IsConnected() { // the usual case: one try, without its own context
		began := time.Now()
		_, err := j.publish(ctx, msg)
		if err = j.denied.explain(j.nc, began, err); err == nil || hasCode(err, codeConflict) || errors.Is(err, broker.ErrNotAllowed) {
			return err
		}
	}
	return j.retryWithTimeout(ctx, func(ctx context.Context) error {
		_, err := j.publish(ctx, msg)
		if errors.Is(err, nats.ErrNoResponders) || hasCode(err, codeNoStream) {
			if healErr := j.recreate(ctx); healErr == nil {
				_, err = j.publish(ctx, msg)
			}
		}
		return err
	})
}

// getRequest requests one message from a stream's leader.
type getRequest struct {
	Seq     uint64 `json:"seq,omitempty"`
	LastFor string `json:"last_by_subj,omitempty"`
	NextFor string `json:"next_by_subj,omitempty"`

	StartTime *time.Time `json:"start_time,omitempty"` // instead of Seq
}

// stored is the leader's answer.
type stored struct {
	Subject string    `json:"subject"`
	Seq     uint64    `json:"seq"`
	Header  []byte    `json:"hdrs"`
	Data    []byte    `json:"data"`
	Time    time.Time `json:"time"`
}

func (s stored) header(key string) string {
	if len(s.Header) == 0 {
		return ""
	}
	h, err := nats.DecodeHeadersMsg(s.Header)
	if err != nil {
		return ""
	}
	return h.Get(key)
}

// getMessage reads one message from a stream's leader, never from a replica, which may lag. Only
// the leader decides that a message is ErrNotFound.
func (j *Engine) getMessage(ctx context.Context, stream string, req getRequest) (stored, error) {
	body, err := json.Marshal(req)
	if err != nil {
		return stored{}, err
	}
	var answer struct {
		Message stored `json:"message"`
		apiAnswer
	}
	err = j.retryWithTimeout(ctx, func(ctx context.Context) error {
		answer.Error = nil
		return requestAPI(ctx, j.nc, "STREAM.MSG.GET."+stream, body, &answer)
	})
	if hasCode(err, codeNoMessage) {
		return stored{}, broker.ErrNotFound
	}
	return answer.Message, err
}

// acks receives the engine's acknowledgements of stored messages, through one subscription. The
// library's request allocates a context, a channel and a timer each time; a handoff publishes four
// messages, and waits for each of them.
type acks struct {
	nc     *nats.Conn
	prefix string // of the reply subjects; ends with a dot

	mu      sync.Mutex
	sub     *nats.Subscription // nil until the first message is published
	last    uint64
	waiting map[uint64]*ackWait
	ending  bool // the last wait ends the subscription
}

// ackWait waits for one acknowledgement. It is reused.
type ackWait struct {
	token uint64         // the last token of the reply subject
	came  chan *nats.Msg // room for the one reply that is forwarded
	timer *time.Timer
}

var ackWaits = sync.Pool{New: func() any {
	w := &ackWait{came: make(chan *nats.Msg, 1), timer: time.NewTimer(time.Hour)}
	w.timer.Stop()
	return w
}}

func newAcks(nc *nats.Conn) *acks {
	return &acks{nc: nc, prefix: nc.NewInbox() + ".", waiting: map[uint64]*ackWait{}}
}

// publish publishes a message and returns the reply. It waits until ctx ends, or for timeout,
// and then returns context.DeadlineExceeded. It sets msg.Reply.
func (a *acks) publish(ctx context.Context, msg *nats.Msg, timeout time.Duration) (*nats.Msg, error) {
	w, err := a.send(msg)
	if err != nil {
		return nil, err
	}
	defer a.forget(w)
	return a.wait(ctx, w, timeout)
}

// send publishes a message and sets msg.Reply. The caller ends the wait with forget, whether or
// not it has waited.
func (a *acks) send(msg *nats.Msg) (*ackWait, error) {
	w := ackWaits.Get().(*ackWait)
	if err := a.expect(w); err != nil {
		ackWaits.Put(w)
		return nil, err
	}
	subject := append(make([]byte, 0, 64), a.prefix...)
	msg.Reply = string(strconv.AppendUint(subject, w.token, 36))
	if err := a.nc.PublishMsg(msg); err != nil {
		a.forget(w)
		return nil, err
	}
	return w, nil
}

// wait returns the reply to a sent message, like publish.
func (a *acks) wait(ctx context.Context, w *ackWait, timeout time.Duration) (*nats.Msg, error) {
	w.timer.Reset(timeout)
	select {
	case reply := <-w.came:
		switch {
		case reply == nil && a.nc.IsClosed():
			return nil, nats.ErrConnectionClosed
		case reply == nil:
			return nil, nats.ErrDisconnected
		}
		if len(reply.Data) == 0 && reply.Header.Get("Status") == "503" {
			return nil, nats.ErrNoResponders
		}
		return reply, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-w.timer.C:
		return nil, context.DeadlineExceeded
	}
}

// expect registers a wait, and subscribes to the replies with the first one.
func (a *acks) expect(w *ackWait) (err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.sub == nil {
		if a.sub, err = a.nc.Subscribe(a.prefix+"*", a.forward); err != nil {
			return fmt.Errorf("subscribe to acknowledgements: %w", err)
		}
	}
	a.last++
	w.token = a.last
	a.waiting[w.token] = w
	return nil
}

// forget ends a wait. No reply is forwarded to it afterwards.
func (a *acks) forget(w *ackWait) {
	w.timer.Stop()
	a.mu.Lock()
	delete(a.waiting, w.token)
	a.endSubscription()
	a.mu.Unlock()
	select {
	case <-w.came:
	default:
	}
	ackWaits.Put(w)
}

// forward passes a reply to its wait. A second reply to one message is dropped.
func (a *acks) forward(reply *nats.Msg) {
	token, err := strconv.ParseUint(strings.TrimPrefix(reply.Subject, a.prefix), 36, 64)
	if err != nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if w := a.waiting[token]; w != nil {
		delete(a.waiting, token)
		w.came <- reply
	}
}

// close ends the subscription, after the last awaited reply.
func (a *acks) close() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.ending = true
	a.endSubscription()
}

// endSubscription requires a.mu.
func (a *acks) endSubscription() {
	if a.ending && a.sub != nil && len(a.waiting) == 0 {
		_ = a.sub.Unsubscribe()
	}
}

// disconnected ends all waits, with nats.ErrDisconnected or nats.ErrConnectionClosed. It is for a
// connection that is given up: after any other loss a reply may still arrive on the next one.
func (a *acks) disconnected() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for token, w := range a.waiting {
		delete(a.waiting, token)
		w.came <- nil
	}
}

// message is a message with headers of one value each. Messages are reused; release ends the use.
type message struct {
	nats.Msg
	values [8]string // Header has slices of it
	n      int
}

var messages = sync.Pool{New: func() any { return &message{Msg: nats.Msg{Header: nats.Header{}}} }}

// newMessage returns an empty message to a subject.
func newMessage(subject string, data []byte) *message {
	m := messages.Get().(*message)
	m.Subject, m.Data = subject, data
	return m
}

// set sets a header that is not set yet, at most 8 per message.
func (m *message) set(key, value string) {
	m.values[m.n] = value
	m.Header[key] = m.values[m.n : m.n+1 : m.n+1]
	m.n++
}

// setTrace sets the headers of a trace, by the names of W3C Trace Context. No trace is no header.
func (m *message) setTrace(t protocol.TraceContext) {
	if t.IsZero() {
		return
	}
	m.set("traceparent", t.Parent)
	if t.State != "" {
		m.set("tracestate", t.State)
	}
}

// release allows the message to be reused. No goroutine may still publish it.
func (m *message) release() {
	clear(m.Header)
	*m = message{Msg: nats.Msg{Header: m.Header}}
	messages.Put(m)
}
