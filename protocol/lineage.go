package protocol

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"math"
	"slices"
	"strings"
)

// Lineage is the way that led to a handoff, and what a circle of hand-offs is known by.
//
// A handoff that follows from none has no lineage. The way up is no step of it: an escalation has the
// lineage of the handoff that it comes from, and so have a return and an answer.
type Lineage struct {
	Depth int    `json:"depth"`
	Hops  string `json:"hops"` // base64 of at most HopsMax entries of hopBytes, the newest last
	// Saved is base64 of a short hash of earlier hand-offs: the last whose number is a multiple of
	// SavedFirst, the last whose number is one of twice that, and so on. What comes in a ring of any
	// length comes by one of them again, wherever the ring began.
	Saved string `json:"saved,omitempty"`

	// Again is how many hand-offs ago the last one was made, if an identical one is known; 0 is none.
	// It is not stored: such a hand-off is refused.
	Again int `json:"-"`
}

const (
	// HopsMax is how many different hand-offs a lineage remembers.
	HopsMax = 8
	// SavedFirst is the number of the first hand-off of which a lineage saves the hash.
	SavedFirst = 4
	// hopBytes is the size of a hop: 3 bytes for each agent, 3 for the work, 4 for the context, the
	// number of the hand-off, and how often it was made. savedBytes is the size of a saved hash.
	hopBytes, agentHashBytes, workHashBytes, contextHashBytes, savedBytes = 15, 3, 3, 4, 6
)

// Hop is a hand-off of a lineage. Agents and contexts are told apart by short hashes.
type Hop struct {
	From, To [agentHashBytes]byte
	Work     [workHashBytes]byte    // what is to be done, and with what
	Context  [contextHashBytes]byte // the same with the reason and the previous result
	Number   uint8                  // of the last such hand-off in its lineage, from 1
	Times    uint8                  // that it was made with the same work
}

// NewHop makes the hop from an agent to a target, with a hash of the context (ContextHash). A
// target that is no agent counts by its words.
func NewHop(from, to, context string) Hop {
	h := Hop{From: agentHash(from), To: agentHash(to), Times: 1}
	if sum, err := hex.DecodeString(context); err == nil {
		copy(h.Context[:], sum[copy(h.Work[:], sum):])
	}
	return h
}

func agentHash(agent string) (short [agentHashBytes]byte) {
	sum := sha256.Sum256([]byte(agent))
	copy(short[:], sum[:])
	return short
}

// Names reports whether an agent made or got the hop.
func (h Hop) Names(agent string) bool {
	short := agentHash(agent)
	return h.From == short || h.To == short
}

// sum is the hash of a hop that a lineage saves.
func (h Hop) sum() []byte {
	sum := sha256.Sum256(slices.Concat(h.From[:], h.To[:], h.Work[:], h.Context[:]))
	return sum[:savedBytes]
}

// All returns the hops, the newest last. What cannot be read is no hop.
func (l *Lineage) All() []Hop {
	if l == nil {
		return nil
	}
	body, err := base64.StdEncoding.DecodeString(l.Hops)
	if err != nil {
		return nil
	}
	all := make([]Hop, 0, len(body)/hopBytes)
	for ; len(body) >= hopBytes; body = body[hopBytes:] {
		var h Hop
		rest := body[copy(h.From[:], body):]
		rest = rest[copy(h.To[:], rest):]
		rest = rest[copy(h.Work[:], rest):]
		rest = rest[copy(h.Context[:], rest):]
		h.Number, h.Times = rest[0], rest[1]
		all = append(all, h)
	}
	return all
}

// Then returns the lineage of what is handed off by the hop. The oldest hop gives way.
func (l *Lineage) Then(hop Hop) *Lineage {
	next := &Lineage{Depth: l.DepthOf() + 1}
	hop.Number = uint8(min(next.Depth, math.MaxUint8))
	all := l.All()
	if at := slices.IndexFunc(all, func(h Hop) bool { return h.From == hop.From && h.To == hop.To && h.Work == hop.Work }); at >= 0 {
		if before := all[at]; before.Context == hop.Context {
			next.Again = int(hop.Number - before.Number)
		}
		hop.Times += min(all[at].Times, math.MaxUint8-1)
		all = slices.Delete(all, at, at+1)
	}
	all = append(all, hop)
	all = all[max(0, len(all)-HopsMax):]
	body := make([]byte, 0, len(all)*hopBytes)
	for _, h := range all {
		body = slices.Concat(body, h.From[:], h.To[:], h.Work[:], h.Context[:], []byte{h.Number, h.Times})
	}
	next.Hops = base64.StdEncoding.EncodeToString(body)
	if next.Depth >= SavedFirst {
		next.save(l, hop.sum())
	}
	return next
}

