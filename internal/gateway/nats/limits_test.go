package natsgateway_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/agenthandoff/handoff/api"
	"github.com/agenthandoff/handoff/broker"
	natsgateway "github.com/agenthandoff/handoff/internal/gateway/nats"
	"github.com/agenthandoff/handoff/internal/testworld"
	"github.com/agenthandoff/handoff/protocol"
)

// So many requests at once, of which one agent has half at most.
func TestRequestsAtOnceAreBounded(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.register("coder", "other")
	w.open(natsgateway.Config{Requests: 2})
	nc := w.conn("coder")
	waiting, err := nc.SubscribeSync(nc.NewInbox())
	if err != nil {
		t.Fatal(err)
	}
	msg := &nats.Msg{Subject: natsgateway.Subject("coder", "ClaimMany"), Reply: waiting.Subject, Header: nats.Header{"Handoff-Request": {"1"}}, Data: []byte(claimBody("coder", 20_000))}
	if err := nc.PublishMsg(msg); err != nil {
		t.Fatal(err)
	}
	// In the order in which they were sent: the first one waits.
	if _, code := w.ask(nc, natsgateway.Subject("coder", "Leave"), leaveBody("coder")); code != protocol.CodeBusy {
		t.Errorf("the second: %q", code)
	}
	if _, code := w.ask(w.conn("other"), natsgateway.Subject("other", "Leave"), leaveBody("other")); code != "" {
		t.Errorf("another agent's: %q", code)
	}
	w.submit("coder", nil) // which ends the wait
	if _, err := waiting.NextMsgWithContext(w.ctx); err != nil {
		t.Fatal(err)
	}
}

// A message has a limit, and so has what is sent in many.
func TestSizes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.register("coder")
	d := w.open(natsgateway.Config{MemoryBytes: natsgateway.MemoryBytesMin})
	nc := w.conn("coder")
	if _, code := w.ask(nc, natsgateway.Subject("coder", "Leave"), strings.Repeat(" ", natsgateway.ChunkBytesMax+1)); code != protocol.CodeTooLarge {
		t.Errorf("a large message: %q", code)
	}
	put := func(total, offset int, token, body string) (string, protocol.Code) {
		t.Helper()
		header := nats.Header{"Handoff-Request": {"1"}, "Handoff-Total": {fmt.Sprint(total)}, "Handoff-Offset": {fmt.Sprint(offset)}}
		if token != "" {
			header.Set("Handoff-Body", token)
		}
		msg, err := nc.RequestMsgWithContext(w.ctx, &nats.Msg{Subject: natsgateway.SubjectAt("coder", d.ID(), "put"), Header: header, Data: []byte(body)})
		if err != nil {
			t.Fatal(err)
		}
		return msg.Header.Get("Handoff-Body"), protocol.Code(msg.Header.Get("Nats-Service-Error"))
	}
	if _, code := put(natsgateway.CallBytesMax+1, 0, "", "x"); code != protocol.CodeTooLarge {
		t.Errorf("a body over the limit: %q", code)
	}
	body := leaveBody("coder")
	token, code := put(len(body), 0, "", body[:4])
	if code != "" {
		t.Fatal(code)
	}
	for _, c := range []struct {
		what   string
		offset int
		token  string
		part   string
		code   protocol.Code
	}{
		{"the same part again", 0, token, body[:4], ""},
		{"another part there", 0, token, "xxxx", protocol.CodeConflict},
		{"a gap", 8, token, body[8:], protocol.CodeInvalid},
		{"too much", 4, token, body, protocol.CodeInvalid},
		{"another's, or none's", 4, "0123456789abcdef", body[4:], protocol.CodeGone},
	} {
		if _, code := put(len(body), c.offset, c.token, c.part); code != c.code {
			t.Errorf("%s: %q, want %q", c.what, code, c.code)
		}
	}
	use := func() protocol.Code {
		t.Helper()
		header := nats.Header{"Handoff-Request": {"1"}, "Handoff-Body": {token}}
		msg, err := nc.RequestMsgWithContext(w.ctx, &nats.Msg{Subject: natsgateway.SubjectAt("coder", d.ID(), "Leave"), Header: header})
		if err != nil {
			t.Fatal(err)
		}
		return protocol.Code(msg.Header.Get("Nats-Service-Error"))
	}
	if code := use(); code != protocol.CodeInvalid {
		t.Errorf("half a body: %q", code)
	}
	if _, code := put(len(body), 4, token, body[4:]); code != "" {
		t.Error(code)
	}
	if code := use(); code != "" {
		t.Errorf("the whole: %q", code)
	}
	if code := use(); code != protocol.CodeGone {
		t.Errorf("once it was used: %q", code)
	}
	// What is announced is taken from the gateway's memory, half of which is one agent's.
	if _, code := put(natsgateway.CallBytesMax, 0, "", "x"); code != "" {
		t.Error(code)
	}
	if _, code := put(natsgateway.CallBytesMax, 0, "", "x"); code != protocol.CodeBusy {
		t.Errorf("a second large body: %q", code)
	}
	if load := d.Load(); load.Bytes < natsgateway.CallBytesMax || load.Bytes > natsgateway.MemoryBytesMin {
		t.Errorf("load %+v", load)
	}
}

