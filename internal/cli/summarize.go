package cli

import (
	"cmp"
	"context"
	"strings"

	"github.com/agenthandoff/handoff/internal/assist"
	"github.com/agenthandoff/handoff/protocol"
)

// summarize asks for the summary of the conversation: the summarizer or, without one, what assists.
// One that fails, takes too long or says nothing is told, and leaves it to the extracts.
func (a *app) summarize(ctx context.Context, t transferFlags, pkg *protocol.Package) error {
	command := cmp.Or(t.summarizer, a.env("HANDOFF_SUMMARIZER"))
	if strings.TrimSpace(command) == "" {
		command = t.assist
	}
	asker, err := a.assistant(command)
	if err != nil || asker == nil {
		return err
	}
	h := &pkg.Context.HistoryTransfer
	most := protocol.SummaryTokensMax
	if h.MaxTokens > 0 {
		most = min(most, h.MaxTokens)
	}
	summary, err := assist.Summarize(ctx, asker, assist.SummaryRequest{Task: pkg.Task.Description, Requirements: pkg.Task.Requirements,
		MaxTokens: most, Messages: pkg.Context.ConversationHistory})
	if err != nil {
		a.notef("handoff: the summarizer failed, extracts are the summary: %v\n", err)
		return nil
	}
	pkg.Context.Summary, h.By = summary, protocol.SummaryBy(asker.By())
	return nil
}
