package schema

import (
	"encoding/json"
	"math/big"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/agenthandoff/handoff/protocol"
)

// A price is the cost of one compiled schema for one value: the parts of the library's check, and
// the schemas that follow.
type price struct {
	// asserts counts the keywords that may each cause an error.
	asserts int
	// Steps per value, per byte of a text, per digit of a number.
	perValue, perByte, perDigit int
	types                       map[string]bool // nil is any
	enum                        []any
	uniqueItems                 bool
	unevaluated                 bool // evaluated properties and items are recorded
	pattern                     *pattern
	matching                    []matching
	here                        []*price // for the same value
	properties                  map[string]*price
	additional                  *price // for properties that neither names
	anyProperty                 *price // for those not evaluated, perhaps
	names                       *price
	firstItems                  []*price
	eachItem                    []*price
	expansion                   int // for this value, including this schema
	chain                       int // longest chain for this value
	beingExpanded               bool
}

// matching is a price for properties whose name matches an expression.
type matching struct {
	pattern
	price *price
}

// prices computes the prices of a compiled schema, and refuses one that checks a value too often,
// or endlessly.
type prices map[*jsonschema.Schema]*price

func priceOf(root *jsonschema.Schema) (*price, int, *protocol.Error) {
	all := prices{}
	start := all.of(root)
	for s, p := range all {
		switch {
		case s.DynamicRef != nil || s.RecursiveRef != nil:
			return nil, 0, protocol.Errorf(protocol.CodeInvalid, Field, "uses $dynamicRef or $recursiveRef, which are not followed; use $ref")
		case s.MultipleOf != nil && s.MultipleOf.Sign() <= 0: // the library divides by it
			return nil, 0, protocol.Errorf(protocol.CodeInvalid, Field, "has a multipleOf that is not positive")
		case !p.expand():
			return nil, 0, protocol.Errorf(protocol.CodeInvalid, Field, "refers to itself for one and the same value, so that its check never ends")
		case p.expansion > outputSchemaExpansionMax:
			return nil, 0, tooLarge("checks one value against too many schemas when its references are followed, at most %d are allowed", outputSchemaExpansionMax)
		case p.chain > outputSchemaDepthMax:
			return nil, 0, tooLarge("has too long a chain of schemas for one value when its references are followed, at most %d are allowed", outputSchemaDepthMax)
		}
	}
	return start, len(all), nil
}

// expand counts the schemas for one value. It returns false if a schema leads to itself.
func (p *price) expand() bool {
	switch {
	case p.beingExpanded:
		return false
	case p.expansion > 0:
		return true
	}
	p.beingExpanded = true
	sum, chain := 1, 0
	for _, next := range p.here {
		if !next.expand() {
			return false
		}
		sum, chain = min(sum+next.expansion, outputSchemaExpansionMax+1), max(chain, next.chain)
	}
	p.expansion, p.chain, p.beingExpanded = sum, chain+1, false
	return true
}

func (all prices) of(s *jsonschema.Schema) *price {
	if s == nil {
		return nil
	}
	if p := all[s]; p != nil {
		return p
	}
	p := &price{}
	all[s] = p
	s.Format = nil // drafts before 2019-09 assert formats, later ones do not
	p.asserted(s)
	all.applied(p, s)
	all.properties(p, s)
	all.items(p, s)
	return p
}

