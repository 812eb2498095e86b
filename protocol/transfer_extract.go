package protocol

import (
	"encoding/json"
	"slices"
	"strings"
)

const (
	// SummaryTokensMax is the most tokens of a summary that is made of extracts.
	SummaryTokensMax = 1000
	// KeyPointsMax is how many extracts stand for a conversation that is handed off by reference.
	KeyPointsMax = 10

	keyPointTokensMax = 60
)

// extractSummary makes a summary of what a context says, where no agent has written one: the
// request, what was done and decided, the key points, and the last statements. A quarter of its
// tokens are for the request, half for the last statements, the rest for what lies between.
func extractSummary(c *Context, mostTokens int) string {
	room := SummaryTokensMax
	if mostTokens > 0 {
		room = min(room, mostTokens)
	}
	request := requestOf(c, room/4)
	said := lastStatements(c, room/2/KeptNewest)
	left := room - Tokens(request) - Tokens(strings.Join(said, "\n"))
	lines := []string{request}
	for _, fact := range factsOf(c) {
		line := cutTokens(fact, left)
		if line == "" {
			break
		}
		left -= Tokens(line)
		lines = append(lines, line)
	}
	return strings.Trim(strings.Join(append(lines, said...), "\n"), "\n")
}

// extractKeyPoints makes key points of what a context says.
func extractKeyPoints(c *Context) (points []string) {
	most := keyPointTokensMax
	if bound := c.HistoryTransfer.MaxTokens; bound > 0 {
		most = min(most, bound/KeyPointsMax)
	}
	if request := requestOf(c, most); request != "" {
		points = append(points, request)
	}
	said := lastStatements(c, most)
	for _, fact := range factsOf(c) {
		if line := cutTokens(fact, most); line != "" && len(points)+len(said) < KeyPointsMax {
			points = append(points, line)
		}
	}
	return append(points, said...)
}

// requestOf is a line with what the user asked for; empty where that is not known.
func requestOf(c *Context, most int) string {
	request := c.OriginalRequest
	if i := requests(c.ConversationHistory)[0]; request == "" && i >= 0 {
		request = partsOf(c.ConversationHistory[i]).text
	}
	if strings.TrimSpace(request) == "" {
		return ""
	}
	return cutTokens("Request: "+request, most)
}

// factsOf are what a context says was done, decided and is known, a line each.
func factsOf(c *Context) (facts []string) {
	for _, step := range c.CompletedSteps {
		facts = append(facts, "Done: "+wordsOfStep(step))
	}
	for _, d := range c.Decisions {
		fact := "Decided: " + d.Description
		if d.Rationale != "" {
			fact += " (" + d.Rationale + ")"
		}
		facts = append(facts, fact)
	}
	for _, point := range c.KeyPoints {
		facts = append(facts, "Known: "+point)
	}
	return facts
}

// wordsOfStep is a step in words; steps are words, or objects of any form.
func wordsOfStep(raw json.RawMessage) string {
	if text := textOf(raw); text != "" {
		return text
	}
	var step map[string]json.RawMessage
	if first(raw) == '{' && json.Unmarshal(raw, &step) == nil {
		for _, name := range []string{"description", "name", "step", "title"} {
			if text := textOf(step[name]); text != "" {
				return text
			}
		}
	}
	return string(raw)
}

// lastStatements are the newest messages that say something, each in at most most tokens, the
// oldest of them first. The request is not said again.
func lastStatements(c *Context, most int) []string {
	all := c.ConversationHistory
	request := -1
	if c.OriginalRequest == "" {
		request = requests(all)[0]
	}
	var said []string
	for i := len(all) - 1; i > request && i >= len(all)-KeptNewest; i-- {
		if parts := partsOf(all[i]); strings.TrimSpace(parts.text) != "" {
			if line := cutTokens(parts.speaker+": "+parts.text, most); line != "" {
				said = slices.Insert(said, 0, line)
			}
		}
	}
	return said
}
