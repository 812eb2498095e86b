package page

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/agenthandoff/handoff/api"
	"github.com/agenthandoff/handoff/internal/dossier"
	"github.com/agenthandoff/handoff/internal/explain"
	"github.com/agenthandoff/handoff/internal/index/ask"
	"github.com/agenthandoff/handoff/protocol"
)

const (
	bulkMax     = 1_000 // handoffs of one act
	reasonsMax  = 5     // for which some were refused, that are shown
	reasonBytes = 200
)

// bulkAct is an act on several handoffs of a list.
type bulkAct struct {
	Op, Verb, Does string
	done           string
	open           bool // on those that are open; else on closed ones
}

// bulkActs are in the order of their buttons.
var bulkActs = []bulkAct{
	{"cancel", "Cancel", "Each ends. A worker that has one is asked to stop.", "being cancelled", true},
	{explain.OpRedrive, "Submit again", "The package of each is a new handoff.", "submitted again", false},
	{explain.OpDismiss, "Leave at that", "Each leaves its inbox, and stays closed.", "no longer in an inbox", false},
}

// bulkView asks before an act.
type bulkView struct {
	bulkAct
	From    string
	Tickets []string
	More    bool // match than those that are chosen
	Most    int
}

// bulk shows the effect of an act on the chosen handoffs, or on all that match the filter of the list,
// and does it once that is confirmed.
func (p *Page) bulk(x *request, form url.Values) {
	at := slices.IndexFunc(bulkActs, func(a bulkAct) bool { return a.Op == form.Get("op") })
	v := bulkView{From: p.here(x.Request), Tickets: form["tickets"], Most: bulkMax}
	var err error
	switch {
	case at < 0:
		err = protocol.Errorf(protocol.CodeInvalid, "op", "is no act on several handoffs")
	case !x.may(deeds[form.Get("op")].Operation):
		_, err = x.do(x.Context(), form) // in the words of the operation
	case form.Get("confirmed") != "":
		v.Tickets = strings.Fields(form.Get("tickets"))
	case form.Get("all") != "":
		v.Tickets, v.More, err = x.matching(v.From, bulkActs[at].open)
	}
	switch {
	case err != nil:
	case len(v.Tickets) == 0:
		err = protocol.Errorf(protocol.CodeMissing, "tickets", "choose at least one handoff to which this act applies")
	case len(v.Tickets) > bulkMax:
		err = protocol.Errorf(protocol.CodeTooLarge, "tickets", "are %d; an act is on %d at most", len(v.Tickets), bulkMax)
	case form.Get("confirmed") != "":
		p.each(x, bulkActs[at], v.Tickets, form)
		return
	}
	if v.More = v.More && err == nil; at >= 0 {
		v.bulkAct = bulkActs[at]
	}
	x.frame.Page, x.frame.Title = "board", v.Verb
	p.show(x, "bulk", func(*request) (any, error) { return &v, err })
}

// matching lists the tickets that match the filter of a list: those that changed last, at most bulkMax.
func (x *request) matching(list string, open bool) (tickets []string, more bool, err error) {
	at, err := url.Parse(list)
	if err != nil {
		return nil, false, err
	}
	filter, _ := filterOf(at.Query())
	if filter.Open != nil && *filter.Open != open {
		return nil, false, nil
	}
	filter = x.caller.Scope(filter)
	filter.Open = &open
	for cursor := ""; ; {
		page, err := x.session.List(x.Context(), ask.ListQuery{Filter: filter, Sort: ask.SortUpdated, Limit: min(ask.PageMax, bulkMax-len(tickets)), Cursor: cursor})
		if err != nil {
			return nil, false, err
		}
		for _, row := range page.Handoffs {
			tickets = append(tickets, row.Ticket)
		}
		if cursor = page.Cursor; cursor == "" || len(tickets) >= bulkMax {
			return tickets, cursor != "", nil
		}
	}
}

// each does an act: one operation for each handoff. A refusal stops no other.
func (p *Page) each(x *request, a bulkAct, tickets []string, form url.Values) {
	refused := map[string]int{} // by reason
	var mu sync.Mutex
	n := 0
	err := dossier.InParallel(x.Context(), len(tickets), func(ctx context.Context, i int) error {
		if _, err := x.do(ctx, url.Values{"op": {a.Op}, "ticket": {tickets[i]}, "reason": form["reason"]}); err != nil {
			refusal, _ := api.Refusal(err)
			mu.Lock()
			defer mu.Unlock()
			n++
			refused[protocol.CutText(strings.ReplaceAll(refusal.Message, tickets[i], "it"), reasonBytes)]++
		}
		return context.Cause(x.Context()) // one that was not done is not reported as done
	})
	if err == nil && n == 0 {
		http.Redirect(x.w, x.Request, linkWith(p.here(x.Request), "did", a.Op, "n", strconv.Itoa(len(tickets))), http.StatusSeeOther)
		return
	}
	var reasons []string
	for _, reason := range slices.SortedFunc(maps.Keys(refused), func(a, b string) int { return cmp.Or(refused[b]-refused[a], strings.Compare(a, b)) }) {
		reasons = append(reasons, fmt.Sprintf("%d: %s", refused[reason], reason))
	}
	if len(reasons) > reasonsMax {
		reasons = append(reasons[:reasonsMax], "and other reasons")
	}
	if err == nil {
		err = protocol.Errorf(protocol.CodeIllegal, "", "%d of %d were refused; %d are %s. %s", n, len(tickets), len(tickets)-n, a.done, strings.Join(reasons, "; "))
	}
	p.again(x, err)
}

// linkWith adds parameters to a link.
func linkWith(to string, parameters ...string) string {
	at, err := url.Parse(to)
	if err != nil {
		return to
	}
	query := at.Query()
	for i := 0; i+1 < len(parameters); i += 2 {
		query.Set(parameters[i], parameters[i+1])
	}
	at.RawQuery = query.Encode()
	return at.String()
}
