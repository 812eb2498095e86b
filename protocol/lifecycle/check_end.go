package lifecycle

import (
	"fmt"

	p "github.com/agenthandoff/handoff/protocol"
)

// CheckEnd tells whether the end that an append brought about is one that Decide, a worker
// or a person makes: what failed for good is a dead letter or in an inbox, and no deadline
// ends what an authority could still have. Of an open one it tells whether it has set nothing aside
// for children that have ended.
func CheckEnd(before, s p.State) error {
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
	if s.Inbox == "" && !DeadLetter(s) {
		return fmt.Errorf("closed as %s (%s), and neither an inbox nor the dead letters list it", s.Outcome, s.Reason)
	}
	if s.Reason != ReasonDeadline {
		return nil
	}
	intervened := hasPassed(s.ClosedAt, Deadline(s)) // the end of that, or of what any handoff has
	began := !s.AwaitsSource || s.Agent != ""
	goesUp := s.Denied == "" && s.Aggregate == nil && s.Group == "" && began && s.Agent != p.Human && s.EscalationLevel < s.Policy.MaxEscalations &&
		s.Escalations < p.EscalationsTotalMax && !contains(s.Refused, p.Human)
	switch {
	case asksAtGate(before.Gate): // no authority gets by silence what was not approved
	case s.Inbox == "":
		return fmt.Errorf("closed at its deadline, and no inbox lists it")
	case s.Policy.OnDeadline == p.DeadlineEscalate && goesUp && !intervened:
		return fmt.Errorf("closed at its deadline, and no authority was asked")
	}
	return nil
}
