// Package verify has checks of states and of workspaces that tests make in addition to
// lifecycle.Check. The program makes none of them, and no decision depends on them.
package verify

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"time"

	"github.com/agenthandoff/handoff/internal/lifecycle"
	p "github.com/agenthandoff/handoff/protocol"
)

// Follows verifies that the state after an append is possible, and can follow the state before. The
// zero State precedes a first append. It does not see the events between the states.
func Follows(before, after p.State, now time.Time) error {
	if err := cmp.Or(lifecycle.Check(after, now), checkOrder(before, after), Offer(before, after)); err != nil || !before.Closed {
		return err
	}
	return AfterEnd(before, after)
}

// checkOrder checks that nothing is undone that stays once it is recorded.
func checkOrder(before, s p.State) error {
	b := before.Bidding
	switch {
	case !before.Usage.Total().Beyond(s.Usage.Total()).IsZero():
		return fmt.Errorf("used %+v, and before that %+v", s.Usage, before.Usage)
	case s.UpdatedAt.Before(before.UpdatedAt):
		return fmt.Errorf("went back in time")
	case before.BidAnswer != "" && s.BidAnswer != before.BidAnswer:
		return fmt.Errorf("answered %q, and then %q", before.BidAnswer, s.BidAnswer)
	case b != nil && s.Bidding == nil:
		return fmt.Errorf("waited for bids of %v, and then of no agent", b.Calls)
	case b != nil && !b.AwardedAt.IsZero() && (s.Bidding.Winner != b.Winner || !s.Bidding.AwardedAt.Equal(b.AwardedAt)):
		return fmt.Errorf("awarded to %q, and then to %q", b.Winner, s.Bidding.Winner)
	case before.Account == nil || s.Account == nil:
		return nil
	case before.Closed && *before.Account != *s.Account:
		return fmt.Errorf("account %+v became %+v after it closed", *before.Account, *s.Account)
	}
	for _, name := range p.Dimensions {
		if was, is := before.Account.Raised.Of(name), s.Account.Raised.Of(name); was > is {
			return fmt.Errorf("%s was raised by %d, and then by %d", name, was, is)
		}
	}
	return nil
}

// Offer checks that an ended offer is never offered again: a queue may drop it.
func Offer(before, after p.State) error {
	if lifecycle.OfferStands(after) && !lifecycle.OfferStands(before) && before.Offer != 0 && after.Offer == before.Offer {
		return fmt.Errorf("offer %d is open again after it had ended", after.Offer)
	}
	return nil
}

// AfterEnd checks that a closed handoff changes only in the reports of its end.
func AfterEnd(before, after p.State) error {
	if after.Phase != before.Phase && after.Phase != p.PhaseReturned {
		return fmt.Errorf("went from %s to %s after it closed", before.Phase, after.Phase)
	}
	if b, a := before.Children, after.Children; b != nil && a != nil &&
		(a.Made != b.Made || a.Count != b.Count || a.Awaited != b.Awaited || a.Returning != b.Returning || a.Received != b.Received || a.Dropped != b.Dropped || a.Asked != b.Asked || a.Keys != b.Keys || a.After != b.After || a.Next != b.Next || a.Undelivered != b.Undelivered || b.Closed.Without(a.Closed) != "" || b.Succeeded.Without(a.Succeeded) != "" || b.Cancelled.Without(a.Cancelled) != "") {
		return fmt.Errorf("children %+v became %+v after it closed", *b, *a)
	}
	if before.ChainEnd != nil && (after.ChainEnd == nil || *after.ChainEnd != *before.ChainEnd) {
		return fmt.Errorf("its chain ended as %+v, and then as %+v", *before.ChainEnd, after.ChainEnd)
	}
	for _, s := range []*p.State{&before, &after} {
		s.Phase, s.Children, s.UpdatedAt, s.Inbox, s.RedrivenAs = "", nil, p.Time{}, "", ""
		s.ReturnTicket, s.ReturnedAt, s.PrevHash, s.ChainEnd, s.BidAnswer = "", p.Time{}, "", nil, ""
		s.LateFences, s.LateSeq, s.LateStatus, s.LateVote, s.LateSetAside, s.Usage = nil, 0, "", "", "", nil
	}
	if reflect.DeepEqual(before, after) {
		return nil
	}
	was, err := json.Marshal(before) // read and computed states differ in their empty fields
	if err != nil {
		return err
	}
	is, err := json.Marshal(after)
	if err != nil {
		return err
	}
	if !bytes.Equal(was, is) {
		return fmt.Errorf("changed after it closed:\n%s\n%s", was, is)
	}
	return nil
}

