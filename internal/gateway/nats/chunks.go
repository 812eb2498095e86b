package natsgateway

import (
	"bytes"
	"context"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/agenthandoff/handoff/protocol"
)

// chunkStore has the bodies that do not fit one message: requests that arrive in chunks,
// and answers that leave in chunks.
type chunkStore struct {
	g   *Gateway
	mu  sync.Mutex
	all map[string]*chunk
}

type chunk struct {
	agent     string
	body      []byte
	total     int
	expiresAt time.Time
	pins      int // requests that are at work on it
}

// keepAnswer keeps an answer for its agent to fetch.
func (p *chunkStore) keepAnswer(ctx context.Context, agent string, body []byte) (token string, err error) {
	if len(body) > CallBytesMax {
		return "", protocol.Errorf(protocol.CodeTooLarge, "answer", "is %d bytes, at most %d go through a gateway", len(body), CallBytesMax)
	}
	return p.add(ctx, agent, body, len(body))
}

func (p *chunkStore) add(ctx context.Context, agent string, body []byte, total int) (token string, err error) {
	if err := p.g.bodies.awaitFree(ctx, agent, int64(total)); err != nil {
		return "", err
	}
	token = newToken()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.all[token] = &chunk{agent: agent, body: body, total: total, expiresAt: time.Now().Add(chunksExpireAfter)}
	return token, nil
}

func errChunksGone() error {
	return protocol.Errorf(protocol.CodeGone, "token", "is of no body here: a gateway keeps one for %v after the last part; begin again", chunksExpireAfter)
}

// bodyLocked is the body with a token, which must be this agent's. The lock is held.
func (p *chunkStore) bodyLocked(agent, token string) (*chunk, error) {
	kept := p.all[token]
	if kept == nil || kept.agent != agent {
		return nil, errChunksGone()
	}
	kept.expiresAt = time.Now().Add(chunksExpireAfter)
	return kept, nil
}

// removeLocked forgets a body. The lock is held.
func (p *chunkStore) removeLocked(token string) {
	if kept := p.all[token]; kept != nil {
		delete(p.all, token)
		p.g.bodies.release(kept.agent, int64(kept.total))
	}
}

func (p *chunkStore) sweep(now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for token, kept := range p.all {
		if kept.pins == 0 && now.After(kept.expiresAt) {
			p.removeLocked(token)
		}
	}
}

// reclaim forgets the body of an agent that was silent for longest. A client sends it
// again.
func (p *chunkStore) reclaim(agent string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	var oldest string
	for token, kept := range p.all {
		if kept.agent == agent && kept.pins == 0 && (oldest == "" || kept.expiresAt.Before(p.all[oldest].expiresAt)) {
			oldest = token
		}
	}
	p.removeLocked(oldest)
	return oldest != ""
}

// put stores a chunk. The first has no token. The same chunk may come again.
func (p *chunkStore) put(ctx context.Context, agent, token string, total, offset int, body []byte) (string, error) {
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
	kept, err := p.bodyLocked(agent, token)
	switch {
	case err != nil:
		return "", err
	case offset < 0 || offset > len(kept.body) || offset+len(body) > kept.total || total != kept.total:
		return "", invalid(headerOffset, "is %d: the body has %d of %d bytes so far", offset, len(kept.body), kept.total)
	case offset < len(kept.body):
		if end := offset + len(body); end > len(kept.body) || !bytes.Equal(kept.body[offset:end], body) {
			return "", protocol.Errorf(protocol.CodeConflict, headerOffset, "differs from the same part, which has arrived before")
		}
		return token, nil
	}
	if kept.body == nil {
		kept.body = make([]byte, 0, kept.total)
	}
	kept.body = append(kept.body, body...)
	return token, nil
}

// read returns a chunk. A read behind the end frees the body.
func (p *chunkStore) read(agent, token string, offset, most int) (body []byte, total int, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	kept, err := p.bodyLocked(agent, token)
	switch {
	case err != nil:
		return nil, 0, err
	case offset < 0 || offset > len(kept.body):
		return nil, 0, invalid(headerOffset, "is %d, and the body has %d bytes", offset, len(kept.body))
	case offset == kept.total:
		p.removeLocked(token)
		return nil, kept.total, nil
	}
	return kept.body[offset:min(offset+most, len(kept.body))], kept.total, nil
}

// bodyOf returns the body of a request. The caller reports to done whether the request was answered:
// then a body that was sent in chunks is forgotten; after a refusal it may be used again.
func (g *Gateway) bodyOf(c *call) (body []byte, done func(answered bool), err error) {
	token := c.header.Get(headerBody)
	if token == "" {
		return c.body, func(bool) {}, nil
	}
	g.chunks.mu.Lock()
	defer g.chunks.mu.Unlock()
	kept, err := g.chunks.bodyLocked(c.agent, token)
	switch {
	case err != nil:
		return nil, nil, err
	case len(kept.body) < kept.total:
		return nil, nil, invalid(headerBody, "has %d of %d bytes so far", len(kept.body), kept.total)
	}
	kept.pins++
	return kept.body, func(answered bool) {
		g.chunks.mu.Lock()
		defer g.chunks.mu.Unlock()
		kept.pins--
		if answered && g.chunks.all[token] == kept {
			g.chunks.removeLocked(token)
		}
	}, nil
}

func (g *Gateway) answerPut(ctx context.Context, c *call) {
	total, offset, err := chunkHeaders(c)
	token := c.header.Get(headerBody)
	if err == nil {
		token, err = g.chunks.put(ctx, c.agent, token, total, offset, c.body)
	}
	if err != nil {
		g.refuse(c, err)
		return
	}
	g.send(c, nats.Header{headerGateway: {g.id}, headerBody: {token}}, nil)
}

func (g *Gateway) answerRead(c *call) {
	_, offset, err := chunkHeaders(c)
	var body []byte
	var total int
	if err == nil {
		body, total, err = g.chunks.read(c.agent, c.header.Get(headerMore), offset, g.chunkMax())
	}
	if err != nil {
		g.refuse(c, err)
		return
	}
	g.send(c, nats.Header{headerGateway: {g.id}, headerTotal: {strconv.Itoa(total)}}, body)
}

// chunkHeaders reads the headers of a chunk; those that are missing are 0.
func chunkHeaders(c *call) (total, offset int, err error) {
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
