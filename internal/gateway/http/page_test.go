package httpgateway

import (
	"context"
	"fmt"
	"html"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/agenthandoff/handoff/api"
	"github.com/agenthandoff/handoff/internal/index/ask"
	"github.com/agenthandoff/handoff/internal/jetstream"
	"github.com/agenthandoff/handoff/internal/lifecycle"
	"github.com/agenthandoff/handoff/internal/record"
	"github.com/agenthandoff/handoff/protocol"
)

// browser is a person at the page.
type browser struct {
	*world
	cookie string
}

// visit sends a request with the cookie of a browser, and reads the page. A form is posted.
func (b *browser) visit(path string, form url.Values, headers ...string) answer {
	b.Helper()
	method, body := http.MethodGet, io.Reader(nil)
	if form != nil {
		method, body = http.MethodPost, strings.NewReader(form.Encode())
	}
	r, err := http.NewRequestWithContext(b.Context(), method, b.url+path, body)
	if err != nil {
		b.Fatal(err)
	}
	if form != nil {
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		r.Header.Set("Origin", b.url)
	}
	if b.cookie != "" {
		r.Header.Set("Cookie", b.cookie)
	}
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		r.Header.Set(name, value)
	}
	response, err := http.DefaultTransport.RoundTrip(r)
	if err != nil {
		b.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		b.Fatal(err)
	}
	return answer{response.StatusCode, response.Header, text}
}

// signIn signs a browser in by a token.
func (w *world) signIn(name string, role Role) *browser {
	w.Helper()
	b := &browser{world: w}
	a := b.visit("/ui/in", url.Values{"token": {w.token(name, role)}})
	b.cookie, _, _ = strings.Cut(a.header.Get("Set-Cookie"), ";")
	if a.status != http.StatusSeeOther || b.cookie == "" {
		w.Fatalf("sign-in of %s: %d %s", name, a.status, a.body)
	}
	return b
}

// has fails unless a page has a status and all of these words.
func (a answer) has(t testing.TB, status int, words ...string) string {
	t.Helper()
	text := html.UnescapeString(string(a.body))
	if a.status != status {
		t.Errorf("status %d, want %d: %s", a.status, status, text)
	}
	for _, w := range words {
		if !strings.Contains(text, w) {
			t.Errorf("the page lacks %q: %s", w, text)
		}
	}
	return text
}

// asked hands a package from lead to coder, who asks a question.
func (w *world) asked(key, question string) string {
	w.Helper()
	ticket := w.submit(key)
	held := want[api.Held](w, w.post("coder", "/v1/agents/coder/claims", `{"lease_ms":60000,"wait_ms":20000}`), http.StatusOK)
	w.report(held.Lease, "acknowledge", fmt.Sprintf(`{"status":"conditional","needs_context":[%q]}`, question))
	return ticket
}

