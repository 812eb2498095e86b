package lifecycle

import (
	"strings"
	"testing"

	p "github.com/agenthandoff/handoff/protocol"
)

// TestRows: every type of event has a row, which says its words and the roles that make it.
func TestRows(t *testing.T) {
	for _, kind := range p.EventTypes {
		if rule, legal := table[kind]; !legal || len(rule.by) == 0 || rule.words == "" {
			t.Errorf("%s has no row, or the row does not say which roles make it, or what it says", kind)
		}
	}
	if len(table) != len(p.EventTypes) {
		t.Errorf("%d rows for %d types of events", len(table), len(p.EventTypes))
	}
}

func TestCheckWriters(t *testing.T) {
	const holder, other = "11111111-1111-4111-8111-111111111111", "22222222-2222-4222-8222-222222222222"
	by := func(name string) p.Meta { return p.Meta{At: t0, By: name} }
	held := p.State{Holder: holder, Fence: 3}
	for name, c := range map[string]struct {
		before p.State
		events []p.Event
		want   string // empty: in order
	}{
		"a submission":            {p.State{}, []p.Event{&p.Submitted{Meta: by("lead"), Summary: p.Summary{Source: "lead"}}, &p.Offered{Meta: by("lead")}}, ""},
		"of another's":            {p.State{}, []p.Event{&p.Submitted{Meta: by("lead"), Summary: p.Summary{Source: "boss"}}}, "but only boss may make it"},
		"by a holder":             {p.State{}, []p.Event{&p.Submitted{Meta: by(holder), Summary: p.Summary{Source: holder}}}, "but only agent or human may make it"},
		"an acceptance":           {p.State{}, []p.Event{&p.Accepted{Meta: by(holder), Holder: holder}, &p.Started{Meta: by(holder)}}, ""},
		"for another":             {p.State{}, []p.Event{&p.Accepted{Meta: by(other), Holder: holder}}, "but only " + holder + " may make it"},
		"its result":              {held, []p.Event{&p.Completed{Meta: by(holder), Fence: 3}}, ""},
		"another's result":        {held, []p.Event{&p.Completed{Meta: by(other), Fence: 3}}, "but only " + holder + " may make it"},
		"a client's result":       {held, []p.Event{&p.Completed{Meta: by("lead"), Fence: 3}}, "completed has the author lead (agent), but only holder may make it"},
		"a supervisor's result":   {held, []p.Event{&p.Completed{Meta: by(By), Fence: 3}}, "but only holder may make it"},
		"an end by a client":      {held, []p.Event{&p.Closed{Meta: by(p.Human)}}, "closed has the author human (human), but only supervisor or holder may make it"},
		"an end after a loss":     {held, []p.Event{&p.LeaseLost{Meta: by(other), Holder: holder}, &p.Closed{Meta: by(other)}}, ""},
		"an end out of nothing":   {held, []p.Event{&p.Closed{Meta: by(holder)}}, "follows no event of that author"},
		"an offer out of nothing": {p.State{}, []p.Event{&p.Offered{Meta: by("lead")}}, "follows no event of that author"},
		"a cancel":                {held, []p.Event{&p.CancelRequested{Meta: by("ann")}, &p.Closed{Meta: by(By)}}, ""},
		"a refusal at once":       {p.State{}, []p.Event{&p.Rejected{Meta: by(other)}}, ""},
		"an escalation":           {held, []p.Event{&p.Escalated{Meta: by(holder), Fence: 3}, &p.Offered{Meta: by(holder)}}, ""},
		"by another":              {held, []p.Event{&p.Escalated{Meta: by(other), Fence: 3}}, "but only " + holder + " may make it"},
		"an agent of that name":   {p.State{}, []p.Event{&p.Submitted{Meta: by(By), Summary: p.Summary{Source: By}}, &p.Offered{Meta: by(By)}}, ""},
		"in place of a lost one":  {p.State{}, []p.Event{&p.Submitted{Meta: by(By), Summary: p.Summary{Source: "boss"}}, &p.Closed{Meta: by(By), Reason: ReasonLedgerDamaged}}, ""},
		"by none":                 {held, []p.Event{&p.Reminded{}}, "has no author"},
		"of a newer version":      {held, []p.Event{&p.UnknownEvent{Type: "praised"}}, ""},
	} {
		err := CheckWriters(c.before, c.events)
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}
