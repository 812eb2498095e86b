//go:build proof

package sim

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/worker"
)

// asks returns a result that waits, as a program prints it. What it asks for differs from
// attempt to attempt, as what a model asks for does.
func (h *handler) asks(ctx context.Context, of worker.Handoff, what uint64, depth int) (protocol.Result, error) {
	var entries []map[string]any
	var to []string
	for i := range 1 + what>>12%3 {
		to = append(to, other(h.agent, what>>16+i))
	}
	slices.Sort(to)
	for _, agent := range slices.Compact(to) { // the judge takes an agent for one member of a group
		entries = append(entries, map[string]any{"agent": agent, "task": ">>>>>>>"[:depth+1],
			"reason": askedReason, "return": map[string]any{"timeout_ms": 1_800_000}})
	}
	modes := []protocol.Aggregation{"", protocol.AggregateAll, protocol.AggregateAny, protocol.AggregateMajority}
	mode := modes[what>>32%4]
	if mode == protocol.AggregateAny || mode == protocol.AggregateMajority {
		for _, e := range entries {
			delete(e, "return")
		}
	}
	if err := h.l.losesAwait(); err != nil {
		return protocol.Result{}, err
	}
	list, err := json.Marshal(entries)
	result := protocol.Result{Command: &protocol.Command{Await: list, For: mode}}
	if h.l.bug != awaitSplit || err != nil {
		return result, err
	}
	var awaited []string
	for i := range entries {
		child := h.l.newPackage(depth, other(h.agent, what>>16+uint64(i)))
		child.Type, child.Reason = protocol.Delegation, fmt.Sprint(askedReason, i)
		child.Return = &protocol.ReturnProtocol{Expected: true, TimeoutMS: 1_800_000, Wait: protocol.WaitBlock}
		ticket, err := of.HandOff(ctx, child)
		if err != nil {
			return protocol.Result{}, err
		}
		awaited = append(awaited, ticket)
	}
	return protocol.Result{}, worker.Await(awaited...)
}

// askedReason marks what a result waits for.
const askedReason = "asked and waited for"

// checkAwaits: a handoff that has asked others does not complete before it has the ends of all
// of them, unless something else ended its wait.
func (j *judge) checkAwaits(ticket string, after protocol.State, events []protocol.Event) {
	for _, e := range events {
		switch e := e.(type) {
		case *protocol.HandedOff:
			if bytes.Contains(e.Package, []byte(askedReason)) {
				j.asked[ticket] = j.asked[ticket].With(e.N)
			}
		case *protocol.Completed:
			if known := after.Children; known != nil && j.asked[ticket].Without(known.Closed) != "" {
				j.faultLocked("%s completed, and has asked children %v, whose ends it does not know", ticket, j.asked[ticket].Without(known.Closed).Numbers())
			}
		case *protocol.Escalated, *protocol.Taken, *protocol.Rerouted:
			delete(j.asked, ticket)
		}
	}
}
