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
	"github.com/google/uuid"
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

// Client asks gateways, for one agent. It is safe for concurrent use. Every method
// blocks until a gateway has answered or ctx ends; it goes to another gateway where one is
// gone, and asks again for ClientConfig.Timeout, beside what it is to wait, before it
// returns broker.ErrUnreachable (wrapped). All of them may be repeated: what was done is not done twice.
type Client struct {
	api.AgentOperations

	nc    *nats.Conn
	agent string
	slots chan struct{}

	timeout time.Duration

	mu      sync.Mutex
	keys    map[string]string // of holders, by id
	paused  bool              // by the last answer of a gateway
	leaseMS int64             // the engine's default, from register

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
	c := &Client{nc: nc, agent: cfg.Agent, timeout: cmp.Or(cfg.Timeout, broker.TimeoutDefault), slots: make(chan struct{}, callsAtOnce), keys: map[string]string{}}
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
// answer, which is a pointer. It returns the gateway that answered. only: no
// other gateway has the offer of the request, which is gone with its gateway.
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

// errGatewayGone: the one gateway that was asked does not answer, or forgot a
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

// isTemporary reports whether the same request may have an answer a moment later.
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

var (
	_ worker.Transport = (*Client)(nil)
	_ api.Gateway      = (*Client)(nil)
)

// NewHolder implements worker.Transport. The id is made of the agent and of a key that
// this client keeps to itself.
func (c *Client) NewHolder(agent string) string {
	key := uuid.NewString()
	id := HolderID(agent, key)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.keys[id] = key
	return id
}

func (c *Client) key(id string) (string, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	key, ok := c.keys[id]
	if !ok {
		return "", fmt.Errorf("the holder %s was not made by NewHolder of this client", id)
	}
	return key, nil
}

// checkAgent refuses what a gateway would: this client speaks for one agent.
func (c *Client) checkAgent(agent string) error {
	if agent != c.agent {
		return forbidden("agent", "is %s, and this client is of %s", agent, c.agent)
	}
	return nil
}

// Register implements worker.Transport. The lease is the worker's alone: a gateway keeps its own
// time with offers.
func (c *Client) Register(ctx context.Context, p protocol.Profile, _ time.Duration) (protocol.Profile, error) {
	return c.register(ctx, p, false)
}

// ReplaceProfile changes the profile that is there, where the gateway allows it.
func (c *Client) ReplaceProfile(ctx context.Context, p protocol.Profile) (protocol.Profile, error) {
	return c.register(ctx, p, true)
}

func (c *Client) register(ctx context.Context, p protocol.Profile, replace bool) (protocol.Profile, error) {
	if err := c.checkAgent(p.ID); err != nil {
		return p, err
	}
	raw, err := protocol.Marshal(p)
	if err != nil {
		return p, err
	}
	var answer profileAnswer
	if _, err := c.call(ctx, "", verbRegister, false, 0, &registerRequest{Profile: raw, Replace: replace}, &answer); err != nil {
		return p, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.paused, c.leaseMS = answer.Profile.Paused, answer.LeaseMS
	return answer.Profile, nil
}

// Lease returns the default lease of workers on this engine, or 0 where it is not known. A
// gateway sends it when the agent is registered.
func (c *Client) Lease() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return time.Duration(c.leaseMS) * time.Millisecond
}

// Paused implements worker.Transport: what the last pull or beat said. Only of an agent
// that was paused then a gateway is asked.
func (c *Client) Paused(ctx context.Context, _ string) bool {
	if !c.isPaused() {
		return false
	}
	var answer profileAnswer
	if _, err := c.call(ctx, "", verbProfile, false, 0, &empty{}, &answer); err != nil {
		return true // as it was
	}
	c.setPaused(answer.Profile.Paused)
	return answer.Profile.Paused
}

// isPaused returns the last answer of a gateway.
func (c *Client) isPaused() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.paused
}

func (c *Client) setPaused(paused bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.paused = paused
}

// Beat implements worker.Transport.
func (c *Client) Beat(ctx context.Context, h protocol.Holder) error {
	key, err := c.key(h.ID)
	if err != nil {
		return err
	}
	return c.present(ctx, key, h)
}

// present makes the holder of a key present.
func (c *Client) present(ctx context.Context, key string, h protocol.Holder) error {
	request := &presenceRequest{Holder: key, LeaseMS: h.LeaseMS, Slots: h.Slots, Busy: h.Busy, Draining: h.Draining, Program: h.Program, Polling: h.Polling,
		Host: protocol.CutText(h.Host, protocol.NameBytesMax), PID: h.PID, StartedAt: h.StartedAt}
	var answer presenceAnswer
	if _, err := c.call(ctx, "", verbBeat, false, 0, request, &answer); err != nil {
		return err
	}
	c.setPaused(answer.Paused)
	return nil
}

// Leave implements worker.Transport.
func (c *Client) Leave(ctx context.Context, h protocol.Holder) error {
	key, err := c.key(h.ID)
	if err != nil {
		return err
	}
	_, err = c.call(ctx, "", verbLeave, false, 0, &presenceRequest{Holder: key}, &empty{})
	return err
}

