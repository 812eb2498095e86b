package redact

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/agenthandoff/handoff/protocol"
)

// steps is how many steps a text costs.
func steps(t testing.TB, r *Redactor, text []byte) int {
	t.Helper()
	s := newSearch(t.Context(), r, len(text))
	s.find(text)
	return stepsMin + len(text) - s.stepsLeft
}

// hostilePieces are pieces of text that, repeated, let a secret begin at every byte.
var hostilePieces = []string{"eyJ-", "eyJaaaaaaaa.", "eyJaaaaaaaa.eyJaaaaaaaa.", "eyJaaaaa ", "sk-", "sk-a", "password=", "PASSWORD=a", "pwd:'", "secret=>\\\"", "token_", "bearer a",
	"bearer aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa ", "authorization: basic ", "authorization: a ", "cookie: a", "://a:", "://", "?sig=", "-----BEGIN PRIVATE KEY-----", "-----BEGIN A ",
	"xoxa-", "AKIA", "ghp_a", "glpat-", "AIzaa", "api_key = 1", "hooks.slack.com/services/", "curl a ", "machine a login ", `"password":{`, `"password":"`, "key", "<pwd>", "--token "}

// TestStepsAreBounded checks that a text costs at most its length and stepsMin, and prose nothing.
func TestStepsAreBounded(t *testing.T) {
	r := testRedactor(t)
	const size = 1 << 20
	for _, piece := range hostilePieces {
		text := []byte(strings.Repeat(piece, size/len(piece)))
		got := steps(t, r, text)
		t.Logf("%-28q %5.2f times the text", piece, float64(got)/float64(len(text)))
		if most := stepsMin + len(text) + len(text); got > most { // the last value may be the whole text
			t.Errorf("%q: %d steps, %d at most", piece, got, most)
		}
	}
	if prose := []byte(strings.Repeat(prose1KB, 100)); steps(t, r, prose) > 0 {
		t.Errorf("prose takes %d steps", steps(t, r, prose))
	}
	body := bodyWith(t, prose1KB, "note")
	if got := testing.AllocsPerRun(100, func() { redacted(t, r, body) }); got > 1 {
		t.Errorf("Package allocates %.0f times", got)
	}
}

// TestExhaustedSteps checks that a text beyond the budget is redacted as a whole, and the texts
// before it as usual.
func TestExhaustedSteps(t *testing.T) {
	r := testRedactor(t)
	dear := strings.Repeat("eyJ-", stepsMin/8)
	body, _ := marshal(map[string]any{"reason": "password=hunter2 and no more", "task": map[string]any{"description": dear}})
	got, count := redacted(t, r, body)
	want := `{"reason":"password=[redacted] and no more","task":{"description":"[redacted]"}}`
	if string(got) != want || count != 2 {
		t.Errorf("%d in %.200s", count, got)
	}
}

// TestLongSecrets checks that long secrets are redacted completely.
func TestLongSecrets(t *testing.T) {
	r := testRedactor(t, `long[0-9]+`)
	for _, size := range []int{100, cancelCheckBytes - 7, cancelCheckBytes, cancelCheckBytes + 1, 4 * cancelCheckBytes} {
		text := "so bearer " + strings.Repeat("a1", size/2) + " it ends; password=x" + strings.Repeat("7", size) + " too"
		want := "so bearer [redacted] it ends; password=[redacted] too"
		if got, err := r.Text(t.Context(), text); got != want || err != nil {
			t.Errorf("%d bytes: %.200s", size, got)
		}
	}
	text := strings.Repeat("é", 1<<17) + "long" + strings.Repeat("7", 1<<18) + "."
	if got, _ := r.Text(t.Context(), text); got != strings.Repeat("é", 1<<17)+"[redacted]." {
		t.Errorf("a long match of a pattern leaves %d bytes", len(got))
	}
}

