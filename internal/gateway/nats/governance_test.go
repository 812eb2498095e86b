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
func (w *world) inHand(agent string) (ref string) {
	w.Helper()
	w.submit(agent, func(p *protocol.Package) { p.Workspace = "w" })
	return fmt.Sprintf(`"lease":%q`, lease(*w.accept(w.client(agent), agent).State))
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
		{"Submit", pkg(`,"constraints":{"complexity":"huge"}`), invalid, "constraints.complexity"},
		{"Submit", pkg(`,"limits":{"max_handoffs":-1}`), invalid, "limits.max_handoffs"},
		{"Submit", pkg(`,"limits":{"max_tokens":9223372036854775807}`), invalid, "limits.max_tokens"},
		{"Submit", pkg(`,"limits":{"max_tokens":1e400}`), protocol.CodeInvalid, ""},
		{"Submit", pkg(`,"limits":{"share_percent":101}`), invalid, "limits.share_percent"},
		{"Submit", pkg(`,"limits":{"max_tokens":5},"constraints":{"budget":6}`), conflict, "limits.max_tokens"},
		{"Submit", pkg(`,"limits":{"max_hands":5}`), protocol.CodeUnknownField, ""},
		{"Submit", pkg(`,"approval":{"required":true,"by":"stranger"}`), protocol.CodeUnknownAgent, "approval.by"},
		{"Submit", pkg(`,"approval":{"required":true,"timeout_ms":-1}`), invalid, "approval.timeout_ms"},
		{"Submit", pkg(`,"approval":{"required":true,"on_timeout":"approve"}`), invalid, "approval.on_timeout"},
		{"Submit", pkg(`,"audit":{"risk_level":"extreme"}`), invalid, "audit.risk_level"},
		{"Submit", group, conflict, "locks"},
		{"Submit", pkg(`,"locks":{"paths":[{"path":"a"}]}`), protocol.CodeMissing, "workspace"},
		{"Submit", locks(`{"paths":[{"path":""}]}`), invalid, "locks.paths"},
		{"Submit", locks(`{"paths":[{"path":"/etc"}]}`), invalid, "locks.paths"},
		{"Submit", locks(`{"paths":[{"path":"a/../../b"}]}`), invalid, "locks.paths"},
		{"Submit", locks(`{"paths":[{"path":"a"},{"path":"./a","mode":"shared"}]}`), conflict, "locks.paths"},
		{"Submit", locks(`{"paths":[{"path":"a","mode":"both"}]}`), invalid, "locks.paths"},
		{"Submit", locks(`{"paths":[{"path":"a"}],"wait_ms":-1}`), invalid, "locks.wait_ms"},
		{"Submit", locks(fmt.Sprintf(`{"paths":[{"path":"a"}],"wait_ms":%d}`, protocol.LockWaitMaxMS+1)), invalid, "locks.wait_ms"},
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
		{"Approve", said(open, ""), protocol.CodeIllegal, "ticket"},
		{"Approve", said(closed, ""), protocol.CodeClosed, ""},
		{"Approve", said(gated, `,"agent":"boss"`), protocol.CodeConflict, "agent"},
		{"Approve", said(protocol.NewTicket(), ""), protocol.CodeNotFound, "ticket"},
		{"Approve", said("x", ""), protocol.CodeInvalid, "ticket"},
		{"Approve", said(gated, `,"by":"human"`), protocol.CodeUnknownField, ""},
		{"Deny", said(gated, ""), protocol.CodeMissing, "reason"},
		{"Deny", said(gated, `,"reason":" "`), protocol.CodeMissing, "reason"},
		{"Deny", said(open, `,"reason":"no"`), protocol.CodeIllegal, "ticket"},
		{"Deny", said(closed, `,"reason":"no"`), protocol.CodeClosed, ""},
	})
	for _, agent := range []string{"boss", "coder"} {
		w.refuses(agent, []wrong{{"Approve", said(gated, ""), protocol.CodeForbidden, "by"}, {"Deny", said(gated, `,"reason":"no"`), protocol.CodeForbidden, "by"}})
	}
}

