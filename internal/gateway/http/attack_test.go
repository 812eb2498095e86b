package httpgateway

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/agenthandoff/handoff/api"
	"github.com/agenthandoff/handoff/internal/testworld"
	"github.com/agenthandoff/handoff/protocol"
)

// endless is a body without an end.
type endless struct{}

func (endless) Read(b []byte) (int, error) {
	for i := range b {
		b[i] = ' '
	}
	return len(b), nil
}

// TestRefusals: each bad request is refused by its field, and changes nothing.
func TestRefusals(t *testing.T) {
	var log lockedBuffer
	w := newWorld(t, Config{Log: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))})
	w.register("lead", "coder", "stranger")
	ticket := w.submit("one")
	held := w.claim()
	path, missing := "/v1/handoffs/"+ticket, "/v1/handoffs/"+protocol.NewTicket()
	lead, coder, stranger := w.token("lead", RoleAgent), w.token("coder", RoleAgent), w.token("stranger", RoleAgent)
	reader := w.token("watcher", RoleReader)
	var zipped bytes.Buffer
	z := gzip.NewWriter(&zipped)
	_, _ = io.WriteString(z, pkg)
	_ = z.Close()
	cancelBody := func(n int) string { return `{"reason":"` + strings.Repeat("x", n-len(`{"reason":""}`)) + `"}` }
	for _, test := range []struct {
		name, token, method, path string
		body                      io.Reader
		headers                   []string
		status                    int
		code                      protocol.Code
		field                     string
	}{
		{"no token", "", "GET", path, nil, nil, 401, codeUnauthorized, "Authorization"},
		{"a wrong token", "handoff_wrong", "GET", path, nil, nil, 401, codeUnauthorized, "Authorization"},
		{"a token in the query", "", "GET", path + "?token=" + lead, nil, nil, 401, codeUnauthorized, "Authorization"},
		{"no token, and no route", "", "GET", "/v2", nil, nil, 401, codeUnauthorized, "Authorization"},
		{"no route", lead, "GET", "/v2", nil, nil, 404, protocol.CodeNotFound, "path"},
		{"another method", lead, "DELETE", path, nil, nil, 405, codeMethod, "method"},
		{"a handoff of others", stranger, "GET", path, nil, nil, 404, protocol.CodeNotFound, "ticket"},
		{"no handoff", stranger, "GET", missing, nil, nil, 404, protocol.CodeNotFound, "ticket"},
		{"events of others", stranger, "GET", path + "/events", nil, nil, 404, protocol.CodeNotFound, "ticket"},
		{"no ticket", lead, "GET", "/v1/handoffs/one", nil, nil, 422, protocol.CodeInvalid, "ticket"},
		{"an act of the target", coder, "POST", path + "/cancel", strings.NewReader(`{}`), nil, 403, protocol.CodeForbidden, "ticket"},
		{"a reader that submits", reader, "POST", "/v1/handoffs", strings.NewReader(pkg), nil, 403, protocol.CodeForbidden, "role"},
		{"a reader that cancels", reader, "POST", path + "/cancel", nil, nil, 403, protocol.CodeForbidden, "role"},
		{"a reader that claims", reader, "POST", "/v1/agents/coder/claims", strings.NewReader(`{"lease_ms":60000}`), nil, 403, protocol.CodeForbidden, "role"},
		{"a reader that reports", reader, "POST", "/v1/lease/fail", strings.NewReader(`{"code":"x"}`), []string{"Handoff-Lease: " + held.Lease}, 403, protocol.CodeForbidden, "role"},
		{"an agent that intervenes", coder, "POST", "/v1/ops/Reroute", strings.NewReader(`{"ticket":"` + ticket + `","to":"stranger"}`), nil, 403, protocol.CodeForbidden, "role"},
		{"the queue of another", stranger, "POST", "/v1/agents/coder/claims", strings.NewReader(`{"lease_ms":60000}`), nil, 403, protocol.CodeForbidden, "agent"},
		{"the inbox of another", stranger, "GET", "/v1/inbox?agent=coder", nil, nil, 403, protocol.CodeForbidden, "agent"},
		{"the source of another", stranger, "POST", "/v1/handoffs", strings.NewReader(strings.Replace(pkg, "{", `{"source":"lead",`, 1)), nil, 403, protocol.CodeForbidden, "source"},
		{"the lease of another", stranger, "POST", "/v1/lease/complete", strings.NewReader(`{"body":1}`), []string{"Handoff-Lease: " + held.Lease}, 403, protocol.CodeLeaseInvalid, "lease"},
		{"no lease", coder, "POST", "/v1/lease/complete", strings.NewReader(`{"body":1}`), nil, 422, protocol.CodeMissing, headerLease},
		{"a lease in the path", coder, "POST", "/v1/lease/" + held.Lease + "/complete", strings.NewReader(`{"body":1}`), nil, 404, protocol.CodeNotFound, "path"},
		{"a lease in the body", coder, "POST", "/v1/lease/fail", strings.NewReader(`{"lease":"x","code":"x"}`), []string{"Handoff-Lease: " + held.Lease}, 400, protocol.CodeMalformed, "lease"},
		{"another host", lead, "GET", path, nil, []string{"Host: evil.example"}, 421, codeHost, "Host"},
		{"another site", lead, "GET", path, nil, []string{"Origin: https://evil.example"}, 403, protocol.CodeForbidden, "Origin"},
		{"no site", lead, "GET", path, nil, []string{"Origin: null"}, 403, protocol.CodeForbidden, "Origin"},
		{"a page of another site", lead, "POST", path + "/cancel", nil, []string{"Sec-Fetch-Site: cross-site"}, 403, protocol.CodeForbidden, "Sec-Fetch-Site"},
		{"a compressed body", lead, "POST", "/v1/handoffs", &zipped, []string{"Content-Encoding: gzip"}, 415, codeMedia, "Content-Encoding"},
		{"a form", lead, "POST", "/v1/handoffs", strings.NewReader(pkg), []string{"Content-Type: application/x-www-form-urlencoded"}, 415, codeMedia, "Content-Type"},
		{"no body", lead, "POST", "/v1/handoffs", nil, nil, 400, protocol.CodeMalformed, "body"},
		{"a body that is none", lead, "GET", path, strings.NewReader(`{}`), nil, 400, protocol.CodeMalformed, "body"},
		{"a list", lead, "POST", path + "/cancel", strings.NewReader(`[]`), nil, 400, protocol.CodeMalformed, "body"},
		{"half a body", lead, "POST", path + "/cancel", strings.NewReader(`{"reason":`), nil, 400, protocol.CodeMalformed, "reason"},
		{"two bodies", lead, "POST", path + "/cancel", strings.NewReader(`{} {}`), nil, 400, protocol.CodeMalformed, ""},
		{"an unknown field", lead, "POST", path + "/cancel", strings.NewReader(`{"nonsense":1}`), nil, 400, protocol.CodeUnknownField, "nonsense"},
		{"a field twice", lead, "POST", path + "/cancel", strings.NewReader(`{"reason":"a","reason":"b"}`), nil, 400, protocol.CodeMalformed, "reason"},
		{"the ticket of another in the body", lead, "POST", path + "/cancel", strings.NewReader(`{"ticket":"` + ticket + `"}`), nil, 400, protocol.CodeMalformed, "ticket"},
		{"a key twice", lead, "POST", "/v1/handoffs", strings.NewReader(strings.Replace(pkg, "{", `{"key":"a",`, 1)), []string{"Idempotency-Key: b"}, 400, protocol.CodeMalformed, "key"},
		{"an unknown parameter", lead, "GET", path + "?nonsense=1", nil, nil, 400, protocol.CodeUnknownField, "nonsense"},
		{"a parameter of a post", lead, "POST", path + "/cancel?reason=x", nil, nil, 400, protocol.CodeUnknownField, "reason"},
		{"an unknown parameter of a stream", lead, "GET", path + "/events?nonsense=1", nil, nil, 400, protocol.CodeUnknownField, "nonsense"},
		{"a wait beyond the limit", lead, "GET", path + "?wait_ms=20001", nil, nil, 422, protocol.CodeInvalid, "wait_ms"},
		{"an unknown until", lead, "GET", path + "?until=soon", nil, nil, 422, protocol.CodeInvalid, "until"},
		{"an operation with a route", lead, "POST", "/v1/ops/Submit", strings.NewReader(`{}`), nil, 404, protocol.CodeNotFound, "path"},
		{"an id that is none", lead, "GET", path + "/events", nil, []string{"Last-Event-ID: one"}, 400, protocol.CodeMalformed, headerLastEvent},
		{"an id of the future", lead, "GET", path + "/events", nil, []string{"Last-Event-ID: " + ticket + ":99999"}, 422, protocol.CodeInvalid, "after"},
		{"an id of another", lead, "GET", path + "/events", nil, []string{"Last-Event-ID: " + protocol.NewTicket() + ":1"}, 422, protocol.CodeInvalid, "after"},
		{"a body without an end", lead, "POST", path + "/cancel", endless{}, nil, 413, protocol.CodeTooLarge, "body"},
		{"64 MiB", lead, "POST", path + "/cancel", bytes.NewReader(make([]byte, 64<<20)), nil, 413, protocol.CodeTooLarge, "body"},
		{"a byte beyond the limit", lead, "POST", path + "/cancel", strings.NewReader(cancelBody(64<<10 + 1)), nil, 413, protocol.CodeTooLarge, "body"},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := &world{TB: t, url: w.url}
			a, err := w.try(test.token, test.method, test.path, test.body, test.headers...)
			if err != nil {
				t.Skipf("the connection was closed before the answer: %v", err)
			}
			p := a.problem(t)
			if p.Status != test.status || p.Code != test.code || p.Field != test.field {
				t.Errorf("%d %s %s %q, want %d %s %s", p.Status, p.Code, p.Field, p.Detail, test.status, test.code, test.field)
			}
		})
	}
	hidden, none := w.send(stranger, "GET", path, nil).problem(t), w.send(stranger, "GET", missing, nil).problem(t)
	if strings.Replace(hidden.Detail, ticket, missing[len(missing)-len(ticket):], 1) != none.Detail {
		t.Errorf("%q differs from %q", hidden.Detail, none.Detail)
	}
	if state, err := w.b.Status(t.Context(), ticket); err != nil || state.CancelRequested || state.Phase != protocol.Working {
		t.Errorf("the handoff is %s, %v", state.Phase, err)
	}
	for _, secret := range []string{lead, coder, stranger, reader, held.Lease} {
		if strings.Contains(log.String(), secret) {
			t.Error("the log has a token or a lease")
		}
	}
	if !strings.Contains(log.String(), "unauthorized") {
		t.Error("the log has no refusal")
	}
}

