package schema

import (
	"encoding/json"
	"errors"
	"math/big"
	"reflect"
	"strings"
	"sync"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/agenthandoff/handoff/protocol"
)

// Costs of the parts of a check, in steps. They are chosen so that a step takes at most 8 bytes
// of memory.
const (
	stepsPerVisit  = 32 // one value against one schema, and each error that the visit may end with
	stepsPerLevel  = 4  // of the path that such an error keeps
	stepsPerMember = 16 // a property or item noted as not yet evaluated
	bytesPerStep   = 16 // of compared, hashed or counted text
	instructsAStep = 4  // of a regular expression, at one byte of text
)

// errSteps ends a check by a panic: the library has neither a context nor a limit.
var errSteps = errors.New("too many steps")

// meter counts the steps of a check while the library makes it, as the format of each schema and
// in each regular expression. The library asks for a format before it visits parts of the value.
type meter struct {
	sync.Mutex // held during a check
	left       int
	visit      int // steps of a visit or an error at the deepest level of the value
	alone      bool
}

// start begins a check of a value of a depth. The caller calls stop when it ends.
func (m *meter) start(depth int, alone bool) {
	m.Lock()
	m.left, m.visit, m.alone = outputStepsMax, stepsPerVisit+stepsPerLevel*depth, alone
	if alone {
		heavy.Lock()
	}
}

func (m *meter) stop() {
	if m.alone {
		heavy.Unlock()
	}
	m.Unlock()
}

// spend takes steps from a check, and ends it if there are not enough.
func (m *meter) spend(steps int) {
	if m.left -= steps; m.left < 0 {
		panic(errSteps)
	}
	if !m.alone && outputStepsMax-m.left > stepsLight {
		heavy.Lock()
		m.alone = true
	}
}

// install makes the meter count the checks of compiled schemas. It refuses those that check a value
// too often, or endlessly.
func (m *meter) install(all map[*jsonschema.Schema]bool) *protocol.Error {
	chains := chains{}
	for s := range all {
		chain, ends := chains.of(s)
		switch {
		case s.DynamicRef != nil || s.RecursiveRef != nil:
			return protocol.Errorf(protocol.CodeInvalid, Field, "uses $dynamicRef or $recursiveRef, which are not followed; use $ref")
		case s.MultipleOf != nil && s.MultipleOf.Sign() <= 0: // the library divides by it
			return protocol.Errorf(protocol.CodeInvalid, Field, "has a multipleOf that is not positive")
		case !ends:
			return protocol.Errorf(protocol.CodeInvalid, Field, "refers to itself for one and the same value, so that its check never ends")
		case chain.schemas > outputSchemaExpansionMax:
			return tooLarge("checks one value against too many schemas when its references are followed, at most %d are allowed", outputSchemaExpansionMax)
		case chain.length > outputSchemaDepthMax:
			return tooLarge("has too long a chain of schemas for one value when its references are followed, at most %d are allowed", outputSchemaDepthMax)
		}
	}
	for s := range all {
		if s.Enum != nil || s.Const != nil { // compared after the format, so that they are counted first
			s.AllOf = append(s.AllOf, &jsonschema.Schema{DraftVersion: s.DraftVersion, Enum: s.Enum, Const: s.Const})
		}
		s.Format = &jsonschema.Format{Validate: m.counter(s)} // drafts before 2019-09 assert formats; here none does
		s.Enum, s.Const = nil, nil
	}
	return nil
}