// TestBadReportsOfGovernance: locks, variables, usage and decisions under a lease have bounds.
func TestBadReportsOfGovernance(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.register("coder")
	w.open(natsgateway.Config{})
	ref := w.inHand("coder")
	own := func(rest string) string { return "{" + ref + rest + "}" }
	lock := func(path string, ms int64) string {
		return own(fmt.Sprintf(`,"paths":[{"path":%q}],"wait_ms":%d`, path, ms))
	}
	many := func(n int, of string) string { return strings.TrimSuffix(strings.Repeat(of+",", n), ",") }
	const invalid, tooLarge = protocol.CodeInvalid, protocol.CodeTooLarge
	cases := []wrong{
		{"Lock", lock("a", -1), invalid, "wait_ms"},
		{"Lock", lock("a", math.MinInt64), invalid, "wait_ms"},
		{"Lock", lock("a", protocol.LockWaitMaxMS+1), invalid, "wait_ms"},
		{"Lock", lock("a", math.MaxInt64), invalid, "wait_ms"},
		{"Lock", lock("a", math.MaxInt64/1_000_000+1), invalid, "wait_ms"}, // which overflows a duration
		{"Lock", own(`,"paths":[{"path":"a"}],"wait_ms":1e30`), protocol.CodeInvalid, ""},
		{"Lock", own(`,"paths":[]`), invalid, "locks"},
		{"Lock", lock("", 0), invalid, "locks"},
		{"Lock", lock("/a", 0), invalid, "locks"},
		{"Lock", lock("../a", 0), invalid, "locks"},
		{"Lock", own(`,"paths":[{"path":"a\u0000b"}]`), protocol.CodeText, ""},
		{"Lock", lock(strings.Repeat("a", protocol.LockPathBytesMax+1), 0), invalid, "locks"},
		{"Lock", own(`,"paths":[{"path":"a"},{"path":"a","mode":"shared"}]`), protocol.CodeConflict, "locks"},
		{"Lock", own(`,"paths":[` + many(protocol.LockPathsMax+1, `{"path":"a"}`) + `]`), invalid, "locks"},
		{"Unlock", own(`,"paths":[{"path":"/a"}]`), invalid, "locks"},
		{"SetVariables", own(`,"values":{"a.b":1}`), invalid, "variables"},
		{"SetVariables", own(fmt.Sprintf(`,"values":{"a":%q}`, strings.Repeat("x", protocol.VariableBytesMax))), tooLarge, "variables.a"},
		{"SetVariables", own(`,"values":{"a":1},"if_version":1`), protocol.CodeConflict, "variables.a"},
		{"SetVariables", own(`,"values":{"a":1},"if_version":-1`), protocol.CodeConflict, "variables.a"},
		{"Spend", own(`,"usage":{}`), protocol.CodeMissing, "usage"},
		{"Spend", own(`,"usage":{"tokens":-1}`), invalid, "usage.tokens"},
		{"Spend", own(fmt.Sprintf(`,"usage":{"tokens":%d}`, int64(protocol.UsageMax)+1)), invalid, "usage.tokens"},
		{"Spend", own(`,"usage":{"tokens":1,"model":"<script>"}`), invalid, "usage.model"},
		{"Decide", own(`,"decision":{"risk":"low"}`), protocol.CodeMissing, "description"},
		{"Decide", own(`,"decision":{"description":"d"}`), protocol.CodeMissing, "risk"},
		{"Decide", own(`,"decision":{"description":"d","risk":"extreme"}`), invalid, "risk"},
	}
	before, err := w.b.Workspace(w.ctx, "w")
	if err != nil {
		t.Fatal(err)
	}
	w.refuses("coder", cases)
	if after, err := w.b.Workspace(w.ctx, "w"); err != nil || len(after.Locks) != 0 || len(after.Variables) != 0 || !after.UpdatedAt.Equal(before.UpdatedAt) {
		t.Errorf("the workspace has changed: %+v, %v", after, err)
	}
	if _, code := w.ask(w.conn("coder"), natsgateway.Subject("coder", "Lock"), lock("a", protocol.LockWaitMaxMS)); code != "" {
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
	complete := func(handoffs, times int) (closed protocol.State) {
		t.Helper()
		ticket := w.submit("coder", func(p *protocol.Package) {
			p.Key, p.Limits = fmt.Sprint(handoffs, times), &protocol.Limits{MaxHandoffs: new(int64(handoffs))}
		})
		state := *w.accept(w.client("coder"), "coder").State
		if state.Ticket != ticket {
			t.Fatalf("accepted %s, want %s", state.Ticket, ticket)
		}
		body := fmt.Sprintf(`{"lease":%q,"result":{"body":"done","command":{"goto":"tester"}}}`, lease(state))
		for range times {
			answer, code := w.ask(nc, natsgateway.Subject("coder", "Complete"), body)
			raw, err := json.Marshal(answer)
			if err == nil {
				closed = protocol.State{}
				err = json.Unmarshal(raw, &closed)
			}
			if code != "" || err != nil {
				t.Fatalf("%q: %s %v", code, answer["message"], err)
			}
		}
		return closed
	}
	for _, times := range []int{1, 2} {
		closed := complete(0, times)
		if b := closed.Barred; closed.Outcome != protocol.OutcomePartial || b == nil || !b.FellBack || b.Code != protocol.CodeLimitExceeded {
			t.Fatalf("answered %s, barred %+v", closed.Outcome, closed.Barred)
		}
	}
	if closed := complete(5, 2); closed.Barred != nil || closed.Outcome != protocol.OutcomeSuccess {
		t.Errorf("with nothing refused: %s, %+v", closed.Outcome, closed.Barred)
	}
}

// TestAFullWorkspaceSaysSo: beyond its locks and its bytes nothing is added, and what stands is as
// it was.
func TestAFullWorkspaceSaysSo(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.register("coder")
	w.open(natsgateway.Config{})
	ref := w.inHand("coder")
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
	before, after := fill("Lock", `,"paths":[`, "]", func(n int) string { return fmt.Sprintf(`{"path":"f%d"}`, n) })
	if len(before.Locks) != protocol.WorkspaceLocksMax || !reflect.DeepEqual(before, after) {
		t.Errorf("%d locks before, %d after", len(before.Locks), len(after.Locks))
	}
	if _, code := w.ask(nc, natsgateway.Subject("coder", "Unlock"), "{"+ref+"}"); code != "" {
		t.Fatal(code)
	}
	before, after = fill("SetVariables", `,"values":{`, "}", func(n int) string { return fmt.Sprintf(`"v%d":%q`, n, strings.Repeat("x", 100)) })
	if len(before.Variables) == 0 || !reflect.DeepEqual(before, after) {
		t.Errorf("%d variables before, %d after", len(before.Variables), len(after.Variables))
	}
}
