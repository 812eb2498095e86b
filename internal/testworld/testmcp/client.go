// Package testmcp is a host of models for tests. It speaks the Model Context Protocol of 2026-07-28 in raw
// JSON-RPC: without a session, with all of its capabilities in each request, over HTTP or with a program.
package testmcp

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"sync/atomic"
	"testing"
	"time"

	"github.com/agenthandoff/handoff/internal/testworld"
)

// Object is an object in JSON.
type Object = map[string]any

// Tasks are the capabilities of a client with the extension Tasks.
func Tasks() Object {
	return Object{"extensions": Object{"io.modelcontextprotocol/tasks": Object{}}}
}

// patience bounds the wait for a server that starts, and for the status of a task. A supervisor finds each handoff
// without a worker in five minutes, by its next sweep.
const patience = 6 * time.Minute

// Client is one host. Its requests over HTTP may be concurrent.
type Client struct {
	// Before is called before each request, unless it is nil.
	Before func()

	t            testing.TB
	capabilities Object
	id           atomic.Int64
	ask          func(ctx context.Context, method string, params Object, body []byte) ([]byte, error)
	kill         func()
}

// HTTP returns a client of the server at url, such as http://127.0.0.1:7070/mcp.
func HTTP(t testing.TB, url, token string, capabilities Object) *Client {
	alive, kill := context.WithCancel(t.Context())
	// Each request has a connection of its own: one to a killed server would fail late.
	h := &overHTTP{alive, url, token, http.Client{Transport: &http.Transport{DisableKeepAlives: true}}}
	return &Client{t: t, capabilities: capabilities, ask: h.ask, kill: kill}
}

type overHTTP struct {
	alive      context.Context
	url, token string
	client     http.Client
}

// ask sends a request, with the headers that repeat parts of it. It repeats one that no server has received.
func (h *overHTTP) ask(ctx context.Context, method string, params Object, body []byte) ([]byte, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(h.alive, cancel)()
	for end := time.Now().Add(patience); ; testworld.Pause(ctx, 20*time.Millisecond) {
		r, err := http.NewRequestWithContext(ctx, http.MethodPost, h.url, bytes.NewReader(body))
		if err != nil {
			return nil, err
		}
		r.Header = http.Header{"Authorization": {"Bearer " + h.token}, "Content-Type": {"application/json"},
			"Accept": {"application/json, text/event-stream"}, "Mcp-Protocol-Version": {"2026-07-28"}, "Mcp-Method": {method}}
		for _, name := range []string{"name", "taskId"} {
			if value, ok := params[name].(string); ok {
				r.Header.Set("Mcp-Name", value)
			}
		}
		answer, err := h.client.Do(r)
		var unreached *net.OpError
		if errors.As(err, &unreached) && unreached.Op == "dial" && ctx.Err() == nil && time.Now().Before(end) {
			continue
		}
		if err != nil {
			return nil, err
		}
		defer answer.Body.Close()
		return io.ReadAll(answer.Body)
	}
}

// Program returns a client that starts a program, and speaks on its standard input and output. The end of the
// test ends the program, which must succeed then.
func Program(t testing.TB, capabilities Object, env []string, path string, args ...string) *Client {
	t.Helper()
	cmd := exec.Command(path, args...)
	cmd.Env, cmd.Stderr = append(os.Environ(), env...), os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	killed := false
	t.Cleanup(func() {
		_ = in.Close()
		if err := cmd.Wait(); err != nil && !killed {
			t.Errorf("%s: %v", path, err)
		}
	})
	lines := bufio.NewScanner(out)
	lines.Buffer(nil, 8<<20)
	ask := func(_ context.Context, _ string, _ Object, body []byte) ([]byte, error) {
		if _, err := in.Write(append(body, '\n')); err != nil {
			return nil, err
		}
		if !lines.Scan() {
			return nil, io.ErrUnexpectedEOF
		}
		return lines.Bytes(), nil
	}
	return &Client{t: t, capabilities: capabilities, ask: ask, kill: func() {
		killed = true
		_ = cmd.Process.Kill()
	}}
}

