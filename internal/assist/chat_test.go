package assist_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/agenthandoff/handoff/internal/assist"
	"github.com/agenthandoff/handoff/protocol"
)

const testKey = "sk-live-0123456789abcdefghijklmnop"

// endpoint is a model that answers as its test says, and remembers what it was asked.
type endpoint struct {
	*httptest.Server
	mu    sync.Mutex
	asked []string
	at    []time.Time
}

func newEndpoint(t *testing.T, answer func(w http.ResponseWriter, r *http.Request, n int)) *endpoint {
	t.Helper()
	e := &endpoint{}
	e.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		e.mu.Lock()
		e.asked, e.at = append(e.asked, string(body)), append(e.at, time.Now())
		n := len(e.asked)
		e.mu.Unlock()
		answer(w, r, n)
	}))
	t.Cleanup(e.Close)
	return e
}

func (e *endpoint) questions() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.asked)
}

func (e *endpoint) chat(t *testing.T, timeout time.Duration) *assist.Chat {
	t.Helper()
	chat, err := assist.NewChat(assist.ChatConfig{URL: e.URL + "/v1/", Model: "small", Key: testKey + "\n", Timeout: timeout})
	if err != nil {
		t.Fatal(err)
	}
	return chat
}

// says writes what a model says.
func says(w io.Writer, words string) {
	_ = json.NewEncoder(w).Encode(map[string]any{"choices": []any{map[string]any{"message": map[string]any{"role": "assistant", "content": words}}}})
}

func status(code int, headers ...string) func(http.ResponseWriter, *http.Request, int) {
	return func(w http.ResponseWriter, _ *http.Request, n int) {
		if n > 1 {
			says(w, "the second answer")
			return
		}
		for i := 0; i < len(headers); i += 2 {
			w.Header().Set(headers[i], headers[i+1])
		}
		w.WriteHeader(code)
		fmt.Fprintf(w, `{"error": "the key %s is wrong"}`, testKey)
	}
}

func body(text string) func(http.ResponseWriter, *http.Request, int) {
	return func(w http.ResponseWriter, _ *http.Request, _ int) { _, _ = io.WriteString(w, text) }
}

func TestChat(t *testing.T) {
	t.Parallel()
	slow := func(w http.ResponseWriter, r *http.Request, _ int) {
		select {
		case <-r.Context().Done():
		case <-time.After(10 * time.Second):
		}
	}
	aborts := func(w http.ResponseWriter, _ *http.Request, n int) {
		if n == 1 {
			panic(http.ErrAbortHandler)
		}
		says(w, "the second answer")
	}
	const limit = 3 * time.Second
	for name, c := range map[string]struct {
		answer    func(http.ResponseWriter, *http.Request, int)
		want, err string
		asked     int
		waits     time.Duration
	}{
		"an answer":                  {answer: func(w http.ResponseWriter, _ *http.Request, _ int) { says(w, " it is done\n") }, want: "it is done", asked: 1},
		"slow":                       {answer: slow, err: "no answer within 3s", asked: 1},
		"HTML":                       {answer: body("<html>not this</html>"), err: "not JSON of a chat", asked: 1},
		"an empty body":              {answer: body(""), err: "not JSON of a chat", asked: 1},
		"no choices":                 {answer: body(`{"choices": []}`), err: "without a choice", asked: 1},
		"a choice without words":     {answer: body(`{"choices": [{"message": {"content": null}}]}`), err: "without a choice", asked: 1},
		"blanks":                     {answer: body(`{"choices": [{"message": {"content": " \n"}}]}`), err: "the answer is empty", asked: 1},
		"cut off":                    {answer: body(`{"choices": [{"message": {"content": "x"}, "finish_reason": "length"}]}`), err: "cut off at the model's limit", asked: 1},
		"as long as allowed":         {answer: body(`{"choices": [{"message": {"content": "` + strings.Repeat("x", assist.AnswerBytesMax) + `"}}]}`), want: strings.Repeat("x", assist.AnswerBytesMax), asked: 1},
		"longer":                     {answer: body(`{"choices": [{"message": {"content": "` + strings.Repeat("x", assist.AnswerBytesMax+1) + `"}}]}`), err: "the answer is 65537 bytes, at most 65536", asked: 1},
		"without end":                {answer: body(strings.Repeat(" ", 1<<20) + "{}"), err: "more than 1048576 bytes", asked: 1},
		"limited":                    {answer: status(429, "Retry-After", "1"), want: "the second answer", asked: 2, waits: time.Second},
		"limited until a date":       {answer: status(503, "Retry-After", time.Now().Add(-time.Hour).UTC().Format(http.TimeFormat)), want: "the second answer", asked: 2},
		"limited for too long":       {answer: status(429, "Retry-After", "60"), err: "the endpoint answers 429; it asks to wait 1m0s", asked: 1},
		"limited without an instant": {answer: status(429), want: "the second answer", asked: 2, waits: 400 * time.Millisecond},
		"limited twice":              {answer: func(w http.ResponseWriter, _ *http.Request, _ int) { w.WriteHeader(429) }, err: "the endpoint answers 429", asked: 2},
		"overloaded":                 {answer: status(502), want: "the second answer", asked: 2},
		"forbidden":                  {answer: status(401), err: "the endpoint answers 401", asked: 1},
		"sent elsewhere":             {answer: status(307, "Location", "/elsewhere"), err: "the endpoint answers 307", asked: 1},
		"gone in the middle":         {answer: aborts, want: "the second answer", asked: 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := newEndpoint(t, c.answer)
			began := time.Now()
			got, err := e.chat(t, limit).Ask(t.Context(), assist.Question{Instructions: "answer", Input: map[string]string{"task": "a"}})
			switch {
			case c.err == "" && (err != nil || got != c.want):
				t.Errorf("got %.80q, %v, want %.80q", got, err, c.want)
			case c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)):
				t.Errorf("got the error %v, want %q", err, c.err)
			case err != nil && (strings.Contains(err.Error(), testKey) || strings.Contains(err.Error(), e.URL)):
				t.Errorf("the error has the key or the address: %v", err)
			}
			if took := time.Since(began); took > limit+2*time.Second {
				t.Errorf("it took %v", took)
			}
			if asked := e.questions(); len(asked) != c.asked {
				t.Errorf("it asked %d times, want %d", len(asked), c.asked)
			} else if c.waits > 0 && e.at[1].Sub(e.at[0]) < c.waits {
				t.Errorf("it waited %v, want %v", e.at[1].Sub(e.at[0]), c.waits)
			}
		})
	}
}

