package cli

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/index/ask"
	"github.com/agenthandoff/handoff/protocol"
)

// lastTicket stands for the ticket that this user submitted last.
const lastTicket = "-"

// ticket reads a ticket of the command line: a whole one, the beginning of one, for which an
// index is asked, or - for the last one submitted.
func (a *app) ticket(ctx context.Context, text string) (string, error) {
	text = strings.TrimSpace(text)
	whole, err := protocol.ParseTicket(text)
	switch {
	case err == nil:
		return whole, nil
	case text == lastTicket:
		return a.lastSubmitted()
	}
	if _, err := ask.ParsePrefix(text); err != nil {
		return "", err
	}
	err = a.onEngine(ctx, func(ctx context.Context, b *broker.Broker) error {
		whole, err = a.session(b, "").Find(ctx, text)
		return err
	})
	return whole, err
}

// throughTicket is ticket for a command that may go through a gateway, which finds no tickets.
func (a *app) throughTicket(ctx context.Context, gateway bool, text string) (string, error) {
	if gateway && text != lastTicket {
		return protocol.ParseTicket(text)
	}
	return a.ticket(ctx, text)
}

// tickets reads tickets, in place.
func (a *app) tickets(ctx context.Context, texts ...[]string) error {
	for _, list := range texts {
		for i, text := range list {
			var err error
			if list[i], err = a.ticket(ctx, text); err != nil {
				return err
			}
		}
	}
	return nil
}

// parseTickets reads tickets that may have come from a list, white space and all.
func (a *app) parseTickets(ctx context.Context, args []string) ([]string, error) {
	tickets := slices.Clone(args)
	return tickets, a.tickets(ctx, tickets)
}

// lastFile is where the ticket of the last submission is kept, as the XDG base directories have it.
func (a *app) lastFile() (string, error) {
	base := a.env("XDG_STATE_HOME")
	if !filepath.IsAbs(base) {
		home, err := a.home()
		if err != nil {
			return "", err
		}
		base = filepath.Join(home, ".local", "state")
	}
	return filepath.Join(base, "handoff", "last-ticket"), nil
}

// remember keeps the ticket of a submission for -. What a worker's program submits is not this
// user's. A ticket that cannot be kept is no error: it was printed.
func (a *app) remember(ticket string) {
	file, err := a.lastFile()
	if err != nil || a.env("HANDOFF_TICKET") != "" {
		return
	}
	if os.MkdirAll(filepath.Dir(file), 0o700) != nil {
		return
	}
	next, err := os.CreateTemp(filepath.Dir(file), "last-ticket-")
	if err != nil {
		return
	}
	_, err = next.WriteString(ticket + "\n")
	if err = cmp.Or(err, next.Close()); err == nil {
		err = os.Rename(next.Name(), file)
	}
	if err != nil {
		_ = os.Remove(next.Name())
	}
}

func (a *app) lastSubmitted() (string, error) {
	file, err := a.lastFile()
	if err != nil {
		return "", err
	}
	body, err := os.ReadFile(file)
	if err != nil {
		return "", usagef("- is the last ticket that you submitted, and there is none so far")
	}
	ticket, err := protocol.ParseTicket(strings.TrimSpace(string(body)))
	if err != nil {
		return "", fmt.Errorf("%s: %w", file, err)
	}
	return ticket, nil
}
