package assist

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"time"

	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/protocol/redact"
)

// Command asks a shell command: the question is its standard input, its standard output the
// answer. One that exits with another code than 0 has failed, and its standard error says why.
type Command struct {
	Line     string
	Dir      string           // where it runs; "" is the directory of this process
	Redactor *redact.Redactor // nil is that of redact.Default
	Timeout  time.Duration    // 0 is Timeout
}

const commandErrorBytes = 1 << 10

// By implements Asker.
func (c Command) By() string { return ByCommand }

// Ask implements Asker.
func (c Command) Ask(ctx context.Context, q Question) (string, error) {
	limit := cmp.Or(c.Timeout, Timeout)
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("no answer within %v", limit))
	defer cancel()
	input, err := q.encode(ctx, c.Redactor)
	if err != nil {
		return "", err
	}
	cmd := exec.CommandContext(ctx, "sh", "-c", c.Line)
	cmd.Dir, cmd.Stdin, cmd.WaitDelay = c.Dir, bytes.NewReader(input), time.Second
	out, words := &bounded{most: AnswerBytesMax + 1}, &bounded{most: commandErrorBytes}
	cmd.Stdout, cmd.Stderr = out, words
	err = cmd.Run()
	switch {
	case ctx.Err() != nil:
		return "", context.Cause(ctx)
	case out.isOver():
		return "", fmt.Errorf("the answer has more than %d bytes", AnswerBytesMax)
	case err != nil:
		return "", errors.New(cmp.Or(protocol.CutText(strings.TrimSpace(words.String()), commandErrorBytes), err.Error()))
	}
	return answerOf(out.String())
}

// bounded keeps the beginning of what is written, and refuses nothing.
type bounded struct {
	bytes.Buffer
	most int
}

// Write implements io.Writer.
func (b *bounded) Write(p []byte) (int, error) {
	b.Buffer.Write(p[:min(len(p), b.most-b.Len())])
	return len(p), nil
}

// ReadFrom hides that of the buffer, which has no bound.
func (b *bounded) ReadFrom(r io.Reader) (int64, error) {
	return io.Copy(struct{ io.Writer }{b}, r)
}

func (b *bounded) isOver() bool { return b.Len() >= b.most }