func TestChatGone(t *testing.T) {
	t.Parallel()
	e := newEndpoint(t, body(""))
	chat := e.chat(t, 5*time.Second)
	e.Close()
	if got, err := chat.Ask(t.Context(), assist.Question{}); err == nil || !strings.Contains(err.Error(), "cannot be reached") || strings.Contains(err.Error(), "http") {
		t.Errorf("got %q, %v", got, err)
	}
}

// What is asked has the form of the interface, a key in its header, and no secret.
func TestChatRequest(t *testing.T) {
	t.Parallel()
	e := newEndpoint(t, func(w http.ResponseWriter, r *http.Request, _ int) {
		if r.Method != http.MethodPost || r.URL.Path != "/v1/chat/completions" || r.Header.Get("Authorization") != "Bearer "+testKey {
			t.Errorf("it asked %s %s, authorized by %q", r.Method, r.URL.Path, r.Header.Get("Authorization"))
		}
		says(w, "fine")
	})
	chat := e.chat(t, 0)
	if printed := fmt.Sprintf("%v %+v %#v %s", chat, chat, chat, chat); strings.Contains(printed, testKey) {
		t.Errorf("the key is printed: %s", printed)
	}
	_, err := assist.Summarize(t.Context(), chat, assist.SummaryRequest{Task: "log in with ghp_0123456789abcdefghijABCDEFGHIJ012345", MaxTokens: 5,
		Messages: []protocol.Message{protocol.Message(`{"role": "user", "content": "password = \"hunter2hunter2\" is the one"}`)}})
	if err != nil {
		t.Fatal(err)
	}
	asked := e.questions()[0]
	for _, secret := range []string{"ghp_", "hunter2", testKey} {
		if strings.Contains(asked, secret) {
			t.Errorf("it was asked %s", asked)
		}
	}
	for _, part := range []string{`"model":"small"`, `"temperature":0`, `"role":"system"`, `\"kind\":\"summary\"`, `\"max_tokens\":5`, "[redacted]"} {
		if !strings.Contains(asked, part) {
			t.Errorf("without %s it was asked %s", part, asked)
		}
	}
}

func TestNewChat(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ url, key, field string }{
		"no scheme":      {"127.0.0.1:8080/v1", "", "url"},
		"another scheme": {"file:///etc", "", "url"},
		"no host":        {"http://", "", "url"},
		"a key of lines": {"http://127.0.0.1", "a\nb", "key"},
	} {
		_, err := assist.NewChat(assist.ChatConfig{URL: c.url, Key: c.key})
		if wrong, is := err.(*protocol.Error); !is || wrong.Field != c.field || wrong.Code != protocol.CodeInvalid { //nolint:errorlint // it is not wrapped
			t.Errorf("%s: got %v", name, err)
		}
	}
}