// try is send, with the error of a connection that is closed.
func (w *world) try(token, method, path string, body io.Reader, headers ...string) (a answer, err error) {
	r, err := http.NewRequestWithContext(w.Context(), method, w.url+path, body)
	if err != nil {
		return a, err
	}
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	if body != nil {
		r.Header.Set("Content-Type", "application/json")
	}
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		if r.Header.Set(name, value); name == "Host" {
			r.Host = value
		}
	}
	if _, ok := body.(endless); ok {
		return doWith(http.DefaultTransport, r)
	}
	return do(w, r)
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(b)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// TestLargeBodies: the largest package passes, and bodies beyond a megabyte have places.
func TestLargeBodies(t *testing.T) {
	w := newWorld(t, Config{})
	w.register("lead", "coder")
	body := func(n int) string {
		head, tail := `{"target":{"agent":"coder"},"reason":"the plan is ready","context":{"variables":{"v":"`, `"}},"task":{"description":"write it"}}`
		return head + strings.Repeat("x", n-len(head)-len(tail)) + tail
	}
	w.g.large.each = 0
	if p := w.post("lead", "/v1/handoffs", body(largeBody+1)).problem(t); p.Code != protocol.CodeBusy || p.Status != http.StatusTooManyRequests {
		t.Errorf("without a place: %+v", p)
	}
	want[view](t, w.post("lead", "/v1/handoffs", body(largeBody)), http.StatusAccepted)
	w.g.large.each = 1
	want[view](t, w.post("lead", "/v1/handoffs", body(8<<20)), http.StatusAccepted)
	if p := w.post("lead", "/v1/handoffs", body(protocol.PackageBytesMax+1)).problem(t); p.Code != protocol.CodeTooLarge {
		t.Errorf("a byte beyond the largest package: %+v", p)
	}
	if taken, _ := w.g.large.inUse(); taken != 0 {
		t.Errorf("%d places are taken", taken)
	}
}

