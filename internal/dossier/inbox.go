package dossier

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/explain"
	"github.com/agenthandoff/handoff/internal/lifecycle"
	"github.com/agenthandoff/handoff/protocol"
)

// InboxEntry is an entry of an inbox for programs: a state, and why the inbox lists it.
type InboxEntry struct {
	Why   lifecycle.InboxReason `json:"why"`
	Since time.Time             `json:"since"` // when the wait began
	Words string                `json:"words"` // the question, the outcome or the task
	StateView
}

// absence returns the agent whose absence is the only reason for the entry; it is empty if there
// are other reasons.
func (e InboxEntry) absence() string {
	if e.Why != lifecycle.InboxEscalation || len(e.Absent) == 0 || e.Reason != lifecycle.ReasonAcknowledgeTimeout {
		return ""
	}
	return cmp.Or(e.Absent[0].Agent, e.Target.String())
}

// Inbox has the handoffs that wait for an agent or a person. Those that wait for a person only
// because their agent is absent are grouped by that agent: they return to it when it has a worker.
type Inbox struct {
	Entries  []InboxEntry
	Absences []Absence
}

// Absence is an agent without a worker, and the handoffs that wait for a person only because of
// that.
type Absence struct {
	Why      string       `json:"why"`    // WhyAbsence
	Absent   string       `json:"absent"` // the agent
	Since    time.Time    `json:"since"`  // when its last worker left
	Words    string       `json:"words"`
	Handoffs []InboxEntry `json:"handoffs"`
}

// WhyAbsence distinguishes an Absence from an InboxEntry.
const WhyAbsence = "absence"

// InboxOf returns an inbox with the most urgent entries first: by priority, open before closed, the
// longest wait first. Absences are ordered by agent, and their entries in the same way.
func InboxOf(ctx context.Context, r Reader, waiting []broker.Waiting) (Inbox, error) {
	entries, err := inboxEntries(ctx, r, waiting)
	var inbox Inbox
	for _, e := range entries {
		if e.absence() == "" {
			inbox.Entries = append(inbox.Entries, e)
			continue
		}
		since := e.OfferedAt.Add(-lifecycle.AckTimeout(e.State))
		last := len(inbox.Absences) - 1
		if last < 0 || inbox.Absences[last].Absent != e.absence() {
			inbox.Absences = append(inbox.Absences, Absence{Why: WhyAbsence, Absent: e.absence(), Since: since})
			last++
		}
		of := &inbox.Absences[last]
		if since.Before(of.Since) {
			of.Since = since
		}
		of.Handoffs = append(of.Handoffs, e)
	}
	for i := range inbox.Absences {
		of := &inbox.Absences[i]
		of.Words = fmt.Sprintf("no worker of %s since %s", of.Absent, explain.Instant(of.Since))
	}
	return inbox, err
}

// inboxEntries returns the entries of an inbox: first those with a reason other than an agent's
// absence, then the others by agent; each part has the most urgent first.
func inboxEntries(ctx context.Context, r Reader, waiting []broker.Waiting) ([]InboxEntry, error) {
	views := make([]InboxEntry, len(waiting))
	for i, w := range waiting {
		views[i] = InboxEntry{Why: w.Why, Since: waitingSince(w.State), Words: waitingWords(w.Why, w.State), StateView: StateOf(w.State)}
	}
	slices.SortStableFunc(views, func(x, y InboxEntry) int {
		return cmp.Or(cmp.Compare(x.absence(), y.absence()), FalseFirst(y.Why == lifecycle.InboxApproval, x.Why == lifecycle.InboxApproval), cmp.Compare(urgency(x.Priority), urgency(y.Priority)), FalseFirst(x.Closed, y.Closed), x.Since.Compare(y.Since))
	})
	// An entry without words gets the description of its task.
	return views, InParallel(ctx, len(views), func(ctx context.Context, i int) (err error) {
		switch v := &views[i]; {
		case v.Words != "" || v.Aggregate != nil:
		case v.Why == lifecycle.InboxApproval:
			v.Words, err = approvalWords(ctx, r, v.State)
		default:
			v.Words, err = taskWords(ctx, r, v.Ticket)
		}
		return err
	})
}

func urgency(p protocol.Priority) int { return slices.Index(protocol.Priorities, p) }

// FalseFirst is the order of two booleans.
func FalseFirst(x, y bool) int {
	switch {
	case x == y:
		return 0
	case y:
		return -1
	}
	return 1
}

func waitingSince(s protocol.State) time.Time {
	if s.Closed {
		return s.ClosedAt
	}
	return lifecycle.InboxSince(s)
}

// waitingWords returns why the inbox lists the handoff; it is empty if the state has no reason.
func waitingWords(why lifecycle.InboxReason, s protocol.State) string {
	switch {
	case why == lifecycle.InboxQuestion && s.Conditions != nil:
		return s.Agent + " needs " + explain.Needs(*s.Conditions)
	case why == lifecycle.InboxBudget:
		return s.Gate.Why
	case why == lifecycle.InboxReview:
		return explain.Ending(s)
	case why == lifecycle.InboxEscalation && s.Reason != lifecycle.ReasonAcknowledgeTimeout && s.Message != "": // an absence has one text for all its handoffs
		return s.Message
	}
	return ""
}

// descriptionBytesMax bounds the description of a task in a list.
const descriptionBytesMax = 512

// approvalWords returns the question of a handoff to its approver, its package's own or a default one
// with the agent and the task, and the rules that require it.
func approvalWords(ctx context.Context, r Reader, s protocol.State) (string, error) {
	question := fmt.Sprintf("Approve handoff to %s?", s.Gate.Agent)
	if pkg, err := readPackage(ctx, r, s.Ticket); err == nil {
		question += explain.After(" Context: ", protocol.CutText(pkg.Task.Description, descriptionBytesMax))
		if pkg.Approval != nil {
			question = cmp.Or(pkg.Approval.Question, question)
		}
	}
	if rules := explain.GateRules(s); rules != "" {
		question += " (" + rules + ")"
	}
	return question, ctx.Err()
}

// taskWords returns the description of a handoff's task. It is empty if the package cannot be read.
func taskWords(ctx context.Context, r Reader, ticket string) (string, error) {
	pkg, err := readPackage(ctx, r, ticket)
	if err != nil {
		return "", ctx.Err()
	}
	return protocol.CutText(pkg.Task.Description, descriptionBytesMax), nil
}

func readPackage(ctx context.Context, r Reader, ticket string) (protocol.Package, error) {
	body, err := r.Package(ctx, ticket)
	if err != nil {
		return protocol.Package{}, err
	}
	return protocol.DecodePackage(body)
}
