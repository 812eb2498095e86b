package httpgateway

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/agenthandoff/handoff/api"
	"github.com/agenthandoff/handoff/api/apitest"
	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/brokertest"
	"github.com/agenthandoff/handoff/internal/index"
	"github.com/agenthandoff/handoff/internal/index/ask"
	"github.com/agenthandoff/handoff/internal/jetstream"
	"github.com/agenthandoff/handoff/internal/testworld"
	"github.com/agenthandoff/handoff/protocol"
)

func TestMain(m *testing.M) { testworld.Main(m) }

// world is a gateway over a real engine, with tokens.
type world struct {
	testing.TB
	b      *broker.Broker
	engine *jetstream.Engine
	g      *Gateway
	url    string
	file   string            // of the tokens
	tokens map[string]string // by name
}

func newWorld(t testing.TB, cfg Config) *world {
	t.Helper()
	_, engine := testworld.Engine(t)
	w := &world{TB: t, b: brokertest.Over(t, engine), engine: engine, file: filepath.Join(t.TempDir(), "tokens.json"), tokens: map[string]string{}}
	var err error
	if cfg.Tokens, err = OpenTokens(w.file); err != nil {
		t.Fatal(err)
	}
	if w.g, err = New(w.b, cfg); err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(w.g)
	t.Cleanup(server.Close)
	w.url = server.URL
	return w
}

// token returns the token of a name, which is new if need be. A name without a role is an agent.
func (w *world) token(name string, role Role) string {
	w.Helper()
	if w.tokens[name] == "" {
		token, err := NewToken(w.file, Grant{Name: name, Role: role})
		if err != nil {
			w.Fatal(err)
		}
		w.tokens[name] = token
	}
	return w.tokens[name]
}

func (w *world) register(agents ...string) {
	w.Helper()
	brokertest.Register(w, w.b, agents...)
	for _, agent := range agents {
		if err := w.b.EnsureQueue(w.Context(), agent); err != nil {
			w.Fatal(err)
		}
	}
}

// answer is an HTTP answer that was read.
type answer struct {
	status int
	header http.Header
	body   []byte
}

// problem returns the refusal that an answer is.
func (a answer) problem(t testing.TB) (p problem) {
	t.Helper()
	if err := json.Unmarshal(a.body, &p); err != nil || a.header.Get("Content-Type") != "application/problem+json" || p.Status != a.status {
		t.Errorf("%d %q is no problem: %v", a.status, a.body, err)
	}
	return p
}

// send sends a request, with headers as "Name: value".
func (w *world) send(token, method, path string, body io.Reader, headers ...string) answer {
	w.Helper()
	a, err := w.try(token, method, path, body, headers...)
	if err != nil {
		w.Fatal(err)
	}
	return a
}

func do(t testing.TB, r *http.Request) (answer, error) {
	return doWith(checked{t}, r)
}

