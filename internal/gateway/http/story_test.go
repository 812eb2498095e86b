package httpgateway

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/agenthandoff/handoff/api"
	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/dossier"
	"github.com/agenthandoff/handoff/internal/explain"
	"github.com/agenthandoff/handoff/internal/index/ask"
	"github.com/agenthandoff/handoff/internal/lifecycle"
	"github.com/agenthandoff/handoff/protocol"
)

const pkg = `{"target":{"agent":"coder"},"reason":"the plan is ready","task":{"description":"write it"}}`

// submit hands a package from lead to coder and returns its ticket.
func (w *world) submit(key string) string {
	w.Helper()
	return want[view](w, w.post("lead", "/v1/handoffs", pkg, "Idempotency-Key: "+key), http.StatusAccepted).State.Ticket
}

// claim claims the next offer of coder, accepted.
func (w *world) claim() api.Held {
	w.Helper()
	return want[api.Held](w, w.post("coder", "/v1/agents/coder/claims", `{"lease_ms":60000,"wait_ms":20000,"accept":true}`), http.StatusOK)
}

// report posts a report by a lease.
func (w *world) report(lease, name, body string) answer {
	w.Helper()
	return w.post("coder", "/v1/lease/"+name, body, "Handoff-Lease: "+lease)
}

// TestStory goes through the routes as their users do. Before each request the gateway is another
// one, as after a kill.
func TestStory(t *testing.T) {
	w := newWorld(t, Config{})
	w.register("lead", "coder", "tester")
	server := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		g, err := New(w.b, Config{Tokens: w.g.cfg.Tokens})
		if err != nil {
			t.Error(err)
			return
		}
		g.ServeHTTP(rw, r)
	}))
	t.Cleanup(server.Close)
	w.url = server.URL

	ticket := w.submit("once")
	again := w.post("lead", "/v1/handoffs", pkg, "Idempotency-Key: once")
	if v := want[view](t, again, http.StatusOK); v.State.Ticket != ticket || again.header.Get("Location") != "/v1/handoffs/"+ticket {
		t.Errorf("again: %s at %s", v.State.Ticket, again.header.Get("Location"))
	}
	other := w.post("lead", "/v1/handoffs", strings.Replace(pkg, "write it", "write another", 1), "Idempotency-Key: once")
	if p := other.problem(t); p.Code != protocol.CodeKeyReused || p.Status != http.StatusConflict {
		t.Errorf("another package: %+v", p)
	}
	path := "/v1/handoffs/" + ticket
	v := want[view](t, w.get("lead", path), http.StatusOK)
	if v.Ready || v.WaitingFor != "coder to take it" || v.Sentence != "pending: waits for coder to take it" || v.PollAfterMS < 1000 {
		t.Errorf("%+v", v)
	}

	held := want[api.Held](t, w.post("coder", "/v1/agents/coder/claims", `{"lease_ms":60000,"brief":true}`), http.StatusOK)
	if held.State.Ticket != ticket || !strings.HasPrefix(held.Brief, "You are coder. lead hands this work to you") || !strings.Contains(held.Brief, "write it") {
		t.Fatalf("claimed %s: %s", held.State.Ticket, held.Brief)
	}
	want[protocol.State](t, w.report(held.Lease, "acknowledge", `{"status":"conditional","needs_context":["which branch?"]}`), http.StatusOK)
	asked := want[view](t, w.get("lead", path+"?until=asked&wait_ms=20000"), http.StatusOK)
	if !asked.Ready || asked.State.Question != 1 {
		t.Errorf("asked: %+v", asked)
	}
	want[protocol.State](t, w.post("lead", path+"/answer", `{"question":1,"text":"main"}`), http.StatusOK)

	held = w.claim()
	if len(held.Answers) != 1 || held.Answers[0].Text != "main" || held.Brief != "" {
		t.Errorf("answers %+v, brief %s", held.Answers, held.Brief)
	}
	want[api.Beat](t, w.report(held.Lease, "heartbeat", ""), http.StatusOK)
	if s := want[protocol.State](t, w.report(held.Lease, "progress", `{"percent":40,"message":"reading"}`), http.StatusOK); s.Progress.Percent != 40 {
		t.Errorf("progress %+v", s.Progress)
	}
	child := want[api.Child](t, w.report(held.Lease, "handoff", `{"package":{"key":"part","target":{"agent":"tester"},"reason":"it is theirs","task":{"description":"test it"}},"nth":1}`), http.StatusOK)
	if again := want[api.Child](t, w.report(held.Lease, "handoff", `{"package":{"key":"part","target":{"agent":"tester"},"reason":"it is theirs","task":{"description":"test it"}},"nth":1}`), http.StatusOK); again.Ticket != child.Ticket {
		t.Errorf("handed off again: another ticket")
	}
	result := `{"status":"success","body":"done","command":{"goto":"tester"}}`
	closed := want[protocol.State](t, w.report(held.Lease, "complete", result), http.StatusOK)
	if repeated := want[protocol.State](t, w.report(held.Lease, "complete", result), http.StatusOK); !closed.Closed || !repeated.Closed {
		t.Error("completed: open")
	}
	if p := w.report(held.Lease, "progress", `{"percent":41}`).problem(t); p.Code != protocol.CodeLeaseLost || p.Status != http.StatusConflict {
		t.Errorf("after the end: %+v", p)
	}

	chain := want[view](t, w.get("lead", path+"?chain=1"), http.StatusOK)
	if chain.State.Ticket == ticket || chain.Ready {
		t.Errorf("the chain ends with %s, ready %v", chain.State.Ticket, chain.Ready)
	}
	if r := want[struct{ Result protocol.Result }](t, w.get("lead", path+"/result"), http.StatusOK); string(r.Result.Body) != `"done"` {
		t.Errorf("result %s", r.Result.Body)
	}
	want[struct{ State protocol.State }](t, w.get("lead", path+"/result?chain=1"), http.StatusOK)
	if why := want[explain.Explanation](t, w.get("lead", path+"/why?zone=Europe/Berlin"), http.StatusOK); !why.Closed || len(why.Sentences) == 0 {
		t.Errorf("why: %+v", why)
	}
	if shown := want[dossier.Handoff](t, w.get("lead", path+"/show"), http.StatusOK); shown.Ticket != ticket || shown.Result == nil {
		t.Errorf("shown: %s", shown.Ticket)
	}
	if tree := want[dossier.Tree](t, w.get("lead", path+"/tree"), http.StatusOK); tree.Root == nil || tree.Handoffs != 3 {
		t.Errorf("the tree has %d handoffs", tree.Handoffs)
	}
	if s := want[protocol.State](t, w.post("lead", "/v1/handoffs/"+chain.State.Ticket+"/cancel", `{"reason":"enough"}`), http.StatusForbidden); s.Closed {
		t.Error("cancelled by the source of the one before")
	}
	if changes := want[[]json.RawMessage](t, w.post("lead", "/v1/ops/History", fmt.Sprintf(`{"ticket":%q}`, ticket)), http.StatusOK); len(changes) < 6 {
		t.Errorf("%d changes", len(changes))
	}
	w.audit(ticket)
}

