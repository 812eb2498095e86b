package tests

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/agenthandoff/handoff/internal/testworld"
)

// TestExampleFleet runs the fleet of examples/fleet as a person does who has no model.
func TestExampleFleet(t *testing.T) {
	t.Parallel()
	out, notes := runFleet(t)
	if !strings.Contains(out, "6 changes are out, 1 of them breaking (draft 2)") || !strings.Contains(out, "8 handoffs") || !strings.Contains(out, "; the remaining budget passed to ") {
		t.Errorf("it printed\n%s", out)
	}
	if !strings.HasPrefix(notes, "# Release notes\n\n## Breaking changes\n") {
		t.Errorf("the notes are\n%s", notes)
	}
}

// TestExampleFleetWithModel has an endpoint that is rate limited, then answers with what is no
// answer, and then with notes.
func TestExampleFleetWithModel(t *testing.T) {
	t.Parallel()
	const key = "a-key-of-the-fleet"
	keyFile := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(keyFile, []byte(key+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var prompts []string
	model := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		mu.Lock()
		defer mu.Unlock()
		prompts = append(prompts, string(body))
		if r.URL.Path != "/v1/chat/completions" || r.Header.Get("Authorization") != "Bearer "+key {
			t.Errorf("it asked %s, authorized by %q", r.URL.Path, r.Header.Get("Authorization"))
		}
		switch len(prompts) {
		case 1:
			w.Header().Set("Retry-After", "1")
			w.WriteHeader(http.StatusTooManyRequests)
		case 2:
			_, _ = io.WriteString(w, "<html>not this</html>")
		default:
			_ = json.NewEncoder(w).Encode(map[string]any{
				"choices": []any{map[string]any{"message": map[string]any{"content": "# Release notes\n\n## All\n\n- words of the model\n"}}},
				"usage":   map[string]any{"prompt_tokens": 900, "completion_tokens": 100, "total_tokens": 1000},
			})
		}
	}))
	t.Cleanup(model.Close)
	out, notes := runFleet(t, "HANDOFF_LLM_URL="+model.URL+"/v1", "HANDOFF_LLM_KEY_FILE="+keyFile)
	if !strings.Contains(notes, "- words of the model\n") || !strings.Contains(out, "(draft 1)") || !strings.Contains(out, "1,000 tokens") && !strings.Contains(out, "1000 tokens") {
		t.Errorf("it printed\n%s, and the notes are\n%s", out, notes)
	}
	if strings.Contains(out, key) {
		t.Errorf("the key is in what it printed:\n%s", out)
	}
	mu.Lock()
	defer mu.Unlock()
	if len(prompts) != 3 || !strings.Contains(prompts[2], "## Your Specific Task") || !strings.Contains(prompts[2], "A worker goes on") {
		t.Errorf("it asked %d times:\n%s", len(prompts), prompts)
	}
}

// TestExampleCodingAgent has a program in place of a coding agent: it gets the brief, and prints a report.
func TestExampleCodingAgent(t *testing.T) {
	t.Parallel()
	bin := t.TempDir()
	agent := `#!/bin/sh
[ "$1 $2 $3" = "-p --output-format json" ] || exit 9
grep -q "Write the release notes in Markdown" || exit 8
printf '%s' '{"type": "result", "subtype": "success", "is_error": false, "result": "# Release notes\n\n## All\n\n- words of the agent"}'
`
	if err := os.WriteFile(filepath.Join(bin, "claude"), []byte(agent), 0o700); err != nil {
		t.Fatal(err)
	}
	out, notes := runFleet(t, "CODING_AGENT=claude", "AGENT_BIN="+bin)
	if !strings.Contains(notes, "- words of the agent\n") || !strings.Contains(out, "(draft 1)") {
		t.Errorf("it printed\n%s, and the notes are\n%s", out, notes)
	}
}

// runFleet returns what the script printed, and the notes.
func runFleet(t *testing.T, env ...string) (out, notes string) {
	t.Helper()
	for _, needed := range []string{"sh", "jq", "python3"} {
		if _, err := exec.LookPath(needed); err != nil {
			t.Skipf("the fleet needs %s: %v", needed, err)
		}
	}
	bin, dir := t.TempDir(), t.TempDir()
	if err := os.Symlink(testworld.Handoff(t), filepath.Join(bin, "handoff")); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "sh", filepath.Join("..", "examples", "fleet", "run.sh"), "--yes")
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) } // it stops what it has started
	cmd.WaitDelay = 30 * time.Second
	cmd.Env = append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"), "FLEET_OUT="+filepath.Join(dir, "notes.md"))
	for _, entry := range env {
		if dir, ok := strings.CutPrefix(entry, "AGENT_BIN="); ok {
			entry = "PATH=" + bin + ":" + dir + ":" + os.Getenv("PATH")
		}
		cmd.Env = append(cmd.Env, entry)
	}
	printed, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, printed)
	}
	written, err := os.ReadFile(filepath.Join(dir, "notes.md"))
	if err != nil {
		t.Fatal(err)
	}
	return string(printed), string(written)
}