// TestPageSession: a session is a cookie alone, of a token or of a link that works once, and it ends
// with the token.
func TestPageSession(t *testing.T) {
	w := newWorld(t, Config{})
	nobody := &browser{world: w}
	for _, path := range []string{"/ui", "/ui/board", "/ui/inbox", "/ui/agents", "/ui/agents/coder", "/ui/schedules", "/ui/t/x", "/ui/find?q=x"} {
		nobody.visit(path, nil).has(t, http.StatusUnauthorized, "Sign in")
		nobody.visit(path, nil, "Authorization: Bearer "+w.token("human", RoleAdmin)).has(t, http.StatusUnauthorized, "Sign in")
	}
	if a := nobody.visit("/ui/events", nil, "Authorization: Bearer "+w.token("human", RoleAdmin)); a.status != http.StatusUnauthorized {
		t.Errorf("hints by a token: %d", a.status)
	}
	person := w.signIn("human", RoleAdmin)
	a := person.visit("/ui", nil)
	a.has(t, http.StatusOK, "All is well.", "No index answers")
	for _, part := range []string{"default-src 'none'", "frame-ancestors 'none'", "script-src 'self'"} {
		if !strings.Contains(a.header.Get("Content-Security-Policy"), part) {
			t.Errorf("policy %q lacks %s", a.header.Get("Content-Security-Policy"), part)
		}
	}
	if text := string(a.body); strings.Contains(text, "style=") || strings.Count(text, "<script") != strings.Count(text, `<script type="module" src=`) {
		t.Error("the page has styles or scripts within")
	}
	if a := person.visit("/v1/inbox", nil); a.status != http.StatusUnauthorized {
		t.Errorf("a cookie for the API: %d", a.status)
	}
	person.visit("/ui/find?q=nothing", nil).has(t, http.StatusSeeOther)
	person.visit("/ui/t/"+strings.Repeat("0", 8)+"-0000-4000-8000-000000000000", nil).has(t, http.StatusNotFound)

	secret, err := NewLink(w.file, "human")
	if err != nil {
		t.Fatal(err)
	}
	nobody.visit("/ui/in?link="+secret, nil).has(t, http.StatusOK, "Sign in", secret) // a look does not use it
	for _, status := range []int{http.StatusSeeOther, http.StatusUnauthorized} {
		nobody.visit("/ui/in", url.Values{"token": {secret}, "to": {"/ui/inbox"}}).has(t, status)
	}
	if _, err := NewLink(w.file, "stranger"); err == nil {
		t.Error("a link for no token")
	}
	nobody.visit("/ui/in", url.Values{"token": {"handoff_guess"}}).has(t, http.StatusUnauthorized, "is no token")
	nobody.visit("/ui/in", url.Values{"token": {w.token("human", RoleAdmin)}}, "Origin: https://evil.example").has(t, http.StatusForbidden)
	for to, leads := range map[string]string{"https://evil.example/ui": "/ui", "//evil.example/ui": "/ui", "/ui/../v1": "/ui", "/ui//evil.example": "/ui/evil.example", "/ui/inbox?of=human": "/ui/inbox?of=human"} {
		a := nobody.visit("/ui/in", url.Values{"token": {w.token("human", RoleAdmin)}, "to": {to}})
		if got := a.header.Get("Location"); got != leads {
			t.Errorf("%s leads to %s", to, got)
		}
	}

	for i := range len(person.cookie) { // whatever is changed
		changed := []byte(person.cookie)
		if changed[i]++; i > strings.Index(person.cookie, "=") && i < len(changed)-1 {
			other := &browser{w, string(changed)}
			if a := other.visit("/ui/agents", nil); a.status != http.StatusUnauthorized {
				t.Fatalf("a changed cookie, at %d: %d", i, a.status)
			}
		}
	}
	over, err := w.g.cfg.Tokens.SignIn(w.token("human", RoleAdmin), time.Now().Add(-time.Second))
	if err != nil {
		t.Fatal(err)
	}
	name, _, _ := strings.Cut(person.cookie, "=")
	(&browser{w, name + "=" + over}).visit("/ui", nil).has(t, http.StatusUnauthorized)
	if err := RevokeToken(w.file, "human"); err != nil {
		t.Fatal(err)
	}
	person.visit("/ui", nil).has(t, http.StatusUnauthorized)
}

// TestPageCookie: over TLS a cookie belongs to this host; below a base path, to that path; on loopback
// it has the port.
func TestPageCookie(t *testing.T) {
	for _, c := range []struct {
		cfg  Config
		want []string
	}{
		{Config{}, []string{"handoff-", "Path=/;", "HttpOnly", "SameSite=Lax"}},
		{Config{Secure: true}, []string{"__Host-handoff=", "Path=/;", "HttpOnly", "Secure", "SameSite=Lax"}},
		{Config{Secure: true, BasePath: "/team"}, []string{"__Secure-handoff=", "Path=/team/ui;", "HttpOnly", "Secure"}},
	} {
		w := newWorld(t, c.cfg)
		b := &browser{world: w}
		a := b.visit(c.cfg.BasePath+"/ui/in", url.Values{"token": {w.token("human", RoleAdmin)}})
		set := a.header.Get("Set-Cookie")
		for _, part := range c.want {
			if !strings.Contains(set, part) {
				t.Errorf("cookie %q lacks %s", set, part)
			}
		}
		if to := a.header.Get("Location"); to != c.cfg.BasePath+"/ui" {
			t.Errorf("leads to %s", to)
		}
		b.cookie, _, _ = strings.Cut(set, ";")
		page := b.visit(c.cfg.BasePath+"/ui", nil).has(t, http.StatusOK, `href="`+c.cfg.BasePath+`/ui/inbox"`)
		for _, link := range regexp.MustCompile(`(?:href|src|action)="([^"#?][^"]*)"`).FindAllStringSubmatch(page, -1) {
			if !strings.HasPrefix(link[1], c.cfg.BasePath+"/ui") {
				t.Errorf("a link to %s", link[1])
			}
		}
	}
}

