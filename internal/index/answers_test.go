package index

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/brokertest"
	"github.com/agenthandoff/handoff/internal/index/ask"
	"github.com/agenthandoff/handoff/protocol"
)

// TestRefusedQuestions: what cannot be meant is refused, with its field.
func TestRefusedQuestions(t *testing.T) {
	w, ix := memoryWorld(t, 5)
	w.live(20, 20)
	first, err := ix.List(t.Context(), ask.ListQuery{Limit: 5, Filter: ask.Filter{ConversationID: []string{"conversation 1", "conversation 2", "conversation 3"}}})
	if err != nil || first.Cursor == "" {
		t.Fatalf("%+v, %v", first, err)
	}
	ticket := w.heads[0].Ticket
	many := make([]string, ask.FilterMax+1)
	for i := range many {
		many[i] = fmt.Sprint(i)
	}
	day := time.Date(2026, 1, 2, 0, 0, 0, 0, time.UTC)
	for name, c := range map[string]struct {
		q    ask.ListQuery
		code protocol.Code
		in   string
	}{
		"phase":             {ask.ListQuery{Filter: ask.Filter{Phase: []protocol.Phase{"waiting"}}}, protocol.CodeInvalid, "filter.phase"},
		"outcome":           {ask.ListQuery{Filter: ask.Filter{Outcome: []protocol.Outcome{""}}}, protocol.CodeInvalid, "filter.outcome"},
		"priority":          {ask.ListQuery{Filter: ask.Filter{Priority: []protocol.Priority{"urgent"}}}, protocol.CodeInvalid, "filter.priority"},
		"type":              {ask.ListQuery{Filter: ask.Filter{Type: []protocol.Type{"x"}}}, protocol.CodeInvalid, "filter.type"},
		"ticket":            {ask.ListQuery{Filter: ask.Filter{Ticket: []string{"17"}}}, protocol.CodeInvalid, "filter.ticket"},
		"parent":            {ask.ListQuery{Filter: ask.Filter{Parent: []string{ticket + "0"}}}, protocol.CodeInvalid, "filter.parent"},
		"empty":             {ask.ListQuery{Filter: ask.Filter{Agent: []string{""}}}, protocol.CodeMissing, "filter.agent"},
		"long":              {ask.ListQuery{Filter: ask.Filter{TaskID: []string{strings.Repeat("x", 512+1)}}}, protocol.CodeTooLarge, "filter.task_id"},
		"NUL":               {ask.ListQuery{Filter: ask.Filter{Source: []string{"a\x00"}}}, protocol.CodeText, "filter.source"},
		"many":              {ask.ListQuery{Filter: ask.Filter{Agent: many}}, protocol.CodeTooLarge, "filter.agent"},
		"many words":        {ask.ListQuery{Filter: ask.Filter{Phase: slices.Repeat([]protocol.Phase{"pending"}, ask.FilterMax+1)}}, protocol.CodeTooLarge, "filter.phase"},
		"until":             {ask.ListQuery{Filter: ask.Filter{Since: day, Until: day}}, protocol.CodeInvalid, "filter.until"},
		"no words":          {ask.ListQuery{Filter: ask.Filter{Text: `"- *`}}, protocol.CodeInvalid, "filter.text"},
		"short beginning":   {ask.ListQuery{Filter: ask.Filter{Text: "a*"}}, protocol.CodeInvalid, "filter.text"},
		"long text":         {ask.ListQuery{Filter: ask.Filter{Text: strings.Repeat("x", ask.TextBytesMax+1)}}, protocol.CodeTooLarge, "filter.text"},
		"much text":         {ask.ListQuery{Filter: ask.Filter{Text: strings.Repeat("x ", wordsMax+1)}}, protocol.CodeTooLarge, "filter.text"},
		"no text":           {ask.ListQuery{Filter: ask.Filter{Text: "\xff"}}, protocol.CodeText, "filter.text"},
		"limit":             {ask.ListQuery{Limit: ask.PageMax + 1}, protocol.CodeInvalid, "limit"},
		"negative":          {ask.ListQuery{Limit: -1}, protocol.CodeInvalid, "limit"},
		"sort":              {ask.ListQuery{Sort: "random"}, protocol.CodeInvalid, "sort"},
		"wait":              {ask.ListQuery{Question: ask.Question{WaitMS: 60_001}}, protocol.CodeInvalid, "wait_ms"},
		"cursor":            {ask.ListQuery{Cursor: "x"}, protocol.CodeInvalid, "cursor"},
		"cursor, cut":       {ask.ListQuery{Cursor: first.Cursor[:len(first.Cursor)-4]}, protocol.CodeInvalid, "cursor"},
		"another's":         {ask.ListQuery{Cursor: first.Cursor, Filter: ask.Filter{ConversationID: []string{"conversation 4"}}}, protocol.CodeInvalid, "cursor"},
		"of no filter":      {ask.ListQuery{Cursor: first.Cursor}, protocol.CodeInvalid, "cursor"},
		"of another order":  {ask.ListQuery{Cursor: first.Cursor, Sort: ask.SortOldest, Filter: ask.Filter{ConversationID: []string{"conversation 1", "conversation 2", "conversation 3"}}}, protocol.CodeInvalid, "cursor"},
		"longer than known": {ask.ListQuery{Cursor: strings.Repeat("A", 10_000)}, protocol.CodeInvalid, "cursor"},
	} {
		_, err := ix.List(t.Context(), c.q)
		refused(t, name, err, c.code, c.in)
	}
	_, err = ix.Count(t.Context(), ask.CountQuery{By: []ask.By{"ticket"}})
	refused(t, "count by", err, protocol.CodeInvalid, "by")
	_, err = ix.Count(t.Context(), ask.CountQuery{By: []ask.By{ask.BySource, ask.BySource}})
	refused(t, "count twice", err, protocol.CodeInvalid, "by")
	_, err = ix.Count(t.Context(), ask.CountQuery{By: []ask.By{ask.BySource}, Had: true})
	refused(t, "had of no target", err, protocol.CodeInvalid, "had")
	_, err = ix.Count(t.Context(), ask.CountQuery{By: ask.Bys[:4]})
	refused(t, "count by too many", err, protocol.CodeTooLarge, "by")
	_, err = ix.Family(t.Context(), ask.FamilyQuery{Ticket: "x"})
	refused(t, "family", err, protocol.CodeInvalid, "ticket")
	_, err = ix.Family(t.Context(), ask.FamilyQuery{Ticket: protocol.NewTicket()})
	refused(t, "unknown family", err, protocol.CodeNotFound, "ticket")
	_, err = ix.Ahead(t.Context(), ask.AheadQuery{Ticket: protocol.NewTicket()})
	refused(t, "unknown ahead", err, protocol.CodeNotFound, "ticket")
	_, err = ix.Figures(t.Context(), ask.FiguresQuery{Top: ask.FiguresTopMax + 1})
	refused(t, "top", err, protocol.CodeInvalid, "top")
}

