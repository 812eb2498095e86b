package brokertest

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/agenthandoff/handoff/broker"
)

// answerBytesMax is the largest message, as by the default of nats-server.
const answerBytesMax = 1 << 20

// service is one call of Serve.
type service struct {
	conn  *Memory
	verbs map[string]broker.Answerer
	slots chan struct{}
	wg    sync.WaitGroup // Add needs the store's lock
}

// Serve implements broker.Engine. The goroutine of Ask runs the answerer.
func (m *Memory) Serve(ctx context.Context, verbs map[string]broker.Answerer) error {
	fail := func(err error) error { return fmt.Errorf("answer questions: %w", err) }
	if err := broker.CheckVerbs(verbs); err != nil {
		return fail(err)
	}
	if err := m.checkUsable(ctx); err != nil {
		return fail(err)
	}
	d := &service{conn: m, verbs: verbs, slots: make(chan struct{}, broker.AnswersAtOnce)}
	m.s.mu.Lock()
	m.s.services = append(m.s.services, d)
	m.s.mu.Unlock()
	var err error
	for err == nil {
		m.mu.Lock()
		changed := m.stateChanged.wait()
		if m.closed {
			err = m.reachable()
		}
		m.mu.Unlock()
		if err != nil {
			break
		}
		select {
		case <-ctx.Done():
			err = ctx.Err()
		case <-changed:
		}
	}
	m.s.mu.Lock()
	m.s.services = slices.DeleteFunc(m.s.services, func(other *service) bool { return other == d })
	m.s.mu.Unlock()
	d.wg.Wait()
	return fail(err)
}

// Ask implements broker.Engine. It does not wait for a process to serve the verb.
func (m *Memory) Ask(ctx context.Context, verb string, question []byte) ([]byte, error) {
	if err := broker.CheckQuestion(verb, question); err != nil {
		return nil, err
	}
	fail := func(err error) ([]byte, error) { return nil, fmt.Errorf("ask for %s: %w", verb, err) }
	if err := m.checkUsable(ctx); err != nil {
		return fail(err)
	}
	d := m.s.nextService(verb)
	if d == nil {
		return fail(broker.ErrNoAnswer)
	}
	defer d.wg.Done()
	ctx, cancel := context.WithTimeout(ctx, broker.AnswerTimeMax)
	defer cancel()
	select {
	case d.slots <- struct{}{}:
		defer func() { <-d.slots }()
	case <-ctx.Done():
		return fail(ctx.Err())
	}
	answer, err := d.verbs[verb](ctx, slices.Clone(question))
	if err == nil {
		err = broker.CheckAnswer(answer, answerBytesMax)
	}
	switch {
	case ctx.Err() != nil:
		return fail(ctx.Err())
	case err != nil:
		return fail(broker.ErrorFromWire(broker.ErrorToWire(err)))
	}
	return slices.Clone(answer), nil
}

// nextService picks a service of a verb, in rotation, and admits the question to it; nil if there
// is none.
func (s *store) nextService(verb string) *service {
	s.mu.Lock()
	all := slices.Clone(s.services)
	s.mu.Unlock()
	for _, d := range all {
		if d.verbs[verb] != nil && d.conn.connected() && s.admit(d) {
			return d
		}
	}
	return nil
}

// admit counts a question in and puts the service behind the others. It is false for a service
// that has closed.
func (s *store) admit(d *service) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := slices.Index(s.services, d)
	if i < 0 {
		return false
	}
	s.services = append(slices.Delete(s.services, i, i+1), d)
	d.wg.Add(1)
	return true
}

func (m *Memory) connected() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.reachable() == nil
}
