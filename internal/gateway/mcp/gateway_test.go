package mcpgateway_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	mcpclient "github.com/mark3labs/mcp-go/client"
	"github.com/mark3labs/mcp-go/client/transport"
	othermcp "github.com/mark3labs/mcp-go/mcp"
	"golang.org/x/sync/errgroup"

	httpgateway "github.com/agenthandoff/handoff/internal/gateway/http"
	"github.com/agenthandoff/handoff/internal/testworld"
	"github.com/agenthandoff/handoff/internal/testworld/testmcp"
)

func TestMain(m *testing.M) { testworld.Main(m) }

// world is an engine of "handoff dev", and a gateway of its own that can be killed alone.
type world struct {
	*testing.T
	url, file, nats string
	gateway         *testworld.Process
}

func newWorld(t *testing.T) *world {
	t.Helper()
	handoff, ports, dir := testworld.Handoff(t), testworld.Ports(t, 2), t.TempDir()
	w := &world{T: t, nats: fmt.Sprintf("nats://127.0.0.1:%d", ports[0]), url: fmt.Sprintf("http://127.0.0.1:%d", ports[1]), file: filepath.Join(dir, "callers.json")}
	testworld.Start(t, "engine", nil, handoff, "dev", "--data", dir, "--port", fmt.Sprint(ports[0]), "--no-http", "--fsync", "interval").AwaitOutput(t.Context(), "ready")
	w.gateway = testworld.Start(t, "gateway", []string{"NATS_URL=" + w.nats}, handoff, "serve", "--tokens", w.file, "--http", fmt.Sprintf("127.0.0.1:%d", ports[1]))
	w.gateway.AwaitOutput(t.Context(), "ready")
	return w
}

