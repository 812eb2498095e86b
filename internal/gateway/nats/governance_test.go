package natsgateway_test

import (
	"encoding/json"
	"fmt"
	"math"
	"reflect"
	"strings"
	"testing"

	natsgateway "github.com/agenthandoff/handoff/internal/gateway/nats"
	"github.com/agenthandoff/handoff/protocol"
)

// wrong is a request that is refused with a code, in a field where one is named.
type wrong struct {
	verb, body string
	code       protocol.Code
	field      string
}

// refuses sends each request as its agent, and sees to it that none changes anything.
func (w *world) refuses(agent string, all []wrong) {
	w.Helper()
	nc := w.conn(agent)
	for _, c := range all {
		name := fmt.Sprintf("%s as %s: %.200s", c.verb, agent, c.body)
		w.unchanged(name, func() {
			answer, code := w.ask(nc, natsgateway.Subject(agent, c.verb), c.body)
			var field string
			_ = json.Unmarshal(answer["field"], &field)
			if code != c.code || c.field != "" && field != c.field {
				w.Errorf("%s\nis refused as %q in %q, want %q in %q: %s", name, code, field, c.code, c.field, answer["message"])
			}
		})
	}
}

// inHand has an agent hold a handoff of the workspace w, and returns how requests name it.
func (w *world) inHand(agent string) (ref string, state protocol.State) {
	w.Helper()
	w.submit(agent, func(p *protocol.Package) { p.Workspace = "w" })
	state = *w.accept(w.client(agent), agent).LastState()
	return fmt.Sprintf(`"lease":%q,"fence":%d`, lease(state), state.Fence), state
}

// TestPackagesWithBadGovernance: what a package says of limits, gates and locks is refused with its
// field.
func TestPackagesWithBadGovernance(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.register("coder", "spy")
	w.open(natsgateway.Config{})
	pkg := func(more string) string {
		return fmt.Sprintf(`{"package":{"key":"k","target":{"agent":"coder"},"reason":"r","task":{"description":"d"}%s}}`, more)
	}
	group := `{"package":{"key":"k","type":"broadcast","target":{"agents":["coder","lead"]},"reason":"r","task":{"description":"d"},"workspace":"w","locks":{"paths":[{"path":"a"}]}}}`
	locks := func(locks string) string { return pkg(`,"workspace":"w","locks":` + locks) }
	const invalid, conflict = protocol.CodeInvalid, protocol.CodeConflict
	w.refuses("spy", []wrong{
		{"submit", pkg(`,"constraints":{"complexity":"huge"}`), invalid, "constraints.complexity"},
		{"submit", pkg(`,"limits":{"max_handoffs":-1}`), invalid, "limits.max_handoffs"},
		{"submit", pkg(`,"limits":{"max_tokens":9223372036854775807}`), invalid, "limits.max_tokens"},
		{"submit", pkg(`,"limits":{"max_tokens":1e400}`), protocol.CodeInvalid, ""},
		{"submit", pkg(`,"limits":{"share_percent":101}`), invalid, "limits.share_percent"},
		{"submit", pkg(`,"limits":{"max_tokens":5},"constraints":{"budget":6}`), conflict, "limits.max_tokens"},
		{"submit", pkg(`,"limits":{"max_hands":5}`), protocol.CodeUnknownField, ""},
		{"submit", pkg(`,"approval":{"required":true,"by":"stranger"}`), protocol.CodeUnknownAgent, "approval.by"},
		{"submit", pkg(`,"approval":{"required":true,"timeout_ms":-1}`), invalid, "approval.timeout_ms"},
		{"submit", pkg(`,"approval":{"required":true,"on_timeout":"approve"}`), invalid, "approval.on_timeout"},
		{"submit", pkg(`,"audit":{"risk_level":"extreme"}`), invalid, "audit.risk_level"},
		{"submit", group, conflict, "locks"},
		{"submit", pkg(`,"locks":{"paths":[{"path":"a"}]}`), protocol.CodeMissing, "workspace"},
		{"submit", locks(`{"paths":[{"path":""}]}`), invalid, "locks.paths"},
		{"submit", locks(`{"paths":[{"path":"/etc"}]}`), invalid, "locks.paths"},
		{"submit", locks(`{"paths":[{"path":"a/../../b"}]}`), invalid, "locks.paths"},
		{"submit", locks(`{"paths":[{"path":"a"},{"path":"./a","mode":"shared"}]}`), conflict, "locks.paths"},
		{"submit", locks(`{"paths":[{"path":"a","mode":"both"}]}`), invalid, "locks.paths"},
		{"submit", locks(`{"paths":[{"path":"a"}],"wait_ms":-1}`), invalid, "locks.wait_ms"},
		{"submit", locks(fmt.Sprintf(`{"paths":[{"path":"a"}],"wait_ms":%d}`, protocol.LockWaitMaxMS+1)), invalid, "locks.wait_ms"},
	})
}

