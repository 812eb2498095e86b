package protocol

import "sync"

// scratch has states that are not in use. A state is two kilobytes.
var scratch = sync.Pool{New: func() any { return new(State) }}

// Scratch returns a copy of s to work on, until Discard.
func (s *State) Scratch() *State {
	next := scratch.Get().(*State)
	*next = *s
	return next
}

// Discard gives the memory of a Scratch back.
func (s *State) Discard() {
	*s = State{} // it keeps nothing alive
	scratch.Put(s)
}
