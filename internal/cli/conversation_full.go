package cli

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/agenthandoff/handoff/internal/brief"
	"github.com/agenthandoff/handoff/internal/dossier"
	"github.com/agenthandoff/handoff/internal/explain"
	"github.com/agenthandoff/handoff/internal/index/ask"
)

// fullMax is how many handoffs conversation --full shows where --limit does not say:
// each is read from the ledger, with all that was handed off.
const fullMax = 200

// conversationFull prints the rows of a conversation with what the ledger has of each.
func (a *app) conversationFull(ctx context.Context, r dossier.Reader, q ask.ListQuery, o conversationOptions) error {
	whole := dossier.Conversation{Handoffs: []dossier.Turn{}}
	shown := 0
	var err error
	whole.Position, whole.Cursor, err = pages(ctx, r, q, o.limit, o.fresh, func(page []ask.Row) error {
		for rows := range slices.Chunk(page, dossier.ReadsAtOnce) { // a package may be large: few at a time
			var full []dossier.Turn
			err := a.ask(ctx, func(ctx context.Context) (err error) {
				full, err = dossier.Turns(ctx, r, rows)
				return err
			})
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

// conversationText writes each handoff as a paragraph: who handed it to whom, then
// what was said until then.
func (a *app) conversationText(rows []dossier.Turn, first bool) {
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
			speaker, words := brief.Message(m)
			s.item(speaker + ": " + words)
		}
	}
}
