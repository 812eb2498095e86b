package natsgateway

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/protocol"
)

// ErrNobody (wraps broker.ErrUnreachable): no gateway answers this agent.
var ErrNobody = fmt.Errorf("%w: no gateway is there", broker.ErrUnreachable)

const (
	// tryTimeout is how long the answer to one try of a request may take beside what it
	// waits. Appends bridge an election, so that it is longer than most of those.
	tryTimeout = 10 * time.Second
	// waitSlack is that of a request that merely waits: a gateway that was killed in the
	// middle of it is missed soon.
	waitSlack = 3 * time.Second
	// noGatewayPause is the time to the next try while no gateway is there.
	noGatewayPause = 50 * time.Millisecond
	// busyTimeout is how long a gateway may be busy until the caller hears of it.
	busyTimeout = 5 * time.Second
	// callsAtOnce bounds what one client asks at a time, beside what merely waits, so
	// that it is not refused.
	callsAtOnce = 64
)

// Client asks gateways, for one agent. It is safe for concurrent use. Every method
// blocks until a gateway has answered or ctx ends; it goes to another gateway where one is
// gone, and asks again for ClientConfig.Timeout, beside what it is to wait, before it
// returns broker.ErrUnreachable (wrapped). All of them may be repeated: what was done is not done twice.
type Client struct {
	nc    *nats.Conn
	agent string
	slots chan struct{}

	timeout time.Duration

	mu      sync.Mutex
	keys    map[string]string // of holders, by id
	paused  bool              // as a gateway said last
	leaseMS int64             // the engine's default, as register told

	life context.Context
	end  context.CancelFunc
	wg   sync.WaitGroup
}

// ClientConfig configures a Client. Only Agent must be set.
type ClientConfig struct {
	// Agent is the agent that asks.
	Agent string
	// Timeout is how long a request is tried beside what it waits; 0 is
	// broker.TimeoutDefault (12 s), 1 s to 10 min.
	Timeout time.Duration
}

// NewClient returns a client over a connection that the caller keeps and closes,
// after Close. A user that may subscribe to nothing but its own inboxes needs the
// connection option nats.CustomInboxPrefix(InboxPrefix(agent)).
func NewClient(nc *nats.Conn, cfg ClientConfig) (*Client, error) {
	if err := protocol.CheckAgent("agent", cfg.Agent); err != nil {
		return nil, err
	}
	if err := broker.CheckTimeout("timeout", cfg.Timeout); err != nil {
		return nil, err
	}
	c := &Client{nc: nc, agent: cfg.Agent, timeout: cmp.Or(cfg.Timeout, broker.TimeoutDefault), slots: make(chan struct{}, callsAtOnce), keys: map[string]string{}}
	c.life, c.end = context.WithCancel(context.Background())
	return c, nil
}

// tryDuration is how long one try may take.
func (c *Client) tryDuration() time.Duration { return min(tryTimeout, c.timeout) }

// Servers are the URLs that the connection was given.
func (c *Client) Servers() []string { return c.nc.Opts.Servers }

// Close ends what the client runs. What is asked after that fails.
func (c *Client) Close() {
	c.end()
	c.wg.Wait()
}

// call is callOnce, and asks again where gateways are busy: after pauses that grow, and
// that are not the same for two clients, for 5 s in all. A pull is not repeated: its
// worker does that.
func (c *Client) call(ctx context.Context, gateway, verb string, only bool, wait time.Duration, request, answer any) (by string, err error) {
	var pauses backoff.BackOff // most requests need none
	for {
		by, err = c.callOnce(ctx, gateway, verb, only, wait, request, answer)
		var full *errBusy
		if !errors.As(err, &full) || verb == verbPull {
			return by, err
		}
		if pauses == nil {
			pauses = backoff.NewExponentialBackOff(backoff.WithInitialInterval(full.again), backoff.WithMaxElapsedTime(busyTimeout))
		}
		pause := pauses.NextBackOff()
		if pause == backoff.Stop {
			return by, err
		}
		again := time.NewTimer(pause)
		select {
		case <-again.C:
		case <-ctx.Done():
		case <-c.life.Done():
		}
		if again.Stop(); ctx.Err() != nil || c.life.Err() != nil {
			return by, err
		}
	}
}

