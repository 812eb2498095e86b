package natsgateway

import (
	"context"
	"errors"
	"strconv"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"

	"github.com/agenthandoff/handoff/api"
	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/protocol"
)

// receive takes a request in, and never blocks: the service calls it from the one
// goroutine of its subscription, and others wait behind it. The answer goes out past
// the service, which does not expect answers after its handler.
func (g *Gateway) receive(r micro.Request) {
	agent, verb, ok := parseSubject(r.Subject())
	if !ok || !mayReply(agent, r.Reply()) {
		g.log.Debug("malformed request dropped", "subject", protocol.Printable(protocol.CutText(r.Subject(), 256)), "reply", protocol.Printable(protocol.CutText(r.Reply(), 256)))
		return
	}
	c := &call{agent: agent, verb: verb, reply: r.Reply(), header: r.Headers(), body: r.Data()}
	if c.header.Get(headerRequest) != "1" {
		g.refuse(c, protocol.Errorf(protocol.CodeMissing, headerRequest, "is no header of this message; every request has %s: 1", headerRequest))
		return
	}
	if err := protocol.CheckBy("agent", agent); err != nil {
		g.refuse(c, err)
		return
	}
	if size := len(c.body); size > ChunkBytesMax {
		g.refuse(c, protocol.Errorf(protocol.CodeTooLarge, "request", "%s in one message; send it in parts", protocol.OverSize(size, ChunkBytesMax)))
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed { // as if no gateway was here: the client asks another one
		_ = g.nc.PublishMsg(&nats.Msg{Subject: c.reply, Header: nats.Header{"Status": {"503"}}})
		return
	}
	if err := g.calls.count(c); err != nil {
		g.refuse(c, err)
		return
	}
	g.wg.Go(func() {
		defer g.calls.uncount(c)
		g.answer(c)
	})
}

// answer works on one request, when it is its turn.
func (g *Gateway) answer(c *call) {
	if err := g.calls.awaitSlot(g.ctx, c); err != nil {
		if errors.Is(err, errReclaimed) {
			err = g.requests.busyError(c.agent)
		}
		g.refuse(c, err)
		return
	}
	defer g.calls.turns.leave(c.agent)
	ctx, cancel := context.WithTimeout(g.ctx, WaitMax+answerTimeMax)
	defer cancel()
	switch c.verb {
	case verbPut:
		g.answerPut(ctx, c)
		return
	case verbRead:
		g.answerRead(c)
		return
	}
	op := operationOf(c.verb)
	if op == nil {
		g.refuse(c, invalid("verb", "%q is none; this gateway knows version 1 of the protocol, section 10", protocol.CutText(c.verb, 64)))
		return
	}
	body, done, err := g.bodyOf(c)
	if err != nil {
		g.refuse(c, err)
		return
	}
	answer, err := op.Do(broker.Bound(context.WithValue(ctx, callKey{}, c)), g.api.As(api.Agent(c.agent)), body)
	if done(err == nil); err != nil {
		g.refuse(c, err)
		return
	}
	g.reply(ctx, c, answer)
}

// callKey finds the request in the context of its verb.
type callKey struct{}

// idle lets the request of a verb wait. The context ends when the wait is to end.
func (g *Gateway) idle(ctx context.Context, wait func(ctx context.Context)) {
	g.calls.waitIdle(ctx, ctx.Value(callKey{}).(*call), wait)
}

// reply answers. A body that does not fit one message is stored, and the first chunk has its
// address.
func (g *Gateway) reply(ctx context.Context, c *call, answer any) {
	body, err := protocol.Marshal(answer)
	if err != nil {
		g.refuse(c, err)
		return
	}
	header := nats.Header{headerGateway: {g.id}}
	if most := g.chunkMax(); len(body) > most {
		token, err := g.chunks.keepAnswer(ctx, c.agent, body)
		if err != nil {
			g.refuse(c, err)
			return
		}
		header[headerMore], header[headerTotal] = []string{token}, []string{strconv.Itoa(len(body))}
		body = body[:most]
	}
	g.answered.Add(1)
	g.send(c, header, body)
}

// chunkMax is how much goes into one message.
func (g *Gateway) chunkMax() int { return chunkMax(g.nc) }

func chunkMax(nc *nats.Conn) int { return int(min(ChunkBytesMax, nc.MaxPayload()/2)) }

// refuse answers with an error, as the tools for services know it.
func (g *Gateway) refuse(c *call, err error) {
	wire, ours := api.Refusal(err)
	status := "400"
	header := nats.Header{headerGateway: {g.id}}
	var full *retryLaterError
	if errors.As(err, &full) {
		header[headerAgain] = []string{strconv.FormatInt(full.again.Milliseconds(), 10)}
		for _, b := range g.budgets() {
			if b.limit == full.err.Field {
				b.refused.Add(1)
			}
		}
	}
	if ours || wire.Code == api.CodeFailed {
		status = "500"
		g.failed.Add(1)
		g.log.Warn("request failed", "agent", c.agent, "verb", protocol.Printable(protocol.CutText(c.verb, 64)), "err", err)
	} else {
		g.refused.Add(1)
		g.log.Debug("request refused", "agent", c.agent, "verb", protocol.Printable(protocol.CutText(c.verb, 64)), "code", wire.Code, "err", wire.Message)
	}
	if len(wire.Message) > protocol.ReasonBytesMax || len(wire.Field) > protocol.NameBytesMax { // they may quote the request
		cut := *wire
		cut.Message, cut.Field = protocol.CutText(cut.Message, protocol.ReasonBytesMax), protocol.CutText(cut.Field, protocol.NameBytesMax)
		wire = &cut
	}
	body, jsonErr := protocol.Marshal(wire)
	if jsonErr != nil {
		body = []byte(`{"code":"error","message":"the error has no form"}`)
	}
	header[micro.ErrorHeader], header[micro.ErrorCodeHeader] = []string{string(wire.Code)}, []string{status}
	g.send(c, header, body)
}

// send publishes an answer, without a reply of its own and without the header of
// requests. If the connection is gone, the client asks again.
func (g *Gateway) send(c *call, header nats.Header, body []byte) {
	if err := g.nc.PublishMsg(&nats.Msg{Subject: c.reply, Header: header, Data: body}); err != nil {
		g.log.Debug("answer not sent; the client asks again", "agent", c.agent, "err", err)
	}
}