// TestPageActs: an act is one operation, with its role, from this page alone. The second of two who
// decide reads who was first. Texts that were typed in a session that was over are kept.
func TestPageActs(t *testing.T) {
	w := newWorld(t, Config{})
	w.register("lead", "coder")
	ticket := w.asked("first", "which branch?")
	person, other, reader := w.signIn("human", RoleAdmin), w.signIn("ann", RoleAdmin), w.signIn("looker", RoleReader)
	view := "/ui/t/" + ticket
	person.visit(view, nil).has(t, http.StatusOK, "coder asks", "“which branch?”", "Your answer", "If nothing changes")
	shown := reader.visit(view, nil).has(t, http.StatusOK, "coder asks")
	if strings.Contains(shown, "/ui/act") {
		t.Error("a reader has forms")
	}
	form := func(change ...string) url.Values {
		v := url.Values{"op": {"answer"}, "ticket": {ticket}, "question": {"1"}, "text": {"the branch main"}, "from": {view}}
		for i := 0; i < len(change); i += 2 {
			v.Set(change[i], change[i+1])
		}
		return v
	}
	reader.visit("/ui/act", form()).has(t, http.StatusForbidden, "Not done", "needs the role")
	for _, origin := range []string{"https://evil.example", "null", ""} {
		person.visit("/ui/act", form(), "Origin: "+origin).has(t, http.StatusForbidden)
	}
	person.visit("/ui/act", form(), "Sec-Fetch-Site: cross-site").has(t, http.StatusForbidden)
	person.visit("/ui/act?op=answer", nil).has(t, http.StatusNotFound) // no act by a link
	person.visit("/ui/act", form("op", "erase")).has(t, http.StatusUnprocessableEntity, "is no act")
	person.visit("/ui/act", form("question", "7")).has(t, http.StatusConflict, "Not done", "the branch main")

	gone := (&browser{world: w}).visit("/ui/act", form()).has(t, http.StatusUnauthorized, "your words are kept", "the branch main")
	if !strings.Contains(gone, `name="typed.text" value="the branch main"`) {
		t.Error("the typed texts are lost")
	}
	again := url.Values{"token": {w.token("human", RoleAdmin)}, "to": {view}}
	for name, values := range form() {
		again["typed."+name] = values
	}
	(&browser{world: w}).visit("/ui/in", again).has(t, http.StatusOK, "You are signed in again", "the branch main", "Send it")

	if a := person.visit("/ui/act", form()); a.header.Get("Location") != view+"?did=answer&on="+ticket {
		t.Errorf("the act leads to %d %s: %s", a.status, a.header.Get("Location"), a.body)
	}
	person.visit(view+"?did=answer&on="+ticket, nil).has(t, http.StatusOK, "has your answer and goes on")
	person.visit(view+"?did=<script>&on="+ticket, nil).has(t, http.StatusOK)
	other.visit("/ui/act", form("text", "the branch of the redesign")).has(t, http.StatusConflict, "human answered it")

	big := form("text", strings.Repeat("x", 1<<20))
	person.visit("/ui/act", big).has(t, http.StatusRequestEntityTooLarge, "larger than")

	looking := newWorld(t, Config{ReadOnly: true})
	looking.register("lead", "coder")
	ticket = looking.asked("first", "which branch?")
	person = looking.signIn("human", RoleAdmin)
	if page := person.visit("/ui/t/"+ticket, nil).has(t, http.StatusOK, "coder asks"); strings.Contains(page, "/ui/act") {
		t.Error("a page to look at has forms")
	}
	person.visit("/ui/act", form("ticket", ticket)).has(t, http.StatusForbidden, "read-only")
}