// TestPlaces: a caller has its places, and all callers together have theirs.
func TestPlaces(t *testing.T) {
	p := places{what: "waits", all: 3, each: 2}
	var releases []func()
	for _, caller := range []string{"a", "a", "b"} {
		release, err := p.take(caller)
		if err != nil {
			t.Fatal(err)
		}
		releases = append(releases, release)
	}
	for _, caller := range []string{"a", "c"} {
		if _, err := p.take(caller); err == nil {
			t.Errorf("%s gets a place", caller)
		}
	}
	releases[0]()
	if _, err := p.take("a"); err != nil {
		t.Error(err)
	}
	if taken, refused := p.inUse(); taken != 3 || refused != 2 {
		t.Errorf("%d taken, %d refused", taken, refused)
	}
}

// TestIdleStreams: streams and waits beyond those of a caller are refused, and others go on.
func TestIdleStreams(t *testing.T) {
	const each = 100
	w := newWorld(t, Config{})
	w.g.waits.each, w.g.ping = each, 10*time.Millisecond
	w.register("lead", "coder")
	ticket := w.submit("one")
	lead := w.token("lead", RoleAgent)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var streams []*http.Response
	for range each {
		r, _ := http.NewRequestWithContext(ctx, "GET", w.url+"/v1/handoffs/"+ticket+"/events", nil)
		r.Header.Set("Authorization", "Bearer "+lead)
		response, err := http.DefaultClient.Do(r)
		if err != nil || response.StatusCode != http.StatusOK {
			t.Fatal(response, err)
		}
		streams = append(streams, response)
		defer response.Body.Close()
	}
	for _, path := range []string{"/events", "?wait_ms=1000"} {
		a := w.get("lead", "/v1/handoffs/"+ticket+path)
		if p := a.problem(t); p.Code != protocol.CodeBusy || a.header.Get("Retry-After") == "" {
			t.Errorf("%s: %+v", path, p)
		}
	}
	want[view](t, w.get("lead", "/v1/handoffs/"+ticket), http.StatusOK)
	want[view](t, w.get("coder", "/v1/handoffs/"+ticket+"?wait_ms=1"), http.StatusOK)
	if err := RevokeToken(w.file, "lead"); err != nil {
		t.Fatal(err)
	}
	for _, response := range streams { // a revoked token has no streams
		_, _ = io.Copy(io.Discard, response.Body)
	}
	w.eventually("end of the streams", func() bool { return w.g.Load().Waits == 0 })
}

