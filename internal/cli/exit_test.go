package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/protocol"
)

func TestExitCodes(t *testing.T) {
	open := protocol.State{Ticket: "t", Phase: protocol.Working}
	lost := protocol.State{Ticket: "t", Phase: protocol.PhaseFailed, Closed: true, Outcome: protocol.OutcomeFailed}
	for _, c := range []struct {
		err  error
		code int
		word string
	}{
		{errors.New("disk full"), 1, "error"},
		{usagef("no such flag"), 2, "usage"},
		{protocol.Errorf(protocol.CodeNotFound, "ticket", "none"), 3, "not_found"},
		{failed(open), 4, "still_open"},
		{failed(lost), 5, "no_success"},
		{fmt.Errorf("dial: %w", broker.ErrUnreachable), 6, "unreachable"},
		{fmt.Errorf("append: %w", context.DeadlineExceeded), 6, "unreachable"},
		{fmt.Errorf("beat: %w", broker.ErrLeaseLost), 7, "lease_lost"},
		{protocol.Errorf(protocol.CodeLeaseInvalid, "lease", "not one"), 7, "lease_invalid"},
		{protocol.Errorf(protocol.CodeNothingToClaim, "", "nothing"), 8, "nothing_to_claim"},
		{protocol.Errorf(protocol.CodeMissing, "reason", "is missing"), 9, "missing"},
		{errors.Join(protocol.Errorf(protocol.CodeOutputSchema, "result.body", "wrong"), nil), 9, "output_schema"},
		{protocol.Errorf(protocol.CodeClosed, "ticket", "closed"), 9, "closed"},
		{errInterrupted, 130, "interrupted"},
	} {
		var out bytes.Buffer
		a := &app{err: &out, format: formatJSON}
		if code := a.report(c.err); code != c.code {
			t.Errorf("%v ends with %d, want %d", c.err, code, c.code)
		}
		var line struct{ Code, Message string }
		if err := json.Unmarshal(out.Bytes(), &line); err != nil || line.Code != c.word || line.Message == "" {
			t.Errorf("%v is written as %s, want code %s", c.err, out.String(), c.word)
		}
	}
	for _, outcome := range []protocol.Outcome{protocol.OutcomeSuccess, protocol.OutcomePartial} {
		if err := failed(protocol.State{Closed: true, Outcome: outcome}); err != nil {
			t.Errorf("%s ends with %v, want nothing", outcome, err)
		}
	}
}

// TestExitCodesHelp: what a script may meet is what the help lists.
func TestExitCodesHelp(t *testing.T) {
	text := newExitCodes().Long
	for _, row := range exits {
		if !strings.Contains(text, fmt.Sprintf("%3d  %s", row.code, row.means)) {
			t.Errorf("handoff help exit-codes does not explain %d: %s", row.code, row.means)
		}
	}
}

func TestReportEscapes(t *testing.T) {
	var out bytes.Buffer
	a := &app{err: &out, format: formatText}
	a.report(protocol.Errorf(protocol.CodeInvalid, "reason", "is \x1b[2Jgone\nhandoff: all is well"))
	if strings.ContainsRune(out.String(), '\x1b') || strings.Count(out.String(), "\n") != 1 {
		t.Errorf("an error reached the terminal as %q", out.String())
	}
}