// TestPageLater: a handoff that starts later waits on the board, and for no person: whether it has no agent yet, was
// rerouted to one, or to a person. One that needs an approval is with a person.
func TestPageLater(t *testing.T) {
	w := newWorld(t, Config{})
	w.register("lead", "coder")
	w.serveIndex()
	submit := func(field string) string {
		return want[view](w, w.post("lead", "/v1/handoffs", strings.Replace(pkg, "{", "{"+field+",", 1)), http.StatusAccepted).State.Ticket
	}
	start := fmt.Sprintf(`"start_at":%q`, time.Now().Add(time.Hour).UTC().Format(time.RFC3339))
	later := []string{submit(start), submit(start), submit(start)}
	b := w.signIn("human", RoleAdmin)
	for i, agent := range []string{"coder", "human"} {
		b.visit("/ui/act", url.Values{"op": {"reroute"}, "ticket": {later[i+1]}, "to": {agent}, "reason": {"r"}}).has(t, http.StatusSeeOther)
	}
	asked := submit(`"approval":{"required":true}`)
	board := ""
	for !strings.Contains(board, "b-"+asked) { // the index has it soon, and then the others too
		time.Sleep(20 * time.Millisecond)
		board = html.UnescapeString(string(b.visit("/ui/board", nil).body))
	}
	waiting, rest, _ := strings.Cut(board, "<h2>Working")
	for _, ticket := range later {
		if !strings.Contains(waiting, "b-"+ticket) {
			t.Errorf("%s is not in the column of those that wait", ticket)
		}
	}
	if !strings.Contains(waiting, "<h2>Waiting <b>3</b>") || !strings.Contains(rest, "<h2>With a person <b>1</b>") || !strings.Contains(rest, "b-"+asked) {
		t.Errorf("the columns: %s", board)
	}
}

// TestPageForms: the forms of a view have the fields that their operations take.
func TestPageForms(t *testing.T) {
	w := newWorld(t, Config{})
	w.register("lead", "coder")
	b := w.signIn("human", RoleAdmin)
	submit := func(field string) string {
		return "/ui/t/" + want[view](w, w.post("lead", "/v1/handoffs", strings.Replace(pkg, "{", "{"+field+",", 1)), http.StatusAccepted).State.Ticket
	}
	send := func(path, op string, more ...string) {
		t.Helper()
		page := b.visit(path, nil).has(t, http.StatusOK)
		form := regexp.MustCompile(`(?s)<form [^>]* id="f-` + op + `[^"]*">(.*?)</form>`).FindStringSubmatch(page)
		if form == nil {
			t.Fatalf("%s has no form to %s: %s", path, op, page)
		}
		values := url.Values{}
		for _, input := range regexp.MustCompile(`<input[^>]* name="([^"]*)" value="([^"]*)"`).FindAllStringSubmatch(form[1], -1) {
			values.Set(input[1], input[2])
		}
		for i := 0; i < len(more); i += 2 {
			values.Set(more[i], more[i+1])
		}
		b.visit("/ui/act", values).has(t, http.StatusSeeOther)
	}
	send("/ui/t/"+w.asked("first", "may I?"), `answer-[^"]*-1`, "reason", "no") // it is denied
	send("/ui/t/"+w.asked("second", "which branch?"), "answer", "text", "main")
	const approval = `"approval":{"required":true}`
	send(submit(approval), "approve")
	denied := submit(approval)
	send(denied, "deny", "reason", "not now")
	send(denied, "redrive")
	send(submit(`"priority":"low"`), "reroute", "to", "human", "reason", "again")
	send(submit(`"priority":"high"`), "cancel")
	send("/ui", "submit", "to", "coder", "task", "a task", "reason", "a reason")
	for _, op := range []string{"pause", "resume"} {
		send("/ui/agents/coder", op)
	}
	for op, body := range map[string]string{"PutSchedule": `{"name":"nightly","cron":"@daily",`, "PutRule": `{"name":"order",`} {
		body += `"package":{"target":{"agent":"coder"},"reason":"r","task":{"description":"t"}}}`
		want[any](t, w.send(w.token("boss", RoleAdmin), "POST", "/v1/ops/"+op, strings.NewReader(body)), http.StatusOK)
	}
	for _, op := range []string{"pause-schedule", "resume-schedule", "run-schedule", "pause-rule", "resume-rule"} {
		send("/ui/schedules", op)
	}
}