func refused(t *testing.T, name string, err error, code protocol.Code, field string) {
	t.Helper()
	var e *protocol.Error
	if !errors.As(err, &e) || e.Code != code || e.Field != field {
		t.Errorf("%s: %v, want %s at %s", name, err, code, field)
	}
}

// TestSearchSyntax: what the search engine has a meaning for is text to us.
func TestSearchSyntax(t *testing.T) {
	w, ix := memoryWorld(t, 6)
	k := w.submit(func(p *protocol.Package) {
		p.Task.Description = `the OR "quoted" words AND NOT near(these) col:umn ^start {a} 'single' C'est naïve 報告書 v1.2-rc`
	})
	for _, text := range []string{`OR`, `AND NOT`, `"quoted"`, `quoted"`, `near(these)`, `col:umn`, `^start`, `{a}`, `'single'`,
		`words:`, `-quoted`, `+words`, `NAIVE`, `naïve`, `報告`, `v1.2-rc`, `quo*`, `* words`, `col:*`, `c'est`} {
		a, err := ix.List(t.Context(), ask.ListQuery{Filter: ask.Filter{Text: text}})
		if err != nil || len(a.Handoffs) != 1 || a.Handoffs[0].Ticket != k.Ticket {
			t.Errorf("%q: %d found, %v", text, len(a.Handoffs), err)
		}
	}
	for _, text := range []string{`nothing`, `OR nothing`, `quot`, `words -quoted nothing`} {
		if a, err := ix.List(t.Context(), ask.ListQuery{Filter: ask.Filter{Text: text}}); err != nil || len(a.Handoffs) != 0 {
			t.Errorf("%q: %d found, %v", text, len(a.Handoffs), err)
		}
	}
}

