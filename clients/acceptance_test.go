package clients_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/agenthandoff/handoff/internal/testworld"
	"github.com/agenthandoff/handoff/internal/testworld/testmcp"
)

// TestAcceptance: one handoff goes through every way in. The page submits it, a model takes it over MCP and
// asks, curl answers, a Python worker is killed and replaced, a JavaScript worker ends it, and a signed
// notification has the end. All ways in show one life. The second time the gateway is another process in
// each step.
func TestAcceptance(t *testing.T) {
	t.Parallel()
	for _, needed := range []string{"curl", "python3", "node"} {
		if _, err := exec.LookPath(needed); err != nil {
			t.Skipf("the story needs %s: %v", needed, err)
		}
	}
	for name, kills := range map[string]bool{"one gateway": false, "killed gateway": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := &story{world: newWorld(t), kills: kills, tokens: map[string]string{}}
			s.tell()
		})
	}
}

// story is a world in which the gateway may be another process in each step.
type story struct {
	*world
	kills  bool
	tokens map[string]string
}

// step begins a step.
func (s *story) step() {
	s.t.Helper()
	if !s.kills {
		return
	}
	s.gateway.Kill()
	s.gateway.Restart()
	for end := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		answer, err := http.Get(s.url + "/healthz")
		if err == nil {
			_ = answer.Body.Close()
			return
		}
		if time.Now().After(end) {
			s.t.Fatal("the gateway does not come back")
		}
	}
}

// token returns a new token of an agent.
func (s *story) token(agent string) string {
	s.t.Helper()
	if s.tokens[agent] == "" {
		out, err := exec.Command(testworld.Handoff(s.t), "token", "new", "--tokens", filepath.Join(s.dir, "callers.json"), "--name", agent, "--role", "agent").Output()
		if err != nil {
			s.t.Fatal(err)
		}
		s.tokens[agent] = strings.TrimSpace(string(out))
	}
	return s.tokens[agent]
}

// mcp is a host of an agent's model, with the extension Tasks or without.
func (s *story) mcp(agent string, capabilities map[string]any) *testmcp.Client {
	s.t.Helper()
	return testmcp.HTTP(s.t, s.url+"/mcp", s.token(agent), capabilities)
}

// call calls a tool, and returns its structured content.
func (s *story) call(agent, tool string, arguments map[string]any) map[string]any {
	s.t.Helper()
	_, data := s.mcp(agent, nil).Call(tool, arguments)
	return data
}

// curl runs curl with the token of the world, and returns the answer.
func (s *story) curl(args ...string) string {
	s.t.Helper()
	out, err := exec.CommandContext(s.t.Context(), "curl", append([]string{"-sS", "--max-time", "60", "-H", "Authorization: Bearer " + s.tokens["person"], "-H", "Content-Type: application/json"}, args...)...).Output()
	if err != nil {
		s.t.Fatalf("curl %v: %v", args, err)
	}
	return string(out)
}