// TestPageSeveral: an act on several handoffs of a list first shows its effect and their number. Confirmed,
// it is one operation for each, a refusal stops no other, and the page has the numbers and the reasons.
func TestPageSeveral(t *testing.T) {
	w := newWorld(t, Config{})
	w.register("lead", "coder")
	w.serveIndex()
	var tickets []string
	for i := range 5 {
		tickets = append(tickets, w.submit(fmt.Sprint(i)))
	}
	closed := func() (n int) {
		for _, ticket := range tickets {
			if want[view](t, w.get("lead", "/v1/handoffs/"+ticket), http.StatusOK).State.Outcome == protocol.OutcomeCancelled {
				n++
			}
		}
		return n
	}
	person, list := w.signIn("human", RoleAdmin), "/ui/board?as=list&source=lead"
	person.visit(list, nil).has(t, http.StatusOK, "all that match", "Cancel…", "Submit again…", "Leave at that…")
	form := func(op string, more ...string) url.Values {
		v := url.Values{"op": {op}, "bulk": {"1"}, "from": {list}}
		for i := 0; i < len(more); i += 2 {
			v.Add(more[i], more[i+1])
		}
		return v
	}
	person.visit("/ui/act", form("cancel")).has(t, http.StatusUnprocessableEntity, "choose at least one")
	person.visit("/ui/act", form("answer", "tickets", tickets[0])).has(t, http.StatusUnprocessableEntity, "is no act on several")
	person.visit("/ui/act", form("cancel", "confirmed", "1", "tickets", strings.Repeat(tickets[0]+" ", 1_001))).has(t, http.StatusRequestEntityTooLarge, "on 1000 at most")
	asked := person.visit("/ui/act", form("cancel", "tickets", tickets[0], "tickets", tickets[1])).has(t, http.StatusOK, "Cancel: 2 handoffs", "Each ends.", tickets[0]+" "+tickets[1])
	if strings.Contains(asked, tickets[2]) || closed() > 0 {
		t.Errorf("another handoff, or an act before it is confirmed: %s", asked)
	}
	chosen := form("cancel", "confirmed", "1", "tickets", tickets[0]+" "+tickets[1])
	if a := person.visit("/ui/act", chosen); a.header.Get("Location") != "/ui/board?as=list&did=cancel&n=2&source=lead" || closed() != 2 {
		t.Errorf("%d %s, %d cancelled: %s", a.status, a.header.Get("Location"), closed(), a.body)
	}
	person.visit(list+"&did=cancel&n=2", nil).has(t, http.StatusOK, "2 handoffs are being cancelled")
	asked = person.visit("/ui/act", form("cancel", "all", "1")).has(t, http.StatusOK, "Cancel: 3 handoffs")
	if strings.Contains(asked, tickets[0]) {
		t.Error("a closed handoff is among those to be cancelled")
	}
	chosen = form("cancel", "confirmed", "1", "tickets", strings.Join(tickets, " ")+" no-ticket")
	person.visit("/ui/act", chosen).has(t, http.StatusConflict, "Not done: 3 of 6 were refused; 3 are being cancelled. 2: ", "1: ")
	if closed() != len(tickets) {
		t.Errorf("%d of %d are cancelled", closed(), len(tickets))
	}
	person.visit("/ui/act", form("cancel", "all", "1")).has(t, http.StatusUnprocessableEntity, "choose at least one")
	person.visit("/ui/act", form("redrive", "all", "1")).has(t, http.StatusOK, "Submit again: 5 handoffs")
	reader := w.signIn("looker", RoleReader)
	reader.visit("/ui/act", chosen).has(t, http.StatusForbidden, "needs the role")
	if page := reader.visit(list, nil).has(t, http.StatusOK); strings.Contains(page, "/ui/act") {
		t.Error("a reader has acts")
	}
}

