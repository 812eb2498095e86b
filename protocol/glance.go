package protocol

import (
	"reflect"
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
	var r Record
	if err := decodeRecord(body, seq, &r, g.state, g.event); err != nil {
		return Record{}, err
	}
	return r, nil
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
	less := *sh
	less.fields = map[string]*field{}
	for _, name := range names {
		if sh.fields[name] == nil {
			panic("protocol: a " + sh.owner + " has no field " + name)
		}
		less.fields[name] = sh.fields[name]
	}
	return &less
}

// without is the shape without these fields.
func (sh *shape) without(names ...string) *shape {
	less := *sh
	less.fields = map[string]*field{}
	for name, f := range sh.fields {
		less.fields[name] = f
	}
	for _, name := range names {
		delete(less.fields, name)
	}
	return &less
}

var wordsShape = packageShape.only([]string{"reason", "task"})

// PackageWords reads the description of the task and the reason of the handoff
// out of a package as it is stored.
func PackageWords(body []byte) (description, reason string, err error) {
	var p Package
	s := scanner{data: body, lenient: true}
	if s.value(wordsShape, reflect.ValueOf(&p).Elem(), false) {
		s.end()
	}
	if err := s.broken("package"); err != nil {
		return "", "", err
	}
	return p.Task.Description, p.Reason, nil
}