// Kill ends the host at once: its program by SIGKILL. Over HTTP its calls are cut off, and it makes no more.
func (c *Client) Kill() { c.kill() }

// Raw sends a request, and returns the message that answers it.
func (c *Client) Raw(ctx context.Context, method string, params Object) ([]byte, error) {
	if c.Before != nil {
		c.Before()
	}
	if params == nil {
		params = Object{}
	}
	capabilities := c.capabilities
	if capabilities == nil {
		capabilities = Object{}
	}
	params["_meta"] = Object{"io.modelcontextprotocol/protocolVersion": "2026-07-28",
		"io.modelcontextprotocol/clientInfo":         Object{"name": "test", "version": "1"},
		"io.modelcontextprotocol/clientCapabilities": capabilities}
	body, err := json.Marshal(Object{"jsonrpc": "2.0", "id": c.id.Add(1), "method": method, "params": params})
	if err != nil {
		return nil, err
	}
	return c.ask(ctx, method, params, body)
}

// Send sends a request, and returns its result or its error.
func (c *Client) Send(method string, params Object) (result, failure Object) {
	c.t.Helper()
	raw, err := c.Raw(c.t.Context(), method, params)
	if err != nil {
		c.t.Fatalf("%s: %v", method, err)
	}
	var message struct{ Result, Error Object }
	if err := json.Unmarshal(raw, &message); err != nil {
		c.t.Fatalf("%s: %s", method, raw)
	}
	return message.Result, message.Error
}

// Must sends a request that is to succeed, and returns its result.
func (c *Client) Must(method string, params Object) Object {
	c.t.Helper()
	result, failure := c.Send(method, params)
	if failure != nil {
		c.t.Fatalf("%s %v: %v", method, params, failure)
	}
	return result
}

// Tool calls a tool, and returns its result: a task, if the client knows tasks and the tool makes one.
func (c *Client) Tool(name string, arguments Object) Object {
	c.t.Helper()
	return c.Must("tools/call", Object{"name": name, "arguments": arguments})
}

// Call calls a tool, and returns the text of its answer and its structured content.
func (c *Client) Call(name string, arguments Object) (string, Object) {
	c.t.Helper()
	result := c.Tool(name, arguments)
	return Text(result), Content(result)
}

// Task polls a task until it has a status, and returns it.
func (c *Client) Task(id, status string) Object {
	c.t.Helper()
	for end := time.Now().Add(patience); ; testworld.Pause(c.t.Context(), 50*time.Millisecond) {
		task := c.Must("tasks/get", Object{"taskId": id})
		if task["status"] == status {
			return task
		}
		if time.Now().After(end) {
			c.t.Fatalf("not %s: %v", status, task)
		}
	}
}

// Next takes the next handoff of an agent, and returns the structured content of the answer. It waits for an
// offer. With a task it asks twice: a repeat finds the same claim.
func (c *Client) Next() Object {
	c.t.Helper()
	result := c.Tool("next_handoff", Object{"wait_ms": 20000})
	if id, _ := result["taskId"].(string); id != "" {
		result, _ = c.Task(id, "completed")["result"].(Object)
		again, _ := c.Task(id, "completed")["result"].(Object)
		if one, two := Content(result)["lease"], Content(again)["lease"]; one != two {
			c.t.Errorf("lease %v, then %v", one, two)
		}
	}
	for end := time.Now().Add(patience); Content(result)["claimed"] != true; result = c.Tool("next_handoff", Object{"wait_ms": 20000}) {
		if time.Now().After(end) {
			c.t.Fatalf("nothing was taken: %v", result)
		}
	}
	return Content(result)
}

// Text returns the text of a tool's result.
func Text(result Object) string {
	content, _ := result["content"].([]any)
	if len(content) == 0 {
		return fmt.Sprint(result)
	}
	block, _ := content[0].(Object)
	return fmt.Sprint(block["text"])
}

// Content returns the structured content of a tool's result.
func Content(result Object) Object {
	data, _ := result["structuredContent"].(Object)
	return data
}