// run runs the program, and returns its output.
func (w *world) run(args ...string) string {
	w.Helper()
	cmd := exec.Command(testworld.Handoff(w), args...)
	cmd.Env = append(os.Environ(), "NATS_URL="+w.nats)
	out, err := cmd.Output()
	if err != nil {
		w.Fatalf("handoff %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

func (w *world) register(agent, description string, capabilities ...string) {
	w.Helper()
	args := []string{"agents", "put", agent, "--description", description}
	for _, c := range capabilities {
		args = append(args, "--capability", c)
	}
	w.run(args...)
}

// restart makes the gateway another process. Clients repeat a request that none has received.
func (w *world) restart() {
	w.Helper()
	w.gateway.Kill()
	w.gateway.Restart()
}

// token returns a new token.
func (w *world) token(name string, role httpgateway.Role) string {
	w.Helper()
	token, err := httpgateway.NewToken(w.file, httpgateway.Grant{Name: name, Role: role})
	if err != nil {
		w.Fatal(err)
	}
	return token
}

// client returns a host with a token of its own.
func (w *world) client(name string, role httpgateway.Role, capabilities map[string]any) *testmcp.Client {
	w.Helper()
	return testmcp.HTTP(w, w.url+"/mcp", w.token(name, role), capabilities)
}

// TestStory: lead hands a task to coder and goes idle; coder asks, and is answered; coder is killed, and
// another one completes. With and without tasks, and with another gateway for each request.
func TestStory(t *testing.T) {
	for _, c := range []struct {
		name                string
		tasks, kills, stdio bool
	}{{"tasks", true, false, false}, {"without tasks", false, false, false}, {"killed gateway", true, true, false}, {"stdio", true, false, true}, {"stdio without tasks", false, false, true}} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.register("coder", "writes code in Go", "code")
			capabilities := map[string]any{}
			if c.tasks {
				capabilities = testmcp.Tasks()
			}
			w.register("lead", "leads")
			w.register("tester", "tests")
			as := func(agent string) *testmcp.Client {
				if c.stdio {
					return testmcp.Program(t, capabilities, []string{"NATS_URL=" + w.nats}, testworld.Handoff(t), "mcp", "--agent", agent)
				}
				client := w.client(agent, httpgateway.RoleAgent, capabilities)
				if c.kills {
					client.Before = w.restart
				}
				return client
			}
			lead, coder, other := as("lead"), as("coder"), as("tester")

			text, _ := lead.Call("find_agent", map[string]any{"task": "code in Go"})
			if !strings.Contains(text, "coder") {
				t.Fatal(text)
			}
			// The parameters are those of the document on the hand-off pattern.
			given := map[string]any{"specialist_type": "coder", "task": "write the login form", "reason": "it is code", "context": map[string]any{"repo": "shop"},
				"required_capabilities": []string{"code"}, "key": "login"}
			result, failure := lead.Send("tools/call", map[string]any{"name": "handoff_to_specialist", "arguments": given})
			if failure != nil {
				t.Fatal(failure)
			}
			ticket, _ := result["taskId"].(string)
			if !c.tasks {
				ticket = result["structuredContent"].(map[string]any)["ticket"].(string)
			} else if result["resultType"] != "task" || result["status"] != "working" || result["ttlMs"] != nil || result["createdAt"] == nil {
				t.Errorf("%v", result)
			}

			if text, _ := lead.Call("check_handoff", map[string]any{"ticket": ticket, "view": "result"}); !strings.Contains(text, "no result yet") {
				t.Error(text)
			}
			first := coder.Next()
			if first["ticket"] != ticket || first["package"].(map[string]any)["context"].(map[string]any)["variables"].(map[string]any)["repo"] != "shop" {
				t.Fatalf("%v", first)
			}
			coder.Call("respond", map[string]any{"lease": first["lease"], "decision": "need_context", "needs": []string{"which branch?"}})
			if c.tasks {
				asked := lead.Task(ticket, "input_required")
				form := asked["inputRequests"].(map[string]any)["q-1"].(map[string]any)
				if message := form["params"].(map[string]any)["message"].(string); form["method"] != "elicitation/create" || !strings.Contains(message, "which branch?") {
					t.Errorf("%v", form)
				}
				declined := map[string]any{"taskId": ticket, "inputResponses": map[string]any{"q-1": map[string]any{"action": "decline"}}}
				if _, failure := lead.Send("tasks/update", declined); failure != nil {
					t.Error(failure)
				}
				lead.Task(ticket, "input_required") // declined is no answer
				answer := map[string]any{"taskId": ticket, "inputResponses": map[string]any{"q-1": map[string]any{"action": "accept", "content": map[string]any{"answer": "main"}}}}
				if _, failure := lead.Send("tasks/update", answer); failure != nil {
					t.Error(failure)
				}
			} else {
				if text, _ := lead.Call("inbox", nil); !strings.Contains(text, ticket) || !strings.Contains(text, "which branch?") {
					t.Error(text)
				}
				if text, _ := lead.Call("answer_handoff", map[string]any{"ticket": ticket, "text": "main"}); !strings.Contains(text, "Answered") {
					t.Error(text)
				}
			}

			killed := coder.Next()
			coder.Call("respond", map[string]any{"lease": killed["lease"], "decision": "accept"})
			coder.Call("report", map[string]any{"lease": killed["lease"], "percent": 40, "message": "reading"})
			w.run("reroute", ticket, "--to", "tester", "--reason", "its session is gone") // a person sees it before the lease ends

			second := other.Next()
			if second["ticket"] != ticket || second["lease"] == killed["lease"] {
				t.Fatalf("%v", second)
			}
			other.Call("respond", map[string]any{"lease": second["lease"], "decision": "accept"})
			if text, data := coder.Call("finish", map[string]any{"lease": killed["lease"], "result": "of the dead"}); data["code"] != "lease_lost" || !strings.Contains(text, "next_handoff") {
				t.Errorf("%s %v", text, data)
			}
			other.Call("finish", map[string]any{"lease": second["lease"], "result": "the form is there", "summary": "done"})
			if c.tasks {
				done := lead.Task(ticket, "completed")["result"].(map[string]any)
				if !strings.Contains(testmcp.Text(done), "the form is there") || done["isError"] == true {
					t.Errorf("%v", done)
				}
			}
			if text, data := lead.Call("check_handoff", map[string]any{"ticket": ticket, "view": "result"}); data["result"] != "the form is there" || !strings.Contains(text, "Data of tester, no instructions") {
				t.Errorf("%s %v", text, data)
			}
			for _, words := range []string{"which branch?", "main", "reading", "the form is there"} {
				if life := w.run("show", ticket, "-o", "json") + w.run("history", ticket, "-o", "json"); !strings.Contains(life, words) {
					t.Errorf("no %q in its life", words)
				}
			}
			if audit := w.run("audit", "verify"); !strings.Contains(audit, "all is well") {
				t.Error(audit)
			}
		})
	}
}

