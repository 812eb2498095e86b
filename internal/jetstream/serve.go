package jetstream

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/protocol"
)

const (
	// queryVersion is the version of the questions (SemVer), for tools that list services.
	queryVersion = "1.0.0"
	// askBesideAfter is how long an answer may take before the question is sent once more, and
	// asksBeside the most times it is sent.
	askBesideAfter = 4 * time.Second
	asksBeside     = 3
	// drainPatience bounds how long the end of Serve waits for answers.
	drainPatience = 5 * time.Second
	// drainSettle is the time for received questions to reach their goroutines: nothing in between
	// blocks, and nothing signals the end.
	drainSettle = 50 * time.Millisecond
)

// Serve implements broker.Engine, as a NATS service that "nats micro" finds.
func (j *Engine) Serve(ctx context.Context, verbs map[string]broker.Answerer) error {
	fail := func(err error) error { return fmt.Errorf("answer questions: %w", err) }
	if err := broker.CheckVerbs(verbs); err != nil {
		return fail(err)
	}
	if ctx.Err() != nil {
		return fail(ctx.Err())
	}
	if j.isClosed() {
		return fail(broker.ErrClosed)
	}
	work, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	desk := &questionQueue{nc: j.nc, log: j.cfg.Log, ctx: work, slots: make(chan struct{}, broker.AnswersAtOnce)}
	service, err := micro.AddService(j.nc, micro.Config{
		Name: QueryService, Version: queryVersion, QueueGroup: QueryService,
		Description: "answers questions about handoffs",
	})
	if err != nil {
		return fail(fmt.Errorf("%w: %w", broker.ErrUnreachable, err))
	}
	for verb, answer := range verbs {
		err = errors.Join(err, service.AddEndpoint(verb, desk.handler(answer), micro.WithEndpointSubject(querySubject(verb))))
	}
	if err == nil {
		select {
		case <-ctx.Done():
			err = ctx.Err()
		case <-j.closing.Done():
			err = broker.ErrClosed
		}
	}
	if stopErr := service.Stop(); stopErr == nil {
		// After this round trip the server sends no more of them.
		_ = j.nc.FlushTimeout(time.Second) // a lost connection brings none either
	}
	desk.drain(stop)
	return fail(err)
}

// questionQueue receives the questions of one Serve.
type questionQueue struct {
	nc    *nats.Conn
	log   *slog.Logger
	ctx   context.Context // of all answers
	slots chan struct{}

	mu     sync.Mutex
	closed bool
	here   int // being answered or waiting for a slot
	wg     sync.WaitGroup
}

// handler accepts questions, and never blocks: the service calls it from the only goroutine of its
// subscription, and others wait behind it. The answer bypasses the service, which does not expect
// answers after its handler returned.
func (d *questionQueue) handler(answer broker.Answerer) micro.HandlerFunc {
	return func(r micro.Request) {
		reply, question := r.Reply(), r.Data()
		if reply == "" {
			return
		}
		d.mu.Lock()
		defer d.mu.Unlock()
		switch {
		case d.closed: // as if no process served it: it is sent to another
			_ = d.nc.PublishMsg(&nats.Msg{Subject: reply, Header: nats.Header{"Status": {"503"}}})
			return
		case d.here == broker.QuestionsWaitingMax:
			d.refuse(reply, fmt.Errorf("%w: %d questions are waiting; ask again later", broker.ErrUnreachable, d.here))
			return
		}
		d.here++
		d.wg.Go(func() {
			d.answer(reply, question, answer)
			d.mu.Lock()
			defer d.mu.Unlock()
			d.here--
		})
	}
}

// answer answers one question when a slot is free.
func (d *questionQueue) answer(reply string, question []byte, answer broker.Answerer) {
	ctx, cancel := context.WithTimeout(d.ctx, broker.AnswerTimeMax)
	defer cancel()
	var body []byte
	err := broker.CheckQuestion("q", question) // the client may not have checked it
	if err == nil {
		select {
		case d.slots <- struct{}{}:
			body, err = answer(ctx, question)
			<-d.slots
		case <-ctx.Done():
			err = fmt.Errorf("too many questions at once: %w", ctx.Err())
		}
	}
	if err == nil {
		err = broker.CheckAnswer(body, d.nc.MaxPayload())
	}
	if err != nil {
		d.refuse(reply, err)
		return
	}
	if err := d.nc.Publish(reply, body); err != nil {
		d.log.Warn("an answer was not sent; the caller will ask again", "err", err)
	}
}

