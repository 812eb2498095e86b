package telemetry

import (
	"context"
	"fmt"
	"log/slog"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/agenthandoff/handoff/broker"
)

// TracesConfig configures Traces. The standard variables of OpenTelemetry choose the collector and
// the sampler; docs/operations/tracing.md lists them.
type TracesConfig struct {
	// Env reads the environment; os.Getenv does. The exporter reads its own variables from the
	// environment of the process.
	Env func(string) string
	// Role is the command that this process runs: work, dev, submit.
	Role string
	// ShortLived is for a process that ends soon: Stop tries once to export the remaining spans,
	// for at most FlushTimeoutShort.
	ShortLived bool
	// Log receives a warning when spans were not exported, at most once a minute. Nil discards it.
	Log *slog.Logger
}

const (
	// FlushTimeoutShort is how long Stop of a short-lived process waits for a collector: enough
	// for one on the same continent, and hardly noticed.
	FlushTimeoutShort = 500 * time.Millisecond
	// FlushTimeout is how long Stop of any other process waits.
	FlushTimeout = 3 * time.Second
	// warnInterval is the shortest time between two warnings to Log.
	warnInterval = time.Minute
)

// Traces exports the spans of handoffs, as a broker.Observer. The process whose append ends a span
// exports it, once, with the instants of the ledger; the span may have begun in another process.
// An append never waits for a collector: if too many spans are queued, the newest are dropped.
//
// A nil *Traces does nothing and costs nothing.
type Traces struct {
	provider     *sdk.TracerProvider
	tracer       trace.Tracer
	flushTimeout time.Duration
	now          func() time.Time
}

// StartTraces starts tracing as the environment configures it, and returns nil if it does not. An
// error names the variable that is wrong.
func StartTraces(ctx context.Context, cfg TracesConfig) (*Traces, error) {
	protocol, err := exportProtocol(cfg.Env)
	if err != nil || protocol == "" {
		return nil, err
	}
	sampler, err := samplerFromEnv(cfg.Env)
	if err != nil {
		return nil, err
	}
	exporter, err := newExporter(ctx, protocol, cfg.ShortLived)
	if err != nil {
		return nil, fmt.Errorf("exporter of spans: %w", err)
	}
	res, err := resource.New(ctx, resource.WithTelemetrySDK(), resource.WithHost(), resource.WithProcessPID(),
		resource.WithAttributes(attribute.String("service.name", "handoff"), attribute.String("handoff.role", cfg.Role)),
		resource.WithFromEnv()) // OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES win
	if err != nil {
		return nil, fmt.Errorf("OTEL_RESOURCE_ATTRIBUTES: %w", err)
	}
	otel.SetErrorHandler(&exportErrorHandler{log: cfg.Log})
	t := newTraces(sampler, sdk.WithBatcher(exporter), sdk.WithResource(res))
	if t.flushTimeout = FlushTimeout; cfg.ShortLived {
		t.flushTimeout = FlushTimeoutShort
	}
	return t, nil
}

func newTraces(sampler sdk.Sampler, options ...sdk.TracerProviderOption) *Traces {
	options = append(options, sdk.WithIDGenerator(ledgerIDGenerator{}), sdk.WithSampler(hashedIDSampler{sampler}))
	provider := sdk.NewTracerProvider(options...)
	return &Traces{provider: provider, flushTimeout: FlushTimeout, now: time.Now,
		tracer: provider.Tracer("github.com/agenthandoff/handoff/internal/telemetry")}
}

// exportProtocol reads the protocol of OTLP to export by; "" exports nothing.
func exportProtocol(env func(string) string) (protocol string, err error) {
	first := func(names ...string) (name, value string) {
		for _, name = range names {
			if value = strings.TrimSpace(env(name)); value != "" {
				return name, value
			}
		}
		return "", ""
	}
	name, endpoint := first("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
	if endpoint == "" || strings.EqualFold(strings.TrimSpace(env("OTEL_SDK_DISABLED")), "true") {
		return "", nil
	}
	switch _, exporter := first("OTEL_TRACES_EXPORTER"); exporter {
	case "", "otlp":
	case "none":
		return "", nil
	default:
		return "", fmt.Errorf("OTEL_TRACES_EXPORTER is %q; spans are exported by otlp, or not at all (none)", exporter)
	}
	if u, err := url.Parse(endpoint); err != nil || u.Host == "" || !slices.Contains([]string{"http", "https"}, u.Scheme) {
		return "", fmt.Errorf("%s is %q; write the URL of a collector, such as http://localhost:4318", name, endpoint)
	}
	name, protocol = first("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
	switch protocol {
	case "":
		return "http/protobuf", nil
	case "http/protobuf", "grpc":
		return protocol, nil
	}
	return "", fmt.Errorf("%s is %q; it is http/protobuf (the default) or grpc", name, protocol)
}

// newExporter returns an exporter. It connects with its first spans.
func newExporter(ctx context.Context, protocol string, shortLived bool) (*otlptrace.Exporter, error) {
	if protocol == "grpc" {
		var options []otlptracegrpc.Option
		if shortLived {
			options = append(options, otlptracegrpc.WithRetry(otlptracegrpc.RetryConfig{}))
		}
		return otlptracegrpc.New(ctx, options...)
	}
	var options []otlptracehttp.Option
	if shortLived {
		options = append(options, otlptracehttp.WithRetry(otlptracehttp.RetryConfig{}))
	}
	return otlptracehttp.New(ctx, options...)
}

// Observer is t for a broker.Config; nil where t is.
func (t *Traces) Observer() broker.Observer {
	if t == nil {
		return nil
	}
	return t
}

// Stop exports the remaining spans within the flush timeout and ends tracing. Spans that
// could not be exported are lost.
func (t *Traces) Stop() {
	if t == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), t.flushTimeout)
	defer cancel()
	_ = t.provider.Shutdown(ctx) // a collector that does not answer fails no handoff
}

// exportErrorHandler logs that spans are not exported, once per warnInterval.
type exportErrorHandler struct {
	log *slog.Logger

	mu          sync.Mutex
	lastWarning time.Time
}

// Handle implements otel.ErrorHandler.
func (c *exportErrorHandler) Handle(err error) {
	if c.log == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if now := time.Now(); now.Sub(c.lastWarning) >= warnInterval {
		c.lastWarning = now
		c.log.Warn("spans are not exported", "err", err)
	}
}
