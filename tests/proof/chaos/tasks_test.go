//go:build proof

package chaos

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	httpgateway "github.com/agenthandoff/handoff/internal/gateway/http"
	"github.com/agenthandoff/handoff/internal/testworld"
	"github.com/agenthandoff/handoff/internal/testworld/testmcp"
)

// models is an engine and a gateway for hosts of models. Their clocks, and those of programs that run starts,
// jump together.
type models struct {
	*testing.T
	bin, dir, url, file string
	env                 []string
	gateway             *testworld.Process
	tokens              map[string]string
	ahead               time.Duration
}

// clocksOfModels builds the program for newModels.
func clocksOfModels(t *testing.T) string {
	t.Helper()
	if testworld.Race || !*clocks {
		t.Skip("clocks of tasks: it builds the standard library anew, which takes minutes; run it with -clocks, and without -race")
	}
	return skewedHandoff(t)
}

func newModels(t *testing.T, bin string, agents ...string) *models {
	t.Helper()
	ports, dir := testworld.Ports(t, 2), t.TempDir()
	nats, listen := fmt.Sprintf("nats://127.0.0.1:%d", ports[0]), fmt.Sprintf("127.0.0.1:%d", ports[1])
	m := &models{T: t, bin: bin, dir: dir, url: "http://" + listen + "/mcp", file: filepath.Join(dir, "callers.json"), tokens: map[string]string{},
		env: []string{testworld.ClockEnv + "=" + dir, testworld.ClockName + "=all", "NATS_URL=" + nats}}
	testworld.Start(t, "engine", m.env, m.bin, "dev", "--data", filepath.Join(dir, "data"), "--port", fmt.Sprint(ports[0]), "--no-http", "--fsync", "interval").AwaitOutput(t.Context(), "ready")
	m.gateway = testworld.Start(t, "gateway", m.env, m.bin, "serve", "--tokens", m.file, "--http", listen)
	m.gateway.AwaitOutput(t.Context(), "ready")
	for _, agent := range agents {
		m.run("agents", "put", agent)
	}
	// The engine looks at its clock when a timer ends, or when a worker beats: timers do not jump.
	testworld.Start(t, "bystander", m.env, m.bin, "work", "--agent", "bystander", "--lease", "4s", "--", "cat")
	return m
}

// run runs a command, and returns its output.
func (m *models) run(args ...string) string {
	m.Helper()
	cmd := exec.Command(m.bin, args...)
	cmd.Env = append(os.Environ(), m.env...)
	out, err := cmd.Output()
	if err != nil {
		m.Fatalf("handoff %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(string(out))
}

// jump moves all clocks ahead.
func (m *models) jump(by time.Duration) {
	m.Helper()
	m.ahead += by
	if err := testworld.SetClock(m.dir, "all", int(m.ahead/time.Second)); err != nil {
		m.Fatal(err)
	}
}

func (m *models) overHTTP(agent string, capabilities testmcp.Object) *testmcp.Client {
	m.Helper()
	if m.tokens[agent] == "" {
		token, err := httpgateway.NewToken(m.file, httpgateway.Grant{Name: agent, Role: httpgateway.RoleAgent})
		if err != nil {
			m.Fatal(err)
		}
		m.tokens[agent] = token
	}
	return testmcp.HTTP(m, m.url, m.tokens[agent], capabilities)
}

func (m *models) overStdio(agent string, capabilities testmcp.Object) *testmcp.Client {
	m.Helper()
	return testmcp.Program(m, capabilities, m.env, m.bin, "mcp", "--agent", agent)
}

// TestKilledCoder: lead hands a task to coder and goes idle; coder asks, and is answered; the session of coder
// is killed in the middle of the work, and its lease ends. A supervisor offers the handoff again, and another
// session of coder completes it. Nobody intervenes.
func TestKilledCoder(t *testing.T) {
	bin := clocksOfModels(t)
	for _, c := range []struct {
		name         string
		capabilities testmcp.Object
		open         func(m *models, agent string, capabilities testmcp.Object) *testmcp.Client
	}{
		{"HTTP", testmcp.Tasks(), (*models).overHTTP},
		{"stdio", testmcp.Tasks(), (*models).overStdio},
		{"HTTP without tasks", nil, (*models).overHTTP},
		{"stdio without tasks", nil, (*models).overStdio},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			m := newModels(t, bin, "lead", "coder")
			lead, coder := c.open(m, "lead", c.capabilities), c.open(m, "coder", c.capabilities)

			given := lead.Tool("handoff_to_specialist", testmcp.Object{"specialist_type": "coder", "task": "write the login form", "reason": "it is code"})
			ticket, _ := given["taskId"].(string)
			if c.capabilities == nil {
				ticket = testmcp.Content(given)["ticket"].(string)
			}
			first := coder.Next()
			coder.Call("respond", testmcp.Object{"lease": first["lease"], "decision": "need_context", "needs": []string{"which branch?"}})
			if c.capabilities == nil {
				lead.Call("answer_handoff", testmcp.Object{"ticket": ticket, "text": "main"})
			} else {
				lead.Task(ticket, "input_required")
				lead.Must("tasks/update", testmcp.Object{"taskId": ticket, "inputResponses": testmcp.Object{"q-1": testmcp.Object{"action": "accept", "content": testmcp.Object{"answer": "main"}}}})
			}
			killed := coder.Next()
			coder.Call("respond", testmcp.Object{"lease": killed["lease"], "decision": "accept"})
			coder.Call("report", testmcp.Object{"lease": killed["lease"], "percent": 40, "message": "reading"})
			coder.Kill()

			other := c.open(m, "coder", c.capabilities)
			if taken := other.Tool("next_handoff", nil); c.capabilities == nil && testmcp.Content(taken)["claimed"] != false {
				t.Errorf("taken before the lease has ended: %v", taken)
			}
			m.jump(16 * time.Minute) // the lease is of 15; a supervisor mostly looks after a minute
			second := other.Next()
			if second["ticket"] != ticket || second["lease"] == killed["lease"] {
				t.Fatalf("%v", second)
			}
			other.Call("respond", testmcp.Object{"lease": second["lease"], "decision": "accept"})
			other.Call("finish", testmcp.Object{"lease": second["lease"], "result": "the form is there"})
			if c.capabilities != nil {
				if done := lead.Task(ticket, "completed")["result"].(testmcp.Object); !strings.Contains(testmcp.Text(done), "the form is there") || done["isError"] == true {
					t.Errorf("%v", done)
				}
			}
			if _, data := lead.Call("check_handoff", testmcp.Object{"ticket": ticket, "view": "result"}); data["result"] != "the form is there" {
				t.Errorf("%v", data)
			}
			var life struct {
				Ticket   string
				Attempts []struct {
					Agent, Holder, How string
				}
			}
			shown := m.run("show", ticket, "-o", "json")
			if err := json.Unmarshal([]byte(shown), &life); err != nil {
				t.Fatal(err)
			}
			if all := life.Attempts; life.Ticket != ticket || len(all) != 2 || all[0].How != "lost" || all[1].How != "completed" || all[0].Holder == all[1].Holder {
				t.Errorf("%+v", life)
			}
			page := m.run("show", ticket)
			for _, words := range []string{"which branch?", "main", "reading", "lease_lost by supervisor", "the form is there"} {
				if !strings.Contains(page, words) {
					t.Errorf("no %q in its life:\n%s", words, page)
				}
			}
		})
	}
}

