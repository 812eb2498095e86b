package cli

import (
	"errors"
	"fmt"
	"path/filepath"

	"github.com/agenthandoff/handoff/broker/audit"
	"github.com/agenthandoff/handoff/internal/explain"
)

// verifyView is a report, and of what.
type verifyView struct {
	What string `json:"what"` // "ledger", a path, or a path against the ledger
	audit.Report
}

func (a *app) reports(views []verifyView) error {
	if !a.text() {
		return list(a, views)
	}
	var errs []error
	for _, v := range views {
		what := v.What
		if what == "ledger" {
			what = "the ledger"
		}
		a.printf("%s: %s\n", what, reportWords(v.Report))
		for _, note := range v.Notes {
			a.printf("  %s\n", note)
		}
		if len(v.Problems) == 0 {
			continue
		}
		rows := [][]string{{"WHERE", "ENTRY", "TICKET", "WHAT", "WORDS"}}
		for _, p := range v.Problems {
			rows = append(rows, []string{problemPlace(p), number(p.Seq), p.Ticket, string(p.Kind), p.Message})
		}
		errs = append(errs, a.table(rows))
		if more := v.Found - len(v.Problems); more > 0 {
			a.printf("and %d more\n", more)
		}
	}
	return errors.Join(errs...)
}

func reportWords(r audit.Report) string {
	if r.Entries == 0 && r.Found == 0 {
		return "no entries"
	}
	text := fmt.Sprintf("%d entries", r.Entries)
	if r.Entries == 1 {
		text = "1 entry"
	}
	if r.Handoffs > 0 {
		text += " of " + explain.Count(r.Handoffs, "handoff")
	}
	text += fmt.Sprintf(", from %d to %d", r.FirstSeq, r.LastSeq)
	if r.WithoutBeginning > 0 {
		text += fmt.Sprintf(", %d of them without their beginning", r.WithoutBeginning)
	}
	if r.Newer > 0 {
		text += fmt.Sprintf(", %d with events of a newer version, which were not replayed", r.Newer)
	}
	if r.Found == 0 {
		return text + ": all is well"
	}
	return text + ": " + explain.Count(r.Found, "problem")
}

func problemPlace(p audit.Problem) string {
	if p.File == "" {
		return "ledger"
	}
	return fmt.Sprintf("%s:%d", filepath.Base(p.File), p.Line)
}

func number(n uint64) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprint(n)
}
