package telemetry

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"runtime"
	"strings"
	"testing"
)

func TestAddress(t *testing.T) {
	for addr, want := range map[string]string{
		":9090": "127.0.0.1:9090", "9090": "127.0.0.1:9090", "127.0.0.1:9090": "127.0.0.1:9090", ":0": "127.0.0.1:0",
		"0.0.0.0:9090": "0.0.0.0:9090", "[::1]:9090": "[::1]:9090", "metrics.example:9090": "metrics.example:9090",
		"here": "", ":": "", ":99999": "", ":-1": "", "a:b:c": "", ":http": "",
	} {
		got, err := ListenAddress(addr)
		if got != want || (err == nil) != (want != "") {
			t.Errorf("%q is %q (%v), want %q", addr, got, err, want)
		}
	}
}

func listen(t *testing.T) *Server {
	t.Helper()
	s, err := Listen(t.Context(), ":0", NewMetrics(), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func get(t *testing.T, url, accept string) (code int, body string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Accept", accept)
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, string(text)
}

// TestHealth checks that a failed check is named, and that a process is ready once it has started
// and every check passes.
func TestHealth(t *testing.T) {
	s := listen(t)
	is := func(path string, wantCode int, want string) {
		t.Helper()
		if code, body := get(t, s.URL()+path, "*/*"); code != wantCode || body != want {
			t.Errorf("%s is %d %q, want %d %q", path, code, body, wantCode, want)
		}
	}
	is("/healthz", 200, "ok\n")
	is("/readyz", 503, "start: this process is still starting\n")
	var wrong error
	s.AddReadinessCheck("engine", func(context.Context) error { return wrong })
	s.AddReadinessCheck("index", func(context.Context) error { return nil })
	s.MarkStarted()
	is("/readyz", 200, "ok\n")
	wrong = errors.New("does not answer")
	is("/readyz", 503, "engine: does not answer\n")
	is("/healthz", 200, "ok\n")
	s.AddLivenessCheck("worker", func(context.Context) error { return wrong })
	is("/healthz", 503, "worker: does not answer\n")

	_, body := get(t, s.URL()+"/readyz", "application/json")
	var said healthReport
	if err := json.Unmarshal([]byte(body), &said); err != nil {
		t.Fatal(err)
	}
	if said.OK || len(said.Checks) != 2 || said.Checks[0] != (checkResult{Name: "engine", Problem: "does not answer"}) || !said.Checks[1].OK {
		t.Errorf("as JSON: %s", body)
	}
}

// TestMetricsAreServed checks the format of /metrics.
func TestMetricsAreServed(t *testing.T) {
	s := listen(t)
	code, body := get(t, s.URL()+"/metrics", "text/plain")
	for _, want := range []string{"# TYPE handoff_appends_total counter\nhandoff_appends_total 0\n", "go_goroutines ", "process_cpu_seconds_total "} {
		if code != 200 || !strings.Contains(body, want) {
			t.Errorf("%d: no %q in\n%s", code, want, body)
		}
	}
	if code, _ := get(t, s.URL()+"/debug/pprof/", ""); code != 404 {
		t.Errorf("/debug/pprof is served: %d", code)
	}
}

// TestCloseLeavesNothing checks that Close ends all goroutines and frees the port.
func TestCloseLeavesNothing(t *testing.T) {
	s, err := Listen(t.Context(), ":0", NewMetrics(), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	if code, _ := get(t, s.URL()+"/healthz", ""); code != 200 {
		t.Errorf("it answers %d", code)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	stacks := make([]byte, 1<<20)
	if all := string(stacks[:runtime.Stack(stacks, true)]); strings.Contains(all, "telemetry.Listen") {
		t.Errorf("a goroutine is left:\n%s", all)
	}
	again, err := Listen(t.Context(), strings.TrimPrefix(s.URL(), "http://"), NewMetrics(), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	if err := again.Close(); err != nil {
		t.Error(err)
	}
}

// TestPortInUse checks that the error names the address.
func TestPortInUse(t *testing.T) {
	s := listen(t)
	addr := strings.TrimPrefix(s.URL(), "http://")
	_, err := Listen(t.Context(), addr, NewMetrics(), slog.New(slog.DiscardHandler))
	if err == nil || !strings.Contains(err.Error(), addr) {
		t.Errorf("a port that is taken: %v", err)
	}
}
