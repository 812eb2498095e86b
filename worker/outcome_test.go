package worker_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/worker"
)

// An agent escalates, its authority answers, and the handoff goes on where it
// was, with the answer.
func TestEscalateAndAnswer(t *testing.T) {
	inBubble(t, func(w *world) {
		w.register(protocol.Profile{ID: "coder", EscalatesTo: "boss"})
		boss := w.serve(worker.Config{Agent: "boss"}, worker.HandlerFunc(func(_ context.Context, h worker.Handoff) (protocol.Result, error) {
			if len(h.Trail) != 1 || h.Trail[0].Agent != "coder" || h.Trail[0].Words != "two ways" || h.Trail[0].Assessment != "the left one is shorter" {
				t.Errorf("trail %+v", h.Trail)
			}
			return protocol.Result{}, worker.AnswerEscalation(protocol.Answer{Text: "left"})
		}))
		s := w.serve(worker.Config{}, worker.HandlerFunc(func(_ context.Context, h worker.Handoff) (protocol.Result, error) {
			if len(h.Answers) == 0 {
				return protocol.Result{}, worker.Escalate("two ways", "the left one is shorter")
			}
			if h.Answers[0].By != "boss" || h.Attempt != 1 || len(h.Trail) != 2 {
				t.Errorf("attempt %d, answers %+v, trail %+v", h.Attempt, h.Answers, h.Trail)
			}
			return protocol.Result{Summary: h.Answers[0].Text}, nil
		}))
		ticket := w.submit(nil)
		w.closed(ticket)
		result, state, err := w.b.Result(w.ctx, ticket)
		if err != nil || result.Summary != "left" || state.Agent != "coder" || state.EscalationLevel != 0 {
			t.Errorf("result %+v, state %+v, %v", result, state, err)
		}
		if a, b := s.Stats(), boss.Stats(); a.Escalated != 1 || a.Completed != 1 || a.Claimed != 2 || b.Answered != 1 || b.Claimed != 1 {
			t.Errorf("stats %+v, the boss's %+v", a, b)
		}
	})
}

// A denial by an authority ends it, unless that lets others decide.
func TestDenyAnEscalation(t *testing.T) {
	for _, letOthers := range []bool{false, true} {
		inBubble(t, func(w *world) {
			w.register(protocol.Profile{ID: "coder", EscalatesTo: "boss"})
			w.serve(worker.Config{Agent: "boss"}, worker.HandlerFunc(func(context.Context, worker.Handoff) (protocol.Result, error) {
				return protocol.Result{}, worker.AnswerEscalation(protocol.Answer{Deny: true, DenyReason: "no budget", LetOthers: letOthers})
			}))
			w.serve(worker.Config{}, worker.HandlerFunc(func(context.Context, worker.Handoff) (protocol.Result, error) {
				return protocol.Result{}, worker.Escalate("may I?", "")
			}))
			ticket := w.submit(nil)
			pass(time.Second)
			if state := w.status(ticket); state.Closed == letOthers || letOthers && (state.Agent != protocol.Human || state.EscalationLevel != 2) {
				t.Errorf("state %+v", state)
			}
		})
	}
}

// What the core refuses ends the attempt, and not the worker.
func TestDecisionsThatAreRefused(t *testing.T) {
	for name, c := range map[string]struct {
		says      error
		code      string
		permanent bool
	}{
		"nobody above":          {worker.Escalate("two ways", ""), "escalation_exhausted", true},
		"no rationale":          {worker.Escalate(" ", "x"), "invalid_escalation", true},
		"nothing was escalated": {worker.AnswerEscalation(protocol.Answer{Text: "left"}), "answer", false},
		"an empty answer":       {worker.AnswerEscalation(protocol.Answer{}), "answer", false},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(w *world) {
				w.serve(worker.Config{}, worker.HandlerFunc(func(context.Context, worker.Handoff) (protocol.Result, error) {
					return protocol.Result{}, c.says
				}))
				none := 0
				ticket := w.submit(func(p *protocol.Package) { p.Policy.MaxEscalations = &none })
				pass(time.Second)
				if state := w.status(ticket); state.Reason != c.code || state.Phase != protocol.PhaseFailed || state.Retryable == c.permanent {
					t.Errorf("state %+v", state)
				}
			})
		})
	}
}

