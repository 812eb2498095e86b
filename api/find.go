package api

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/agenthandoff/handoff/internal/index/ask"
	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/protocol/lifecycle"
)

const (
	// FindBytesMax is the longest task that an agent is found for.
	FindBytesMax = 16 << 10
	// FindMax is how many agents FindAgents returns at most.
	FindMax = 100
	// nearestNamed is how many agents a refusal names.
	nearestNamed = 3
)

// FindAgents implements Finder.
func (c *Session) FindAgents(ctx context.Context, task string, most int) (lifecycle.Matches, error) {
	if err := c.may("FindAgents"); err != nil {
		return lifecycle.Matches{}, err
	}
	if strings.TrimSpace(task) == "" {
		return lifecycle.Matches{}, protocol.Errorf(protocol.CodeMissing, "task", "must say what is to be done")
	}
	if err := checkFind(task, most); err != nil {
		return lifecycle.Matches{}, err
	}
	d, err := c.s.b.Directory(ctx)
	if err != nil {
		return lifecycle.Matches{}, err
	}
	matches := lifecycle.Match(d, task, most)
	if matches.Certain {
		return matches, nil
	}
	nearest := "no profile has a word of it"
	if len(matches.Found) > 0 {
		var names []string
		for _, f := range matches.Found[:min(len(matches.Found), nearestNamed)] {
			names = append(names, fmt.Sprintf("%s (%.1f)", f.Agent, f.Score))
		}
		nearest = "nearest: " + strings.Join(names, ", ")
	}
	return matches, protocol.Errorf(protocol.CodeNoMatch, "task", "no agent is certain for %s; handle it yourself, or name one; %s", quoted(task), nearest)
}

func checkFind(task string, most int) error {
	if len(task) > FindBytesMax {
		return protocol.Errorf(protocol.CodeTooLarge, "task", "is %d bytes, and at most %d are searched for", len(task), FindBytesMax)
	}
	if most < 1 || most > FindMax {
		return protocol.Errorf(protocol.CodeInvalid, "most", "must be from 1 to %d", FindMax)
	}
	return nil
}

// Recommendations are agents to hand off to, the best first.
type Recommendations struct {
	Agents []lifecycle.Recommended `json:"agents"`
	// Learned says that an index has told how handoffs to them have ended.
	Learned bool `json:"learned"`
}

// recommendSince is how far back the ends of handoffs count for a recommendation.
const recommendSince = 30 * 24 * time.Hour

// RecommendAgents implements Finder.
func (c *Session) RecommendAgents(ctx context.Context, from, task string, most int) (Recommendations, error) {
	filter := ask.Filter{Source: []string{from}, Since: time.Now().Add(-recommendSince)}
	if err := c.mayFilter("RecommendAgents", filter); err != nil {
		return Recommendations{}, err
	}
	if err := protocol.CheckID("from", from); err != nil {
		return Recommendations{}, err
	}
	if err := checkFind(task, most); err != nil {
		return Recommendations{}, err
	}
	d, err := c.s.b.Directory(ctx)
	if err != nil {
		return Recommendations{}, err
	}
	ends, learned := map[string]lifecycle.Ends{}, false
	if c.s.cfg.Index != nil {
		figures, err := c.s.cfg.Index.Figures(ctx, ask.FiguresQuery{Filter: filter, Top: ask.FiguresTopMax})
		if learned = err == nil; err != nil && ctx.Err() != nil {
			return Recommendations{}, err
		}
		for _, f := range figures.ByAgent {
			ends[f.Key] = lifecycle.Ends{Succeeded: f.Succeeded, Failed: f.Failed}
		}
	}
	return Recommendations{lifecycle.Recommend(d, from, task, ends, most), learned}, nil
}

// quoted is the beginning of a text in quotation marks.
func quoted(text string) string {
	const most = 60
	if runes := []rune(text); len(runes) > most {
		text = string(runes[:most]) + "…"
	}
	return fmt.Sprintf("%q", text)
}
