package protocol_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/agenthandoff/handoff/protocol"
)

// ruled is a package with rules for what follows.
func ruled(t *testing.T, rules string) protocol.Package {
	t.Helper()
	pkg := whole()
	if err := json.Unmarshal([]byte(rules), &pkg.Next); err != nil {
		t.Fatal(err)
	}
	return pkg
}

// goesTo is the agent that a result of an agent goes on to by the rules of a package; empty is none.
func goesTo(t *testing.T, pkg protocol.Package, from string, result protocol.Result) (string, protocol.Package) {
	t.Helper()
	all, err := protocol.Continue(pkg, from, groupTicket, result)
	if err != nil || len(all) > 1 {
		t.Fatalf("%d packages, %v", len(all), err)
	}
	if len(all) == 0 {
		return "", protocol.Package{}
	}
	return all[0].Target.Agent, all[0]
}

func score(n string) protocol.Result { return protocol.Result{Variables: free("score", n)} }

// TestNextHolds: each comparison with a value that meets it and one that does not, and what a
// variable that is absent, or of another kind, meets.
func TestNextHolds(t *testing.T) {
	for _, c := range []struct{ condition, value, not string }{
		{`"lt":80`, `79.9`, `80`}, {`"le":80`, `80`, `80.1`}, {`"gt":80`, `8.1e1`, `80`}, {`"ge":80`, `80`, `-80`},
		{`"eq":80`, `80.0`, `"80"`}, {`"eq":{"a":1,"b":[2]}`, `{"b":[2],"a":1}`, `{"a":1}`}, {`"eq":null`, `null`, `0`}, {`"eq":"x"`, `"x"`, `"X"`},
		{`"ne":80`, `"80"`, `80`}, {`"in":[1,"two",true]`, `"two"`, `2`}, {`"exists":true`, `null`, ``}, {`"exists":false`, ``, `null`},
		{`"lt":80`, `-1`, `"79"`}, {`"lt":80`, `0`, ``}, {`"ne":80`, `1`, ``}, {`"eq":null`, `null`, ``},
	} {
		pkg := ruled(t, `[{"if":{"variable":"score",`+c.condition+`},"goto":"a"},{"goto":"b"}]`)
		for value, want := range map[string]string{c.value: "a", c.not: "b"} {
			result := protocol.Result{}
			if value != "" {
				result = score(value)
			}
			if got, _ := goesTo(t, pkg, "reviewer", result); got != want {
				t.Errorf("%s with %q goes to %q, want %q", c.condition, value, got, want)
			}
		}
	}
}

// TestNextRules: which rule is followed, and what the next package has of it.
func TestNextRules(t *testing.T) {
	pkg := ruled(t, `[{"from":"review*","if":{"variable":"score","lt":80},"goto":"researcher","update":{"retry":true},"times":2},
		{"if":{"status":"partial"},"goto":"lead"},{"from":"reviewer","goto":"coder","times":1},{"from":"coder","goto":"END"}]`)
	got, following := goesTo(t, pkg, "reviewer", score("72"))
	if got != "researcher" || following.Reason != "handed on by reviewer: score 72 < 80" || string(following.Context.Variables["retry"]) != "true" || following.Next[0].Taken != 1 {
		t.Errorf("low: to %s, %+v", got, following)
	}
	if pkg.Next[0].Taken != 0 || pkg.Next[0].Update["reason"] != nil {
		t.Error("the package that was done has changed")
	}
	for i := range 2 { // the second time it is followed, and not the third
		if got, following = goesTo(t, following, "reviewer", score("1")); got != []string{"researcher", "coder"}[i] {
			t.Errorf("time %d: to %q", i+2, got)
		}
	}
	for _, c := range []struct {
		from, want string
		result     protocol.Result
	}{
		{"reviewer", "coder", score("80")},
		{"reviewer", "coder", protocol.Result{}},
		{"lead", "", protocol.Result{Status: protocol.Partial}}, // no agent goes on to itself
		{"tester", "lead", protocol.Result{Status: protocol.Partial}},
		{"coder", "", protocol.Result{}},
		{"tester", "", score("1")},
		{"reviewer", "other", command(`"other"`, "")}, // a command of the result is the one that counts
		{"reviewer", "", command("", `{"x":1}`)},
	} {
		if got, _ := goesTo(t, pkg, c.from, c.result); got != c.want {
			t.Errorf("%s with %+v goes to %q, want %q", c.from, c.result, got, c.want)
		}
	}
	if _, following = goesTo(t, pkg, "reviewer", command(`"other"`, "")); len(following.Next) != 4 {
		t.Errorf("a command leaves %d rules", len(following.Next))
	}
	if got, _ := goesTo(t, ruled(t, `[{"if":{"variable":"kind","eq":"of the package"},"goto":"a"}]`), "reviewer", protocol.Result{}); got != "" {
		t.Errorf("no such variable goes to %s", got)
	}
}

