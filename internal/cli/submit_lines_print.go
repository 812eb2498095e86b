package cli

import (
	"errors"
	"io"

	"github.com/agenthandoff/handoff/internal/bulk"
	"github.com/agenthandoff/handoff/protocol"
)

// lineView is one line for programs: it has a ticket or an error.
type lineView struct {
	Line   int             `json:"line"`
	Ticket string          `json:"ticket,omitempty"`
	Error  *protocol.Error `json:"error,omitempty"`
}

// lineWriter writes lines as they come, in JSON as one document.
type lineWriter struct {
	*app
	begun bool
	last  string // the last ticket that was submitted
}

// done writes what became of one line. Of a refused one people read "-" in its place, unless
// nothing is submitted yet, and why on stderr.
func (w *lineWriter) done(line bulk.Line) error {
	if line.Err == nil {
		w.last = line.Ticket
		return w.write(lineView{Line: line.N, Ticket: line.Ticket})
	}
	if w.text() {
		if !line.Checking {
			w.printf("-\n")
		}
		w.notef("handoff: %s\n", &bulk.LineError{N: line.N, Err: line.Err})
		return nil
	}
	view := lineView{Line: line.N}
	errors.As(line.Err, &view.Error)
	return w.write(view)
}

func (w *lineWriter) write(v lineView) error {
	switch {
	case w.text():
		w.printf("%s\n", v.Ticket)
		return nil
	case w.format == formatJSON:
		between := "[\n"
		if w.begun {
			between = ","
		}
		w.begun = true
		if _, err := io.WriteString(w.app.out, between); err != nil {
			return err
		}
	}
	return w.value(v)
}

func (w *lineWriter) end() error {
	if w.last != "" {
		w.remember(w.last)
	}
	if w.format != formatJSON {
		return nil
	}
	closing := "]\n"
	if !w.begun {
		closing = "[]\n"
	}
	_, err := io.WriteString(w.app.out, closing)
	return err
}
