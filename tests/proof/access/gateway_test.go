//go:build proof

package access

import (
	"fmt"
	"strings"
	"testing"
)

// TestGatewayBusiness: agents that are not trusted submit, work, hand off and read their
// results through a gateway, and are denied nothing meanwhile.
func TestGatewayBusiness(t *testing.T) {
	h := startServer(t)
	h.start("supervisor", "supervise")
	h.awaitOutput(h.start("gateway", "gateway"), "ready")
	as := func(agent string) []string {
		return append(h.envOf(agent), "HANDOFF_AGENT="+agent, "HANDOFF_GATEWAY=1")
	}
	must := func(agent string, args ...string) string {
		t.Helper()
		got := h.runAs(as(agent), args...)
		if got.code != exitDone {
			t.Fatalf("handoff %s, as %s, ended with %d: %s", strings.Join(args, " "), agent, got.code, got.errout)
		}
		return got.out
	}
	program := h.program("agent", `package=$(cat)
[ "$HANDOFF_ATTEMPT" = 1 ] && exit 1
case $package in *large*) head -c 600000 /dev/zero | tr '\0' x; exit;; esac
echo reviewed`)
	for _, agent := range []string{"reviewer", "tester"} {
		worker := h.startWith(agent, as(agent), "work", "--env", "all", "--agent", agent, "--", program)
		h.awaitOutput(worker, "ready")
	}
	ticket := must("tester", "submit", "--to", "reviewer", "--reason", "ready", "--task", "review it")
	must("tester", "wait", ticket, "--timeout", "1m")
	if got := must("tester", "result", ticket); !strings.Contains(got, "reviewed") {
		t.Errorf("the result is %q", got)
	}
	if from := field[string](t, h.must("operator", "status", ticket, "-o", "json"), "source"); from != "tester" {
		t.Errorf("it is from %s", from)
	}
	large := must("tester", "submit", "-f", h.largePackageFrom("tester", "reviewer"))
	must("tester", "wait", large, "--timeout", "1m")
	if got := must("tester", "result", large); len(got) != 600_000 {
		t.Errorf("a result of %d bytes", len(got))
	}
	if got := h.runAs(as("reviewer"), "submit", "--from", "tester", "--to", "reviewer", "--reason", "r", "--task", "t"); got.code != exitError || !strings.Contains(got.errout, "not allowed") {
		t.Errorf("reviewer submits as tester: exit code %d, %s%s", got.code, got.out, got.errout)
	}
	stranger := h.must("operator", "submit", "--to", "tester", "--reason", "r", "--task", "none of its business")
	if got := h.runAs(as("reviewer"), "status", stranger); got.code != 3 {
		t.Errorf("reviewer asks for what is not its: exit code %d, %s%s", got.code, got.out, got.errout)
	}
	if found := h.denials("handoff.v1.tester.", "_INBOX_tester."); len(found) > 0 { // which reviewer tried as tester
		t.Errorf("roles were denied what they use:\n%s", strings.Join(found, "\n"))
	}
}

// TestAttacksThroughTheGateway: an agent that is not trusted has the words that its victim
// would use, a gateway that answers, and gets nowhere.
func TestAttacksThroughTheGateway(t *testing.T) {
	w := newWorld(t, 1)
	w.awaitOutput(w.start("gateway", "gateway"), "ready")
	w.watched = true
	a := &attacker{w: w, t: t, role: "reviewer", nc: w.dial("reviewer")}
	all := injections("reviewer")
	for verb, rest := range map[string]string{
		"Heartbeat": "", "Progress": `,"progress":{"percent":1}`, "Complete": `,"result":{"body":"mine"}`, "Fail": `,"code":"x"`, "Release": "",
		"Acknowledge": `,"ack":{"status":"rejected","reason":"no"}`, "Escalate": `,"rationale":"r"`, "RollBackHeld": `,"reason":"r"`, "AnswerHeld": `,"answer":{"text":"yes"}`,
		"Spend": `,"usage":{"tokens":5}`, "Decide": `,"decision":{"id":"d","description":"mine"}`, "SetVariables": `,"values":{"a":1}`,
		"Lock": `,"paths":[{"path":"a.go"}]`, "Unlock": `,"paths":[{"path":"a.go"}]`,
	} {
		body := fmt.Sprintf(`{"lease":%q%s}`, w.lease, rest)
		all = append(all,
			attack{verb + " with its lease", func(a *attacker) { a.ask("handoff.v1.reviewer."+verb, body, "Handoff-Request", "1") }},
			attack{verb + " in its name", func(a *attacker) { a.ask("handoff.v1.tester."+verb, body, "Handoff-Request", "1") }})
	}
	for name, body := range map[string]string{
		"Status": `{"ticket":"` + w.waiting + `"}`, "Result": `{"ticket":"` + w.held + `"}`,
		"Register":  `{"agent":"tester","profile":{"id":"tester","paused":true},"replace":true}`,
		"Present":   `{"agent":"tester","key":"0123456789abcdef","lease_ms":60000}`,
		"ClaimMany": `{"agent":"tester","key":"0123456789abcdef","lease_ms":60000,"most":1}`,
		"Submit":    `{"package":{"source":"tester","key":"k","target":{"agent":"tester"},"reason":"r","task":{"description":"d"}}}`,
		"Approve":   `{"ticket":"` + w.gated + `"}`, "Deny": `{"ticket":"` + w.gated + `","reason":"mine"}`, "Approvals": `{"agent":"tester"}`,
		"purge": `{}`, "$JS.API.STREAM.PURGE.HANDOFF_WORK": ``,
	} {
		all = append(all, attack{"ask for " + name, func(a *attacker) { a.ask("handoff.v1.reviewer."+name, body, "Handoff-Request", "1") }})
	}
	for name, more := range map[string]string{
		"": "", " as an escalation": `,"type":"escalation"`, " by its id alone": `,"context":{"workflow_id":"` + nightly + `"}`,
		" below a handoff of others": `,"parent":"` + w.held + `"`, " with a lock": `,"locks":{"paths":[{"path":"a.go"}]}`,
	} {
		if name != " by its id alone" {
			more += `,"workspace":"` + nightly + `"`
		}
		body := `{"package":{"key":"` + "k" + name + `","target":{"agent":"builder"},"reason":"r","task":{"description":"d"}` + more + `}}`
		all = append(all, attack{"join a workflow" + name, func(a *attacker) { a.ask("handoff.v1.reviewer.Submit", body, "Handoff-Request", "1") }})
	}
	before := w.look()
	for _, attack := range all {
		before = a.tryAttack(attack, "", before)
		t.Logf("%-56s %s %.60s", attack.name, a.outcome, a.detail)
	}
	// It was there all the time.
	a.outcome = ""
	if a.ask("handoff.v1.reviewer.Register", `{"agent":"reviewer"}`, "Handoff-Request", "1"); a.outcome != read {
		t.Errorf("the gateway does not answer reviewer: %s %s", a.outcome, a.detail)
	}
	w.must("operator", "complete", w.lease, "--body", `"done"`)
}
