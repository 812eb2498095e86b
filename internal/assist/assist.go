// Package assist asks a command or a model for a summary of a conversation, or for the agent for a
// task. Its questions have their secrets taken out.
package assist

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/protocol/redact"
)

const (
	// timeout bounds one question, with its second try.
	timeout = 30 * time.Second
	// QuestionBytesMax is the longest question, as JSON.
	QuestionBytesMax = 4 << 20
	// AnswerBytesMax is the longest answer.
	AnswerBytesMax = 64 << 10
)

// Who answers.
const (
	byCommand = "command"
	ByModel   = "model"
)

// Asker answers questions. Its implementations are Command and Chat.
type Asker interface {
	// Ask returns the answer to a question, without the blanks around it. An answer has words, is
	// valid UTF-8 and no longer than AnswerBytesMax. A question takes at most Timeout.
	Ask(ctx context.Context, q Question) (string, error)
	// By is who answers: ByCommand or ByModel.
	By() string
}

// Question is a question to a command or a model. Redact first takes the secrets out of its input.
type Question struct {
	Instructions string // for a model; a command knows its purpose by the input's kind
	Input        any    // encoded as a JSON object
}

// encode returns the input as JSON, without its secrets. Without a redactor it is that of
// redact.Default.
func (q Question) encode(ctx context.Context, r *redact.Redactor) ([]byte, error) {
	body, err := json.Marshal(q.Input)
	if err != nil {
		return nil, err
	}
	if len(body) > QuestionBytesMax {
		return nil, errors.New("the question " + protocol.OverSize(len(body), QuestionBytesMax))
	}
	if r == nil {
		if r, err = redact.Default(); err != nil {
			return nil, err
		}
	}
	return r.Variables(ctx, body)
}

// answerOf checks an answer, and returns it without the blanks around it.
func answerOf(answer string) (string, error) {
	switch {
	case len(answer) > AnswerBytesMax:
		return "", errors.New("the answer " + protocol.OverSize(len(answer), AnswerBytesMax))
	case strings.TrimSpace(answer) == "":
		return "", errors.New("the answer is empty")
	}
	return strings.TrimSpace(strings.ToValidUTF8(answer, "\uFFFD")), nil
}

// Command asks a shell command: the question is its standard input, its standard output the
// answer. One that exits with another code than 0 has failed, and its standard error has the reason.
type Command struct {
	Line     string
	Dir      string           // where it runs; "" is the directory of this process
	Redactor *redact.Redactor // nil is that of redact.Default
	Timeout  time.Duration    // 0 is Timeout
}

const commandErrorBytes = 1 << 10

// By implements Asker.
func (c Command) By() string { return byCommand }

// Ask implements Asker.
func (c Command) Ask(ctx context.Context, q Question) (string, error) {
	limit := cmp.Or(c.Timeout, timeout)
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
	case out.kept.Len() > AnswerBytesMax:
		return "", fmt.Errorf("the answer has more than %d bytes", AnswerBytesMax)
	case err != nil:
		return "", errors.New(cmp.Or(protocol.CutText(strings.TrimSpace(words.kept.String()), commandErrorBytes), err.Error()))
	}
	return answerOf(out.kept.String())
}

// bounded keeps the first bytes written, and refuses none.
type bounded struct {
	kept bytes.Buffer
	most int
}

// Write implements io.Writer.
func (b *bounded) Write(p []byte) (int, error) {
	b.kept.Write(p[:min(len(p), b.most-b.kept.Len())])
	return len(p), nil
}

// ChatConfig configures a Chat.
type ChatConfig struct {
	URL      string           // the address in front of /chat/completions
	Model    string           // "" is "default"
	Key      string           // sent as a bearer token; "" sends none
	Redactor *redact.Redactor // nil is that of redact.Default
	Timeout  time.Duration    // of a question with its second try; 0 is Timeout
}

// Chat asks a model behind an endpoint that is compatible with OpenAI's. It tries twice where the
// endpoint is overloaded or away. It follows no redirect: the key is for one host.
type Chat struct {
	address string
	cfg     ChatConfig
	client  *http.Client
}

const (
	chatResponseBytesMax = 1 << 20
	chatRetryDelay       = 500 * time.Millisecond
)

// NewChat returns a Chat. The error names the wrong setting, and has neither the address nor the key.
func NewChat(cfg ChatConfig) (*Chat, error) {
	u, err := url.Parse(cfg.URL)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return nil, protocol.Errorf(protocol.CodeInvalid, "url", "must be an address that begins with http:// or https://")
	}
	cfg.Key = strings.TrimSpace(cfg.Key)
	if strings.ContainsFunc(cfg.Key, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return nil, protocol.Errorf(protocol.CodeInvalid, "key", "must be one word of printable ASCII")
	}
	cfg.Model, cfg.Timeout = cmp.Or(cfg.Model, "default"), cmp.Or(cfg.Timeout, timeout)
	return &Chat{
		address: u.JoinPath("chat/completions").String(),
		cfg:     cfg,
		client:  &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }},
	}, nil
}

