// Package audit carries the audit trail out of the ledger, into files of JSON
// Lines, and checks it, there and in the ledger.
//
// The ledger is the trail; nothing here is written into it. A file holds
// everything that is needed to check it again without an engine: each append as it
// was stored, byte for byte, and a chain over the lines.
package audit

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"time"
	"unicode/utf8"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/protocol"
)

// Line is one line of a file: an audit record. The last record of each append
// carries the append itself, so that a file that ends with an Entry ends whole.
type Line struct {
	protocol.AuditRecord
	V     int     `json:"v"` // of what becomes which record: lineVersion
	Entry *Stored `json:"entry,omitempty"`
	// Prev is the SHA-256, in hex, of the line before without its line end: a
	// line that was changed, taken out or moved shows in the one behind it.
	// The first line of an export has none; the first of an archive's file has
	// that of the last line of the file before.
	Prev string `json:"prev"`
}

// lineVersion goes up when an append gives other records than before. A file is
// checked by its appends whatever its version.
const lineVersion = 2

// Stored is an append as the ledger has it. Its body is in Body, or, should it
// be no text, in Bytes.
type Stored struct {
	At    time.Time `json:"at"` // the engine's time stamp
	Body  string    `json:"body,omitempty"`
	Bytes []byte    `json:"body_base64,omitempty"`
}

// entryMark is in every line that carries an append, and in no other: a quote
// within a string is escaped.
var entryMark = []byte(`,"entry":{"`)

// endType is the event_type of the line that ends a file.
const endType = "end"

// end is the last line of a file: it shows that nothing is missing behind the
// last record.
type end struct {
	EventType string `json:"event_type"`
	Lines     int    `json:"lines"` // before it, in this file
	Prev      string `json:"prev"`
}

func store(e broker.Entry) *Stored {
	s := &Stored{At: e.At.UTC()}
	if utf8.Valid(e.Body) {
		s.Body = string(e.Body)
	} else {
		s.Bytes = e.Body
	}
	return s
}

// entry is the append as it was read from the ledger.
func (l Line) entry() broker.Entry {
	body := l.Entry.Bytes
	if body == nil {
		body = []byte(l.Entry.Body)
	}
	return broker.Entry{Ticket: l.HandoffID, Seq: l.Seq, At: l.Entry.At, Body: body}
}

// linesOf are the lines of an append, without Prev.
func linesOf(e broker.Entry, records []protocol.AuditRecord) []Line {
	lines := make([]Line, len(records))
	for i, r := range records {
		lines[i].AuditRecord, lines[i].V = r, lineVersion
	}
	lines[len(lines)-1].Entry = store(e)
	return lines
}

const unreadableWords = "cannot be read: "

// unreadable is the record of an append that is none of ours: another program has
// written into the ledger what does not belong there. It is carried all the same.
func unreadable(e broker.Entry, err error) protocol.AuditRecord {
	reason := "stands on no handoff's subject"
	if e.Ticket != "" {
		reason = unreadableWords + err.Error()
	}
	return protocol.AuditRecord{HandoffID: e.Ticket, Timestamp: e.At.UTC(), EventType: protocol.AuditNoted, Reason: reason, Seq: e.Seq, Hash: broker.HashOf(e.Body)}
}

// encoder turns lines into bytes, each with the hash of the one before.
type encoder struct {
	prev  string
	lines int // so far, in this file
}

func (e *encoder) add(to *bytes.Buffer, lines []Line) error {
	for _, l := range lines {
		l.Prev = e.prev
		if err := e.line(to, l); err != nil {
			return err
		}
	}
	return nil
}

// end writes the line that ends a file.
func (e *encoder) end(to *bytes.Buffer) error {
	return e.line(to, end{endType, e.lines, e.prev})
}

func (e *encoder) line(to *bytes.Buffer, v any) error {
	start := to.Len()
	enc := json.NewEncoder(to)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return fmt.Errorf("write an audit record: %w", err)
	}
	e.prev = broker.HashOf(to.Bytes()[start : to.Len()-1])
	e.lines++
	return nil
}

// Export writes one export: lines in any order of handoffs, and an end.
type Export struct {
	to  io.Writer
	enc encoder
	buf bytes.Buffer
}

// NewExport returns an Export into to, which the caller closes.
func NewExport(to io.Writer) *Export { return &Export{to: to} }

// Write adds an append with its records.
func (x *Export) Write(e broker.Entry, records []protocol.AuditRecord) error {
	if err := x.enc.add(&x.buf, linesOf(e, records)); err != nil {
		return err
	}
	return x.flush()
}

// End says that the export is whole.
func (x *Export) End() error {
	if err := x.enc.end(&x.buf); err != nil {
		return err
	}
	return x.flush()
}

// Lines is how many were written.
func (x *Export) Lines() int { return x.enc.lines }

func (x *Export) flush() error {
	_, err := x.to.Write(x.buf.Bytes())
	x.buf.Reset()
	return err
}
