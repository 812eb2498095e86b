package service

import (
	"bytes"
	"context"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/agenthandoff/handoff/protocol"
)

// parts are bodies that do not fit a message: requests that come in parts, and
// answers that go so.
type parts struct {
	d   *Door
	mu  sync.Mutex
	all map[string]*part
}

type part struct {
	agent string
	body  []byte
	total int
	until time.Time
	users int // requests that are at work on it
}

// keep keeps an answer for its agent to fetch.
func (p *parts) keep(ctx context.Context, agent string, body []byte) (token string, err error) {
	if len(body) > CallBytesMax {
		return "", protocol.Errorf(protocol.CodeTooLarge, "answer", "is %d bytes, at most %d go through a door", len(body), CallBytesMax)
	}
	return p.add(ctx, agent, body, len(body))
}

func (p *parts) add(ctx context.Context, agent string, body []byte, total int) (token string, err error) {
	if err := p.d.bodies.await(ctx, agent, int64(total)); err != nil {
		return "", err
	}
	token = newToken()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.all[token] = &part{agent: agent, body: body, total: total, until: time.Now().Add(keptFor)}
	return token, nil
}

func goneParts() error {
	return protocol.Errorf(protocol.CodeGone, "token", "is of no body here: a door keeps one for %v after the last part; begin again", keptFor)
}

// of is the body with a token, which must be this agent's. The lock is held.
func (p *parts) of(agent, token string) (*part, error) {
	kept := p.all[token]
	if kept == nil || kept.agent != agent {
		return nil, goneParts()
	}
	kept.until = time.Now().Add(keptFor)
	return kept, nil
}

// drop forgets a body. The lock is held.
func (p *parts) drop(token string) {
	if kept := p.all[token]; kept != nil {
		delete(p.all, token)
		p.d.bodies.give(kept.agent, int64(kept.total))
	}
}

func (p *parts) sweep(now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for token, kept := range p.all {
		if kept.users == 0 && now.After(kept.until) {
			p.drop(token)
		}
	}
}

// reclaim forgets the body of an agent that was silent for longest. A client sends it
// again.
func (p *parts) reclaim(agent string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	var oldest string
	for token, kept := range p.all {
		if kept.agent == agent && kept.users == 0 && (oldest == "" || kept.until.Before(p.all[oldest].until)) {
			oldest = token
		}
	}
	p.drop(oldest)
	return oldest != ""
}

// put takes a part in. The first has no token. The same part may come again.
func (p *parts) put(ctx context.Context, agent, token string, total, offset int, body []byte) (string, error) {
	if token == "" {
		if total < 1 || total > CallBytesMax {
			return "", protocol.Errorf(protocol.CodeTooLarge, headerTotal, "is %d, must be 1 to %d", total, CallBytesMax)
		}
		var err error
		if token, err = p.add(ctx, agent, nil, total); err != nil {
			return "", err
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	kept, err := p.of(agent, token)
	switch {
	case err != nil:
		return "", err
	case offset < 0 || offset > len(kept.body) || offset+len(body) > kept.total || total != kept.total:
		return "", invalid(headerOffset, "is %d: the body has %d of %d bytes so far", offset, len(kept.body), kept.total)
	case offset < len(kept.body):
		if end := offset + len(body); end > len(kept.body) || !bytes.Equal(kept.body[offset:end], body) {
			return "", protocol.Errorf(protocol.CodeConflict, headerOffset, "is of a part that is here already, and is another")
		}
		return token, nil
	}
	if kept.body == nil {
		kept.body = make([]byte, 0, kept.total)
	}
	kept.body = append(kept.body, body...)
	return token, nil
}

// read returns a part; one behind the end says that all of it was read.
func (p *parts) read(agent, token string, offset, most int) (body []byte, total int, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	kept, err := p.of(agent, token)
	switch {
	case err != nil:
		return nil, 0, err
	case offset < 0 || offset > len(kept.body):
		return nil, 0, invalid(headerOffset, "is %d, and the body has %d bytes", offset, len(kept.body))
	case offset == kept.total:
		p.drop(token)
		return nil, kept.total, nil
	}
	return kept.body[offset:min(offset+most, len(kept.body))], kept.total, nil
}

// bodyOf is the body of a request. done says whether the request was answered: then
// a body that was sent in parts is forgotten; after a refusal the request may be made
// again with it.
func (d *Door) bodyOf(c *call) (body []byte, done func(answered bool), err error) {
	token := c.header.Get(headerBody)
	if token == "" {
		return c.body, func(bool) {}, nil
	}
	d.kept.mu.Lock()
	defer d.kept.mu.Unlock()
	kept, err := d.kept.of(c.agent, token)
	switch {
	case err != nil:
		return nil, nil, err
	case len(kept.body) < kept.total:
		return nil, nil, invalid(headerBody, "has %d of %d bytes so far", len(kept.body), kept.total)
	}
	kept.users++
	return kept.body, func(answered bool) {
		d.kept.mu.Lock()
		defer d.kept.mu.Unlock()
		kept.users--
		if answered && d.kept.all[token] == kept {
			d.kept.drop(token)
		}
	}, nil
}

func (d *Door) answerPut(ctx context.Context, c *call) {
	total, offset, err := numbers(c)
	token := c.header.Get(headerBody)
	if err == nil {
		token, err = d.kept.put(ctx, c.agent, token, total, offset, c.body)
	}
	if err != nil {
		d.refuse(c, err)
		return
	}
	d.send(c, nats.Header{headerDoor: {d.id}, headerBody: {token}}, nil)
}

func (d *Door) answerRead(c *call) {
	_, offset, err := numbers(c)
	var body []byte
	var total int
	if err == nil {
		body, total, err = d.kept.read(c.agent, c.header.Get(headerMore), offset, d.partMax())
	}
	if err != nil {
		d.refuse(c, err)
		return
	}
	d.send(c, nats.Header{headerDoor: {d.id}, headerTotal: {strconv.Itoa(total)}}, body)
}

// numbers reads the headers of a part; those that are missing are 0.
func numbers(c *call) (total, offset int, err error) {
	for name, into := range map[string]*int{headerTotal: &total, headerOffset: &offset} {
		text := c.header.Get(name)
		if text == "" {
			continue
		}
		if *into, err = strconv.Atoi(text); err != nil || *into < 0 {
			return 0, 0, invalid(name, "is no number of bytes")
		}
	}
	return total, offset, nil
}
