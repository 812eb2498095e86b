package jetstream

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agenthandoff/handoff/broker"
)

// A question that was lost is asked again; one that was refused is not.
func TestAskAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), broker.TimeoutDefault)
		defer cancel()
		asked := 0
		err := retryUntilDone(ctx, tryTimeout, func(ctx context.Context) error {
			if asked++; asked < 3 {
				<-ctx.Done()
				return ctx.Err()
			}
			return nil
		})
		if err != nil || asked != 3 {
			t.Errorf("asked %d times: %v", asked, err)
		}
		asked = 0
		if err = retryUntilDone(ctx, tryTimeout, func(context.Context) error { asked++; return broker.ErrNotAllowed }); !errors.Is(err, broker.ErrNotAllowed) || asked != 1 {
			t.Errorf("refused, asked %d times: %v", asked, err)
		}
		begun := time.Now()
		err = retryUntilDone(ctx, tryTimeout, func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() })
		if !errors.Is(err, context.DeadlineExceeded) || time.Since(begun) > broker.TimeoutDefault {
			t.Errorf("never answered: %v after %v", err, time.Since(begun))
		}
	})
}
