package cli

import (
	"encoding/json"
	"errors"
	"time"

	"github.com/agenthandoff/handoff/api"
	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/protocol/lifecycle"
)

// claimView is a claim for programs.
type claimView struct {
	Lease       string            `json:"lease"`
	Ticket      string            `json:"ticket"`
	Agent       string            `json:"agent"`
	Attempt     int               `json:"attempt"` // of the work; 0 until it is accepted
	Accepted    bool              `json:"accepted"`
	Expires     time.Time         `json:"expires"`                 // without a heartbeat
	AckBy       time.Time         `json:"acknowledge_by,omitzero"` // unless it is accepted
	Limit       time.Time         `json:"limit,omitzero"`          // when the first clock takes it away
	LimitClock  protocol.Clock    `json:"limit_clock,omitempty"`
	Supplements []protocol.Answer `json:"supplements"` // answers to conditions, oldest first

	Trail   []protocol.TrailEntry `json:"trail"`   // what happened to it before, oldest first
	Returns []protocol.Return     `json:"returns"` // the ends of what it has handed off and waited for
	// Children are those that it has handed off, in earlier attempts too.
	Children []broker.HandedOff `json:"children,omitempty"`
	Trace    string             `json:"traceparent"` // of the work, or, until it is accepted, of the handoff
	Package  json.RawMessage    `json:"package"`     // as it was submitted
}

// held prints a claim, or returns the error of what it comes from.
func (a *app) held(h api.Held, err error) error {
	if err != nil {
		return err
	}
	if h.ReturnsErr != nil { // it is claimed all the same, and they can be read by their tickets
		a.notef("handoff: what came back could not be read: %v\n", h.ReturnsErr)
	}
	v := claimView{
		Lease: h.Lease, Ticket: h.State.Ticket, Agent: h.Agent, Attempt: h.State.Attempt, Accepted: h.State.Fence != 0,
		Expires: h.Expires, Supplements: orEmpty(h.Answers), Trail: orEmpty(h.Trail), Returns: orEmpty(h.Returns), Children: h.Children, Package: h.Package,
		Trace: a.traces.WorkContext(h.State).Parent, AckBy: lifecycle.ClaimDue(h.State).UTC().Truncate(time.Second),
	}
	limit, clock := lifecycle.Limit(h.State)
	v.Limit, v.LimitClock = limit.UTC().Truncate(time.Second), clock
	if !a.text() {
		return a.value(v)
	}
	a.printf("LEASE %s\nTICKET %s\nAGENT %s\nATTEMPT %d\nEXPIRES %s\n", v.Lease, v.Ticket, v.Agent, v.Attempt, v.Expires.Format(time.RFC3339))
	if !v.AckBy.IsZero() {
		a.printf("ACKNOWLEDGE %s\n", v.AckBy.Format(time.RFC3339))
	}
	a.printf("LIMIT %s %s\n", v.Limit.Format(time.RFC3339), v.LimitClock)
	if err := errors.Join(headLines(a, "SUPPLEMENT", v.Supplements), headLines(a, "TRAIL", v.Trail), headLines(a, "RETURN", v.Returns), headLines(a, "CHILD", v.Children)); err != nil {
		return err
	}
	a.printf("\n")
	return a.document(v.Package)
}

// headLines writes a word and a value as JSON, a line each.
func headLines[T any](a *app, word string, values []T) error {
	for _, value := range values {
		line, err := encode(value, false)
		if err != nil {
			return err
		}
		a.printf("%s %s\n", word, string(line[:len(line)-1]))
	}
	return nil
}
