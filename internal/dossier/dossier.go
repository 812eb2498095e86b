// Package dossier has the views of handoffs for people and programs: a whole handoff, a tree, an
// inbox, a history, a conversation.
//
// Views are made from a Session of package api, so that all gateways show the same. Their JSON is
// the output of "handoff -o json".
package dossier

import (
	"context"
	"errors"

	"golang.org/x/sync/errgroup"

	"github.com/agenthandoff/handoff/api"
	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/lifecycle"
	"github.com/agenthandoff/handoff/protocol"
)

// StateView is a state for programs. It always has an outcome, empty while it is open.
type StateView struct {
	protocol.State
	Outcome protocol.Outcome `json:"outcome"`
	// Question is the number of its open question, which an answer names.
	Question int           `json:"question,omitempty"`
	Members  []MemberState `json:"members,omitempty"` // of a group, if requested
	// HandedOn is the chain that it continues as, if requested.
	HandedOn *Chain `json:"handed_on,omitempty"`
}

// StateOf returns the view of a state.
func StateOf(s protocol.State) StateView {
	return StateView{State: s, Outcome: s.Outcome, Question: lifecycle.QuestionOf(s).N}
}

// MemberState is a member of a group for programs.
type MemberState struct {
	N       int              `json:"n"` // from 1, in the order of the recipients
	Ticket  string           `json:"ticket"`
	Agent   string           `json:"agent"`
	Phase   protocol.Phase   `json:"phase"` // empty until it is submitted
	Closed  bool             `json:"closed"`
	Outcome protocol.Outcome `json:"outcome"`
}

// ReadsAtOnce is how many handoffs are read in parallel.
const ReadsAtOnce = 16

// InParallel calls fn with the numbers from 0 to n-1, some of them at a time, until one fails.
func InParallel(ctx context.Context, n int, fn func(ctx context.Context, i int) error) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(ReadsAtOnce)
	for i := range n {
		group.Go(func() error { return fn(ctx, i) })
	}
	return group.Wait()
}

// Members reads the states of a group's members. It returns none for other handoffs.
func Members(ctx context.Context, r Reader, s protocol.State) ([]MemberState, error) {
	if s.Aggregate == nil || r == nil {
		return nil, nil
	}
	views := make([]MemberState, s.Aggregate.Size)
	return views, InParallel(ctx, len(views), func(ctx context.Context, n int) error {
		ticket := s.ChildTicket(n)
		m, err := readState(ctx, r, ticket)
		views[n] = MemberState{N: n + 1, Ticket: ticket, Agent: agentOf(m), Phase: m.Phase, Closed: m.Closed, Outcome: m.Outcome}
		return err
	})
}

// PlannedMembers returns the members that a group's package would have.
func PlannedMembers(ticket string, pkg *protocol.Package) ([]MemberState, error) {
	var views []MemberState
	for n := range pkg.GroupSize() {
		m, err := pkg.MemberAt(ticket, n)
		if err != nil {
			return nil, err
		}
		views = append(views, MemberState{N: n + 1, Ticket: m.Ticket, Agent: m.Target.String()})
	}
	return views, nil
}

// StateWithMembers returns the view of a state, with the members of a group.
func StateWithMembers(ctx context.Context, r Reader, s protocol.State) (StateView, error) {
	v := StateOf(s)
	var err error
	v.Members, err = Members(ctx, r, s)
	return v, err
}

// stuckPhase replaces the phase of a handoff whose head cannot be read.
const stuckPhase = "stuck"

// Reader reads the states, results and queries that views need.
type Reader = *api.Session

// readState reads the state of a handoff that another one names. The phase is empty for a handoff
// that is about to be submitted, or that the ledger has dropped.
func readState(ctx context.Context, r ChainReader, ticket string) (protocol.State, error) {
	s, err := r.Status(ctx, ticket)
	switch {
	case errors.Is(err, &protocol.Error{Code: protocol.CodeNotFound}):
		return protocol.State{}, nil
	case broker.Unreadable(err):
		return protocol.State{Phase: stuckPhase}, nil
	}
	return s, err
}

// agentOf returns the agent that has or had a handoff, or else its target.
func agentOf(s protocol.State) string {
	if s.Agent != "" || s.Ticket == "" {
		return s.Agent
	}
	return s.TargetWords()
}
