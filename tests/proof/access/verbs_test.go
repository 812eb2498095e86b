//go:build proof

package access

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	natsgateway "github.com/agenthandoff/handoff/internal/gateway/nats"
	"github.com/agenthandoff/handoff/internal/testworld"
)

// TestEveryVerb asks a gateway for each of its verbs once, with success, on a server that has
// accounts.conf as it is shipped. A verb that this test does not ask for fails it.
func TestEveryVerb(t *testing.T) {
	v := &verbTest{server: startServer(t), asked: map[string]bool{}}
	v.start("supervisor", "supervise")
	v.awaitOutput(v.start("index", "index", "--file", v.dir+"/index.db"), "ready")
	v.awaitOutput(v.start("gateway", "gateway"), "ready")
	v.dialled = map[string]*nats.Conn{"reviewer": v.dial("reviewer"), "tester": v.dial("tester")}
	for agent := range v.dialled {
		v.ask(agent, "Register", `{"agent":"`+agent+`","profile":{"capabilities":["any"]}}`)
	}
	v.must("operator", "agents", "put", "reviewer", "--escalates-to", "tester")
	v.must("operator", "workflow", "open", nightly, "--agents", "tester")
	for agent := range v.dialled {
		v.ask(agent, "Present", `{"agent":"`+agent+`","key":"`+holderKey+`","lease_ms":60000,"slots":9}`)
	}
	first := v.submit("reviewer", `,"workspace":"`+nightly+`"`)

	// What a worker asks for in the work.
	v.claim("reviewer", first)
	v.ask("tester", "Status", `{"ticket":"`+first+`"}`)
	v.ask("tester", "Context", `{"ticket":"`+first+`"}`)
	v.askHeld("Heartbeat", `,"extend_ms":60000,"reason":"more"`)
	v.askHeld("Progress", `,"progress":{"percent":1}`)
	v.askHeld("Spend", `,"usage":{"tokens":5}`)
	v.askHeld("Decide", `,"decision":{"id":"d","description":"x","risk":"low"}`)
	v.askHeld("Lock", `,"paths":[{"path":"a.go"}],"wait_ms":0`)
	v.askHeld("Unlock", `,"paths":[{"path":"a.go"}]`)
	v.askHeld("SetVariables", `,"values":{"a":1}`)
	v.askHeld("HeldWorkspace", ``)
	handed := v.askHeld("HandOff", `,"package":{"target":{"agent":"tester"},"reason":"r","task":{"description":"child"},"type":"delegation","return":{"expected":true,"timeout_ms":60000}}`)
	v.askHeld("Await", ``)
	v.claim("tester", field[string](t, string(handed), "ticket"))
	v.askHeld("Complete", `,"result":{"body":"child"}`)
	if claim := v.claim("reviewer", first); !strings.Contains(string(claim), `"returns":`) || !strings.Contains(string(claim), `"children":`) {
		t.Errorf("it comes again without the child's end: %s", claim)
	}
	v.askHeld("Complete", `,"result":{"body":"done"}`)
	v.ask("tester", "Result", `{"ticket":"`+first+`"}`)
	v.ask("tester", "Return", `{"ticket":"`+first+`"}`)
	v.ask("tester", "Wait", `{"ticket":"`+first+`","wait_ms":0}`)
	v.ask("tester", "LastOfChain", `{"ticket":"`+first+`"}`)
	v.ask("tester", "WaitChain", `{"ticket":"`+first+`","wait_ms":0}`)
	v.ask("tester", "ChainResult", `{"ticket":"`+first+`"}`)
	v.submit("reviewer", "")
	v.await("reviewer", "Claim", `{"agent":"reviewer","lease_ms":60000,"wait_ms":5000,"accept":true}`, `"lease"`)

	// A question, and its answer.
	asks := v.submit("reviewer", "")
	v.claim("reviewer", asks)
	v.askHeld("Acknowledge", `,"ack":{"status":"conditional","needs_context":["which branch?"]}`)
	v.ask("tester", "Answer", `{"ticket":"`+asks+`","answer":{"question":1,"text":"main"}}`)

	// The other ends.
	for verb, rest := range map[string]string{
		"Fail": `,"code":"x"`, "Release": "", "Acknowledge": `,"ack":{"status":"rejected","reason":"no"}`, "RollBackHeld": `,"reason":"r"`,
	} {
		v.claim("reviewer", v.submit("reviewer", ""))
		v.askHeld(verb, rest)
	}
	beyond := v.submit("reviewer", "")
	v.claim("reviewer", beyond)
	v.askHeld("Escalate", `,"rationale":"it is beyond me"`)
	v.claim("tester", beyond)
	v.askHeld("AnswerHeld", `,"answer":{"text":"do it so"}`)
	v.ask("tester", "Cancel", `{"ticket":"`+v.submit("reviewer", "")+`"}`)

	// Approvals.
	for _, verb := range []string{"Approve", "Deny"} {
		gated := v.must("operator", "submit", "--to", "reviewer", "--reason", "r", "--task", "gated", "--approve-by", "tester")
		waits := v.await("tester", "Approvals", `{}`, gated)
		if !strings.Contains(string(waits), gated) {
			t.Errorf("%s is not among what waits for tester: %s", gated, waits)
		}
		v.ask("tester", verb, `{"ticket":"`+gated+`","reason":"r"}`)
	}

	// A body in parts, and an answer in parts.
	large := v.must("operator", "submit", "-f", v.largePackageFrom("reviewer", "tester"))
	v.largeOffer(large)
	v.ask("tester", "Leave", `{"agent":"tester","key":"`+holderKey+`"}`)

	for _, verb := range natsgateway.Verbs() {
		if !v.asked[verb] {
			t.Errorf("no request of this test is for the verb %s", verb)
		}
	}
	if found := v.denials(); len(found) > 0 {
		t.Errorf("roles were denied what they use:\n%s", strings.Join(found, "\n"))
	}
}

