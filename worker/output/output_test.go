package output_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/txtar"

	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/worker/output"
)

var update = flag.Bool("update", false, "write testdata/outputs.txtar and the table of the documentation")

const (
	tableFile = "testdata/outputs.txtar"
	pageFile  = "../../docs/reference/outputs.md"
	pageMark  = "<!-- What follows is written by go test ./worker/output -update -->\n"
)

// row is a case of the table.
type row struct {
	name, title, how string
	out              []byte
	is               *txtar.File
}

func table(t testing.TB) (*txtar.Archive, []row) {
	t.Helper()
	archive, err := txtar.ParseFile(tableFile)
	if err != nil {
		t.Fatal(err)
	}
	var rows []row
	for i := 0; i+1 < len(archive.Files); i += 2 {
		r := row{name: archive.Files[i].Name, out: bytes.Clone(archive.Files[i].Data), is: &archive.Files[i+1]}
		if r.is.Name != r.name+".is" {
			t.Fatalf("%s is followed by %s", r.name, r.is.Name)
		}
		r.title, _, _ = strings.Cut(string(r.is.Data), "\n")
		if at := strings.LastIndex(r.title, " ("); at > 0 {
			r.how = strings.Trim(r.title[at:], " ()")
		}
		switch r.how {
		case "crlf":
			r.out = bytes.ReplaceAll(r.out, []byte("\n"), []byte("\r\n"))
		case "bom":
			r.out = append([]byte("\xEF\xBB\xBF"), r.out...)
		case "latin1":
			r.out = bytes.ReplaceAll(r.out, []byte("é"), []byte("\xe9"))
		case "nul":
			r.out = bytes.ReplaceAll(r.out, []byte("_"), []byte("\x00"))
		case "spaces":
			r.out = []byte(" \t\n\n")
		case "cut":
			r.out = bytes.TrimSuffix(r.out, []byte("\n"))
		default:
			r.how = ""
		}
		if r.how != "" {
			r.title = strings.TrimSuffix(r.title, " ("+r.how+")")
		}
		rows = append(rows, r)
	}
	return archive, rows
}

// become says what became of an output, a line each.
func become(out []byte) string {
	read, err := output.Read(out, output.Auto)
	var bad *output.Malformed
	if errors.As(err, &bad) {
		return "malformed " + strings.TrimPrefix(bad.Error(), "the output is a malformed result: ") + "\n"
	}
	r, said := read.Result, ""
	say := func(what, value string) {
		if value != "" {
			said += what + " " + value + "\n"
		}
	}
	say("status", strings.Replace(string(r.Status), "success", "", 1))
	say(cmpType(r.ContentType), string(r.Body))
	say("summary", r.Summary)
	say("notes", r.Notes)
	if r.Command != nil {
		say("goto", string(r.Command.Goto))
		say("update", string(r.Command.Update))
		say("await", string(r.Command.Await))
		say("for", string(r.Command.For))
	}
	if r.Usage != nil {
		usage, _ := json.Marshal(r.Usage)
		say("usage", string(usage))
	}
	say("set aside:", r.SetAside)
	if said == "" || len(r.Body) == 0 && r.Command == nil && r.Usage == nil && r.Summary == "" && r.Notes == "" {
		said = "a result without a body\n" + said
	}
	return said
}

func cmpType(contentType string) string {
	if contentType == "" {
		return "body"
	}
	return contentType
}

// TestTable reads each output of the table.
func TestTable(t *testing.T) {
	archive, rows := table(t)
	if len(rows) < 40 {
		t.Fatalf("the table has %d rows", len(rows))
	}
	for _, r := range rows {
		first, was, _ := strings.Cut(string(r.is.Data), "\n")
		got := become(r.out)
		if *update {
			r.is.Data = []byte(first + "\n" + got)
		} else if got != was {
			t.Errorf("%s (%s):\n%sbecame:\n%sand should:\n%s", r.name, r.title, r.out, got, was)
		}
		if read, err := output.Read(r.out, output.Text); err != nil || read.Result.Command != nil || len(read.SetAside) > 0 {
			t.Errorf("%s as text: %+v, %v", r.name, read, err)
		}
	}
	if *update {
		if err := os.WriteFile(tableFile, txtar.Format(archive), 0o666); err != nil {
			t.Fatal(err)
		}
	}
}

