package dossier

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/index/ask"
	"github.com/agenthandoff/handoff/protocol"
)

// Turn is a handoff of a conversation, with the conversation fields of its package.
type Turn struct {
	ask.Row
	// TraceID is the id of the handoff's trace, in hex. It and the fields after it are empty if the
	// ledger has dropped the handoff.
	TraceID string `json:"trace_id"`
	// OwnTraceID is the trace id in the package, which may be any text.
	OwnTraceID string             `json:"context_trace_id,omitempty"`
	UserIntent string             `json:"user_intent"`
	Messages   []protocol.Message `json:"conversation_history"`
	Gone       bool               `json:"gone,omitempty"` // the ledger has dropped it
}

// Conversation is a conversation as one document.
type Conversation struct {
	ask.Position
	Handoffs []Turn `json:"handoffs"`
	Cursor   string `json:"cursor,omitempty"` // of the next page
}

// Turns reads the handoffs of a page of a conversation from the ledger, in parallel. Pages should
// be small: a package may be large.
func Turns(ctx context.Context, r Reader, rows []ask.Row) ([]Turn, error) {
	turns := make([]Turn, len(rows))
	return turns, InParallel(ctx, len(rows), func(ctx context.Context, i int) (err error) {
		turns[i], err = turnOf(ctx, r, rows[i])
		return err
	})
}

// turnOf reads the state and the package of a handoff.
func turnOf(ctx context.Context, r Reader, row ask.Row) (Turn, error) {
	t := Turn{Row: row, Messages: []protocol.Message{}}
	state, err := r.Status(ctx, row.Ticket)
	var body []byte
	if err == nil {
		body, err = r.Package(ctx, row.Ticket)
	}
	if errors.Is(err, &protocol.Error{Code: protocol.CodeNotFound}) || errors.Is(err, broker.ErrNotFound) {
		t.Gone = true
		return t, nil
	}
	var pkg protocol.Package
	if err == nil {
		pkg, err = protocol.DecodePackage(body)
	}
	if err != nil {
		return t, fmt.Errorf("read %s: %w", row.Ticket, err)
	}
	trace := state.TraceID()
	t.TraceID, t.OwnTraceID = hex.EncodeToString(trace[:]), pkg.Context.TraceID
	if pkg.Context.UserIntent != nil {
		t.UserIntent = *pkg.Context.UserIntent
	}
	t.Messages = append(t.Messages, pkg.Context.ConversationHistory...)
	return t, nil
}