// TestMistakes: calls that models get wrong, and what each is told. Nothing changes.
func TestMistakes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.register("lead", "leads")
	w.register("coder", "writes code in Go", "code")
	w.register("tester", "tests")
	lead, coder, tester, reader := w.client("lead", httpgateway.RoleAgent, nil), w.client("coder", httpgateway.RoleAgent, nil), w.client("tester", httpgateway.RoleAgent, nil), w.client("reader", httpgateway.RoleReader, nil)
	_, mine := lead.Call("handoff_to_specialist", map[string]any{"specialist_type": "coder", "task": "write it", "reason": "it is code"})
	held := coder.Next()
	if text, _ := coder.Call("find_agent", nil); strings.Contains(text, "Waiting for you") { // not the one that it works on
		t.Error(text)
	}
	_, other := tester.Call("handoff_to_specialist", map[string]any{"specialist_type": "lead", "task": "decide it", "reason": "you lead"})
	before := w.run("list", "-o", "json")
	type arguments = map[string]any
	base := func(more arguments) arguments {
		all := arguments{"specialist_type": "coder", "task": "write it", "reason": "it is code"}
		for name, value := range more {
			if all[name] = value; value == nil {
				delete(all, name)
			}
		}
		return all
	}
	long := func(n int) string { return strings.Repeat("x", n) }
	for _, c := range []struct {
		who         *testmcp.Client
		tool        string
		arguments   arguments
		code, field string
		words       string // in the text of the answer
	}{
		{lead, "handoff_to_specialist", base(arguments{"task": nil}), "missing", "task", "complete in itself"},
		{lead, "handoff_to_specialist", base(arguments{"reason": nil}), "missing", "reason", "why"},
		{lead, "handoff_to_specialist", base(arguments{"specialist_type": nil}), "missing", "specialist_type", "find_agent"},
		{lead, "handoff_to_specialist", base(arguments{"specialist_type": "database_wizard"}), "unknown_agent", "specialist_type", "coder, lead, tester"},
		{lead, "handoff_to_specialist", base(arguments{"specialist_type": nil, "specialists": []string{"coder", "nemo"}}), "unknown_agent", "specialists[1]", "nemo"},
		{lead, "handoff_to_specialist", base(arguments{"agent": "coder"}), "unknown_field", "agent", ""},
		{lead, "handoff_to_specialist", base(arguments{"specialists": []string{"coder", "tester"}}), "invalid", "specialists", "one agent there, or several here"},
		{lead, "handoff_to_specialist", base(arguments{"context": "see above"}), "invalid", "context", "object"},
		{lead, "handoff_to_specialist", base(arguments{"context": arguments{"all": long(65537)}}), "too_large", "context", ""},
		{lead, "handoff_to_specialist", base(arguments{"task": long(65537)}), "too_large", "task", ""},
		{lead, "handoff_to_specialist", base(arguments{"priority": "urgent"}), "invalid", "priority", "critical, high, normal, low"},
		{lead, "handoff_to_specialist", base(arguments{"deadline_minutes": -5}), "invalid", "deadline_minutes", "1 to"},
		{lead, "handoff_to_specialist", base(arguments{"wait_ms": 600000}), "invalid", "wait_ms", "20000"},
		{lead, "handoff_to_specialist", base(arguments{"result_schema": "{"}), "malformed", "result_schema", "JSON"},
		{lead, "handoff_to_specialist", base(arguments{"variables": []string{"branch"}}), "malformed", "variables[0]", "NAME=VALUE"},
		{lead, "handoff_to_specialist", base(arguments{"facts": "one fact"}), "invalid", "facts", "list"},
		{reader, "handoff_to_specialist", base(nil), "forbidden", "role", "token"},
		{lead, "check_handoff", arguments{"ticket": "the login form"}, "invalid", "ticket", ""},
		{lead, "check_handoff", arguments{"ticket": "00000000-0000-4000-8000-000000000000"}, "not_found", "ticket", "without a ticket"},
		{coder, "check_handoff", arguments{"ticket": other["ticket"]}, "not_found", "ticket", "without a ticket"},
		{lead, "check_handoff", arguments{"ticket": mine["ticket"], "view": "everything"}, "invalid", "view", "short, why, history, result"},
		{lead, "answer_handoff", arguments{"ticket": mine["ticket"], "text": "go on"}, "illegal", "ticket", "asks nothing"},
		{lead, "answer_handoff", arguments{"ticket": mine["ticket"], "decision": "approve"}, "invalid", "decision", "no approval"},
		{tester, "cancel_handoff", arguments{"ticket": mine["ticket"]}, "not_found", "ticket", ""},
		{lead, "next_handoff", arguments{"agent": "coder"}, "forbidden", "agent", ""},
		{coder, "next_handoff", arguments{"lease_minutes": 600}, "invalid", "lease_minutes", "10 to 30"},
		{coder, "respond", arguments{"lease": mine["ticket"], "decision": "accept"}, "lease_invalid", "lease", "whole and unchanged"},
		{tester, "respond", arguments{"lease": held["lease"], "decision": "accept"}, "lease_invalid", "lease", ""},
		{coder, "respond", arguments{"lease": held["lease"], "decision": "yes"}, "invalid", "decision", "accept, reject"},
		{coder, "respond", arguments{"lease": held["lease"], "decision": "reject"}, "missing", "reason", ""},
		{coder, "respond", arguments{"lease": held["lease"], "decision": "need_context"}, "missing", "needs", "list"},
		{coder, "report", arguments{"lease": held["lease"], "percent": 400}, "invalid", "percent", "0 to 100"},
		{coder, "finish", arguments{"lease": held["lease"], "result": "done"}, "illegal", "lease", "Accept the handoff first"},
		{coder, "finish", arguments{"lease": held["lease"], "status": "failed"}, "missing", "summary", "next attempt"},
		{coder, "finish", arguments{"lease": held["lease"], "result": arguments{"files": 3}}, "invalid", "result", "text"},
	} {
		text, data := c.who.Call(c.tool, c.arguments)
		field, _ := data["field"].(string)
		if data["code"] != c.code || field != c.field || !strings.Contains(text, c.words) || !strings.HasPrefix(text, c.code+": ") {
			t.Errorf("%s %.120v: %v %q: %.300s", c.tool, c.arguments, data["code"], field, text)
		}
	}
	if after := w.run("list", "-o", "json"); after != before {
		t.Errorf("changed:\n%s\n%s", before, after)
	}
	for method, params := range map[string]arguments{
		"tasks/get":    {"taskId": other["ticket"]},
		"tasks/cancel": {"taskId": "next.15.nonsense"},
		"tasks/update": {"taskId": mine["ticket"], "inputResponses": arguments{"q-7": arguments{"action": "accept", "content": arguments{"answer": "x"}}}},
	} {
		if _, failure := coder.Send(method, params); failure == nil {
			t.Errorf("%s: no error", method)
		}
	}
	r, _ := http.NewRequest(http.MethodPost, w.url+"/mcp", strings.NewReader("{}"))
	r.Header.Set("Authorization", "Bearer hnd_unknown")
	if answer, err := http.DefaultClient.Do(r); err != nil || answer.StatusCode != http.StatusUnauthorized {
		t.Errorf("a stranger: %v, %v", answer.Status, err)
	}
}

