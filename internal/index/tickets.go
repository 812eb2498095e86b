package index

import (
	"context"
	"database/sql"
	"encoding/hex"
	"strings"

	"github.com/agenthandoff/handoff/internal/index/ask"
)

// ticketDigits is how many hexadecimal digits a ticket has.
const ticketDigits = 32

// Tickets returns the first tickets that begin with a prefix, by a range of the index by ticket.
func (ix *Index) Tickets(ctx context.Context, q ask.TicketsQuery) (ask.TicketsAnswer, error) {
	digits, err := ask.ParsePrefix(q.Prefix)
	if err != nil {
		return ask.TicketsAnswer{}, err
	}
	end := func(digit string) []byte {
		bytes, _ := hex.DecodeString(digits + strings.Repeat(digit, ticketDigits-len(digits))) // checked above
		return bytes
	}
	return read(ctx, ix, q.Question, func(v view, a *ask.TicketsAnswer) error {
		a.Tickets = []string{}
		return v.each(func(rows *sql.Rows) error {
			var ticket string
			if err := rows.Scan(ticketIn{&ticket}); err != nil {
				return err
			}
			if a.More = len(a.Tickets) == ask.TicketsMax; !a.More {
				a.Tickets = append(a.Tickets, ticket)
			}
			return nil
		}, "SELECT ticket FROM handoff WHERE ticket BETWEEN ? AND ? ORDER BY ticket LIMIT ?", end("0"), end("f"), ask.TicketsMax+1)
	})
}
