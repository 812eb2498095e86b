package natsgateway

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"

	"github.com/agenthandoff/handoff/api"
	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/worker"
)

// ErrNobody (wraps broker.ErrUnreachable): no gateway answers this agent.
var ErrNobody = fmt.Errorf("%w: no gateway is there", broker.ErrUnreachable)

const (
	// tryTimeout bounds the answer to one try of a request, in addition to its wait. Appends bridge an election, so that it is longer than most of those.
	tryTimeout = 10 * time.Second
	// waitSlack is that of a request that merely waits: a gateway that was killed in the
	// middle of it is missed soon.
	waitSlack = 3 * time.Second
	// noGatewayPause is the time to the next try while no gateway is there.
	noGatewayPause = 50 * time.Millisecond
	// busyTimeout is how long a gateway may be busy until the caller hears of it.
	busyTimeout = 5 * time.Second
	// callsAtOnce bounds the requests of one client that are under way and do not wait, so that
	// none is refused.
	callsAtOnce = 64
)

// Client asks gateways, for one agent: it has the operations of an agent, and is a worker.Session.
// It is safe for concurrent use. Every method
// blocks until a gateway has answered or ctx ends; it goes to another gateway where one is
// gone, and asks again for ClientConfig.Timeout, in addition to its wait, before it
// returns broker.ErrUnreachable (wrapped).
type Client struct {
	api.AgentOperations

	nc    *nats.Conn
	agent string
	slots chan struct{}

	timeout time.Duration

	life context.Context
	end  context.CancelFunc
	wg   sync.WaitGroup
}

// ClientConfig configures a Client. Only Agent must be set.
type ClientConfig struct {
	// Agent is the agent that asks.
	Agent string
	// Timeout bounds the tries of a request, in addition to its wait; 0 is
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
	c := &Client{nc: nc, agent: cfg.Agent, timeout: cmp.Or(cfg.Timeout, broker.TimeoutDefault), slots: make(chan struct{}, callsAtOnce)}
	c.life, c.end = context.WithCancel(context.Background())
	c.AgentOperations = api.Over(c)
	return c, nil
}

// tryDuration is how long one try may take.
func (c *Client) tryDuration() time.Duration { return min(tryTimeout, c.timeout) }

// Servers are the URLs that the connection was given.
func (c *Client) Servers() []string { return c.nc.Opts.Servers }

// Close ends the client's goroutines. Later requests fail.
func (c *Client) Close() {
	c.end()
	c.wg.Wait()
}

// Do implements api.Gateway. A report goes to the gateway that the handoff was claimed at, which has
// the claim in its memory; other requests go to any. Where gateways are busy, it asks again: after
// pauses that grow, and that are not the same for two clients, for 5 s in all.
func (c *Client) Do(ctx context.Context, operation string, wait time.Duration, request []byte) ([]byte, error) {
	var pauses backoff.BackOff // most requests need none
	for {
		answer, err := c.doOnce(ctx, operation, wait, request)
		var full *errBusy
		if !errors.As(err, &full) {
			return answer, err
		}
		if pauses == nil {
			pauses = backoff.NewExponentialBackOff(backoff.WithInitialInterval(full.again), backoff.WithMaxElapsedTime(busyTimeout))
		}
		pause := pauses.NextBackOff()
		if pause == backoff.Stop {
			return nil, err
		}
		again := time.NewTimer(pause)
		select {
		case <-again.C:
		case <-ctx.Done():
		case <-c.life.Done():
		}
		if again.Stop(); ctx.Err() != nil || c.life.Err() != nil {
			return nil, err
		}
	}
}