// End verifies that Decide, a worker or a person makes the end that an append records: a final
// failure is a dead letter or in an inbox, and no deadline ends a handoff that an authority could
// still get. For an open handoff it checks that nothing is set aside for ended children.
func End(before, s p.State) error {
	if err := checkSettled(s); err != nil {
		return err
	}
	if before.Closed || !s.Closed {
		return nil
	}
	if s.CallOf != "" { // no person is asked about a call, since others bid
		if s.Inbox != "" {
			return fmt.Errorf("a call, and the inbox of %s lists it", s.Inbox)
		}
		return nil
	}
	switch s.Outcome {
	case p.OutcomeFailed, p.OutcomeTimeout, p.OutcomeRejected:
	default:
		return nil
	}
	if s.Inbox == "" && !lifecycle.DeadLetter(s) {
		return fmt.Errorf("closed as %s (%s), and neither an inbox nor the dead letters list it", s.Outcome, s.Reason)
	}
	if s.Reason != lifecycle.ReasonDeadline {
		return nil
	}
	due := lifecycle.Deadline(s) // the end of the intervention time, or of the longest deadline
	intervened := !due.IsZero() && !s.ClosedAt.Before(due)
	began := !s.AwaitsSource || s.Agent != ""
	goesUp := s.Denied == "" && s.Aggregate == nil && s.Group == "" && began && s.Agent != p.Human && s.EscalationLevel < s.Policy.MaxEscalations &&
		s.Escalations < p.EscalationsTotalMax && !slices.Contains(s.Refused, p.Human)
	switch {
	case asksAtGate(before.Gate): // silence does not bring an unapproved handoff to an authority
	case s.Inbox == "":
		return fmt.Errorf("closed at its deadline, and no inbox lists it")
	case s.Policy.OnDeadline == p.DeadlineEscalate && goesUp && !intervened:
		return fmt.Errorf("closed at its deadline, and no authority was asked")
	}
	return nil
}

// asksAtGate reports whether a gate asks a person or agents, now or later.
func asksAtGate(gate *p.Gate) bool {
	return gate != nil && slices.ContainsFunc(gate.Waits, func(kind p.GateKind) bool {
		return kind == p.GateBids || kind == p.GateApproval || kind == p.GateBudget
	})
}

// checkSettled checks that an open handoff without an open child has nothing set aside.
func checkSettled(s p.State) error {
	c := s.Children
	if s.Account != nil && !s.Closed && !s.Account.Reserved.IsZero() && (c == nil || c.Made.Without(c.Closed) == "") {
		return fmt.Errorf("account %+v: set aside, and no child is open", *s.Account)
	}
	return nil
}

// Gate checks that an append leaves a gate as Decide does: an open or a denied gate is
// followed by the offer or the end in the same append.
func Gate(s p.State) error {
	if s.Phase == p.AwaitingApproval && !s.Closed && s.Gate != nil && s.Gate.Agent != "" && (s.Gate.First() == "" || s.Gate.Denied != "") {
		return fmt.Errorf("awaits approval, and its gate waits for nothing: %+v", *s.Gate)
	}
	return nil
}