// One whose end was asked for, and did not hear of it yet, is not escalated any
// more, nor is that a failure: it ends.
func TestDecisionAfterACancel(t *testing.T) {
	for name, says := range map[string]error{
		"escalate": worker.Escalate("two ways", ""), "answer": worker.AnswerEscalation(protocol.Answer{Text: "left"}),
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(w *world) {
				w.serve(worker.Config{}, worker.HandlerFunc(func(ctx context.Context, h worker.Handoff) (protocol.Result, error) {
					if _, err := w.b.Cancel(ctx, h.Ticket, "lead", "changed my mind"); err != nil {
						t.Error(err)
					}
					return protocol.Result{}, says
				}))
				ticket := w.submit(nil)
				pass(time.Second)
				if state := w.status(ticket); state.Outcome != protocol.OutcomeCancelled || state.AttemptsTotal != 0 {
					t.Errorf("state %+v", state)
				}
			})
		})
	}
}

// A decision of the handler counts though its worker shuts down, a failure does
// not: that may well come of the shutdown.
func TestDecisionDuringAShutdown(t *testing.T) {
	for name, c := range map[string]struct {
		says   error
		events string
	}{
		"an error":   {errors.New("interrupted"), "released+offered"},
		"a refusal":  {worker.Reject("not mine", ""), "rejected"},
		"a rollback": {worker.RollBack("not mine", nil), "rolled_back"},
		"an upward":  {worker.Escalate("two ways", ""), "escalated+offered"},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(w *world) {
				s := w.serve(worker.Config{DrainTimeout: -1}, worker.HandlerFunc(func(ctx context.Context, _ worker.Handoff) (protocol.Result, error) {
					<-ctx.Done()
					return protocol.Result{}, c.says
				}))
				ticket := w.submit(nil)
				pass(0)
				if err := s.drain(); err != nil {
					t.Error(err)
				}
				if events := w.events(ticket); events != "submitted+offered accepted+started "+c.events {
					t.Errorf("events %s", events)
				}
			})
		})
	}
}

// A rollback brings its source the reason and what there is of a result: the
// handler's own, else what the last progress said. One that breaks the rules does
// not keep the handoff here.
func TestRollBack(t *testing.T) {
	progress := protocol.Progress{Percent: 40, Message: "half", Details: []byte(`{"done":[1]}`)}
	for name, c := range map[string]struct {
		partial   *protocol.Result
		progress  bool
		body      string
		summary   string
		hasResult bool
	}{
		"a partial result":  {&protocol.Result{Status: protocol.Partial, Body: []byte(`"draft"`)}, true, `"draft"`, "", true},
		"the last progress": {nil, true, `{"done":[1]}`, "half", true},
		"nothing":           {nil, false, "", "", false},
		"a broken one":      {&protocol.Result{Status: "perhaps"}, true, "", "", false},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(w *world) {
				s := w.serve(worker.Config{}, worker.HandlerFunc(func(ctx context.Context, h worker.Handoff) (protocol.Result, error) {
					if c.progress {
						if err := h.Progress(ctx, progress); err != nil {
							t.Error(err)
						}
					}
					return protocol.Result{}, worker.RollBack("not worth it", c.partial)
				}))
				ticket := w.submit(nil)
				state := w.closed(ticket)
				if state.Outcome != protocol.OutcomeRolledBack || state.Message != "not worth it" || s.Stats().RolledBack != 1 {
					t.Errorf("state %+v, stats %+v", state, s.Stats())
				}
				result, _, err := w.b.Result(w.ctx, ticket)
				if c.hasResult != (err == nil) || string(result.Body) != c.body || result.Summary != c.summary || err == nil && result.Status != protocol.Partial {
					t.Errorf("result %+v, %v", result, err)
				}
				ret, err := w.b.Return(w.ctx, ticket)
				if err != nil || c.progress != (ret.Progress != nil) {
					t.Errorf("return %+v, %v", ret, err)
				}
			})
		})
	}
}

