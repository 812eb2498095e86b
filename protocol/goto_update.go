package protocol

import (
	"cmp"
	"encoding/json"
	"fmt"
	"path"
	"reflect"
	"slices"
	"strings"

	"github.com/agenthandoff/handoff/protocol/internal/wirejson"
)

// update is what a command says beside its goto, read. See Continue.
type update struct {
	reason    string
	task      *Task // its description may be empty
	artifacts Artifacts
	created   []Artifact // context.artifacts_created
	variables map[string]json.RawMessage

	phase, nextPhase               string
	completedSteps, remainingSteps []json.RawMessage
	metrics                        map[string]json.RawMessage
	decisions                      []Decision
	// homeless are the fields of a member's update that a member has no place for.
	homeless map[string]json.RawMessage
}

var (
	artifactsShape = shapes.Of(reflect.TypeFor[Artifacts]())
	artifactShape  = shapes.Of(reflect.TypeFor[Artifact]())
	decisionShape  = shapes.Of(reflect.TypeFor[Decision]())
	taskShape      = shapes.Of(reflect.TypeFor[Task]())
	mapShape       = shapes.Of(reflect.TypeFor[map[string]json.RawMessage]())
	listShape      = shapes.Of(reflect.TypeFor[[]json.RawMessage]())
)

// updateReader takes an update apart, field by field, until something is wrong.
type updateReader struct {
	update
	from string
	err  *Error
}

// readUpdate reads an update. field is its path, from the agent that made it.
func readUpdate(field string, raw json.RawMessage, from string) (update, *Error) {
	if c := first(raw); c == 0 || c == 'n' {
		return update{}, nil
	}
	r := updateReader{from: from}
	r.variables = map[string]json.RawMessage{}
	r.homeless = map[string]json.RawMessage{}
	top := r.object(field, raw)
	r.tasks(field, top)
	r.context(field+".context", take(top, "context"))
	r.workflow(field+".workflow_state", r.remember(top, "workflow_state"))
	if reason := r.text(field+".reason", take(top, "reason")); strings.TrimSpace(reason) != "" {
		r.reason = reason
	}
	if raw := take(top, "artifacts"); raw != nil {
		r.read(field+".artifacts", raw, artifactsShape, &r.artifacts)
		r.keep(checkArtifacts(field+".artifacts", r.artifacts))
	}
	r.metrics = r.object(field+".metrics", r.remember(top, "metrics"))
	r.readDecisions(field+".decisions", r.remember(top, "decisions"))
	r.variables = overlay(r.variables, top)
	return r.update, r.err
}

// take removes a field and returns what it held; nil where it is absent or null.
func take(of map[string]json.RawMessage, name string) json.RawMessage {
	raw := of[name]
	delete(of, name)
	if first(raw) == 'n' {
		return nil
	}
	return raw
}

// remember is take for a field that a member has no place for.
func (r *updateReader) remember(of map[string]json.RawMessage, name string) json.RawMessage {
	raw := take(of, name)
	if raw != nil {
		r.homeless[name] = raw
	}
	return raw
}

// keep keeps the first error.
func (r *updateReader) keep(err *Error) {
	if r.err == nil && err != nil {
		r.err = err
	}
}

// read decodes a field as strictly as the rest of the wire.
func (r *updateReader) read(field string, raw json.RawMessage, sh *wirejson.Shape, into any) {
	if raw == nil || r.err != nil {
		return
	}
	if err := decodeStrict(raw, "", ResultBytesMax, 0, sh, into); err != nil {
		e := *err.(*Error)
		if e.Field == "" {
			e.Field = field
		} else {
			e.below(field)
		}
		r.err = &e
	}
}

func (r *updateReader) text(field string, raw json.RawMessage) (text string) {
	r.read(field, raw, textShape, &text)
	return text
}

func (r *updateReader) name(field string, raw json.RawMessage) string {
	text := r.text(field, raw)
	r.keep(checkName(field, text))
	return text
}

func (r *updateReader) object(field string, raw json.RawMessage) map[string]json.RawMessage {
	fields := map[string]json.RawMessage{}
	r.read(field, raw, mapShape, &fields)
	return fields
}

func (r *updateReader) list(field string, raw json.RawMessage) (list []json.RawMessage) {
	r.read(field, raw, listShape, &list)
	return list
}

// tasks finds what is to be done next; what was said a second time is left
// where it is.
func (r *updateReader) tasks(field string, top map[string]json.RawMessage) {
	for _, name := range []string{"next_task", "task", "task_description"} {
		if r.task == nil {
			r.oneTask(field+"."+name, take(top, name))
		}
	}
}

