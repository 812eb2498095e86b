package cli

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/agenthandoff/handoff/api"
	"github.com/agenthandoff/handoff/protocol"
)

// TestSpeaker: a wait prints each change of what it waits for once, and only on a terminal; it ends at
// an impasse, unless it is to wait for a person.
func TestSpeaker(t *testing.T) {
	g := newTale(t).worker("reviewer", whyHolder, 1).submit(policy(func(o *protocol.PolicyOverrides) { o.MaxAttempts = to(1) }))
	states := []protocol.State{g.state, g.state}
	states = append(states, g.accept().state)
	states = append(states, g.pass(time.Minute).fail("exit", "exit status 1", true).look().state)
	for _, c := range []struct {
		speaks, people bool
		lines          int
	}{{true, false, 3}, {true, true, 3}, {false, false, 0}} {
		var out bytes.Buffer
		w := &speaker{a: &app{err: &out, format: formatText, speaks: c.speaks, people: c.people, env: func(string) string { return "" }}}
		var err error
		for _, s := range states {
			err = w.see(t.Context(), s)
		}
		if lines := strings.Count(out.String(), "\n"); lines != c.lines {
			t.Errorf("%+v: %d lines:\n%s", c, lines, out.String())
		}
		if stuck := (*api.ImpasseError)(nil); errors.As(err, &stuck) == c.people {
			t.Errorf("%+v: %v", c, err)
		}
	}
}