// onPage are the rows of the table that the documentation has: one or two for each rule.
var onPage = strings.Fields("blank plain result await block-in-the-middle log-line think two-blocks result-then-code fan-out partial trailing-comma single-quotes truncated truncated-early yaml mid-line comand bare-goto quoted-name end-beside wrapped no-name status-alone data body-and-data tool latin1 usage-answer envelope envelope-error escaped body-object update-alone logs-text")

// TestPage holds the examples of the documentation against the table of the test.
func TestPage(t *testing.T) {
	_, rows := table(t)
	var page strings.Builder
	for _, r := range rows {
		if !slices.Contains(onPage, r.name) {
			continue
		}
		fmt.Fprintf(&page, "\n**%s**", strings.ToUpper(r.title[:1])+r.title[1:])
		if shown := string(archiveText(r)); strings.TrimSpace(shown) != "" {
			fence := "```"
			for strings.Contains(shown, fence) {
				fence += "`"
			}
			fmt.Fprintf(&page, "\n\n%stext\n%s\n%s\n", fence, strings.TrimRight(shown, "\n"), fence)
		} else {
			page.WriteString("\n")
		}
		page.WriteString("\n" + wrap(pageWords(become(r.out))) + "\n")
	}
	whole, err := os.ReadFile(pageFile)
	if err != nil {
		t.Fatal(err)
	}
	before, after, found := strings.Cut(string(whole), pageMark)
	if !found {
		t.Fatalf("%s has no line %s", pageFile, pageMark)
	}
	if *update {
		if err := os.WriteFile(pageFile, []byte(before+pageMark+page.String()), 0o666); err != nil {
			t.Fatal(err)
		}
	} else if after != page.String() {
		t.Errorf("%s is not what the table says; write it with -update", pageFile)
	}
}

func archiveText(r row) []byte {
	switch r.how {
	case "latin1", "nul", "bom", "crlf", "cut":
		return bytes.Map(func(c rune) rune {
			if c == '\r' || c == 0 || c == 0xFEFF || c == 0xFFFD {
				return -1
			}
			return c
		}, r.out)
	}
	return r.out
}

// pageWords says what became of an output in a sentence of the page.
func pageWords(became string) string {
	if why, bad := strings.CutPrefix(became, "malformed "); bad {
		return "→ **failed, `result_malformed`**: " + code(strings.TrimSpace(why))
	}
	var parts []string
	became, without := strings.CutPrefix(became, "a result without a body\n")
	if without {
		parts = append(parts, "a result without a body")
	}
	for line := range strings.Lines(became) {
		what, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		switch what {
		case "set":
			parts = append(parts, "a warning: "+strings.TrimPrefix(value, "aside: "))
		case "text", "json", "body", "artifact_ref":
			parts = append(parts, "a body ("+what+"): "+code(value))
		default:
			parts = append(parts, what+" "+code(value))
		}
	}
	return "→ " + strings.Join(parts, ", ")
}

func code(words string) string {
	mark := "`"
	for strings.Contains(words, mark) {
		mark += "`"
	}
	if len(mark) > 1 {
		return mark + " " + words + " " + mark
	}
	return mark + words + mark
}

// wrap breaks a paragraph at 100 columns.
func wrap(text string) string {
	var lines []string
	line := ""
	for _, word := range strings.Fields(text) {
		if line != "" && len([]rune(line))+1+len([]rune(word)) > 100 {
			lines, line = append(lines, line), ""
		}
		line = strings.TrimSpace(line + " " + word)
	}
	return strings.Join(append(lines, line), "\n")
}