// TestPageSeveralMany: all that match are the 1,000 that changed last, and the page has their number.
func TestPageSeveralMany(t *testing.T) {
	w := newWorld(t, Config{Index: manyRows{}})
	person := w.signIn("human", RoleAdmin)
	form := url.Values{"op": {"cancel"}, "bulk": {"1"}, "all": {"1"}, "from": {"/ui/board?as=list"}}
	a := person.visit("/ui/act", form)
	a.has(t, http.StatusOK, "Cancel: 1000 handoffs", "More than 1000 match")
	if len(a.body) > 60<<10 {
		t.Errorf("%d bytes", len(a.body))
	}
}

// manyRows is an index with any number of rows.
type manyRows struct{ ask.Answers }

func (manyRows) List(_ context.Context, q ask.ListQuery) (a ask.ListAnswer, _ error) {
	for range min(q.Limit, 400) { // a page may end early
		a.Handoffs = append(a.Handoffs, ask.Row{Ticket: protocol.NewTicket(), Phase: protocol.Working, Agent: "coder"})
	}
	a.Cursor = "more"
	return a, nil
}

// TestPageScope: a caller sees its own handoffs alone, and others in the words of those that do not
// exist.
func TestPageScope(t *testing.T) {
	w := newWorld(t, Config{})
	w.register("lead", "coder", "stranger")
	ticket := w.submit("mine")
	w.signIn("coder", RoleAgent).visit("/ui/t/"+ticket, nil).has(t, http.StatusOK, "write it")
	stranger := w.signIn("stranger", RoleAgent)
	stranger.visit("/ui/t/"+ticket, nil).has(t, http.StatusNotFound, "no handoff that you may see")
	stranger.visit("/ui/inbox?of=human", nil).has(t, http.StatusForbidden)
	stranger.visit("/ui/act", url.Values{"op": {"cancel"}, "ticket": {ticket}, "from": {"/ui"}}).has(t, http.StatusNotFound)
	stranger.visit("/ui/act", url.Values{"op": {"pause"}, "agent": {"coder"}, "from": {"/ui"}}).has(t, http.StatusForbidden)
}