// audit checks that each change of a handoff is in its events once, in order, however often the
// stream is cut.
func (w *world) audit(ticket string) {
	w.Helper()
	changes, err := w.b.History(w.Context(), ticket)
	if err != nil {
		w.Fatal(err)
	}
	var all []uint64
	for last := ""; ; {
		ids, end := w.events(ticket, last, 1)
		for _, id := range ids {
			var seq uint64
			if _, err := fmt.Sscanf(id, ticket+":%d", &seq); err != nil {
				w.Fatal(id, err)
			}
			all, last = append(all, seq), id
		}
		if end {
			break
		}
	}
	if len(all) != len(changes) {
		w.Fatalf("%d events and %d changes", len(all), len(changes))
	}
	for i, c := range changes {
		if c.Seq != all[i] {
			w.Errorf("event %d is %d, and the change %d", i, all[i], c.Seq)
		}
	}
}

// events reads at most so many events of a stream, from behind an id on. end reports that the stream
// has ended by itself.
func (w *world) events(ticket, last string, most int) (ids []string, end bool) {
	w.Helper()
	ctx, cancel := context.WithCancel(w.Context())
	defer cancel()
	r, _ := http.NewRequestWithContext(ctx, "GET", w.url+"/v1/handoffs/"+ticket+"/events", nil)
	r.Header.Set("Authorization", "Bearer "+w.token("lead", RoleAgent))
	if last != "" {
		r.Header.Set("Last-Event-ID", last)
	}
	response, err := http.DefaultClient.Do(r)
	if err != nil || response.StatusCode != http.StatusOK {
		w.Fatal(response, err)
	}
	defer response.Body.Close()
	for lines := bufio.NewScanner(response.Body); lines.Scan(); {
		if id, ok := strings.CutPrefix(lines.Text(), "id: "); ok {
			ids = append(ids, id)
		}
		if lines.Text() == "" && len(ids) == most {
			return ids, false
		}
		end = end || lines.Text() == "event: end"
	}
	return ids, end
}

