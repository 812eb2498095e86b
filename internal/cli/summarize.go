package cli

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"os/exec"
	"strings"
	"time"

	"github.com/agenthandoff/handoff/protocol"
)

const (
	summarizerTimeout  = 30 * time.Second
	summaryBytesMax    = 64 << 10
	summarizerErrBytes = 1 << 10
)

// summaryRequest is what a summarizer reads.
type summaryRequest struct {
	Task         string             `json:"task"`
	Requirements []string           `json:"requirements,omitempty"`
	MaxTokens    int                `json:"max_tokens"`
	Messages     []protocol.Message `json:"messages"`
}

// summarize asks a command for the summary of the conversation. One that fails, takes too long or
// prints nothing is said, and leaves it to the extracts.
func (a *app) summarize(ctx context.Context, command string, pkg *protocol.Package) {
	if strings.TrimSpace(command) == "" {
		return
	}
	h := &pkg.Context.HistoryTransfer
	most := protocol.SummaryTokensMax
	if h.MaxTokens > 0 {
		most = min(most, h.MaxTokens)
	}
	summary, err := a.askSummarizer(ctx, command, summaryRequest{pkg.Task.Description, pkg.Task.Requirements, most, pkg.Context.ConversationHistory})
	if err == nil && protocol.Tokens(summary) > most {
		err = errors.New("the summary has more than max_tokens")
	}
	if err != nil {
		a.notef("handoff: the summarizer failed, extracts are the summary: %v\n", err)
		return
	}
	pkg.Context.Summary, h.By = summary, protocol.SummaryByCommand
}

func (a *app) askSummarizer(ctx context.Context, command string, request summaryRequest) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, summarizerTimeout)
	defer cancel()
	input, err := json.Marshal(request)
	if err != nil {
		return "", err
	}
	cmd := exec.CommandContext(ctx, "sh", "-c", command)
	cmd.Dir, cmd.Stdin, cmd.WaitDelay = a.dir, bytes.NewReader(input), time.Second
	var words bytes.Buffer
	cmd.Stderr = &words
	out, err := cmd.Output()
	switch {
	case ctx.Err() != nil:
		return "", context.Cause(ctx)
	case err != nil:
		return "", errors.New(cmp.Or(protocol.CutText(strings.TrimSpace(words.String()), summarizerErrBytes), err.Error()))
	case len(out) > summaryBytesMax:
		return "", errors.New("it printed " + protocol.OverSize(len(out), summaryBytesMax))
	case strings.TrimSpace(string(out)) == "":
		return "", errors.New("it printed nothing")
	}
	return strings.TrimSpace(string(bytes.ToValidUTF8(out, []byte("\uFFFD")))), nil
}
