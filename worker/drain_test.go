package worker_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/worker"
)

// What runs may finish; what waits is not begun.
func TestDrainLetsHandlersFinish(t *testing.T) {
	inBubble(t, func(w *world) {
		h := newWorking()
		s := w.serve(worker.Config{}, h)
		running, waiting := w.submit(nil), w.submit(nil)
		synctest.Wait()
		s.stop()
		synctest.Wait() // it says so at once
		directory, err := w.b.Directory(w.ctx)
		if err != nil || !directory.Holders[s.Holder()].Draining {
			t.Errorf("holder %+v, %v", directory.Holders[s.Holder()], err)
		}
		pass(20 * time.Second)
		h.end <- nil
		if err := s.drain(); err != nil {
			t.Error(err)
		}
		if state := w.status(running); state.Outcome != protocol.OutcomeSuccess {
			t.Errorf("what ran: %+v", state)
		}
		if state := w.status(waiting); state.Phase != protocol.Pending || w.others() != 1 {
			t.Errorf("what waited: %+v", state)
		}
	})
}

// What does not finish in time is released without charge, before the
// worker's presence ends.
func TestDrainTimeout(t *testing.T) {
	for name, c := range map[string]struct{ timeout, want time.Duration }{
		"default": {0, worker.DrainTimeoutDefault}, "5 s": {5 * time.Second, 5 * time.Second}, "none": {-1, 0},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(w *world) {
				h := newWorking()
				s := w.serve(worker.Config{DrainTimeout: c.timeout}, h)
				ticket := w.submit(nil)
				synctest.Wait()
				begin := time.Now()
				if err := s.drain(); err != nil || time.Since(begin) != c.want {
					t.Errorf("drained in %v: %v", time.Since(begin), err)
				}
				w.cancelledBy(h, worker.ErrShutdown)
				state := w.status(ticket)
				if state.Phase != protocol.Pending || state.Attempt != 0 || w.others() != 1 || s.Stats().Released != 1 {
					t.Errorf("state %+v, stats %+v", state, s.Stats())
				}
				if events := w.events(ticket); events != "submitted+offered accepted+started released+offered" {
					t.Errorf("events %s", events)
				}
			})
		})
	}
}

// A handler that finishes its work though it was told to stop has finished it.
func TestDrainTakesAResult(t *testing.T) {
	inBubble(t, func(w *world) {
		s := w.serve(worker.Config{AbandonTimeout: -1}, worker.HandlerFunc(func(ctx context.Context, _ worker.Handoff) (protocol.Result, error) {
			<-ctx.Done()
			time.Sleep(10 * time.Minute) // it ignores its context: Run waits, and its lease lives on
			return protocol.Result{}, nil
		}))
		ticket := w.submit(nil)
		synctest.Wait()
		begin := time.Now()
		if err := s.drain(); err != nil || time.Since(begin) != 10*time.Minute+worker.DrainTimeoutDefault {
			t.Errorf("drained in %v: %v", time.Since(begin), err)
		}
		if state := w.status(ticket); state.Outcome != protocol.OutcomeSuccess || state.Attempt != 1 {
			t.Errorf("state %+v", state)
		}
	})
}

// A handler that ignores its context for longer is left behind, and others get its work.
func TestDrainAbandons(t *testing.T) {
	inBubble(t, func(w *world) {
		returned := make(chan struct{})
		s := w.serve(worker.Config{}, worker.HandlerFunc(func(context.Context, worker.Handoff) (protocol.Result, error) {
			defer close(returned)
			time.Sleep(time.Hour)
			return protocol.Result{}, nil
		}))
		ticket := w.submit(nil)
		synctest.Wait()
		begin, most := time.Now(), worker.DrainTimeoutDefault+worker.AbandonTimeoutDefault+5*time.Second
		if err := s.drain(); !errors.Is(err, worker.ErrAbandoned) || time.Since(begin) > most {
			t.Errorf("drained in %v, want %v at most: %v", time.Since(begin), most, err)
		}
		<-returned
		synctest.Wait()
		if state := w.status(ticket); state.Closed {
			t.Errorf("what was left behind has closed it: %+v", state)
		}
	})
}

// An offer that user code still thinks about was not begun.
func TestDrainReleasesWhatIsNotAcknowledged(t *testing.T) {
	inBubble(t, func(w *world) {
		var cause error
		s := w.serve(worker.Config{}, asking{done, func(ctx context.Context, _ worker.Handoff) (protocol.Ack, error) {
			<-ctx.Done()
			cause = context.Cause(ctx)
			return protocol.Ack{Status: protocol.AckAccepted}, nil
		}})
		ticket := w.submit(nil)
		synctest.Wait()
		begin := time.Now()
		if err := s.drain(); err != nil || time.Since(begin) != 0 {
			t.Errorf("drained in %v: %v", time.Since(begin), err)
		}
		if !errors.Is(cause, worker.ErrShutdown) {
			t.Errorf("cause %v", cause)
		}
		if events := w.events(ticket); events != "submitted+offered claimed released+offered" || w.others() != 1 {
			t.Errorf("events %s, %d free", events, w.others())
		}
	})
}

// An engine that is away does not keep a worker from ending: one lease after
// the drain's time its handoffs are judged lost anyway.
func TestDrainWithoutAnEngine(t *testing.T) {
	inBubble(t, func(w *world) {
		h := newWorking()
		s := w.serve(worker.Config{}, h)
		w.submit(nil)
		synctest.Wait()
		s.m.Disconnect()
		begin := time.Now()
		if err := s.drain(); err != nil || time.Since(begin) > worker.DrainTimeoutDefault+worker.LeaseDefault {
			t.Errorf("drained in %v: %v", time.Since(begin), err)
		}
		if stats := s.Stats(); stats.Lost != 1 || stats.Released != 0 {
			t.Errorf("stats %+v", stats)
		}
	})
}

// A worker that is unfit releases what it has, charges no attempt, takes no more,
// and says why it ended.
func TestStop(t *testing.T) {
	inBubble(t, func(w *world) {
		missing := errors.New("agent.sh: no such file")
		s := w.serve(worker.Config{}, worker.HandlerFunc(func(context.Context, worker.Handoff) (protocol.Result, error) {
			return protocol.Result{}, worker.Stop(missing)
		}))
		ticket, second := w.submit(nil), w.submit(nil)
		<-s.ended
		if !errors.Is(s.err, missing) || !strings.Contains(s.err.Error(), "worker of coder") {
			t.Errorf("ended by %v", s.err)
		}
		if state := w.status(ticket); state.Phase != protocol.Pending || state.Attempt != 0 {
			t.Errorf("state %+v", state)
		}
		if w.others() != 2 || w.events(second) != "submitted+offered" {
			t.Errorf("%d free, events %s", w.others(), w.events(second))
		}
	})
}

func TestRunsOnce(t *testing.T) {
	inBubble(t, func(w *world) {
		s := w.serve(worker.Config{}, done)
		if err := s.drain(); err != nil {
			t.Error(err)
		}
		if err := s.Run(w.ctx); err == nil {
			t.Error("ran a second time")
		}
	})
}
