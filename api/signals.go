package api

import (
	"cmp"
	"context"
	"encoding/json"
	"maps"
	"slices"
	"time"

	"github.com/agenthandoff/handoff/protocol"
)

// A rule begins a handoff for each signal of a name. Supervisors apply it; the source of its
// handoffs is protocol.SignalSource.

// SendSignal is the request to send a signal.
type SendSignal struct {
	Name string `json:"name"`
	// ID is random if it is empty.
	ID      string          `json:"id,omitempty" flag:"id" doc:"{ID} of the happening: a signal that is sent again with it begins nothing (default random)"`
	Parent  string          `json:"parent,omitempty" flag:"parent" doc:"{TICKET} of the handoff that sends it, whose lineage its handoffs have (default $HANDOFF_TICKET, inside a worker)"`
	Payload json.RawMessage `json:"payload,omitempty"`
}

// SentSignal is a signal that is stored.
type SentSignal struct {
	Name string `json:"name"`
	ID   string `json:"id"`
}

// PutRule is the request to create or replace a rule.
type PutRule struct {
	Name   string                  `json:"name"`
	Signal string                  `json:"signal,omitempty" flag:"signal" doc:"{NAME} of the signals (default the name of the rule)"`
	If     *protocol.NextCondition `json:"if,omitempty"`
	Rate   int                     `json:"rate,omitempty" flag:"rate" doc:"begin at most {N} handoffs a minute; further signals wait (default 60, at most 6000)"`
	// Package is the template: a package in which {"$": POINTER} is the value of the payload there.
	Package json.RawMessage `json:"package"`
}

// RuleStatus is a rule at the time of the answer.
type RuleStatus struct {
	protocol.Rule
	// FullUntil is the end of the current minute if the rate is reached: signals wait.
	FullUntil time.Time       `json:"full_until,omitzero"`
	Package   json.RawMessage `json:"package,omitempty"`
}

// RuleList is the list of all rules.
type RuleList struct {
	Rules   []RuleStatus            `json:"rules"`
	Waiting int                     `json:"waiting"` // signals that no supervisor has decided about
	Unknown protocol.UnknownSignals `json:"unknown"` // the signals whose name no rule had
}

// ruleStatusAt returns the status of a rule at an instant.
func ruleStatusAt(r protocol.Rule, now time.Time) RuleStatus {
	v := RuleStatus{Rule: r}
	if end := r.Minute.Add(time.Minute); !r.FullAt.Before(r.Minute) && r.MinuteCount >= r.Rate && now.Before(end) {
		v.FullUntil = end
	}
	return v
}

func (c *Session) ruleStatus(r protocol.Rule, err error) (RuleStatus, error) {
	if err != nil {
		return RuleStatus{}, err
	}
	return ruleStatusAt(r, c.s.b.Now()), nil
}

// SendSignal stores a signal. A signal that is sent again with its id begins nothing.
func (c *Session) SendSignal(ctx context.Context, r SendSignal) (SentSignal, error) {
	if err := c.may("SendSignal"); err != nil {
		return SentSignal{}, err
	}
	s := protocol.Signal{Name: r.Name, ID: cmp.Or(r.ID, protocol.NewTicket()), Payload: r.Payload, Parent: r.Parent}
	if err := s.Validate(); err != nil {
		return SentSignal{}, err
	}
	if s.Parent != "" && !c.caller.seesAll() {
		if _, err := c.visible(ctx, s.Parent); err != nil {
			return SentSignal{}, inField("parent", err)
		}
	}
	return SentSignal{s.Name, s.ID}, c.s.b.Rules().Send(ctx, s)
}

// PutRule creates a rule, or replaces it. A field that it cannot have is refused, and nothing is
// changed.
func (c *Session) PutRule(ctx context.Context, r PutRule) (RuleStatus, error) {
	if err := c.may("PutRule"); err != nil {
		return RuleStatus{}, err
	}
	if len(r.Package) == 0 {
		return RuleStatus{}, protocol.Errorf(protocol.CodeMissing, "package", "is missing: it is the template of each handoff")
	}
	rule := protocol.Rule{Name: r.Name, Signal: cmp.Or(r.Signal, r.Name), If: r.If, Rate: cmp.Or(r.Rate, protocol.RuleRateDefault), By: c.caller.Name}
	return c.ruleStatus(c.s.b.Rules().Put(ctx, rule, r.Package))
}

// Rules lists the rules by name, without their templates.
func (c *Session) Rules(ctx context.Context) (RuleList, error) {
	d, err := allowed(ctx, c, "Rules", c.s.b.Directory)
	if err != nil {
		return RuleList{}, err
	}
	all := RuleList{Rules: []RuleStatus{}}
	for _, name := range slices.Sorted(maps.Keys(d.Rules)) {
		all.Rules = append(all.Rules, ruleStatusAt(d.Rules[name], c.s.b.Now()))
	}
	if all.Unknown, err = c.s.b.Rules().Unknown(ctx); err == nil {
		all.Waiting, err = c.s.b.Rules().Waiting(ctx)
	}
	return all, err
}

// Rule returns one rule, with its template.
func (c *Session) Rule(ctx context.Context, name string) (RuleStatus, error) {
	if err := c.may("Rule"); err != nil {
		return RuleStatus{}, err
	}
	r, _, err := c.s.b.Rules().Get(ctx, name)
	v, err := c.ruleStatus(r, err)
	if err == nil {
		v.Package, err = c.s.b.Rules().Package(ctx, name)
	}
	return v, err
}

// PauseRule stops a rule: the signals of the pause begin nothing. Its handoffs continue.
func (c *Session) PauseRule(ctx context.Context, name string) (RuleStatus, error) {
	return c.changeRule(ctx, "PauseRule", name, true)
}

// ResumeRule ends a pause.
func (c *Session) ResumeRule(ctx context.Context, name string) (RuleStatus, error) {
	return c.changeRule(ctx, "ResumeRule", name, false)
}

func (c *Session) changeRule(ctx context.Context, operation, name string, pause bool) (RuleStatus, error) {
	return unless(c.may(operation), func() (RuleStatus, error) {
		return c.ruleStatus(c.s.b.Rules().Change(ctx, name, func(r protocol.Rule, now time.Time) (protocol.Rule, bool) {
			changed := c.setPause(pause, now, &r.PausedAt, &r.UpdatedAt, &r.By)
			return r, changed
		}))
	})
}

// RemoveRule removes a rule. Its handoffs continue.
func (c *Session) RemoveRule(ctx context.Context, name string) (RuleStatus, error) {
	if err := c.may("RemoveRule"); err != nil {
		return RuleStatus{}, err
	}
	r, err := c.s.b.Rules().Remove(ctx, name)
	return RuleStatus{Rule: r}, err
}
