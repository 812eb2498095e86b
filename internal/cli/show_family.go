package cli

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/agenthandoff/handoff/internal/dossier"
	"github.com/agenthandoff/handoff/internal/explain"
	"github.com/agenthandoff/handoff/protocol"
)

func (s *sheet) kin(v dossier.Handoff) {
	s.section("Belongs to it")
	one := func(label string, k *dossier.Reference) {
		if k != nil {
			s.line(label, k.String())
		}
	}
	if v.Parent != nil && v.Parent.Goto {
		one("handed on by", v.Parent)
	} else {
		one("parent", v.Parent)
	}
	if v.Group != nil && (v.Parent == nil || v.Group.Ticket != v.Parent.Ticket) {
		one("group", v.Group)
	}
	one("return of", v.ReturnOf)
	one("redrive of", v.RedriveOf)
	label := "handed off"
	if v.State.Aggregate != nil {
		label = "member"
	}
	for _, child := range v.Children[:min(len(v.Children), membersShown)] {
		s.line(childLabel(label, child), child.String())
	}
	if more := len(v.Children) - membersShown; more > 0 {
		s.line("", fmt.Sprintf("and %d more: handoff tree %s, or -o json", more, v.Ticket))
	}
	s.chain(v)
	one("return", v.Return)
	if v.Return == nil {
		s.line("return", phrase(explain.OpenReturn(v.State.State, lastOf(v.State.HandedOn))))
	}
	one("redriven as", v.RedrivenAs)
}

func childLabel(label string, child dossier.Reference) string {
	if child.Goto {
		return "handed on"
	}
	return fmt.Sprintf("%s %d", label, child.N)
}

// chain says where the chain stands that the handoff began, or is part of.
func (s *sheet) chain(v dossier.Handoff) {
	if c := v.State.HandedOn; c != nil {
		s.line("chain", explain.ChainStands(c.NextState, c.LastState))
		return
	}
	switch {
	case v.Parent == nil || !v.Parent.Goto:
	case v.State.Closed:
		s.line("chain", "ended here")
	default:
		s.line("chain", "still open here")
	}
}

// lastOf is the handoff that a chain has come to; it is zero without one.
func lastOf(c *dossier.Chain) protocol.State {
	if c == nil {
		return protocol.State{}
	}
	return c.LastState
}

// stages is how long it has been where.
func (s *sheet) stages(v dossier.Stages, closed bool) {
	s.section("Time")
	whole := "in all"
	if !closed {
		whole = "so far"
	}
	for _, stage := range []struct {
		label string
		ms    int64
	}{
		{"at a gate", v.Gate}, {"in a queue", v.Queue}, {"claimed", v.Acknowledge}, {"at work", v.Work}, {"for answers", v.Answers}, {"put off", v.Deferred},
		{"for others", v.Children}, {"backing off", v.Backoff}, {"deciding", v.Deciding},
	} {
		if stage.ms > 0 {
			s.line(stage.label, explain.Millis(stage.ms))
		}
	}
	s.line(whole, explain.Millis(v.Whole))
}

// events is the history, with the details under their event where they are long.
func (s *sheet) events(changes []protocol.Change) {
	s.section("Events (UTC)")
	day := ""
	for _, c := range changes {
		for _, e := range c.Record.Events {
			at := e.When().UTC()
			stamp := at.Format("15:04:05.000")
			if today := at.Format(time.DateOnly); today != day {
				s.item(today)
				day = today
			}
			by, detail := explain.Event(e)
			s.item(fmt.Sprintf("%s %s%s%s", stamp, e.EventType(), explain.After(" by ", explain.By(by)), explain.After(": ", detail)))
		}
	}
}

// bodies are the package and the result as they are.
func (a *app) bodies(v dossier.Handoff) error {
	if len(v.Package) > 0 {
		a.printf("\nPackage\n")
		if err := a.document(v.Package); err != nil {
			return err
		}
	}
	if v.Result == nil {
		return nil
	}
	body, err := json.Marshal(v.Result)
	if err != nil {
		return err
	}
	a.printf("\nWhole result\n")
	return a.document(body)
}