// callOnce asks a gateway: the one named, or any. An answer of the gateway's goes into
// answer, which is a pointer. It returns the gateway that answered. only says that no
// other gateway has what the request is about: it is gone then with the gateway.
func (c *Client) callOnce(ctx context.Context, gateway, verb string, only bool, wait time.Duration, request, answer any) (by string, err error) {
	body, err := protocol.Marshal(request)
	if err != nil {
		return "", protocol.Errorf(protocol.CodeMalformed, verb, "cannot be written: %v", err)
	}
	if wait == 0 { // a request that waits must not keep a heartbeat from getting out
		select {
		case c.slots <- struct{}{}:
			defer func() { <-c.slots }()
		case <-ctx.Done():
			return "", ctx.Err()
		}
	}
	for {
		by, err = c.ask(ctx, gateway, verb, wait, body, answer)
		switch {
		case err == nil || ctx.Err() != nil || gateway == "":
			return by, err
		case !errors.Is(err, errGatewayGone):
			return by, err
		case only:
			return "", fmt.Errorf("%w: the gateway that had it is gone; it comes again", broker.ErrOfferGone)
		}
		gateway = "" // any other goes on with it
	}
}

// errGatewayGone says that the one gateway that was asked does not answer, or forgot a
// body.
var errGatewayGone = errors.New("this gateway does not answer")

// ask is call at one gateway, or at any.
func (c *Client) ask(ctx context.Context, gateway, verb string, wait time.Duration, body []byte, answer any) (by string, err error) {
	header := nats.Header{headerRequest: {"1"}}
	if len(body) > chunkMax(c.nc) {
		if len(body) > CallBytesMax {
			return "", protocol.Errorf(protocol.CodeTooLarge, verb, "is %d bytes, at most %d go through a gateway", len(body), CallBytesMax)
		}
		var token string
		if token, gateway, err = c.putChunks(ctx, gateway, body); err != nil {
			return "", err
		}
		header[headerBody], body = []string{token}, nil
	}
	slack := c.tryDuration()
	if wait > 0 {
		slack = waitSlack
	}
	msg, err := c.request(ctx, gateway, verb, header, body, wait+slack)
	if err != nil && header[headerBody] != nil {
		err = chunkError(err)
	}
	if err != nil {
		return "", err
	}
	by = msg.Header.Get(headerGateway)
	if body, err = c.readAnswer(ctx, msg); err != nil {
		return by, err
	}
	if err := json.Unmarshal(body, answer); err != nil {
		return by, fmt.Errorf("answer to %s: %w", verb, err)
	}
	return by, nil
}

// request sends one message and returns the answer to it, if that is no error.
func (c *Client) request(ctx context.Context, gateway, verb string, header nats.Header, body []byte, limit time.Duration) (*nats.Msg, error) {
	subject := Subject(c.agent, verb)
	if gateway != "" {
		subject = SubjectAt(c.agent, gateway, verb)
	}
	var last error // of a try that was not cut short
	for began := time.Now(); ; {
		try, cancel := context.WithTimeout(ctx, limit)
		stop := context.AfterFunc(c.life, cancel)
		msg, err := c.nc.RequestMsgWithContext(try, &nats.Msg{Subject: subject, Header: header, Data: body})
		stop()
		cancel()
		if err != nil && ctx.Err() != nil {
			err = cmp.Or(last, err)
		}
		last = err
		switch {
		case err == nil && msg.Header.Get(micro.ErrorCodeHeader) != "":
			return nil, readError(msg)
		case err == nil:
			return msg, nil
		case errors.Is(ctx.Err(), context.Canceled):
			return nil, ctx.Err()
		case c.life.Err() != nil:
			return nil, broker.ErrClosed
		case gateway != "" && (errors.Is(err, nats.ErrNoResponders) || errors.Is(err, context.DeadlineExceeded)):
			return nil, fmt.Errorf("%w: %w", broker.ErrUnreachable, errGatewayGone)
		case ctx.Err() == nil && time.Since(began) < c.timeout && isTemporary(err):
		case errors.Is(err, nats.ErrNoResponders):
			return nil, fmt.Errorf("%w: no gateway serves %s (asked for %v)", ErrNobody, Subjects(c.agent), time.Since(began).Round(100*time.Millisecond))
		default:
			return nil, &broker.SilenceError{After: time.Since(began).Round(100 * time.Millisecond),
				Last: fmt.Errorf("ask a gateway for %s: %w", verb, c.explainSilence(err))}
		}
		pause := time.NewTimer(noGatewayPause)
		select {
		case <-pause.C:
		case <-ctx.Done():
		}
		pause.Stop()
	}
}