// TestWaitingTask: a task of next_handoff waits for ten minutes, and wakes: for the host that began it, and for
// another process of it. While nobody polls, nothing is claimed.
func TestWaitingTask(t *testing.T) {
	m := newModels(t, clocksOfModels(t), "one", "another", "nobody")
	begin := func(c *testmcp.Client) string { return c.Tool("next_handoff", nil)["taskId"].(string) }
	one, another, nobody := m.overHTTP("one", testmcp.Tasks()), m.overStdio("another", testmcp.Tasks()), m.overHTTP("nobody", testmcp.Tasks())
	ids := map[string]string{"one": begin(one), "another": begin(another), "nobody": begin(nobody)}
	one.Task(ids["one"], "working")
	another.Kill()
	another = m.overStdio("another", testmcp.Tasks())
	for range 10 {
		m.jump(time.Minute)
		one.Task(ids["one"], "working")
		another.Task(ids["another"], "working")
	}
	tickets := map[string]string{}
	for agent := range ids {
		tickets[agent] = m.run("submit", "--to", agent, "--reason", "a test", "--task", "do it")
	}
	m.jump(10 * time.Minute)
	woken := func(agent string, c *testmcp.Client) {
		t.Helper()
		if data := testmcp.Content(c.Task(ids[agent], "completed")["result"].(testmcp.Object)); data["ticket"] != tickets[agent] {
			t.Errorf("%s: %v", agent, data)
		}
	}
	woken("one", one)
	woken("another", another)
	if life := m.run("history", tickets["nobody"], "-o", "json"); strings.Contains(life, `"claimed"`) || !strings.Contains(life, `"offered"`) {
		t.Errorf("claimed while nobody polled:\n%s", life)
	}
	woken("nobody", nobody)
}

// TestTaskOfADay: a task outlives the gateway that made it by a day.
func TestTaskOfADay(t *testing.T) {
	m := newModels(t, clocksOfModels(t), "lead", "coder")
	lead, coder := m.overHTTP("lead", testmcp.Tasks()), m.overHTTP("coder", testmcp.Tasks())
	id := lead.Tool("handoff_to_specialist", testmcp.Object{"specialist_type": "coder", "task": "write it", "reason": "a test"})["taskId"].(string)
	m.gateway.Kill()
	m.jump(24 * time.Hour)
	m.gateway.Restart()
	lead.Task(id, "working")
	held := coder.Next()
	if held["ticket"] != id {
		t.Fatalf("%v", held)
	}
	coder.Call("respond", testmcp.Object{"lease": held["lease"], "decision": "accept"})
	coder.Call("finish", testmcp.Object{"lease": held["lease"], "result": "written a day later"})
	if done := lead.Task(id, "completed"); !strings.Contains(fmt.Sprint(done["result"]), "written a day later") {
		t.Errorf("%v", done)
	}
}
