// Package notify sends a signed webhook or a signal, or runs a program, for each entry of the ledger
// that matches. A notification is sent at least once, always under the same id. The engine keeps the
// place in the ledger, and the entries that wait for another try.
package notify

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/explain"
	"github.com/agenthandoff/handoff/internal/lifecycle"
	"github.com/agenthandoff/handoff/protocol"
)

// Kind is an occurrence that can be notified of.
type Kind string

// The kinds. An entry of the ledger may be of several.
const (
	Asked     Kind = "asked"     // an agent needs context or a permission
	Approval  Kind = "approval"  // an approval is asked for, or a spent budget waits to be raised
	Escalated Kind = "escalated" // passed up to the authority
	Closed    Kind = "closed"    // ended, with any outcome
	Failed    Kind = "failed"    // ended as failed, timeout or rejected
	Stuck     Kind = "stuck"     // the supervisors could not deal with it and have stopped trying
	Absent    Kind = "absent"    // no worker of its agent took it within the acknowledge timeout
)

// Kinds are all kinds.
var Kinds = []Kind{Asked, Approval, Escalated, Closed, Failed, Stuck, Absent}

// is reports whether an entry is of a kind.
func (k Kind) is(c protocol.Change) bool {
	s := c.Record.State
	has := func(types ...protocol.EventType) bool {
		return slices.ContainsFunc(c.Record.Events, func(e protocol.Event) bool { return slices.Contains(types, e.EventType()) })
	}
	switch k {
	case Asked:
		return s.Phase == protocol.Conditional && s.Conditions != nil && has(protocol.EventConditioned)
	case Approval:
		return lifecycle.AskedAtGate(s) != "" && has(protocol.EventGated, protocol.EventGateOpened, protocol.EventLapsed)
	case Escalated:
		return has(protocol.EventEscalated)
	case Closed, Failed:
		ended := s.ReturnOf == "" && s.CallOf == "" && slices.ContainsFunc(c.Record.Events, func(e protocol.Event) bool { return protocol.OutlineOf(e).Closes })
		failed := s.Outcome == protocol.OutcomeFailed || s.Outcome == protocol.OutcomeTimeout || s.Outcome == protocol.OutcomeRejected
		return ended && (k == Closed || failed)
	case Stuck:
		return has(protocol.EventStuck)
	}
	_, absent := absentIn(c)
	return absent
}

// absentIn returns the agent whose absence an entry records; "" is any agent that fits.
func absentIn(c protocol.Change) (agent string, ok bool) {
	for _, e := range c.Record.Events {
		if ranOut, is := e.(*protocol.TimedOut); is && ranOut.Clock == protocol.ClockAcknowledge {
			return ranOut.Agent, true
		}
	}
	return "", false
}

const typePrefix = "handoff."

// Notification is the body of a notification.
type Notification struct {
	Type      string    `json:"type"`      // handoff. and the kind
	Timestamp time.Time `json:"timestamp"` // when it happened
	Data      Data      `json:"data"`
}

// Data is the handoff that a notification is about, as it was then.
type Data struct {
	Ticket   string  `json:"ticket"`
	Agent    string  `json:"agent"`    // that has it; empty if none has
	Sentence string  `json:"sentence"` // from package explain
	State    Summary `json:"state"`
}

// Summary is the state of a handoff in short.
type Summary struct {
	Phase        protocol.Phase   `json:"phase"`
	Closed       bool             `json:"closed"`
	Outcome      protocol.Outcome `json:"outcome,omitempty"`
	Reason       string           `json:"reason,omitempty"`
	Source       string           `json:"source"`
	Workflow     string           `json:"workflow,omitempty"`
	Conversation string           `json:"conversation,omitempty"`
	Priority     string           `json:"priority,omitempty"`
	Attempt      int              `json:"attempt"`
	Seq          uint64           `json:"seq"` // of the entry; a later one of the ticket is newer
}

