// Package httpgateway serves the operations of package api over HTTP, to programs with a token.
//
// The operations come from api.Operations. Those for sources and workers have routes of their own
// (routes); any other is asked for by its name, with POST /v1/ops/NAME. Requests and answers are the
// JSON of the operations. A refusal is an application/problem+json with the code of its
// *protocol.Error. OpenAPI describes all of it, from the same rows.
//
// A Gateway decides nothing and keeps nothing that may be lost: any number of them serve one engine.
package httpgateway

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/agenthandoff/handoff/api"
	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/explain"
	mcpgateway "github.com/agenthandoff/handoff/internal/gateway/mcp"
	webpage "github.com/agenthandoff/handoff/internal/gateway/page"
	"github.com/agenthandoff/handoff/internal/index/ask"
	"github.com/agenthandoff/handoff/protocol"
)

// Config configures a Gateway. Only Tokens must be set.
type Config struct {
	// Tokens are the callers.
	Tokens *Tokens
	// BasePath is the path under which a proxy serves the gateway, such as /handoff; empty is none.
	BasePath string
	// Hosts are the names that a request may have as its Host, without ports. Default: those of the
	// loopback interface.
	Hosts []string
	// Index answers questions that are not about one ticket. Default: the index over the engine.
	Index ask.Answers
	// Secure reports that clients come by TLS, to this process or to a proxy before it.
	Secure bool
	// ReadOnly removes the acts from the page.
	ReadOnly bool
	// Command is the command line of an action, which the page shows; nil shows none.
	Command func(explain.Action) string
	// Log receives a line for each refusal (debug) and fault (warn); nil discards. It has no tokens,
	// leases or queries.
	Log *slog.Logger
}

// Gateway serves the operations over HTTP. It is an http.Handler, safe for concurrent use.
type Gateway struct {
	cfg     Config
	api     *api.Service
	handler http.Handler
	ping    time.Duration

	waits, large places

	waiting context.Context // ends when waits are to end
	endAll  context.CancelFunc

	answered, refused, failed atomic.Int64
}

// rereadInterval is how often a stream reads without a hint. A wait ends before, and the next one reads:
// of 1,000 waiting clients another read would be much of the cost.
const rereadInterval = api.WaitMax

// New returns a Gateway to a broker, which the caller closes.
func New(b *broker.Broker, cfg Config) (*Gateway, error) {
	if b == nil || cfg.Tokens == nil {
		return nil, errors.New("http gateway: a broker and tokens are needed")
	}
	if cfg.BasePath != "" && (!strings.HasPrefix(cfg.BasePath, "/") || strings.HasSuffix(cfg.BasePath, "/")) {
		return nil, protocol.Errorf(protocol.CodeInvalid, "base_path", "is %q; it begins with / and does not end with one", cfg.BasePath)
	}
	if len(cfg.Hosts) == 0 {
		cfg.Hosts = []string{"localhost", "127.0.0.1", "::1"}
	}
	cfg.Log = cmp.Or(cfg.Log, slog.New(slog.DiscardHandler))
	g := &Gateway{cfg: cfg, ping: pingInterval}
	g.waits = places{what: "waits and streams", all: waitsMax, each: waitsEach}
	g.large = places{what: "large bodies", all: largeMax, each: largeEach}
	g.waiting, g.endAll = context.WithCancel(context.Background())
	g.api = api.New(b, api.Config{Remote: true, Pause: g.pause, RereadInterval: rereadInterval, Index: cfg.Index})
	openAPI, err := OpenAPI(cfg.BasePath)
	if err != nil {
		return nil, err
	}
	models, err := mcpgateway.New(g.api, mcpgateway.Config{Caller: g.callerOf, Log: cfg.Log})
	if err != nil {
		return nil, err
	}
	view := hintsRoute
	view.stream = hints(viewPause)
	pages := webpage.New(webpage.Config{Service: g.api, Sessions: cfg.Tokens, BasePath: cfg.BasePath, Secure: cfg.Secure, ReadOnly: cfg.ReadOnly,
		Command: cfg.Command, Status: statusOf, Log: cfg.Log, Events: func(w http.ResponseWriter, r *http.Request, who func(*http.Request) (api.Caller, error)) {
			g.serve(who, &view).ServeHTTP(w, r)
		}})
	mux := http.NewServeMux()
	for _, rt := range allRoutes() {
		mux.Handle(rt.method+" "+rt.path, g.serve(g.caller, &rt))
	}
	mux.Handle("/ui", pages)
	mux.Handle("/ui/", pages)
	mux.Handle("/mcp", g.answer(g.caller, g.forModels(models.Handler())))
	mux.Handle("GET /v1/openapi.json", g.answer(g.caller, func(w http.ResponseWriter, r *http.Request, _ api.Caller) error {
		_ = g.send(w, r, http.StatusOK, "application/json", openAPI)
		return nil
	}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, r *http.Request) {
		_ = g.send(w, r, http.StatusOK, "application/json", []byte(`{"ok":true}`))
	})
	mux.Handle("/", g.answer(g.caller, unknown(mux)))
	g.handler = http.StripPrefix(cfg.BasePath, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := g.admit(r); err != nil {
			g.refuse(w, r, "", err)
			return
		}
		mux.ServeHTTP(w, r)
	}))
	return g, nil
}