// TestPagesWhileAdding: pages of the newest and of the oldest leave nothing out
// and have nothing twice while handoffs are added and change.
func TestPagesWhileAdding(t *testing.T) {
	w, ix := memoryWorld(t, 8)
	w.live(200, 300)
	for _, sort := range []ask.Sort{ask.SortNewest, ask.SortOldest} {
		before := w.selected(ask.Filter{}, sort)
		q := ask.ListQuery{Sort: sort, Limit: 7}
		var got []string
		for {
			a, err := ix.List(t.Context(), q)
			if err != nil {
				t.Fatal(err)
			}
			for _, row := range a.Handoffs {
				got = append(got, row.Ticket)
			}
			if a.Cursor == "" || len(got) > 3*len(before) {
				break
			}
			q.Cursor = a.Cursor
			w.live(3, 20)
		}
		if sort == ask.SortOldest { // the end moves on, and a page follows it
			got = got[:min(len(got), len(before))]
		}
		if !slices.Equal(got, before) {
			t.Errorf("%s: %d handoffs over the pages, there were %d", sort, len(got), len(before))
		}
	}
}

// TestLargePages end early rather than grow over their bound.
func TestLargePages(t *testing.T) {
	w, ix := memoryWorld(t, 9)
	long := strings.Repeat("日本", 200)
	for range 900 {
		w.submit(func(p *protocol.Package) { p.Task.Description, p.Reason = long, long })
	}
	pages, n := 0, 0
	for q := (ask.ListQuery{Limit: ask.PageMax}); ; pages++ {
		a, err := ix.List(t.Context(), q)
		if err != nil {
			t.Fatal(err)
		}
		if size := len(dump(a)); size > ask.PageBytesMax+4096 {
			t.Errorf("a page of %d bytes", size)
		}
		if n += len(a.Handoffs); a.Cursor == "" {
			break
		}
		q.Cursor = a.Cursor
	}
	if n != 900 || pages == 0 {
		t.Errorf("%d handoffs on %d pages and one", n, pages)
	}
	row := func() ask.Row {
		a, err := ix.List(t.Context(), ask.ListQuery{Limit: 1})
		if err != nil {
			t.Fatal(err)
		}
		return a.Handoffs[0]
	}()
	if len(row.Description) > shownBytesMax || !strings.HasPrefix(long, row.Description) {
		t.Errorf("a description of %d bytes", len(row.Description))
	}
}

