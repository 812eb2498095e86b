package telemetry

import (
	"crypto/sha256"
	"fmt"
	"strconv"
	"strings"

	sdk "go.opentelemetry.io/otel/sdk/trace"
)

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
