package demo

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/agenthandoff/handoff/explain"
	"github.com/agenthandoff/handoff/protocol"
)

// reportName is the report in the run's directory.
const reportName = "handoff-review.md"

// doReport writes the report. It looks at nothing itself: all of it was handed over.
func doReport(_ context.Context, j job) (found, summary string, err error) {
	var d strings.Builder
	fmt.Fprintf(&d, "# Review of %s\n", plain(filepath.Base(j.Directory)))
	written := steps[:stepIndex(j.Package.Task.ID)]
	for _, s := range written {
		if found, err = earlier(j.Package.Context, s.id); err != nil {
			return "", "", err
		}
		fmt.Fprintf(&d, "\n## %s\n\n%s\n", s.id, found)
	}
	return reportName, explain.Count(len(written), "section") + " written", os.WriteFile(filepath.Join(j.Run, reportName), []byte(d.String()), 0o644)
}

// complete adds to the report what happened after it was written, and puts it where it was
// asked for.
func (r *run) complete(changes []protocol.Change, sums Sums) error {
	r.report = filepath.Join(r.home, reportName)
	body, err := os.ReadFile(r.report)
	if err != nil {
		return err
	}
	var d strings.Builder
	fmt.Fprintf(&d, "%s\n## What happened on the way\n\n", body)
	if r.killed != 0 {
		fmt.Fprintf(&d, "- The demo killed process %d, the first worker of the %s, with SIGKILL. The ledger knows only that its lease ran out.\n", r.killed, surveyor)
	}
	for _, c := range changes {
		if words, unusual := describe(c); unusual {
			fmt.Fprintf(&d, "- %s, %s: %s\n", seconds(c.At.Sub(r.began)), c.Record.State.TaskID, words)
		}
	}
	fmt.Fprintf(&d, "\n%s\n", sums.words())
	if r.cfg.Report != "" {
		if r.report, err = filepath.Abs(r.cfg.Report); err != nil {
			return err
		}
	}
	return errors.Join(os.WriteFile(filepath.Join(r.home, reportName), []byte(d.String()), 0o644), os.WriteFile(r.report, []byte(d.String()), 0o644))
}

// markdown are the characters that mean something in the middle of Markdown.
var markdown = strings.NewReplacer(`\`, `\\`, "`", "'", "*", `\*`, "|", `\|`, "[", `\[`, "<", "&lt;", "\n", " ", "\r", " ", "\t", " ")

// plain makes a text of the reviewed directory harmless: a file name can neither break the
// report nor reach a terminal as a control sequence.
func plain(s string) string { return protocol.Printable(markdown.Replace(s)) }