// Workspace verifies that a workspace after an append is possible, and can follow the one
// before. An error is a bug of a writer.
func Workspace(before, after p.Workspace) error {
	if err := cmp.Or(checkLocks(after), checkWaits(after)); err != nil {
		return err
	}
	places := map[string]bool{}
	for _, d := range after.Draws {
		if places[d.Ticket] {
			return fmt.Errorf("%s has two places", d.Ticket)
		}
		places[d.Ticket] = true
	}
	most := after.Limits.MaxHandoffs
	switch {
	case before.Name != "" && before.Name != after.Name:
		return fmt.Errorf("%s became %s", before.Name, after.Name)
	case after.Drawn-len(after.Draws) < before.Drawn-len(before.Draws), after.Grants < before.Grants: // ended handoffs stay counted
		return fmt.Errorf("%d handoffs and %d grants became %d and %d", before.Drawn, before.Grants, after.Drawn, after.Grants)
	case after.Drawn > before.Drawn && (most != nil && after.Drawn > *most || !before.ClosedAt.IsZero()):
		return fmt.Errorf("%d handoffs have joined, which is one too many", after.Drawn)
	case len(after.Draws) > after.Drawn, len(after.Draws) > p.WorkspaceDrawsMax, len(after.Log) > p.WorkspaceLogMax:
		return fmt.Errorf("%d places of %d handoffs, %d of them in the log", len(after.Draws), after.Drawn, len(after.Log))
	}
	for name, was := range before.Variables {
		is, there := after.Variables[name]
		if !there || is.Version < was.Version || is.Version > was.Version+1 || is.Version == was.Version && string(is.Value) != string(was.Value) {
			return fmt.Errorf("variable %s: version %d became %d", name, was.Version, is.Version)
		}
	}
	return nil
}

// checkLocks checks that no lock excludes another one, except within one lineage, and that the
// handoff of each lock has a place.
func checkLocks(w p.Workspace) error {
	if len(w.Locks) > p.WorkspaceLocksMax {
		return fmt.Errorf("%d locks", len(w.Locks))
	}
	for i, l := range w.Locks {
		if _, drawn := w.Draw(l.Ticket); !drawn || l.Seq == 0 || l.Seq > w.Grants {
			return fmt.Errorf("%s has the lock %d on %s, and no place", l.Ticket, l.Seq, l.Path)
		}
		for _, o := range w.Locks[:i] {
			if l.Excludes(o.LockPath) && !lineageIn(w, l.Ticket)[o.Ticket] && !lineageIn(w, o.Ticket)[l.Ticket] {
				return fmt.Errorf("%s has %s and %s has %s", l.Ticket, l.Path, o.Ticket, o.Path)
			}
		}
	}
	return nil
}

// checkWaits checks that each waiting handoff has a place, waits once, for locks that are not free,
// and never for itself.
func checkWaits(w p.Workspace) error {
	waits := map[string]bool{}
	for _, wait := range w.Waiting {
		if _, drawn := w.Draw(wait.Ticket); !drawn || waits[wait.Ticket] {
			return fmt.Errorf("%s waits twice, or has no place", wait.Ticket)
		}
		waits[wait.Ticket] = true
		if len(lifecycle.Blockers(w, wait.Ticket)) == 0 && len(w.Locks)+len(wait.Locks) <= p.WorkspaceLocksMax {
			return fmt.Errorf("%s waits for %v, which is free", wait.Ticket, wait.Locks)
		}
		if cycle := cycleThrough(w, wait.Ticket); cycle != nil {
			return fmt.Errorf("%s waits for itself, through %v", wait.Ticket, cycle)
		}
	}
	return nil
}

// cycleThrough returns the handoffs through which a waiting handoff waits for itself.
func cycleThrough(w p.Workspace, ticket string) []string {
	seen := map[string]bool{}
	var follow func(of string, path []string) []string
	follow = func(of string, path []string) []string {
		for _, b := range lifecycle.Blockers(w, of) {
			if b.Ticket == ticket {
				return append(path, of)
			}
			if !seen[b.Ticket] {
				seen[b.Ticket] = true
				if found := follow(b.Ticket, append(path, of)); found != nil {
					return found
				}
			}
		}
		return nil
	}
	return follow(ticket, nil)
}

// lineageIn returns a handoff and those above it.
func lineageIn(w p.Workspace, ticket string) map[string]bool {
	above := map[string]bool{}
	for ticket != "" && !above[ticket] {
		above[ticket] = true
		d, _ := w.Draw(ticket)
		ticket = d.Above
	}
	return above
}