// Pull implements worker.Transport. When ctx ends, what comes all the same is given
// back, until Close. Should an answer be lost, the offers in it come again after 15 s.
func (c *Client) Pull(ctx context.Context, agent string, most int, wait time.Duration) ([]worker.Offer, error) {
	if err := c.checkAgent(agent); err != nil {
		return nil, err
	}
	type pulled struct {
		offers []worker.Offer
		err    error
	}
	came := make(chan pulled, 1)
	c.wg.Go(func() {
		offers, err := c.pull(c.life, most, min(wait, WaitMax))
		came <- pulled{offers, err}
	})
	select {
	case p := <-came:
		return p.offers, p.err
	case <-ctx.Done():
	}
	c.wg.Go(func() {
		for _, offer := range (<-came).offers {
			_ = offer.Release() // else it comes again a little later
		}
	})
	return nil, ctx.Err()
}

func (c *Client) pull(ctx context.Context, most int, wait time.Duration) ([]worker.Offer, error) {
	var answer pullAnswer
	gateway, err := c.call(ctx, "", verbPull, false, max(wait, time.Millisecond), &pullRequest{Most: min(most, offersMax), WaitMS: wait.Milliseconds()}, &answer)
	if err != nil {
		return nil, err
	}
	c.setPaused(answer.Paused)
	offers := make([]worker.Offer, len(answer.Offers))
	for i := range answer.Offers {
		offers[i] = newOffer(c, gateway, &answer.Offers[i])
	}
	return offers, nil
}

// Reconnected implements worker.Transport.
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

// End implements worker.Transport.
func (c *Client) End(ctx context.Context, ticket string) (protocol.Return, error) {
	if _, err := c.Wait(ctx, ticket, api.UntilEnded); err != nil {
		return protocol.Return{}, err
	}
	return c.Return(ctx, ticket)
}

// Do implements api.Gateway: an operation goes to any gateway.
func (c *Client) Do(ctx context.Context, operation string, wait time.Duration, request []byte) ([]byte, error) {
	var answer json.RawMessage
	_, err := c.call(ctx, "", operation, false, wait, json.RawMessage(request), &answer)
	return answer, err
}

// Patient implements api.Gateway. Silence is waited for, unless no gateway is there at all.
func (c *Client) Patient(ctx context.Context, err error) bool {
	return errors.Is(err, broker.ErrUnreachable) && !errors.Is(err, ErrNobody) && ctx.Err() == nil && c.life.Err() == nil
}

// offer is an offer that a gateway has cached for this client.
type offer struct {
	c       *Client
	gateway string // which
	wire    *wireOffer
}

func newOffer(c *Client, gateway string, wire *wireOffer) *offer {
	return &offer{c: c, gateway: gateway, wire: wire}
}

func (o *offer) Ticket() string               { return o.wire.Ticket }
func (o *offer) Sequence() uint64             { return o.wire.Offer }
func (o *offer) State() *protocol.State       { return &o.wire.State }
func (o *offer) Inline() bool                 { return o.wire.Whole }
func (o *offer) Answers() []protocol.Answer   { return o.wire.Answers }
func (o *offer) Trail() []protocol.TrailEntry { return o.wire.Trail }

func (o *offer) Package(ctx context.Context) (json.RawMessage, error) {
	if o.wire.Whole {
		return o.wire.Package, nil
	}
	var whole content
	if _, err := o.c.call(ctx, o.gateway, verbPackage, true, 0, &offerRequest{Token: o.wire.Token}, &whole); err != nil {
		if errors.Is(err, &protocol.Error{Code: protocol.CodeNotFound}) { // no worker can read it
			err = fmt.Errorf("%w: %w", broker.ErrNotFound, err)
		}
		return nil, err
	}
	o.wire.Whole, o.wire.content = true, whole
	return whole.Package, nil
}

// notify tells the gateway about an offer that it cached. Without it the offer comes
// again after the ack wait.
func (o *offer) notify(verb string) error {
	ctx, cancel := context.WithTimeout(o.c.life, 2*time.Second)
	defer cancel()
	_, err := o.c.call(ctx, o.gateway, verb, true, 0, &offerRequest{Token: o.wire.Token}, &empty{})
	return err
}

func (o *offer) Release() error { return o.notify(verbReleaseOffer) }
func (o *offer) Extend() error  { return o.notify(verbExtend) }

// Acknowledge says all that another gateway needs to find out whether this was done
// before.
func (o *offer) Acknowledge(ctx context.Context, holder protocol.Holder, ack protocol.Ack, start bool) (worker.Claim, error) {
	if err := ack.Validate(); err != nil {
		return nil, err
	}
	key, err := o.c.key(holder.ID)
	if err != nil {
		return nil, err
	}
	said, err := protocol.Marshal(ack)
	if err != nil {
		return nil, err
	}
	request := &acknowledgeRequest{Token: o.wire.Token, Ticket: o.wire.Ticket, Offer: o.wire.Offer, Holder: key, LeaseMS: holder.LeaseMS, Ack: said, Start: start}
	var answer claimAnswer
	gateway, err := o.c.call(ctx, o.gateway, verbAcknowledge, false, 0, request, &answer)
	if err != nil || answer.State == nil {
		return nil, err
	}
	return newClaim(o.c, gateway, &answer), nil
}