// Format keeps the key out of whatever prints a Chat.
func (c *Chat) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, "assist.Chat("+c.cfg.Model+")") }

// By implements Asker.
func (c *Chat) By() string { return ByModel }

// Ask implements Asker.
func (c *Chat) Ask(ctx context.Context, q Question) (string, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, c.cfg.Timeout, fmt.Errorf("no answer within %v", c.cfg.Timeout))
	defer cancel()
	input, err := q.encode(ctx, c.cfg.Redactor)
	if err != nil {
		return "", err
	}
	body, err := json.Marshal(chatRequest{c.cfg.Model, 0, []chatMessage{{"system", &q.Instructions}, {"user", new(string(input))}}})
	if err != nil {
		return "", err
	}
	answer, err := c.post(ctx, body)
	var again *retryError
	if errors.As(err, &again) {
		if err := sleep(ctx, again.after); err != nil {
			return "", fmt.Errorf("%w; %w", again, err)
		}
		answer, err = c.post(ctx, body)
	}
	if err != nil && ctx.Err() != nil {
		return "", context.Cause(ctx)
	}
	return answer, err
}

type chatRequest struct {
	Model       string        `json:"model"`
	Temperature int           `json:"temperature"`
	Messages    []chatMessage `json:"messages"`
}

type chatMessage struct {
	Role    string  `json:"role"`
	Content *string `json:"content"`
}

type chatResponse struct {
	Choices []struct {
		Message      chatMessage `json:"message"`
		FinishReason string      `json:"finish_reason"`
	} `json:"choices"`
}

// retryError is a failure that another try may not have.
type retryError struct {
	words string
	after time.Duration
}

// Error implements error.
func (e *retryError) Error() string { return e.words }

// post asks once. It does not repeat an endpoint's words on a failure, which may include the key.
func (c *Chat) post(ctx context.Context, body []byte) (string, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, c.address, bytes.NewReader(body))
	if err != nil {
		return "", errors.New("the endpoint cannot be asked")
	}
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("Accept", "application/json")
	if c.cfg.Key != "" {
		request.Header.Set("Authorization", "Bearer "+c.cfg.Key)
	}
	response, err := c.client.Do(request)
	if err != nil {
		return "", &retryError{"the endpoint cannot be reached: " + withoutAddress(err), chatRetryDelay}
	}
	defer response.Body.Close()
	switch status := response.StatusCode; {
	case status == http.StatusRequestTimeout || status == http.StatusTooManyRequests || status >= http.StatusInternalServerError:
		return "", &retryError{fmt.Sprintf("the endpoint answers %d", status), retryAfter(response.Header.Get("Retry-After"), time.Now())}
	case status != http.StatusOK:
		return "", fmt.Errorf("the endpoint answers %d", status)
	}
	said, err := io.ReadAll(io.LimitReader(response.Body, chatResponseBytesMax+1))
	switch {
	case err != nil:
		return "", &retryError{"the endpoint breaks off: " + withoutAddress(err), chatRetryDelay}
	case len(said) > chatResponseBytesMax:
		return "", fmt.Errorf("the endpoint answers with more than %d bytes", chatResponseBytesMax)
	}
	var r chatResponse
	if err := json.Unmarshal(said, &r); err != nil {
		return "", errors.New("the endpoint's answer is not JSON of a chat")
	}
	if len(r.Choices) == 0 || r.Choices[0].Message.Content == nil {
		return "", errors.New("the endpoint answers without a choice")
	}
	if r.Choices[0].FinishReason == "length" {
		return "", errors.New("the answer is cut off at the model's limit")
	}
	return answerOf(*r.Choices[0].Message.Content)
}

// withoutAddress is the reason of a failed request alone: an address may have a key in it.
func withoutAddress(err error) string {
	var failed *url.Error
	if errors.As(err, &failed) {
		err = failed.Err
	}
	return err.Error()
}

// retryAfter reads the header Retry-After: seconds or a date.
func retryAfter(header string, now time.Time) time.Duration {
	if seconds, err := strconv.ParseInt(header, 10, 32); err == nil && seconds >= 0 {
		return time.Duration(seconds) * time.Second
	}
	if at, err := http.ParseTime(header); err == nil {
		return max(at.Sub(now), 0)
	}
	return chatRetryDelay
}

// sleep waits, or fails at once where the wait would outlast ctx.
func sleep(ctx context.Context, d time.Duration) error {
	if deadline, has := ctx.Deadline(); has && time.Until(deadline) <= d {
		return fmt.Errorf("it asks to wait %v, which is too long", d.Round(time.Second))
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