func (s *story) tell() {
	t := s.t
	s.tokens["person"] = strings.TrimPrefix(s.env[3], "HANDOFF_TOKEN=")
	for _, agent := range []string{"planner", "other"} {
		s.run("agents", "put", agent)
	}

	// A notification is to tell the end.
	secret := filepath.Join(s.dir, "secret")
	const key = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
	if err := os.WriteFile(secret, []byte(key+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	webhook, err := standardwebhooks.NewWebhook(key)
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var told []string
	receiver := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		mu.Lock()
		defer mu.Unlock()
		if err := webhook.Verify(body, r.Header); err != nil {
			t.Errorf("a notification: %v", err)
		}
		told = append(told, string(body))
	}))
	defer receiver.Close()
	notify := testworld.Start(t, "notify", []string{"NATS_URL=" + s.nats}, testworld.Handoff(t), "notify", "--url", receiver.URL, "--secret-file", secret, "--on", "closed", "--allow-net", "127.0.0.0/8")
	notify.AwaitOutput(t.Context(), "ready")

	// A person submits it on the page.
	s.step()
	jar, _ := cookiejar.New(nil)
	browser := &http.Client{Jar: jar}
	post := func(path string, form url.Values) string {
		r, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, s.url+path, strings.NewReader(form.Encode()))
		r.Header = http.Header{"Content-Type": {"application/x-www-form-urlencoded"}, "Origin": {s.url}}
		answer, err := browser.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer answer.Body.Close()
		body, _ := io.ReadAll(answer.Body)
		if answer.StatusCode >= 400 {
			t.Fatalf("%s: %s\n%s", path, answer.Status, body)
		}
		return string(body)
	}
	post("/ui/in", url.Values{"token": {s.tokens["person"]}})
	s.step()
	post("/ui/act", url.Values{"op": {"submit"}, "to": {"planner"}, "task": {"plan the release"}, "reason": {"it is due"}, "key": {"release-41"}})
	var list struct{ Handoffs []struct{ Ticket string } }
	if err := json.Unmarshal([]byte(s.run("list", "-o", "json")), &list); err != nil || len(list.Handoffs) != 1 {
		t.Fatalf("%+v, %v", list, err)
	}
	ticket := list.Handoffs[0].Ticket

	// A model takes it, and asks; curl answers.
	s.step()
	held := s.call("planner", "next_handoff", map[string]any{"wait_ms": 20000})
	s.step()
	s.call("planner", "respond", map[string]any{"lease": held["lease"], "decision": "need_context", "needs": []string{"which branch?"}})
	s.step()
	if answered := s.curl(s.url+"/v1/handoffs/"+ticket+"/answer", "-d", `{"question": 1, "text": "main"}`); !strings.Contains(answered, ticket) {
		t.Fatal(answered)
	}
	s.step()
	held = s.call("planner", "next_handoff", map[string]any{"wait_ms": 20000})
	s.step()
	s.call("planner", "respond", map[string]any{"lease": held["lease"], "decision": "accept"})
	s.step()
	s.call("planner", "finish", map[string]any{"lease": held["lease"], "result": "the plan", "next": "reviewer", "next_task": "review"})

	// A Python worker is killed, and another one goes on; a JavaScript worker ends it.
	start := func(agent, program, file string) *testworld.Process {
		env := append([]string{}, s.env...)
		env[3] = "HANDOFF_TOKEN=" + s.token(agent)
		return testworld.StartIn(t, s.dir, agent, append(env, "LEASE=5"), program, file, agent)
	}
	first := start("reviewer", "python3", "worker.py")
	first.AwaitOutput(t.Context(), "begun review")
	s.step()
	first.Kill()
	start("reviewer", "python3", "worker.py")
	s.step()
	start("finisher", "node", "worker.mjs")
	s.run("wait", ticket, "--chain", "--timeout", "3m")

	// All have learned the end.
	s.step()
	show := s.run("show", ticket, "-o", "json")
	last := s.curl(s.url + "/v1/handoffs/" + ticket + "?chain=1")
	for _, want := range []string{`"outcome":"success"`, `"agent":"finisher"`} {
		if !strings.Contains(strings.ReplaceAll(last, " ", ""), want) {
			t.Errorf("no %s in %s", want, last)
		}
	}
	s.step()
	if task := s.mcp("person", testmcp.Tasks()).Must("tasks/get", map[string]any{"taskId": ticket}); task["status"] != "completed" {
		t.Errorf("%v", task)
	}
	s.step()
	checked := s.call("person", "check_handoff", map[string]any{"ticket": ticket, "view": "result"})
	result, _ := checked["result"].(map[string]any)
	if checked["outcome"] != "success" || checked["agent"] != "finisher" || result["echo"] == nil {
		t.Errorf("%v", checked)
	}
	for end := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
		mu.Lock()
		n := len(told)
		mu.Unlock()
		if n >= 3 {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("%d notifications of 3 ends", n)
		}
	}

	// Another agent sees none of it.
	s.step()
	if _, failure := s.mcp("other", testmcp.Tasks()).Send("tasks/get", map[string]any{"taskId": ticket}); !strings.Contains(fmt.Sprint(failure), "not_found") {
		t.Errorf("%v", failure)
	}
	if data := s.call("other", "check_handoff", map[string]any{"ticket": ticket}); data["code"] != "not_found" {
		t.Errorf("%v", data)
	}

	// The command line, HTTP, the page and MCP show one life.
	s.step()
	var here, there map[string]any
	if err := json.Unmarshal([]byte(show), &here); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal([]byte(s.curl(s.url+"/v1/handoffs/"+ticket+"/show")), &there); err != nil {
		t.Fatal(err)
	}
	for name, value := range here {
		if one, two := fmt.Sprint(value), fmt.Sprint(there[name]); one != two && name != "durations" && name != "stages" {
			t.Errorf("%s: %.300s, and over HTTP %.300s", name, one, two)
		}
	}
	s.step()
	answer, err := browser.Get(s.url + "/ui/t/" + ticket)
	if err != nil {
		t.Fatal(err)
	}
	body, _ := io.ReadAll(answer.Body)
	_ = answer.Body.Close()
	for _, want := range []string{"plan the release", "which branch?", "planner", "reviewer", "finisher"} {
		if !strings.Contains(string(body), want) {
			t.Errorf("the page has no %q", want)
		}
	}
	if phase := checked["phase"]; phase != "complete" || !regexp.MustCompile(`(?i)\bdone\b`).Match(body) {
		t.Errorf("phase %v", phase)
	}
	roots := 0
	for line := range strings.Lines(s.run("tree", ticket)) {
		if regexp.MustCompile(`^[0-9a-f]{8}`).MatchString(line) {
			roots++
		}
	}
	if roots != 1 {
		t.Errorf("%d roots:\n%s", roots, s.run("tree", ticket))
	}
	if audit := s.run("audit", "verify"); !strings.Contains(audit, "all is well") {
		t.Error(audit)
	}
}
