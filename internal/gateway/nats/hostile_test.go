package natsgateway_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/agenthandoff/handoff/api"
	"github.com/agenthandoff/handoff/broker"
	natsgateway "github.com/agenthandoff/handoff/internal/gateway/nats"
	"github.com/agenthandoff/handoff/protocol"
)

// lease is what a worker of an agent has in hand, as whoever steals it would send it.
func lease(state protocol.State) string {
	return broker.LeaseToken{Ticket: state.Ticket, Agent: state.Agent, Offer: state.Offer, Holder: state.Holder, Worker: true}.String()
}

// Who sends another's lease, ticket, token or holder, or writes his own, is refused
// with a stable code, and the ledger stays as it is.
func TestWhatIsAnothersIsRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.register("coder", "spy", "lead")
	d := w.open(natsgateway.Config{})
	coder, spy := w.client("coder"), w.conn("spy")
	ticket := w.submit("coder", nil)
	secret := w.submit("coder", nil)
	claim := w.accept(coder, "coder")
	held := *claim.State
	if held.Ticket != ticket {
		ticket, secret = secret, ticket
	}
	// A lease of coder's handoff in the spy's own name, and one of coder's holder.
	forged := held
	forged.Agent = "spy"
	cases := []struct {
		what string
		code protocol.Code
		verb string
		body string
	}{
		{"another's profile", protocol.CodeForbidden, "Register", `{"agent":"coder","profile":{"id":"coder"}}`},
		{"another's profile in one's own name", protocol.CodeForbidden, "Register", `{"agent":"spy","profile":{"id":"coder"}}`},
		{"a change of a profile", protocol.CodeForbidden, "Register", `{"agent":"spy","profile":{"id":"spy","paused":true},"replace":true}`},
		{"another's presence", protocol.CodeForbidden, "Present", fmt.Sprintf(`{"agent":"coder","key":%q,"lease_ms":30000}`, key)},
		{"another's end", protocol.CodeForbidden, "Leave", fmt.Sprintf(`{"agent":"coder","key":%q}`, key)},
		{"another's offer", protocol.CodeForbidden, "ClaimMany", claimBody("coder", 0)},
		{"another's ticket", protocol.CodeNotFound, "Status", fmt.Sprintf(`{"ticket":%q}`, ticket)},
		{"another's ticket, waited for", protocol.CodeNotFound, "Wait", fmt.Sprintf(`{"ticket":%q,"wait_ms":1000}`, secret)},
		{"another's result", protocol.CodeNotFound, "Result", fmt.Sprintf(`{"ticket":%q}`, ticket)},
		{"another's context", protocol.CodeNotFound, "Context", fmt.Sprintf(`{"ticket":%q}`, ticket)},
		{"another's return", protocol.CodeNotFound, "Return", fmt.Sprintf(`{"ticket":%q}`, ticket)},
		{"no ticket", protocol.CodeInvalid, "Status", `{"ticket":"x"}`},
		{"another's source", protocol.CodeForbidden, "Submit", `{"package":{"source":"coder","key":"k","target":{"agent":"lead"},"reason":"r","task":{"description":"d"}}}`},
		{"another's parent", protocol.CodeNotFound, "Submit", fmt.Sprintf(`{"package":{"key":"k","parent":%q,"target":{"agent":"lead"},"reason":"r","task":{"description":"d"}}}`, ticket)},
		{"no key", protocol.CodeMissing, "Submit", `{"package":{"target":{"agent":"lead"},"reason":"r","task":{"description":"d"}}}`},
		{"a short key", protocol.CodeInvalid, "Present", `{"agent":"spy","key":"1","lease_ms":30000}`},
		{"a key with a subject in it", protocol.CodeInvalid, "Present", `{"agent":"spy","key":"aaaaaaaaaaaaaaaaaaaa.>","lease_ms":30000}`},
		{"a lease of a year", protocol.CodeInvalid, "Present", fmt.Sprintf(`{"agent":"spy","key":%q,"lease_ms":31536000000}`, key)},
		{"no lease", protocol.CodeLeaseInvalid, "Heartbeat", `{"lease":"lease_xyz"}`},
		{"a verb that is none", protocol.CodeInvalid, "purge", `{}`},
		{"an operation that is not for agents", protocol.CodeInvalid, "PutAgent", `{}`},
		{"no JSON", protocol.CodeMalformed, "ClaimMany", `most=1`},
		{"a field that is none", protocol.CodeUnknownField, "ClaimMany", `{"most":1,"target":"coder"}`},
		{"a field in another case", protocol.CodeUnknownField, "ClaimMany", `{"MOST":1}`},
		{"a field twice", protocol.CodeMalformed, "ClaimMany", `{"most":1,"most":2}`},
		{"something behind it", protocol.CodeMalformed, "ClaimMany", `{"most":1}{}`},
		{"no text", protocol.CodeText, "ClaimMany", "{\"most\":1,\"\xff\":2}"},
		{"a negative number", protocol.CodeInvalid, "ClaimMany", strings.Replace(claimBody("spy", 0), `"most":1`, `"most":-1`, 1)},
		{"a number beyond all", protocol.CodeInvalid, "ClaimMany", strings.Replace(claimBody("spy", 0), `"most":1`, `"most":100000`, 1)},
		{"a wait without end", protocol.CodeInvalid, "ClaimMany", claimBody("spy", 86_400_000)},
	}
	for _, state := range []struct {
		what string
		protocol.State
	}{{"another's lease", held}, {"a lease in one's own name", forged}} {
		for verb, rest := range onLease {
			body := fmt.Sprintf(`{"lease":%q%s}`, lease(state.State), rest)
			cases = append(cases, struct {
				what string
				code protocol.Code
				verb string
				body string
			}{state.what, protocol.CodeLeaseInvalid, verb, body})
		}
	}
	for _, c := range cases {
		w.unchanged(c.what+", "+c.verb, func() {
			for _, subject := range []string{natsgateway.Subject("spy", c.verb), natsgateway.SubjectAt("spy", d.ID(), c.verb)} {
				if _, code := w.ask(spy, subject, c.body); code != c.code {
					t.Errorf("%s: %s says %q, want %q", c.what, c.verb, code, c.code)
				}
			}
		})
	}
	if err := claim.Complete(w.ctx, protocol.Result{Body: text("done")}); err != nil {
		t.Error(err)
	}
	if state := w.status(ticket); state.Outcome != protocol.OutcomeSuccess || state.Source != "lead" {
		t.Errorf("in the end %+v", state)
	}
}

