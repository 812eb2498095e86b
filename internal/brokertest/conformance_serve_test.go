package brokertest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/protocol"
)

var serveCases = []conformanceCase{
	{"a question is answered by who serves its verb", serveAnswers},
	{"a question without a server has no answer", serveMissing},
	{"an error of the answerer comes back as it is", serveErrors},
	{"a question and an answer have a size", serveSizes},
	{"many questions are answered, so many at once", serveMany},
	{"one who serves may leave while questions come", serveLeaves},
	{"what is being answered when serving ends is answered", serveDrains},
	{"a verb is an id", serveVerbs},
	{"closing ends serving", serveCloses},
}

// verb is one that no other case serves.
func (k *kit) verb() string { return "verb-" + protocol.NewTicket()[:8] }

// serve serves one verb until the returned function is called, which waits for
// the end.
func (k *kit) serve(verb string, answer broker.Answerer) (leave func()) {
	k.Helper()
	ctx, cancel := context.WithCancel(k.ctx)
	ended := make(chan error, 1)
	go func() { ended <- k.Serve(ctx, map[string]broker.Answerer{verb: answer}) }()
	return func() {
		cancel()
		k.wantErr(receive(k, "the end of serving", ended), context.Canceled)
	}
}

// askUntilServed asks again until a process serves the verb.
func (k *kit) askUntilServed(verb, question string) (answer []byte, err error) {
	k.until("a process that serves "+verb, func() bool {
		answer, err = k.Ask(k.ctx, verb, []byte(question))
		return !errors.Is(err, broker.ErrNoAnswer)
	})
	return answer, err
}

// awaitUnserved waits until no process serves a verb, and a question fails.
func (k *kit) awaitUnserved(verb string) {
	k.until("the end of the service of "+verb, func() bool {
		ctx, cancel := context.WithTimeout(k.ctx, 200*time.Millisecond)
		defer cancel()
		_, err := k.Ask(ctx, verb, nil)
		return errors.Is(err, broker.ErrNoAnswer)
	})
}

func echo(_ context.Context, question []byte) ([]byte, error) {
	return append([]byte("re: "), question...), nil
}

func serveAnswers(k *kit) {
	verb := k.verb()
	defer k.serve(verb, echo)()
	for _, question := range []string{"x", "", "\x00\xff"} {
		answer, err := k.askUntilServed(verb, question)
		k.must(err)
		if string(answer) != "re: "+question {
			k.Errorf("asked %q, the answer is %q", question, answer)
		}
	}
	empty := k.verb()
	defer k.serve(empty, func(context.Context, []byte) ([]byte, error) { return nil, nil })()
	answer, err := k.askUntilServed(empty, "x")
	k.must(err)
	if len(answer) > 0 {
		k.Errorf("the answer is %q, want none", answer)
	}
}

func serveMissing(k *kit) {
	k.awaitUnserved(k.verb())
	verb := k.verb()
	leave := k.serve(verb, echo)
	_, err := k.askUntilServed(verb, "x")
	k.must(err)
	leave()
	k.awaitUnserved(verb)
}

func serveErrors(k *kit) {
	refused := &protocol.Error{Code: protocol.CodeInvalid, Field: "cursor", Message: "is \"none\",\nin two lines"}
	verb, with := k.verb(), map[string]error{
		"refused":     fmt.Errorf("wrapped: %w", refused),
		"unreachable": fmt.Errorf("wrapped: %w", broker.ErrUnreachable),
		"other":       errors.New("the disk is full"),
	}
	defer k.serve(verb, func(_ context.Context, q []byte) ([]byte, error) { return nil, with[string(q)] })()
	_, err := k.askUntilServed(verb, "refused")
	var got *protocol.Error
	if !errors.As(err, &got) || *got != *refused {
		k.Errorf("the error is %v, want %v", err, refused)
	}
	_, err = k.askUntilServed(verb, "unreachable")
	k.wantErr(err, broker.ErrUnreachable)
	_, err = k.askUntilServed(verb, "other")
	if err == nil || errors.As(err, &got) || !bytes.Contains([]byte(err.Error()), []byte("the disk is full")) {
		k.Errorf("the error is %v, want its words", err)
	}
}

func serveSizes(k *kit) {
	verb := k.verb()
	var size atomic.Int64
	defer k.serve(verb, func(_ context.Context, q []byte) ([]byte, error) { return make([]byte, size.Load()), nil })()
	_, err := k.askUntilServed(verb, string(make([]byte, broker.QuestionBytesMax)))
	k.must(err)
	_, err = k.Ask(k.ctx, verb, make([]byte, broker.QuestionBytesMax+1))
	k.wantErr(err, &protocol.Error{Code: protocol.CodeTooLarge, Field: "question"})
	size.Store(512 << 10)
	answer, err := k.Ask(k.ctx, verb, nil)
	k.must(err)
	if int64(len(answer)) != size.Load() {
		k.Errorf("%d bytes came of %d", len(answer), size.Load())
	}
	size.Store(2 << 20) // the engines under test have messages of 1 MiB
	_, err = k.Ask(k.ctx, verb, nil)
	k.wantErr(err, &protocol.Error{Code: protocol.CodeTooLarge})
}