// counter returns a format that is always kept to, and counts a visit of s: all errors it may end
// with, and the visits of all schemas that it applies to the value and to each of its members.
func (m *meter) counter(s *jsonschema.Schema) func(any) error {
	visits, own := 1+2*len(here(s)), 4*len(s.Required)
	for _, n := range []*int{s.MinLength, s.MaxLength, s.MinItems, s.MaxItems, s.MinProperties, s.MaxProperties, s.MinContains, s.MaxContains} {
		if n != nil {
			visits++
		}
	}
	for _, bound := range []*big.Rat{s.Minimum, s.Maximum, s.ExclusiveMinimum, s.ExclusiveMaximum, s.MultipleOf} {
		if bound != nil {
			visits, own = visits+1, own+bound.Num().BitLen()+bound.Denom().BitLen()
		}
	}
	for _, names := range s.DependentRequired {
		visits, own = visits+1, own+4*len(names)
	}
	for _, dependency := range s.Dependencies {
		names, _ := dependency.([]string)
		visits, own = visits+1, own+4*len(names)
	}
	var compared []any
	if s.Enum != nil {
		compared = s.Enum.Values
	}
	if s.Const != nil {
		compared = append(compared[:len(compared):len(compared)], *s.Const)
	}
	own += weight(compared)
	each := 2 * len(s.PatternProperties) // visits of a member
	for _, applied := range []bool{
		len(s.Properties) > 0 || s.AdditionalProperties != nil || len(s.PrefixItems) > 0 || s.Items != nil || s.Items2020 != nil || s.AdditionalItems != nil,
		s.PropertyNames != nil, s.Contains != nil, s.UnevaluatedProperties != nil, s.UnevaluatedItems != nil,
	} {
		if applied {
			each += 2
		}
	}
	return func(value any) error {
		steps := own + visits*m.visit
		switch value := value.(type) {
		case string:
			steps += len(value) / bytesPerStep
		case json.Number:
			steps += weight(value) * (visits + len(compared))
		case []any:
			steps += (stepsPerMember + each*m.visit) * len(value)
			if s.UniqueItems {
				// The library hashes long arrays, but lists and objects can be made to have the same hash: each
				// of those may be compared with all others.
				steps += weight(value) * (20 + nested(value))
			}
		case map[string]any:
			steps += (stepsPerMember + each*m.visit) * len(value)
		}
		m.spend(steps)
		return nil
	}
}

// weight returns the cost of comparing or hashing a value.
func weight(value any) int {
	switch value := value.(type) {
	case string:
		return 1 + len(value)/bytesPerStep
	case json.Number: // computed exactly
		if strings.ContainsAny(value.String(), "eE") {
			return 1000
		}
		return 16 + len(value)
	case []any:
		sum := 1
		for _, item := range value {
			sum += weight(item)
		}
		return sum
	case map[string]any:
		sum := 1
		for name, item := range value {
			sum += 4 + len(name)/bytesPerStep + weight(item)
		}
		return sum
	}
	return 1
}

// nested counts the lists and objects in a list.
func nested(items []any) (count int) {
	for _, item := range items {
		switch item.(type) {
		case []any, map[string]any:
			count++
		}
	}
	return count
}

// chain is how many schemas apply to one value, including the first, and how many in a row.
type chain struct{ schemas, length int }

// chains are the chains that begin at each schema; of none while it is computed.
type chains map[*jsonschema.Schema]chain

// of returns the chain of a schema, and whether it ends.
func (known chains) of(s *jsonschema.Schema) (chain, bool) {
	if c, seen := known[s]; seen {
		return c, c.length > 0
	}
	known[s] = chain{}
	sum := chain{schemas: 1}
	for _, next := range here(s) {
		c, ends := known.of(next)
		if !ends {
			return chain{}, false
		}
		sum.schemas, sum.length = min(sum.schemas+c.schemas, outputSchemaExpansionMax+1), max(sum.length, c.length)
	}
	sum.length++
	known[s] = sum
	return sum, true
}

// here returns the schemas that s applies to the same value.
func here(s *jsonschema.Schema) (all []*jsonschema.Schema) {
	add := func(list ...*jsonschema.Schema) {
		for _, next := range list {
			if next != nil {
				all = append(all, next)
			}
		}
	}
	add(s.Ref, s.Not, s.If, s.Then, s.Else)
	add(s.AllOf...)
	add(s.AnyOf...)
	add(s.OneOf...)
	for _, next := range s.DependentSchemas {
		add(next)
	}
	for _, dependency := range s.Dependencies {
		next, _ := dependency.(*jsonschema.Schema)
		add(next)
	}
	return all
}

// collect adds the schemas that a part of a compiled schema leads to.
func collect(part reflect.Value, all map[*jsonschema.Schema]bool) {
	switch part.Kind() {
	case reflect.Pointer:
		s, ok := part.Interface().(*jsonschema.Schema)
		if !ok || s == nil || all[s] {
			return
		}
		all[s] = true
		for i := range part.Elem().NumField() {
			if part.Elem().Type().Field(i).IsExported() {
				collect(part.Elem().Field(i), all)
			}
		}
	case reflect.Interface:
		collect(part.Elem(), all)
	case reflect.Slice:
		for i := range part.Len() {
			collect(part.Index(i), all)
		}
	case reflect.Map:
		for at := part.MapRange(); at.Next(); {
			collect(at.Value(), all)
		}
	}
}
