package index

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/google/uuid"

	"github.com/agenthandoff/handoff/internal/index/ask"
	"github.com/agenthandoff/handoff/protocol"
)

// Family returns the family of a handoff. For an unknown ticket it returns a *protocol.Error with
// CodeNotFound if the index is complete, else an empty answer that is marked incomplete.
func (ix *Index) Family(ctx context.Context, q ask.FamilyQuery) (ask.FamilyAnswer, error) {
	ticket, err := checkTicket(q.Ticket)
	if err != nil {
		return ask.FamilyAnswer{}, err
	}
	a, err := read(ctx, ix, q.Question, func(v view, a *ask.FamilyAnswer) error {
		a.Handoffs = []ask.Row{}
		root, err := v.rootOf(ticket)
		if err != nil || root == uuid.Nil {
			return err
		}
		return v.descend(root, a)
	})
	if err == nil && len(a.Handoffs) == 0 && a.Complete {
		return ask.FamilyAnswer{}, unknownTicket(ticket)
	}
	return a, err
}

func unknownTicket(ticket uuid.UUID) error {
	return protocol.Errorf(protocol.CodeNotFound, "ticket", "there is no handoff %s", ticket)
}

// rootOf goes up from a handoff to the first of its family that the index has; Nil if the index
// does not have the handoff. Of several parents it takes the group, the handoff that this one
// returns, the one that it redrives, or the parent, in this order.
func (v view) rootOf(ticket uuid.UUID) (uuid.UUID, error) {
	root, seen := uuid.Nil, map[uuid.UUID]bool{}
	for !seen[ticket] { // also ends for a forged cycle
		seen[ticket] = true
		var up []byte
		err := v.tx.QueryRowContext(v.ctx, "SELECT coalesce(family, return_of, origin, parent) FROM handoff WHERE ticket = ?", ticket[:]).Scan(&up)
		if errors.Is(err, sql.ErrNoRows) {
			return root, nil
		}
		if err != nil {
			return uuid.Nil, err
		}
		root = ticket
		if up == nil {
			return root, nil
		}
		if ticket, err = uuid.FromBytes(up); err != nil {
			return uuid.Nil, damagef("a ticket of %d bytes", len(up))
		}
	}
	return root, nil
}

// descend collects a family from its root down, level by level, the children of
// one in the order of their submission.
func (v view) descend(root uuid.UUID, a *ask.FamilyAnswer) error {
	const each = "SELECT " + rowColumns + " FROM handoff WHERE "
	const children = each + "parent = ?1 UNION " + each + "family = ?1 UNION " + each + "return_of = ?1 UNION " + each + "origin = ?1"
	seen, bytes := map[string]bool{}, 0
	take := func(rows *sql.Rows) error {
		row, _, err := v.row(rows)
		if err != nil || seen[row.Ticket] {
			return err
		}
		body, err := json.Marshal(row)
		if err != nil {
			return err
		}
		bytes += len(body) + 1
		if len(a.Handoffs) == ask.FamilyMax || bytes > ask.FamilyBytesMax {
			a.More = true
			return nil
		}
		seen[row.Ticket] = true
		a.Handoffs = append(a.Handoffs, row)
		return nil
	}
	if err := v.each(take, each+"ticket = ?", root[:]); err != nil {
		return err
	}
	// One more than the maximum, to see that there are more.
	query := fmt.Sprintf("%s ORDER BY 1 LIMIT %d", children, ask.FamilyMax+1)
	for i := 0; i < len(a.Handoffs) && !a.More; i++ {
		ticket := uuid.MustParse(a.Handoffs[i].Ticket)
		if err := v.each(take, query, ticket[:]); err != nil {
			return err
		}
	}
	return nil
}

// Ahead counts the offers ahead of one in its queue. It treats an unknown ticket as Family does.
func (ix *Index) Ahead(ctx context.Context, q ask.AheadQuery) (ask.AheadAnswer, error) {
	ticket, err := checkTicket(q.Ticket)
	if err != nil {
		return ask.AheadAnswer{}, err
	}
	found := false
	a, err := read(ctx, ix, q.Question, func(v view, a *ask.AheadAnswer) error {
		var agent, priority int64
		var offer *int64
		err := v.tx.QueryRowContext(v.ctx, "SELECT agent, priority, offer FROM handoff WHERE ticket = ?", ticket[:]).Scan(&agent, &priority, &offer)
		if found = err == nil; errors.Is(err, sql.ErrNoRows) {
			return nil
		}
		if err != nil || offer == nil {
			return err
		}
		a.Waiting = true
		return v.tx.QueryRowContext(v.ctx, `SELECT
			(SELECT count(*) FROM handoff WHERE agent = ?1 AND priority < ?2 AND offer IS NOT NULL) +
			(SELECT count(*) FROM handoff WHERE agent = ?1 AND priority = ?2 AND offer < ?3)`, agent, priority, *offer).Scan(&a.Ahead)
	})
	if err == nil && !found && a.Complete {
		return ask.AheadAnswer{}, unknownTicket(ticket)
	}
	return a, err
}

// checkTicket reads the ticket of a question about one.
func checkTicket(ticket string) (uuid.UUID, error) {
	parsed, err := protocol.ParseTicket(ticket)
	if err != nil {
		return uuid.Nil, err
	}
	return uuid.MustParse(parsed), nil
}
