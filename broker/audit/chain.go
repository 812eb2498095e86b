package audit

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/google/uuid"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/protocol/lifecycle"
)

// Problem is something that is wrong with the trail.
type Problem struct {
	Kind   Kind   `json:"kind"`
	File   string `json:"file,omitempty"`
	Line   int    `json:"line,omitempty"` // from 1
	Seq    uint64 `json:"seq,omitempty"`
	Ticket string `json:"handoff_id,omitempty"`
	Words  string `json:"message"`
}

// Kind is a Problem in one word.
type Kind string

const (
	KindUnreadable Kind = "unreadable" // no record, or no line, of ours
	KindHash       Kind = "hash"       // an append is not what its hash, or its record, says
	KindChain      Kind = "chain"      // an append does not follow from the one before
	KindReplay     Kind = "replay"     // the events do not lead to the state
	KindMissing    Kind = "missing"    // something that was there is not
	KindLine       Kind = "line"       // a line does not follow the one before
	KindTruncated  Kind = "truncated"  // the file ends too early
	KindWriter     Kind = "writer"     // an event is not one that its By makes; only with Writers
)

// Check is what a verification looks for besides what it always does.
type Check int

// Writers compares each event with the role that its By names
// (lifecycle.CheckWriters).
const Writers Check = 1

// problemsKept is how many problems a Report lists; the rest it counts.
const problemsKept = 1_000

// Report is what a verification found.
type Report struct {
	Entries  uint64 `json:"entries"`
	Handoffs int    `json:"handoffs"`
	FirstSeq uint64 `json:"first_seq,omitempty"`
	LastSeq  uint64 `json:"last_seq,omitempty"`
	// WithoutBeginning counts the handoffs whose first appends are not here
	// because they were dropped for their age, or lie in an earlier file.
	WithoutBeginning int `json:"without_beginning,omitempty"`
	// Newer counts the appends with events of a newer version, which were not
	// replayed: no code here knows what follows from them.
	Newer    int       `json:"newer,omitempty"`
	Notes    []string  `json:"notes,omitempty"`
	Problems []Problem `json:"problems"`
	// Found counts all problems, those that Problems has no room for, too.
	Found int `json:"found"`
}

func (r *Report) problem(p Problem) {
	if r.Found++; len(r.Problems) < problemsKept {
		r.Problems = append(r.Problems, p)
	}
}

func (r *Report) note(format string, args ...any) {
	r.Notes = append(r.Notes, fmt.Sprintf(format, args...))
}

// statesKept bounds the states that a chain has in memory to replay onto. For
// an append of another handoff the one before is read again.
const statesKept = 16_384

// chains checks handoffs append by append. In memory are 40 bytes and a key for
// each handoff, and the states that were seen last.
type chains struct {
	report *Report
	heads  map[uuid.UUID]link
	states recent[protocol.State]
	// again reads the append at a place that add was told of.
	again func(ticket string, place uint64) (broker.Entry, error)
	// begins tells whether a handoff that was submitted at this sequence must
	// have its beginning here.
	begins  func(submitted uint64) bool
	writers bool // Writers is wanted
	// body reads a body of the object store, which is not kept; nil where there is none.
	body   func(protocol.BlobRef) ([]byte, error)
	bodies map[protocol.BlobRef]bool // that were read
}

// link is the last append of a handoff: its hash, and where it was.
type link struct {
	hash  [sha256.Size]byte
	place uint64
}

func newChains(report *Report, checks ...Check) *chains {
	return &chains{report: report, writers: slices.Contains(checks, Writers), heads: map[uuid.UUID]link{}, bodies: map[protocol.BlobRef]bool{}, states: recent[protocol.State]{most: statesKept}}
}

// keyOf is the UUID that a ticket is; for anything else one made of it.
func keyOf(ticket string) uuid.UUID {
	if id, err := uuid.Parse(ticket); err == nil {
		return id
	}
	return uuid.NewSHA1(uuid.Nil, []byte(ticket))
}

// add checks one append, which lies at a place of the caller's. at says where
// in a file, if in one.
func (c *chains) add(e broker.Entry, place uint64, at Problem) error {
	change, err := broker.DecodeChange(e)
	return c.addDecoded(e, change, err, place, at)
}