// TestSlow: a client that sends its request too slowly is cut off, and the end of a gateway ends
// its waits with an answer.
func TestSlow(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Config{})
	w.register("lead", "coder")
	ticket := w.submit("one")
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- w.g.Serve(ctx, listener) }()
	w.url = "http://" + listener.Addr().String()
	lead := "Authorization: Bearer " + w.token("lead", RoleAgent)
	var slow sync.WaitGroup
	for name, begun := range map[string]string{
		"head":        "GET / HTTP/1.1\r\nHost: localhost\r\nX: ",
		"body":        "POST /v1/handoffs HTTP/1.1\r\nHost: localhost\r\n" + lead + "\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n{",
		"second head": "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\nGET / HTTP/1.1\r\nX: ",
	} {
		slow.Go(func() {
			conn, err := net.Dial("tcp", listener.Addr().String())
			if err != nil {
				t.Error(err)
				return
			}
			defer conn.Close()
			_, _ = io.WriteString(conn, begun)
			go func() { // a byte a second, until the connection is closed
				for err := error(nil); err == nil; testworld.Pause(t.Context(), time.Second) {
					_, err = io.WriteString(conn, " ")
				}
			}()
			_ = conn.SetReadDeadline(time.Now().Add(3 * readTimeout))
			if _, err := io.ReadAll(conn); errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("a client with a slow %s is not cut off", name)
			}
		})
	}
	slow.Wait()
	waited := make(chan answer, 1)
	go func() { waited <- w.get("lead", "/v1/handoffs/"+ticket+"?wait_ms=20000") }()
	w.eventually("wait", func() bool { return w.g.Load().Waits == 1 })
	stop()
	if v := want[view](t, <-waited, http.StatusOK); v.Ready {
		t.Error("the end of the gateway makes a wait ready")
	}
	if err := <-served; err != nil {
		t.Error(err)
	}
}