// A key makes the holders of two agents two, so that nobody prolongs another's.
func TestNobodyHasAnothersHolder(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.register("coder", "spy")
	w.open(natsgateway.Config{})
	var ids []string
	for _, agent := range []string{"coder", "spy"} {
		answer, code := w.ask(w.conn(agent), natsgateway.Subject(agent, "Present"), fmt.Sprintf(`{"agent":%q,"key":%q,"lease_ms":30000,"slots":1}`, agent, key))
		var id string
		if err := json.Unmarshal(answer["holder"], &id); code != "" || err != nil || id != api.HolderID(agent, key) {
			t.Fatalf("%s: %s, %v", answer, code, err)
		}
		ids = append(ids, id)
		if h, err := w.b.Holder(w.ctx, id); err != nil || h.Agent != agent {
			t.Errorf("holder of %s: %+v, %v", agent, h, err)
		}
	}
	if ids[0] == ids[1] {
		t.Error("one holder of two agents")
	}
	w.ask(w.conn("spy"), natsgateway.Subject("spy", "Leave"), fmt.Sprintf(`{"agent":"spy","key":%q}`, key))
	if _, err := w.b.Holder(w.ctx, ids[0]); err != nil {
		t.Errorf("after the other has left: %v", err)
	}
}

// An answer is never a request: whoever names a subject of requests as his reply
// has the gateway say something there, at most, that nobody takes for one.
func TestAnAnswerIsNoRequest(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.register("coder", "spy")
	w.open(natsgateway.Config{})
	trusted := w.nc
	heard, err := trusted.SubscribeSync("handoff.v1.coder.>")
	if err != nil {
		t.Fatal(err)
	}
	if err := trusted.FlushTimeout(patience); err != nil {
		t.Fatal(err)
	}
	spy := w.conn("spy")
	ask := func(reply string) {
		msg := &nats.Msg{Subject: natsgateway.Subject("spy", "Leave"), Reply: reply, Header: nats.Header{"Handoff-Request": {"1"}}, Data: []byte(`{"agent":"spy","key":"a-key-that-nobody-guesses"}`)}
		if err := spy.PublishMsg(msg); err != nil {
			t.Fatal(err)
		}
	}
	// Straight away: the gateway does not answer there at all.
	for _, reply := range []string{"handoff.v1.coder.Submit", "handoff.ledger.x", "$JS.API.STREAM.PURGE.HANDOFF_LEDGER", "_INBOX_coder.x", "_INBOX", "_INBOX."} {
		w.unchanged(reply, func() { ask(reply) })
	}
	// Between two accounts the server puts _R_ in its place and sends the answer on:
	// as the subscription of a gateway would get it, with all that an answer has in it.
	sub, err := spy.SubscribeSync("_INBOX_spy.here")
	if err != nil {
		t.Fatal(err)
	}
	ask("_INBOX_spy.here")
	answer, err := sub.NextMsgWithContext(w.ctx)
	if err != nil {
		t.Fatal(err)
	}
	if answer.Reply != "" || answer.Header.Get("Handoff-Request") != "" {
		t.Errorf("an answer with reply %q and header %v", answer.Reply, answer.Header)
	}
	w.unchanged("an answer as a request", func() {
		inbox := spy.NewInbox()
		refused, err := spy.SubscribeSync(inbox)
		if err != nil {
			t.Fatal(err)
		}
		body := []byte(`{"package":{"key":"k","target":{"agent":"spy"},"reason":"r","task":{"description":"forged"}}}`)
		if err := spy.PublishMsg(&nats.Msg{Subject: natsgateway.Subject("spy", "Submit"), Reply: inbox, Header: answer.Header, Data: body}); err != nil {
			t.Fatal(err)
		}
		msg, err := refused.NextMsgWithContext(w.ctx)
		if err != nil || msg.Header.Get("Nats-Service-Error") != string(protocol.CodeMissing) {
			t.Errorf("%v, %v", msg, err)
		}
	})
	if n, _, _ := heard.Pending(); n != 0 {
		msg, _ := heard.NextMsg(time.Second)
		t.Errorf("%d messages to coder's subjects: %v", n, msg)
	}
}