// TestBadVerdicts: an approval or a denial of what asks for none, has closed, is one's own or has
// another agent by now changes nothing.
func TestBadVerdicts(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.register("coder", "lead", "boss")
	w.open(natsgateway.Config{})
	gated := w.submit("coder", func(p *protocol.Package) {
		p.Source, p.Key, p.Approval = "boss", "gated", &protocol.Approval{Required: true, By: "lead"}
	})
	open := w.submit("lead", func(p *protocol.Package) { p.Key, p.Source = "open", "boss" })
	closed := w.submit("lead", func(p *protocol.Package) { p.Key, p.Source = "closed", "boss" })
	if _, err := w.b.Cancel(w.ctx, closed, "boss", "no more"); err != nil {
		t.Fatal(err)
	}
	w.until(closed, func(s protocol.State) bool { return s.Closed })
	said := func(ticket, more string) string { return fmt.Sprintf(`{"ticket":%q%s}`, ticket, more) }
	w.refuses("lead", []wrong{
		{"approve", said(open, ""), protocol.CodeIllegal, "ticket"},
		{"approve", said(closed, ""), protocol.CodeClosed, ""},
		{"approve", said(gated, `,"agent":"boss"`), protocol.CodeConflict, "agent"},
		{"approve", said(protocol.NewTicket(), ""), protocol.CodeNotFound, "ticket"},
		{"approve", said("x", ""), protocol.CodeInvalid, "ticket"},
		{"approve", said(gated, `,"by":"human"`), protocol.CodeUnknownField, ""},
		{"deny", said(gated, ""), protocol.CodeMissing, "reason"},
		{"deny", said(gated, `,"reason":" "`), protocol.CodeMissing, "reason"},
		{"deny", said(open, `,"reason":"no"`), protocol.CodeIllegal, "ticket"},
		{"deny", said(closed, `,"reason":"no"`), protocol.CodeClosed, ""},
	})
	for _, agent := range []string{"boss", "coder"} {
		w.refuses(agent, []wrong{{"approve", said(gated, ""), protocol.CodeForbidden, "by"}, {"deny", said(gated, `,"reason":"no"`), protocol.CodeForbidden, "by"}})
	}
}

