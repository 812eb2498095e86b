package broker

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// Who waits for the engine is told of it after a moment, then every minute, and goes on
// when it answers.
func TestWaitForEngine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var said bytes.Buffer
		log := slog.New(slog.NewTextHandler(&said, nil))
		answers := time.Now().Add(150 * time.Second)
		err := WaitForEngine(t.Context(), log, "nats://there", func(context.Context) error {
			switch {
			case time.Now().After(answers):
				return nil
			case time.Until(answers) > time.Minute:
				return &SilenceError{time.Second, errors.New("nothing there")}
			}
			return ErrNoTopology
		})
		if err != nil {
			t.Fatal(err)
		}
		text := said.String()
		if n := strings.Count(text, `"waiting for the engine" at=nats://there`); n != 3 { // after 2 s, 62 s and 122 s
			t.Errorf("said %d times that it waits:\n%s", n, text)
		}
		if !strings.Contains(text, "nothing there") || !strings.Contains(text, ErrNoTopology.Error()) || !strings.Contains(text, "the engine answers") {
			t.Errorf("it said\n%s", text)
		}
	})
}

// A refusal ends the wait, and so does the end of the context.
func TestWaitForEngineEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, refused := range []error{ErrNotAllowed, ErrUnreachable, errors.New("a bad file")} {
			if err := WaitForEngine(t.Context(), nil, "", func(context.Context) error { return refused }); !errors.Is(err, refused) {
				t.Errorf("%v: %v", refused, err)
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		err := WaitForEngine(ctx, nil, "", func(context.Context) error { return ErrNoTopology })
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
	})
}
