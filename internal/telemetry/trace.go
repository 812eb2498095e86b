package telemetry

import (
	"cmp"
	"context"
	"crypto/sha256"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/lifecycle"
	"github.com/agenthandoff/handoff/protocol"
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
	// flushTimeoutShort is how long Stop of a short-lived process waits for a collector: enough
	// for one on the same continent, and hardly noticed.
	flushTimeoutShort = 500 * time.Millisecond
	// flushTimeout is how long Stop of any other process waits.
	flushTimeout = 3 * time.Second
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
	if t.flushTimeout = flushTimeout; cfg.ShortLived {
		t.flushTimeout = flushTimeoutShort
	}
	return t, nil
}

func newTraces(sampler sdk.Sampler, options ...sdk.TracerProviderOption) *Traces {
	options = append(options, sdk.WithIDGenerator(ledgerIDGenerator{}), sdk.WithSampler(hashedIDSampler{sampler}))
	provider := sdk.NewTracerProvider(options...)
	return &Traces{provider: provider, flushTimeout: flushTimeout, now: time.Now,
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

// Observer returns t for a broker.Config: a nil interface if t is nil.
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

// Appended implements broker.Observer. It exports the spans that an append has ended.
func (t *Traces) Appended(_ context.Context, before protocol.State, after broker.Head, events []protocol.Event) {
	if t == nil || len(events) == 0 {
		return
	}
	if spans := t.endedSpans(before, after, events); len(spans) > 0 {
		t.export(after.State, spans)
	}
}

// Conflicted implements broker.Observer. A conflict ends no span.
func (t *Traces) Conflicted(context.Context, string) {}

// endedSpan is a span that an append has ended.
type endedSpan struct {
	kind       protocol.Span
	n          uint64
	name       string
	start, end time.Time
	failed     string // a code; "" is no failure
	attributes []attribute.KeyValue
	events     []spanEvent
}

type spanEvent struct {
	name       string
	at         time.Time
	attributes []attribute.KeyValue
}

// openStage is the stage that an open handoff is in: queue, acknowledge, work or wait. A group has
// none, its members have.
type openStage struct {
	kind  protocol.Span
	n     uint64
	since time.Time
}

func openStageOf(s protocol.State) openStage {
	if s.Aggregate != nil {
		return openStage{}
	}
	switch lifecycle.StageOf(s) {
	case lifecycle.StageNone:
		return openStage{}
	case lifecycle.StageWork:
		return openStage{protocol.SpanWork, s.Fence, s.AcceptedAt}
	case lifecycle.StageAcknowledge:
		return openStage{protocol.SpanAcknowledge, s.Offer, s.ClaimedAt}
	case lifecycle.StageQueue:
		if s.Offer != 0 && s.AcceptedAt.IsZero() && s.ClaimedAt.IsZero() {
			return openStage{protocol.SpanQueue, s.Offer, s.OfferedAt}
		}
	case lifecycle.StageAnswers, lifecycle.StageDeferred, lifecycle.StageChildren:
		return openStage{protocol.SpanWait, 0, s.ConditionedAt}
	}
	return openStage{protocol.SpanWait, 0, s.UpdatedAt}
}

// endedSpans returns the spans that an append has ended.
func (t *Traces) endedSpans(before protocol.State, after broker.Head, events []protocol.Event) []endedSpan {
	s, at := after.State, events[0].When()
	var spans []endedSpan
	if before.Ticket == "" {
		spans = append(spans, endedSpan{kind: protocol.SpanSubmit, name: s.TargetWords(), start: at, end: laterTime(at, t.now()),
			attributes: queueAttributes(s.Agent, "send")})
	}
	old, current := openStageOf(before), openStageOf(s)
	if old.kind != "" && (old.kind != current.kind || old.n != current.n) {
		spans = append(spans, stageSpan(old, before, after, events))
	}
	if ack, answered := acknowledgeSpan(before, after, events, t.now()); answered && old.kind != protocol.SpanAcknowledge {
		spans = append(spans, ack)
	}
	if s.Closed && !before.Closed {
		whole := endedSpan{kind: protocol.SpanHandoff, name: s.TargetWords(), start: s.SubmittedAt, end: laterTime(s.SubmittedAt, s.ClosedAt),
			attributes: outcomeAttributes(s), events: spanEvents(events)}
		switch s.Outcome {
		case protocol.OutcomeFailed, protocol.OutcomeTimeout, protocol.OutcomeRejected:
			whole.failed = cmp.Or(s.Reason, string(s.Outcome))
		}
		if s.CancelRequested {
			whole.events = append(whole.events, spanEvent{name: string(protocol.EventCancelRequested), at: s.CancelRequestedAt})
		}
		spans = append(spans, whole)
	}
	for _, e := range events {
		if returned, ok := e.(*protocol.Returned); ok {
			spans = append(spans, returnSpan(s, *returned))
		}
	}
	return spans
}

// stageSpan is the span of a stage that has ended.
func stageSpan(stage openStage, before protocol.State, after broker.Head, events []protocol.Event) endedSpan {
	end := laterTime(stage.since, events[0].When())
	ended := endedSpan{kind: stage.kind, n: stage.n, name: before.Agent, start: stage.since, end: end, failed: failureCode(events), events: spanEvents(events)}
	switch stage.kind {
	case protocol.SpanQueue:
		ended.attributes = queueAttributes(before.Agent, "")
	case protocol.SpanAcknowledge:
		ended.n = after.Seq // an offer may be claimed several times
		ended.attributes = queueAttributes(before.Agent, "settle")
		if ack, answered := acknowledgeSpan(before, after, events, end); answered {
			ended.attributes = ack.attributes
		}
	case protocol.SpanWork:
		ended.attributes = append(queueAttributes(before.Agent, "process"), attribute.Int("handoff.attempt", before.Attempt),
			attribute.Int("handoff.attempts_total", before.AttemptsTotal), attribute.String("handoff.holder", before.Holder),
			attribute.Int64("handoff.fence", int64(before.Fence)))
		ended.events = append(workEvents(before), ended.events...)
	case protocol.SpanWait:
		ended.n = after.Seq
		ended.attributes = queueAttributes(before.Agent, "", "handoff.phase", string(before.Phase), "handoff.reason", before.Reason)
	}
	return ended
}

// acknowledgeSpan is the span of the acknowledgement in an append, if there is one. If the worker
// had not claimed the offer before, the span is as long as the append.
func acknowledgeSpan(before protocol.State, after broker.Head, events []protocol.Event, now time.Time) (endedSpan, bool) {
	for _, e := range events {
		answer := endedSpan{kind: protocol.SpanAcknowledge, n: after.Seq, start: e.When(), end: laterTime(e.When(), now)}
		status, reason := protocol.AckAccepted, ""
		switch e := e.(type) {
		case *protocol.Accepted:
			answer.name = e.Agent
		case *protocol.Rejected:
			answer.name, status, reason = e.Agent, protocol.AckRejected, e.ReasonCode
		case *protocol.Conditioned:
			answer.name, status = e.Agent, protocol.AckConditional
		default:
			continue
		}
		if before.Fence != 0 && status != protocol.AckAccepted { // an acceptance that is withdrawn
			return endedSpan{}, false
		}
		answer.attributes = queueAttributes(before.Agent, "settle", "handoff.acknowledgement", string(status), "handoff.reason", reason)
		return answer, true
	}
	return endedSpan{}, false
}

// returnSpan is the span from the end of a handoff to the return to its source.
func returnSpan(s protocol.State, e protocol.Returned) endedSpan {
	ret := endedSpan{kind: protocol.SpanReturn, name: s.Source, start: s.ClosedAt, end: laterTime(s.ClosedAt, e.When()),
		attributes: queueAttributes(s.Source, "send", "handoff.return_ticket", s.ReturnTicket)}
	if !e.Delivered {
		ret.failed = "not_delivered"
	}
	return ret
}

// workEvents are the start, the last progress and the last reminder of the work.
func workEvents(s protocol.State) []spanEvent {
	var all []spanEvent
	if !s.StartedAt.IsZero() {
		all = append(all, spanEvent{name: string(protocol.EventStarted), at: s.StartedAt})
	}
	if !s.ProgressAt.IsZero() && s.Progress != nil {
		all = append(all, spanEvent{name: string(protocol.EventProgressed), at: s.ProgressAt,
			attributes: []attribute.KeyValue{attribute.Float64("handoff.percent", float64(s.Progress.Percent))}})
	}
	if !s.RemindedAt.IsZero() {
		all = append(all, spanEvent{name: string(protocol.EventReminded), at: s.RemindedAt})
	}
	return all
}

// spanEvents converts the events of an append: their names, instants and children.
func spanEvents(events []protocol.Event) []spanEvent {
	all := make([]spanEvent, len(events))
	for i, e := range events {
		all[i] = spanEvent{name: string(e.EventType()), at: e.When()}
		if child, ok := e.(*protocol.HandedOff); ok {
			all[i].attributes = []attribute.KeyValue{attribute.String("handoff.child", child.Ticket)}
		}
	}
	return all
}

// export passes spans of a handoff to the exporter, if its trace is sampled.
func (t *Traces) export(s protocol.State, spans []endedSpan) {
	handoffContext, handoffSpan := t.startHandoffSpan(s)
	if !handoffSpan.SpanContext().IsSampled() {
		return
	}
	shared := handoffAttributes(s)
	for _, ended := range spans {
		kind := map[protocol.Span]trace.SpanKind{protocol.SpanSubmit: trace.SpanKindProducer, protocol.SpanReturn: trace.SpanKindProducer,
			protocol.SpanWork: trace.SpanKindConsumer, protocol.SpanAcknowledge: trace.SpanKindClient}[ended.kind]
		parent := handoffContext
		if ended.kind == protocol.SpanHandoff {
			parent = t.parentContext(s)
		}
		parent = contextWithSpanIDs(parent, spanIDsOf(s, ended.kind, ended.n))
		_, out := t.tracer.Start(parent, string(ended.kind)+" "+ended.name, trace.WithTimestamp(ended.start), trace.WithSpanKind(kind),
			trace.WithAttributes(shared...), trace.WithAttributes(ended.attributes...),
			trace.WithAttributes(attribute.String("messaging.operation.name", string(ended.kind))))
		for _, e := range ended.events {
			out.AddEvent(e.name, trace.WithTimestamp(e.at), trace.WithAttributes(e.attributes...))
		}
		if ended.failed != "" {
			out.SetStatus(codes.Error, ended.failed)
		}
		out.End(trace.WithTimestamp(ended.end))
	}
}

// startHandoffSpan starts the span that is the parent of all others of a handoff, to learn whether
// its trace is sampled. Only the process that closes the handoff exports it.
func (t *Traces) startHandoffSpan(s protocol.State) (context.Context, trace.Span) {
	return t.tracer.Start(contextWithSpanIDs(t.parentContext(s), spanIDsOf(s, protocol.SpanHandoff, 0)), string(protocol.SpanHandoff))
}

// parentContext is the context that a handoff's own span starts in: that of its parent span. If
// the trace began with a handoff, this sampler decides by the trace's id, so that every process
// decides alike.
func (t *Traces) parentContext(s protocol.State) context.Context {
	ctx := context.Background()
	if s.Trace == nil {
		return ctx
	}
	of := *s.Trace
	if of.Own {
		_, probe := t.tracer.Start(contextWithSpanIDs(ctx, spanIDsOf(s, protocol.SpanHandoff, 0)), string(protocol.SpanHandoff))
		of = of.WithSampled(probe.SpanContext().IsSampled())
	}
	if parent, ok := spanContext(of); ok {
		return trace.ContextWithRemoteSpanContext(ctx, parent)
	}
	return ctx
}

// WorkContext is the trace context of a handoff's work, for the program that does it. Its sampled
// flag is the sampler's decision, or the ledger's if t is nil.
func (t *Traces) WorkContext(s protocol.State) protocol.TraceContext {
	of := s.WorkTrace()
	if t == nil || !of.Own {
		return of
	}
	_, handoffSpan := t.startHandoffSpan(s)
	return of.WithSampled(handoffSpan.SpanContext().IsSampled())
}

// The attributes of spans: ids, names and codes of a handoff, with stable keys. The texts of
// agents in packages, results and reasons stay in the ledger.

// texts returns attributes of keys and values in turn, without those whose value is empty.
func texts(pairs ...string) (all []attribute.KeyValue) {
	for i := 0; i+1 < len(pairs); i += 2 {
		if pairs[i+1] != "" {
			all = append(all, attribute.String(pairs[i], pairs[i+1]))
		}
	}
	return all
}

// handoffAttributes are the attributes of every span of a handoff.
func handoffAttributes(s protocol.State) []attribute.KeyValue {
	return texts("handoff.ticket", s.Ticket, "handoff.type", string(s.Type), "handoff.priority", string(s.Priority), "handoff.source", s.Source,
		"messaging.system", "handoff", "messaging.message.id", s.Ticket,
		"handoff.parent", s.Parent, "handoff.group", s.Group, "handoff.origin", s.Origin, "handoff.return_of", s.ReturnOf,
		"handoff.workflow_id", s.WorkflowID, "handoff.task_id", s.TaskID, "messaging.message.conversation_id", s.ConversationID)
}

// queueAttributes name the agent whose queue a span is about, and the operation in the messaging
// conventions of OpenTelemetry. more are keys and values of further texts.
func queueAttributes(agent, operation string, more ...string) []attribute.KeyValue {
	return texts(append([]string{"handoff.agent", agent, "messaging.destination.name", agent, "messaging.operation.type", operation}, more...)...)
}

// outcomeAttributes describe the end of a handoff.
func outcomeAttributes(s protocol.State) []attribute.KeyValue {
	all := append(queueAttributes(s.Agent, "", "handoff.outcome", string(s.Outcome), "handoff.reason", s.Reason),
		attribute.Int("handoff.attempts_total", s.AttemptsTotal), attribute.Int("handoff.reroutes", s.Reroutes),
		attribute.Int("handoff.escalations", s.Escalations))
	if used := s.Usage.Total(); used.Tokens > 0 {
		all = append(all, attribute.Int64("handoff.tokens", used.Tokens))
	}
	return all
}

// failureCode is the code of the failure that ended a stage; "" if none did.
func failureCode(events []protocol.Event) string {
	for _, e := range events {
		switch e := e.(type) {
		case *protocol.Failed:
			return cmp.Or(e.Code, "failed")
		case *protocol.LeaseLost:
			return "lease_lost"
		case *protocol.TimedOut:
			return string(e.Clock) + "_timeout"
		}
	}
	return ""
}

// laterTime is the later of two instants. A span must not end before it begins, and the clocks of
// two writers of the ledger may differ.
func laterTime(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// The ids of spans, derived from the ledger, and the conversion from and to the trace context
// of OpenTelemetry.

// spanIDs are the ids of a span that is about to start.
type spanIDs struct {
	trace trace.TraceID
	span  trace.SpanID
	own   bool // the trace began with a handoff
}

func spanIDsOf(s protocol.State, kind protocol.Span, n uint64) spanIDs {
	return spanIDs{s.TraceID(), s.SpanID(kind, n), s.Trace == nil || s.Trace.Own}
}

type spanIDsKey struct{}

func contextWithSpanIDs(ctx context.Context, of spanIDs) context.Context {
	return context.WithValue(ctx, spanIDsKey{}, of)
}

// ledgerIDGenerator gives a span the ids in its context.
type ledgerIDGenerator struct{}

// NewIDs implements sdktrace.IDGenerator.
func (ledgerIDGenerator) NewIDs(ctx context.Context) (trace.TraceID, trace.SpanID) {
	of, ok := ctx.Value(spanIDsKey{}).(spanIDs)
	if !ok { // a span that this package did not start
		return trace.TraceID{15: 1}, trace.SpanID{7: byte(rand.IntN(255) + 1)}
	}
	return of.trace, of.span
}

// NewSpanID implements sdktrace.IDGenerator.
func (g ledgerIDGenerator) NewSpanID(ctx context.Context, _ trace.TraceID) trace.SpanID {
	_, span := g.NewIDs(ctx)
	return span
}

// spanContext converts a trace context to OpenTelemetry's type.
func spanContext(t protocol.TraceContext) (trace.SpanContext, bool) {
	if t.IsZero() || t.Validate() != nil {
		return trace.SpanContext{}, false
	}
	var flags trace.TraceFlags
	if t.Sampled() {
		flags = trace.FlagsSampled
	}
	state, _ := trace.ParseTraceState(t.State) // empty if it cannot be parsed
	return trace.NewSpanContext(trace.SpanContextConfig{TraceID: t.TraceID(), SpanID: t.SpanID(),
		TraceFlags: flags, TraceState: state, Remote: true}), true
}

// hashedIDSampler gives its sampler a hash in place of the id of a trace that began with a
// handoff. Such an id is a ticket, and six bits of a UUID are fixed: a sampler that compares ids
// with a ratio, as if they were random, would sample all of them or none.
type hashedIDSampler struct{ sdk.Sampler }

// ShouldSample implements sdktrace.Sampler.
func (s hashedIDSampler) ShouldSample(p sdk.SamplingParameters) sdk.SamplingResult {
	if of, ok := p.ParentContext.Value(spanIDsKey{}).(spanIDs); ok && of.own {
		sum := sha256.Sum256(p.TraceID[:])
		copy(p.TraceID[:], sum[:])
	}
	return s.Sampler.ShouldSample(p)
}

// samplerFromEnv returns the sampler that OpenTelemetry's variables name. By default it samples
// every trace that begins here and follows the decision of others.
func samplerFromEnv(env func(string) string) (sdk.Sampler, error) {
	name, share := strings.ToLower(strings.TrimSpace(env("OTEL_TRACES_SAMPLER"))), 1.0
	if text := strings.TrimSpace(env("OTEL_TRACES_SAMPLER_ARG")); text != "" && strings.HasSuffix(name, "traceidratio") {
		var err error
		if share, err = strconv.ParseFloat(text, 64); err != nil || !(share >= 0 && share <= 1) {
			return nil, fmt.Errorf("OTEL_TRACES_SAMPLER_ARG is %q; it is a share of all traces, from 0 to 1, such as 0.1", text)
		}
	}
	root, follows := strings.CutPrefix(cmp.Or(name, "parentbased_always_on"), "parentbased_")
	sampler, known := map[string]sdk.Sampler{"always_on": sdk.AlwaysSample(), "always_off": sdk.NeverSample(),
		"traceidratio": sdk.TraceIDRatioBased(share)}[root]
	switch {
	case known && follows:
		return sdk.ParentBased(sampler), nil
	case known:
		return sampler, nil
	}
	return nil, fmt.Errorf("OTEL_TRACES_SAMPLER is %q; it is one of always_on, always_off, traceidratio, parentbased_always_on, parentbased_always_off, parentbased_traceidratio", name)
}
