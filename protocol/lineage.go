package protocol

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"slices"
)

// Lineage is the way that led to a handoff: how many hand-offs, and the last of them. A handoff
// that follows from none has no lineage.
type Lineage struct {
	Depth int    `json:"depth"`
	Hops  string `json:"hops"` // base64 of at most HopsMax entries of hopBytes, the newest last
}

const (
	// HopsMax is how many hand-offs a lineage remembers.
	HopsMax = 8
	// hopBytes is the size of one: 3 bytes for each agent, and 6 of the context's hash.
	hopBytes, agentHashBytes, contextHashBytes = 12, 3, 6
)

// Hop is one hand-off of a lineage. Agents and context are told apart by short hashes.
type Hop struct {
	From, To [agentHashBytes]byte
	Context  [contextHashBytes]byte
}

// NewHop makes the hop from an agent to a target, with a hash of the context (ContextHash). A
// target that is no agent counts by its words.
func NewHop(from, to, context string) Hop {
	h := Hop{From: agentHash(from), To: agentHash(to)}
	if sum, err := hex.DecodeString(context); err == nil {
		copy(h.Context[:], sum)
	}
	return h
}

func agentHash(agent string) (short [agentHashBytes]byte) {
	sum := sha256.Sum256([]byte(agent))
	copy(short[:], sum[:])
	return short
}

// Names tells whether an agent made or got the hop.
func (h Hop) Names(agent string) bool {
	short := agentHash(agent)
	return h.From == short || h.To == short
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
		copy(h.From[:], body)
		copy(h.To[:], body[agentHashBytes:])
		copy(h.Context[:], body[2*agentHashBytes:])
		all = append(all, h)
	}
	return all
}

// Then returns the lineage of what is handed off by the hop. The oldest hop gives way.
func (l *Lineage) Then(hop Hop) *Lineage {
	next := &Lineage{Depth: 1}
	if l != nil {
		next.Depth = l.Depth + 1
	}
	all := append(l.All(), hop)
	all = all[max(0, len(all)-HopsMax):]
	body := make([]byte, 0, len(all)*hopBytes)
	for _, h := range all {
		body = slices.Concat(body, h.From[:], h.To[:], h.Context[:])
	}
	next.Hops = base64.StdEncoding.EncodeToString(body)
	return next
}

// DepthOf is how deep a handoff is in its lineage; 0 is one that follows from none.
func (l *Lineage) DepthOf() int {
	if l == nil {
		return 0
	}
	return l.Depth
}

// ContextHash is a short hash, in hex, of what is to be done and with what. Two packages with the
// same hash ask for the same. It counts the task, variables, intermediate results, artifacts,
// decisions and steps. It does not count what changes in each round of a loop and proves nothing:
// the conversation, summaries, earlier results, metrics and times.
func (p *Package) ContextHash() string {
	c := &p.Context
	var artifacts [][3]string
	for _, a := range c.Artifacts.All() {
		artifacts = append(artifacts, [3]string{a.ID, a.Path, string(a.Status)})
	}
	var decisions []string
	for _, d := range c.Decisions {
		decisions = append(decisions, d.ID, d.Description)
	}
	body, err := Marshal([]any{p.Task.Description, p.Task.Type, p.Task.Requirements, canonicalMap(c.Variables), canonicalMap(c.IntermediateResults),
		artifacts, decisions, canonicalList(c.CompletedSteps), canonicalList(c.RemainingSteps)})
	if err != nil { // what was decoded from JSON has a JSON form
		return ""
	}
	sum := sha256.Sum256(body)
	return hex.EncodeToString(sum[:contextHashBytes])
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
