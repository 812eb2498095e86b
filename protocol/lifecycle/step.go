package lifecycle

import (
	"fmt"
	"time"

	p "github.com/agenthandoff/handoff/protocol"
)

// Step is one append as the core decides it: its events, and the state that they lead
// to. The events are applied once, here, and a writer stores both as they are. A Step
// without events is nothing to append.
type Step struct {
	Events []p.Event
	State  p.State
}

// StepOf returns the step that events make from a state.
func StepOf(s p.State, events ...p.Event) (t Step, err error) {
	t.State = s
	if err = t.add(events...); err != nil {
		return Step{}, err
	}
	return t, nil
}

// Then returns both steps as one append. next was made from the state of t.
func (t Step) Then(next Step) Step {
	if len(t.Events) == 0 {
		return next
	}
	return Step{Events: append(t.Events, next.Events...), State: next.State}
}

// add applies more events.
func (t *Step) add(events ...p.Event) error {
	if err := applyAll(&t.State, events); err != nil {
		return err
	}
	if t.Events == nil {
		t.Events = events
	} else {
		t.Events = append(t.Events, events...)
	}
	return nil
}

// mustAdd applies more events that the core has decided. One that is not legal is a bug
// here; the tests look for it.
func (t *Step) mustAdd(events ...p.Event) {
	if err := t.add(events...); err != nil {
		panic(fmt.Sprintf("lifecycle: decided what does not apply: %v", err))
	}
}

// decide adds what the core decides next.
func (t *Step) decide(d *Directory, now time.Time) {
	for range stepsMax {
		more := withinBudget(t.State, d, step(t.State, d, now), now)
		if len(more) == 0 {
			break
		}
		if t.State.Breaker == "" { // as a rule
			t.mustAdd(more...)
			continue
		}
		before := t.State
		t.mustAdd(more...)
		if a, ok := AttemptEnded(&before, &t.State, more); ok {
			d = d.afterEnd(a, now)
		}
	}
}