// holderKey is the key of each agent's holder.
const holderKey = "key-0123456789abcdef"

type verbTest struct {
	*server
	dialled map[string]*nats.Conn
	asked   map[string]bool // with success
	keys    int
	held    struct { // the last claim
		agent, lease string
	}
}

// request asks once, and returns the answer and the code of its error.
func (v *verbTest) request(agent, verb string, body []byte, header nats.Header) (*nats.Msg, string) {
	v.t.Helper()
	ctx, cancel := context.WithTimeout(v.t.Context(), testTimeout)
	defer cancel()
	msg := &nats.Msg{Subject: natsgateway.Subject(agent, verb), Header: nats.Header{"Handoff-Request": {"1"}}, Data: body}
	for key, values := range header {
		msg.Header[key] = values
	}
	answer, err := v.dialled[agent].RequestMsgWithContext(ctx, msg)
	if err != nil {
		v.t.Fatalf("%s asks for %s: %v", agent, verb, err)
	}
	code := answer.Header.Get("Nats-Service-Error")
	v.asked[verb] = v.asked[verb] || code == ""
	return answer, code
}

// ask asks for a verb, which has to succeed.
func (v *verbTest) ask(agent, verb, body string) []byte {
	v.t.Helper()
	answer, code := v.request(agent, verb, []byte(body), nil)
	if code != "" {
		v.t.Fatalf("%s asks for %s with %s: %s %s", agent, verb, body, code, answer.Data)
	}
	return answer.Data
}

// await asks until the answer has a word: an index or a queue may lag behind.
func (v *verbTest) await(agent, verb, body, word string) []byte {
	v.t.Helper()
	ctx, cancel := context.WithTimeout(v.t.Context(), testTimeout)
	defer cancel()
	for {
		answer, code := v.request(agent, verb, []byte(body), nil)
		if code == "" && bytes.Contains(answer.Data, []byte(word)) || ctx.Err() != nil {
			return answer.Data
		}
		testworld.Pause(ctx, 50*time.Millisecond)
	}
}

