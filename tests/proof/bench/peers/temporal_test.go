//go:build temporal

package main

import (
	"flag"
	"testing"
	"time"

	"go.temporal.io/api/command/v1"
	"go.temporal.io/api/enums/v1"
	"go.temporal.io/api/workflowservice/v1"
)

// TestTemporal has each form of a handoff done on a server that runs in this
// process: the first of the handoffs is put off once.
func TestTemporal(t *testing.T) {
	const handoffs = 3
	for _, form := range []string{formActivity, formLocal, formStandalone} {
		for _, store := range []string{"memory", "wal"} {
			t.Run(form+"/"+store, func(t *testing.T) {
				t.Setenv("TMPDIR", t.TempDir())
				b := newBench(config{submitters: 1, slots: 4, open: handoffs, size: 1024, batch: 1, deferred: 0.01, drain: time.Minute})
				var cfg temporalConfig
				cfg.register(flag.NewFlagSet("temporal", flag.PanicOnError))
				cfg.form, cfg.server.store = form, store
				system, err := openTemporal(t.Context(), b, cfg)
				if err != nil {
					t.Fatal(err)
				}
				defer system.stop(t.Context())
				for range handoffs {
					if !b.submitOne(t.Context(), system, nil) {
						t.Fatal(b.failure())
					}
				}
				b.awaitOpen(t.Context())
				if err := b.failure(); err != nil || b.done.Load() != handoffs {
					t.Errorf("%d of %d handoffs are done: %v", b.done.Load(), handoffs, err)
				}
				for seq := range handoffs {
					if r := &b.records[seq]; r.handled.Load() == 0 || r.handled.Load() > r.acknowledged.Load() {
						t.Errorf("handoff %d: its handler returned at %d, and its end was answered at %d", seq, r.handled.Load(), r.acknowledged.Load())
					}
				}
			})
		}
	}
}

func TestEnded(t *testing.T) {
	workflowTask := func(kind enums.CommandType) any {
		return &workflowservice.RespondWorkflowTaskCompletedRequest{
			ResourceId: "workflow:00ff",
			Commands:   []*command.Command{{CommandType: kind}},
		}
	}
	const (
		complete = enums.COMMAND_TYPE_COMPLETE_WORKFLOW_EXECUTION
		failed   = enums.COMMAND_TYPE_FAIL_WORKFLOW_EXECUTION
		none     = enums.COMMAND_TYPE_UNSPECIFIED
	)
	for name, c := range map[string]struct {
		request any
		id      string
		end     enums.CommandType
	}{
		"complete":           {workflowTask(complete), "00ff", complete},
		"failed":             {workflowTask(failed), "00ff", failed},
		"an activity begins": {workflowTask(enums.COMMAND_TYPE_SCHEDULE_ACTIVITY_TASK), "", none},
		"its activity ends":  {&workflowservice.RespondActivityTaskCompletedRequest{ResourceId: "workflow:00ff"}, "", none},
		"an activity alone":  {&workflowservice.RespondActivityTaskCompletedRequest{ResourceId: "activity:00ff"}, "00ff", complete},
		"a submit":           {&workflowservice.StartWorkflowExecutionRequest{WorkflowId: "00ff"}, "", none},
	} {
		if id, end := ended(c.request); id != c.id || end != c.end {
			t.Errorf("%s: got %q, %s, want %q, %s", name, id, end, c.id, c.end)
		}
	}
}
