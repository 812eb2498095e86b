package schema

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/santhosh-tekuri/jsonschema/v6/kind"

	"github.com/agenthandoff/handoff/protocol"
)

// The reader of an explanation is a person or a model that tries again: the first few problems
// help, the rest is noise, and none may quote a megabyte.
const (
	problemsMax     = 3
	problemBytesMax = 300
	namesMax        = 20
)

// explain names the first places where the value violates the schema, and how.
func explain(err *jsonschema.ValidationError) string {
	leaves := leavesOf(err)
	var problems []string
	for _, leaf := range leaves.first {
		problems = append(problems, problem(leaf))
	}
	if more := leaves.count - len(leaves.first); more > 0 {
		problems = append(problems, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(problems, "; ")
}

// leaves holds errors without a cause of their own: the first problemsMax of them, their number,
// and the depth of the deepest in the value.
type leaves struct {
	first          []*jsonschema.ValidationError
	count, deepest int
}

func (l *leaves) add(more leaves) {
	room := min(problemsMax-len(l.first), len(more.first))
	l.first = append(l.first, more.first[:room]...)
	l.count, l.deepest = l.count+more.count, max(l.deepest, more.deepest)
}

// leavesOf returns the leaves of an error. If all alternatives failed, it keeps those of the one
// that matched furthest into the value: it was most likely meant.
func leavesOf(err *jsonschema.ValidationError) leaves {
	if len(err.Causes) == 0 {
		return leaves{first: []*jsonschema.ValidationError{err}, count: 1, deepest: len(err.InstanceLocation)}
	}
	found, alternatives := leaves{deepest: -1}, isAlternatives(err)
	for _, cause := range err.Causes {
		of := leavesOf(cause)
		switch {
		case alternatives && of.deepest > found.deepest:
			found = of
		case !alternatives || of.deepest == found.deepest:
			found.add(of)
		}
	}
	return found
}

func isAlternatives(err *jsonschema.ValidationError) bool {
	switch err.ErrorKind.(type) {
	case *kind.AnyOf, *kind.OneOf:
		return true
	}
	return false
}

// inside returns the place in a field of the first problem, including the first missing member
// there.
func inside(field string, err *jsonschema.ValidationError) string {
	first := leavesOf(err).first[0]
	path := first.InstanceLocation
	if missing, ok := first.ErrorKind.(*kind.Required); ok && len(missing.Missing) > 0 {
		path = append(slices.Clone(path), missing.Missing[0])
	}
	return place(append([]string{field}, path...))
}

// problem describes a place and its problem, without the causes.
func problem(leaf *jsonschema.ValidationError) string {
	alone := jsonschema.ValidationError{SchemaURL: leaf.SchemaURL, ErrorKind: trimmed(leaf.ErrorKind)}
	what := strings.TrimPrefix(alone.Error(), "at '': ")
	if _, forbidden := leaf.ErrorKind.(*kind.FalseSchema); forbidden {
		what = "nothing is allowed here"
	}
	where := place(leaf.InstanceLocation)
	if where == "" {
		return short(what)
	}
	return where + ": " + short(what)
}

// trimmed shortens the quotes of a value in an error before it is formatted: a text may have 64
// MiB, and so may the names of properties.
func trimmed(what jsonschema.ErrorKind) jsonschema.ErrorKind {
	switch what := what.(type) {
	case *kind.Pattern:
		return &kind.Pattern{Got: short(what.Got), Want: what.Want}
	case *kind.PropertyNames:
		return &kind.PropertyNames{Property: short(what.Property)}
	case *kind.AdditionalProperties:
		names := slices.Clone(what.Properties[:min(len(what.Properties), namesMax)])
		for i, name := range names {
			names[i] = short(name)
		}
		return &kind.AdditionalProperties{Properties: names}
	}
	return what
}

// place formats a path like the rest of the product: findings[0].severity.
func place(path []string) string {
	var b strings.Builder
	for _, step := range path {
		_, err := strconv.ParseUint(step, 10, 32)
		switch {
		case err == nil:
			b.WriteString("[" + step + "]")
		case b.Len() > 0:
			b.WriteString("." + step)
		default:
			b.WriteString(step)
		}
	}
	return short(b.String())
}

func short(text string) string { return protocol.CutText(text, problemBytesMax) }
