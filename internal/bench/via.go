package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/agenthandoff/handoff/api"
	"github.com/agenthandoff/handoff/broker"
	httpgateway "github.com/agenthandoff/handoff/internal/gateway/http"
	natsgateway "github.com/agenthandoff/handoff/internal/gateway/nats"
	"github.com/agenthandoff/handoff/internal/jetstream"
	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/worker"
)

// Ways by which sources and workers reach the engine.
const (
	ViaInside = "inside" // they have connections of their own to the engine
	ViaNATS   = "nats"   // through a NATS gateway
	ViaHTTP   = "http"   // through an HTTP gateway, with a token for each agent
)

// Ways are all ways.
var Ways = []string{ViaInside, ViaNATS, ViaHTTP}

// Way has the figures of one way, as a share of the first way of the run.
type Way struct {
	Via              string  `json:"via"`
	PerSecond        float64 `json:"per_second"`
	CPUPerHandoff    float64 `json:"cpu_us_per_handoff"` // of sources, gateway, workers and a node inside together
	AllocsPerHandoff float64 `json:"allocs_per_handoff"`
	CPURatio         float64 `json:"cpu_ratio"`
}

// openWay starts the gateway of the round, if its way has one, in this process. Each agent gets a
// session of its own.
func (r *round) openWay(ctx context.Context) error {
	switch r.via {
	case ViaNATS:
		return r.openNATS(ctx)
	case ViaHTTP:
		return r.openHTTP(ctx)
	}
	r.session = func(agent string) (worker.Session, error) { return api.Direct(r.workers, agent), nil }
	return nil
}

// openNATS starts a NATS gateway. It has a connection, and its clients have another.
func (r *round) openNATS(ctx context.Context) error {
	var engines [2]*jetstream.Engine
	for i := range engines {
		engine, done, err := r.deployment.connect(ctx)
		if err != nil {
			return err
		}
		r.closers = append(r.closers, done)
		var ok bool
		if engines[i], ok = engine.(*jetstream.Engine); !ok {
			return fmt.Errorf("bench: an engine of kind %T has no connection", engine)
		}
	}
	gateway, err := natsgateway.New(r.workers, engines[0].Conn(), natsgateway.Config{Log: r.cfg.Log})
	if err != nil {
		return err
	}
	ready := make(chan struct{})
	if err := r.serve(func(ctx context.Context) error { return gateway.Run(ctx, func() { close(ready) }) }, ready); err != nil {
		return err
	}
	r.session = func(agent string) (worker.Session, error) {
		client, err := natsgateway.NewClient(engines[1].Conn(), natsgateway.ClientConfig{Agent: agent})
		if err == nil {
			r.closers = append(r.closers, client.Close)
		}
		return client, err
	}
	return nil
}

// openHTTP starts an HTTP gateway on a port of the loopback interface.
func (r *round) openHTTP(ctx context.Context) error {
	dir, err := os.MkdirTemp("", "handoff-bench-tokens-")
	if err != nil {
		return err
	}
	r.closers = append(r.closers, func() { _ = os.RemoveAll(dir) })
	file := filepath.Join(dir, "tokens.json")
	tokens, err := httpgateway.OpenTokens(file)
	if err != nil {
		return err
	}
	gateway, err := httpgateway.New(r.workers, httpgateway.Config{Tokens: tokens, Log: r.cfg.Log})
	if err != nil {
		return err
	}
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	ready := make(chan struct{})
	close(ready) // the listener accepts
	if err := r.serve(func(ctx context.Context) error { return gateway.Serve(ctx, listener) }, ready); err != nil {
		return err
	}
	transport := &http.Transport{MaxIdleConnsPerHost: r.cfg.Submitters + 2*r.cfg.Slots}
	r.closers = append(r.closers, transport.CloseIdleConnections)
	r.session = func(agent string) (worker.Session, error) {
		token, err := httpgateway.NewToken(file, httpgateway.Grant{Name: agent, Role: httpgateway.RoleAgent})
		return httpSession{api.Over(httpCaller{"http://" + listener.Addr().String(), "Bearer " + token, &http.Client{Transport: transport}})}, err
	}
	return nil
}

// serve runs a gateway until the round is closed, and returns when it is ready.
func (r *round) serve(run func(context.Context) error, ready <-chan struct{}) error {
	ctx, stop := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	ended := make(chan error, 1)
	wg.Go(func() { ended <- run(ctx) })
	r.closers = append(r.closers, func() { stop(); wg.Wait() })
	select {
	case <-ready:
		return nil
	case err := <-ended:
		return errors.Join(errors.New("the gateway has ended"), err)
	}
}

// httpSession is the session of an agent over HTTP.
type httpSession struct{ api.AgentOperations }

// Reconnected implements worker.Session. Connections are made for requests.
func (httpSession) Reconnected(context.Context) <-chan struct{} { return nil }

// httpCaller calls the operations of a worker and of a source over HTTP.
type httpCaller struct {
	url, authorization string
	client             *http.Client
}

// httpPaths has the operations with a path of their own. body is the field of the request that is sent
// as the body; "" sends all fields but the lease.
var httpPaths = map[string]struct{ path, body string }{
	"Submit": {"/v1/handoffs", "package"}, "Acknowledge": {"/v1/lease/acknowledge", "ack"}, "Heartbeat": {"/v1/lease/heartbeat", ""},
	"Complete": {"/v1/lease/complete", "result"}, "Fail": {"/v1/lease/fail", ""}, "Release": {"/v1/lease/release", ""},
}

// Do implements api.Gateway.
func (c httpCaller) Do(ctx context.Context, operation string, _ time.Duration, request []byte) ([]byte, error) {
	to, named := httpPaths[operation]
	lease := ""
	if !named {
		to.path = "/v1/ops/" + operation
	} else {
		var fields map[string]json.RawMessage
		if err := json.Unmarshal(request, &fields); err != nil {
			return nil, err
		}
		_ = json.Unmarshal(fields["lease"], &lease)
		delete(fields, "lease")
		if request = fields[to.body]; to.body == "" {
			request, _ = json.Marshal(fields)
		}
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url+to.path, bytes.NewReader(request))
	if err != nil {
		return nil, err
	}
	r.Header = http.Header{"Authorization": {c.authorization}, "Content-Type": {"application/json"}}
	if strings.HasPrefix(to.path, "/v1/lease/") {
		r.Header.Set("Handoff-Lease", lease)
	}
	answer, err := c.client.Do(r)
	if err != nil {
		return nil, errors.Join(broker.ErrUnreachable, err)
	}
	body, err := io.ReadAll(answer.Body)
	_ = answer.Body.Close()
	switch {
	case err != nil:
		return nil, errors.Join(broker.ErrUnreachable, err)
	case answer.StatusCode == http.StatusNoContent:
		return nil, protocol.Errorf(protocol.CodeNothingToClaim, "", "nothing to claim")
	case answer.StatusCode >= http.StatusBadRequest:
		var problem struct {
			Code          protocol.Code
			Field, Detail string
		}
		_ = json.Unmarshal(body, &problem)
		return nil, api.ErrorFrom(&protocol.Error{Code: problem.Code, Field: problem.Field, Message: problem.Detail})
	case operation == "Submit":
		var view struct{ State json.RawMessage }
		err := json.Unmarshal(body, &view)
		return view.State, err
	}
	return body, nil
}

// Patient implements api.Gateway: a request that fails ends the run.
func (httpCaller) Patient(context.Context, error) bool { return false }
