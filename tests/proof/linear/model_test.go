//go:build proof

package linear

import (
	"fmt"
	"slices"

	"github.com/anishathalye/porcupine"

	"github.com/agenthandoff/handoff/internal/lifecycle"
	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/tests/verify"
)

// model is the sequential specification. The state of a handoff is the number of its appends so far;
// the ledger, read at the end, has the appends themselves. The core decides which appends an
// operation may make, and when it may be refused.
func model(histories map[string][]protocol.Change) porcupine.Model {
	ledgers := map[string]*ledger{}
	for ticket, changes := range histories {
		ledgers[ticket] = &ledger{changes}
	}
	return porcupine.Model{
		Partition: func(all []porcupine.Operation) [][]porcupine.Operation {
			by := map[string][]porcupine.Operation{}
			for _, op := range all {
				ticket := op.Input.(operation).ticket
				by[ticket] = append(by[ticket], op)
			}
			var parts [][]porcupine.Operation
			for _, part := range by {
				parts = append(parts, part)
			}
			return parts
		},
		Init: func() any { return 0 },
		Step: func(state, input, _ any) (bool, any) {
			op := input.(operation)
			return ledgers[op.ticket].step(state.(int), op)
		},
		DescribeOperation: func(input, _ any) string {
			op := input.(operation)
			return fmt.Sprintf("%s appended %d, read %d, refused %t", op.kind, op.appended, op.read, op.refused)
		},
		DescribeState: func(state any) string { return fmt.Sprint(state) },
	}
}

// ledger is that of one handoff.
type ledger struct{ changes []protocol.Change }

// at is the state after n appends.
func (l *ledger) at(n int) protocol.State {
	if n == 0 {
		return protocol.State{}
	}
	return l.changes[n-1].Record.State
}

// step tells whether an operation may happen after n appends, and how many there are then.
func (l *ledger) step(n int, op operation) (bool, any) {
	if op.skip {
		return true, n
	}
	before := n
	for _, seq := range op.appended {
		if n >= len(l.changes) || l.changes[n].Seq != seq {
			return false, n
		}
		n++
	}
	if n == before {
		return l.allowsNoAppend(before, op), n
	}
	return l.allowsAppend(before, op), n
}

// allowsNoAppend checks an operation without an append: it read the current state, or was rightly refused.
func (l *ledger) allowsNoAppend(n int, op operation) bool {
	s := l.at(n)
	switch op.kind {
	case submit, status:
		return op.read == l.seq(n)
	case claim:
		if n == 0 {
			return false
		}
		verdict, step, _ := lifecycle.Claim(s, l.claimant(op), fullDirectory().At(s.UpdatedAt))
		// A holder that has the handoff already gets the claim that stands.
		return op.refused == (verdict != lifecycle.Mine) && verdict != lifecycle.Take && len(step.Events) == 0
	case complete, progress:
		if op.refused {
			return !l.holds(s, op)
		}
		// Repeating a result under the same lease is no error.
		return op.kind == complete && l.completed(n, op)
	case cancel:
		if n == 0 {
			return op.refused
		}
		step, err := lifecycle.Cancel(s, lifecycle.Query{Now: s.UpdatedAt}, source, "enough", false)
		return op.refused == (err != nil) && len(step.Events) == 0
	case answer:
		return op.refused
	}
	return false
}

// allowsAppend checks the append of an operation: it must be the core's decision on the state before.
func (l *ledger) allowsAppend(n int, op operation) bool {
	s, change := l.at(n), l.changes[n]
	folded, err := lifecycle.ApplyAll(s, change.Record.Events)
	if err != nil || folded.Phase != change.Record.State.Phase || folded.Closed != change.Record.State.Closed {
		return false
	}
	if verify.Follows(s, change.Record.State, change.At) != nil {
		return false
	}
	var want lifecycle.Step
	switch op.kind {
	case submit:
		return n == 0 && op.read == change.Seq
	case claim:
		verdict, step, _ := lifecycle.Claim(s, l.claimant(op), fullDirectory().At(s.UpdatedAt))
		want = step
		if verdict == lifecycle.Take {
			answer, _ := lifecycle.Acknowledge(step.State, l.claimant(op), op.ack, true, s.UpdatedAt)
			want = step.Then(answer)
		}
	case complete:
		if op.refused { // kept as a late result
			return !l.holds(s, op)
		}
		return l.holds(s, op) && change.Record.State.Closed
	case progress:
		return l.holds(s, op)
	case cancel:
		want, _ = lifecycle.Cancel(s, lifecycle.Query{Now: s.UpdatedAt}, source, "enough", false)
	case answer:
		want, _ = lifecycle.Answer(s, fullDirectory().At(s.UpdatedAt), protocol.Answer{By: source, Question: 1, Text: "this"})
	}
	return slices.Equal(types(want.Events), types(change.Record.Events))
}

func (l *ledger) seq(n int) uint64 {
	if n == 0 {
		return 0
	}
	return l.changes[n-1].Seq
}

func (l *ledger) claimant(op operation) lifecycle.Claimant {
	return lifecycle.Claimant{Agent: agent, Holder: op.claimant.ID, LeaseMS: op.claimant.LeaseMS, Offer: op.offer}
}

// holds tells whether the lease of an operation is that of the state.
func (l *ledger) holds(s protocol.State, op operation) bool {
	return !s.Closed && s.Holder == op.claimant.ID && s.Offer == op.offer && s.Fence == op.fence
}

// completed tells whether a result was handed in under an operation's fence.
func (l *ledger) completed(n int, op operation) bool {
	for _, change := range l.changes[:n] {
		for _, e := range change.Record.Events {
			if done, ok := e.(*protocol.Completed); ok && done.Fence == op.fence {
				return true
			}
		}
	}
	return false
}

// fullDirectory is a directory in which every holder is present.
func fullDirectory() *lifecycle.Directory {
	return &lifecycle.Directory{Agents: map[string]*protocol.Profile{agent: {ID: agent}}}
}

func types(events []protocol.Event) []protocol.EventType {
	var all []protocol.EventType
	for _, e := range events {
		all = append(all, e.EventType())
	}
	return all
}
