package demo

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"
)

// reportName is the report in the run's directory.
const reportName = "handoff-review.md"

// findings are the results of the steps before, as the context brings them.
type findings struct {
	survey     survey
	history    history
	inspection inspection
	decision   decision
}

// doReport writes the report. It looks at nothing itself: what it says was all
// handed over.
func doReport(_ context.Context, s *shift) (yield, error) {
	var f findings
	if err := errors.Join(s.earlier("survey", &f.survey), s.earlier("history", &f.history),
		s.earlier("inspection", &f.inspection), s.earlier("decision", &f.decision)); err != nil {
		return yield{}, err
	}
	body := f.markdown(filepath.Base(s.dir), time.Now())
	if err := s.save(reportName, []byte(body)); err != nil {
		return yield{}, err
	}
	return yield{
		body:      map[string]string{"report": s.path(reportName)},
		summary:   many(strings.Count(body, "\n## "), "section") + " written",
		artifacts: s.artifact("report", "document", reportName, "the report, in Markdown"),
	}, nil
}

func (f findings) markdown(name string, now time.Time) string {
	d := &document{}
	d.line("# Review of %s", d.text(name))
	d.line("Written on %s by agents that handed the work on to each other.", now.Format("2 January 2006, 15:04"))
	d.section("In short")
	f.short(d)
	d.section("Files")
	f.files(d)
	d.section("History")
	f.past(d)
	d.section("What needs care")
	f.care(d)
	d.section("What comes first")
	d.line("%s", d.text(f.decision.First))
	d.line("%s (Decided by %s.)", d.text(f.decision.Why), d.text(f.decision.By))
	return d.String()
}

func (f findings) short(d *document) {
	d.item("%s in %s, %s, %s.", many(f.survey.Files, "file"), many(f.survey.Directories, "directory", "directories"),
		many(f.survey.Lines, "line"), size(f.survey.Bytes))
	if f.history.Absent != "" {
		d.item("No history: %s.", d.text(f.history.Absent))
	} else {
		d.item("%s by %s, from %s to %s.", many(f.history.Commits, "commit"), many(f.history.People, "person", "people"), f.history.First, f.history.Last)
	}
	i := f.inspection
	d.item("%s in comments, %s over %s lines, %s over %s lines, %s.", many(i.MarksTotal, "note to self", "notes to self"),
		many(i.LongFilesAll, "file"), count(i.Limits.FileLines), many(i.LongFuncsAll, "function"), count(i.Limits.FunctionLines),
		many(i.LargeAll, "large binary file"))
	d.item("First: %s", d.text(f.decision.First))
	d.end()
}

func (f findings) files(d *document) {
	d.line("Listed by %s.", d.text(f.survey.ListedBy))
	if f.survey.Cut != "" {
		d.line("Not everything: %s.", d.text(f.survey.Cut))
	}
	rows := [][]string{{"language", "files", "lines", "size"}}
	for _, l := range f.survey.Languages {
		rows = append(rows, []string{d.text(l.Name), count(l.Files), count(l.Lines), size(l.Bytes)})
	}
	d.table(rows)
	rows = [][]string{{"largest files", "size", "lines"}}
	for _, file := range f.survey.Largest {
		lines := count(file.Lines)
		if file.Binary || file.Unread {
			lines = "–"
		}
		rows = append(rows, []string{d.code(file.Path), size(file.Size), lines})
	}
	d.table(rows)
}

func (f findings) past(d *document) {
	h := f.history
	if h.Absent != "" {
		d.line("There is none to read: %s.", d.text(h.Absent))
		return
	}
	if h.Cut != "" {
		d.line("Not everything: %s.", d.text(h.Cut))
	}
	rows := [][]string{{"who", "commits", "share"}}
	for _, a := range h.Authors {
		rows = append(rows, []string{d.text(a.Name), count(a.Commits), fmt.Sprintf("%d %%", 100*a.Commits/max(h.Commits, 1))})
	}
	d.table(rows)
	rows = [][]string{{"changed most often", "commits", "lines added and removed"}}
	for _, c := range h.Churn {
		rows = append(rows, []string{d.code(c.Path), count(c.Commits), count(c.Lines)})
	}
	d.table(rows)
	d.line("The latest commits:")
	for _, subject := range h.Latest {
		d.item("%s", d.text(subject))
	}
	d.end()
}

func (f findings) care(d *document) {
	i := f.inspection
	d.line("%s inspected; a file is long here from %s lines on, a function from %s. Functions are measured exactly in Go, by their indentation in %s, and not elsewhere. Generated files left out: %s.",
		many(i.Read, "file"), count(i.Limits.FileLines+1), count(i.Limits.FunctionLines+1),
		"Python, JavaScript, TypeScript, Rust, Kotlin, Swift and PHP", count(i.Generated))
	if i.Cut != "" {
		d.line("Not everything: %s.", d.text(i.Cut))
	}
	if i.MarksTotal+i.LongFilesAll+i.LongFuncsAll+i.LargeAll == 0 {
		d.line("Nothing was found that needs care.")
		return
	}
	d.list(i.MarksTotal, "Notes to self", func(yield func(string)) {
		for _, m := range i.Marks {
			yield(strings.TrimSpace(fmt.Sprintf("%s %s %s", d.code(fmt.Sprintf("%s:%d", m.Path, m.Line)), m.Word, d.text(m.Text))))
		}
	})
	d.list(i.LongFuncsAll, "Long functions", func(yield func(string)) {
		for _, l := range i.LongFunctions {
			yield(fmt.Sprintf("%s %s, %s", d.code(fmt.Sprintf("%s:%d", l.Path, l.Line)), d.code(l.Name), many(l.Lines, "line")))
		}
	})
	d.list(i.LongFilesAll, "Long files", func(yield func(string)) {
		for _, l := range i.LongFiles {
			yield(fmt.Sprintf("%s, %s", d.code(l.Path), many(l.Lines, "line")))
		}
	})
	d.list(i.LargeAll, "Large binary files", func(yield func(string)) {
		for _, l := range i.LargeBinaries {
			yield(fmt.Sprintf("%s, %s", d.code(l.Path), size(l.Size)))
		}
	})
}
