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
	"github.com/agenthandoff/handoff/internal/lifecycle"
	"github.com/agenthandoff/handoff/protocol"
)

// Problem is something that is wrong in the audit trail.
type Problem struct {
	Kind    Kind   `json:"kind"`
	File    string `json:"file,omitempty"`
	Line    int    `json:"line,omitempty"` // from 1
	Seq     uint64 `json:"seq,omitempty"`
	Ticket  string `json:"handoff_id,omitempty"`
	Message string `json:"message"`
}

// Kind is the kind of a Problem.
type Kind string

const (
	KindUnreadable Kind = "unreadable" // an append or a line cannot be parsed
	KindHash       Kind = "hash"       // an append differs from its hash or from its record
	KindChain      Kind = "chain"      // an append does not follow from the one before
	KindReplay     Kind = "replay"     // the events do not result in the state
	KindMissing    Kind = "missing"    // an append, a line or a body is missing
	KindLine       Kind = "line"       // a line does not follow the one before
	KindTruncated  Kind = "truncated"  // the end of the file is missing
	KindWriter     Kind = "writer"     // the role in By may not write the event; only with CheckWriters
)

// Check is an optional part of a verification.
type Check int

// CheckWriters checks that each event is one that the role in its By may write
// (lifecycle.CheckWriters).
const CheckWriters Check = 1

// problemsMax is how many problems a Report lists. It counts the rest.
const problemsMax = 1_000

// Report is the outcome of a verification.
type Report struct {
	Entries  uint64 `json:"entries"`
	Handoffs int    `json:"handoffs"`
	FirstSeq uint64 `json:"first_seq,omitempty"`
	LastSeq  uint64 `json:"last_seq,omitempty"`
	// WithoutBeginning counts the handoffs whose first appends are missing because they were
	// dropped for their age, or are in an earlier file.
	WithoutBeginning int `json:"without_beginning,omitempty"`
	// Newer counts the appends with events of a newer version. They are not replayed, because this
	// version does not know their effect.
	Newer int `json:"newer,omitempty"`
	// Compared counts the entries of a directory that VerifyAgainst compared with the ledger. The
	// ledger has dropped the others for their age.
	Compared int       `json:"compared,omitempty"`
	Notes    []string  `json:"notes,omitempty"`
	Problems []Problem `json:"problems"`
	// Found counts all problems, including those that Problems has no room for.
	Found int `json:"found"`
}

func (r *Report) addProblem(p Problem) {
	if r.Found++; len(r.Problems) < problemsMax {
		r.Problems = append(r.Problems, p)
	}
}

func (r *Report) addNote(format string, args ...any) {
	r.Notes = append(r.Notes, fmt.Sprintf(format, args...))
}

// cachedStatesMax is how many states a chainVerifier caches to replay events onto. For any other
// handoff the append before is read again.
const cachedStatesMax = 16_384

// chainVerifier verifies handoffs append by append. It needs 40 bytes and a key for each handoff,
// and the cached states.
type chainVerifier struct {
	report *Report
	heads  map[uuid.UUID]chainHead
	states recentCache[protocol.State]
	// reread reads the append at a location that verify was called with.
	reread func(ticket string, location uint64) (broker.Entry, error)
	// mustHaveStart reports whether the first append must be present for a handoff that was
	// submitted at this sequence.
	mustHaveStart func(submitted uint64) bool
	checkWriters  bool // CheckWriters
	// readBody reads a body of the object store; nil without one.
	readBody   func(protocol.BlobRef) ([]byte, error)
	bodiesRead map[protocol.BlobRef]bool // bodies that were read
}

// chainHead is the last append of a handoff: its hash and its location.
type chainHead struct {
	hash     [sha256.Size]byte
	location uint64
}

func newChainVerifier(report *Report, checks ...Check) *chainVerifier {
	return &chainVerifier{report: report, checkWriters: slices.Contains(checks, CheckWriters), heads: map[uuid.UUID]chainHead{}, bodiesRead: map[protocol.BlobRef]bool{}, states: recentCache[protocol.State]{most: cachedStatesMax}}
}

// ticketKey is the UUID of a ticket, or one derived from any other text.
func ticketKey(ticket string) uuid.UUID {
	if id, err := uuid.Parse(ticket); err == nil {
		return id
	}
	return uuid.NewSHA1(uuid.Nil, []byte(ticket))
}

// verify verifies one append at a location, which reread understands. at is the position in a
// file, if there is one.
func (c *chainVerifier) verify(e broker.Entry, location uint64, at Problem) error {
	change, err := broker.DecodeChange(e)
	return c.verifyDecoded(e, change, err, location, at)
}

