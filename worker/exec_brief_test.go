package worker_test

import (
	"strings"
	"testing"

	"github.com/agenthandoff/handoff/worker"
)

// TestInputBrief: a program has the brief in a file, or reads it, with the package in a file then.
func TestInputBrief(t *testing.T) {
	h := handoff()
	h.Package.Source, h.Package.Task.Description = "lead", "write it"
	for input, briefs := range map[worker.Input]int{"": 1, worker.InputPackage: 1, worker.InputBrief: 2} {
		e := execOf(t, worker.ExecConfig{Command: []string{"sh", "-c", `cat; echo; cat "${HANDOFF_PACKAGE_FILE:-/dev/null}"; echo; cat "$HANDOFF_BRIEF_FILE"; echo "$HANDOFF_MAX_ITERATIONS"`},
			Input: input, Output: "text"})
		result, err := e.Handle(t.Context(), h)
		if err != nil {
			t.Fatal(err)
		}
		got := string(result.Body)
		if strings.Count(got, "## Your Specific Task") != briefs || strings.HasPrefix(got, `"You are`) != (briefs == 2) ||
			!strings.HasSuffix(got, `15\n"`) && !strings.HasSuffix(got, `15"`) || strings.Count(got, `\"source\":\"lead\"`) != 1 {
			t.Errorf("%q: %s", input, got)
		}
	}
	if _, err := worker.NewExec(worker.ExecConfig{Command: []string{"cat"}, Input: "yaml"}); err == nil || !strings.Contains(err.Error(), "input: must be one of [package brief]") {
		t.Errorf("an input that there is not: %v", err)
	}
}