// TestApproval: an approver approves one handoff and denies another.
func TestApproval(t *testing.T) {
	w := newWorld(t, Config{})
	w.register("lead", "coder")
	human := w.token(protocol.Human, RoleOperator)
	for _, approve := range []bool{true, false} {
		gated := strings.Replace(pkg, `"reason"`, `"approval":{"required":true},"reason"`, 1)
		ticket := want[view](t, w.post("lead", "/v1/handoffs", gated), http.StatusAccepted).State.Ticket
		path := "/v1/handoffs/" + ticket + "/approval"
		if p := w.send(human, "POST", path, strings.NewReader(`{"reason":"fine"}`)).problem(t); p.Field != "approve" {
			t.Errorf("without a verdict: %+v", p)
		}
		s := want[protocol.State](t, w.send(human, "POST", path, strings.NewReader(fmt.Sprintf(`{"approve":%t,"reason":"so"}`, approve))), http.StatusOK)
		if s.Closed == approve {
			t.Errorf("approved %t: %s", approve, s.Phase)
		}
	}
	inbox := want[[]broker.Waiting](t, w.send(human, "GET", "/v1/inbox", nil), http.StatusOK)
	if len(inbox) != 0 {
		t.Errorf("%d wait", len(inbox))
	}
}

// TestRetryAfter: a submission to an agent whose breaker is open is to come again after its time.
func TestRetryAfter(t *testing.T) {
	w := newWorld(t, Config{})
	w.register("lead", "coder")
	root := w.token("root", RoleAdmin)
	want[any](t, w.send(root, "POST", "/v1/ops/PutAgent", strings.NewReader(`{"profile":{"id":"coder","breaker":{"threshold":1,"open_ms":45500}}}`)), http.StatusOK)
	failed := lifecycle.Attempt{Agent: "coder", Ticket: protocol.NewTicket(), Fence: 1, End: protocol.EndFailed}
	if opened, err := w.b.CountAttempts(t.Context(), "coder", []lifecycle.Attempt{failed}); err != nil || !opened {
		t.Fatal(opened, err)
	}
	a := w.post("lead", "/v1/handoffs", pkg)
	p := a.problem(t)
	if p.Code != protocol.CodeBreakerOpen || p.Status != http.StatusServiceUnavailable || p.RetryAfterMS <= 30_000 || a.header.Get("Retry-After") != strconv.FormatInt((p.RetryAfterMS+999)/1000, 10) {
		t.Errorf("%+v, Retry-After %s", p, a.header.Get("Retry-After"))
	}
	want[any](t, w.send(root, "POST", "/v1/ops/ResetBreaker", strings.NewReader(`{"agent":"coder"}`)), http.StatusOK)
	w.submit("later")
}

