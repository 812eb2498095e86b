package telemetry

import (
	"crypto/sha256"
	"fmt"
	"strconv"
	"strings"

	sdk "go.opentelemetry.io/otel/sdk/trace"
)

// evenly asks a sampler about traces that began with a handoff by a hash of their
// ids. Such an id is a ticket: six bits of it say that it is a UUID, and a sampler
// that takes a part of all traces by their ids, which should be random, would take
// all of them or none.
type evenly struct{ sdk.Sampler }

// ShouldSample implements sdktrace.Sampler.
func (e evenly) ShouldSample(p sdk.SamplingParameters) sdk.SamplingResult {
	if of, ok := p.ParentContext.Value(idsKey{}).(ids); ok && of.own {
		sum := sha256.Sum256(p.TraceID[:])
		copy(p.TraceID[:], sum[:])
	}
	return e.Sampler.ShouldSample(p)
}

// samplerOf reads which traces are sampled, as OpenTelemetry's variables say it:
// without any, all traces about which no other process has decided.
func samplerOf(env func(string) string) (sdk.Sampler, error) {
	name, share := strings.ToLower(strings.TrimSpace(env("OTEL_TRACES_SAMPLER"))), 1.0
	if text := strings.TrimSpace(env("OTEL_TRACES_SAMPLER_ARG")); text != "" && strings.HasSuffix(name, "traceidratio") {
		var err error
		if share, err = strconv.ParseFloat(text, 64); err != nil || !(share >= 0 && share <= 1) {
			return nil, fmt.Errorf("OTEL_TRACES_SAMPLER_ARG is %q; it is a share of all traces, from 0 to 1, such as 0.1", text)
		}
	}
	switch name {
	case "", "parentbased_always_on":
		return sdk.ParentBased(sdk.AlwaysSample()), nil
	case "parentbased_always_off":
		return sdk.ParentBased(sdk.NeverSample()), nil
	case "parentbased_traceidratio":
		return sdk.ParentBased(sdk.TraceIDRatioBased(share)), nil
	case "always_on":
		return sdk.AlwaysSample(), nil
	case "always_off":
		return sdk.NeverSample(), nil
	case "traceidratio":
		return sdk.TraceIDRatioBased(share), nil
	}
	return nil, fmt.Errorf("OTEL_TRACES_SAMPLER is %q; it is one of always_on, always_off, traceidratio, parentbased_always_on, parentbased_always_off, parentbased_traceidratio", name)
}
