package worker_test

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agenthandoff/handoff/internal/brokertest"
	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/worker"
)

func TestCancel(t *testing.T) {
	inBubble(t, func(w *world) {
		h := newWorking()
		s := w.serve(worker.Config{}, h)
		ticket := w.submit(nil)
		synctest.Wait()
		if _, err := w.b.Cancel(w.ctx, ticket, "lead", "changed my mind"); err != nil {
			t.Fatal(err)
		}
		pass(10 * time.Second) // a beat
		w.cancelledBy(h, worker.ErrCancelled)
		state := w.status(ticket)
		if state.Outcome != protocol.OutcomeCancelled || state.Attempt != 0 {
			t.Errorf("state %+v", state)
		}
		if events := w.events(ticket); !strings.HasSuffix(events, "cancel_requested released+closed") {
			t.Errorf("events %s", events)
		}
		if depth, _ := w.b.QueueDepth(w.ctx, "coder"); depth != 0 || s.Stats().Released != 1 {
			t.Errorf("%d offers left, stats %+v", depth, s.Stats())
		}
	})
}

// Work that is done counts, though its end was asked for; and a progress
// report hears of the request before the next beat does.
func TestCancelAfterTheWork(t *testing.T) {
	inBubble(t, func(w *world) {
		w.serve(worker.Config{}, worker.HandlerFunc(func(ctx context.Context, h worker.Handoff) (protocol.Result, error) {
			if _, err := w.b.Cancel(ctx, h.Ticket, "lead", "changed my mind"); err != nil {
				t.Error(err)
			}
			if err := h.Progress(ctx, protocol.Progress{Percent: 99}); err != nil {
				t.Error(err)
			}
			if !errors.Is(context.Cause(ctx), worker.ErrCancelled) {
				t.Errorf("cause %v", context.Cause(ctx))
			}
			return protocol.Result{}, nil
		}))
		if state := w.closed(w.submit(nil)); state.Outcome != protocol.OutcomeSuccess {
			t.Errorf("state %+v", state)
		}
	})
}

func TestReminder(t *testing.T) {
	for name, supervised := range map[string]bool{"by its own clock": false, "by the ledger": true} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(w *world) {
				reminded := make(chan time.Duration, 1)
				begin := time.Now()
				w.serve(worker.Config{}, worker.HandlerFunc(func(_ context.Context, h worker.Handoff) (protocol.Result, error) {
					if supervised {
						time.Sleep(82 * time.Second) // only now does it ask
					}
					<-h.Reminded()
					reminded <- time.Since(begin)
					return protocol.Result{}, nil
				}))
				ms := int64(100_000)
				ticket := w.submit(func(p *protocol.Package) { p.Policy.WorkTimeoutMS = &ms })
				want := 80 * time.Second
				if supervised {
					pass(80 * time.Second)
					w.look(ticket)
					want = 82 * time.Second
				}
				if after := <-reminded; after != want {
					t.Errorf("reminded after %v, want %v", after, want)
				}
				w.closed(ticket)
			})
		})
	}
}

// A handler that asks for more time is reminded of its new limit, by its own clock.
func TestExtend(t *testing.T) {
	inBubble(t, func(w *world) {
		reminded := make(chan time.Duration, 2)
		begin := time.Now()
		w.serve(worker.Config{}, worker.HandlerFunc(func(ctx context.Context, h worker.Handoff) (protocol.Result, error) {
			<-h.Reminded()
			reminded <- time.Since(begin)
			if err := h.Extend(ctx, 80*time.Second, "it takes longer"); err != nil {
				return protocol.Result{}, err
			}
			<-h.Reminded()
			reminded <- time.Since(begin)
			return protocol.Result{}, nil
		}))
		ms := int64(100_000)
		ticket := w.submit(func(p *protocol.Package) { p.Policy.WorkTimeoutMS = &ms })
		if first, second := <-reminded, <-reminded; first != 80*time.Second || second != 160*time.Second {
			t.Errorf("reminded after %v and %v, want 80 s and 160 s", first, second)
		}
		w.closed(ticket)
	})
}

func TestProgress(t *testing.T) {
	inBubble(t, func(w *world) {
		w.serve(worker.Config{}, worker.HandlerFunc(func(ctx context.Context, h worker.Handoff) (protocol.Result, error) {
			if err := h.Progress(ctx, protocol.Progress{Percent: 40, Message: "half"}); err != nil {
				t.Error(err)
			}
			if p := h.State().Progress; p == nil || p.Percent != 40 {
				t.Errorf("progress seen by the handler: %+v", p)
			}
			return protocol.Result{}, nil
		}))
		ticket := w.submit(nil)
		if p := w.closed(ticket).Progress; p == nil || p.Message != "half" {
			t.Errorf("progress %+v", p)
		}
	})
}

func TestAnswersAreLaidOverTheVariables(t *testing.T) {
	inBubble(t, func(w *world) {
		w.serve(worker.Config{}, worker.HandlerFunc(func(_ context.Context, h worker.Handoff) (protocol.Result, error) {
			if len(h.Answers) == 0 {
				return protocol.Result{}, worker.NeedContext("which branch?")
			}
			return protocol.Result{Body: h.Package.Context.Variables["branch"], Summary: h.Answers[0].Text}, nil
		}))
		ticket := w.submit(nil)
		synctest.Wait()
		answer := protocol.Answer{By: "lead", Question: 1, Text: "the old one", Variables: map[string]json.RawMessage{"branch": []byte(`"main"`)}}
		if _, err := w.b.Answer(w.ctx, ticket, answer); err != nil {
			t.Fatal(err)
		}
		w.closed(ticket)
		result, _, err := w.b.Result(w.ctx, ticket)
		if err != nil || string(result.Body) != `"main"` || result.Summary != "the old one" {
			t.Errorf("result %+v, %v", result, err)
		}
	})
}

func TestConfig(t *testing.T) {
	b := brokertest.Over(t, brokertest.NewMemory())
	for field, cfg := range map[string]worker.Config{
		"agent":       {},
		"agent id":    {Agent: "no spaces"},
		"concurrency": {Agent: "a", Concurrency: -1},
		"lease":       {Agent: "a", Lease: time.Millisecond},
		"profile.id":  {Agent: "a", Profile: protocol.Profile{ID: "b"}},
	} {
		var refused *protocol.Error
		if _, err := worker.New(sessionOf(b), cfg, done); !errors.As(err, &refused) || !strings.HasPrefix(field, refused.Field) {
			t.Errorf("%s: %v", field, err)
		}
	}
	if _, err := worker.New(sessionOf(b), worker.Config{Agent: "a"}, nil); err == nil {
		t.Error("a worker without a handler")
	}
}

func limitOf(h worker.Handoff) protocol.Clock {
	_, clock := h.Limit()
	return clock
}
