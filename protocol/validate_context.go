package protocol

import (
	"fmt"
	"strings"
)

// checkContext checks what the target is to know. A conversation id or a user
// intent may be absent, but not present and empty.
func checkContext(c *Context) *Error {
	for _, f := range []struct {
		field string
		text  *string
	}{{"context.conversation_id", c.ConversationID}, {"context.user_intent", c.UserIntent}} {
		if f.text != nil && strings.TrimSpace(*f.text) == "" {
			return Errorf(CodeMissing, f.field, "is there but empty; leave it out or fill it in")
		}
	}
	if c.ConversationID != nil {
		if err := checkName("context.conversation_id", *c.ConversationID); err != nil {
			return err
		}
	}
	for _, f := range []struct{ field, name string }{
		{"context.workflow_id", c.WorkflowID}, {"context.user_id", c.UserID},
		{"context.correlation_id", c.CorrelationID}, {"context.trace_id", c.TraceID},
		{"context.phase", c.Phase}, {"context.next_phase", c.NextPhase},
	} {
		if err := checkName(f.field, f.name); err != nil {
			return err
		}
	}
	if err := c.HistoryTransfer.check(); err != nil {
		return err
	}
	if err := checkFiles(c); err != nil {
		return err
	}
	if err := checkPrevious(c.Previous); err != nil {
		return err
	}
	return checkArtifacts("context.artifacts", c.Artifacts)
}

func (t *HistoryTransfer) check() *Error {
	const field = "context.history_transfer."
	if err := oneOf(field+"mode", t.Mode, TransferModes); err != nil {
		return err
	}
	if err := between(field+"max_messages", int64(t.MaxMessages), 0, HistoryMessagesMax); err != nil {
		return err
	}
	if err := between(field+"max_tokens", int64(t.MaxTokens), 0, TokensMax); err != nil {
		return err
	}
	if err := between(field+"omitted", int64(t.Omitted), 0, HistoryMessagesMax); err != nil {
		return err
	}
	if err := between(field+"original_tokens", int64(t.OriginalTokens), 0, TokensMax); err != nil {
		return err
	}
	if err := between(field+"tokens", int64(t.Tokens), 0, TokensMax); err != nil {
		return err
	}
	return oneOf(field+"by", t.By, SummaryBys)
}

func checkFiles(c *Context) *Error {
	for i, f := range c.RelevantFiles {
		if f.Path == "" {
			return Errorf(CodeMissing, fmt.Sprintf("context.relevant_files[%d].path", i), "is missing or empty")
		}
	}
	for i, f := range c.FilesInProgress {
		field := fmt.Sprintf("context.files_in_progress[%d]", i)
		if f.Path == "" {
			return Errorf(CodeMissing, field+".path", "is missing or empty")
		}
		if err := oneOf(field+".lock_type", f.LockType, LockTypes); err != nil {
			return err
		}
	}
	return nil
}

func checkArtifacts(field string, all Artifacts) *Error {
	if all.List != nil && all.ByName != nil {
		return Errorf(CodeConflict, field, "is given both as a list and by name")
	}
	for i, a := range all.List {
		at := fmt.Sprintf("%s[%d]", field, i)
		if a.ID == "" && a.Name == "" && a.Path == "" {
			return Errorf(CodeMissing, at, "has neither id nor name nor path")
		}
		if err := oneOf(at+".status", a.Status, ArtifactStatuses); err != nil {
			return err
		}
	}
	return nil
}
