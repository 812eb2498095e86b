package cli

import (
	"context"
	"errors"
	"maps"
	"slices"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/assist"
	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/protocol/lifecycle"
)

// find finds the agents for a task: by words and, where these are not certain, by what assists.
// That one is asked after the engine, whose deadline is shorter. A refusal has the nearest.
func (a *app) find(ctx context.Context, task string, most int, assistCommand string) (m lifecycle.Matches, err error) {
	var asker assist.Asker
	var roster []assist.Agent
	err = a.onEngine(ctx, func(ctx context.Context, b *broker.Broker) error {
		m, err = a.session(b, "").FindAgents(ctx, task, most)
		if !hasCode(protocol.CodeNoMatch)(err) {
			return err
		}
		unsure := err
		if asker, err = a.assistant(assistCommand); err != nil {
			return err
		}
		if asker == nil {
			return unsure
		}
		d, err := b.Directory(ctx)
		if err != nil {
			return err
		}
		for _, id := range slices.Sorted(maps.Keys(d.Agents)) {
			if lifecycle.CanBeFound(d.Agents[id]) {
				roster = append(roster, assist.AgentOf(d.Agents[id]))
			}
		}
		return unsure
	})
	var unsure *protocol.Error
	if len(roster) == 0 || !errors.As(err, &unsure) || unsure.Code != protocol.CodeNoMatch {
		return m, err
	}
	agent, err := assist.Choose(ctx, asker, task, roster)
	if err != nil {
		return m, protocol.Errorf(unsure.Code, unsure.Field, "%s; the %s that was asked: %v", unsure.Message, asker.By(), err)
	}
	m.Choose(agent, asker.By(), most)
	return m, nil
}