// TestTokens: a file that others may read has no tokens, a change counts at once, and each role has
// its rights.
func TestTokens(t *testing.T) {
	w := newWorld(t, Config{})
	token := w.token("lead", RoleAgent)
	if err := os.Chmod(w.file, 0o640); err != nil {
		t.Fatal(err)
	}
	if a := w.get("lead", "/v1/inbox"); a.status != http.StatusForbidden {
		t.Errorf("a file that others may read: %d %s", a.status, a.body)
	}
	if _, err := OpenTokens(w.file); err == nil {
		t.Error("a file that others may read is opened")
	}
	if err := os.Chmod(w.file, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := w.g.cfg.Tokens.Caller(token); err != nil {
		t.Error(err)
	}
	if text, err := os.ReadFile(w.file); err != nil || strings.Contains(string(text), token) {
		t.Errorf("the file has the token, or %v", err)
	}
	if _, err := NewToken(w.file, Grant{Name: "lead", Role: RoleAgent}); err == nil {
		t.Error("two tokens of a name")
	}
	if _, err := NewToken(w.file, Grant{Name: "x", Role: "king"}); err == nil {
		t.Error("an unknown role")
	}
	if err := RevokeToken(w.file, "lead"); err != nil {
		t.Fatal(err)
	}
	if a := w.send(token, "GET", "/v1/inbox", nil); a.status != http.StatusUnauthorized {
		t.Errorf("a revoked token: %d", a.status)
	}
	for _, test := range []struct {
		grant Grant
		want  api.Caller
	}{
		{Grant{Name: "coder", Role: RoleAgent}, api.Agent("coder")},
		{Grant{Name: "team", Role: RoleAgent, Agents: []string{"coder", "tester"}}, api.Caller{Name: "coder",
			Roles: api.RoleReader | api.RoleSubmitter | api.RoleWorker, Agents: []string{"coder", "tester"}, Sources: []string{"coder", "tester"}}},
		{Grant{Name: "ci", Role: RoleSubmitter}, api.Caller{Name: "ci", Roles: api.RoleSubmitter, Sources: []string{"ci"}}},
		{Grant{Name: "watcher", Role: RoleReader}, api.Caller{Name: "watcher", Roles: api.RoleReader}},
		{Grant{Name: "human", Role: RoleAdmin}, api.Local("human")},
	} {
		got := test.grant.caller()
		if got.Name != test.want.Name || got.Roles != test.want.Roles || strings.Join(got.Agents, " ") != strings.Join(test.want.Agents, " ") ||
			strings.Join(got.Sources, " ") != strings.Join(test.want.Sources, " ") {
			t.Errorf("%s is %+v, want %+v", test.grant.Name, got, test.want)
		}
	}
}

// TestBasePath: a proxy serves a gateway below a path, and under its own name.
func TestBasePath(t *testing.T) {
	w := newWorld(t, Config{BasePath: "/handoff", Hosts: []string{"handoff.example.com"}})
	w.register("lead", "coder")
	a := w.send(w.token("lead", RoleAgent), "POST", "/handoff/v1/handoffs", strings.NewReader(pkg), "Host: handoff.example.com")
	if v := want[view](t, a, http.StatusAccepted); a.header.Get("Location") != "/handoff/v1/handoffs/"+v.State.Ticket {
		t.Error(a.header.Get("Location"))
	}
	if a := w.get("lead", "/handoff/healthz"); a.status != http.StatusOK {
		t.Errorf("health under another host: %d", a.status)
	}
	if a := w.get("lead", "/handoff/v1/openapi.json", "Host: handoff.example.com:443"); a.status != http.StatusOK || !strings.Contains(string(a.body), `"url":"/handoff"`) {
		t.Errorf("OpenAPI: %d", a.status)
	}
	if _, err := New(w.b, Config{Tokens: w.g.cfg.Tokens, BasePath: "handoff/"}); err == nil {
		t.Error("a base path without a slash")
	}
}
