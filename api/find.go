package api

import (
	"context"
	"fmt"
	"strings"

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

// FindAgents implements Directory.
func (c *Session) FindAgents(ctx context.Context, task string, most int) (lifecycle.Matches, error) {
	if err := c.may("FindAgents"); err != nil {
		return lifecycle.Matches{}, err
	}
	switch {
	case strings.TrimSpace(task) == "":
		return lifecycle.Matches{}, protocol.Errorf(protocol.CodeMissing, "task", "must say what is to be done")
	case len(task) > FindBytesMax:
		return lifecycle.Matches{}, protocol.Errorf(protocol.CodeTooLarge, "task", "is %d bytes, and at most %d are searched for", len(task), FindBytesMax)
	case most < 1 || most > FindMax:
		return lifecycle.Matches{}, protocol.Errorf(protocol.CodeInvalid, "most", "must be from 1 to %d", FindMax)
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

// quoted is the beginning of a text in quotation marks.
func quoted(text string) string {
	const most = 60
	if runes := []rune(text); len(runes) > most {
		text = string(runes[:most]) + "…"
	}
	return fmt.Sprintf("%q", text)
}
