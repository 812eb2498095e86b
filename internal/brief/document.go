// Package brief renders a package for its readers: one document for a program or a model, facts for
// a person. It is pure.
package brief

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/agenthandoff/handoff/protocol"
)

// Since has the events since a handoff was submitted that its worker needs to know.
type Since struct {
	Answers []protocol.Answer     // to its conditions and escalations, oldest first
	Trail   []protocol.TrailEntry // refusals, questions, escalations, failures
	Returns []protocol.Return     // the ends of children that it waited for
	Shared  *Shared               // the variables of its workflow; nil without one
}

// Shared has the variables of a workflow at the time when the work began.
type Shared struct {
	Workspace string                     `json:"workspace"`
	Variables map[string]json.RawMessage `json:"variables"`
	Versions  map[string]int             `json:"versions"`
}

// SharedOf returns the variables of a workspace.
func SharedOf(w protocol.Workspace) *Shared {
	s := &Shared{w.Name, map[string]json.RawMessage{}, map[string]int{}}
	for name, v := range w.Variables {
		s.Variables[name], s.Versions[name] = v.Value, v.Version
	}
	return s
}

// Document returns a package for a program or a model: as submitted, with the events since.
// Variables of answers replace those of the package.
func Document(submitted json.RawMessage, since Since) (json.RawMessage, error) {
	if len(since.Answers)+len(since.Trail)+len(since.Returns) == 0 && since.Shared == nil {
		return submitted, nil
	}
	var pkg map[string]json.RawMessage
	if err := json.Unmarshal(submitted, &pkg); err != nil {
		return nil, fmt.Errorf("package: %w", err)
	}
	if len(since.Answers) > 0 {
		if err := layOver(pkg, since.Answers); err != nil {
			return nil, err
		}
	}
	for name, more := range map[string]struct {
		any bool
		say any
	}{
		"supplements": {len(since.Answers) > 0, since.Answers},
		"trail":       {len(since.Trail) > 0, since.Trail},
		"returns":     {len(since.Returns) > 0, boundReturns(since.Returns, returnsBytesMax)},
		"shared":      {since.Shared != nil, since.Shared},
	} {
		if !more.any {
			continue
		}
		raw, err := protocol.Marshal(more.say)
		if err != nil {
			return nil, fmt.Errorf("package with its %s: %w", name, err)
		}
		pkg[name] = raw
	}
	return protocol.Marshal(pkg)
}

// layOver puts the variables of answers into the context of a package.
func layOver(pkg map[string]json.RawMessage, answers []protocol.Answer) error {
	var ctx, variables map[string]json.RawMessage
	if err := unmarshalMap(pkg["context"], &ctx); err != nil {
		return fmt.Errorf("package: context: %w", err)
	}
	if err := unmarshalMap(ctx["variables"], &variables); err != nil {
		return fmt.Errorf("package: context.variables: %w", err)
	}
	for _, answer := range answers {
		for name, value := range answer.Variables {
			variables[name] = value
		}
	}
	var err1, err2 error
	ctx["variables"], err1 = protocol.Marshal(variables)
	pkg["context"], err2 = protocol.Marshal(ctx)
	if err := errors.Join(err1, err2); err != nil {
		return fmt.Errorf("package with its supplements: %w", err)
	}
	return nil
}

const (
	// returnsBytesMax bounds the results of the children together: most programs cannot read a
	// hundred large ones at once.
	returnsBytesMax = 16 << 20
	// summaryBytesMax bounds the summary that replaces an omitted result.
	summaryBytesMax = 2 << 10
)

// boundReturns keeps results in their order as long as their sum is at most most bytes. It omits
// each result that would exceed the sum, and may still keep shorter ones after that.
func boundReturns(returns []protocol.Return, most int) []protocol.Return {
	bound := slices.Clone(returns)
	for i := range bound {
		r := &bound[i]
		body, err := protocol.Marshal(struct {
			R *protocol.ReturnResult
			U *protocol.ContextUpdates
			M []protocol.MemberReturn
		}{r.Result, r.ContextUpdates, r.Members})
		if err == nil && len(body) <= most {
			most -= len(body)
			continue
		}
		left := fmt.Sprintf("the result is %s and was left out; read the result of %s", protocol.Size(int64(len(body))), r.HandoffID)
		if r.Audit.Notes != "" {
			left = r.Audit.Notes + "\n" + left
		}
		r.Audit.Notes, r.ContextUpdates = left, nil
		if r.Result != nil {
			r.Result = &protocol.ReturnResult{ContentType: r.Result.ContentType, Summary: protocol.CutText(r.Result.Summary, summaryBytesMax)}
		}
		r.Members = slices.Clone(r.Members)
		for j := range r.Members {
			r.Members[j].Result = nil
		}
	}
	return bound
}

// unmarshalMap decodes an object that may be absent, which yields an empty map.
func unmarshalMap(raw json.RawMessage, to *map[string]json.RawMessage) error {
	if len(raw) > 0 {
		if err := json.Unmarshal(raw, to); err != nil {
			return err
		}
	}
	if *to == nil {
		*to = map[string]json.RawMessage{}
	}
	return nil
}
