package service

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"

	"github.com/agenthandoff/handoff/protocol"
)

// receive takes a request in, and never blocks: the service calls it from the one
// goroutine of its subscription, and others wait behind it. The answer goes out past
// the service, which does not expect answers after its handler.
func (d *Door) receive(r micro.Request) {
	agent, verb, ok := parseSubject(r.Subject())
	if !ok || !mayReply(agent, r.Reply()) {
		d.log.Debug("a request that is none was dropped", "subject", protocol.Printable(protocol.CutText(r.Subject(), 256)), "reply", protocol.Printable(protocol.CutText(r.Reply(), 256)))
		return
	}
	c := &call{agent: agent, verb: verb, reply: r.Reply(), header: r.Headers(), body: r.Data()}
	if c.header.Get(headerRequest) != "1" {
		d.refuse(c, protocol.Errorf(protocol.CodeMissing, headerRequest, "is no header of this message; every request has %s: 1", headerRequest))
		return
	}
	if err := protocol.CheckBy("agent", agent); err != nil {
		d.refuse(c, err)
		return
	}
	if size := len(c.body); size > PartBytesMax {
		d.refuse(c, protocol.Errorf(protocol.CodeTooLarge, "request", "is %d bytes, at most %d are allowed in one message; send it in parts", size, PartBytesMax))
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed { // as if nobody was here: it is asked again, of another
		_ = d.nc.PublishMsg(&nats.Msg{Subject: c.reply, Header: nats.Header{"Status": {"503"}}})
		return
	}
	if err := d.calls.enter(c); err != nil {
		d.refuse(c, err)
		return
	}
	d.wg.Go(func() {
		defer d.calls.leave(c)
		d.answer(c)
	})
}

// answer works on one request, when it is its turn.
func (d *Door) answer(c *call) {
	if err := d.calls.begin(d.ctx, c); err != nil {
		if errors.Is(err, errReclaimed) {
			err = d.requests.refusal(c.agent)
		}
		d.refuse(c, err)
		return
	}
	defer d.calls.turns.end(c.agent)
	ctx, cancel := context.WithTimeout(d.ctx, WaitMax+answerTimeMax)
	defer cancel()
	switch c.verb {
	case verbPut:
		d.answerPut(ctx, c)
		return
	case verbRead:
		d.answerRead(c)
		return
	}
	do, ok := verbs[c.verb]
	if !ok {
		d.refuse(c, invalid("verb", "%q is none; this door knows version 1 of the protocol, section 10", protocol.CutText(c.verb, 64)))
		return
	}
	body, done, err := d.bodyOf(c)
	if err != nil {
		d.refuse(c, err)
		return
	}
	answer, err := do(context.WithValue(ctx, callKey{}, c), d, c.agent, body)
	if done(err == nil); err != nil {
		d.refuse(c, err)
		return
	}
	d.say(ctx, c, answer)
}

// callKey finds the request in the context of its verb.
type callKey struct{}

// idle lets the request of a verb wait. The context ends when the wait is to end.
func (d *Door) idle(ctx context.Context, wait func(ctx context.Context)) {
	d.calls.idle(ctx, ctx.Value(callKey{}).(*call), wait)
}

// verb answers the requests of one kind: body is the request, the agent whose it
// is known to be.
type verb func(ctx context.Context, d *Door, agent string, body []byte) (any, error)

// typed is a verb whose request is read strictly.
func typed[Request any](do func(d *Door, ctx context.Context, agent string, request *Request) (any, error)) verb {
	return func(ctx context.Context, d *Door, agent string, body []byte) (any, error) {
		request := new(Request)
		if err := protocol.DecodeStrict(body, "request", CallBytesMax, request); err != nil {
			return nil, err
		}
		return do(d, ctx, agent, request)
	}
}

// say answers. What does not fit a message is kept, and the first part says where.
func (d *Door) say(ctx context.Context, c *call, answer any) {
	body, err := encode(answer)
	if err != nil {
		d.refuse(c, err)
		return
	}
	header := nats.Header{headerDoor: {d.id}}
	if most := d.partMax(); len(body) > most {
		token, err := d.kept.keep(ctx, c.agent, body)
		if err != nil {
			d.refuse(c, err)
			return
		}
		header[headerMore], header[headerTotal] = []string{token}, []string{strconv.Itoa(len(body))}
		body = body[:most]
	}
	d.answered.Add(1)
	d.send(c, header, body)
}

// partMax is how much goes into one message.
func (d *Door) partMax() int { return partMax(d.nc) }

func partMax(nc *nats.Conn) int { return int(min(PartBytesMax, nc.MaxPayload()/2)) }

// refuse answers with an error, as the tools for services know it.
func (d *Door) refuse(c *call, err error) {
	wire, ours := toWire(err)
	status := "400"
	header := nats.Header{headerDoor: {d.id}}
	var full *busy
	if errors.As(err, &full) {
		header[headerAgain] = []string{strconv.FormatInt(full.again.Milliseconds(), 10)}
		for _, b := range d.budgets() {
			if b.limit == full.err.Field {
				b.refused.Add(1)
			}
		}
	}
	if ours || wire.Code == codeFailed {
		status = "500"
		d.failed.Add(1)
		d.log.Warn("a request was not answered", "agent", c.agent, "verb", protocol.Printable(protocol.CutText(c.verb, 64)), "err", err)
	} else {
		d.refused.Add(1)
		d.log.Debug("refused", "agent", c.agent, "verb", protocol.Printable(protocol.CutText(c.verb, 64)), "code", wire.Code, "err", wire.Message)
	}
	if len(wire.Message) > protocol.ReasonBytesMax || len(wire.Field) > protocol.NameBytesMax { // they may quote the request
		cut := *wire
		cut.Message, cut.Field = protocol.CutText(cut.Message, protocol.ReasonBytesMax), protocol.CutText(cut.Field, protocol.NameBytesMax)
		wire = &cut
	}
	body, jsonErr := encode(wire)
	if jsonErr != nil {
		body = []byte(`{"code":"error","message":"the error has no form"}`)
	}
	header[micro.ErrorHeader], header[micro.ErrorCodeHeader] = []string{string(wire.Code)}, []string{status}
	d.send(c, header, body)
}

// send publishes an answer, without a reply of its own and without the header of
// requests. A connection that is gone: who asked asks again.
func (d *Door) send(c *call, header nats.Header, body []byte) {
	if err := d.nc.PublishMsg(&nats.Msg{Subject: c.reply, Header: header, Data: body}); err != nil {
		d.log.Debug("an answer did not get out; who asked will ask again", "agent", c.agent, "err", err)
	}
}

// encode writes JSON without escaping what only HTML minds: bodies go through as
// they are.
func encode(v any) ([]byte, error) {
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil, fmt.Errorf("write %T: %w", v, err)
	}
	return bytes.TrimSuffix(out.Bytes(), []byte{'\n'}), nil
}

// waitOf bounds what a request wants to wait.
func waitOf(ms int64) (time.Duration, error) {
	if ms < 0 || ms > WaitMax.Milliseconds() {
		return 0, invalid("wait_ms", "is %d, must be 0 to %d", ms, WaitMax.Milliseconds())
	}
	return time.Duration(ms) * time.Millisecond, nil
}
