//go:build proof

package process

import (
	"cmp"
	"compress/gzip"
	"context"
	"encoding/hex"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	collect "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"github.com/agenthandoff/handoff/internal/brokertest"
	"github.com/agenthandoff/handoff/internal/jetstream"
	"github.com/agenthandoff/handoff/protocol"
)

// collector receives spans over OTLP, as a real one does.
type collector struct {
	*httptest.Server
	t    *testing.T
	mu   sync.Mutex
	all  []collected
	more chan struct{}
}

// collected is a span, and the process that sent it.
type collected struct {
	*v1.Span
	role, service string
}

func startCollector(t *testing.T) *collector {
	c := &collector{t: t, more: make(chan struct{})}
	c.Server = httptest.NewServer(http.HandlerFunc(c.receive))
	t.Cleanup(c.Close)
	return c
}

func (c *collector) receive(w http.ResponseWriter, r *http.Request) {
	from := io.Reader(r.Body)
	if r.Header.Get("Content-Encoding") == "gzip" {
		var err error
		if from, err = gzip.NewReader(r.Body); err != nil {
			c.t.Error(err)
			return
		}
	}
	body, err := io.ReadAll(from)
	var batch collect.ExportTraceServiceRequest
	if err == nil {
		err = proto.Unmarshal(body, &batch)
	}
	if err != nil || r.URL.Path != "/v1/traces" {
		c.t.Errorf("%s: %v", r.URL.Path, err)
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, resource := range batch.ResourceSpans {
		role, service := "", ""
		for _, a := range resource.Resource.Attributes {
			switch a.Key {
			case "handoff.role":
				role = a.Value.GetStringValue()
			case "service.name":
				service = a.Value.GetStringValue()
			}
		}
		for _, scope := range resource.ScopeSpans {
			for _, span := range scope.Spans {
				c.all = append(c.all, collected{span, role, service})
			}
		}
	}
	close(c.more)
	c.more = make(chan struct{})
}

// span waits for the span of a handoff with this name.
func (c *collector) span(ctx context.Context, ticket, name string) collected {
	c.t.Helper()
	for {
		c.mu.Lock()
		all, more := c.all, c.more
		c.mu.Unlock()
		for _, s := range all {
			if s.Name == name && s.says("handoff.ticket") == ticket {
				return s
			}
		}
		select {
		case <-more:
		case <-ctx.Done():
			var names []string
			for _, s := range all {
				names = append(names, s.role+": "+s.Name)
			}
			c.t.Fatalf("no span %q of %s; there are %s", name, ticket, strings.Join(names, ", "))
		}
	}
}

func (s collected) says(name string) string {
	for _, a := range s.Attributes {
		if a.Key == name {
			return a.Value.GetStringValue()
		}
	}
	return ""
}

func (s collected) begins() time.Time { return time.Unix(0, int64(s.StartTimeUnixNano)) }
func (s collected) ends() time.Time   { return time.Unix(0, int64(s.EndTimeUnixNano)) }

// TestTraceOfProcesses: the spans of a relay come from the processes that did it,
// and are one trace: who submits, who works, what is handed off, and the return.
func TestTraceOfProcesses(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	c := startCollector(t)
	otel := []string{"OTEL_EXPORTER_OTLP_ENDPOINT=" + c.URL, "OTEL_BSP_SCHEDULE_DELAY=50", "OTEL_SERVICE_NAME=relay"}
	e := startDevIn(t, ctx, otel, "--fsync", "interval")
	env := append(otel, "NATS_URL="+e.url)
	work := func(agent, body string) {
		startHandoff(t, agent, env, "work", "--env", "all", "--agent", agent, "--", script(t, body)).AwaitOutput(ctx, "worker ready")
	}
	work("lead", "echo taken in")
	work("tester", `printf '%s' "$TRACEPARENT"`)
	work("coder", `echo '{"body": "'"$TRACEPARENT"'", "command": {"goto": "tester", "update": {"next_task": "test it"}}}'`)
	const root, above = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
	submit := startHandoff(t, "submit", append(env, "TRACEPARENT=00-"+root+"-"+above+"-01"), "submit", "--type", "delegation",
		"--from", "lead", "--to", "coder", "--return-timeout", "1m", "--reason", "r", "--task", "t", "--wait=1m", "-o", "json")
	<-submit.Ended()
	ticket := submittedAs(t, submit.Output())

	engine, err := jetstream.Dial(ctx, jetstream.DialConfig{URL: e.url})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = engine.Close() }()
	b := brokertest.Over(t, engine)
	child := protocol.ChildTicketN(ticket, 0)
	whole, work1 := c.span(ctx, ticket, "handoff coder"), c.span(ctx, ticket, "work coder")
	wholeID := hex.EncodeToString(whole.SpanId)
	within := func(s collected, parent []byte, role string) {
		t.Helper()
		if hex.EncodeToString(s.TraceId) != root || hex.EncodeToString(s.ParentSpanId) != hex.EncodeToString(parent) || s.role != role || s.service != "relay" {
			t.Errorf("%s: trace %x, parent %x (want %x), from %s of %s (want %s)", s.Name, s.TraceId, s.ParentSpanId, parent, s.role, s.service, role)
		}
		if s.ends().Before(s.begins()) {
			t.Errorf("%s ends %v before it begins", s.Name, s.begins().Sub(s.ends()))
		}
	}
	outside, _ := hex.DecodeString(above)
	within(whole, outside, "work")
	within(c.span(ctx, ticket, "submit coder"), whole.SpanId, "submit")
	queue := c.span(ctx, ticket, "queue coder")
	within(queue, whole.SpanId, "work")
	within(c.span(ctx, ticket, "acknowledge coder"), whole.SpanId, "work")
	within(work1, whole.SpanId, "work")
	within(c.span(ctx, child, "handoff tester"), work1.SpanId, "work")
	// The first process that finds it missing submits it, perhaps the supervisor.
	handedOn := c.span(ctx, child, "submit tester")
	within(handedOn, c.span(ctx, child, "handoff tester").SpanId, cmp.Or(map[string]string{"dev": "dev"}[handedOn.role], "work"))
	returned := protocol.ReturnTicket(ticket)
	taken := c.span(ctx, returned, "handoff lead")
	if hex.EncodeToString(taken.TraceId) != root {
		t.Errorf("the return is in the trace %x", taken.TraceId)
	}

	// What the program was told is the id of its work, before that had a span.
	for of, s := range map[string]collected{ticket: work1, child: c.span(ctx, child, "work tester")} {
		result, _, err := b.Result(ctx, of)
		if err != nil {
			t.Fatal(err)
		}
		if got, want := strings.Trim(string(result.Body), `"`), "00-"+root+"-"+hex.EncodeToString(s.SpanId)+"-01"; got != want {
			t.Errorf("the program of %s had TRACEPARENT %s, its span is %s", s.Name, got, want)
		}
	}
	head, err := b.Head(ctx, ticket, 0)
	if err != nil {
		t.Fatal(err)
	}
	if s := head.State; !whole.begins().Equal(s.SubmittedAt) || !whole.ends().Equal(s.ClosedAt) || !work1.begins().Equal(s.AcceptedAt) || !queue.ends().Equal(s.AcceptedAt) || wholeID == "" {
		t.Errorf("the spans' instants are not the ledger's: whole %v to %v, work from %v, queue to %v", whole.begins(), whole.ends(), work1.begins(), queue.ends())
	}
}

