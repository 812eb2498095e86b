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
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
)

const (
	// checkPatience is how long a health check may take, all its parts together.
	checkPatience = 3 * time.Second
	// readPatience and answerPatience bound a request from its side and from ours.
	readPatience   = 5 * time.Second
	answerPatience = 15 * time.Second
	// readersMax is how many may read the figures side by side.
	readersMax = 4
	// closePatience is how long a request under way may take when the process ends.
	closePatience = time.Second
)

// Check tells what is wrong, in words for a person; nil is nothing. It keeps to
// the time that ctx has.
type Check func(ctx context.Context) error

// Server answers over HTTP how this process is: /metrics for Prometheus,
// /healthz whether it lives and its loops turn (if not, restart it), /readyz
// whether it can do its work (if not, wait, or look at what it names).
type Server struct {
	listener net.Listener
	http     http.Server
	served   chan error // the end of Serve

	mu          sync.Mutex
	live, ready []named
	started     bool
}

type named struct {
	name  string
	check Check
}

// Address completes an address to listen on. A port alone, with a colon or
// without, is one on this machine alone: figures tell which agent works on what. An
// operator shows them to a network with 0.0.0.0:9090 or a name.
func Address(addr string) (string, error) {
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

// Listen begins to answer at an address (see Address). Until Started is called
// the process counts as alive and not ready. Close ends it.
func Listen(ctx context.Context, addr string, metrics *Metrics, log *slog.Logger) (*Server, error) {
	addr, err := Address(addr)
	if err != nil {
		return nil, err
	}
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("cannot show figures at %s: %w", addr, err)
	}
	s := &Server{listener: listener, served: make(chan error, 1)}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(metrics.registry, promhttp.HandlerOpts{
		MaxRequestsInFlight: readersMax, ErrorHandling: promhttp.ContinueOnError, ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelWarn)}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, r *http.Request) { s.answer(w, r, s.checksOf(false)) })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, r *http.Request) { s.answer(w, r, s.checksOf(true)) })
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = fmt.Fprint(w, "handoff: /metrics /healthz /readyz\n") // the client may have gone
	})
	s.http = http.Server{Handler: mux, ReadTimeout: readPatience, WriteTimeout: answerPatience,
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug)}
	go func() { s.served <- s.http.Serve(listener) }() // joined by Close
	return s, nil
}

// URL is where the server answers.
func (s *Server) URL() string { return "http://" + s.listener.Addr().String() }

// Live adds a check of /healthz: that a loop turns.
func (s *Server) Live(name string, check Check) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.live = append(s.live, named{name, check})
}

// Ready adds a check of /readyz.
func (s *Server) Ready(name string, check Check) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ready = append(s.ready, named{name, check})
}

// Started says that all checks are there.
func (s *Server) Started() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.started = true
}

// Close lets the requests under way finish for a moment, and ends the server.
func (s *Server) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), closePatience)
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

func (s *Server) checksOf(ready bool) []named {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !ready {
		return s.live
	}
	if !s.started {
		return append([]named{{"start", func(context.Context) error { return errors.New("this process is still starting") }}}, s.ready...)
	}
	return s.ready
}

// report is the body of /healthz and /readyz in JSON.
type report struct {
	OK     bool          `json:"ok"`
	Checks []checkReport `json:"checks"`
}

type checkReport struct {
	Name    string `json:"name"`
	OK      bool   `json:"ok"`
	Problem string `json:"problem,omitempty"`
}

// answer runs the checks side by side: 200 and "ok", or 503 and what is wrong,
// in JSON for who accepts that, else a line for each problem.
func (s *Server) answer(w http.ResponseWriter, r *http.Request, checks []named) {
	ctx, cancel := context.WithTimeout(r.Context(), checkPatience)
	defer cancel()
	all := report{OK: true, Checks: make([]checkReport, len(checks))}
	var running sync.WaitGroup
	for i, c := range checks {
		running.Go(func() {
			all.Checks[i] = checkReport{Name: c.name, OK: true}
			if err := c.check(ctx); err != nil {
				all.Checks[i] = checkReport{Name: c.name, Problem: err.Error()}
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
		body, _ = json.Marshal(all) // of strings and booleans: cannot fail
	}
	w.Header().Set("Content-Type", contentType)
	w.Header().Set("Cache-Control", "no-store")
	if !all.OK {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	_, _ = w.Write(body) // the client may have gone
}

func (r report) text() []byte {
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