func (r *updateReader) oneTask(field string, raw json.RawMessage) {
	if raw == nil {
		return
	}
	var task Task
	if first(raw) == '{' {
		r.read(field, raw, taskShape, &task)
		r.keep(checkName(field+".id", task.ID))
		r.keep(checkName(field+".type", task.Type))
	} else {
		task.Description = r.text(field, raw)
	}
	if strings.TrimSpace(task.Description) == "" {
		task.Description = "" // that of before
	}
	r.task = &task
}

// context reads what agents of the swarm pattern put into update.context.
func (r *updateReader) context(field string, raw json.RawMessage) {
	context := r.object(field, raw)
	take(context, "previous_agent")
	take(context, "completed")
	if r.task == nil {
		r.oneTask(field+".task_description", take(context, "task_description"))
	}
	field += ".artifacts_created"
	for i, raw := range r.list(field, take(context, "artifacts_created")) {
		at := fmt.Sprintf("%s[%d]", field, i)
		artifact := Artifact{CreatedBy: r.from}
		if first(raw) == '"' {
			artifact.Path = r.text(at, raw)
		} else {
			r.read(at, raw, artifactShape, &artifact)
		}
		r.created = append(r.created, artifact)
	}
	r.keep(checkArtifacts(field, Artifacts{List: r.created}))
	r.variables = overlay(r.variables, context)
}

func (r *updateReader) workflow(field string, raw json.RawMessage) {
	state := r.object(field, raw)
	r.phase = r.name(field+".phase", take(state, "phase"))
	r.nextPhase = r.name(field+".next_phase", take(state, "next_phase"))
	r.completedSteps = r.list(field+".completed_steps", take(state, "completed_steps"))
	r.remainingSteps = r.list(field+".remaining_steps", take(state, "remaining_steps"))
	r.variables = overlay(r.variables, state)
}

func (r *updateReader) readDecisions(field string, raw json.RawMessage) {
	for i, raw := range r.list(field, raw) {
		at := fmt.Sprintf("%s[%d]", field, i)
		decision := Decision{MadeBy: r.from}
		if first(raw) == '"' {
			decision.Description = r.text(at, raw)
		} else {
			r.read(at, raw, decisionShape, &decision)
		}
		r.decisions = append(r.decisions, decision)
	}
}

// apply makes the changes to a package that goes to all targets.
func (u *update) apply(pkg *Package) {
	pkg.Reason = cmp.Or(u.reason, pkg.Reason)
	if u.task != nil {
		pkg.Task = u.task.instead(pkg.Task)
	}
	c := &pkg.Context
	c.Variables = overlay(c.Variables, u.variables)
	c.Artifacts = c.Artifacts.With(u.artifacts).withCreated(u.created)
	c.Phase, c.NextPhase = cmp.Or(u.phase, c.Phase), cmp.Or(u.nextPhase, c.NextPhase)
	if u.completedSteps != nil {
		c.CompletedSteps = u.completedSteps
	}
	if u.remainingSteps != nil {
		c.RemainingSteps = u.remainingSteps
	}
	c.Metrics = overlay(c.Metrics, u.metrics)
	c.Decisions = append(slices.Clip(c.Decisions), u.decisions...)
	tidyPackage(pkg)
}

// member is the member of a group that the update is for alone. task is the
// group's.
func (u *update) member(to Target, task Task) Member {
	m := Member{Target: to, Reason: u.reason, Artifacts: u.artifacts.withCreated(u.created)}
	if u.task != nil {
		own := u.task.instead(task)
		m.Task = &own
	}
	if m.Variables = overlay(u.variables, u.homeless); len(m.Variables) == 0 {
		m.Variables = nil
	}
	return m
}

// instead is the task that an update describes, in place of what was to be done
// before. The id of the task stays where it gives none, and the type and the
// requirements where it gives no other description.
func (t Task) instead(before Task) Task {
	t.ID = cmp.Or(t.ID, before.ID)
	if t.Description == "" || t.Description == before.Description {
		t.Description, t.Type = before.Description, cmp.Or(t.Type, before.Type)
		if t.Requirements == nil {
			t.Requirements = before.Requirements
		}
	}
	return t
}

// withCreated adds artifacts that were told of in a list of what was made. A
// bare path that is one of these already, or the last part of one, adds nothing;
// to a map others are added under their path.
func (a Artifacts) withCreated(created []Artifact) Artifacts {
	if len(created) == 0 {
		return a
	}
	there := map[string]bool{}
	for _, artifact := range a.All() {
		there[artifact.Path], there[path.Base(artifact.Path)] = true, true
	}
	var more Artifacts
	for _, artifact := range created {
		bare := artifact == Artifact{Path: artifact.Path, CreatedBy: artifact.CreatedBy}
		switch {
		case bare && there[artifact.Path]:
		case bare && a.ByName != nil:
			at := artifact.Path
			a = a.With(Artifacts{ByName: map[string]*string{at: &at}})
		default:
			more.List = append(more.List, artifact)
		}
	}
	return a.With(more)
}
