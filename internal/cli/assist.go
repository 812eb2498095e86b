package cli

import (
	"cmp"
	"errors"
	"strings"

	"github.com/spf13/pflag"

	"github.com/agenthandoff/handoff/internal/assist"
	"github.com/agenthandoff/handoff/protocol"
)

// assistFlag declares --assist.
func assistFlag(fs *pflag.FlagSet, command *string) {
	fs.StringVar(command, "assist", "", "shell `COMMAND` that answers where words are not certain: it reads a question as JSON ($HANDOFF_ASSIST; else the model at $HANDOFF_LLM_URL)")
}

// assistant is what answers where words are not certain; nil where nothing is configured.
func (a *app) assistant(command string) (assist.Asker, error) {
	command, at := cmp.Or(command, a.env("HANDOFF_ASSIST")), a.env("HANDOFF_LLM_URL")
	if strings.TrimSpace(command) == "" && at == "" {
		return nil, nil
	}
	redactor, err := a.redactor()
	if err != nil {
		return nil, err
	}
	if strings.TrimSpace(command) != "" {
		return assist.Command{Line: command, Dir: a.dir, Redactor: redactor}, nil
	}
	key := a.env("HANDOFF_LLM_KEY")
	if path := a.env("HANDOFF_LLM_KEY_FILE"); path != "" {
		body, err := a.readFile(path)
		if err != nil {
			return nil, usagef("HANDOFF_LLM_KEY_FILE: %v", err)
		}
		key = string(body)
	}
	chat, err := assist.NewChat(assist.ChatConfig{URL: at, Model: a.env("HANDOFF_LLM_MODEL"), Key: key, Redactor: redactor})
	var wrong *protocol.Error
	if errors.As(err, &wrong) {
		return nil, usagef("$HANDOFF_LLM_%s %s", strings.ToUpper(wrong.Field), wrong.Message)
	}
	return chat, err
}
