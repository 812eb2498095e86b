package worker_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/worker"
)

// TestPulse: a worker is present while the engine confirms it, and its loop is not
// overdue while the engine is away: that is no reason to restart it.
func TestPulse(t *testing.T) {
	inBubble(t, func(w *world) {
		nothing := worker.HandlerFunc(func(context.Context, worker.Handoff) (protocol.Result, error) { return protocol.Result{}, nil })
		idle, err := worker.New(sessionOf(w.b), worker.Config{Agent: "coder"}, nothing)
		if err != nil {
			t.Fatal(err)
		}
		if idle.Present() || idle.Overdue() != 0 {
			t.Errorf("not begun: present %v, overdue by %v", idle.Present(), idle.Overdue())
		}
		s := w.serve(worker.Config{Agent: "coder"}, nothing)
		is := func(when string, present bool) {
			t.Helper()
			synctest.Wait()
			if s.Present() != present || s.Overdue() != 0 {
				t.Errorf("%s: present %v, overdue by %v", when, s.Present(), s.Overdue())
			}
		}
		is("begun", true)
		<-time.After(10 * time.Minute)
		is("later", true)
		s.m.Disconnect()
		<-time.After(10 * time.Minute)
		is("cut off", false)
		s.m.Reconnect()
		<-time.After(time.Minute)
		is("back", true)
		if err := s.drain(); err != nil {
			t.Error(err)
		}
	})
}