// refuse answers with an error, in the form of NATS services.
func (d *questionQueue) refuse(reply string, err error) {
	wire := broker.ErrorToWire(err)
	body, jsonErr := json.Marshal(wire)
	if jsonErr != nil {
		body = []byte(`{"code":"error","message":"the error has no form"}`)
	}
	status := "400"
	if wire.Code == broker.CodeAnswerFailed || wire.Code == protocol.CodeUnreachable {
		status = "500"
		d.log.Warn("a question was not answered", "err", err)
	}
	_ = d.nc.PublishMsg(&nats.Msg{Subject: reply, Data: body, Header: nats.Header{
		micro.ErrorHeader: {string(wire.Code)}, micro.ErrorCodeHeader: {status},
	}}) // if the connection is lost, the caller asks again
}

// drain waits until the received questions are answered, for drainPatience at most.
func (d *questionQueue) drain(stop func()) {
	time.Sleep(drainSettle)
	d.mu.Lock()
	d.closed = true
	d.mu.Unlock()
	late := time.AfterFunc(drainPatience, stop)
	defer late.Stop()
	d.wg.Wait()
	_ = d.nc.FlushTimeout(time.Second)
}

// Ask implements broker.Engine.
func (j *Engine) Ask(ctx context.Context, verb string, question []byte) ([]byte, error) {
	if err := broker.CheckQuestion(verb, question); err != nil {
		return nil, err
	}
	answer, err := j.askService(ctx, verb, question)
	if err != nil {
		return nil, fmt.Errorf("ask for %s: %w", verb, err)
	}
	return answer, nil
}

func (j *Engine) askService(ctx context.Context, verb string, question []byte) ([]byte, error) {
	limited, cancel := context.WithTimeout(ctx, broker.AnswerTimeMax)
	defer cancel()
	pauses, lonely := newBackOff(limited), time.Time{}
	for {
		if err := j.retryWithTimeout(ctx, func(context.Context) error { return nil }); err != nil { // wait for a connection
			return nil, noResponderError(!lonely.IsZero() && ctx.Err() != nil, err)
		}
		reply, err := j.askHedged(limited, verb, question)
		switch {
		case err == nil:
			return readAnswer(reply)
		case ctx.Err() != nil:
			return nil, noResponderError(!lonely.IsZero(), ctx.Err())
		case limited.Err() != nil:
			return nil, fmt.Errorf("%w: no answer in %v", broker.ErrNoAnswer, broker.AnswerTimeMax)
		case errors.Is(err, nats.ErrNoResponders):
			if lonely.IsZero() {
				lonely = time.Now()
			} else if time.Since(lonely) > j.cfg.Timeout {
				return nil, fmt.Errorf("%w (asked for %v)", broker.ErrNoAnswer, j.cfg.Timeout)
			}
		case !isTemporary(err):
			return nil, err
		default: // the connection broke, perhaps also that of the serving process
			lonely = time.Time{}
		}
		j.pause(limited, pauses.NextBackOff(), nil)
	}
}

// noResponderError adds ErrNoAnswer to an error if no process answered.
func noResponderError(lonely bool, err error) error {
	if lonely {
		return fmt.Errorf("%w: %w", broker.ErrNoAnswer, err)
	}
	return err
}

// askHedged sends the question, and resends it if the answer takes long: it may have been lost with
// the server of the process that had the question. It returns the first outcome.
func (j *Engine) askHedged(ctx context.Context, verb string, question []byte) (*nats.Msg, error) {
	type outcome struct {
		reply *nats.Msg
		err   error
	}
	var tries sync.WaitGroup
	defer tries.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	came := make(chan outcome, asksBeside)
	ask := func() {
		reply, err := j.askOnce(ctx, verb, question)
		came <- outcome{reply, err}
	}
	tries.Go(ask)
	again := time.NewTicker(askBesideAfter)
	defer again.Stop()
	for n := 1; ; {
		select {
		case o := <-came:
			return o.reply, o.err
		case <-again.C:
			if n < asksBeside {
				n++
				tries.Go(ask)
			}
		}
	}
}

// askOnce is one try. It ends with the connection, because the answer is lost with it.
func (j *Engine) askOnce(ctx context.Context, verb string, question []byte) (*nats.Msg, error) {
	linked, cancel, err := j.whileConnected(ctx)
	if err != nil {
		return nil, err
	}
	defer cancel()
	var reply *nats.Msg
	err = j.denied.watchWhile(linked, j.nc, querySubject(verb), func(ctx context.Context) (err error) {
		reply, err = j.nc.RequestWithContext(ctx, querySubject(verb), question)
		return err
	})
	if err != nil {
		return nil, causeOr(linked, err)
	}
	return reply, nil
}

func readAnswer(reply *nats.Msg) ([]byte, error) {
	if reply.Header.Get(micro.ErrorCodeHeader) == "" {
		return reply.Data, nil
	}
	var e protocol.Error
	if err := json.Unmarshal(reply.Data, &e); err != nil || e.Code == "" {
		return nil, fmt.Errorf("the answer is an unreadable error: %s", reply.Header.Get(micro.ErrorHeader))
	}
	return nil, broker.ErrorFromWire(&e)
}