func TestFamily(t *testing.T) {
	w, ix := memoryWorld(t, 10)
	under := func(parent *subject) func(*protocol.Package) {
		return func(p *protocol.Package) { p.Parent = parent.Ticket }
	}
	none := func(p *protocol.Package) { p.Parent = "" }
	root, other := w.submit(none), w.submit(none)
	child, second := w.submit(under(root)), w.submit(under(root))
	grandchild := w.submit(under(child))
	stranger := w.submit(func(p *protocol.Package) { p.Parent = protocol.NewTicket() })
	want := []string{root.Ticket, child.Ticket, second.Ticket, grandchild.Ticket}
	for _, of := range []*subject{root, child, grandchild} {
		a, err := ix.Family(t.Context(), ask.FamilyQuery{Ticket: of.Ticket})
		if err != nil || !a.Complete || a.More {
			t.Fatalf("%+v, %v", a, err)
		}
		var got []string
		for _, row := range a.Handoffs {
			got = append(got, row.Ticket)
		}
		if !slices.Equal(got, want) {
			t.Errorf("the family of %s is %v, want %v", of.Ticket, got, want)
		}
	}
	for _, alone := range []*subject{other, stranger} {
		if a, err := ix.Family(t.Context(), ask.FamilyQuery{Ticket: alone.Ticket}); err != nil || len(a.Handoffs) != 1 {
			t.Errorf("%d in a family of one, %v", len(a.Handoffs), err)
		}
	}
	for range ask.FamilyMax {
		w.submit(under(other))
	}
	if a, err := ix.Family(t.Context(), ask.FamilyQuery{Ticket: other.Ticket}); err != nil || len(a.Handoffs) != ask.FamilyMax || !a.More {
		t.Errorf("%d handoffs, more: %v, %v", len(a.Handoffs), a.More, err)
	}
}

func TestAhead(t *testing.T) {
	w, ix := memoryWorld(t, 11)
	to := func(agent string, priority protocol.Priority) *subject {
		return w.submit(func(p *protocol.Package) {
			p.Source, p.Target, p.Priority = "lead", protocol.Target{Agent: agent}, priority
		})
	}
	first, second := to("ann", protocol.Normal), to("ann", protocol.Normal)
	to("bob", protocol.Critical)
	to("ann", protocol.Low)
	urgent := to("ann", protocol.Critical)
	ahead := func(k *subject) ask.AheadAnswer {
		a, err := ix.Ahead(t.Context(), ask.AheadQuery{Ticket: k.Ticket})
		if err != nil || !a.Complete {
			t.Fatalf("%+v, %v", a, err)
		}
		a.Position = ask.Position{}
		return a
	}
	if a := ahead(second); a != (ask.AheadAnswer{Waiting: true, Ahead: 2}) {
		t.Errorf("%+v", a)
	}
	if a := ahead(urgent); a != (ask.AheadAnswer{Waiting: true}) {
		t.Errorf("%+v", a)
	}
	m := protocol.Meta{At: w.now}
	w.append(first, []protocol.Event{&protocol.Accepted{Meta: m, Offer: first.Offer, Agent: "ann", Holder: "h", LeaseMS: 30_000, Attempt: 1}})
	if a := ahead(second); a.Ahead != 1 {
		t.Errorf("%+v after the first was accepted", a)
	}
	if a := ahead(first); a.Waiting {
		t.Errorf("%+v of one that was accepted", a)
	}
}