// Sender delivers a notification in its encoded form. The id is the same at each try.
type Sender interface {
	Send(ctx context.Context, id string, n Notification, body []byte) error
}

// ErrGone is the error of a receiver that wants no more notifications.
var ErrGone = errors.New("the receiver answered 410: it wants no more notifications")

// Ledger gives fn each new entry at least once; see jetstream.Engine.
type Ledger interface {
	Consume(ctx context.Context, name string, ready func(), fn func(ctx context.Context, e broker.Entry, attempt int) (again time.Duration, err error)) error
}

// Notifier sends the notifications of a ledger.
type Notifier struct {
	Ledger Ledger
	Broker *broker.Broker // for the words about a handoff
	To     Sender
	Target string   // the URL, the program or the signal
	On     []Kind   // which kinds
	Agents []string // of which agents; empty is all
	Log    *slog.Logger
}

// Name is the name of the consumer that keeps the place in the ledger. It depends on Target, On and
// Agents: with other ones a notifier begins anew, at the end of the ledger.
func (n *Notifier) Name() string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%q %q %q", n.Target, slices.Sorted(slices.Values(n.On)), slices.Sorted(slices.Values(n.Agents))))
	return fmt.Sprintf("notify-%x", sum[:6])
}

// Run sends notifications until ctx ends, or until the receiver is gone (ErrGone). It calls ready when
// nothing that happens from then on is missed.
func (n *Notifier) Run(ctx context.Context, ready func()) error {
	return n.Ledger.Consume(ctx, n.Name(), ready, func(ctx context.Context, e broker.Entry, attempt int) (time.Duration, error) {
		change, err := broker.DecodeChange(e)
		if err != nil {
			n.Log.Warn("an entry cannot be read", "err", err)
			return 0, nil
		}
		for _, kind := range n.On {
			if !kind.is(change) || len(n.Agents) > 0 && !slices.ContainsFunc(explain.AgentsOf(change), func(a string) bool { return slices.Contains(n.Agents, a) }) {
				continue
			}
			err := n.send(ctx, kind, change)
			if errors.Is(err, ErrGone) {
				return 0, err
			}
			if err != nil {
				again := backOff(attempt)
				n.Log.Warn("not notified", "kind", kind, "ticket", e.Ticket, "attempt", attempt, "again_in", again, "err", err)
				return again, nil
			}
			n.Log.Info("notified", "kind", kind, "ticket", e.Ticket, "attempt", attempt)
		}
		return 0, nil
	})
}

const backOffFirst, backOffMax = time.Second, 5 * time.Minute

// backOff is the wait behind an attempt that failed: 1 s, and twice as long each time.
func backOff(attempt int) time.Duration {
	return min(backOffFirst<<min(attempt-1, 20), backOffMax)
}

func (n *Notifier) send(ctx context.Context, kind Kind, c protocol.Change) error {
	s := c.Record.State
	situation, err := explain.At(ctx, n.Broker, s, c.At)
	if err != nil {
		return err
	}
	sentences := explain.Explain(situation).Sentences
	if agent, absent := absentIn(c); absent && kind == Absent {
		if agent == "" {
			agent = s.TargetWords()
		}
		sentences = append([]string{"No worker of " + agent + " took it in time."}, sentences...)
	}
	notification := Notification{Type: typePrefix + string(kind), Timestamp: c.At, Data: Data{
		Ticket: s.Ticket, Agent: s.Agent, Sentence: strings.Join(sentences, " "),
		State: Summary{Phase: s.Phase, Closed: s.Closed, Outcome: s.Outcome, Reason: s.Reason, Source: s.Source,
			Workflow: s.WorkflowID, Conversation: s.ConversationID, Priority: string(s.Priority), Attempt: s.Attempt, Seq: c.Seq},
	}}
	body, err := protocol.Marshal(notification)
	if err != nil {
		return err
	}
	return n.To.Send(ctx, fmt.Sprintf("%s-%d-%s", s.Ticket, c.Seq, kind), notification, body)
}
