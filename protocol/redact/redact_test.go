package redact

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/agenthandoff/handoff/protocol"
)

// fill generates a secret of a form: # is a letter or a digit, ^ an upper-case letter and % a
// hexadecimal digit, so that no scanner takes this file for a leak.
func fill(form string) string {
	random := rand.New(rand.NewPCG(1, uint64(len(form))))
	const alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
	return strings.Map(func(r rune) rune {
		switch r {
		case '#':
			return rune(alphabet[random.IntN(len(alphabet))])
		case '^': // upper case
			return rune(alphabet[random.IntN(26)])
		case '%':
			return rune("0123456789abcdef"[random.IntN(16)])
		}
		return r
	}, form)
}

func hashes(n int) string { return strings.Repeat("#", n) }

func testRedactor(t testing.TB, patterns ...string) *Redactor {
	t.Helper()
	r, err := New(patterns)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// redacted is a body without its secrets, and their number.
func redacted(t testing.TB, r *Redactor, body []byte) ([]byte, int) {
	t.Helper()
	body, count, err := r.Package(t.Context(), body)
	if err != nil {
		t.Fatal(err)
	}
	return body, count
}

// secrets are texts with « » around what must be redacted.
var secrets = []string{
	"the key is «AK" + "IA" + strings.Repeat("^", 16) + "», use it",
	"aws_secret_access_key = «" + hashes(39) + "7»",
	"token «gh" + "p_" + hashes(36) + "».",
	"«github" + "_pat_" + hashes(60) + "»",
	"clone with «gl" + "pat-" + hashes(20) + "»",
	"post as «xo" + "xb-" + "123456789012-1234567890123-" + hashes(24) + "»",
	"https://hooks.sl" + "ack.com/services/«T0000/B0000/" + hashes(24) + "»",
	"OPENAI=«sk" + "-" + hashes(48) + "»",
	"«sk" + "-ant-api03-" + hashes(40) + "-" + hashes(20) + "_" + hashes(10) + "»",
	"«sk" + "-proj-" + hashes(30) + "_" + hashes(30) + "»",
	"stripe: «sk" + "_live_" + hashes(24) + "»",
	"maps «AI" + "za" + hashes(35) + "»",
	"Authorization: Bearer «" + hashes(12) + "1" + hashes(20) + "»",
	"curl -H 'authorization: bearer «abc123def456ghi789»'",
	"Authorization: Basic «" + hashes(20) + "==»",
	"cookie «ey" + "J" + hashes(20) + ".ey" + "J" + hashes(40) + "." + hashes(43) + "»; path=/",
	"before\n«-----BEGIN RSA PRIV" + "ATE KEY-----\n" + hashes(64) + "\n" + hashes(64) + "\n-----END RSA PRIV" + "ATE KEY-----»\nafter",
	"cut off: «-----BEGIN PRIV" + "ATE KEY-----\n" + hashes(64) + "\n" + hashes(64) + "»",
	"postgres://app:«hunter2»@db.internal:5432/app",
	"redis://:«s3cr3t!»@cache:6379",
	"GET /x?user=1&token=«" + hashes(32) + "»&page=2",
	"password=«hunter2»", "Password: «hunter2!»", "my PASSWORD = «correct7horse», thanks",
	"export DB_PASSWORD=«swordfish»\nexport X=1",
	"Server=db;User Id=sa;Pwd=«swordfish»;Timeout=5",
	`{"user": "a", "password": "«swordfish»", "port": 5}`,
	`escaped once more: {\"api_key\": \"«abcdefgh»\"}`,
	`client = Client(api_key="«abcdefgh12»")`,
	`'secret' => '«swordfish»'`,
	"twice: password=«hunter2» and secret=«hunter3»",
}

// prose must stay as it is.
var prose = []string{
	"6ba7b810-9dad-11d1-80b4-00c04fd430c8",
	"sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
	"9f86d081884c7d659a2feaa0c55ad015a3bf4f1b",
	"The password must be at least 8 characters long, see section 3.",
	"Password: required. Secret: none. Token: 3.5k of 8k used.",
	"Forgot your password? Enter it, then enter the access token.",
	"if password == expected: login(user, password=password, api_key=settings.API_KEY)",
	`password = os.environ["DB_PASSWORD"]; secret = get_secret("x")`,
	"hs.earlySecret = tls13.NewEarlySecret(hs.suite, psk); PrivateKey: testRSA2048PrivateKey",
	"password=$PASSWORD api_key=${API_KEY} secret={{ vault.secret }} token=<token>",
	"PASSWORD=$(cat /run/secrets/pw) PWD=/home/x OLDPWD=/tmp",
	"password: ******** and password=[redacted]",
	"max_tokens=4096, tokens_used: 5420, token_budget=25000, next_token = 17",
	"the bearer of this letter; Bearer authentication/authorization is used",
	"sk-learn is not scikit-learn; task-management-and-other-things, risk-assessment-of-the-whole-thing",
	"docs at https://example.com:8080/a@b and git@github.com:agenthandoff/handoff.git, mailto:a@b.c",
	"https://example.com/?token=short&page=2",
	"-----BEGIN PRIVATE KEY----- is how such a file begins, and -----BEGIN CERTIFICATE----- how others do.",
	"-----BEGIN PUBLIC KEY-----\n" + strings.Repeat("A", 64) + "\n-----END PUBLIC KEY-----",
	"eyJ is how a JWT begins: header.payload.signature",
	"passwords: hashed with bcrypt", "secret santa: on the 24th", "The secret: patience.",
	"context://0b0e2c1c-3f58-4b9a-9f0e-5a1f6f1a2b3c", "2026-01-31T12:00:00.123456Z",
}

// bodyWith is an encoded package with a text in its description and, in free data, under a name.
func bodyWith(t testing.TB, text, name string) []byte {
	t.Helper()
	value, _ := marshal(text)
	body, err := protocol.EncodePackage(protocol.Package{Source: "a", Target: protocol.Target{Agent: "b"}, Reason: "r", Task: protocol.Task{Description: text},
		Context: protocol.Context{Variables: map[string]json.RawMessage{name: value}}})
	if err != nil {
		t.Fatal(err)
	}
	return body
}

func TestSecrets(t *testing.T) {
	r := testRedactor(t)
	for _, form := range secrets {
		form = fill(form)
		text := strings.NewReplacer("«", "", "»", "").Replace(form)
		want, n := "", 0
		for rest := form; ; n++ {
			before, inside, found := strings.Cut(rest, "«")
			want += before
			if !found {
				break
			}
			want += Marker
			_, rest, _ = strings.Cut(inside, "»")
		}
		body, count := redacted(t, r, bodyWith(t, text, "note"))
		if string(body) != string(bodyWith(t, want, "note")) || count != 2*n {
			t.Errorf("%d secrets redacted in\n%s\ngive\n%s", count, bodyWith(t, text, "note"), body)
		}
		if again, count := redacted(t, r, body); count != 0 || string(again) != string(body) {
			t.Errorf("redacting twice finds %d more in %s", count, body)
		}
	}
}

func TestProse(t *testing.T) {
	r := testRedactor(t)
	for _, text := range prose {
		body := bodyWith(t, text, "tokens_by_agent")
		if got, count := redacted(t, r, body); count != 0 || string(got) != string(body) {
			t.Errorf("%d secrets found in %q:\n%s", count, text, got)
		}
	}
	body := bodyWith(t, secrets[0], "password")
	for _, none := range []*Redactor{{}} {
		if got, count := redacted(t, none, body); count != 0 || string(got) != string(body) {
			t.Error("without patterns something is redacted")
		}
	}
}

func TestByName(t *testing.T) {
	r := testRedactor(t, `key:^pin$`)
	for name, want := range map[string]bool{
		"password": true, "db_password": true, "dbPassword": true, "API-KEY": true, "apiKey": true, "clientSecret": true,
		"aws_secret_access_key": true, "accessToken": true, "pin": true, `p\u0061ssword`: true,
		"note": false, "tokens": false, "max_tokens": false, "password_hint_shown": false, "key": false, "token_count": false,
	} {
		body := fmt.Sprintf(`{"source":"a","context":{"metadata":{"deep":[{"%s":"any words \" at all","n":1.50}]}}}`, name)
		got, count := redacted(t, r, []byte(body))
		expected := body
		if want {
			expected = strings.Replace(body, `any words \" at all`, Marker, 1)
		}
		if string(got) != expected || count > 1 {
			t.Errorf("%s: got %s", name, got)
		}
	}
	// Values of every type are replaced as a whole.
	for _, value := range []string{`12345678`, `7`, `true`, `-1.5e3`, `{"type":"string"}`, `["a",["b"]]`, `{"x":{"y":1}}`, `"a"`, `"\u0024\ud83d\ude00"`} {
		for _, name := range []string{"password", "passwords", "token", "credentials"} {
			body := `{"context":{"variables":{"db":{"` + name + `" : ` + value + ` },"n":[1]}}}`
			want := `{"context":{"variables":{"db":{"` + name + `" : "[redacted]" },"n":[1]}}}`
			if got, count := redacted(t, r, []byte(body)); count != 1 || string(got) != want {
				t.Errorf("got %s", got)
			}
		}
	}
	// Placeholders stay.
	for _, value := range []string{`null`, `""`, `{}`, `[]`, `"$PASSWORD"`, `"***"`, `"[redacted]"`, `"{{ vault.db }}"`, `"<password>"`} {
		body := `{"context":{"variables":{"password":` + value + `}}}`
		if got, count := redacted(t, r, []byte(body)); count != 0 || string(got) != body {
			t.Errorf("got %s", got)
		}
	}
	body := `{"context":{"variables":{"env":[{"name":"DB_PASSWORD","value":"swordfish"},{"name":"MODE","value":"test"}]}}}`
	if got, _ := redacted(t, r, []byte(body)); string(got) != strings.Replace(body, "swordfish", Marker, 1) {
		t.Errorf("got %s", got)
	}
}

// redactedFields are the fields of a package whose texts and free data are redacted, sorted.
var redactedFields = []string{
	"approval.question", "audit.decision_rationale", "context.artifacts", "context.artifacts.description", "context.artifacts.name",
	"context.artifacts.path", "context.completed_steps", "context.constraints", "context.context_url", "context.conversation_history",
	"context.decisions.description", "context.decisions.rationale", "context.files_in_progress.path", "context.intermediate_results",
	"context.key_points", "context.metadata", "context.metrics", "context.original_request", "context.previous.artifacts",
	"context.previous.artifacts.description", "context.previous.artifacts.name", "context.previous.artifacts.path", "context.previous.body",
	"context.previous.summary", "context.relevant_files", "context.relevant_files.path", "context.relevant_files.sections", "context.remaining_steps",
	"context.summary", "context.user_intent", "context.variables", "context.when_stuck", "expectations.success_criteria", "members.artifacts",
	"members.artifacts.description", "members.artifacts.name", "members.artifacts.path", "members.reason", "members.task.description",
	"members.task.requirements", "members.variables", "next.update", "reason", "returned.audit.notes", "returned.context_updates.artifacts_produced",
	"returned.context_updates.artifacts_produced.description", "returned.context_updates.artifacts_produced.name",
	"returned.context_updates.artifacts_produced.path", "returned.context_updates.variables_changed", "returned.members.result.artifacts",
	"returned.members.result.artifacts.description", "returned.members.result.artifacts.name", "returned.members.result.artifacts.path",
	"returned.members.result.body", "returned.members.result.command.await", "returned.members.result.command.goto",
	"returned.members.result.command.update", "returned.members.result.malformed", "returned.members.result.notes", "returned.members.result.set_aside",
	"returned.members.result.summary", "returned.members.result.variables", "returned.message", "returned.progress.details",
	"returned.progress.message", "returned.reason", "returned.result.body", "returned.result.summary", "returned.rollback_reason",
	"returned.trail.assessment", "returned.trail.progress.details", "returned.trail.progress.message", "returned.trail.words", "task.description",
	"task.requirements",
}

// TestStructureIsKept puts a secret into every text of a package.
func TestStructureIsKept(t *testing.T) {
	secret := fill("gh" + "p_" + hashes(36))
	structure := []string{"version", "key", "limits.on_exhausted", "type", "trigger", "source", "target.agent", "target.capability", "target.agents",
		"priority", "parent", "task.id", "task.type", "context.conversation_id", "context.workflow_id", "context.user_id",
		"context.correlation_id", "context.trace_id", "context.phase", "context.next_phase", "context.history_transfer.mode", "context.history_transfer.by",
		"context.decisions.id", "context.decisions.made_by", "context.files_in_progress.owner", "context.files_in_progress.lock_type",
		"context.artifacts.id", "context.artifacts.type", "context.artifacts.status", "context.artifacts.created_by",
		"context.previous.agent", "context.previous.ticket", "context.previous.body_digest", "context.previous.artifacts.id",
		"context.previous.artifacts.type", "context.previous.artifacts.status", "context.previous.artifacts.created_by",
		"constraints.complexity", "constraints.complexity_by", "expectations.output_schema", "required_capabilities.id", "autonomy_budget.max_risk", "autonomy_budget.deciders", "approval.by", "approval.on_timeout",
		"return.on_timeout", "return.wait", "return.of", "audit.risk_level", "policy.on_timeout", "policy.on_no_taker",
		"policy.on_return_timeout", "policy.late_result", "policy.on_deadline", "policy.on_exhausted", "policy.on_malformed", "routing.on_open", "routing.on_unknown", "routing.by", "routing.ranked", "return.aggregation", "return.from", "origin", "traceparent", "tracestate", "workspace", "locks.paths.path", "locks.paths.mode",
		"next.from", "next.goto", "next.if.variable", "next.if.status", "next.if.eq", "next.if.ne", "next.if.in",
		"members.target.agent", "members.target.capability", "members.target.agents", "members.priority", "members.task.id", "members.task.type",
		"members.artifacts.id", "members.artifacts.type", "members.artifacts.status", "members.artifacts.created_by",
		"returned.handoff_id", "returned.last_id", "returned.members.last_id", "returned.from_agent", "returned.to_agent", "returned.status", "returned.outcome", "returned.package_digest", "returned.rollback_by", "returned.result.content_type",
		"returned.context_updates.conflicts.name", "returned.context_updates.conflicts.tickets",
		"returned.context_updates.artifacts_produced.id", "returned.context_updates.artifacts_produced.type",
		"returned.context_updates.artifacts_produced.status", "returned.context_updates.artifacts_produced.created_by",
		"returned.trail.event", "returned.trail.agent", "returned.trail.to", "returned.trail.code",
		"returned.members.agent", "returned.members.ticket", "returned.members.status", "returned.members.outcome", "returned.members.result.status", "returned.members.result.command.for",
		"returned.members.result.content_type", "returned.members.result.artifacts.id", "returned.members.result.artifacts.type",
		"returned.members.result.artifacts.status", "returned.members.result.artifacts.created_by",
		"returned.members.result.usage.model", "returned.progress.usage.model", "returned.trail.progress.usage.model"}
	var kept, changed []string
	r := testRedactor(t)
	visitTexts(reflect.TypeFor[protocol.Package](), "", "?", func(path string, wrap func(string) string) {
		body := wrap(`"` + secret + `"`)
		switch got, _ := redacted(t, r, []byte(body)); string(got) {
		case body:
			kept = append(kept, path)
		case wrap(`"` + Marker + `"`):
			changed = append(changed, path)
		default:
			t.Errorf("%s: %s became %s", path, body, got)
		}
	})
	slices.Sort(structure)
	slices.Sort(kept)
	if !slices.Equal(kept, structure) {
		t.Errorf("unchanged are\n%q, not\n%q", kept, structure)
	}
	slices.Sort(changed)
	if !slices.Equal(changed, redactedFields) {
		t.Errorf("redacted are\n%q, not\n%q", changed, redactedFields)
	}
	for _, c := range []struct{ body, want string }{
		{`{"context":{"artifacts":{"Plan":"x/SECRET","Next":null}}}`, `{"context":{"artifacts":{"Plan":"x/[redacted]","Next":null}}}`},
		{`{"members":[{"artifacts":{"Plan":"x/SECRET","Next":null}}]}`, `{"members":[{"artifacts":{"Plan":"x/[redacted]","Next":null}}]}`},
		{`{"members":[{"target":{"agent":"a"},"variables":{"password":"hunter2"}},{"task":{"description":"SECRET"}}]}`,
			`{"members":[{"target":{"agent":"a"},"variables":{"password":"[redacted]"}},{"task":{"description":"[redacted]"}}]}`},
		{`{"returned":{"handoff_id":"x","result":{"body":{"deep":["SECRET"]}},"members":[{"result":{"variables":{"password":"hunter2"},"artifacts":{"a":"SECRET"}}}]}}`,
			`{"returned":{"handoff_id":"x","result":{"body":{"deep":["[redacted]"]}},"members":[{"result":{"variables":{"password":"[redacted]"},"artifacts":{"a":"[redacted]"}}}]}}`},
		{`{"context":{"relevant_files":["SECRET",{"path":"SECRET"}]}}`, `{"context":{"relevant_files":["[redacted]",{"path":"[redacted]"}]}}`},
		{`{"key":"SECRET","newer":{"x":["SECRET"]}}`, `{"key":"SECRET","newer":{"x":["[redacted]"]}}`},
		{`{"context":{"variables":{"z":1.0e+2,"SECRET":"a","a":"\ud800 SECRET é \/ SECRET\n"}}}`,
			`{"context":{"variables":{"z":1.0e+2,"SECRET":"a","a":"\ud800 [redacted] é \/ [redacted]\n"}}}`},
		{`{"context":{"variables":{"hidden":"\u0067` + secret[1:] + `"}}}`, `{"context":{"variables":{"hidden":"[redacted]"}}}`},
		{` { "reason" : "SECRET" , "task" : { "description" : "SECRET" } } `, ` { "reason" : "[redacted]" , "task" : { "description" : "[redacted]" } } `},
	} {
		got, _ := redacted(t, r, []byte(strings.ReplaceAll(c.body, "SECRET", secret)))
		if want := strings.ReplaceAll(c.want, "SECRET", secret); string(got) != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
}

// visitTexts visits the paths of all fields below a type that can hold text.
func visitTexts(of reflect.Type, path, format string, visit func(path string, wrap func(string) string)) {
	put := func(value string) { format = strings.Replace(format, "?", value, 1) }
	text := func() {
		visit(path, func(value string) string { return strings.Replace(format, "?", value, 1) })
	}
	switch of {
	case reflect.TypeFor[protocol.Time]():
		return
	case reflect.TypeFor[json.RawMessage]():
		text()
		return
	case reflect.TypeFor[protocol.Artifacts]():
		visitTexts(reflect.TypeFor[map[string]string](), path, format, visit)
		visitTexts(reflect.TypeFor[[]protocol.Artifact](), path, format, visit)
		return
	case reflect.TypeFor[protocol.FileReference](): // a bare path
		text()
	}
	switch of.Kind() {
	case reflect.String:
		text()
	case reflect.Pointer:
		visitTexts(of.Elem(), path, format, visit)
	case reflect.Slice:
		put("[?]")
		visitTexts(of.Elem(), path, format, visit)
	case reflect.Map:
		put(`{"name":?}`)
		visitTexts(of.Elem(), path, format, visit)
	case reflect.Struct:
		for _, f := range reflect.VisibleFields(of) {
			if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); name != "-" && !f.Anonymous {
				visitTexts(f.Type, strings.TrimPrefix(path+"."+name, "."), strings.Replace(format, "?", `{"`+name+`":?}`, 1), visit)
			}
		}
	}
}

func TestPatterns(t *testing.T) {
	for _, bad := range []string{"(", "a*", "key:(?<", "key:", "x{2000}"} {
		if _, err := New([]string{"fine", bad}); err == nil || err.(*protocol.Error).Field != "redactions[1]" || err.(*protocol.Error).Code != protocol.CodeInvalid {
			t.Errorf("%q: %v", bad, err)
		}
	}
	if _, err := New(make([]string, patternsMax+1)); err == nil || err.(*protocol.Error).Code != protocol.CodeTooLarge {
		t.Errorf("too many: %v", err)
	}
	r := testRedactor(t, `\b\d{16}\b`, `(?i)emp-(?P<secret>\d+)`)
	if got, count := redacted(t, testRedactor(t, `\Qab(`), []byte(`{"reason":"xab(c"}`)); string(got) != `{"reason":"x[redacted]c"}` || count != 1 {
		t.Errorf("%d in %s", count, got)
	}
	got, count := redacted(t, r, []byte(`{"reason":"card 1234567890123456 of EMP-77","created_at":"x"}`))
	if want := `{"reason":"card [redacted] of EMP-[redacted]","created_at":"x"}`; string(got) != want || count != 2 {
		t.Errorf("%d in %s", count, got)
	}
}

// marshal encodes JSON without escapes for HTML, as packages are encoded.
func marshal(v any) ([]byte, error) {
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	err := enc.Encode(v)
	return bytes.TrimSpace(out.Bytes()), err
}