// asserted counts the keywords that apply to the value itself.
func (p *price) asserted(s *jsonschema.Schema) {
	if s.Types != nil {
		p.types = map[string]bool{}
		for _, name := range s.Types.ToStrings() {
			p.types[name] = true
		}
		if p.types["integer"] && !p.types["number"] {
			p.perDigit += stepsPerDigit
		}
		p.types["number"] = p.types["number"] || p.types["integer"]
	}
	if s.Enum != nil {
		p.enum = s.Enum.Values
	}
	if s.Const != nil {
		p.enum = append(p.enum[:len(p.enum):len(p.enum)], *s.Const)
	}
	for _, n := range []*int{s.MinLength, s.MaxLength, s.MinItems, s.MaxItems, s.MinProperties, s.MaxProperties, s.MinContains, s.MaxContains} {
		if n != nil {
			p.asserts++
		}
	}
	if s.MinLength != nil || s.MaxLength != nil {
		p.perByte++
	}
	for _, bound := range []*big.Rat{s.Minimum, s.Maximum, s.ExclusiveMinimum, s.ExclusiveMaximum, s.MultipleOf} {
		if bound != nil {
			p.asserts++
			p.perDigit += stepsPerDigit
			p.perValue += bound.Num().BitLen() + bound.Denom().BitLen()
		}
	}
	if re, ok := s.Pattern.(pattern); ok {
		p.asserts++
		p.pattern = &re
	}
	if s.UniqueItems {
		p.asserts++
		p.uniqueItems = true
	}
	lists := len(s.Dependencies)
	p.perValue += 4 * len(s.Required)
	for _, names := range s.DependentRequired {
		lists, p.perValue = lists+1, p.perValue+4*len(names)
	}
	for _, dependency := range s.Dependencies {
		if names, ok := dependency.([]string); ok {
			p.perValue += 4 * len(names)
		}
	}
	p.asserts += min(1, len(s.Required)) + lists
	p.perValue += lists
}

// applied collects the schemas that apply to the same value.
func (all prices) applied(p *price, s *jsonschema.Schema) {
	here := []*jsonschema.Schema{s.Ref, s.Not, s.If, s.Then, s.Else}
	for _, list := range [][]*jsonschema.Schema{s.AllOf, s.AnyOf, s.OneOf} {
		here = append(here, list...)
		p.asserts += min(1, len(list))
	}
	for _, next := range s.DependentSchemas {
		here = append(here, next)
	}
	for _, dependency := range s.Dependencies {
		next, _ := dependency.(*jsonschema.Schema)
		here = append(here, next)
	}
	for _, next := range here {
		if next != nil {
			p.here = append(p.here, all.of(next))
		}
	}
	if s.Not != nil || s.Ref != nil {
		p.asserts++
	}
}

func (all prices) properties(p *price, s *jsonschema.Schema) {
	if len(s.Properties) > 0 {
		p.properties = make(map[string]*price, len(s.Properties))
		for name, next := range s.Properties {
			p.properties[name] = all.of(next)
		}
	}
	for re, next := range s.PatternProperties {
		p.matching = append(p.matching, matching{re.(pattern), all.of(next)})
	}
	if s.AdditionalProperties != nil {
		p.asserts++
		if next, ok := s.AdditionalProperties.(*jsonschema.Schema); ok {
			p.additional = all.of(next)
		}
	}
	p.anyProperty, p.names = all.of(s.UnevaluatedProperties), all.of(s.PropertyNames)
	p.unevaluated = s.UnevaluatedProperties != nil || s.UnevaluatedItems != nil
}

func (all prices) items(p *price, s *jsonschema.Schema) {
	each := []*jsonschema.Schema{s.Items2020, s.Contains, s.UnevaluatedItems}
	first := s.PrefixItems
	switch items := s.Items.(type) {
	case *jsonschema.Schema:
		each = append(each, items)
	case []*jsonschema.Schema:
		first = items
	}
	if s.AdditionalItems != nil {
		p.asserts++
		next, _ := s.AdditionalItems.(*jsonschema.Schema)
		each = append(each, next)
	}
	for _, next := range each {
		if next != nil {
			p.eachItem = append(p.eachItem, all.of(next))
		}
	}
	for _, next := range first {
		p.firstItems = append(p.firstItems, all.of(next))
	}
	if s.Contains != nil {
		p.asserts++
	}
}

// typeOf returns the JSON type of a value.
func typeOf(value any) string {
	switch value.(type) {
	case nil:
		return "null"
	case bool:
		return "boolean"
	case json.Number:
		return "number"
	case string:
		return "string"
	case []any:
		return "array"
	}
	return "object"
}
