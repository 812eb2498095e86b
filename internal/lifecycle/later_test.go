package lifecycle

import (
	"testing"
	"time"

	p "github.com/agenthandoff/handoff/protocol"
)

// Handoffs that an outage fails at once, and that were told the same delay, come back apart: never
// before it, and at most a fifth later.
func TestSharedDelaysAreSpread(t *testing.T) {
	const handoffs = 50
	for name, delayOf := range map[string]func(ticket string) time.Duration{
		"retry later": func(ticket string) time.Duration {
			return Backoff(p.State{Ticket: ticket, Policy: p.DefaultPolicy(), RetryAfterMS: 30_000, AttemptsTotal: 1})
		},
		"a deferral": func(ticket string) time.Duration {
			s := p.State{Ticket: ticket, Policy: p.DefaultPolicy()}
			at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
			applyConditioned(&s, &p.Conditioned{Meta: p.Meta{At: at}, RetryAfterMS: 30_000})
			return s.RetryAt.Sub(at)
		},
		"an open breaker": func(ticket string) time.Duration {
			at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
			d := (&Directory{Agents: map[string]*p.Profile{"a": {ID: "a"}}}).WithHealth("a", AgentHealth{Health: p.Health{Agent: "a", OpenUntil: at.Add(30 * time.Second)}})
			threshold := 1
			d.Agents["a"] = &p.Profile{ID: "a", Breaker: &p.Breaker{Threshold: &threshold}}
			events := awaitBreaker(p.State{Ticket: ticket, Agent: "a", Policy: p.DefaultPolicy()}, d.At(at).withBreakers(), p.Meta{At: at}, time.Second)
			return events[0].(*p.RetryScheduled).Due.Sub(at)
		},
	} {
		seen := map[time.Duration]bool{}
		for range handoffs {
			ticket := p.NewTicket()
			delay := delayOf(ticket)
			if delay < 30*time.Second || delay > 36*time.Second {
				t.Errorf("%s: %v", name, delay)
			}
			if again := delayOf(ticket); again != delay {
				t.Errorf("%s: %v, and %v in a replay", name, delay, again)
			}
			seen[delay] = true
		}
		if len(seen) < handoffs/2 {
			t.Errorf("%s: %d handoffs have %d delays", name, handoffs, len(seen))
		}
	}
}