// TestCancellation checks that a redaction stops with its context and returns the body as it was.
func TestCancellation(t *testing.T) {
	r := testRedactor(t, `x[0-9]+`)
	text := strings.Repeat("no secret at all, but words; ", 1<<20/29)
	free, _ := marshal(map[string]any{"context": map[string]any{"variables": map[string]any{"n": make([]int, 1<<20), "t": text}}})
	for name, body := range map[string][]byte{
		"text": bodyWith(t, text, "note"), "added": bodyWith(t, strings.Repeat("é", 1<<19), "note"), "free": free,
		"value": bodyWith(t, "password="+strings.Repeat("a", 1<<20), "note"), "kind": bodyWith(t, "eyJ"+strings.Repeat("a", 1<<20), "note"),
	} {
		for after := range 3 {
			ctx := &endsAfterChecks{Context: t.Context(), checks: after}
			got, count, err := r.Package(ctx, body)
			if !errors.Is(err, context.Canceled) || count != 0 || !bytes.Equal(got, body) {
				t.Errorf("%s: %v, %d", name, err, count)
			}
			if ctx.checks < -1 {
				t.Errorf("%s: it continued after the end of the context", name)
			}
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := r.Text(ctx, text); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if _, err := r.Result(ctx, []byte(`{"summary":"`+text+`"}`)); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	failed := &protocol.Failed{Message: text}
	if _, err := Events(ctx, []protocol.Event{failed}, Default); !errors.Is(err, context.Canceled) || failed.Message != text {
		t.Error(err)
	}
}

// endsAfterChecks is a context that ends after so many checks.
type endsAfterChecks struct {
	context.Context
	checks int
}

func (c *endsAfterChecks) Err() error {
	if c.checks--; c.checks < 0 {
		return context.Canceled
	}
	return nil
}

// growthMax is how many bytes one redaction adds to a body at most: a quoted marker in place of one
// digit.
const growthMax = len(Marker) + 2 - 1

// checkProperties checks the guarantees of Package for any body.
func checkProperties(t *testing.T, r *Redactor, body []byte) {
	t.Helper()
	got, count := redacted(t, r, body)
	if json.Valid(body) && !json.Valid(got) {
		t.Fatalf("%s became %s", body, got)
	}
	if utf8.Valid(body) && !utf8.Valid(got) {
		t.Fatalf("%q became %q", body, got)
	}
	if len(got) > len(body)+count*growthMax {
		t.Fatalf("%d bytes with %d secrets became %d", len(body), count, len(got))
	}
	if again, more := redacted(t, r, got); json.Valid(got) && more != 0 {
		t.Fatalf("%d in %s; redacting twice finds %d more: %s, then %s", count, body, more, got, again)
	}
}

func checkText(t *testing.T, r *Redactor, text string) {
	t.Helper()
	if got := steps(t, r, []byte(text)); got > 2*len(text)+stepsMin {
		t.Fatalf("%d steps for %d bytes", got, len(text))
	}
	once, err := r.Text(t.Context(), text)
	if twice, _ := r.Text(t.Context(), once); err != nil || once != twice || utf8.ValidString(text) && !utf8.ValidString(once) {
		t.Fatalf("%q became %q, then %q: %v", text, once, twice, err)
	}
	quoted, _ := marshal(strings.ToValidUTF8(text, "?"))
	for _, body := range []string{text, `{"context":{"variables":{"password":[` + string(quoted) + `],"n":` + string(quoted) + `,` + string(quoted) + `:"x"}},"reason":` + string(quoted) + `}`} {
		checkProperties(t, r, []byte(body))
	}
}

// FuzzPackage checks the guarantees of Package and Text for any JSON and any text.
func FuzzPackage(f *testing.F) {
	for _, text := range slices.Concat(secrets, prose, hostilePieces) {
		f.Add(fill(text))
	}
	for _, e := range kindExamples {
		f.Add(fill(e.secret))
	}
	for _, e := range nameExamples {
		f.Add(fill(e.secret))
	}
	f.Add("[\x00,\"password=hunter2\"]")
	f.Add("{\"pAsswd\":\"»")
	f.Add(`{"context":{"variables":{"password":1,"token":[` + "\n" + `],"x":{"name":"PWD","value":{}}}}}`)
	f.Add("secret=secret=secret=x7, password=\"a\\u00e9b\\\"cd")
	r := testRedactor(f)
	f.Fuzz(func(t *testing.T, text string) { checkText(t, r, text) })
}

// TestMixes checks the same guarantees for texts made of pieces of secrets.
func TestMixes(t *testing.T) {
	pieces := []string{"password", "Passwd", "pwd", "client_secret", "api-key", "ACCESS_TOKEN", "TOKEN=", "_KEY=", "privateKey", "bearer ", "authorization: ",
		"basic ", "https://", "user:", "@host", ":", "=", "=>", " ", "  ", "\n", "\t", "\\", "\"", "'", "é", "\r", "\x13", "\x7f", "sk-", "sk-ant-", "xapp-1-", "eyJ", ".eyJ",
		"?sig=", ";pwd=", "hunter2", "x7", "[redacted]", "[", "{", ",", "$X", "***", "the ", "change", fill(hashes(9)), fill(hashes(24)), fill(hashes(40)), "<pwd>", "</pwd>", "--token ", "[1]", "{}"}
	for _, form := range slices.Concat(secrets, prose) {
		pieces = append(pieces, fill(strings.NewReplacer("«", "", "»", "").Replace(form)))
	}
	for _, e := range kindExamples {
		pieces = append(pieces, fill(strings.NewReplacer("«", "", "»", "").Replace(e.secret)))
	}
	r := testRedactor(t)
	random := rand.New(rand.NewPCG(7, 7))
	for range 3000 {
		var b strings.Builder
		for range 1 + random.IntN(6) {
			part := []byte(pieces[random.IntN(len(pieces))])
			switch at := random.IntN(len(part)); random.IntN(8) {
			case 0:
				part = part[at:]
			case 1:
				part = part[:at]
			case 2:
				part[at] ^= 0x20
			}
			b.Write(part)
		}
		checkText(t, r, strings.ToValidUTF8(b.String(), "?"))
	}
}

// TestCorpus checks that in 126 real conversations only one header with cookies is redacted.
func TestCorpus(t *testing.T) {
	conversations, _ := filepath.Glob("../../../shared/data/transcripts/*.json")
	if len(conversations) == 0 {
		t.Skip("../shared/data/transcripts is missing")
	}
	r := testRedactor(t)
	count := 0
	for _, path := range conversations {
		body, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		_, n, err := r.redact(t.Context(), body, freePlan)
		if count += n; err != nil {
			t.Error(err)
		}
	}
	if count > 1 {
		t.Errorf("%d secrets are found", count)
	}
}

// commandLine matches a command line on a page.
var commandLine = regexp.MustCompile(`(?m)^\$ .*$`)

// TestDocs checks that the documentation has no secrets, except in commands that show a redaction.
func TestDocs(t *testing.T) {
	r := testRedactor(t)
	for _, pattern := range []string{"../../*.md", "../../docs/*.md", "../../docs/*/*.md"} {
		pages, _ := filepath.Glob(pattern)
		if len(pages) == 0 {
			t.Errorf("no page is named %s", pattern)
		}
		for _, path := range pages {
			page, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			page = commandLine.ReplaceAll(page, nil)
			s := newSearch(t.Context(), r, len(page))
			for _, found := range s.find(page) {
				t.Errorf("%s: %q is taken for a secret", path, page[found.start:found.end])
			}
		}
	}
}
