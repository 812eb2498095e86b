package telemetry

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
)

const (
	// checkTimeout is how long the checks of one request may take together.
	checkTimeout = 3 * time.Second
	// readTimeout and writeTimeout bound a request.
	readTimeout  = 5 * time.Second
	writeTimeout = 15 * time.Second
	// scrapesMax is how many scrapes are served at a time.
	scrapesMax = 4
	// shutdownTimeout is how long Close waits for requests under way.
	shutdownTimeout = time.Second
)

// check is a health check: its error has the reason, in words for a person. It obeys the
// deadline of ctx.
type check func(ctx context.Context) error

// Server serves metrics and health checks over HTTP: /metrics for Prometheus, /healthz for
// liveness (its loops run; restart the process if not) and /readyz for readiness (it can do its
// work; wait if not, or repair the problem that the answer names).
type Server struct {
	listener net.Listener
	http     http.Server
	served   chan error // the result of Serve

	mu          sync.Mutex
	live, ready []namedCheck
}

var starting = namedCheck{"start", func(context.Context) error { return errors.New("this process is still starting") }}

type namedCheck struct {
	name  string
	check check
}

// ListenAddress completes an address to listen on. A port alone, with or without a colon, is on
// the loopback address, because metrics name agents and their load. 0.0.0.0:9090 or a name listens
// on the network.
func ListenAddress(addr string) (string, error) {
	complete := addr
	if !strings.Contains(addr, ":") {
		complete = ":" + addr
	}
	host, port, err := net.SplitHostPort(complete)
	if err != nil {
		return "", fmt.Errorf("%q is no address to listen on; write :9090, or 0.0.0.0:9090 for all of this machine's addresses", addr)
	}
	if n, err := strconv.Atoi(port); err != nil || n < 0 || n > 65535 {
		return "", fmt.Errorf("%q is no address to listen on: a port is 0 (any) to 65535; write :9090", addr)
	}
	return net.JoinHostPort(cmp.Or(host, "127.0.0.1"), port), nil
}

// Listen starts a server on an address (see ListenAddress). Until MarkStarted is called the
// process is live and not ready. Close stops it.
func Listen(ctx context.Context, addr string, metrics *Metrics, log *slog.Logger) (*Server, error) {
	addr, err := ListenAddress(addr)
	if err != nil {
		return nil, err
	}
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("cannot serve metrics at %s: %w", addr, err)
	}
	s := &Server{listener: listener, served: make(chan error, 1), ready: []namedCheck{starting}}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(metrics.registry, promhttp.HandlerOpts{
		MaxRequestsInFlight: scrapesMax, ErrorHandling: promhttp.ContinueOnError, ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelWarn)}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, r *http.Request) { s.serveChecks(w, r, &s.live) })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, r *http.Request) { s.serveChecks(w, r, &s.ready) })
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = fmt.Fprint(w, "handoff: /metrics /healthz /readyz\n") // the client may have gone
	})
	s.http = http.Server{Handler: mux, ReadTimeout: readTimeout, WriteTimeout: writeTimeout,
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug)}
	go func() { s.served <- s.http.Serve(listener) }() // joined by Close
	return s, nil
}

// URL is the base URL of the server.
func (s *Server) URL() string { return "http://" + s.listener.Addr().String() }

// AddLivenessCheck adds a check to /healthz.
func (s *Server) AddLivenessCheck(name string, check check) { s.add(&s.live, namedCheck{name, check}) }

// AddReadinessCheck adds a check to /readyz.
func (s *Server) AddReadinessCheck(name string, check check) {
	s.add(&s.ready, namedCheck{name, check})
}

func (s *Server) add(to *[]namedCheck, c namedCheck) {
	s.mu.Lock()
	defer s.mu.Unlock()
	*to = append(slices.Clip(*to), c)
}

// MarkStarted lets the process be ready: all its checks have been added.
func (s *Server) MarkStarted() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ready = slices.DeleteFunc(slices.Clone(s.ready), func(c namedCheck) bool { return c.name == starting.name })
}

// Close stops the server. Requests under way have a second to finish.
func (s *Server) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), shutdownTimeout)
	defer cancel()
	err := s.http.Shutdown(ctx)
	if err != nil {
		err = s.http.Close()
	}
	if served := <-s.served; !errors.Is(served, http.ErrServerClosed) {
		err = errors.Join(err, served)
	}
	return err
}

// report is the body of /healthz and /readyz in JSON.
type healthReport struct {
	OK     bool          `json:"ok"`
	Checks []checkResult `json:"checks"`
}

type checkResult struct {
	Name    string `json:"name"`
	OK      bool   `json:"ok"`
	Problem string `json:"problem,omitempty"`
}

// serveChecks runs checks at the same time and answers 200 and "ok", or 503 and a line for each
// problem. A client that accepts JSON gets a healthReport.
func (s *Server) serveChecks(w http.ResponseWriter, r *http.Request, of *[]namedCheck) {
	s.mu.Lock()
	checks := *of
	s.mu.Unlock()
	ctx, cancel := context.WithTimeout(r.Context(), checkTimeout)
	defer cancel()
	all := healthReport{OK: true, Checks: make([]checkResult, len(checks))}
	var running sync.WaitGroup
	for i, c := range checks {
		running.Go(func() {
			all.Checks[i] = checkResult{Name: c.name, OK: true}
			if err := c.check(ctx); err != nil {
				all.Checks[i] = checkResult{Name: c.name, Problem: err.Error()}
			}
		})
	}
	running.Wait()
	for _, c := range all.Checks {
		all.OK = all.OK && c.OK
	}
	body := all.text()
	contentType := "text/plain; charset=utf-8"
	if strings.Contains(r.Header.Get("Accept"), "application/json") {
		contentType = "application/json"
		body, _ = json.Marshal(all) // strings and booleans: cannot fail
	}
	w.Header().Set("Content-Type", contentType)
	w.Header().Set("Cache-Control", "no-store")
	if !all.OK {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	_, _ = w.Write(body) // the client may have gone
}

func (r healthReport) text() []byte {
	if r.OK {
		return []byte("ok\n")
	}
	var b strings.Builder
	for _, c := range r.Checks {
		if !c.OK {
			fmt.Fprintf(&b, "%s: %s\n", c.Name, c.Problem)
		}
	}
	return []byte(b.String())
}