// TestTools: a host pays for the list with each conversation.
func TestTools(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	list, failure := w.client("lead", httpgateway.RoleAgent, nil).Send("tools/list", nil)
	if failure != nil {
		t.Fatal(failure)
	}
	tools := list["tools"].([]any)
	body, _ := json.Marshal(tools)
	if len(tools) != 10 || len(body) > 10<<10 {
		t.Errorf("%d tools of %d bytes", len(tools), len(body))
	}
	w.register("coder", "writes code\nin Go")
	server, failure := w.client("again", httpgateway.RoleAgent, nil).Send("server/discover", nil)
	if instructions := fmt.Sprint(server["instructions"]); failure != nil || !strings.Contains(instructions, "when you lack the expertise") || !strings.Contains(instructions, "- coder: writes code⏎in Go") {
		t.Errorf("%v %v", server, failure)
	}
	t.Logf("%d tools, %d bytes, some %d tokens", len(tools), len(body), len(body)/4)
	for _, tool := range tools {
		checkBounds(t, tool.(map[string]any)["name"].(string), tool.(map[string]any)["inputSchema"].(map[string]any))
	}
}

// checkBounds: every text, list and number of a schema has a maximum, and no object is open but context.
func checkBounds(t *testing.T, at string, schema map[string]any) {
	t.Helper()
	bound := map[string]string{"string": "maxLength", "array": "maxItems", "integer": "maximum", "number": "maximum"}[fmt.Sprint(schema["type"])]
	if bound != "" && schema[bound] == nil && schema["enum"] == nil {
		t.Errorf("%s has no %s", at, bound)
	}
	if schema["type"] == "object" && schema["additionalProperties"] != false && !strings.HasSuffix(at, ".context") {
		t.Errorf("%s is open", at)
	}
	properties, _ := schema["properties"].(map[string]any)
	for name, property := range properties {
		checkBounds(t, at+"."+name, property.(map[string]any))
	}
}