// save takes over the saved hashes of the lineage before, compares them with the last hand-off's, and
// puts it in the place of those whose turn it is. Of a ring of some length, longer than half of
// SavedFirst*2^k and no longer than that, a hand-off is saved within its first two rounds, and found
// in the next.
func (l *Lineage) save(before *Lineage, sum []byte) {
	var saved []byte
	if before != nil {
		saved, _ = base64.StdEncoding.DecodeString(before.Saved) // what cannot be read begins anew
	}
	for at, each := 0, SavedFirst; each <= l.Depth; at, each = at+savedBytes, 2*each {
		if at+savedBytes > len(saved) {
			saved = append(saved[:min(at, len(saved))], make([]byte, savedBytes)...)
		} else if last := (l.Depth - 1) / each * each; l.Again == 0 && bytes.Equal(saved[at:at+savedBytes], sum) {
			l.Again = l.Depth - last
		}
		if l.Depth%each == 0 {
			copy(saved[at:], sum)
		}
	}
	l.Saved = base64.StdEncoding.EncodeToString(saved)
}

// DepthOf is how deep a handoff is in its lineage; 0 is one that follows from none.
func (l *Lineage) DepthOf() int {
	if l == nil {
		return 0
	}
	return l.Depth
}

// ContextHash returns a short hash of the work, and one of its context, in hex. Two packages with the
// same hash ask for the same.
//
// The work is the task, variables, intermediate results, artifacts, decisions and steps; the context is
// that with the reason and the previous result. Neither counts the conversation, summaries, metrics,
// times, and the tickets in a text: they change in each round of a loop, and prove nothing.
func (p *Package) ContextHash() string {
	c := &p.Context
	var artifacts [][3]string
	for _, a := range c.Artifacts.All() {
		artifacts = append(artifacts, [3]string{a.ID, a.Path, string(a.Status)})
	}
	var decisions, requirements []string
	for _, d := range c.Decisions {
		decisions = append(decisions, d.ID, d.Description)
	}
	for _, r := range p.Task.Requirements {
		requirements = append(requirements, withoutTickets(r))
	}
	work, err := Marshal([]any{withoutTickets(p.Task.Description), p.Task.Type, requirements, canonicalMap(c.Variables), canonicalMap(c.IntermediateResults),
		artifacts, decisions, canonicalList(c.CompletedSteps), canonicalList(c.RemainingSteps)})
	if err != nil { // what was decoded from JSON has a JSON form
		return ""
	}
	sum := sha256.Sum256(work)
	whole := sha256.New()
	whole.Write(sum[:])
	texts := []string{p.Reason}
	if previous := c.Previous; previous != nil {
		texts = append(texts, previous.Summary, string(previous.Body), previous.BodyDigest)
	}
	for _, text := range texts {
		text = withoutTickets(text)
		whole.Write(binary.BigEndian.AppendUint64(nil, uint64(len(text))))
		whole.Write([]byte(text))
	}
	return hex.EncodeToString(whole.Sum(sum[:workHashBytes])[:workHashBytes+contextHashBytes])
}

// withoutTickets returns a text without the tickets that it names.
func withoutTickets(text string) string {
	var cut strings.Builder
	from := 0
	for i := 0; i+ticketBytes <= len(text); i++ {
		if text[i+8] != '-' || text[i+13] != '-' {
			continue
		}
		if _, err := ParseTicket(text[i : i+ticketBytes]); err == nil {
			cut.WriteString(text[from:i])
			from = i + ticketBytes
			i = from - 1
		}
	}
	if from == 0 {
		return text
	}
	return cut.String() + text[from:]
}

func canonicalMap(all map[string]json.RawMessage) map[string]any {
	sorted := make(map[string]any, len(all))
	for name, raw := range all {
		sorted[name] = canonical(raw)
	}
	return sorted
}

func canonicalList(all []json.RawMessage) []any {
	list := make([]any, len(all))
	for i, raw := range all {
		list[i] = canonical(raw)
	}
	return list
}