// TestStrict reads the table in mode json: only what is a result alone is one.
func TestStrict(t *testing.T) {
	_, rows := table(t)
	for _, r := range rows {
		whole := bytes.TrimSpace(bytes.TrimPrefix(r.out, []byte("\xEF\xBB\xBF")))
		result, err := protocol.DecodeResult(whole)
		if err == nil {
			result.Normalize()
			err = result.Validate()
		}
		if strings.HasPrefix(r.name, "body-") && strings.HasPrefix(become(r.out), "malformed") { // its body hides one
			err = errors.New("hidden")
		}
		bare := r.name == "bare-goto" || r.name == "bare-command" || r.name == "bare-await"   // a command alone
		fits := (err == nil || bare || r.name == "usage-prompt" || r.name == "usage-cost") && // in the words of a model
			!bytes.Equal(whole, []byte("{}")) && !bytes.Equal(whole, []byte("null"))
		read, err := output.Read(r.out, output.JSON)
		if (err == nil) != fits || err == nil && len(read.SetAside) > 0 {
			t.Errorf("%s: %+v, %v; is a result: %t", r.name, read, err, fits)
		}
	}
}

// TestUTF16 reads what a program of Windows may print.
func TestUTF16(t *testing.T) {
	for _, bom := range []string{"", "\xff\xfe"} {
		out := bom
		for _, c := range `{"body": "done", "command": {"goto": "reviewer"}}` {
			out += string(c) + "\x00"
		}
		if got := become([]byte(out)); !strings.Contains(got, "malformed") || !strings.Contains(got, "UTF-16") {
			t.Errorf("with %q: %s", bom, got)
		}
	}
}

// FuzzRead checks what holds for each output: a result is valid, a place lies within the
// output, and no text gets lost between the result and what is set aside.
func FuzzRead(f *testing.F) {
	_, rows := table(f)
	for _, r := range rows {
		f.Add(r.out)
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		for _, mode := range output.Modes {
			read, err := output.Read(bytes.Clone(raw), mode)
			var bad *output.Malformed
			switch {
			case errors.As(err, &bad):
				if mode == output.Text || bad.Line < 1 || bad.Line > bytes.Count(raw, []byte("\n"))+1 || bad.Column < 1 || bad.Column > len(raw)+1 || bad.Why == "" {
					t.Fatalf("%s: %+v", mode, bad)
				}
				continue
			case err != nil:
				t.Fatalf("%s: %v", mode, err)
			}
			if err := read.Result.Validate(); err != nil {
				t.Fatalf("%s: made a result that is none: %v", mode, err)
			}
			if _, err := protocol.EncodeResult(read.Result); err != nil {
				t.Fatalf("%s: %v", mode, err)
			}
			if len(read.SetAside) > 0 && read.Result.SetAside == "" {
				t.Fatalf("%s: set aside in silence: %q", mode, read.SetAside)
			}
		}
	})
}

// TestTimeIsLinear reads outputs that make a reader begin again and again. It counts nothing:
// a reader that takes quadratic time does not end within the time of a test.
func TestTimeIsLinear(t *testing.T) {
	for name, line := range map[string]string{
		"objects that open":  "{\"a\":[\n",
		"strings that open":  "{\"a\n",
		"fences that open":   "```\n",
		"longer fences":      "~~~json\n{\n",
		"objects":            "{\"a\":1}\n",
		"thoughts that open": "<think>\n",
		"commands":           "{\"command\":{\"goto\":\n",
		"commands in a line": "x \"command\": {\n",
		"escapes":            "goto \\\\\\\"",
		"entities":           "goto &quot;",
		"a text in a text":   "{\"a\": \"\\\"goto\\\\\\\"\\\"\"}\n",
	} {
		begun := time.Now()
		_, _ = output.Read(bytes.Repeat([]byte(line), 1<<20/len(line)), output.Auto)
		t.Logf("%s: %v", name, time.Since(begun))
	}
}
