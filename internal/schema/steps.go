package schema

import (
	"encoding/json"
	"strconv"
	"strings"
)

// Costs of the parts of a check, in steps. They are chosen so that a step takes at most 8 bytes
// of memory.
const (
	stepsPerVisit   = 32 // one value against one schema
	stepsPerError   = 32 // each error that the visit may end with
	stepsPerLevel   = 4  // of the path that such an error keeps
	stepsPerDigit   = 4  // of a number used in a computation
	stepsPerNoted   = 16 // a property or item noted as not yet evaluated
	bytesPerStep    = 16 // of compared, hashed or counted text
	instructsAStep  = 4  // of a regular expression, at one byte of text
	smallArrayItems = 20 // up to which uniqueItems compares every pair
)

// count walks over a value like the library's check, regardless of the outcome of each part, and
// adds up the costs. It stops when they exceed most, so that counting ends too.
type count struct {
	steps, most int
}

// within reports whether the check of value costs at most so many steps, and returns the counted
// steps.
func (p *price) within(most int, value any) (steps int, ok bool) {
	c := &count{most: most}
	ok = c.visit(p, value, 0, 0, false)
	return c.steps, ok
}

func (c *count) spend(steps int) bool {
	c.steps += steps
	return c.steps <= c.most
}

// visit counts one schema for one value at a depth of level. chain is how many schemas led here for
// the same value, noted whether one of them records evaluated parts.
func (c *count) visit(p *price, value any, level, chain int, noted bool) bool {
	own := stepsPerVisit + (stepsPerError+stepsPerLevel*level)*(1+p.asserts) + chain + p.perValue
	if !c.spend(own) || !c.equal(p, value) {
		return false
	}
	number, isNumber := value.(json.Number)
	if isNumber && !c.spend(p.perDigit*digits(number)) {
		return false
	}
	if p.types != nil && !p.types[typeOf(value)] {
		return true // the library stops here too
	}
	noted = noted || p.unevaluated
	switch value := value.(type) {
	case string:
		if !c.text(p, value) {
			return false
		}
	case []any:
		if noted && !c.spend(stepsPerNoted*len(value)) || !c.items(p, value, level) {
			return false
		}
	case map[string]any:
		if noted && !c.spend(stepsPerNoted*len(value)) || !c.properties(p, value, level) {
			return false
		}
	}
	for _, next := range p.here {
		if !c.visit(next, value, level, chain+1, noted) {
			return false
		}
	}
	return true
}

// equal counts the comparison with the values of enum and const.
func (c *count) equal(p *price, value any) bool {
	if len(p.enum) == 0 {
		return true
	}
	kind := typeOf(value)
	width := 0
	if number, ok := value.(json.Number); ok {
		width = digits(number)
	}
	for _, item := range p.enum {
		cost := 1
		if typeOf(item) == kind {
			cost += weight(item) + stepsPerDigit*width
		}
		if !c.spend(cost) {
			return false
		}
	}
	return true
}

func (c *count) text(p *price, text string) bool {
	return c.spend(p.perByte*(1+len(text)/bytesPerStep)) && c.match(p.pattern, text)
}

func (c *count) match(re *pattern, text string) bool {
	if re == nil {
		return true
	}
	return c.spend(re.instructions + (len(text)+1)*re.instructions/instructsAStep)
}

func (c *count) properties(p *price, object map[string]any, level int) bool {
	for name, value := range object {
		if !c.spend(4 + len(name)/bytesPerStep) {
			return false
		}
		next, named := p.properties[name]
		if named && !c.visit(next, value, level+1, 0, false) {
			return false
		}
		for _, m := range p.matching {
			if !c.match(&m.pattern, name) {
				return false
			}
			if m.MatchString(name) {
				named = true
				if !c.visit(m.price, value, level+1, 0, false) {
					return false
				}
			}
		}
		if p.additional != nil && !named && !c.visit(p.additional, value, level+1, 0, false) {
			return false
		}
		if p.anyProperty != nil && !c.visit(p.anyProperty, value, level+1, 0, false) {
			return false
		}
		if p.names != nil && (!c.spend(2*stepsPerError+stepsPerLevel*level) || !c.visit(p.names, name, 0, 0, false)) {
			return false
		}
	}
	return true
}

func (c *count) items(p *price, items []any, level int) bool {
	if !c.spend(2 * len(items)) {
		return false
	}
	if p.uniqueItems && !c.unique(items) {
		return false
	}
	for i, item := range items {
		if i < len(p.firstItems) && !c.visit(p.firstItems[i], item, level+1, 0, false) {
			return false
		}
		for _, next := range p.eachItem {
			if !c.visit(next, item, level+1, 0, false) {
				return false
			}
		}
	}
	return true
}

// unique counts uniqueItems. The library hashes long arrays, but lists and objects can be made to
// have the same hash: each of those may be compared with all before it.
func (c *count) unique(items []any) bool {
	for i, item := range items {
		cost := weight(item)
		switch item.(type) {
		case []any, map[string]any:
			cost *= i + 2
		default:
			cost *= 2 + min(i, smallArrayItems)
		}
		if !c.spend(cost + 8) {
			return false
		}
	}
	return true
}

// weight returns the cost of comparing or hashing a value.
func weight(value any) int {
	switch value := value.(type) {
	case string:
		return 1 + len(value)/bytesPerStep
	case json.Number:
		return 16 + stepsPerDigit*digits(value)
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

// digits returns the length of a number without an exponent.
func digits(number json.Number) int {
	text := number.String()
	mantissa, exponent, has := strings.Cut(strings.ToLower(text), "e")
	if !has {
		return len(text)
	}
	tens, err := strconv.Atoi(exponent)
	if err != nil {
		tens = 1000 // unwieldyNumber excludes longer ones
	}
	return len(mantissa) + max(tens, -tens)
}