// TestPageHostile: texts of agents are data, and no page is larger than 60 KB.
func TestPageHostile(t *testing.T) {
	w := newWorld(t, Config{})
	bad := `"><script>alert(1)</script>` + "\u202e\x1b[31mred\u200b" + ` {{.}} javascript:alert(1) `
	long := bad + strings.Repeat("a long line without a break ", 2400)
	profile := protocol.Profile{ID: "coder", Description: bad}
	w.register("lead", "coder")
	if err := w.b.PutProfile(t.Context(), profile); err != nil {
		t.Fatal(err)
	}
	body, err := protocol.Marshal(map[string]any{"target": map[string]any{"agent": "coder"}, "reason": bad,
		"task":    map[string]any{"description": long, "requirements": []string{long[:2000]}},
		"context": map[string]any{"summary": long, "key_points": []string{long[:500]}}})
	if err != nil {
		t.Fatal(err)
	}
	ticket := want[view](t, w.post("lead", "/v1/handoffs", string(body), "Idempotency-Key: hostile"), http.StatusAccepted).State.Ticket
	held := want[api.Held](t, w.post("coder", "/v1/agents/coder/claims", `{"lease_ms":60000,"wait_ms":20000}`), http.StatusOK)
	ack, _ := protocol.Marshal(map[string]any{"status": "conditional", "needs_context": []string{bad}, "reason": bad})
	want[protocol.State](t, w.report(held.Lease, "acknowledge", string(ack)), http.StatusOK)
	person := w.signIn("human", RoleAdmin)
	for _, path := range []string{"/ui", "/ui/inbox", "/ui/agents", "/ui/agents/coder", "/ui/schedules", "/ui/t/" + ticket, "/ui/t/" + ticket + "?tab=package",
		"/ui/t/" + ticket + "?tab=context", "/ui/t/" + ticket + "?tab=result", "/ui/t/" + ticket + "?tab=audit", "/ui/t/" + ticket + "?scale=1&tab=" + url.QueryEscape(bad),
		"/ui/find?q=" + url.QueryEscape(bad), "/ui/t/" + url.PathEscape(`<script>`), "/ui/inbox?open=" + url.QueryEscape(bad), "/ui?did=answer&on=" + url.QueryEscape(bad)} {
		a := person.visit(path, nil)
		text := string(a.body)
		if a.status >= 500 {
			t.Errorf("%s: %d %s", path, a.status, text)
		}
		for _, never := range []string{"<script>", "\u202e", "\x1b", "\u200b", "\x00", `href="javascript`} {
			if strings.Contains(text, never) {
				t.Errorf("%s has %q", path, never)
			}
		}
		if len(text) > 60<<10 {
			t.Errorf("%s has %d bytes", path, len(text))
		}
	}
}

