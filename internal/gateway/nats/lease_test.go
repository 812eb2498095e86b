package natsgateway_test

import (
	"encoding/json"
	"fmt"
	"testing"

	"github.com/agenthandoff/handoff/broker"
	natsgateway "github.com/agenthandoff/handoff/internal/gateway/nats"
	"github.com/agenthandoff/handoff/protocol"
)

// onLease is every operation that takes a lease, and what else its request needs.
var onLease = map[string]string{
	"Heartbeat": `,"extend_ms":60000,"reason":"r"`, "Progress": `,"progress":{"percent":1}`, "Spend": `,"usage":{"tokens":1}`,
	"Decide": `,"decision":{"description":"d","risk":"low"}`, "Complete": `,"result":{"body":"mine"}`, "Fail": `,"code":"x"`,
	"Release": `,"result":{"body":"half"}`, "Acknowledge": `,"ack":{"status":"rejected","reason":"no"}`, "Await": "",
	"Escalate": `,"rationale":"r"`, "AnswerHeld": `,"answer":{"text":"yes"}`, "RollBackHeld": `,"reason":"r"`,
	"HandOff": `,"package":{"type":"delegation","target":{"agent":"lead"},"reason":"r","task":{"description":"d"}}`,
	"Lock":    `,"paths":[{"path":"a"}]`, "Unlock": "", "SetVariables": `,"values":{"a":1}`, "HeldWorkspace": "",
}

// A lease that an agent makes up, in its own name or in another's, gets one answer
// whether its ticket exists or not.
func TestMadeUpLeaseTellsNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.register("coder", "spy", "lead")
	w.open(natsgateway.Config{})
	ticket := w.submit("coder", nil)
	claim := w.accept(w.client("coder"), "coder")
	ended := w.submit("spy", nil)
	mine := w.accept(w.client("spy"), "spy")
	held := *mine.State
	if err := mine.Complete(w.ctx, protocol.Result{Body: text("done")}); err != nil {
		t.Fatal(err)
	}
	known := map[string]broker.LeaseToken{
		"another agent's ticket, in its own name":   {Ticket: ticket, Agent: "spy", Offer: claim.State.Offer, Holder: protocol.NewTicket()},
		"another agent's ticket, with its holder":   {Ticket: ticket, Agent: "spy", Offer: claim.State.Offer, Holder: claim.State.Holder},
		"another agent's ticket, in another's name": {Ticket: ticket, Agent: "coder", Offer: claim.State.Offer, Holder: claim.State.Holder},
		"another offer of another agent's ticket":   {Ticket: ticket, Agent: "spy", Offer: claim.State.Offer + 1, Holder: protocol.NewTicket()},
		"another attempt at its own ticket":         {Ticket: ended, Agent: "spy", Offer: held.Offer + 1, Holder: held.Holder},
		"another holder of its own ticket":          {Ticket: ended, Agent: "spy", Offer: held.Offer, Holder: protocol.NewTicket()},
	}
	spy := w.conn("spy")
	ask := func(verb, rest, lease string) string {
		w.Helper()
		body := fmt.Sprintf(`{"lease":%q%s}`, lease, rest)
		answer, code := w.ask(spy, natsgateway.Subject("spy", verb), body)
		if code != protocol.CodeLeaseInvalid {
			w.Errorf("%s of %s: %q, want %s", verb, lease, code, protocol.CodeLeaseInvalid)
		}
		said, err := json.Marshal(answer)
		if err != nil {
			w.Fatal(err)
		}
		return string(said)
	}
	w.unchanged("made-up leases", func() {
		for what, there := range known {
			nowhere := there
			nowhere.Ticket = protocol.NewTicket()
			for verb, rest := range onLease {
				if a, b := ask(verb, rest, there.String()), ask(verb, rest, nowhere.String()); a != b {
					t.Errorf("%s, %s: %s; for a ticket that is not there: %s", what, verb, a, b)
				}
			}
		}
		for verb, rest := range onLease {
			ask(verb, rest, "lease_xyz")
		}
	})
	own := broker.LeaseToken{Ticket: ended, Agent: "spy", Offer: held.Offer, Holder: held.Holder}
	body := fmt.Sprintf(`{"lease":%q}`, own.String())
	if _, code := w.ask(spy, natsgateway.Subject("spy", "Heartbeat"), body); code != protocol.CodeLeaseLost {
		t.Errorf("its own, after the end: %q, want %s", code, protocol.CodeLeaseLost)
	}
}
