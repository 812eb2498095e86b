package telemetry

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/agenthandoff/handoff/protocol"
)

// TestLimits checks that the keys with a limit are exported by name, and further ones as other.
func TestLimits(t *testing.T) {
	inScene(t, func(s *scene) {
		s.must(s.b.PutProfile(s.ctx, protocol.Profile{ID: "coder", LimitsBy: []protocol.KeyLimit{{Key: "model", MaxConcurrency: 1}}}))
		_, err := s.engine.PutKeyUse(s.ctx, "model", protocol.KeyUse{Key: "model", Waiting: []protocol.KeyWait{{Ticket: protocol.NewTicket(), Agent: "coder", MaxConcurrency: 1}},
			PausedUntil: s.b.Now().Add(time.Minute)}, 0)
		s.must(err)
		s.wants(map[string]string{
			"handoff_limit_held{key=model}":    "0",
			"handoff_limit_waiting{key=model}": "1",
			"handoff_limit_paused{key=model}":  "1",
		})
		e := &engineCollector{limits: map[string]bool{}}
		for i := range limitsMax {
			e.limitLabel(fmt.Sprint(i))
		}
		if known, next := e.limitLabel("0"), e.limitLabel("new"); known != "0" || next != other {
			s.Errorf("the labels are %q and %q", known, next)
		}
	})
}

// TestSchedulesAndRules checks that the instants of a schedule and the signals of a rule are counted.
func TestSchedulesAndRules(t *testing.T) {
	inScene(t, func(s *scene) {
		s.agents("coder")
		pkg := protocol.Package{Target: protocol.Target{Agent: "coder"}, Reason: "r", Task: protocol.Task{Description: "t"}}
		_, err := s.b.Schedules().Put(s.ctx, protocol.Schedule{Name: "often", Cron: "* * * * *"}, pkg)
		s.must(err)
		template, err := protocol.EncodePackage(pkg)
		s.must(err)
		_, err = s.b.Rules().Put(s.ctx, protocol.Rule{Name: "order", Signal: "order", Rate: 60}, template)
		s.must(err)
		for _, id := range []string{"1", "1", "2"} {
			s.must(s.b.Rules().Send(s.ctx, protocol.Signal{Name: "order", ID: id, Payload: json.RawMessage(`{}`)}))
		}
		after(3*time.Minute + 30*time.Second)
		s.wants(map[string]string{ // each handoff stays open, so that the next instant is skipped
			"handoff_schedule_instants_total{result=fired,schedule=often}":   "1",
			"handoff_schedule_instants_total{result=skipped,schedule=often}": "2",
			"handoff_schedule_instants_total{result=missed,schedule=often}":  "0",
			"handoff_schedule_late_seconds{schedule=often}":                  "0",
			"handoff_rule_signals_total{result=fired,rule=order}":            "2",
			"handoff_rule_signals_total{result=refused,rule=order}":          "0",
		})
	})
}