// isTemporary tells whether the same request may have an answer a moment later.
func isTemporary(err error) bool {
	for _, known := range []error{nats.ErrNoResponders, nats.ErrTimeout, context.DeadlineExceeded, nats.ErrDisconnected,
		nats.ErrConnectionReconnecting, nats.ErrReconnectBufExceeded} {
		if errors.Is(err, known) {
			return true
		}
	}
	return false
}

// explainSilence adds to an answer that did not come what the server has said: a user who may
// not do something hears of it, and never of an answer.
func (c *Client) explainSilence(err error) error {
	if last := c.nc.LastError(); errors.Is(last, nats.ErrPermissionViolation) {
		return fmt.Errorf("%w (the server: %w; this needs publish to %s and subscribe to the own inbox, by default %s.>)", err, last, Subjects(c.agent), InboxPrefix(c.agent))
	}
	return err
}

// putChunks sends a body in chunks, all of them to one gateway.
func (c *Client) putChunks(ctx context.Context, gateway string, body []byte) (token, by string, err error) {
	total, size := strconv.Itoa(len(body)), chunkMax(c.nc)
	for offset := 0; offset < len(body); offset += size {
		header := nats.Header{headerRequest: {"1"}, headerTotal: {total}, headerOffset: {strconv.Itoa(offset)}}
		if token != "" {
			header[headerBody] = []string{token}
		}
		msg, err := c.request(ctx, gateway, verbPut, header, body[offset:min(offset+size, len(body))], c.tryDuration())
		if err != nil {
			return "", "", chunkError(err)
		}
		token, gateway = msg.Header.Get(headerBody), msg.Header.Get(headerGateway)
	}
	return token, gateway, nil
}

// chunkError is the error of a chunk. A gateway that has forgotten the chunks before is as
// good as gone.
func chunkError(err error) error {
	if errors.Is(err, broker.ErrOfferGone) || errors.Is(err, errGatewayGone) {
		return fmt.Errorf("%w: %w in the middle of a large body", broker.ErrUnreachable, errGatewayGone)
	}
	return err
}

// readAnswer returns the body of an answer, fetched in chunks if it is large.
func (c *Client) readAnswer(ctx context.Context, msg *nats.Msg) ([]byte, error) {
	token, gateway, body := msg.Header.Get(headerMore), msg.Header.Get(headerGateway), msg.Data
	if token == "" {
		return body, nil
	}
	total, err := strconv.Atoi(msg.Header.Get(headerTotal))
	if err != nil || total < len(body) || total > CallBytesMax {
		return nil, fmt.Errorf("a gateway says that its answer has %q bytes", msg.Header.Get(headerTotal))
	}
	body = append(make([]byte, 0, total), body...)
	for len(body) < total {
		chunk, err := c.readChunk(ctx, gateway, token, len(body))
		if err != nil {
			return nil, chunkError(err)
		}
		if len(chunk) == 0 || len(body)+len(chunk) > total {
			return nil, errors.New("a gateway sends another answer than it said")
		}
		body = append(body, chunk...)
	}
	_, _ = c.readChunk(ctx, gateway, token, total) // so that it is forgotten; it will be anyway
	return body, nil
}

func (c *Client) readChunk(ctx context.Context, gateway, token string, offset int) ([]byte, error) {
	header := nats.Header{headerRequest: {"1"}, headerMore: {token}, headerOffset: {strconv.Itoa(offset)}}
	msg, err := c.request(ctx, gateway, verbRead, header, nil, c.tryDuration())
	if err != nil {
		return nil, err
	}
	return msg.Data, nil
}
