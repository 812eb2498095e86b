package dossier

import (
	"context"
	"fmt"
	"time"

	"github.com/agenthandoff/handoff/api"
	"github.com/agenthandoff/handoff/internal/explain"
	"github.com/agenthandoff/handoff/protocol"
)

// Triggers are the schedules and the rules of a fleet.
type Triggers struct {
	All     []explain.Trigger       `json:"all"`     // those in trouble first
	Waiting int                     `json:"waiting"` // signals that no supervisor has decided about
	Unknown protocol.UnknownSignals `json:"unknown"` // signals whose name no rule had
}

// ReadTriggers reads the schedules and the rules. It returns nil if there are none, and no signals.
func ReadTriggers(ctx context.Context, s *api.Session, now time.Time) (*Triggers, error) {
	schedules, err := s.Schedules(ctx)
	if err != nil {
		return nil, err
	}
	rules, err := s.Rules(ctx)
	if err != nil || len(schedules)+len(rules.Rules)+rules.Waiting+rules.Unknown.Count == 0 {
		return nil, err
	}
	t := &Triggers{All: []explain.Trigger{}, Waiting: rules.Waiting, Unknown: rules.Unknown}
	for _, v := range schedules {
		t.All = append(t.All, explain.OfSchedule(&v.Schedule, now))
	}
	for _, v := range rules.Rules {
		t.All = append(t.All, explain.OfRule(&v.Rule, now))
	}
	explain.SortTriggers(t.All)
	return t, nil
}

// Signals describes the signals that wait, and those of an unknown name; empty without any.
func (t *Triggers) Signals() string {
	if t == nil {
		return ""
	}
	waiting, unknown := "", ""
	if t.Waiting > 0 {
		waiting = explain.Count(t.Waiting, "signal") + " waiting"
	}
	if n := t.Unknown.Count; n > 0 {
		unknown = fmt.Sprintf("%s of an unknown name, %s last", explain.Count(n, "signal"), t.Unknown.Name)
	}
	return explain.Join(waiting, unknown)
}