// Somebody returns the handoff while it is worked on: the handler hears of it
// with the next beat, and says how far it came; or its progress does.
func TestReturnedByRequest(t *testing.T) {
	for name, c := range map[string]struct {
		says    error
		outcome protocol.Outcome
		body    string
		message string
	}{
		"the cause":     {worker.ErrReturned, protocol.OutcomeRolledBack, `[1,2,3]`, "wrong branch"},
		"a rollback":    {worker.RollBack("half done", &protocol.Result{Body: []byte(`[1,2]`)}), protocol.OutcomeRolledBack, `[1,2]`, "half done"},
		"a refusal":     {worker.Reject("no", ""), protocol.OutcomeRolledBack, `[1,2,3]`, "wrong branch"},
		"a wait":        {worker.Await(), protocol.OutcomeRolledBack, `[1,2,3]`, "wrong branch"},
		"a result even": {nil, protocol.OutcomeSuccess, `[1,2,3]`, ""},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(w *world) {
				var cause error
				w.serve(worker.Config{}, worker.HandlerFunc(func(ctx context.Context, h worker.Handoff) (protocol.Result, error) {
					if err := h.Progress(ctx, protocol.Progress{Details: []byte(`[1]`)}); err != nil {
						t.Error(err)
					}
					<-ctx.Done()
					cause = context.Cause(ctx)
					return protocol.Result{Body: []byte(`[1,2,3]`)}, c.says
				}))
				ticket := w.submit(nil)
				pass(time.Second)
				if _, err := w.b.RollBack(w.ctx, ticket, "lead", "wrong branch"); err != nil {
					t.Fatal(err)
				}
				pass(10 * time.Second)
				result, state, err := w.b.Result(w.ctx, ticket)
				if err != nil || !errors.Is(cause, worker.ErrReturned) || state.Outcome != c.outcome || state.Message != c.message || string(result.Body) != c.body {
					t.Errorf("cause %v, state %+v, result %s, %v", cause, state, result.Body, err)
				}
			})
		})
	}
}

// TestPartialResultsAreKept: a result that a handler returns with its error, once its context has
// ended, is kept whatever ended it.
func TestPartialResultsAreKept(t *testing.T) {
	for name, end := range map[string]func(*world, *serving, string){
		"cancelled": func(w *world, _ *serving, ticket string) {
			if _, err := w.b.Cancel(w.ctx, ticket, "lead", "changed my mind"); err != nil {
				t.Error(err)
			}
		},
		"shut down": func(_ *world, s *serving, _ string) { s.stop() },
		"lost":      func(w *world, _ *serving, ticket string) { w.takeAway(ticket); pass(10 * time.Second) },
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(w *world) {
				s := w.serve(worker.Config{}, worker.HandlerFunc(func(ctx context.Context, _ worker.Handoff) (protocol.Result, error) {
					<-ctx.Done()
					return protocol.Result{Body: []byte(`"half"`)}, context.Cause(ctx)
				}))
				ticket := w.submit(nil)
				synctest.Wait()
				end(w, s, ticket)
				pass(worker.DrainTimeoutDefault + time.Second)
				s.stop()
				pass(worker.DrainTimeoutDefault + time.Second)
				late, err := w.b.LateResults(w.ctx, ticket)
				if err != nil || len(late) != 1 || string(late[0].Result.Body) != `"half"` || late[0].Result.Status != protocol.Partial {
					t.Errorf("late results %+v, %v", late, err)
				}
			})
		})
	}
}

