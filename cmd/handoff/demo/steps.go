package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/protocol"
)

// The agents of the relay.
const (
	surveyor   = "surveyor"
	historian  = "historian"
	reviewer   = "reviewer"   // a shell script under handoff work: reads prose, refuses code
	inspector  = "inspector"  // whom the reviewer names instead
	maintainer = "maintainer" // registered, and nobody serves it: silence
	reporter   = "reporter"
	requester  = "demo" // who asks for the review
)

// Variables that travel with every package of the relay.
const (
	varDirectory = "directory" // the one under review
	varRun       = "run"       // where the agents of this run keep their files
)

// step is one stage of the relay: what is handed to whom, and under which policy.
type step struct {
	id       string // also the task's id, and the key that keeps a second attempt from handing on twice
	to       string
	taskType string
	task     string
	reason   string
	policy   protocol.PolicyOverrides
}

// The waits that are shortened for the show. Run says so on screen.
const (
	showLeaseMS      = 3_000
	showAckTimeoutMS = 3_000
)

// steps is the relay, in its order.
var steps = []step{
	{id: "survey", to: surveyor, taskType: "survey", task: "Survey the files of the directory: how many, how large, in which languages.",
		reason: "a review was asked for, and begins with what is there",
		// A machine that is busy with other things may well lose a lease as short
		// as the surveyor's: that shall not end the relay.
		policy: protocol.PolicyOverrides{MaxAttempts: new(6)}},
	{id: "history", to: historian, taskType: "history", task: "Read the git history: who changed what, and how often.",
		reason: "the files are known; what happened to them is not"},
	{id: "inspection", to: reviewer, taskType: "code", task: "Inspect the code for what needs care: notes to self, long files and functions, large binaries.",
		reason: "files and history are known; somebody has to look inside"},
	{id: "decision", to: maintainer, taskType: "decision", task: "Decide which of the findings comes first.",
		reason: "what matters most is for whoever owns the code to say",
		policy: protocol.PolicyOverrides{AckTimeoutMS: new(int64(showAckTimeoutMS))}},
	{id: "report", to: reporter, taskType: "report", task: "Write a report in Markdown from all the results.",
		reason: "everything is known and decided; somebody has to write it down"},
	{id: "proofreading", to: reviewer, taskType: "prose", task: "Proofread the report.",
		reason: "the report is written; another pair of eyes shall read it"},
}

func stepIndex(id string) int {
	return slices.IndexFunc(steps, func(s step) bool { return s.id == id })
}

// first makes the package that begins the relay.
func first(run, workflow, dir string) protocol.Package {
	intent := "know what is in the directory and what in it needs care"
	return addressed(0, requester, "", protocol.Context{
		OriginalRequest: "Review the directory " + filepath.Base(dir),
		UserIntent:      &intent,
		ConversationID:  &workflow,
		WorkflowID:      workflow,
		Variables:       map[string]json.RawMessage{varDirectory: text(dir), varRun: text(run)},
		Constraints:     []string{"read only: nothing in the directory is changed"},
		WhenStuck:       []string{"say what is missing; somebody will answer"},
	})
}

// yield is what an agent's work brought.
type yield struct {
	body      any
	summary   string
	artifacts []protocol.Artifact
	relevant  []protocol.FileReference
	decision  string // where the work was to decide
}

// next makes the package with which the agent that has done one step hands on
// to the following one. Nothing in it depends on the time or the attempt: an
// agent that was killed after it had handed on makes the same package again,
// and by its key the same handoff.
func next(done int, agent, ticket string, in protocol.Package, y yield) (protocol.Package, error) {
	body, err := json.Marshal(y.body)
	if err != nil {
		return protocol.Package{}, err
	}
	s, context := steps[done], in.Context
	context.IntermediateResults = map[string]json.RawMessage{s.id: body}
	for id, result := range in.Context.IntermediateResults {
		context.IntermediateResults[id] = result
	}
	context.KeyPoints = append(slices.Clone(context.KeyPoints), s.id+": "+y.summary)
	context.Artifacts.List = append(slices.Clone(context.Artifacts.List), y.artifacts...)
	context.RelevantFiles = append(slices.Clone(context.RelevantFiles), y.relevant...)
	if y.decision != "" {
		context.Decisions = append(slices.Clone(context.Decisions), protocol.Decision{
			ID: s.id, Description: y.decision, Rationale: y.summary, MadeBy: agent})
	}
	return addressed(done+1, agent, ticket, context), nil
}

// addressed makes the package of a step.
func addressed(i int, source, parent string, context protocol.Context) protocol.Package {
	s := steps[i]
	context.Phase, context.NextPhase = s.id, ""
	context.CompletedSteps, context.RemainingSteps = nil, nil
	for j, other := range steps {
		switch {
		case j < i:
			context.CompletedSteps = append(context.CompletedSteps, text(other.id))
		case j > i:
			context.RemainingSteps = append(context.RemainingSteps, text(other.id))
		}
	}
	if i+1 < len(steps) {
		context.NextPhase = steps[i+1].id
	}
	return protocol.Package{
		Key:     context.WorkflowID + "/" + s.id,
		Trigger: protocol.TriggerTaskCompletion,
		Source:  source,
		Target:  protocol.Target{Agent: s.to},
		Reason:  s.reason,
		Parent:  parent,
		Task:    protocol.Task{ID: s.id, Type: s.taskType, Description: s.task},
		Context: context,
		Policy:  s.policy,
	}
}

// relay submits packages and keeps a list of those that were acknowledged, so
// that at the end the ledger can be held against it.
type relay struct {
	b   *broker.Broker
	run string
}

// acknowledged is the file, one ticket to a line, shared by all processes.
const acknowledged = "acknowledged"

func (r relay) submit(ctx context.Context, pkg protocol.Package) (string, error) {
	prepared, err := r.b.Prepare(ctx, pkg)
	if err != nil {
		return "", err
	}
	_, err = r.b.Submit(ctx, prepared)
	switch {
	case errors.Is(err, &protocol.Error{Code: protocol.CodeKeyReused}):
		// An attempt before this one has handed on, and found something else: the
		// directory lives. The handoff that stands is the one.
		return prepared.Ticket, nil
	case err != nil:
		return "", fmt.Errorf("hand on to %s: %w", pkg.Target, err)
	}
	return prepared.Ticket, r.record(prepared.Ticket)
}

// record notes a ticket after the engine has acknowledged it. A line as short
// as this is appended whole, whoever else appends.
func (r relay) record(ticket string) error {
	list, err := os.OpenFile(filepath.Join(r.run, acknowledged), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = list.WriteString(ticket + "\n")
	return errors.Join(err, list.Close())
}

func text(s string) json.RawMessage {
	raw, _ := json.Marshal(s) // a string always has a JSON form
	return raw
}