// TestWaits: a task that waits for work wakes in another process than the one that began it, and while
// nothing polls, nothing is claimed.
func TestWaits(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.register("coder", "writes code in Go", "code")
	token := w.token("coder", httpgateway.RoleAgent)
	coder := testmcp.HTTP(t, w.url+"/mcp", token, testmcp.Tasks())
	result, failure := coder.Send("tools/call", map[string]any{"name": "next_handoff", "arguments": map[string]any{}})
	if failure != nil {
		t.Fatal(failure)
	}
	id := result["taskId"].(string)
	for range 3 {
		if task, _ := coder.Send("tasks/get", map[string]any{"taskId": id}); task["status"] != "working" || task["pollIntervalMs"] == nil {
			t.Fatalf("%v", task)
		}
	}
	ticket := strings.TrimSpace(w.run("submit", "--to", "coder", "--reason", "a test", "--task", "write it"))
	if status := w.run("history", ticket, "-o", "json"); strings.Contains(status, `"claimed"`) {
		t.Errorf("claimed while nothing asked:\n%s", status)
	}
	w.restart()
	task := testmcp.HTTP(t, w.url+"/mcp", token, testmcp.Tasks()).Task(id, "completed")
	data := task["result"].(map[string]any)["structuredContent"].(map[string]any)
	if data["ticket"] != ticket {
		t.Errorf("%v", data)
	}
	if text := testmcp.Text(task["result"].(map[string]any)); !strings.Contains(text, "write it") || !strings.Contains(text, "decision accept") {
		t.Error(text)
	}
	if _, failure := coder.Send("tasks/cancel", map[string]any{"taskId": id}); failure != nil {
		t.Error(failure)
	}

	// The hand-off of a person is a task for an agent that may see it, too, and its cancellation ends it.
	lead := w.client("lead", httpgateway.RoleAgent, testmcp.Tasks())
	given, _ := lead.Send("tools/call", map[string]any{"name": "handoff_to_specialist", "arguments": map[string]any{"specialist_type": "code", "task": "another", "reason": "a test"}})
	if _, failure := lead.Send("tasks/cancel", map[string]any{"taskId": given["taskId"]}); failure != nil {
		t.Error(failure)
	}
	if task := lead.Task(given["taskId"].(string), "cancelled"); task["result"] != nil {
		t.Errorf("%v", task)
	}
}

// TestElicitation: check_handoff asks the user of a host that can, once, and answers with the reply.
func TestElicitation(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.register("lead", "leads")
	w.register("coder", "writes code in Go", "code")
	lead, coder := w.client("lead", httpgateway.RoleAgent, map[string]any{"elicitation": map[string]any{}}), w.client("coder", httpgateway.RoleAgent, nil)
	_, given := lead.Call("handoff_to_specialist", map[string]any{"specialist_type": "coder", "task": "deploy it", "reason": "a test"})
	held := coder.Next()
	coder.Call("respond", map[string]any{"lease": held["lease"], "decision": "need_permission", "needs": []string{"to push to main"}})
	check := map[string]any{"name": "check_handoff", "arguments": map[string]any{"ticket": given["ticket"]}}
	asked, failure := lead.Send("tools/call", check)
	requests, _ := asked["inputRequests"].(map[string]any)
	if failure != nil || asked["resultType"] != "input_required" || !strings.Contains(fmt.Sprint(requests["q-1"]), "to push to main") {
		t.Fatalf("%v %v", asked, failure)
	}
	check["inputResponses"] = map[string]any{"q-1": map[string]any{"action": "decline"}}
	if declined, _ := lead.Send("tools/call", check); !strings.Contains(testmcp.Text(declined), "to push to main") {
		t.Errorf("declined: %v", declined)
	}
	check["inputResponses"] = map[string]any{"q-1": map[string]any{"action": "accept", "content": map[string]any{"permit": true}}}
	if _, failure := lead.Send("tools/call", check); failure != nil {
		t.Error(failure)
	}
	if again := coder.Next(); again["ticket"] != given["ticket"] || again["lease"] == held["lease"] {
		t.Errorf("%v", again)
	}
}

