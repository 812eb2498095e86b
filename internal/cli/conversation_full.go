package cli

import (
	"cmp"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/dossier"
	"github.com/agenthandoff/handoff/explain"
	"github.com/agenthandoff/handoff/index/ask"
	"github.com/agenthandoff/handoff/protocol"
)

// fullMax is how many handoffs conversation --full shows where --limit does not say:
// each is read from the ledger, with all that was handed off.
const fullMax = 200

// fullRow is a handoff of a conversation, with what its package says of the
// conversation (document 3, getHandoffHistory).
type fullRow struct {
	ask.Row
	// TraceID is the id of the handoff's trace, in hex. It is empty, as what follows
	// is, where the ledger does not have the handoff any more.
	TraceID string `json:"trace_id"`
	// OwnTraceID is the trace id that the package itself has: any text.
	OwnTraceID string             `json:"context_trace_id,omitempty"`
	UserIntent string             `json:"user_intent"`
	Messages   []protocol.Message `json:"conversation_history"`
	Gone       bool               `json:"gone,omitempty"` // the ledger does not have it any more
}

// fullAnswer is a conversation as one document.
type fullAnswer struct {
	ask.Position
	Handoffs []fullRow `json:"handoffs"`
	Cursor   string    `json:"cursor,omitempty"` // there are more
}

// conversationFull prints the rows of a conversation with what the ledger has of each.
func (a *app) conversationFull(ctx context.Context, b *broker.Broker, q ask.ListQuery, o conversationOptions) error {
	whole := fullAnswer{Handoffs: []fullRow{}}
	shown := 0
	var err error
	whole.Position, whole.Cursor, err = pages(ctx, a.answersOf(b), q, o.limit, o.fresh, func(page []ask.Row) error {
		for rows := range slices.Chunk(page, dossier.ReadsAtOnce) { // a package may be large: few at a time
			full, err := a.fullRows(ctx, b, rows)
			if err != nil {
				return err
			}
			switch {
			case a.format == formatJSON:
				whole.Handoffs = append(whole.Handoffs, full...)
			case a.format == formatJSONL:
				err = list(a, full)
			default:
				a.conversationText(full, shown == 0)
			}
			if err != nil {
				return err
			}
			shown += len(rows)
		}
		return nil
	})
	switch {
	case err != nil:
		return err
	case a.format == formatJSON:
		return a.value(whole)
	case a.text() && shown == 0:
		a.notef("handoff: none\n")
	case a.text() && whole.Cursor != "" && !o.last:
		a.notef("handoff: there are more than these %d; see more with --limit N\n", shown)
	}
	return a.stand(o.fresh, whole.Position, whole.Cursor)
}

// fullRows reads what the ledger has of these handoffs, side by side.
func (a *app) fullRows(ctx context.Context, b *broker.Broker, rows []ask.Row) ([]fullRow, error) {
	full := make([]fullRow, len(rows))
	group, ctx := errgroup.WithContext(ctx)
	for i, row := range rows {
		group.Go(func() error {
			full[i] = fullRow{Row: row, Messages: []protocol.Message{}}
			return a.ask(ctx, func(ctx context.Context) error { return full[i].read(ctx, b) })
		})
	}
	return full, group.Wait()
}

// read fills in what the state and the package of the handoff say.
func (r *fullRow) read(ctx context.Context, b *broker.Broker) error {
	kept, err := b.Parent(ctx, r.Ticket)
	if kept == nil && (err == nil || errors.Is(err, broker.ErrNotFound)) {
		r.Gone = true
		return nil
	}
	if err != nil {
		return fmt.Errorf("read %s: %w", r.Ticket, err)
	}
	trace, said := kept.State.TraceID(), kept.Package.Context
	r.TraceID, r.OwnTraceID = hex.EncodeToString(trace[:]), said.TraceID
	if said.UserIntent != nil {
		r.UserIntent = *said.UserIntent
	}
	r.Messages = append(r.Messages, said.ConversationHistory...)
	return nil
}

// conversationText writes each handoff as a paragraph: who handed it to whom, then
// what was said until then.
func (a *app) conversationText(rows []fullRow, first bool) {
	width := sheetWidth
	if a.width > 0 {
		width = max(a.width, 40)
	}
	for _, r := range rows {
		if !first {
			a.printf("\n")
		}
		first = false
		a.printf("%s  %s  %s\n", explain.Instant(r.SubmittedAt), r.Ticket, rowPhase(r.Row))
		s := &sheet{a: a, width: width}
		s.line("from", r.Source)
		s.line("to", cmp.Or(r.Target, r.Agent))
		s.line("with", r.Agent)
		s.line("reason", r.Why)
		s.line("task", r.Description)
		s.line("intent", r.UserIntent)
		s.line("trace", r.TraceID)
		s.line("own trace id", r.OwnTraceID)
		if r.Gone {
			s.line("package", "the ledger has it no more")
			continue
		}
		s.line("messages", fmt.Sprint(len(r.Messages)))
		for _, m := range r.Messages {
			speaker, words := messageText(m)
			s.item(speaker + ": " + words)
		}
	}
}

// messageText is the speaker of a message, and what it says. Messages are as their
// agents wrote them: what is not known is shown as JSON.
func messageText(m protocol.Message) (speaker, words string) {
	var said struct {
		Role    string          `json:"role"`
		Name    string          `json:"name"`
		AgentID string          `json:"agent_id"`
		Content json.RawMessage `json:"content"`
	}
	if json.Unmarshal(m, &said) != nil || len(said.Content) == 0 {
		return "message", string(m)
	}
	speaker = strings.TrimSpace(cmp.Or(said.Role, "message") + " " + cmp.Or(said.AgentID, said.Name))
	if text, ok := jsonString(said.Content); ok {
		return speaker, text
	}
	return speaker, string(said.Content)
}
