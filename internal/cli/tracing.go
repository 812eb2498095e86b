package cli

import (
	"context"
	"log/slog"
	"strings"

	"github.com/spf13/cobra"

	"github.com/agenthandoff/handoff/internal/telemetry"
	"github.com/agenthandoff/handoff/protocol"
)

// startTraces begins to trace what this process appends, where the environment
// names a collector. A wrong variable is a word on stderr, and no trace: no work
// stops for it. log is that of a process that runs on; nil is a command that ends
// soon, and whose collector may be away without a word.
func (a *app) startTraces(ctx context.Context, log *slog.Logger) *telemetry.Traces {
	traces, err := telemetry.StartTraces(context.WithoutCancel(ctx),
		telemetry.TracesConfig{Env: a.env, Role: a.command, ShortLived: log == nil, Log: log})
	if err != nil {
		a.notef("handoff: nothing is traced: %v\n", err)
	}
	return traces
}

// commandName is what a command is called without the program's own name.
func commandName(cmd *cobra.Command) string {
	return strings.TrimPrefix(cmd.CommandPath(), cmd.Root().Name()+" ")
}

// traceOf puts a package that says nothing else into the trace that this process
// is in. What the environment has may be anybody's: what breaks the rules is as
// good as nothing (W3C Trace Context, 2.2.3).
func traceOf(pkg *protocol.Package, env func(string) string) {
	t := protocol.TraceContext{Parent: env("TRACEPARENT"), State: env("TRACESTATE")}
	if pkg.TraceParent != "" || pkg.TraceState != "" || t.IsZero() {
		return
	}
	if t.Validate() != nil {
		t.State = ""
	}
	if t.Validate() == nil {
		pkg.TraceParent, pkg.TraceState = t.Parent, t.State
	}
}