// TestBadReportsOfGovernance: locks, variables, usage and decisions under a lease have bounds, and
// count under its fence alone.
func TestBadReportsOfGovernance(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.register("coder")
	w.open(natsgateway.Config{})
	ref, state := w.inHand("coder")
	own := func(rest string) string { return "{" + ref + rest + "}" }
	lock := func(path string, ms int64) string {
		return own(fmt.Sprintf(`,"paths":[{"path":%q}],"wait_ms":%d`, path, ms))
	}
	many := func(n int, of string) string { return strings.TrimSuffix(strings.Repeat(of+",", n), ",") }
	const invalid, tooLarge = protocol.CodeInvalid, protocol.CodeTooLarge
	cases := []wrong{
		{"lock", lock("a", -1), invalid, "wait_ms"},
		{"lock", lock("a", math.MinInt64), invalid, "wait_ms"},
		{"lock", lock("a", protocol.LockWaitMaxMS+1), invalid, "wait_ms"},
		{"lock", lock("a", math.MaxInt64), invalid, "wait_ms"},
		{"lock", lock("a", math.MaxInt64/1_000_000+1), invalid, "wait_ms"}, // which overflows a duration
		{"lock", own(`,"paths":[{"path":"a"}],"wait_ms":1e30`), protocol.CodeInvalid, ""},
		{"lock", own(`,"paths":[]`), invalid, "locks"},
		{"lock", lock("", 0), invalid, "locks"},
		{"lock", lock("/a", 0), invalid, "locks"},
		{"lock", lock("../a", 0), invalid, "locks"},
		{"lock", own(`,"paths":[{"path":"a\u0000b"}]`), protocol.CodeText, ""},
		{"lock", lock(strings.Repeat("a", protocol.LockPathBytesMax+1), 0), invalid, "locks"},
		{"lock", own(`,"paths":[{"path":"a"},{"path":"a","mode":"shared"}]`), protocol.CodeConflict, "locks"},
		{"lock", own(`,"paths":[` + many(protocol.LockPathsMax+1, `{"path":"a"}`) + `]`), invalid, "locks"},
		{"unlock", own(`,"paths":[{"path":"/a"}]`), invalid, "locks"},
		{"vars", own(`,"values":{"a.b":1}`), invalid, "variables"},
		{"vars", own(fmt.Sprintf(`,"values":{"a":%q}`, strings.Repeat("x", protocol.VariableBytesMax))), tooLarge, "variables.a"},
		{"vars", own(`,"values":{"a":1},"if_version":1`), protocol.CodeConflict, "variables.a"},
		{"vars", own(`,"values":{"a":1},"if_version":-1`), protocol.CodeConflict, "variables.a"},
		{"spend", own(`,"usage":{}`), protocol.CodeMissing, "usage"},
		{"spend", own(`,"usage":{"tokens":-1}`), invalid, "usage.tokens"},
		{"spend", own(fmt.Sprintf(`,"usage":{"tokens":%d}`, int64(protocol.UsageMax)+1)), invalid, "usage.tokens"},
		{"spend", own(`,"usage":{"tokens":1,"model":"<script>"}`), invalid, "usage.model"},
		{"decide", own(`,"decision":{"risk":"low"}`), protocol.CodeMissing, "description"},
		{"decide", own(`,"decision":{"description":"d"}`), protocol.CodeMissing, "risk"},
		{"decide", own(`,"decision":{"description":"d","risk":"extreme"}`), invalid, "risk"},
	}
	lost := fmt.Sprintf(`"lease":%q,"fence":%d`, lease(state), state.Fence+1)
	for verb, rest := range map[string]string{"lock": `,"paths":[{"path":"a"}]`, "unlock": "", "vars": `,"values":{"a":1}`,
		"spend": `,"usage":{"tokens":1}`, "decide": `,"decision":{"description":"d","risk":"low"}`} {
		cases = append(cases, wrong{verb, "{" + lost + rest + "}", protocol.CodeLeaseLost, ""})
	}
	before, err := w.b.Workspace(w.ctx, "w")
	if err != nil {
		t.Fatal(err)
	}
	w.refuses("coder", cases)
	if after, err := w.b.Workspace(w.ctx, "w"); err != nil || len(after.Locks) != 0 || len(after.Variables) != 0 || !after.UpdatedAt.Equal(before.UpdatedAt) {
		t.Errorf("the workspace has changed: %+v, %v", after, err)
	}
	if _, code := w.ask(w.conn("coder"), natsgateway.Subject("coder", "lock"), lock("a", protocol.LockWaitMaxMS)); code != "" {
		t.Errorf("at the bound: %q", code)
	}
}