// ServeHTTP implements http.Handler.
func (g *Gateway) ServeHTTP(w http.ResponseWriter, r *http.Request) { g.handler.ServeHTTP(w, r) }

// Limits of a connection. The longest answer is a wait of api.WaitMax.
const (
	headerTimeout = 10 * time.Second
	readTimeout   = time.Minute
	writeTimeout  = api.WaitMax + time.Minute
	idleTimeout   = 2 * time.Minute
	headerBytes   = 32 << 10
	drainTimeout  = 5 * time.Second
)

// Serve answers on a listener until ctx ends, and then those under way, for 5 s at most. Waits and
// streams end at once: their clients ask again.
func (g *Gateway) Serve(ctx context.Context, listener net.Listener) error {
	server := http.Server{Handler: g, ReadHeaderTimeout: headerTimeout, ReadTimeout: readTimeout, WriteTimeout: writeTimeout,
		IdleTimeout: idleTimeout, MaxHeaderBytes: headerBytes, ErrorLog: slog.NewLogLogger(g.cfg.Log.Handler(), slog.LevelDebug)}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }() // joined below
	select {
	case err := <-served:
		return err
	case <-ctx.Done():
	}
	g.endAll()
	draining, cancel := context.WithTimeout(context.WithoutCancel(ctx), drainTimeout)
	defer cancel()
	err := server.Shutdown(draining)
	if err != nil {
		err = server.Close()
	}
	if ended := <-served; !errors.Is(ended, http.ErrServerClosed) {
		err = errors.Join(err, ended)
	}
	return err
}

// pause lets a wait go on until the gateway stops.
func (g *Gateway) pause(ctx context.Context, pause func(context.Context)) {
	pausing, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(g.waiting, cancel)()
	pause(pausing)
}

// crossOrigin refuses what the page of another site sends.
var crossOrigin = http.NewCrossOriginProtection()

// admit refuses requests that a page of another site has caused, or that are for another host.
func (g *Gateway) admit(r *http.Request) error {
	host := r.Host
	if name, _, err := net.SplitHostPort(r.Host); err == nil {
		host = name
	}
	if !slices.ContainsFunc(g.cfg.Hosts, func(name string) bool { return strings.EqualFold(name, strings.Trim(host, "[]")) }) && r.URL.Path != "/healthz" {
		return protocol.Errorf(codeHost, "Host", "is none of this gateway")
	}
	if origin := r.Header.Get("Origin"); origin != "" {
		if from, err := url.Parse(origin); err != nil || from.Host != r.Host {
			return protocol.Errorf(protocol.CodeForbidden, "Origin", "is another site's")
		}
	}
	if err := crossOrigin.Check(r); err != nil {
		return protocol.Errorf(protocol.CodeForbidden, "Sec-Fetch-Site", "is another site's")
	}
	return nil
}

// identify authenticates a request.
type identify func(*http.Request) (api.Caller, error)

// caller identifies the caller of a request by its token.
func (g *Gateway) caller(r *http.Request) (api.Caller, error) { return g.callerOf(r.Header) }