// TestTraceIsNotWaitedFor: a collector that takes spans and never answers holds up
// no command for longer than the docs say.
func TestTraceIsNotWaitedFor(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	asked, release := make(chan struct{}, 8), make(chan struct{})
	silent := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked <- struct{}{}; <-release }))
	defer silent.Close()
	defer close(release)
	e := startDev(t, ctx, "--fsync", "interval")
	submit := startHandoff(t, "submit", []string{"NATS_URL=" + e.url, "OTEL_EXPORTER_OTLP_ENDPOINT=" + silent.URL},
		"submit", "--from", "lead", "--to", "human", "--reason", "r", "--task", "t")
	select {
	case <-asked:
	case <-ctx.Done():
		t.Fatalf("nothing was exported: %s", submit.Output())
	}
	select { // it would be ten seconds, the exporter's own patience
	case <-submit.Ended():
	case <-ctx.Done():
		t.Fatal("the command waits for its collector")
	}
	if code := submit.ExitCode(); code != 0 {
		t.Errorf("it ended with %d: %s", code, submit.Output())
	}
}

// submittedAs returns the ticket of what "submit --wait" submitted. The end that it printed, that of
// the chain, must be a success.
func submittedAs(t *testing.T, output string) string {
	t.Helper()
	var printed struct {
		Submitted string           `json:"submitted"`
		Outcome   protocol.Outcome `json:"outcome"`
	}
	if err := json.Unmarshal([]byte(output), &printed); err != nil || printed.Outcome != protocol.OutcomeSuccess {
		t.Fatalf("submit printed (%v) %s", err, output)
	}
	return printed.Submitted
}
