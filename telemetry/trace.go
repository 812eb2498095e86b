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

// TracesConfig configures Traces. Where spans go, and which, is said by the
// standard variables of OpenTelemetry; docs/operations/tracing.md lists them.
type TracesConfig struct {
	// Env reads the environment, os.Getenv say. The exporter reads the rest of
	// its variables from the process's own.
	Env func(string) string
	// Role is what this process is: work, dev, submit.
	Role string
	// Brief is a process that ends soon: what it has not exported when it ends
	// is given FlushBrief, and is tried once.
	Brief bool
	// Log receives, at most once a minute, that spans were not exported. Nil discards
	// it.
	Log *slog.Logger
}

const (
	// FlushBrief is how long a process that ends soon waits for a collector: long
	// enough for one at the other end of a continent, and hardly noticed.
	FlushBrief = 500 * time.Millisecond
	// Flush is how long any other waits when it stops.
	Flush = 3 * time.Second
	// warnEvery is how often Log is told that spans were not exported.
	warnEvery = time.Minute
)

// Traces emits the spans of handoffs, as a broker.Observer: each span once, by
// the process whose append ended it, with the instants of the ledger. A span may
// have begun long before this process did, in another one. Emitting never waits
// for a collector; where too many spans wait for one, the newest are dropped.
//
// A nil *Traces is no tracing, and costs nothing.
type Traces struct {
	provider *sdk.TracerProvider
	tracer   trace.Tracer
	flush    time.Duration
	now      func() time.Time
}

// StartTraces starts what the environment asks for; nil where it asks for
// nothing. An error says in plain words which variable is wrong; nothing is
// traced then.
func StartTraces(ctx context.Context, cfg TracesConfig) (*Traces, error) {
	protocol, err := tracesWanted(cfg.Env)
	if err != nil || protocol == "" {
		return nil, err
	}
	sampler, err := samplerOf(cfg.Env)
	if err != nil {
		return nil, err
	}
	exporter, err := newExporter(ctx, protocol, cfg.Brief)
	if err != nil {
		return nil, fmt.Errorf("exporter of spans: %w", err)
	}
	about, err := resource.New(ctx, resource.WithTelemetrySDK(), resource.WithHost(), resource.WithProcessPID(),
		resource.WithAttributes(attribute.String("service.name", "handoff"), attribute.String("handoff.role", cfg.Role)),
		resource.WithFromEnv()) // OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES win
	if err != nil {
		return nil, fmt.Errorf("OTEL_RESOURCE_ATTRIBUTES: %w", err)
	}
	otel.SetErrorHandler(&complaints{log: cfg.Log})
	t := newTraces(sampler, sdk.WithBatcher(exporter), sdk.WithResource(about))
	if t.flush = Flush; cfg.Brief {
		t.flush = FlushBrief
	}
	return t, nil
}

func newTraces(sampler sdk.Sampler, options ...sdk.TracerProviderOption) *Traces {
	options = append(options, sdk.WithIDGenerator(fixedIDs{}), sdk.WithSampler(evenly{sampler}))
	provider := sdk.NewTracerProvider(options...)
	return &Traces{provider: provider, flush: Flush, now: time.Now,
		tracer: provider.Tracer("github.com/agenthandoff/handoff/telemetry")}
}

// tracesWanted reads whether spans are to be exported, and how: "" is not at all.
func tracesWanted(env func(string) string) (protocol string, err error) {
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

// newExporter makes an exporter; it connects when it has something to send.
func newExporter(ctx context.Context, protocol string, brief bool) (*otlptrace.Exporter, error) {
	if protocol == "grpc" {
		var options []otlptracegrpc.Option
		if brief {
			options = append(options, otlptracegrpc.WithRetry(otlptracegrpc.RetryConfig{}))
		}
		return otlptracegrpc.New(ctx, options...)
	}
	var options []otlptracehttp.Option
	if brief {
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

// Stop exports what is left, for a bounded time, and ends the tracing. What could
// not be exported is lost.
func (t *Traces) Stop() {
	if t == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), t.flush)
	defer cancel()
	_ = t.provider.Shutdown(ctx) // that a collector is away is no failure of what was traced
}

// complaints tells a log that spans are not exported, and not at every batch.
type complaints struct {
	log *slog.Logger

	mu   sync.Mutex
	last time.Time
}

// Handle implements otel.ErrorHandler.
func (c *complaints) Handle(err error) {
	if c.log == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if now := time.Now(); now.Sub(c.last) >= warnEvery {
		c.last = now
		c.log.Warn("spans are not exported; handoffs go on without them", "err", err)
	}
}
