package schema

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/santhosh-tekuri/jsonschema/v6/kind"
)

// An explanation is read by a person or a model that shall do better next
// time: the first few problems help, the rest is noise, and one of them must
// not quote a megabyte.
const (
	problemsMax     = 3
	problemBytesMax = 300
)

// explain names the places where the value disagrees with the schema, and how.
func explain(err *jsonschema.ValidationError) string {
	leaves := leavesOf(err)
	var problems []string
	for _, leaf := range leaves[:min(len(leaves), problemsMax)] {
		problems = append(problems, problem(leaf))
	}
	if more := len(leaves) - problemsMax; more > 0 {
		problems = append(problems, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(problems, "; ")
}

// leavesOf are the errors that have no cause of their own. Of alternatives that
// all failed, those of the one that got furthest into the value are kept: it is
// the one that was most likely meant.
func leavesOf(err *jsonschema.ValidationError) []*jsonschema.ValidationError {
	if len(err.Causes) == 0 {
		return []*jsonschema.ValidationError{err}
	}
	var leaves []*jsonschema.ValidationError
	furthest, alternatives := -1, isAlternatives(err)
	for _, cause := range err.Causes {
		of := leavesOf(cause)
		if !alternatives {
			leaves = append(leaves, of...)
			continue
		}
		deepest := 0
		for _, leaf := range of {
			deepest = max(deepest, len(leaf.InstanceLocation))
		}
		switch {
		case deepest > furthest:
			furthest, leaves = deepest, of
		case deepest == furthest:
			leaves = append(leaves, of...)
		}
	}
	return leaves
}

func isAlternatives(err *jsonschema.ValidationError) bool {
	switch err.ErrorKind.(type) {
	case *kind.AnyOf, *kind.OneOf:
		return true
	}
	return false
}

// problem says where and what, without the causes.
func problem(leaf *jsonschema.ValidationError) string {
	alone := jsonschema.ValidationError{SchemaURL: leaf.SchemaURL, ErrorKind: leaf.ErrorKind}
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

// place writes a path as the rest of the product does: findings[0].severity.
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

// short cuts text at a whole character.
func short(text string) string {
	if len(text) <= problemBytesMax {
		return text
	}
	return strings.ToValidUTF8(text[:problemBytesMax], "") + "…"
}