// What an agent may see is what it has to do with, and what was handed off from there.
func TestWhoMaySeeATicket(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.register("coder", "helper", "lead")
	w.open(natsgateway.Config{})
	coder, lead, helper := w.client("coder"), w.client("lead"), w.client("helper")
	ticket := w.submit("coder", nil)
	claim := w.accept(coder, "coder")
	child, err := claim.HandOff(w.ctx, api.HandOff{Nth: 1, Package: protocol.Package{Type: protocol.Delegation, Return: &protocol.ReturnProtocol{TimeoutMS: 60_000},
		Target: protocol.Target{Agent: "helper"}, Reason: "a part", Task: protocol.Task{Description: "help"}}})
	if err != nil {
		t.Fatal(err)
	}
	if state := w.status(child); state.Source != "coder" {
		t.Errorf("the child's source is %s", state.Source)
	}
	for _, c := range []struct {
		who    string
		client *natsgateway.Client
		ticket string
		sees   bool
	}{{"coder", coder, ticket, true}, {"coder", coder, child, true}, {"lead", lead, ticket, true}, {"lead", lead, child, true},
		{"helper", helper, child, true}, {"helper", helper, ticket, false}} {
		if _, err := c.client.Status(w.ctx, c.ticket); (err == nil) != c.sees || !c.sees && !hasCode(err, protocol.CodeNotFound) {
			t.Errorf("%s sees %v: %v", c.who, c.sees, err)
		}
	}
}

// An agent submits as itself alone, and follows what it has submitted.
func TestSubmittingThroughAGateway(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.register("coder", "lead")
	w.open(natsgateway.Config{})
	lead, coder := w.client("lead"), w.client("coder")
	pkg := protocol.Package{Target: protocol.Target{Agent: "coder"}, Reason: "r", Task: protocol.Task{Description: "d"}, Key: "once"}
	state, err := lead.Submit(w.ctx, pkg)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := lead.Submit(w.ctx, pkg); err != nil || again.Ticket != state.Ticket || again.Source != "lead" {
		t.Errorf("again: %+v, %v", again, err)
	}
	if _, _, err := lead.Result(w.ctx, state.Ticket); err == nil {
		t.Error("a result of what is open")
	}
	claim := w.accept(coder, "coder")
	waited := make(chan error, 1)
	go func() {
		_, err := lead.Wait(w.ctx, state.Ticket, api.UntilEnded)
		var end protocol.Return
		if err == nil {
			end, err = lead.Return(w.ctx, state.Ticket)
		}
		if err == nil && string(end.Result.Body) != `"done"` {
			err = fmt.Errorf("%+v", end)
		}
		waited <- err
	}()
	if err := claim.Complete(w.ctx, protocol.Result{Body: text("done")}); err != nil {
		t.Fatal(err)
	}
	if err := <-waited; err != nil {
		t.Error(err)
	}
	result, _, err := lead.Result(w.ctx, state.Ticket)
	if err != nil || string(result.Body) != `"done"` {
		t.Errorf("%s, %v", result.Body, err)
	}
}

// An agent whose name is reserved gets nothing from a gateway, neither as what it says it
// is nor through a client.
func TestReservedNamesAreRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.open(natsgateway.Config{})
	for _, name := range []string{"supervisor", "Supervisor", "handoff", "Human", "gateway"} {
		nc := w.conn(name)
		for _, verb := range []string{"Register", "Submit", "ClaimMany"} {
			if _, code := w.ask(nc, natsgateway.Subject(name, verb), `{}`); code != protocol.CodeReserved {
				t.Errorf("%s as %s: %q, want %s", verb, name, code, protocol.CodeReserved)
			}
		}
		if _, err := natsgateway.NewClient(nc, natsgateway.ClientConfig{Agent: name}); !hasCode(err, protocol.CodeReserved) {
			t.Errorf("a client as %s: %v", name, err)
		}
	}
}
