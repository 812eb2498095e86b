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
	"time"
	"unicode/utf8"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/protocol"
)

// recordLine is one line of a file: an audit record. The last record of each append carries the append
// itself, so that a file that ends with an Entry is complete.
type recordLine struct {
	protocol.AuditRecord
	V     int          `json:"v"` // lineVersion
	Entry *storedEntry `json:"entry,omitempty"`
	// Prev is the SHA-256, in hex, of the previous line without its newline, so that a line that
	// was changed, removed or moved shows in the next. In the first line it is empty, or, in a
	// directory, that of the last line of the previous file.
	Prev string `json:"prev"`
}

// lineVersion increases when an append results in other lines than before. Appends are verified
// whatever the version.
const lineVersion = 3

// storedEntry is an append as it is in the ledger.
type storedEntry struct {
	At time.Time `json:"at"` // the engine's time stamp
	storedBytes
}

// storedBytes are stored bytes within a line: text, or base64 if they are no valid UTF-8.
type storedBytes struct {
	Text   string `json:"body,omitempty"`
	Base64 []byte `json:"body_base64,omitempty"`
}

func newBytes(b []byte) storedBytes {
	if utf8.Valid(b) {
		return storedBytes{Text: string(b)}
	}
	return storedBytes{Base64: b}
}

func (b storedBytes) bytes() []byte {
	if b.Base64 != nil {
		return b.Base64
	}
	return []byte(b.Text)
}

// entryMarker is in every line with an append, and in no other: quotes within a string are
// escaped.
var entryMarker = []byte(`,"entry":{"`)

// The event_type of lines that are no audit records.
const (
	bodyEventType = "body"
	endEventType  = "end" // of the last line of a file
)

// bodyLine is a package or result of the object store. It precedes the first append in the file
// that refers to it.
type bodyLine struct {
	EventType string `json:"event_type"`
	Digest    string `json:"digest"`
	storedBytes
	Prev string `json:"prev"`
}

// endLine is the last line of a file: it shows that no record is missing at the end.
type endLine struct {
	EventType string `json:"event_type"`
	Lines     int    `json:"lines"` // before it, in this file
	// Next, in a directory of a ledger of several partitions, is the place up to which it is exported.
	Next broker.Cursor `json:"next,omitempty"`
	Prev string        `json:"prev"`
}

// entry is the append as it was read from the ledger.
func (l recordLine) entry() broker.Entry {
	return broker.Entry{Ticket: l.HandoffID, Seq: l.Seq, At: l.Entry.At, Body: l.Entry.bytes()}
}

// linesOf are the lines of an append, without Prev.
func linesOf(e broker.Entry, records []protocol.AuditRecord) []recordLine {
	lines := make([]recordLine, len(records))
	for i, r := range records {
		lines[i].AuditRecord, lines[i].V = r, lineVersion
	}
	lines[len(lines)-1].Entry = &storedEntry{e.At.UTC(), newBytes(e.Body)}
	return lines
}

const unreadablePrefix = "cannot be read: "

// unreadableRecord is the record of an append that cannot be read, because another program has
// written it into the ledger. It is exported like any other.
func unreadableRecord(e broker.Entry, err error) protocol.AuditRecord {
	reason := "is on the subject of no handoff"
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

func (e *encoder) addLines(to *bytes.Buffer, lines []recordLine) error {
	for _, l := range lines {
		l.Prev = e.prev
		if err := e.addLine(to, l); err != nil {
			return err
		}
	}
	return nil
}

// addEnd writes the end line of a file.
func (e *encoder) addEnd(to *bytes.Buffer, next broker.Cursor) error {
	return e.addLine(to, endLine{endEventType, e.lines, next, e.prev})
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