// submit hands something from tester to an agent.
func (v *verbTest) submit(to, more string) (ticket string) {
	v.t.Helper()
	v.keys++
	answer := v.ask("tester", "Submit", fmt.Sprintf(`{"package":{"key":"k%d","target":{"agent":%q},"reason":"r","task":{"description":"t"}%s}}`, v.keys, to, more))
	return field[string](v.t, string(answer), "ticket")
}

// claim claims a handoff, and completes those that come before it.
func (v *verbTest) claim(agent, ticket string) []byte {
	v.t.Helper()
	for {
		answer := v.await(agent, "ClaimMany", v.claimBody(agent), `"lease"`)
		v.held.agent, v.held.lease = agent, v.leaseIn(answer)
		if bytes.Contains(answer, []byte(`"state":{"ticket":"`+ticket)) {
			return answer
		}
		v.askHeld("Complete", `,"result":{"body":"x"}`)
	}
}

func (v *verbTest) claimBody(agent string) string {
	return `{"agent":"` + agent + `","key":"` + holderKey + `","lease_ms":60000,"most":1,"wait_ms":5000,"accept":true}`
}

// leaseIn returns the lease in an answer to ClaimMany, or in the beginning of one.
func (v *verbTest) leaseIn(answer []byte) string {
	v.t.Helper()
	_, rest, ok := bytes.Cut(answer, []byte(`"lease":"`))
	lease, _, _ := bytes.Cut(rest, []byte(`"`))
	if !ok {
		v.t.Fatalf("no lease in %.300s", answer)
	}
	return string(lease)
}

// askHeld asks for a verb about the last claim.
func (v *verbTest) askHeld(verb, rest string) []byte {
	v.t.Helper()
	return v.ask(v.held.agent, verb, fmt.Sprintf(`{"lease":%q%s}`, v.held.lease, rest))
}

// largeOffer claims a package that comes in parts, and completes it with a result that goes in parts.
func (v *verbTest) largeOffer(ticket string) {
	v.t.Helper()
	var answer *nats.Msg
	for answer == nil || answer.Header.Get("Handoff-More") == "" {
		var code string
		answer, code = v.request("tester", "ClaimMany", []byte(v.claimBody("tester")), nil)
		if code != "" {
			v.t.Fatalf("%s is not claimed: %s %s", ticket, code, answer.Data)
		}
		if bytes.Contains(answer.Data, []byte(`"lease"`)) {
			v.held.agent, v.held.lease = "tester", v.leaseIn(answer.Data)
			if answer.Header.Get("Handoff-More") == "" {
				v.askHeld("Complete", `,"result":{"body":"x"}`)
			}
		}
	}
	more := answer.Header.Get("Handoff-More")
	if part, code := v.request("tester", "read", nil, nats.Header{"Handoff-More": {more}, "Handoff-Offset": {fmt.Sprint(len(answer.Data))}}); code != "" || len(part.Data) == 0 {
		v.t.Fatalf("the rest of the package has %d bytes: %s", len(part.Data), code)
	}
	body := []byte(fmt.Sprintf(`{"lease":%q,"result":{"body":%q}}`, v.held.lease, strings.Repeat("x", 600_000)))
	half := len(body) / 2
	put := func(id string, part []byte, offset int) string {
		header := nats.Header{"Handoff-Total": {fmt.Sprint(len(body))}, "Handoff-Offset": {fmt.Sprint(offset)}}
		if id != "" {
			header["Handoff-Body"] = []string{id}
		}
		answer, code := v.request("tester", "put", part, header)
		if code != "" {
			v.t.Fatalf("a part at %d is refused: %s %s", offset, code, answer.Data)
		}
		return answer.Header.Get("Handoff-Body")
	}
	id := put("", body[:half], 0)
	put(id, body[half:], half)
	if answer, code := v.request("tester", "Complete", nil, nats.Header{"Handoff-Body": {id}}); code != "" {
		v.t.Fatalf("the result in parts is refused: %s %s", code, answer.Data)
	}
}