// TestNextRefuses: every rule that is wrong, and the numbers at and beyond their bounds.
func TestNextRefuses(t *testing.T) {
	many := func(n int) string {
		rules := make([]string, n)
		for i := range rules {
			rules[i] = fmt.Sprintf(`{"goto":"a%d"}`, i)
		}
		return "[" + strings.Join(rules, ",") + "]"
	}
	values := func(n int) string {
		return `[{"goto":"a","if":{"variable":"x","in":[0` + strings.Repeat(",1", n-1) + `]}}]`
	}
	for _, c := range []struct {
		rules string
		code  protocol.Code
		field string
	}{
		{many(protocol.NextRulesMax), "", ""},
		{many(protocol.NextRulesMax + 1), protocol.CodeTooLarge, "next"},
		{`[]`, "", ""},
		{`[{"goto":"END"}]`, "", ""},
		{`[{}]`, protocol.CodeMissing, "next[0].goto"},
		{`[{"goto":"a b"}]`, protocol.CodeInvalid, "next[0].goto"},
		{`[{"goto":"a"},{"goto":"a"}]`, protocol.CodeConflict, "next[1]"},
		{`[{"goto":"a","from":"a"}]`, protocol.CodeConflict, "next[0].goto"},
		{`[{"goto":"a","from":"b c"}]`, protocol.CodeInvalid, "next[0].from"},
		{`[{"goto":"a","times":100,"taken":100}]`, "", ""},
		{`[{"goto":"a","times":101}]`, protocol.CodeInvalid, "next[0].times"},
		{`[{"goto":"a","times":-1}]`, protocol.CodeInvalid, "next[0].times"},
		{`[{"goto":"a","taken":-1}]`, protocol.CodeInvalid, "next[0].taken"},
		{`[{"goto":"a","update":{"reason":7}}]`, protocol.CodeInvalid, "next[0].update.reason"},
		{`[{"goto":"a","if":{}}]`, protocol.CodeMissing, "next[0].if.variable"},
		{`[{"goto":"a","if":{"variable":"x"}}]`, protocol.CodeMissing, "next[0].if.eq"},
		{`[{"goto":"a","if":{"variable":"x","lt":1,"gt":0}}]`, protocol.CodeConflict, "next[0].if.variable"},
		{`[{"goto":"a","if":{"variable":"x","status":"partial"}}]`, protocol.CodeConflict, "next[0].if.status"},
		{`[{"goto":"a","if":{"status":"failed"}}]`, protocol.CodeInvalid, "next[0].if.status"},
		{`[{"goto":"a","if":{"variable":"x","in":[]}}]`, protocol.CodeInvalid, "next[0].if.in"},
		{values(protocol.NextValuesMax), "", ""},
		{values(protocol.NextValuesMax + 1), protocol.CodeTooLarge, "next[0].if.in"},
	} {
		pkg := ruled(t, c.rules)
		pkg.Normalize(vectorNow)
		err := pkg.Validate(vectorNow)
		var e *protocol.Error
		if c.code == "" && err != nil {
			t.Errorf("%.60s: %v", c.rules, err)
		} else if c.code != "" && (!errors.As(err, &e) || e.Code != c.code || e.Field != c.field) {
			t.Errorf("%.60s: %v, want %s of %s", c.rules, err, c.code, c.field)
		}
	}
}