// TestCompletionTellsOfABarredHandOff: the result stands, and the answer says what was refused with
// it; a repeated request gets the same answer.
func TestCompletionTellsOfABarredHandOff(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.register("coder", "tester")
	w.open(natsgateway.Config{})
	nc := w.conn("coder")
	complete := func(handoffs, times int) map[string]json.RawMessage {
		t.Helper()
		ticket := w.submit("coder", func(p *protocol.Package) {
			p.Key, p.Limits = fmt.Sprint(handoffs, times), &protocol.Limits{MaxHandoffs: new(int64(handoffs))}
		})
		state := *w.accept(w.client("coder"), "coder").LastState()
		if state.Ticket != ticket {
			t.Fatalf("accepted %s, want %s", state.Ticket, ticket)
		}
		body := fmt.Sprintf(`{"lease":%q,"fence":%d,"result":{"body":"done","command":{"goto":"tester"}}}`, lease(state), state.Fence)
		var answer map[string]json.RawMessage
		for range times {
			var code protocol.Code
			if answer, code = w.ask(nc, natsgateway.Subject("coder", "complete"), body); code != "" {
				t.Fatalf("%q: %s", code, answer["message"])
			}
		}
		return answer
	}
	for _, times := range []int{1, 2} {
		answer := complete(0, times)
		var barred []struct{ To, Code, Field, Message string }
		if err := json.Unmarshal(answer["barred"], &barred); err != nil || len(barred) != 1 || string(answer["status"]) != `"partial"` {
			t.Fatalf("answered %s, %v", answer, err)
		}
		if b := barred[0]; b.To != "tester" || b.Code != string(protocol.CodeLimitExceeded) || b.Field != "limits.max_handoffs" || b.Message == "" {
			t.Errorf("barred is %+v", b)
		}
	}
	if answer := complete(5, 2); len(answer) != 0 {
		t.Errorf("with nothing refused: %s", answer)
	}
}

// TestAFullWorkspaceSaysSo: beyond its locks and its bytes nothing is added, and what stands is as
// it was.
func TestAFullWorkspaceSaysSo(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.register("coder")
	w.open(natsgateway.Config{})
	ref, _ := w.inHand("coder")
	nc := w.conn("coder")
	// fill adds items, 64 at a time, until it is refused, and returns the workspace before and after that.
	fill := func(verb, form, shut string, item func(n int) string) (before, after protocol.Workspace) {
		t.Helper()
		for n := 0; ; n += protocol.LockPathsMax {
			var err error
			if before, err = w.b.Workspace(w.ctx, "w"); err != nil {
				t.Fatal(err)
			}
			items := make([]string, protocol.LockPathsMax)
			for i := range items {
				items[i] = item(n + i)
			}
			_, code := w.ask(nc, natsgateway.Subject("coder", verb), "{"+ref+form+strings.Join(items, ",")+shut+"}")
			if code == "" && n < protocol.VariablesMax {
				continue
			}
			if after, err = w.b.Workspace(w.ctx, "w"); err != nil || code != protocol.CodeTooLarge {
				t.Fatalf("%s with %d there: %q, %v", verb, n, code, err)
			}
			return before, after
		}
	}
	before, after := fill("lock", `,"paths":[`, "]", func(n int) string { return fmt.Sprintf(`{"path":"f%d"}`, n) })
	if len(before.Locks) != protocol.WorkspaceLocksMax || !reflect.DeepEqual(before, after) {
		t.Errorf("%d locks before, %d after", len(before.Locks), len(after.Locks))
	}
	if _, code := w.ask(nc, natsgateway.Subject("coder", "unlock"), "{"+ref+"}"); code != "" {
		t.Fatal(code)
	}
	before, after = fill("vars", `,"values":{`, "}", func(n int) string { return fmt.Sprintf(`"v%d":%q`, n, strings.Repeat("x", 100)) })
	if len(before.Variables) == 0 || !reflect.DeepEqual(before, after) {
		t.Errorf("%d variables before, %d after", len(before.Variables), len(after.Variables))
	}
}