func TestFigures(t *testing.T) {
	w, ix := memoryWorld(t, 12)
	at := func(ms int) protocol.Meta {
		return protocol.Meta{At: w.now.Add(time.Duration(ms) * time.Millisecond)}
	}
	flow := func(p *protocol.Package) {
		p.Source, p.Target, p.Context.WorkflowID = "lead", protocol.Target{Agent: "ann"}, "flow"
		p.Approval = nil
	}
	for i := range 4 { // accepted after 100 ms, done after 1, 2, 3, 4 s
		k := w.submit(flow)
		w.append(k, []protocol.Event{&protocol.Accepted{Meta: at(100), Offer: k.Offer, Agent: "ann", Holder: "h", LeaseMS: 30_000, Attempt: 1}, &protocol.Started{Meta: at(100)}})
		w.append(k, []protocol.Event{&protocol.Completed{Meta: at(100 + 1000*(i+1)), Fence: k.Fence, Status: protocol.Success, Usage: &protocol.Usage{Tokens: 10}}})
	}
	refused := w.submit(flow)
	w.append(refused, []protocol.Event{&protocol.Rejected{Meta: at(50), Offer: refused.Offer, Agent: "ann", ReasonCode: "busy", Reason: "later"}})
	w.append(refused, []protocol.Event{&protocol.Rerouted{Meta: at(60), From: "ann", To: "bob", Reason: "refused"}, &protocol.Offered{Meta: at(60), Agent: "bob", Reason: "reroute"}})
	w.append(refused, []protocol.Event{&protocol.Accepted{Meta: at(70), Offer: refused.Offer, Agent: "bob", Holder: "h", LeaseMS: 30_000, Attempt: 1}})
	w.submit(func(p *protocol.Package) { p.Source, p.Target = "lead", protocol.Target{Agent: "cy"} })
	a, err := ix.Figures(t.Context(), ask.FiguresQuery{Filter: ask.Filter{WorkflowID: []string{"flow"}}})
	if err != nil || !a.Complete {
		t.Fatalf("%+v, %v", a, err)
	}
	if a.All.Handoffs != 5 || a.All.Open != 1 || a.All.Succeeded != 4 || *a.All.Success != 1 || a.All.Accepted != 5 || a.All.Refused != 1 || *a.All.Tokens != 40 {
		t.Errorf("all: %s", dump(a.All))
	}
	if d := a.All.Work; d.Count != 4 || d.P50 != 2000 || d.P99 < 3968 || d.P99 > 4000 {
		t.Errorf("work: %+v", d)
	}
	if d := a.All.Queue; d.Count != 5 || d.P50 != 100 || d.P99 != 100 {
		t.Errorf("queue: %+v", d)
	}
	if len(a.ByAgent) != 2 || a.ByAgent[0].Key != "ann" || a.ByAgent[0].Accepted != 4 || a.ByAgent[0].Refused != 1 || *a.ByAgent[0].Acceptance != 0.8 ||
		a.ByAgent[1].Key != "bob" || a.ByAgent[1].Accepted != 1 || a.ByAgent[1].Success != nil {
		t.Errorf("by agent: %s", dump(a.ByAgent))
	}
	if !reflect.DeepEqual(a.Refusals, []ask.RefusalCount{{Agent: "ann", Reason: "busy", Count: 1}}) ||
		!reflect.DeepEqual(a.Workflows, []ask.CountGroup{{Values: []string{"flow"}, Count: 5}}) ||
		len(a.ByPair) != 1 || a.ByPair[0].Key != "lead -> ann" || len(a.ByType) != 1 || a.ByType[0].Key != "sequential" {
		t.Errorf("%s", dump(a))
	}
}

// TestPackagesElsewhere: the words of a large package are read from where it
// lies, and those of one that is lost are none.
func TestPackagesElsewhere(t *testing.T) {
	engine := brokertest.NewMemory()
	defer func() { _ = engine.Close() }()
	b := brokertest.Over(t, engine)
	if err := engine.PutProfile(t.Context(), protocol.Profile{ID: "ann"}); err != nil {
		t.Fatal(err)
	}
	pkg := protocol.Package{Source: "lead", Target: protocol.Target{Agent: "ann"}, Reason: "because",
		Task: protocol.Task{Description: "wombat"}, Context: protocol.Context{Summary: strings.Repeat("long ", 100_000)}}
	in, err := b.Prepare(t.Context(), pkg)
	if err != nil {
		t.Fatal(err)
	}
	head, err := b.Submit(t.Context(), in)
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld(t, engine, 1)
	lost := &subject{}
	w.heads = append(w.heads, lost)
	ref := broker.RefOf([]byte("nowhere"))
	summary := in.Package.Summarize("sha256:0")
	w.append(lost, []protocol.Event{&protocol.Submitted{Meta: protocol.Meta{At: w.now}, Ticket: protocol.NewTicket(), Summary: summary, Policy: protocol.DefaultPolicy(), Blob: &ref}})
	ix, _ := keep(t, t.TempDir()+"/index.db", engine)
	a, err := ix.List(t.Context(), ask.ListQuery{Filter: ask.Filter{Text: "wombat"}})
	if err != nil || len(a.Handoffs) != 1 || a.Handoffs[0].Ticket != head.Ticket || a.Handoffs[0].Description != "wombat" {
		t.Errorf("%+v, %v", a, err)
	}
	if n := total(t, ix); n != 2 {
		t.Errorf("%d handoffs, want both", n)
	}
}