func serveMany(k *kit) {
	const questions = 3 * broker.AnswersAtOnce
	verb := k.verb()
	var now, most atomic.Int64
	var once sync.Once
	full := make(chan struct{}) // closed when as many are at it as there can be
	defer k.serve(verb, func(ctx context.Context, q []byte) ([]byte, error) {
		n := now.Add(1)
		defer now.Add(-1)
		for old := most.Load(); n > old && !most.CompareAndSwap(old, n); old = most.Load() {
		}
		if string(q) == "first" {
			return nil, nil
		}
		if n == broker.AnswersAtOnce {
			once.Do(func() { close(full) })
		}
		select {
		case <-full:
		case <-ctx.Done():
		}
		return q, nil
	})()
	_, err := k.askUntilServed(verb, "first")
	k.must(err)
	var asking sync.WaitGroup
	wrong := make(chan error, questions)
	for i := range questions {
		asking.Go(func() {
			want := fmt.Sprint(i)
			answer, err := k.Ask(k.ctx, verb, []byte(want))
			if err == nil && string(answer) != want {
				err = fmt.Errorf("asked %s, got %q", want, answer)
			}
			wrong <- err
		})
	}
	asking.Wait()
	for range questions {
		k.must(receive(k, "an answer", wrong))
	}
	if most.Load() != broker.AnswersAtOnce {
		k.Errorf("%d at once, want %d", most.Load(), broker.AnswersAtOnce)
	}
}

func serveLeaves(k *kit) {
	verb := k.verb()
	defer k.serve(verb, echo)()
	_, err := k.askUntilServed(verb, "x")
	k.must(err)
	for range 5 {
		met := make(chan struct{})
		var once sync.Once
		leave := k.serve(verb, func(ctx context.Context, q []byte) ([]byte, error) {
			once.Do(func() { close(met) })
			return echo(ctx, q)
		})
		ctx, cancel := context.WithCancel(k.ctx)
		ended := make(chan error, 1)
		go func() {
			for ctx.Err() == nil {
				if _, err := k.Ask(k.ctx, verb, []byte("x")); err != nil {
					ended <- err
					return
				}
			}
			ended <- nil
		}()
		receive(k, "a question for the second", met)
		leave()
		cancel()
		k.must(receive(k, "the end of the questions", ended))
	}
}

func serveDrains(k *kit) {
	verb := k.verb()
	var once sync.Once
	begun, finish := make(chan struct{}), make(chan struct{})
	ctx, cancel := context.WithCancel(k.ctx)
	defer cancel()
	ended := make(chan error, 1)
	go func() {
		ended <- k.Serve(ctx, map[string]broker.Answerer{verb: func(ctx context.Context, q []byte) ([]byte, error) {
			if string(q) == "slow" {
				once.Do(func() { close(begun) }) // a question whose answer is long in coming is asked again
				select {
				case <-finish:
				case <-ctx.Done():
					return nil, ctx.Err()
				}
			}
			return q, nil
		}})
	}()
	_, err := k.askUntilServed(verb, "x")
	k.must(err)
	answered := make(chan error, 1)
	go func() {
		answer, err := k.Ask(k.ctx, verb, []byte("slow"))
		if err == nil && string(answer) != "slow" {
			err = fmt.Errorf("the answer is %q", answer)
		}
		answered <- err
	}()
	receive(k, "the slow question", begun)
	cancel()
	k.awaitUnserved(verb)
	select {
	case err := <-ended:
		k.Fatalf("serving ended with a question open: %v", err)
	default:
	}
	close(finish)
	k.must(receive(k, "the slow answer", answered))
	k.wantErr(receive(k, "the end of serving", ended), context.Canceled)
}

func serveVerbs(k *kit) {
	for _, verb := range []string{"", "a.b", "*", ">", "a b"} {
		err := k.Serve(k.ctx, map[string]broker.Answerer{verb: echo})
		_, askErr := k.Ask(k.ctx, verb, nil)
		var e *protocol.Error
		if !errors.As(err, &e) || !errors.As(askErr, &e) || e.Field != "verb" {
			k.Errorf("verb %q: %v, %v", verb, err, askErr)
		}
	}
}

func serveCloses(k *kit) {
	c, ok := k.Engine.(io.Closer)
	if !ok {
		k.Skip("it cannot be closed")
	}
	verb := k.verb()
	ended := make(chan error, 1)
	go func() { ended <- k.Serve(k.ctx, map[string]broker.Answerer{verb: echo}) }()
	_, err := k.askUntilServed(verb, "x")
	k.must(err)
	k.must(c.Close())
	k.wantErr(receive(k, "the end of serving", ended), broker.ErrUnreachable)
}
