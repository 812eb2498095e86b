package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/explain"
	"github.com/agenthandoff/handoff/protocol"
)

// timeoutEnv is the environment's --timeout.
const timeoutEnv = "HANDOFF_TIMEOUT"

// resolveTimeout is how long whatever a command asks of the engine is tried.
func (c connection) resolveTimeout(env func(string) string) time.Duration {
	fromEnv, err := parseDuration(env(timeoutEnv))
	if err != nil { // check refuses it, before anything is done
		fromEnv = 0
	}
	return cmp.Or(c.timeout, fromEnv, broker.TimeoutDefault)
}

// checkTimeout refuses a timeout out of its limits.
func (c connection) checkTimeout(env func(string) string, given bool) error {
	d, name := c.timeout, "--timeout"
	if !given {
		text := env(timeoutEnv)
		if text == "" {
			return nil
		}
		var err error
		if d, err = parseDuration(text); err != nil {
			return usagef("$%s: %v", timeoutEnv, err)
		}
		name = "$" + timeoutEnv
	}
	if d < broker.TimeoutMin || d > broker.TimeoutMax {
		return usagef("%s %s: give %s to %s", name, explain.Duration(d), explain.Duration(broker.TimeoutMin), explain.Duration(broker.TimeoutMax))
	}
	return nil
}

// timeout is how long whatever this command asks of the engine is tried.
func (a *app) timeout() time.Duration { return a.conn.resolveTimeout(a.env) }

// errPatience tells the end of our patience from other deadlines.
var errPatience = errors.New("the patience with the engine is over")

// asking gives something short that is asked of the engine its deadline, from now on.
func (a *app) asking(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, a.timeout(), errPatience)
}

// ask does something short within one deadline.
func (a *app) ask(ctx context.Context, do func(context.Context) error) error {
	ctx, cancel := a.asking(ctx)
	defer cancel()
	return a.gaveUp(ctx, do(ctx))
}

// gaveUp says how long an answer was waited for, of an error of ours at the deadline.
func (a *app) gaveUp(ctx context.Context, err error) error {
	if err == nil || !errors.Is(context.Cause(ctx), errPatience) || is[*broker.SilenceError](err) || is[*protocol.Error](err) {
		return err
	}
	return &broker.SilenceError{After: a.timeout(), Last: fmt.Errorf("at %s: %w", a.conn.resolve(a.env).where(), err)}
}

// silentFor is when a person is told that nothing has answered so far.
const silentFor = 2 * time.Second

// tellSilence says on stderr, once, that there is no answer so far, until the function
// that it returns is called.
func (a *app) tellSilence(who string) (stop func()) {
	if !a.text() || a.waiting {
		return func() {}
	}
	var mu sync.Mutex
	over := false
	timer := time.AfterFunc(silentFor, func() {
		mu.Lock()
		defer mu.Unlock()
		if !over {
			a.notef("handoff: no answer from %s so far; trying for %s (--timeout)\n", who, explain.Duration(a.timeout()))
		}
	})
	return func() {
		timer.Stop()
		mu.Lock()
		defer mu.Unlock()
		over = true
	}
}
