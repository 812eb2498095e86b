// Package audit exports the audit trail from the ledger to files of JSON Lines, and verifies
// it, in the files and in the ledger.
//
// The ledger is the trail, and this package never writes to it. A file has everything that
// is needed to verify it without an engine: each append as it was stored, byte for byte,
// and a hash chain over the lines.
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

// Line is one line of a file: an audit record. The last record of each append carries the append
// itself, so that a file that ends with an Entry is complete.
type Line struct {
	protocol.AuditRecord
	V     int          `json:"v"` // lineVersion
	Entry *StoredEntry `json:"entry,omitempty"`
	// Prev is the SHA-256, in hex, of the previous line without its newline, so that a line that
	// was changed, removed or moved shows in the next. It is empty in the first line of an export;
	// in the first line of an archive's file it is that of the last line of the previous file.
	Prev string `json:"prev"`
}

// lineVersion increases when an append results in other records than before. Appends are verified
// whatever the version.
const lineVersion = 2

// StoredEntry is an append as it is in the ledger. Its body is in Body, or in Bytes if it is no
// valid UTF-8.
type StoredEntry struct {
	At    time.Time `json:"at"` // the engine's time stamp
	Body  string    `json:"body,omitempty"`
	Bytes []byte    `json:"body_base64,omitempty"`
}

// entryMarker is in every line with an append, and in no other: quotes within a string are
// escaped.
var entryMarker = []byte(`,"entry":{"`)

// endEventType is the event_type of the last line of a file.
const endEventType = "end"

// endLine is the last line of a file: it shows that no record is missing at the end.
type endLine struct {
	EventType string `json:"event_type"`
	Lines     int    `json:"lines"` // before it, in this file
	Prev      string `json:"prev"`
}

func newStoredEntry(e broker.Entry) *StoredEntry {
	s := &StoredEntry{At: e.At.UTC()}
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
	lines[len(lines)-1].Entry = newStoredEntry(e)
	return lines
}

const unreadablePrefix = "cannot be read: "

// unreadableRecord is the record of an append that cannot be read, because another program has
// written it into the ledger. It is archived like any other.
func unreadableRecord(e broker.Entry, err error) protocol.AuditRecord {
	reason := "stands on no handoff's subject"
	if e.Ticket != "" {
		reason = unreadablePrefix + err.Error()
	}
	return protocol.AuditRecord{HandoffID: e.Ticket, Timestamp: e.At.UTC(), EventType: protocol.AuditNoted, Reason: reason, Seq: e.Seq, Hash: broker.HashOf(e.Body)}
}

// encoder encodes lines, each with the hash of the previous one.
type encoder struct {
	prev  string
	lines int // of this file
}

func (e *encoder) addLines(to *bytes.Buffer, lines []Line) error {
	for _, l := range lines {
		l.Prev = e.prev
		if err := e.addLine(to, l); err != nil {
			return err
		}
	}
	return nil
}

// addEnd writes the end line of a file.
func (e *encoder) addEnd(to *bytes.Buffer) error {
	return e.addLine(to, endLine{endEventType, e.lines, e.prev})
}

func (e *encoder) addLine(to *bytes.Buffer, v any) error {
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

// Export writes one export: the lines of handoffs in any order, and an end line.
type Export struct {
	to  io.Writer
	enc encoder
	buf bytes.Buffer
}

// NewExport returns an Export that writes to a writer. The caller closes the writer.
func NewExport(to io.Writer) *Export { return &Export{to: to} }

// Write adds an append with its records.
func (x *Export) Write(e broker.Entry, records []protocol.AuditRecord) error {
	if err := x.enc.addLines(&x.buf, linesOf(e, records)); err != nil {
		return err
	}
	return x.flush()
}

// End completes the export with its end line.
func (x *Export) End() error {
	if err := x.enc.addEnd(&x.buf); err != nil {
		return err
	}
	return x.flush()
}

// Lines is the number of lines written.
func (x *Export) Lines() int { return x.enc.lines }

func (x *Export) flush() error {
	_, err := x.to.Write(x.buf.Bytes())
	x.buf.Reset()
	return err
}