// addDecoded is add for a caller that has decoded the append, or tried to.
func (c *chains) addDecoded(e broker.Entry, change protocol.Change, unread error, place uint64, at Problem) error {
	r := c.report
	r.Entries++
	if r.FirstSeq == 0 || e.Seq < r.FirstSeq {
		r.FirstSeq = e.Seq
	}
	r.LastSeq = max(r.LastSeq, e.Seq)
	found := func(kind Kind, format string, args ...any) {
		at.Kind, at.Seq, at.Ticket, at.Words = kind, e.Seq, e.Ticket, fmt.Sprintf(format, args...)
		r.problem(at)
	}
	if e.Ticket == "" {
		found(KindUnreadable, "has a subject of no handoff: a client wrote a foreign message into the ledger")
		return nil
	}
	key := keyOf(e.Ticket)
	before, known := c.heads[key]
	c.heads[key] = link{sha256.Sum256(e.Body), place}
	r.Handoffs = len(c.heads)
	if unread != nil {
		c.states.drop(e.Ticket)
		found(KindUnreadable, "cannot be read: %v", unread)
		return nil
	}
	if slices.ContainsFunc(change.Record.Events, isUnknown) {
		r.Newer++
	}
	if err := c.digests(change, found); err != nil {
		return err
	}
	state := change.Record.State
	if state.Ticket != e.Ticket {
		found(KindChain, "is stored under one ticket and says that it is of %q", state.Ticket)
	}
	if !known {
		c.first(change, found)
		c.keep(e.Ticket, state)
		return nil
	}
	if prev := hex.EncodeToString(before.hash[:]); state.PrevHash != prev {
		found(KindChain, "names another append as the one before it: prev_hash is %s, the one before it has %s", shown(state.PrevHash), shown(prev))
		c.keep(e.Ticket, state)
		return nil // what it builds on is not here to be compared with
	}
	base, readable, err := c.base(e.Ticket, before)
	if err != nil {
		return err
	}
	if readable {
		replay(base, change, found)
		c.wrote(base, change, found)
	}
	c.keep(e.Ticket, state)
	return nil
}

// first checks the first append of a handoff that is here.
func (c *chains) first(change protocol.Change, found func(Kind, string, ...any)) {
	state := change.Record.State
	switch {
	case state.PrevHash == "":
		if submittedIn(change) == nil {
			found(KindChain, "is the first of its handoff, and no submission")
			return
		}
		replay(protocol.State{}, change, found)
		c.wrote(protocol.State{}, change, found)
	case c.begins(state.PackageSeq):
		found(KindMissing, "follows an append with the hash %s, which is not there", shown(state.PrevHash))
	default:
		c.report.WithoutBeginning++
	}
}

// base is the state that an append must follow from. It is not readable where
// the append before was reported already.
func (c *chains) base(ticket string, before link) (base protocol.State, readable bool, err error) {
	if base, kept := c.states.get(ticket); kept {
		return base, true, nil
	}
	e, err := c.again(ticket, before.place)
	if err != nil {
		return protocol.State{}, false, err
	}
	change, err := broker.DecodeChange(e)
	return change.Record.State, err == nil, nil
}

// keep has a state at hand for the append that follows. Little follows the end.
func (c *chains) keep(ticket string, s protocol.State) {
	if s.Closed {
		c.states.drop(ticket)
		return
	}
	c.states.put(ticket, s)
}

// replay applies the events of a change to the state before it and compares. What a
// newer version means by its events no code here knows.
func replay(base protocol.State, change protocol.Change, found func(Kind, string, ...any)) {
	if slices.ContainsFunc(change.Record.Events, isUnknown) {
		return
	}
	stored := change.Record.State
	next, err := lifecycle.ApplyAll(base, change.Record.Events)
	if err != nil {
		found(KindReplay, "holds events that cannot have happened then: %v", err)
		return
	}
	next.Bind(change.Seq)
	next.PrevHash = stored.PrevHash // which was checked
	want, wantErr := json.Marshal(next)
	have, haveErr := json.Marshal(stored)
	if wantErr != nil || haveErr != nil {
		found(KindReplay, "cannot be compared: %v, %v", wantErr, haveErr)
		return
	}
	if !bytes.Equal(want, have) {
		found(KindReplay, "says of the handoff what its events do not: %s", differing(want, have))
	}
}

// wrote compares the events with their makers, where that is wanted.
func (c *chains) wrote(base protocol.State, change protocol.Change, found func(Kind, string, ...any)) {
	if !c.writers {
		return
	}
	if err := lifecycle.CheckWriters(base, change.Record.Events); err != nil {
		found(KindWriter, "%v", err)
	}
}

func isUnknown(e protocol.Event) bool {
	_, unknown := e.(*protocol.UnknownEvent)
	return unknown
}

// differing names the fields in which two states are not the same.
func differing(want, have []byte) string {
	const few = 6
	var a, b map[string]json.RawMessage
	if json.Unmarshal(want, &a) != nil || json.Unmarshal(have, &b) != nil {
		return "the states"
	}
	all := maps.Clone(a)
	maps.Copy(all, b)
	var names []string
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if !bytes.Equal(a[name], b[name]) {
			names = append(names, name)
		}
	}
	if len(names) > few {
		names = append(names[:few], "…")
	}
	return strings.Join(names, ", ")
}

// shown is enough of a hash to tell it from another.
func shown(hash string) string {
	if hash == "" {
		return "none"
	}
	return hash[:min(len(hash), 16)]
}
