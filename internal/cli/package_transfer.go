package cli

import (
	"cmp"
	"context"
	"slices"

	"github.com/spf13/pflag"

	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/protocol/redact"
	"github.com/agenthandoff/handoff/worker"
)

// transferFlags say how much of the conversation is handed off.
type transferFlags struct {
	mode                    string
	maxMessages, maxTokens  int
	summarizer, historyFile string
	assist                  string // what answers where no summarizer is given, and words are not certain
}

func (f *packageFlags) declareTransfer(fs *pflag.FlagSet) {
	t := &f.transfer
	fs.StringVar(&t.historyFile, "history-file", "", "read the conversation so far, a JSON list of messages, from a `FILE`, or stdin with -")
	fs.StringVar(&t.mode, "transfer", "", "`HOW` much of the conversation goes: full, relevant_only, summary or reference (default: summary for a delegation, full for an escalation, else relevant_only)")
	fs.IntVar(&t.maxMessages, "max-messages", 0, "of the conversation, at most `N` messages: the first request, the newest, and those about the task")
	fs.IntVar(&t.maxTokens, "max-context-tokens", 0, "of the conversation, at most `N` tokens, as estimated")
	fs.StringVar(&t.summarizer, "summarizer", "", "shell `COMMAND` that reads the conversation as JSON and prints a summary (default $HANDOFF_SUMMARIZER; else what assists; without one, and with --key, extracts are the summary)")
	assistFlag(fs, &t.assist)
}

// cutConversation cuts the conversation as the flags say. Without any of them it stays as it is.
func (f *packageFlags) cutConversation(ctx context.Context, pkg *protocol.Package, a *app) error {
	t, h := f.transfer, &pkg.Context.HistoryTransfer
	given := func(name string) bool { return f.fs.Changed(name) }
	if !slices.ContainsFunc([]string{"history-file", "transfer", "max-messages", "max-context-tokens", "summarizer"}, given) {
		return nil
	}
	const field = "context.history_transfer."
	switch {
	case given("transfer") && !slices.Contains(asWords(protocol.TransferModes), t.mode):
		return protocol.Errorf(protocol.CodeInvalid, field+"mode", "must be one of full, summary, relevant_only, reference, not %q", t.mode)
	case given("max-messages") && (t.maxMessages < 1 || t.maxMessages > protocol.HistoryMessagesMax):
		return protocol.Errorf(protocol.CodeInvalid, field+"max_messages", "must be from 1 to %d, not %d", protocol.HistoryMessagesMax, t.maxMessages)
	case given("max-context-tokens") && (t.maxTokens < 1 || t.maxTokens > protocol.TokensMax):
		return protocol.Errorf(protocol.CodeInvalid, field+"max_tokens", "must be from 1 to %d, not %d", protocol.TokensMax, t.maxTokens)
	}
	h.Mode = cmp.Or(protocol.TransferMode(t.mode), h.Mode)
	h.MaxMessages, h.MaxTokens = cmp.Or(t.maxMessages, h.MaxMessages), cmp.Or(t.maxTokens, h.MaxTokens)
	if len(pkg.Context.ConversationHistory) == 0 {
		return nil
	}
	if pkg.Type == "" && f.await == protocol.WaitBlock && a.env(worker.EnvAwaitDir) != "" {
		h.Mode = cmp.Or(h.Mode, protocol.TransferSummary) // it becomes a delegation
	}
	h.Mode = cmp.Or(h.Mode, pkg.Type.Transfer())
	if pkg.GoesByReference() { // the whole is stored with the submission, and the key points are made there
		return nil
	}
	if err := a.redactConversation(ctx, pkg); err != nil {
		return err
	}
	if h.Mode == protocol.TransferSummary && pkg.Context.Summary == "" && pkg.Key == "" {
		if err := a.summarize(ctx, t, pkg); err != nil {
			return err
		}
	}
	pkg.CutConversation()
	return nil
}

// redactConversation takes secrets out of the conversation before it is cut, since a part of one
// might not be known as one, and before another program reads it.
func (a *app) redactConversation(ctx context.Context, pkg *protocol.Package) error {
	redactor, err := a.redactor()
	if err != nil {
		return err
	}
	if redactor == nil {
		if redactor, err = redact.Default(); err != nil {
			return err
		}
	}
	body, err := protocol.EncodePackage(protocol.Package{Context: protocol.Context{ConversationHistory: pkg.Context.ConversationHistory,
		OriginalRequest: pkg.Context.OriginalRequest, CompletedSteps: pkg.Context.CompletedSteps, Decisions: pkg.Context.Decisions, KeyPoints: pkg.Context.KeyPoints}})
	if err != nil {
		return err
	}
	body, n, err := redactor.Package(ctx, body)
	if err != nil || n == 0 {
		return err
	}
	clean, err := protocol.DecodePackage(body)
	if err != nil {
		return err
	}
	a.notef("handoff: secrets taken out of the conversation before it is cut: %d\n", n)
	c := &pkg.Context
	c.ConversationHistory, c.OriginalRequest = clean.Context.ConversationHistory, clean.Context.OriginalRequest
	c.CompletedSteps, c.Decisions, c.KeyPoints = clean.Context.CompletedSteps, clean.Context.Decisions, clean.Context.KeyPoints
	return nil
}
