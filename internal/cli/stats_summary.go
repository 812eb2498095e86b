package cli

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"github.com/agenthandoff/handoff/api"
	"github.com/agenthandoff/handoff/internal/explain"
	"github.com/agenthandoff/handoff/internal/index/ask"
	"github.com/agenthandoff/handoff/protocol/lifecycle"
)

// statsSummary are the figures of "stats --summary".
type statsSummary struct {
	ask.Position
	Handoffs  int64         `json:"handoffs"`
	Workflows []workflowSum `json:"workflows"`
	Agents    []agentSum    `json:"agents"`
	Latency   latency       `json:"latency_ms"`
	Breakers  []breakerSum  `json:"breakers"`
	Deadlocks int64         `json:"deadlocks"`
}

// breakerSum is the breaker of an agent, as it stands now.
type breakerSum struct {
	Agent    string                 `json:"agent"`
	State    lifecycle.BreakerState `json:"state"`
	Trips    int                    `json:"trips"`
	OpenedAt time.Time              `json:"opened_at,omitzero"`
	Until    time.Time              `json:"until,omitzero"`
}

type workflowSum struct {
	Workflow string `json:"workflow"`
	Handoffs int    `json:"handoffs"`
}

type agentSum struct {
	Agent      string `json:"agent"`
	Handoffs   int64  `json:"handoffs"`
	Tokens     *int64 `json:"tokens"` // null where no usage is known
	CostMicros *int64 `json:"cost_micros"`
}

// latency is from submission to the end.
type latency struct {
	Mean   int64 `json:"mean"`
	Median int64 `json:"median"`
	Of     int64 `json:"of"`
}

// summary prints the few figures that tell how a fleet does.
func (a *app) summary(f ask.FiguresAnswer, breakers []api.BreakerStatus, fresh freshness) error {
	s := statsSummary{Position: f.Position, Handoffs: f.All.Handoffs, Workflows: []workflowSum{}, Agents: []agentSum{},
		Latency:  latency{Mean: f.All.Whole.Mean, Median: f.All.Whole.P50, Of: f.All.Whole.Count},
		Breakers: []breakerSum{}, Deadlocks: f.Deadlocks}
	for _, v := range breakers {
		s.Breakers = append(s.Breakers, breakerSum{v.Agent, v.State, v.Trips, v.OpenedAt, v.Until})
	}
	for _, w := range f.Workflows {
		s.Workflows = append(s.Workflows, workflowSum{strings.Join(w.Values, ", "), int(w.Count)})
	}
	for _, r := range f.ByAgent {
		s.Agents = append(s.Agents, agentSum{r.Key, r.Handoffs, r.Tokens, r.CostMicros})
	}
	if !a.text() {
		return a.value(s)
	}
	if err := a.fields("handoffs", fmt.Sprint(s.Handoffs), "latency", s.Latency.words(),
		"breakers", breakerCounts(breakers), "deadlocks", fmt.Sprint(s.Deadlocks)); err != nil {
		return err
	}
	if len(s.Workflows) > 0 {
		rows := [][]string{{"WORKFLOW", "HANDOFFS"}}
		for _, w := range s.Workflows {
			rows = append(rows, []string{w.Workflow, fmt.Sprint(w.Handoffs)})
		}
		a.printf("\n")
		if err := a.tableFit(rows, nil); err != nil {
			return err
		}
	}
	if len(s.Agents) > 0 {
		rows := [][]string{{"AGENT", "HANDOFFS", "TOKENS", "COST"}}
		for _, r := range f.ByAgent {
			rows = append(rows, []string{r.Key, fmt.Sprint(r.Handoffs), knownTokens(r), cmp.Or(costOf(r), "-")})
		}
		a.printf("\n")
		if err := a.table(rows); err != nil {
			return err
		}
	}
	if rows := breakerRows(breakers); len(rows) > 1 {
		a.printf("\n")
		if err := a.table(rows); err != nil {
			return err
		}
	}
	return a.stand(fresh, f.Position, "")
}

func (l latency) words() string {
	if l.Of == 0 {
		return ""
	}
	return fmt.Sprintf("mean %s, median %s (of %d closed)", explain.Millis(l.Mean), explain.Millis(l.Median), l.Of)
}
