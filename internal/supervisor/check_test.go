package supervisor_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/agenthandoff/handoff/internal/brokertest"
	"github.com/agenthandoff/handoff/internal/supervisor"
)

// TestCheck: damage that is found while a supervisor runs ends it within a second.
func TestCheck(t *testing.T) {
	inBubble(t, func(w *world) {
		damaged := errors.New("damaged")
		var found atomic.Bool
		own := w.m.Connect()
		defer func() { _ = own.Close() }()
		s, err := supervisor.New(brokertest.Over(t, own), own, supervisor.Config{Check: func(context.Context) error {
			if found.Load() {
				return damaged
			}
			return nil
		}})
		if err != nil {
			t.Fatal(err)
		}
		time.AfterFunc(10*time.Second, func() { found.Store(true) })
		if err := s.Run(w.ctx); !errors.Is(err, damaged) || time.Since(w.begun) > 12*time.Second {
			t.Errorf("ended after %v with %v", time.Since(w.begun), err)
		}
	})
}
