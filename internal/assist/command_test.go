package assist_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/agenthandoff/handoff/internal/assist"
	"github.com/agenthandoff/handoff/protocol"
)

func TestCommand(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ line, want, err string }{
		"an answer":         {line: "cat > /dev/null; echo fine", want: "fine"},
		"reads nothing":     {line: "echo fine", want: "fine"},
		"what it is asked":  {line: "cat", want: `{"task":"[redacted]"}`},
		"fails":             {line: "echo no model >&2; exit 1", err: "no model"},
		"fails in silence":  {line: "exit 3", err: "exit status 3"},
		"says nothing":      {line: "echo", err: "the answer is empty"},
		"too slow":          {line: "exec sleep 10", err: "no answer within 1s"},
		"as long as it may": {line: fmt.Sprintf("head -c %d /dev/zero | tr '\\0' x", assist.AnswerBytesMax), want: strings.Repeat("x", assist.AnswerBytesMax)},
		"longer":            {line: fmt.Sprintf("head -c %d /dev/zero | tr '\\0' x", assist.AnswerBytesMax+1), err: "more than 65536 bytes"},
		"not UTF-8":         {line: `printf 'a\377b'`, want: "a\uFFFDb"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			command := assist.Command{Line: c.line, Timeout: time.Second}
			got, err := command.Ask(t.Context(), assist.Question{Input: map[string]string{"task": "ghp_0123456789abcdefghijABCDEFGHIJ012345"}})
			if got != c.want || (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
				t.Errorf("got %.80q, %v", got, err)
			}
		})
	}
	long := assist.Question{Input: map[string]string{"task": strings.Repeat("x", assist.QuestionBytesMax)}}
	if _, err := (assist.Command{Line: "cat"}).Ask(t.Context(), long); err == nil || !strings.Contains(err.Error(), "the question is 4194") {
		t.Errorf("a question that is too long: %v", err)
	}
}

// fixed answers the same each time.
type fixed string

func (f fixed) Ask(context.Context, assist.Question) (string, error) { return string(f), nil }
func (f fixed) By() string                                           { return assist.ByModel }

func TestChoose(t *testing.T) {
	t.Parallel()
	agents := []assist.Agent{assist.AgentOf(protocol.Profile{ID: "tester"}), {ID: "coder"}}
	for answer, want := range map[string]string{"tester": "tester", "coder": "coder"} {
		if got, err := assist.Choose(t.Context(), fixed(answer), "test it", agents); got != want || err != nil {
			t.Errorf("of %q: %q, %v", answer, got, err)
		}
	}
	if _, err := assist.Choose(t.Context(), fixed("NONE"), "test it", agents); !errors.Is(err, assist.ErrNone) {
		t.Errorf("of NONE: %v", err)
	}
	for _, answer := range []string{"Tester", "tester.", "none", "I choose tester", "tester\ncoder", "painter"} {
		if got, err := assist.Choose(t.Context(), fixed(answer), "test it", agents); err == nil || !strings.Contains(err.Error(), "is the id of no agent") {
			t.Errorf("of %q: %q, %v", answer, got, err)
		}
	}
}

func TestSummarize(t *testing.T) {
	t.Parallel()
	for most, fits := range map[int]bool{3: true, 2: false} {
		got, err := assist.Summarize(t.Context(), fixed("one two six"), assist.SummaryRequest{MaxTokens: most})
		if fits != (err == nil) || fits && got != "one two six" {
			t.Errorf("within %d tokens: %q, %v", most, got, err)
		}
	}
}
