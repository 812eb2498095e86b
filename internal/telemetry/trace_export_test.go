package telemetry

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"testing"

	collect "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/brokertest"
	"github.com/agenthandoff/handoff/protocol"
)

// fakeCollector records the requests that a collector receives.
type fakeCollector struct {
	collect.UnimplementedTraceServiceServer
	got chan *collect.ExportTraceServiceRequest
}

// Export implements the service of OTLP over gRPC.
func (r *fakeCollector) Export(_ context.Context, req *collect.ExportTraceServiceRequest) (*collect.ExportTraceServiceResponse, error) {
	r.got <- req
	return &collect.ExportTraceServiceResponse{}, nil
}

// ServeHTTP receives OTLP over HTTP.
func (r *fakeCollector) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	body, err := io.ReadAll(req.Body)
	var in collect.ExportTraceServiceRequest
	if err == nil {
		err = proto.Unmarshal(body, &in)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	r.got <- &in
}

// TestExport checks that Stop exports spans by either protocol, with the name and the attributes
// that the environment sets.
func TestExport(t *testing.T) {
	for _, by := range []string{"http/protobuf", "grpc"} {
		to := &fakeCollector{got: make(chan *collect.ExportTraceServiceRequest, 1)}
		var url string
		if by == "grpc" {
			listener, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			server := grpc.NewServer()
			collect.RegisterTraceServiceServer(server, to)
			go func() { _ = server.Serve(listener) }() // ends with Stop
			defer server.Stop()
			url = "http://" + listener.Addr().String()
		} else {
			server := httptest.NewServer(to)
			defer server.Close()
			url = server.URL
		}
		t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url)
		t.Setenv("OTEL_EXPORTER_OTLP_PROTOCOL", by)
		t.Setenv("OTEL_SERVICE_NAME", "fleet")
		t.Setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment=test")
		traces, err := StartTraces(t.Context(), TracesConfig{Env: os.Getenv, Role: "submit"})
		if err != nil {
			t.Fatal(err)
		}
		submitOne(t, traces)
		traces.Stop()
		select {
		case req := <-to.got:
			of := map[string]string{}
			for _, a := range req.ResourceSpans[0].Resource.Attributes {
				of[a.Key] = a.Value.GetStringValue()
			}
			if of["service.name"] != "fleet" || of["deployment.environment"] != "test" || of["handoff.role"] != "submit" {
				t.Errorf("%s: the resource is %v", by, of)
			}
			if name := req.ResourceSpans[0].ScopeSpans[0].Spans[0].Name; name != "submit coder" {
				t.Errorf("%s: the span is %q", by, name)
			}
		default:
			t.Errorf("%s: nothing was exported", by)
		}
	}
}

func submitOne(t *testing.T, traces *Traces) {
	t.Helper()
	b, err := broker.New(brokertest.NewMemory(), broker.Config{Observer: traces.Observer()})
	if err != nil {
		t.Fatal(err)
	}
	brokertest.Register(t, b, "coder")
	brokertest.Submit(t, b, protocol.Package{})
}