// A package and a result as large as they may be go through, and a result over
// that fails the attempt like any other that cannot be handed in.
func TestTheLargest(t *testing.T) {
	t.Parallel()
	if testing.Short() || testworld.Race {
		t.Skip("bodies of 64 MiB take a second each, and ten times that under the race detector")
	}
	w := newWorld(t)
	w.register("coder")
	d := w.open(natsgateway.Config{MemoryBytes: natsgateway.MemoryBytesMin})
	c := w.client("coder")
	const most = protocol.PackageBytesMax - 4<<10 // and a little around it
	submit := func() string {
		return w.submit("coder", func(p *protocol.Package) {
			p.Context.Variables = map[string]json.RawMessage{"it": text(strings.Repeat("x", most))}
		})
	}
	ticket := submit()
	claim := w.accept(c, "coder")
	if len(claim.Package) < most {
		t.Errorf("a package of %d bytes", len(claim.Package))
	}
	if _, err := c.Heartbeat(w.ctx, api.Heartbeat{Lease: claim.Lease}); err != nil { // as a worker does
		t.Fatal(err)
	}
	if err := complete(w.ctx, claim, most); err != nil {
		t.Fatal(err)
	}
	if s := w.status(ticket); s.Outcome != protocol.OutcomeSuccess {
		t.Errorf("ended %s: %s", s.Outcome, s.Message)
	}
	for _, size := range []int{protocol.ResultBytesMax + 1, natsgateway.CallBytesMax} { // refused by the claim; by the client
		ticket = w.submit("coder", nil)
		claim = w.accept(c, "coder")
		if err := complete(w.ctx, claim, size); !hasCode(err, protocol.CodeTooLarge) {
			t.Errorf("%d bytes: %v", size, err)
		}
		if s := w.status(ticket); s.Phase != protocol.PhaseFailed || s.Reason != string(protocol.CodeTooLarge) {
			t.Errorf("%s, %s", s.Phase, s.Reason)
		}
	}
	if load := d.Load(); load.Bytes > natsgateway.MemoryBytesMin {
		t.Errorf("in the end %+v", load)
	}
}

// complete completes with a body of so many bytes, again while the gateway is busy.
func complete(ctx context.Context, claim *held, size int) error {
	for {
		err := claim.Complete(ctx, protocol.Result{Body: text(strings.Repeat("y", size))})
		if !hasCode(err, protocol.CodeBusy) {
			return err
		}
	}
}

// leaveBody is a request without an effect.
func leaveBody(agent string) string { return fmt.Sprintf(`{"agent":%q,"key":%q}`, agent, key) }

// Without a gateway, the error says which subjects none serves.
func TestNobodyServes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	_, err := w.hasty("coder").Register(w.ctx, api.Registration{Profile: protocol.Profile{ID: "coder"}})
	if !errors.Is(err, natsgateway.ErrNobody) || !errors.Is(err, broker.ErrUnreachable) || !strings.Contains(err.Error(), "no gateway serves handoff.v1.coder.>") {
		t.Error(err)
	}
}

// A gateway registers whom it may, and tells the engine's lease.
func TestProfiles(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		profiles      api.Profiles
		first, change protocol.Code
	}{{api.ProfilesKeep, protocol.CodeForbidden, protocol.CodeForbidden}, {"", "", protocol.CodeForbidden}, {api.ProfilesReplace, "", ""}} {
		t.Run(string(c.profiles), func(t *testing.T) {
			w := newWorld(t)
			w.open(natsgateway.Config{Profiles: c.profiles, Lease: 7_000_000_000})
			nc := w.conn("coder")
			if _, code := w.ask(nc, natsgateway.Subject("coder", "ClaimMany"), claimBody("coder", 0)); code != protocol.CodeUnknownAgent {
				t.Errorf("a pull before: %q", code)
			}
			answer, code := w.ask(nc, natsgateway.Subject("coder", "Register"), `{"agent":"coder","profile":{"description":"codes"}}`)
			if code != c.first || code == "" && string(answer["lease_ms"]) != "7000" {
				t.Errorf("new: %q %s", code, answer)
			}
			if code != "" {
				w.register("coder")
			}
			if answer, code := w.ask(nc, natsgateway.Subject("coder", "Register"), `{"agent":"coder","profile":{"description":"other"}}`); code != "" || strings.Contains(string(answer["profile"]), "other") {
				t.Errorf("again: %q %s", code, answer)
			}
			if answer, code := w.ask(nc, natsgateway.Subject("coder", "Register"), `{"agent":"coder","profile":{"description":"other"},"replace":true}`); code != c.change ||
				code == "" && !strings.Contains(string(answer["profile"]), "other") {
				t.Errorf("changed: %q %s", code, answer)
			}
		})
	}
}