// A handler that beats and says nothing of its progress loses the handoff, and
// the next beat tells it.
func TestProgressTimeout(t *testing.T) {
	inBubble(t, func(w *world) {
		w.supervise()
		var deadlines []time.Duration
		var took time.Duration
		var cause error
		begin := time.Now()
		w.serve(worker.Config{}, worker.HandlerFunc(func(ctx context.Context, h worker.Handoff) (protocol.Result, error) {
			if h.Attempt == 2 {
				return protocol.Result{}, nil
			}
			deadlines = append(deadlines, h.ProgressDeadline().Sub(begin))
			time.Sleep(45 * time.Second)
			if err := h.Progress(ctx, protocol.Progress{Percent: 1}); err != nil {
				t.Error(err)
			}
			deadlines = append(deadlines, h.ProgressDeadline().Sub(begin))
			<-ctx.Done()
			cause, took = context.Cause(ctx), time.Since(begin)
			return protocol.Result{}, cause
		}))
		minute := time.Minute.Milliseconds()
		ticket := w.submit(func(p *protocol.Package) { p.Policy.ProgressTimeoutMS = &minute })
		state := w.closed(ticket)
		if state.Outcome != protocol.OutcomeSuccess || state.Attempt != 2 || !errors.Is(cause, broker.ErrLeaseLost) {
			t.Errorf("cause %v, state %+v", cause, state)
		}
		if deadlines[0] != time.Minute || deadlines[1] != 105*time.Second || took < deadlines[1] || took > deadlines[1]+11*time.Second {
			t.Errorf("deadlines %v, taken away after %v", deadlines, took)
		}
		if events := w.events(ticket); !strings.Contains(events, "timed_out+retry_scheduled") {
			t.Errorf("events %s", events)
		}
	})
}

// A lost lease is an attempt, a drain is none; and what kills every worker ends.
func TestWhatCountsAsAnAttempt(t *testing.T) {
	inBubble(t, func(w *world) {
		w.supervise()
		w.register(protocol.Profile{ID: "coder"})
		ticket := w.submit(func(p *protocol.Package) { p.Policy.OnExhausted = new(protocol.ExhaustedFail) })
		for attempt := 1; attempt <= 3; attempt++ {
			h := newWorking()
			drained := w.serve(worker.Config{DrainTimeout: -1}, h)
			pass(time.Minute)
			if got := (<-h.began).Attempt; got != attempt {
				t.Fatalf("attempt %d, want %d", got, attempt)
			}
			if err := drained.drain(); err != nil {
				t.Error(err)
			}
			pass(time.Second)
			lost := w.serve(worker.Config{}, h)
			pass(time.Second)
			if got := (<-h.began).Attempt; got != attempt {
				t.Fatalf("attempt %d after a drain, want %d", got, attempt)
			}
			lost.m.Disconnect() // for good: it vanishes
			lost.stop()
			pass(45 * time.Second)
		}
		if state := w.status(ticket); state.Outcome != protocol.OutcomeFailed || state.Reason != "crash_loop" || state.AttemptsTotal != 3 || state.LeasesLost != 3 {
			t.Errorf("state %+v", state)
		}
	})
}

// The next agent reads what happened before.
func TestTrail(t *testing.T) {
	inBubble(t, func(w *world) {
		w.supervise()
		var trail, asked []protocol.TrailEntry
		w.serve(worker.Config{}, asking{worker.HandlerFunc(func(_ context.Context, h worker.Handoff) (protocol.Result, error) {
			if h.Attempt == 1 {
				return protocol.Result{}, &worker.Failure{Err: errors.New("no disk"), Code: "disk"}
			}
			trail = h.Trail
			return protocol.Result{}, nil
		}), func(_ context.Context, h worker.Handoff) (protocol.Ack, error) {
			asked = h.Trail
			return protocol.Ack{Status: protocol.AckAccepted}, nil
		}})
		w.closed(w.submit(nil))
		if len(trail) != 1 || trail[0].Event != protocol.EventFailed || trail[0].Code != "disk" || trail[0].Words != "no disk" || len(asked) != 1 {
			t.Errorf("trail %+v, asked with %+v", trail, asked)
		}
	})
}