// doOnce asks the gateway of a report, or any if that is gone.
func (c *Client) doOnce(ctx context.Context, verb string, wait time.Duration, body []byte) ([]byte, error) {
	if wait == 0 { // a request that waits must not keep a heartbeat from getting out
		select {
		case c.slots <- struct{}{}:
			defer func() { <-c.slots }()
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	gateway := gatewayOf(body)
	answer, err := c.ask(ctx, gateway, verb, wait, body)
	if gateway != "" && ctx.Err() == nil && errors.Is(err, errGatewayGone) {
		return c.ask(ctx, "", verb, wait, body) // any other goes on with it
	}
	return answer, err
}

// errGatewayGone: the one gateway that was asked does not answer, or forgot a
// body.
var errGatewayGone = errors.New("this gateway does not answer")

// ask asks one gateway, or any.
func (c *Client) ask(ctx context.Context, gateway, verb string, wait time.Duration, body []byte) (answer []byte, err error) {
	header := nats.Header{headerRequest: {"1"}}
	if len(body) > chunkMax(c.nc) {
		if len(body) > CallBytesMax {
			return nil, protocol.Errorf(protocol.CodeTooLarge, verb, "is %d bytes, at most %d go through a gateway", len(body), CallBytesMax)
		}
		var token string
		if token, gateway, err = c.putChunks(ctx, gateway, body); err != nil {
			return nil, err
		}
		header[headerBody], body = []string{token}, nil
	}
	slack := c.tryDuration()
	if op := operationOf(verb); wait > 0 && op != nil && op.Repeat != api.Once { // an answer with a claim must not be missed
		slack = waitSlack
	}
	msg, err := c.request(ctx, gateway, verb, header, body, wait+slack)
	if err != nil && header[headerBody] != nil {
		err = chunkError(err)
	}
	if err != nil {
		return nil, err
	}
	return c.readAnswer(ctx, msg)
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

// isTemporary reports whether the same request may have an answer a moment later.
func isTemporary(err error) bool {
	return slices.ContainsFunc([]error{nats.ErrNoResponders, nats.ErrTimeout, context.DeadlineExceeded, nats.ErrDisconnected,
		nats.ErrConnectionReconnecting, nats.ErrReconnectBufExceeded}, func(known error) bool { return errors.Is(err, known) })
}

// explainSilence adds the server's last error to a missing answer: a user without a permission gets
// that error, and never an answer.
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
		return nil, fmt.Errorf("a gateway announces an answer of %q bytes", msg.Header.Get(headerTotal))
	}
	body = append(make([]byte, 0, total), body...)
	for len(body) < total {
		chunk, err := c.readChunk(ctx, gateway, token, len(body))
		if err != nil {
			return nil, chunkError(err)
		}
		if len(chunk) == 0 || len(body)+len(chunk) > total {
			return nil, errors.New("a gateway sends another answer than it announced")
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

var (
	_ worker.Session = (*Client)(nil)
	_ api.Gateway    = (*Client)(nil)
)

// ClaimMany implements api.Workers. If ctx ends, handoffs that come all the same are released, until
// Close.
func (c *Client) ClaimMany(ctx context.Context, request api.ClaimMany) (api.Claims, error) {
	type answer struct {
		claims api.Claims
		err    error
	}
	came := make(chan answer, 1)
	c.wg.Go(func() {
		claims, err := c.AgentOperations.ClaimMany(c.life, request)
		came <- answer{claims, err}
	})
	select {
	case a := <-came:
		return a.claims, a.err
	case <-ctx.Done():
	}
	c.wg.Go(func() {
		for _, held := range (<-came).claims.Held {
			_, _ = c.Release(c.life, held.Lease, "its worker has ended", nil) // otherwise the gateway releases it
		}
	})
	return api.Claims{}, ctx.Err()
}

// Reconnected implements worker.Session.
func (c *Client) Reconnected(ctx context.Context) <-chan struct{} {
	again := make(chan struct{}, 1)
	status := c.nc.StatusChanged(nats.CONNECTED)
	c.wg.Go(func() {
		defer c.nc.RemoveStatusListener(status)
		for {
			select {
			case <-ctx.Done():
				return
			case <-c.life.Done():
				return
			case _, ok := <-status:
				if !ok {
					return
				}
			}
			select {
			case again <- struct{}{}:
			default: // one is waiting to be read: that will do
			}
		}
	})
	return again
}

// gatewayOf returns the gateway that the lease of a report names. The lease comes first in a request.
func gatewayOf(request []byte) string {
	rest, ok := bytes.CutPrefix(request, []byte(`{"lease":"`))
	if !ok {
		return ""
	}
	lease, _, _ := bytes.Cut(rest[:min(len(rest), 2048)], []byte(`"`))
	token, err := broker.ParseLease(string(lease))
	if err != nil {
		return ""
	}
	return token.Gateway
}

// Patient implements api.Gateway. Silence is waited for, unless no gateway is there at all.
func (c *Client) Patient(ctx context.Context, err error) bool {
	return errors.Is(err, broker.ErrUnreachable) && !errors.Is(err, ErrNobody) && ctx.Err() == nil && c.life.Err() == nil
}