// TestPageLong: of a handoff with 100,000 changes and a line of 64 KB in each thousandth, a view reads and
// draws the last, links to those before, and stays below 60 KB.
func TestPageLong(t *testing.T) {
	const many = 100_000
	w := newWorld(t, Config{})
	w.register("lead", "coder")
	ticket := w.submit("long")
	w.claim()
	head, err := w.b.Head(t.Context(), ticket, 0)
	if err != nil {
		t.Fatal(err)
	}
	info, err := w.b.LedgerInfo(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	long := strings.Repeat("a long line without a break ", 2400)[:64<<10]
	state, last, seq := head.State, head.Seq, info.Last
	err = w.engine.Load(t.Context(), func(yield func(jetstream.LoadEntry, error) bool) {
		for i := range many {
			p := protocol.Progressed{Meta: protocol.Meta{At: state.UpdatedAt.Add(time.Millisecond), By: state.Holder}, Fence: state.Fence, Progress: protocol.Progress{Message: fmt.Sprint("step ", i)}}
			if i%1000 == 999 {
				p.Progress.Message = long
			}
			next, err := lifecycle.ApplyAll(state, []protocol.Event{&p})
			if err != nil {
				yield(jetstream.LoadEntry{}, err)
				return
			}
			id := uuid.NewString()
			body, err := record.Encode(protocol.Record{ID: id, Events: []protocol.Event{&p}, State: next})
			seq++
			if !yield(jetstream.LoadEntry{Ticket: ticket, After: last, ID: id, Body: body, Seq: seq}, err) || err != nil {
				return
			}
			state, last = next, seq
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	person := w.signIn("human", RoleAdmin)
	link := regexp.MustCompile(`href="\?(before=\d+)#time">Earlier ones`)
	query := "tab=audit"
	for range 3 {
		a := person.visit("/ui/t/"+ticket+"?"+query, nil)
		text := a.has(t, http.StatusOK, "500 changes are drawn", "handoff history "+ticket, "Earlier ones")
		if len(a.body) > 60<<10 {
			t.Errorf("%s: %d bytes", query, len(a.body))
		}
		earlier := link.FindStringSubmatch(text)
		if earlier == nil {
			t.Fatalf("%s: no link to the earlier ones", query)
		}
		query = "tab=audit&" + earlier[1]
	}
	person.visit("/ui/t/"+ticket+"?"+query, nil).has(t, http.StatusOK, "The last ones", "progress reported 500 times")
}

// TestPageEvents: a session gets hints, by its cookie, until it is over.
func TestPageEvents(t *testing.T) {
	w := newWorld(t, Config{})
	w.register("lead", "coder")
	w.g.ping = 10 * time.Millisecond
	person := w.signIn("human", RoleAdmin)
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, w.url+"/ui/events", nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Cookie", person.cookie)
	response, err := http.DefaultTransport.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	ticket := w.submit("hint")
	var got strings.Builder
	buffer := make([]byte, 4096)
	for !strings.Contains(got.String(), ticket) {
		n, err := response.Body.Read(buffer)
		if err != nil {
			t.Fatalf("%v, after %s", err, got.String())
		}
		got.Write(buffer[:n])
	}
	if err := RevokeToken(w.file, "human"); err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(io.Discard, response.Body); err != nil {
		t.Errorf("the end of the stream: %v", err)
	}
}

// TestPageFiles: the files fit their budgets.
func TestPageFiles(t *testing.T) {
	w := newWorld(t, Config{})
	for name, most := range map[string]int{"style.css": 12 << 10, "page.mjs": 10 << 10, "icon.svg": 1 << 10} {
		a := (&browser{world: w}).visit("/ui/"+name, nil)
		if a.status != http.StatusOK || len(a.body) > most || !strings.Contains(a.header.Get("Cache-Control"), "immutable") {
			t.Errorf("%s: %d, %d bytes of %d", name, a.status, len(a.body), most)
		}
	}
}

// counting counts the questions to an index.
type counting struct {
	ask.Answers
	asked atomic.Int64
}

func (c *counting) List(ctx context.Context, q ask.ListQuery) (ask.ListAnswer, error) {
	c.asked.Add(1)
	return c.Answers.List(ctx, q)
}

func (c *counting) Count(ctx context.Context, q ask.CountQuery) (ask.CountAnswer, error) {
	c.asked.Add(1)
	return c.Answers.Count(ctx, q)
}

func (c *counting) Family(ctx context.Context, q ask.FamilyQuery) (ask.FamilyAnswer, error) {
	c.asked.Add(1)
	return c.Answers.Family(ctx, q)
}

func (c *counting) Ahead(ctx context.Context, q ask.AheadQuery) (ask.AheadAnswer, error) {
	c.asked.Add(1)
	return c.Answers.Ahead(ctx, q)
}

func (c *counting) Figures(ctx context.Context, q ask.FiguresQuery) (ask.FiguresAnswer, error) {
	c.asked.Add(1)
	return c.Answers.Figures(ctx, q)
}

func (c *counting) Waiting(ctx context.Context, q ask.WaitingQuery) (ask.WaitingAnswer, error) {
	c.asked.Add(1)
	return c.Answers.Waiting(ctx, q)
}

func (c *counting) Series(ctx context.Context, q ask.SeriesQuery) (ask.SeriesAnswer, error) {
	c.asked.Add(1)
	return c.Answers.Series(ctx, q)
}

// TestPageQuestions: a view asks an index at most three questions.
func TestPageQuestions(t *testing.T) {
	w := newWorld(t, Config{})
	w.register("lead", "coder")
	ticket := w.submit("one")
	for _, path := range []string{"/ui", "/ui/board", "/ui/board?as=list", "/ui/inbox", "/ui/agents", "/ui/agents/coder", "/ui/schedules", "/ui/t/" + ticket} {
		index := &counting{Answers: ask.Client{Asker: w.b}}
		g, err := New(w.b, Config{Tokens: w.g.cfg.Tokens, Index: index})
		if err != nil {
			t.Fatal(err)
		}
		server := httptest.NewServer(g)
		b := &browser{world: &world{TB: t, b: w.b, g: g, url: server.URL, file: w.file, tokens: w.tokens}}
		b = b.world.signIn("human", RoleAdmin)
		if b.visit(path, nil); index.asked.Load() > 3 {
			t.Errorf("%s asks %d questions", path, index.asked.Load())
		}
		server.Close()
	}
}