// TestList: an agent lists its own handoffs by any filter, page by page.
func TestList(t *testing.T) {
	w := newWorld(t, Config{Index: noIndex{}})
	w.register("lead", "coder")
	w.submit("one")
	for query, field := range map[string]string{"": "filter", "agent=stranger": "filter", "source=lead&limit=x": "limit", "source=lead&open=perhaps": "open",
		"source=lead&since=today": "since", "source=lead&limit=1&limit=2": "limit", "nonsense=1": "nonsense", "source=lead&%zz": "query", "filter=x": "filter"} {
		if p := w.get("lead", "/v1/handoffs?"+query).problem(t); p.Field != field {
			t.Errorf("%s: %+v", query, p)
		}
	}
	want[ask.ListAnswer](t, w.get("lead", "/v1/handoffs?source=lead&source=tester&agent=lead&open=true&limit=10&since=2026-01-31T17:00:00Z&sort=oldest&barred=false"), http.StatusOK)
}

// noIndex answers each list with the filter that came.
type noIndex struct{ ask.Answers }

func (noIndex) List(_ context.Context, q ask.ListQuery) (ask.ListAnswer, error) {
	if !slices.Equal(q.Filter.Source, []string{"lead", "tester"}) || q.Filter.Open == nil || !*q.Filter.Open || q.Limit != 10 || q.Sort != ask.SortOldest || q.Filter.Since.IsZero() {
		return ask.ListAnswer{}, fmt.Errorf("the filter is %+v", q)
	}
	return ask.ListAnswer{Handoffs: []ask.Row{}}, nil
}

// TestHints: a stream of a fleet has the handoffs that its caller may see.
func TestHints(t *testing.T) {
	w := newWorld(t, Config{})
	w.register("lead", "coder")
	hint := make(chan string)
	for _, name := range []string{"coder", "stranger"} {
		r, _ := http.NewRequestWithContext(t.Context(), "GET", w.url+"/v1/events?source=lead", nil)
		r.Header.Set("Authorization", "Bearer "+w.token(name, RoleAgent))
		response, err := http.DefaultClient.Do(r) // returns once no hint is missed
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		go func() {
			for lines := bufio.NewScanner(response.Body); lines.Scan(); {
				if data, ok := strings.CutPrefix(lines.Text(), "data: "); ok {
					hint <- name + " " + data
				}
			}
		}()
	}
	ticket := w.submit("one")
	if got := <-hint; !strings.HasPrefix(got, "coder ") || !strings.Contains(got, ticket) {
		t.Error(got)
	}
}

// TestGoneClient: a claim whose client has gone takes nothing, and one whose answer cannot be sent is
// released at once, uncharged.
func TestGoneClient(t *testing.T) {
	w := newWorld(t, Config{})
	w.register("lead", "coder")
	ctx, cancel := context.WithCancel(t.Context())
	r, _ := http.NewRequestWithContext(ctx, "POST", w.url+"/v1/agents/coder/claims", strings.NewReader(`{"lease_ms":60000,"wait_ms":20000,"accept":true}`))
	r.Header.Set("Authorization", "Bearer "+w.token("coder", RoleAgent))
	r.Header.Set("Content-Type", "application/json")
	ended := make(chan error, 1)
	go func() { _, err := http.DefaultClient.Do(r); ended <- err }()
	w.eventually("the wait", func() bool { return w.g.Load().Waits == 1 })
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	w.eventually("its end", func() bool { return w.g.Load().Waits == 0 })
	ticket := w.submit("one")

	r = httptest.NewRequest("POST", w.url+"/v1/agents/coder/claims", strings.NewReader(`{"lease_ms":60000,"wait_ms":20000,"accept":true}`))
	r.Header.Set("Authorization", "Bearer "+w.token("coder", RoleAgent))
	r.Header.Set("Content-Type", "application/json")
	w.g.ServeHTTP(broken{httptest.NewRecorder()}, r)
	held := w.claim()
	if held.State.Ticket != ticket || held.State.AttemptsTotal != 1 {
		t.Errorf("claimed %s at attempt %d", held.State.Ticket, held.State.AttemptsTotal)
	}
}

// broken is a client that has gone before the answer.
type broken struct{ *httptest.ResponseRecorder }

func (broken) Write([]byte) (int, error) { return 0, errors.New("gone") }

// eventually waits for a condition.
func (w *world) eventually(what string, is func() bool) {
	w.Helper()
	for end := time.Now().Add(time.Minute); !is(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			w.Fatalf("no %s", what)
		}
	}
}