// verifyDecoded is verify for an append that was decoded, or whose decoding failed with decodeErr.
func (c *chainVerifier) verifyDecoded(e broker.Entry, change protocol.Change, decodeErr error, location uint64, at Problem) error {
	r := c.report
	r.Entries++
	if r.FirstSeq == 0 || e.Seq < r.FirstSeq {
		r.FirstSeq = e.Seq
	}
	r.LastSeq = max(r.LastSeq, e.Seq)
	report := func(kind Kind, format string, args ...any) {
		at.Kind, at.Seq, at.Ticket, at.Message = kind, e.Seq, e.Ticket, fmt.Sprintf(format, args...)
		r.addProblem(at)
	}
	if e.Ticket == "" {
		report(KindUnreadable, "has a subject of no handoff: a client wrote a foreign message into the ledger")
		return nil
	}
	key := ticketKey(e.Ticket)
	before, known := c.heads[key]
	c.heads[key] = chainHead{sha256.Sum256(e.Body), location}
	r.Handoffs = len(c.heads)
	if decodeErr != nil {
		c.states.drop(e.Ticket)
		report(KindUnreadable, "cannot be read: %v", decodeErr)
		return nil
	}
	if slices.ContainsFunc(change.Record.Events, isUnknown) {
		r.Newer++
	}
	if err := c.verifyDigests(change, report); err != nil {
		return err
	}
	state := change.Record.State
	if state.Ticket != e.Ticket {
		report(KindChain, "is stored under one ticket and names the ticket %q", state.Ticket)
	}
	if !known {
		c.verifyFirst(change, report)
		c.cacheState(e.Ticket, state)
		return nil
	}
	if prev := hex.EncodeToString(before.hash[:]); state.PrevHash != prev {
		report(KindChain, "does not follow the append before it: prev_hash is %s, that append has %s", shortHash(state.PrevHash), shortHash(prev))
		c.cacheState(e.Ticket, state)
		return nil // the append that it follows is not here
	}
	base, readable, err := c.stateBefore(e.Ticket, before)
	if err != nil {
		return err
	}
	if readable {
		verifyReplay(base, change, report)
		c.verifyWriters(base, change, report)
	}
	c.cacheState(e.Ticket, state)
	return nil
}

// verifyFirst verifies the first append of a handoff that is present.
func (c *chainVerifier) verifyFirst(change protocol.Change, report func(Kind, string, ...any)) {
	state := change.Record.State
	switch {
	case state.PrevHash == "":
		if submittedEvent(change) == nil {
			report(KindChain, "is the first append of its handoff and has no submission")
			return
		}
		verifyReplay(protocol.State{}, change, report)
		c.verifyWriters(protocol.State{}, change, report)
	case c.mustHaveStart(state.PackageSeq):
		report(KindMissing, "follows an append with the hash %s, which is missing", shortHash(state.PrevHash))
	default:
		c.report.WithoutBeginning++
	}
}

// stateBefore is the state that an append must follow from. It is not readable if the append
// before was reported as unreadable.
func (c *chainVerifier) stateBefore(ticket string, before chainHead) (base protocol.State, readable bool, err error) {
	if base, kept := c.states.get(ticket); kept {
		return base, true, nil
	}
	e, err := c.reread(ticket, before.location)
	if err != nil {
		return protocol.State{}, false, err
	}
	change, err := broker.DecodeChange(e)
	return change.Record.State, err == nil, nil
}

// cacheState caches a state for the next append. Few appends follow the close of a handoff.
func (c *chainVerifier) cacheState(ticket string, s protocol.State) {
	if s.Closed {
		c.states.drop(ticket)
		return
	}
	c.states.put(ticket, s)
}

// verifyReplay applies the events of a change to the state before it and compares the result.
// Events of a newer version cannot be replayed.
func verifyReplay(base protocol.State, change protocol.Change, report func(Kind, string, ...any)) {
	if slices.ContainsFunc(change.Record.Events, isUnknown) {
		return
	}
	stored := change.Record.State
	next, err := lifecycle.ApplyAll(base, change.Record.Events)
	if err != nil {
		report(KindReplay, "has events that are not legal after the append before: %v", err)
		return
	}
	next.Bind(change.Seq)
	next.PrevHash = stored.PrevHash // verified before
	want, wantErr := json.Marshal(next)
	have, haveErr := json.Marshal(stored)
	if wantErr != nil || haveErr != nil {
		report(KindReplay, "cannot be compared: %v, %v", wantErr, haveErr)
		return
	}
	if !bytes.Equal(want, have) {
		report(KindReplay, "has a state that its events do not result in: %s", differingFields(want, have))
	}
}

// verifyWriters checks the writers of events, if CheckWriters is set.
func (c *chainVerifier) verifyWriters(base protocol.State, change protocol.Change, report func(Kind, string, ...any)) {
	if !c.checkWriters {
		return
	}
	if err := lifecycle.CheckWriters(base, change.Record.Events); err != nil {
		report(KindWriter, "%v", err)
	}
}

func isUnknown(e protocol.Event) bool {
	_, unknown := e.(*protocol.UnknownEvent)
	return unknown
}

// differingFields names the fields in which two states differ.
func differingFields(want, have []byte) string {
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

// shortHash is the start of a hash.
func shortHash(hash string) string {
	if hash == "" {
		return "none"
	}
	return hash[:min(len(hash), 16)]
}
