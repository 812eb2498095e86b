package demo

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/agenthandoff/handoff/protocol"
)

// count reads the ledger from its first message, and sums it up.
func (r *run) count(ctx context.Context) (Sums, []protocol.Change, error) {
	ctx, cancel := context.WithTimeout(ctx, accountWithin)
	defer cancel()
	changes, err := readFrom(ctx, r.engine.Broker, 0)
	if err != nil {
		return Sums{}, nil, err
	}
	tickets, err := readAcknowledged(r.home)
	return sum(changes, tickets), changes, err
}

// finish completes the report with what the ledger says, and says so. A relay
// that broke off has none.
func (r *run) finish(changes []protocol.Change, sums Sums) error {
	if last := r.view.rows[len(r.view.rows)-1].state; last.TaskID != steps[len(steps)-1].id || last.Outcome != protocol.OutcomeSuccess {
		return fmt.Errorf("the relay ended with the %s: %s %s", last.TaskID, last.Outcome, printable(last.Message))
	}
	if err := r.complete(changes, sums); err != nil {
		return fmt.Errorf("report: %w", err)
	}
	r.view.freeze()
	r.view.note("\n%s\nThe report: %s", sums.words(), r.report)
	return nil
}

// complete adds to the report what happened after it was written, and puts it
// where it was asked for.
func (r *run) complete(changes []protocol.Change, sums Sums) error {
	written := filepath.Join(r.home, reportName)
	body, err := os.ReadFile(written)
	if err != nil {
		return err
	}
	d := &document{}
	d.Write(body)
	r.story(d, changes, sums)
	r.report = written
	if r.cfg.Report != "" {
		if r.report, err = filepath.Abs(r.cfg.Report); err != nil {
			return err
		}
	}
	return errors.Join(saveFile(written, []byte(d.String())), saveFile(r.report, []byte(d.String())))
}

// story is the part of the report that is read from the ledger.
func (r *run) story(d *document, changes []protocol.Change, sums Sums) {
	d.section("What happened on the way")
	d.line("The demo added this from the ledger, after the last handoff had closed.")
	rows := [][]string{{"ticket", "step", "from", "to", "attempts", "outcome", "took"}}
	for _, row := range r.view.rows {
		s := row.state
		rows = append(rows, []string{d.code(s.Ticket), d.text(s.TaskID), d.text(s.Source), d.text(s.Agent), count(s.AttemptsTotal),
			string(s.Outcome), s.ClosedAt.Sub(s.SubmittedAt).Round(time.Millisecond).String()})
	}
	d.table(rows)
	if r.killed != 0 {
		d.line("The demo killed process %d, the first worker of the %s, with SIGKILL half-way through its work. The ledger knows only that its lease ran out.", r.killed, surveyor)
	}
	for _, c := range changes {
		words, notable := describe(c)
		s := c.Record.State
		if notable || s.Closed && s.TaskID == "proofreading" {
			d.item("%s, %s: %s", c.At.Sub(r.view.began).Round(100*time.Millisecond), d.text(s.TaskID), d.text(words))
		}
	}
	d.end()
	d.line("%s", strings.ReplaceAll(sums.words(), "\n", " "))
}

// words says what the sums mean.
func (s Sums) words() string {
	return fmt.Sprintf("%s submitted, %d closed, %d of them with success. On the way %d escalated, %d tried again, %d rerouted.\n"+
		"By the ledger, read from its first message and held against the tickets that were acknowledged: %d lost, %d done twice.",
		many(s.Submitted, "handoff"), s.Closed, s.Succeeded, s.Escalated, s.Retried, s.Rerouted, s.Lost, s.Duplicated)
}
