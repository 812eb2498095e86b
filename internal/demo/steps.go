package demo

import (
	"encoding/json"
	"fmt"
	"maps"
	"path/filepath"
	"slices"

	"github.com/agenthandoff/handoff/protocol"
)

// The agents of the relay.
const (
	surveyor   = "surveyor"
	historian  = "historian"
	reviewer   = "reviewer"   // a shell script under handoff work: reads prose, refuses code
	inspector  = "inspector"  // suggested by the reviewer
	maintainer = "maintainer" // registered, without a worker
	reporter   = "reporter"
	requester  = "demo" // the source of the review

	varLongFile = "long_file_lines" // the variable that the inspector asks for

	// Shorter than the defaults, for the show.
	showLeaseMS      = 3_000
	showAckTimeoutMS = 3_000
)

// step is a step of the relay: a handoff to an agent, under a policy.
type step struct {
	id, to, taskType string // id is also the task id
	task, reason     string
	policy           protocol.PolicyOverrides
	asks             string // the question that a person answers first; empty is none
}

// steps is the relay, in its order.
var steps = []step{
	{id: "survey", to: surveyor, taskType: "survey", task: "Survey the files of the directory: how many, how large, in which languages.",
		reason: "a review was asked for, and begins with what is there",
		// A busy machine may lose a lease as short as the surveyor's: that must not end the relay.
		policy: protocol.PolicyOverrides{MaxAttempts: new(6)}},
	{id: "history", to: historian, taskType: "history", task: "Read the git history: authors, and the latest commits.",
		reason: "the files are known; what happened to them is not"},
	{id: "inspection", to: reviewer, taskType: "code", task: "Inspect the code for what needs care: notes to self, and long files.",
		reason: "files and history are known; an agent has to look inside"},
	{id: "decision", to: maintainer, taskType: "decision", task: "Decide which of the findings comes first.",
		reason: "what matters most is for the owner of the code to say",
		policy: protocol.PolicyOverrides{AckTimeoutMS: new(int64(showAckTimeoutMS))}},
	{id: "report", to: reporter, taskType: "report", task: "Write a report in Markdown from all the results.",
		reason: "everything is known and decided; it has to be written down",
		asks:   "May the findings be written down?"},
	{id: "proofreading", to: reviewer, taskType: "prose", task: "Proofread the report.",
		reason: "the report is written; another pair of eyes shall read it"},
}

func stepIndex(id string) int {
	return slices.IndexFunc(steps, func(s step) bool { return s.id == id })
}

// firstPackage is the package that begins the relay.
func firstPackage(run, dir string) protocol.Package {
	pkg := protocol.Package{Source: requester, Context: protocol.Context{
		OriginalRequest: "Review the directory " + filepath.Base(dir),
		WorkflowID:      filepath.Base(run),
		Variables:       map[string]json.RawMessage{"directory": text(dir), "run": text(run)},
		Constraints:     []string{"read only: nothing in the directory is changed"},
	}}
	address(&pkg, 0)
	return pkg
}

// address sends a package to the agent of a step.
func address(pkg *protocol.Package, i int) {
	s := steps[i]
	pkg.Trigger, pkg.Target, pkg.Reason, pkg.Policy = protocol.TriggerTaskCompletion, protocol.Target{Agent: s.to}, s.reason, s.policy
	pkg.Task = protocol.Task{ID: s.id, Type: s.taskType, Description: s.task}
	pkg.Context.Phase = s.id
	pkg.Approval = nil
	if s.asks != "" {
		pkg.Approval = &protocol.Approval{Required: true, Question: s.asks}
	}
}

// addResult adds the result of a step to the context of the next package.
func addResult(c *protocol.Context, id string, body json.RawMessage, summary string) {
	results := map[string]json.RawMessage{id: body}
	maps.Copy(results, c.IntermediateResults)
	c.IntermediateResults, c.KeyPoints = results, append(slices.Clone(c.KeyPoints), id+": "+summary)
}

// resultOf returns the result of an earlier step from the context.
func resultOf(c protocol.Context, id string) (found string, err error) {
	if err = json.Unmarshal(c.IntermediateResults[id], &found); err != nil {
		err = fmt.Errorf("the result of the %s: %w", id, err)
	}
	return found, err
}

func text(s string) json.RawMessage {
	raw, _ := json.Marshal(s) // a string always has a JSON form
	return raw
}
