package supervisor

import (
	"context"
	"time"
)

// WithUnfinishedMax has sweeps keep so many handoffs in mind.
func (c Config) WithUnfinishedMax(n int) Config {
	c.unfinishedMax = n
	return c
}

// Looker looks at the schedules of a supervisor's directory, as often as it is called.
func (s *Supervisor) Looker() func(context.Context) {
	looked := map[string]time.Time{}
	return func(ctx context.Context) { s.fireDue(ctx, looked) }
}
