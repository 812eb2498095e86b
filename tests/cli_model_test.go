package tests

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"strings"
	"sync"

	"github.com/rogpeppe/go-internal/testscript"
)

// cmdModel serves a model behind an endpoint that is compatible with OpenAI's, and sets
// HANDOFF_LLM_URL. Each argument is an answer: a status, "html", or what the model says; the last
// one stands for all that follow. The file "asked" has what it was asked, a line each.
func cmdModel(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) == 0 {
		ts.Fatalf("usage: model ANSWER…")
	}
	asked := ts.MkAbs("asked")
	ts.Check(os.WriteFile(asked, nil, 0o600))
	var mu sync.Mutex
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		mu.Lock()
		defer mu.Unlock()
		if said, err := os.ReadFile(asked); err == nil {
			_ = os.WriteFile(asked, append(append(said, bytes.TrimSpace(body)...), '\n'), 0o600)
		}
		answer := args[0]
		args = args[min(1, len(args)-1):]
		switch code, err := strconv.Atoi(answer); {
		case err == nil:
			w.Header().Set("Retry-After", "0")
			w.WriteHeader(code)
		case answer == "html":
			_, _ = io.WriteString(w, "<html>")
		default:
			_ = json.NewEncoder(w).Encode(map[string]any{"choices": []any{map[string]any{"message": map[string]any{"content": strings.TrimSpace(answer)}}}})
		}
	}))
	ts.Defer(server.Close)
	ts.Setenv("HANDOFF_LLM_URL", server.URL+"/v1")
}
