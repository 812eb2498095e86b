package index

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/lifecycle"
	"github.com/agenthandoff/handoff/internal/record"
	"github.com/agenthandoff/handoff/protocol"
)

const (
	shownBytesMax  = 200     // of a description or reason in a list
	searchBytesMax = 8 << 10 // of a description or reason in the search
	ackRowsMax     = 64      // agents and reasons of a handoff that are counted apart
)

// step is the change that one ledger entry makes to the index.
type step struct {
	seq          uint64
	at           time.Time
	ticket       uuid.UUID
	after        handoffState
	first        *firstEntry // of the first entry of a handoff; else nil
	observations []observation
	failed       error // why the entry cannot be read; the other fields are empty then
}

// handoffState is the state of the handoff after the entry.
type handoffState struct {
	phase, outcome                   int
	agent, reason, holder            string
	offer                            uint64 // in a queue; 0 is none
	attempts, reroutes, level        int
	updated, closed                  int64
	tokens, cost                     int64
	others                           string // the use by other agents than the one that has it, as JSON
	source, target                   string
	priority, kind                   int
	submitted                        int64
	workflow, conversation, task     string
	variant                          string
	parent, family, returnOf, origin string
	waits, dead                      int
	gate                             int         // the gate before its next offer
	lapsed                           bool        // it closed since an approver did not answer
	account                          *accountRow // nil is no limit
	inbox                            string      // the agent in whose inbox it is, closed, or that is asked for an approval
}

// firstEntry has the fields that only the first entry of a handoff has.
type firstEntry struct {
	description, why string            // cut for lists
	words            string            // of both, for the search
	blob             *protocol.BlobRef // of the package, if it is not in the entry
}

// observation is an event from which durations and acknowledgements are computed.
type observation struct {
	kind   protocol.EventType
	at     int64
	agent  string
	reason string // of a refusal; the kind of a gate
	to     string // the agent of an offer that the same append has withdrawn; the target of a barred hand-off
}

// textBytes is about the memory that the text of a step takes.
func (s *step) textBytes() int {
	if s.first == nil {
		return 0
	}
	return len(s.first.description) + len(s.first.why) + len(s.first.words)
}

// projection has the fields of a record that the index needs.
var projection = record.NewProjection([]string{"ticket", "phase", "closed", "outcome", "reason", "type", "source", "target", "priority",
	"workflow_id", "conversation_id", "task_id", "variant", "parent", "group", "aggregate", "return_of", "call_of", "origin", "agent", "offer", "holder",
	"attempts_total", "reroutes", "escalation_level", "submitted_at", "updated_at", "closed_at", "usage", "conditions", "gate", "inbox", "redriven_as", "limits", "account", "schedule", "rule"},
	protocol.EventSubmitted, protocol.EventOffered, protocol.EventAccepted, protocol.EventTaken, protocol.EventRejected,
	protocol.EventGated, protocol.EventGateOpened, protocol.EventApproved, protocol.EventDenied, protocol.EventLapsed,
	protocol.EventAwarded, protocol.EventUnawarded, protocol.EventBarred, protocol.EventDeadlocked)

// decode reads an entry, and keeps nothing of its body. The ledger may hold any bytes: a panic of
// the decoder fails that entry, not the index.
func decode(e broker.Entry) (s step) {
	defer func() {
		if broken := recover(); broken != nil {
			s = step{seq: e.Seq, at: e.At, failed: fmt.Errorf("panic, which is a bug: %v", broken)}
		}
	}()
	return decodeEntry(e)
}

func decodeEntry(e broker.Entry) step {
	s := step{seq: e.Seq, at: e.At}
	ticket, err := uuid.Parse(e.Ticket)
	if err != nil {
		return s // no entry, and never will be
	}
	r, err := projection.Decode(e.Body, e.Seq)
	if err != nil { // perhaps an unknown event: the state has most of it
		r = protocol.Record{}
		if _, r.State, err = record.DecodeState(e.Body, e.Seq); err != nil {
			s.failed = err
			return s
		}
	}
	if r.State.Ticket != e.Ticket {
		s.failed = fmt.Errorf("it names another handoff, %.64q", r.State.Ticket)
		return s
	}
	s.ticket, s.after = ticket, afterOf(r.State)
	for _, event := range r.Events {
		if submitted, ok := event.(*protocol.Submitted); ok {
			s.first = &firstEntry{blob: submitted.Blob}
			if submitted.Package != nil {
				s.first = firstEntryIn(submitted.Package)
			}
			continue
		}
		f := protocol.OutlineOf(event)
		o := observation{kind: event.EventType(), at: toMicros(event.When()), agent: f.Agent,
			reason: protocol.Prefix(cmp.Or(string(f.Gate), f.Code, f.Words), shownBytesMax)}
		switch e := event.(type) {
		case *protocol.Offered:
			if e.Agent != r.State.Agent { // moved on in the same append
				o.to = e.Agent
			}
		case *protocol.Accepted:
			o.agent = e.Agent
		case *protocol.Barred:
			o.to = protocol.Prefix(e.To, shownBytesMax)
		}
		s.observations = append(s.observations, o)
	}
	return s
}

func afterOf(s protocol.State) handoffState {
	others := ""
	if s.Usage != nil && len(s.Usage.Others) > 0 {
		others = jsonText(s.Usage.Others)
	}
	a := handoffState{
		others: others,
		phase:  phases.number(s.Phase), agent: s.Agent, reason: s.Reason, holder: s.Holder,
		attempts: s.AttemptsTotal, reroutes: s.Reroutes, level: s.EscalationLevel,
		updated: toMicros(s.UpdatedAt), closed: toMicros(s.ClosedAt), tokens: s.Usage.Total().Tokens, cost: s.Usage.Total().CostMicros,
		source: s.From(), target: protocol.Prefix(s.TargetWords(), shownBytesMax),
		priority: priorities.number(s.Priority), kind: types.number(s.Type), submitted: toMicros(s.SubmittedAt),
		workflow: s.WorkflowID, conversation: s.ConversationID, task: s.TaskID, variant: s.Variant,
		parent: s.Parent, family: s.Group, returnOf: s.ReturnOf, origin: s.Origin,
	}
	a.account = accountOf(s)
	if s.Closed { // the index knows closed handoffs by their outcome
		if a.outcome = outcomes.number(s.Outcome); a.outcome == 0 {
			a.outcome = unknownWord
		}
		a.inbox, a.lapsed = s.Inbox, s.Reason == lifecycle.ReasonApprovalTimeout
	} else {
		a.waits, a.gate = inboxReasons.number(inboxReasonOf(s)), gates.number(gateOf(s))
		a.inbox = lifecycle.AskedAtGate(s)
	}
	switch {
	case lifecycle.DeadLetter(s) && s.RedrivenAs != "":
		a.dead = deadRedriven
	case lifecycle.DeadLetter(s):
		a.dead = deadLetter
	}
	if lifecycle.DutiesOf(s).Offer {
		a.offer = s.Offer
	}
	return a
}

// firstEntryIn reads the words of a package; none if it cannot be read.
func firstEntryIn(pkg []byte) *firstEntry {
	description, why, err := record.PackageText(pkg)
	if err != nil {
		return &firstEntry{}
	}
	return &firstEntry{
		description: strings.Clone(protocol.Prefix(description, shownBytesMax)),
		why:         strings.Clone(protocol.Prefix(why, shownBytesMax)),
		words:       searchText(protocol.Prefix(description, searchBytesMax), protocol.Prefix(why, searchBytesMax)),
	}
}
