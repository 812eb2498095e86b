package demo

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"text/template"
	"time"

	"github.com/agenthandoff/handoff/protocol"
)

// reportName is the report in the run's directory.
const reportName = "handoff-review.md"

// reportTemplate is what the reporter writes.
var reportTemplate = template.Must(template.New("report").Funcs(words).Parse(`# Review of {{plain .Name}}

## Files

{{many .Survey.Lines "line"}} in {{many .Survey.Files "file"}}, {{.Survey.Bytes}} bytes.
{{- if .Survey.Cut}} Not everything was read: a limit of the demo was met.{{end}}

| language | files | lines |
| --- | --- | --- |
{{range .Survey.Languages}}| {{.Name}} | {{.Count}} | {{.Lines}} |
{{end}}
## History

{{with .History}}{{if .Absent}}{{plain .Absent}}.{{else}}{{many .Commits "commit"}} by {{many .People "person" "people"}}.{{end}}

{{range .Authors}}- {{plain .Name}}: {{many .Count "commit"}}
{{end}}{{range .Latest}}- “{{plain .}}”
{{end}}{{end}}
## What needs care

{{with .Care}}{{many .NotesTotal "note to self" "notes to self"}}, {{many .LongTotal "file"}} over {{.LongFileLines}} lines.

{{range .Notes}}- ` + "`{{plain .Where}}`" + ` {{plain .Text}}
{{end}}{{range .LongFiles}}- ` + "`{{plain .Path}}`" + `, {{many .Lines "line"}}
{{end}}{{end}}
## What comes first

{{plain .First.First}} (Decided by {{plain .First.By}}.)

`))

// endTemplate is what the demo adds when the relay has ended.
var endTemplate = template.Must(template.New("end").Funcs(words).Parse(`## What happened on the way

| ticket | step | from | to | attempts | outcome | took |
| --- | --- | --- | --- | --- | --- | --- |
{{range .States}}| ` + "`{{.Ticket}}`" + ` | {{.TaskID}} | {{.Source}} | {{.Agent}} | {{.AttemptsTotal}} | {{.Outcome}} | {{took .}} |
{{end}}
{{if .Killed}}- The demo killed process {{.Killed}}, the first worker of the {{.Surveyor}}, with SIGKILL. The ledger knows only that its lease ran out.
{{end}}{{range .Notable}}- {{.}}
{{end}}
{{.Sums}}
`))

var words = template.FuncMap{"plain": plain, "many": many,
	"took": func(s protocol.State) time.Duration { return s.ClosedAt.Sub(s.SubmittedAt).Round(time.Millisecond) }}

// doReport writes the report. It looks at nothing itself: all of it was handed over.
func doReport(_ context.Context, j job) (any, string, error) {
	var all struct {
		Name    string
		Survey  survey
		History history
		Care    inspection
		First   decision
	}
	all.Name = filepath.Base(j.Directory)
	c := j.Package.Context
	err := errors.Join(earlier(c, "survey", &all.Survey), earlier(c, "history", &all.History), earlier(c, "inspection", &all.Care), earlier(c, "decision", &all.First))
	if err != nil {
		return nil, "", err
	}
	var d strings.Builder
	if err := reportTemplate.Execute(&d, all); err != nil {
		return nil, "", err
	}
	summary := many(strings.Count(d.String(), "\n## "), "section") + " written"
	return map[string]string{"report": reportName}, summary, saveFile(filepath.Join(j.Run, reportName), d.String())
}

// complete adds to the report what happened after it was written, and puts it where it was
// asked for.
func (r *run) complete(changes []protocol.Change, sums Sums) error {
	written := filepath.Join(r.home, reportName)
	body, err := os.ReadFile(written)
	if err != nil {
		return err
	}
	var notable []string
	for _, c := range changes {
		if words, unusual := describe(c); unusual {
			notable = append(notable, fmt.Sprintf("%s, %s: %s", seconds(c.At.Sub(r.began)), c.Record.State.TaskID, plain(words)))
		}
	}
	var d strings.Builder
	d.Write(body)
	err = endTemplate.Execute(&d, map[string]any{"States": r.states, "Killed": r.killed, "Surveyor": surveyor, "Notable": notable,
		"Sums": strings.ReplaceAll(sums.words(), "\n", " ")})
	if err != nil {
		return err
	}
	r.report = written
	if r.cfg.Report != "" {
		if r.report, err = filepath.Abs(r.cfg.Report); err != nil {
			return err
		}
	}
	return errors.Join(saveFile(written, d.String()), saveFile(r.report, d.String()))
}

// markdown are the characters that mean something in the middle of Markdown.
var markdown = strings.NewReplacer(`\`, `\\`, "`", "'", "*", `\*`, "|", `\|`, "[", `\[`, "<", "&lt;", "\n", " ", "\r", " ", "\t", " ")

// plain makes a text of the reviewed directory harmless: a file name can neither break the
// report nor reach a terminal as a control sequence.
func plain(s string) string { return protocol.Printable(markdown.Replace(s)) }

// saveFile writes a file whole or not at all: a killed attempt leaves the file of the one before.
func saveFile(path, body string) error {
	file, err := os.CreateTemp(filepath.Dir(path), ".saving-*")
	if err != nil {
		return err
	}
	_, err = file.WriteString(body)
	if err = errors.Join(err, file.Chmod(0o644), file.Close()); err != nil {
		os.Remove(file.Name())
		return err
	}
	return os.Rename(file.Name(), path)
}

// many writes a count with its noun: "1 commit", "2 commits". An irregular plural is given.
func many(n int, noun string, plural ...string) string {
	switch {
	case n == 1:
		return "1 " + noun
	case len(plural) > 0:
		return fmt.Sprintf("%d %s", n, plural[0])
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

func seconds(d time.Duration) string { return fmt.Sprintf("%.1f s", d.Seconds()) }
