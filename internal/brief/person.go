package brief

import (
	"cmp"
	"encoding/json"
	"strings"

	"github.com/agenthandoff/handoff/protocol"
)

// Fact is a line about a package, with its label.
type Fact struct{ Label, Text string }

// Facts returns the descriptive fields of a package except for its task. A text may be empty.
func Facts(p *protocol.Package) []Fact {
	return []Fact{
		{"reason", p.Reason},
		{"task id", p.Task.ID},
		{"requires", strings.Join(p.Task.Requirements, "; ")},
		{"expects", strings.Join(p.Expectations.SuccessCriteria, "; ")},
		{"rationale", p.Audit.DecisionRationale},
		{"risk", string(p.Audit.RiskLevel)},
		{"summary", p.Context.Summary},
		{"previous", previousWords(p.Context.Previous)},
	}
}

// previousBytesMax bounds the quotation of a previous result in a fact.
const previousBytesMax = 200

// previousWords quotes the result that a package follows from.
func previousWords(p *protocol.Previous) string {
	if p == nil {
		return ""
	}
	var body string
	if json.Unmarshal(p.Body, &body) != nil {
		body = string(p.Body)
	}
	if p.BodyDigest != "" {
		body = "a result of " + protocol.Size(p.BodyBytes)
	}
	return p.Agent + ": " + protocol.CutText(cmp.Or(p.Summary, body, "artifacts alone"), previousBytesMax)
}

// Part counts the elements of one kind in a context.
type Part struct {
	N     int
	Thing string // singular
}

// Parts counts the elements of a context by kind. It omits kinds with no elements.
func Parts(c protocol.Context) []Part {
	var parts []Part
	for _, part := range []Part{
		{len(c.Variables), "variable"}, {len(c.Artifacts.All()), "artifact"}, {len(c.ConversationHistory), "message"},
		{len(c.Decisions), "decision"}, {len(c.RelevantFiles), "relevant file"}, {len(c.FilesInProgress), "locked file"},
		{len(c.CompletedSteps), "completed step"}, {len(c.RemainingSteps), "remaining step"},
		{len(c.IntermediateResults), "intermediate result"}, {len(c.KeyPoints), "key point"}, {len(c.Constraints), "constraint"},
	} {
		if part.N > 0 {
			parts = append(parts, part)
		}
	}
	return parts
}

// Message returns the speaker and the text of a message. An unknown format is returned as JSON.
func Message(m protocol.Message) (speaker, words string) {
	var said struct {
		Role    string          `json:"role"`
		Name    string          `json:"name"`
		AgentID string          `json:"agent_id"`
		Content json.RawMessage `json:"content"`
	}
	if json.Unmarshal(m, &said) != nil || len(said.Content) == 0 {
		return "message", string(m)
	}
	speaker = strings.TrimSpace(cmp.Or(said.Role, "message") + " " + cmp.Or(said.AgentID, said.Name))
	var text string
	if said.Content[0] != '"' || json.Unmarshal(said.Content, &text) != nil {
		return speaker, string(said.Content)
	}
	return speaker, text
}