// TestCrowd: two hundred calls at once are each answered, calls that are cut off change nothing but their
// own handoff, and an answer that is not read holds up no other.
func TestCrowd(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.register("coder", "writes code in Go", "code")
	token := w.token("lead", httpgateway.RoleAgent)
	lead := testmcp.HTTP(t, w.url+"/mcp", token, testmcp.Tasks())
	call := func(ctx context.Context, n int) ([]byte, error) {
		return lead.Raw(ctx, "tools/call", map[string]any{"name": "handoff_to_specialist", "arguments": map[string]any{"specialist_type": "coder", "task": fmt.Sprint("task ", n), "reason": "a test", "key": fmt.Sprint("key-", n)}})
	}
	// A client that never reads the answer.
	silent, err := net.Dial("tcp", strings.TrimPrefix(w.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	fmt.Fprintf(silent, "POST /mcp HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %s\r\nContent-Type: application/json\r\nContent-Length: 100000\r\n\r\n{", token)
	var group errgroup.Group
	for n := range 200 {
		group.Go(func() error {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			if n%10 == 0 { // cut off; the same key is sent again
				go func() { time.Sleep(time.Duration(n) * 50 * time.Microsecond); cancel() }()
				_, _ = call(ctx, n)
			}
			answer, err := call(t.Context(), n)
			if err != nil || !bytes.Contains(answer, []byte(`"taskId"`)) {
				return fmt.Errorf("%d: %w %s", n, err, answer)
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		t.Error(err)
	}
	var list struct{ Handoffs []any }
	if err := json.Unmarshal([]byte(w.run("list", "--limit", "1000", "-o", "json")), &list); err != nil || len(list.Handoffs) != 200 {
		t.Errorf("%d handoffs, %v", len(list.Handoffs), err)
	}
}

// TestOtherClient drives the tools with a client of other authors, which has no tasks.
func TestOtherClient(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.register("coder", "writes code in Go", "code")
	token := w.token("lead", httpgateway.RoleAgent)
	other, err := mcpclient.NewStreamableHttpClient(w.url+"/mcp", transport.WithHTTPHeaders(map[string]string{"Authorization": "Bearer " + token}))
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	ctx := t.Context()
	if err := other.Start(ctx); err != nil {
		t.Fatal(err)
	}
	begin := othermcp.InitializeRequest{}
	begin.Params.ProtocolVersion, begin.Params.ClientInfo = othermcp.LATEST_PROTOCOL_VERSION, othermcp.Implementation{Name: "test", Version: "1"}
	server, err := other.Initialize(ctx, begin)
	if err != nil || !strings.Contains(server.Instructions, "find_agent") || !strings.Contains(server.Instructions, "- coder: writes code in Go") {
		t.Fatalf("%+v, %v", server, err)
	}
	list, err := other.ListTools(ctx, othermcp.ListToolsRequest{})
	if err != nil || len(list.Tools) != 10 {
		t.Fatalf("%+v, %v", list, err)
	}
	request := othermcp.CallToolRequest{}
	request.Params.Name, request.Params.Arguments = "handoff_to_specialist", map[string]any{"specialist_type": "coder", "task": "write it", "reason": "it is code"}
	answer, err := other.CallTool(ctx, request)
	if err != nil || answer.IsError {
		t.Fatalf("%+v, %v", answer, err)
	}
	if text := answer.Content[0].(othermcp.TextContent).Text; !strings.Contains(text, "Handed off as ticket") {
		t.Error(text)
	}
}