func (g *Gateway) callerOf(header http.Header) (api.Caller, error) {
	token, ok := strings.CutPrefix(header.Get("Authorization"), "Bearer ")
	if !ok {
		return api.Caller{}, protocol.Errorf(codeUnauthorized, "Authorization", "is missing: send Bearer and a token of this gateway")
	}
	return g.cfg.Tokens.Caller(token)
}

// answerer answers a request of a caller, or returns the refusal.
type answerer func(w http.ResponseWriter, r *http.Request, caller api.Caller) error

// answer authenticates a request, and answers it.
func (g *Gateway) answer(who identify, do answerer) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		caller, err := who(r)
		if err == nil {
			err = do(w, r, caller)
		}
		if err != nil {
			g.refuse(w, r, caller.Name, err)
		}
	})
}

// forModels passes requests to the gateway for hosts of models. A call may wait, so each takes a place
// among the waits.
func (g *Gateway) forModels(next http.Handler) answerer {
	return func(w http.ResponseWriter, r *http.Request, caller api.Caller) error {
		release, err := g.waits.take(caller.Name)
		if err != nil {
			return err
		}
		defer release()
		g.answered.Add(1)
		next.ServeHTTP(w, r)
		return nil
	}
}

// serve answers the requests of a route by its operation, or with its stream.
func (g *Gateway) serve(who identify, rt *route) http.Handler {
	return g.answer(who, func(w http.ResponseWriter, r *http.Request, caller api.Caller) error {
		if rt.stream != nil {
			return g.stream(w, r, caller, who, rt)
		}
		return g.operate(w, r, caller, rt)
	})
}

// operate answers a request by one operation.
func (g *Gateway) operate(w http.ResponseWriter, r *http.Request, caller api.Caller, rt *route) error {
	op := api.OperationOf(rt.op)
	body, err := g.body(w, r, caller.Name, op.RequestBytesMax)
	if err != nil {
		return err
	}
	request, chain, err := requestOf(rt, r, body)
	if err != nil {
		return err
	}
	if op.WaitMax > 0 && waits(request) {
		release, err := g.waits.take(caller.Name)
		if err != nil {
			return err
		}
		defer release()
	}
	do, session := op.Do, g.api.As(caller)
	switch {
	case rt.do != nil:
		do = rt.do
	case chain:
		do = api.OperationOf(rt.chain).Do
	}
	answer, err := do(r.Context(), session, request)
	if err != nil {
		return err
	}
	return g.reply(w, r, session, answer)
}

// waits reports whether a request waits for something to happen.
func waits(request []byte) bool {
	var wait struct {
		MS int64 `json:"wait_ms"`
	}
	return json.Unmarshal(request, &wait) == nil && wait.MS > 0
}

// unknown refuses a request that has no route. Without a token nothing is revealed about routes.
func unknown(mux *http.ServeMux) answerer {
	return func(w http.ResponseWriter, r *http.Request, _ api.Caller) error {
		for _, method := range []string{http.MethodGet, http.MethodPost} {
			other := r.Clone(r.Context())
			other.Method = method
			if _, pattern := mux.Handler(other); pattern != "/" {
				w.Header().Set("Allow", method)
				return protocol.Errorf(codeMethod, "method", "is %s, and this path takes %s", protocol.CutText(r.Method, 16), method)
			}
		}
		return protocol.Errorf(protocol.CodeNotFound, "path", "is no route of this gateway; GET /v1/openapi.json lists them")
	}
}

// Load is the work of a gateway, for metrics.
type Load struct {
	Waits, LargeBodies        int64 // under way
	Answered, Refused, Failed int64 // requests, since the start
	Busy                      int64 // of the refused, those beyond a limit
}

// Load returns it. It is safe to call at any time.
func (g *Gateway) Load() Load {
	waits, waitsRefused := g.waits.inUse()
	large, largeRefused := g.large.inUse()
	return Load{Waits: waits, LargeBodies: large, Answered: g.answered.Load(), Refused: g.refused.Load(), Failed: g.failed.Load(), Busy: waitsRefused + largeRefused}
}
