package protocol

import (
	"encoding/json"
	"reflect"
	"slices"
)

// A reader that passes over all of a ledger wants little of each record. What it
// does not want is read over, which costs half of what decoding it does.

// Glance says what of a record such a reader wants.
type Glance struct {
	state  *shape
	events map[EventType]*shape
}

// NewGlance wants these fields of the state, by their names on the wire, and of
// these types of events all that is not heavy to carry: not the policies. It
// panics at a name that does not exist.
func NewGlance(state []string, events ...EventType) *Glance {
	g := &Glance{state: stateShape.only(state), events: map[EventType]*shape{}}
	for _, kind := range events {
		if eventShapes[kind] == nil {
			panic("protocol: no event is called " + string(kind))
		}
		g.events[kind] = eventShapes[kind].without("policy", "summary", "routing")
	}
	return g
}

// Record is DecodeRecord that leaves empty what is not wanted, and leaves out
// the other events: also those that nobody knows.
func (g *Glance) Record(body []byte, seq uint64) (Record, error) {
	r := recordReaders.Get().(*recordReader)
	defer r.free()
	if err := r.read(body, seq, g.state, g.event); err != nil {
		return Record{}, err
	}
	return r.into, nil
}

func (g *Glance) event(s *scanner, r *Record) bool {
	kind, ok := s.eventType()
	if !ok {
		return false
	}
	sh := g.events[kind]
	if sh == nil {
		return s.value(anything, reflect.Value{}, true)
	}
	e := newEvent[kind]()
	r.Events = append(r.Events, e)
	return s.value(sh, reflect.ValueOf(e).Elem(), false)
}

// only is the shape with these fields alone.
func (sh *shape) only(names []string) *shape {
	for _, name := range names {
		if sh.fields[name] == nil {
			panic("protocol: a " + sh.owner + " has no field " + name)
		}
	}
	return sh.wanting(func(name string) bool { return slices.Contains(names, name) })
}

// without is the shape without these fields.
func (sh *shape) without(names ...string) *shape {
	return sh.wanting(func(name string) bool { return !slices.Contains(names, name) })
}

// wanting is the shape with the fields that are wanted. The others keep their
// places, so that they are found where they are expected, and are read over.
func (sh *shape) wanting(wanted func(name string) bool) *shape {
	less := *sh
	less.fields, less.order = map[string]*field{}, make([]*field, len(sh.order))
	for i, f := range sh.order {
		own := *f
		own.unwanted = !wanted(f.name)
		less.fields[f.name], less.order[i] = &own, &own
	}
	return &less
}

var wordsShape = packageShape.only([]string{"reason", "task"})

// PackageWords reads the description of the task and the reason of the handoff
// out of a package as it is stored.
func PackageWords(body []byte) (description, reason string, err error) {
	var p Package
	s := scanner{data: body, lenient: true, texts: pieces{apart: true}}
	if s.value(wordsShape, reflect.ValueOf(&p).Elem(), false) {
		s.end()
	}
	if err := s.broken("package"); err != nil {
		return "", "", err
	}
	return p.Task.Description, p.Reason, nil
}

// PackageOutputSchema reads the output schema out of a package as it is stored;
// nil where it asks for none. The schema is a part of body, not a copy. It costs a
// pass over the package without making anything of it. The error is a *Error.
func PackageOutputSchema(body []byte) (json.RawMessage, error) {
	s := scanner{data: body, lenient: true}
	var found json.RawMessage
	ok := s.within("expectations", func() bool {
		return s.within("output_schema", func() bool {
			s.space()
			start := s.pos
			if !s.value(anything, reflect.Value{}, true) {
				return false
			}
			found = body[start:s.pos:s.pos]
			return true
		})
	})
	if ok {
		s.end()
	}
	if err := s.broken("package"); err != nil {
		return nil, err
	}
	if string(found) == "null" {
		return nil, nil
	}
	return found, nil
}

// within reads the value at hand, and calls read at the value of this field if it
// is an object that has it.
func (s *scanner) within(name string, read func() bool) bool {
	if s.space(); s.pos >= len(s.data) || s.data[s.pos] != '{' {
		return s.value(anything, reflect.Value{}, true)
	}
	s.pos++
	return s.members(func(_ int, raw []byte, escaped bool) bool {
		if string(raw[1:len(raw)-1]) == name || escaped && unquote(raw) == name {
			return read()
		}
		return s.value(anything, reflect.Value{}, true)
	})
}