func doWith(transport http.RoundTripper, r *http.Request) (answer, error) {
	client := http.Client{Transport: transport}
	response, err := client.Do(r)
	if err != nil {
		return answer{}, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	return answer{response.StatusCode, response.Header, body}, err
}

// get and post are send, by the token of a name.
func (w *world) get(name, path string, headers ...string) answer {
	w.Helper()
	return w.send(w.token(name, RoleAgent), "GET", path, nil, headers...)
}

func (w *world) post(name, path, body string, headers ...string) answer {
	w.Helper()
	var reader io.Reader
	if body != "" {
		reader = strings.NewReader(body)
	}
	return w.send(w.token(name, RoleAgent), "POST", path, reader, headers...)
}

// want fails unless an answer has a status, and reads it.
func want[A any](t testing.TB, a answer, status int) (v A) {
	t.Helper()
	if a.status != status {
		t.Fatalf("status %d, want %d: %s", a.status, status, a.body)
	}
	if err := json.Unmarshal(a.body, &v); err != nil {
		t.Fatalf("%s: %v", a.body, err)
	}
	return v
}

// client is api.Gateway over the routes of a gateway.
type client struct {
	w     *world
	token string
}

// Do implements api.Gateway: it takes the request of an operation apart for its route.
func (c *client) Do(ctx context.Context, operation string, _ time.Duration, request []byte) ([]byte, error) {
	rt, chain := routeOf(operation)
	request = bytes.ReplaceAll(request, []byte(`"source":"",`), nil) // the encoder of Go writes it
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(request, &fields); err != nil {
		return nil, err
	}
	text := func(name string) (text string) {
		_ = json.Unmarshal(fields[name], &text)
		delete(fields, name)
		return text
	}
	path, query := rt.path, url.Values{}
	for _, name := range rt.inPath {
		path = strings.Replace(path, "{"+name+"}", text(name), 1)
	}
	if chain {
		query.Set(paramChain, "1")
	}
	header := http.Header{"Authorization": {"Bearer " + c.token}}
	if strings.HasPrefix(path, "/v1/lease/") {
		header.Set(headerLease, text(fieldLease))
	}
	var body []byte
	switch rt.body {
	case "":
		for name, value := range fields {
			query.Set(name, strings.Trim(string(value), `"`))
		}
	case "*":
		if operation == "Approve" || operation == "Deny" {
			fields["approve"] = json.RawMessage(map[bool]string{true: "true", false: "false"}[operation == "Approve"])
		}
		body, _ = json.Marshal(fields)
	default:
		body = fields[rt.body]
	}
	r, err := http.NewRequestWithContext(ctx, rt.method, c.w.url+path+"?"+query.Encode(), bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	if r.Header = header; body != nil {
		header.Set("Content-Type", "application/json")
	}
	a, err := do(c.w, r)
	switch {
	case err != nil:
		return nil, errors.Join(broker.ErrUnreachable, err)
	case a.status == http.StatusNoContent:
		return nil, protocol.Errorf(protocol.CodeNothingToClaim, "", "nothing to claim")
	case a.status >= 400:
		p := a.problem(c.w)
		return nil, api.ErrorFrom(&protocol.Error{Code: p.Code, Field: p.Field, Message: p.Detail, Clock: p.Clock, RetryAfterMS: p.RetryAfterMS})
	case operation == "Submit":
		v := want[view](c.w, a, a.status)
		return json.Marshal(v.State.State)
	}
	return a.body, nil
}

// Patient implements api.Gateway.
func (c *client) Patient(context.Context, error) bool { return false }

// routeOf returns the route of an operation.
func routeOf(operation string) (rt route, chain bool) {
	for _, rt := range allRoutes() {
		if rt.name == operation || operation == "Deny" && rt.op == "Approve" {
			return rt, false
		}
		if rt.chain == operation {
			return rt, true
		}
	}
	panic("no route for " + operation)
}

// TestAPI: a client passes the suite of package api.
func TestAPI(t *testing.T) {
	apitest.Run(t, func(t *testing.T) apitest.Fixture {
		w := newWorld(t, Config{})
		speak := func(agent string) api.AgentOperations { return api.Over(&client{w, w.token(agent, RoleAgent)}) }
		return apitest.Fixture{Broker: w.b,
			Source: func(_ *testing.T, agent string) api.Source { return speak(agent) },
			Holder: func(_ *testing.T, agent string) api.Holder { return speak(agent) },
		}
	})
}

// serveIndex keeps an index of the world's engine, which answers questions over it, until the test ends.
func (w *world) serveIndex() {
	w.Helper()
	ix, err := index.Open(filepath.Join(w.TempDir(), "index.db"), nil)
	if err != nil {
		w.Fatal(err)
	}
	ctx, cancel := context.WithCancel(w.Context())
	var parts sync.WaitGroup
	parts.Go(func() { _ = ix.Run(ctx, w.engine) })
	parts.Go(func() { _ = w.engine.Serve(ctx, ask.Verbs(ix)) })
	w.Cleanup(func() {
		cancel()
		parts.Wait()
		_ = ix.Close()
	})
}
