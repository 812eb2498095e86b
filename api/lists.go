package api

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/agenthandoff/handoff/internal/explain"
	"github.com/agenthandoff/handoff/internal/index/ask"
	"github.com/agenthandoff/handoff/protocol"
)

// The operations of this file ask the index, or an index among others.

// List implements Reader.
func (c *Session) List(ctx context.Context, q ask.ListQuery) (ask.ListAnswer, error) {
	if err := c.mayFilter("List", q.Filter); err != nil {
		return ask.ListAnswer{}, err
	}
	return c.s.cfg.Index.List(ctx, q)
}

// Count implements Reader.
func (c *Session) Count(ctx context.Context, q ask.CountQuery) (ask.CountAnswer, error) {
	if err := c.mayFilter("Count", q.Filter); err != nil {
		return ask.CountAnswer{}, err
	}
	return c.s.cfg.Index.Count(ctx, q)
}

// Figures implements Reader.
func (c *Session) Figures(ctx context.Context, q ask.FiguresQuery) (ask.FiguresAnswer, error) {
	if err := c.mayFilter("Figures", q.Filter); err != nil {
		return ask.FiguresAnswer{}, err
	}
	return c.s.cfg.Index.Figures(ctx, q)
}

// Series implements Reader.
func (c *Session) Series(ctx context.Context, q ask.SeriesQuery) (ask.SeriesAnswer, error) {
	if err := c.mayFilter("Series", q.Filter); err != nil {
		return ask.SeriesAnswer{}, err
	}
	return c.s.cfg.Index.Series(ctx, q)
}

// Position implements Reader.
func (c *Session) Position(ctx context.Context, q ask.Question) (ask.Position, error) {
	if err := c.may("Position"); err != nil {
		return ask.Position{}, err
	}
	answer, err := c.s.cfg.Index.Position(ctx, ask.PositionQuery{Question: q})
	return answer.Position, err
}

// Find implements Reader.
func (c *Session) Find(ctx context.Context, prefix string) (string, error) {
	if err := c.may("Find"); err != nil {
		return "", err
	}
	if !c.caller.seesAll() {
		return "", forbidden("ticket", "a caller that sees its own handoffs alone gives whole tickets")
	}
	if _, err := ask.ParsePrefix(prefix); err != nil {
		return "", err
	}
	found, err := c.s.cfg.Index.Tickets(ctx, ask.TicketsQuery{Prefix: prefix})
	switch {
	case err != nil:
		return "", err
	case len(found.Tickets) == 1:
		return found.Tickets[0], nil
	case len(found.Tickets) == 0 && !found.Complete:
		return "", protocol.Errorf(protocol.CodeBehind, "ticket", "the index has no ticket that begins with %s, and has not read all of the ledger; give the whole ticket", prefix)
	case len(found.Tickets) == 0:
		return "", protocol.Errorf(protocol.CodeNotFound, "ticket", "no handoff has a ticket that begins with %s", prefix)
	}
	others := ""
	if found.More {
		others = " and others"
	}
	return "", protocol.Errorf(protocol.CodeAmbiguous, "ticket", "%s is the beginning of several tickets: %s%s", prefix, strings.Join(found.Tickets, ", "), others)
}

// mayFilter refuses a filter that selects handoffs that the caller may not see.
func (c *Session) mayFilter(operation string, f ask.Filter) error {
	if err := c.may(operation); err != nil || c.caller.seesAll() {
		return err
	}
	for _, names := range [...][]string{f.Source, f.Agent, f.Target} {
		if len(names) > 0 && !slices.ContainsFunc(names, func(name string) bool { return !c.caller.isNamed(name) }) {
			return nil
		}
	}
	return forbidden("filter", "selects handoffs that %s may not see: give a source, an agent or a target of its own", c.caller.Name)
}

// Family implements Reader.
func (c *Session) Family(ctx context.Context, q ask.FamilyQuery) (ask.FamilyAnswer, error) {
	var err error
	if q.Ticket, err = c.locate(ctx, "Family", q.Ticket); err != nil {
		return ask.FamilyAnswer{}, err
	}
	answer, err := c.s.cfg.Index.Family(ctx, q)
	if !c.caller.seesAll() {
		answer.Handoffs = slices.DeleteFunc(answer.Handoffs, func(r ask.Row) bool {
			return !c.caller.isNamed(r.Source) && !c.caller.isNamed(r.Agent) && !c.caller.isNamed(r.Target)
		})
	}
	return answer, err
}

// Why implements Reader.
func (c *Session) Why(ctx context.Context, ticket string, zone *time.Location) (explain.Explanation, error) {
	ticket, err := c.locate(ctx, "Why", ticket)
	if err != nil {
		return explain.Explanation{}, err
	}
	situation, err := explain.Gather(ctx, c.s.b, c.s.cfg.Index, ticket, zone)
	if err != nil {
		return explain.Explanation{}, err
	}
	return explain.Explain(situation), nil
}
