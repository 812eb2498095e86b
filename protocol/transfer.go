package protocol

import (
	"bytes"
	"cmp"
	"encoding/json"
	"slices"
	"strings"

	"github.com/agenthandoff/handoff/internal/words"
)

// keptNewest is how many of the newest messages stay, as far as the bounds allow.
const keptNewest = 5

const (
	rankedMax      = 2000    // the newest messages, whose words are compared with the task
	rankedBytesMax = 4 << 10 // of each
	questionMax    = 64      // words of the task
)

// CutConversation cuts the conversation as history_transfer requires, and records the cut there. It
// is pure: equal packages give equal results, byte for byte, and a second cut changes nothing.
// Without a mode it is relevant_only, for a delegation summary, and for an escalation full.
//
//   - full: all messages, except the kinds that include omits.
//   - relevant_only: the same, and under a bound those with the words of the task.
//   - summary: none. The summary replaces them; without one, extracts of at most SummaryTokensMax do.
//   - reference: none, and no summary. The key points and the URL replace them; without key points,
//     extracts do.
//
// Under max_messages or max_tokens these stay first, in this order: the newest message, the first
// that is not the system's, the first of a user, and the keptNewest. Then come, for full the
// newest, for relevant_only those with the words of the task, with a bonus for newer ones (BM25). A
// call of a tool and its results stay or are removed together; messages keep their order and their
// bytes.
func (p *Package) CutConversation() {
	c := &p.Context
	t := &c.HistoryTransfer
	all := c.ConversationHistory
	if len(all) == 0 {
		return
	}
	t.Mode = cmp.Or(t.Mode, p.Type.Transfer())
	isLess := false
	if t.Include != nil && (t.Mode == TransferFull || t.Mode == TransferRelevantOnly) {
		c.ConversationHistory, isLess = ofKinds(all, *t.Include)
	}
	switch t.Mode {
	case TransferSummary:
		if c.Summary == "" {
			c.Summary, t.By = extractSummary(c, t.MaxTokens), SummaryByExtract
		}
		t.By = cmp.Or(t.By, SummaryBySource)
		c.ConversationHistory, isLess = nil, true
	case TransferReference:
		if len(c.KeyPoints) == 0 {
			c.KeyPoints = extractKeyPoints(c)
		}
		c.ConversationHistory, c.Summary, isLess = nil, "", true
	case TransferRelevantOnly:
		kept := fit(c.ConversationHistory, t, func(units []unit) { rankByTask(units, c.ConversationHistory, p.Task) })
		c.ConversationHistory, isLess = kept, isLess || len(kept) < len(c.ConversationHistory)
	case TransferFull:
		kept := fit(c.ConversationHistory, t, nil)
		c.ConversationHistory, isLess = kept, isLess || len(kept) < len(c.ConversationHistory)
	}
	if isLess {
		c.note(all)
	}
}

// Transfer returns the default mode for conversations of this type of handoff.
func (t Type) Transfer() TransferMode {
	switch t {
	case Delegation:
		return TransferSummary
	case Escalation:
		return TransferFull
	}
	return TransferRelevantOnly
}

// note records the messages that a cut has removed, added to those of earlier cuts.
func (c *Context) note(all []Message) {
	t := &c.HistoryTransfer
	if t.OriginalTokens == 0 {
		t.OriginalTokens = ConversationTokens(all)
	}
	t.Omitted += len(all) - len(c.ConversationHistory)
	t.Tokens = ConversationTokens(c.ConversationHistory)
	if t.By != "" && t.By != SummaryBySource {
		t.Tokens += Tokens(c.Summary)
	}
}

// fit returns the messages that stay within the bounds of t. rank ranks those that are not kept in
// any case; without it the newest come first, without a gap.
func fit(all []Message, t *HistoryTransfer, rank func([]unit)) []Message {
	if t.MaxMessages <= 0 && t.MaxTokens <= 0 {
		return all
	}
	tokens := make([]int, len(all))
	sum := 0
	if t.MaxTokens > 0 {
		for i, message := range all {
			tokens[i] = jsonTokens(message)
			sum += tokens[i]
		}
	}
	room := budget{cmp.Or(max(t.MaxMessages, 0), len(all)), cmp.Or(max(t.MaxTokens, 0), sum)}
	if len(all) <= room.messages && sum <= room.tokens {
		return all
	}
	units, of := unitsOf(all)
	keep := make([]bool, len(units))
	take := func(u int) bool {
		if !keep[u] && room.take(units[u], tokens) {
			keep[u] = true
		}
		return keep[u]
	}
	for _, i := range keptFirst(all) {
		take(of[i])
	}
	order := make([]int, len(units)) // the rest, newest first
	for u := range units {
		order[len(units)-1-u] = u
		units[u].rank = 0
	}
	if rank != nil {
		rank(units)
		slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(units[b].rank, units[a].rank) })
	}
	for _, u := range order {
		if !take(u) && rank == nil {
			break
		}
	}
	var kept []Message
	for i, message := range all {
		if keep[of[i]] {
			kept = append(kept, message)
		}
	}
	return kept
}

// budget is the remaining room.
type budget struct{ messages, tokens int }

// take uses the room that a unit needs, if there is enough.
func (b *budget) take(u unit, tokens []int) bool {
	need := 0
	for _, i := range u.messages {
		need += tokens[i]
	}
	if len(u.messages) > b.messages || need > b.tokens {
		return false
	}
	b.messages -= len(u.messages)
	b.tokens -= need
	return true
}

// keptFirst lists the messages that stay before all others: the newest, the first request, and the
// keptNewest.
func keptFirst(all []Message) []int {
	last := len(all) - 1
	first := []int{last}
	for _, request := range requests(all) {
		if request >= 0 {
			first = append(first, request)
		}
	}
	for i := last - 1; i >= 0 && i > last-keptNewest; i-- {
		first = append(first, i)
	}
	return first
}

// requests finds the first message that is not the system's, and the first of a user; -1 is none.
func requests(all []Message) [2]int {
	found := [2]int{-1, -1}
	for i, message := range all {
		role := partsOf(message).role
		if found[0] < 0 && role != "system" && role != "developer" {
			found[0] = i
		}
		if role == "user" {
			found[1] = i
			break
		}
	}
	return found
}

// rankByTask ranks units by the words that they share with a task, and newer ones before older.
func rankByTask(units []unit, all []Message, task Task) {
	var question []words.Word
	for _, text := range append([]string{task.Description}, task.Requirements...) {
		question = append(question, words.Of(text)...)
	}
	question = question[:min(len(question), questionMax)]
	from := max(len(all)-rankedMax, 0)
	docs := make([]words.Doc, len(all)-from)
	for i := range docs {
		docs[i].Add(1, CutText(partsOf(all[from+i]).text, rankedBytesMax))
	}
	ranks := words.Ranks(question, docs)
	best := 0.0
	for _, rank := range ranks {
		best = max(best, rank.Score)
	}
	for u := range units {
		for _, i := range units[u].messages {
			rank := 0.5 * float64(i+1) / float64(len(all))
			if i >= from && best > 0 {
				rank += ranks[i-from].Score / best
			}
			units[u].rank = max(units[u].rank, rank)
		}
	}
}

// unit is a set of messages that stay or are removed together: a call of a tool and its results, or
// one message.
type unit struct {
	messages []int // in their order
	rank     float64
}

// unitsOf splits a conversation into units, in the order of their first messages, and returns the
// unit of each message. A result without an earlier call is a unit by itself.
func unitsOf(all []Message) (units []unit, of []int) {
	root := make([]int, len(all)) // of each message, another one of its unit
	find := func(i int) int {
		for root[i] != i {
			root[i] = root[root[i]]
			i = root[i]
		}
		return i
	}
	callers := map[string]int{} // the last message that made the call of an id
	last := -1                  // the last message that called
	for i, message := range all {
		root[i] = i
		parts := partsOf(message)
		for _, id := range parts.results {
			caller, known := callers[id]
			if id == "" {
				caller, known = last, last >= 0
			}
			if known {
				a, b := find(caller), find(i)
				root[max(a, b)] = min(a, b)
			}
		}
		for _, id := range parts.calls {
			callers[id], last = i, i
		}
	}
	of = make([]int, len(all))
	for i := range all {
		if r := find(i); r == i {
			of[i] = len(units)
			units = append(units, unit{messages: []int{i}})
		} else {
			of[i] = of[r]
			units[of[r]].messages = append(units[of[r]].messages, i)
		}
	}
	return units, of
}

// messageParts holds the parsed parts of a message, in the terms of the common interfaces of
// models.
type messageParts struct {
	role    string
	speaker string
	text    string
	calls   []string // ids of the calls that it makes; an empty one has none
	results []string // ids of the calls that it answers
}

// partsOf parses a message as far as possible.
func partsOf(message Message) (p messageParts) {
	fields := objectOf(message)
	if fields == nil {
		p.text = textOf(message)
		return p
	}
	p.role = textOf(fields["role"])
	p.speaker = strings.TrimSpace(cmp.Or(p.role, "message") + " " + cmp.Or(textOf(fields["agent_id"]), textOf(fields["name"])))
	p.part(fields, p.role)
	for _, call := range objectsOf(fields["tool_calls"]) {
		p.calls = append(p.calls, textOf(call["id"]))
	}
	if hasContent(fields["function_call"]) {
		p.calls = append(p.calls, "")
	}
	if p.text = textOf(fields["content"]); p.text != "" {
		return p
	}
	var texts []string
	for _, part := range objectsOf(fields["content"]) {
		p.part(part, "")
		if text := cmp.Or(textOf(part["text"]), textOf(part["content"])); text != "" {
			texts = append(texts, text)
		}
	}
	p.text = strings.Join(texts, "\n")
	return p
}

// part records the call or the result in a message, or in a part of its content.
func (p *messageParts) part(fields map[string]json.RawMessage, role string) {
	switch kind := textOf(fields["type"]); {
	case isCall(kind):
		p.calls = append(p.calls, toolID(fields))
	case isResult(kind, role):
		p.results = append(p.results, toolID(fields))
	}
}

// textOf returns a JSON string, or an empty text for other JSON.
func textOf(raw json.RawMessage) (text string) {
	if first(raw) != '"' || json.Unmarshal(raw, &text) != nil {
		return ""
	}
	return text
}

// objectsOf returns the objects of a JSON list, or none.
func objectsOf(raw json.RawMessage) (objects []map[string]json.RawMessage) {
	for _, item := range listOf(raw) {
		if fields := objectOf(item); fields != nil {
			objects = append(objects, fields)
		}
	}
	return objects
}

// objectOf returns a JSON object, or nil for other JSON.
func objectOf(raw json.RawMessage) (fields map[string]json.RawMessage) {
	if first(raw) != '{' || json.Unmarshal(raw, &fields) != nil {
		return nil
	}
	return fields
}

// listOf returns a JSON list, or nil for other JSON.
func listOf(raw json.RawMessage) (list []json.RawMessage) {
	if first(raw) != '[' || json.Unmarshal(raw, &list) != nil {
		return nil
	}
	return list
}

// Calls of tools and their results as texts, if only one of the two kinds is sent.

// isCall reports whether a message or a part of this type is a call.
func isCall(kind string) bool {
	return kind == "tool_call" || kind == "tool_use" || kind == "function_call"
}

// isResult reports whether a message or a part of this type and role is a result.
func isResult(kind, role string) bool {
	return kind == "tool_result" || kind == "function_call_output" || role == "tool" || role == "function"
}

// toolID returns the id of the call that a call or a result names.
func toolID(fields map[string]json.RawMessage) string {
	id := cmp.Or(textOf(fields["call_id"]), textOf(fields["tool_call_id"]), textOf(fields["tool_use_id"]))
	if id == "" && isCall(textOf(fields["type"])) {
		return textOf(fields["id"])
	}
	return id
}

// nameTools adds the names of the tools that a message calls, by the ids of the calls.
func nameTools(names map[string]string, message Message) {
	fields := objectOf(message)
	if fields == nil {
		return
	}
	for _, call := range objectsOf(fields["tool_calls"]) {
		name, _ := signature(call)
		names[textOf(call["id"])] = name
	}
	for _, part := range append(objectsOf(fields["content"]), fields) {
		if isCall(textOf(part["type"])) {
			name, _ := signature(part)
			names[toolID(part)] = name
		}
	}
	delete(names, "")
}

// signature returns the name and the arguments of a call.
func signature(call map[string]json.RawMessage) (name, arguments string) {
	function := objectOf(call["function"])
	if function == nil {
		function = call
	}
	for _, raw := range []json.RawMessage{function["arguments"], function["input"]} {
		if hasContent(raw) {
			arguments = cmp.Or(textOf(raw), string(raw))
		}
	}
	return textOf(function["name"]), arguments
}

// toTexts replaces the calls and the results of a message by texts, and reports whether there were
// any. A call becomes words of the assistant, and a result words of the user, in the roles that
// every interface of a model accepts.
func (k kinds) toTexts(fields map[string]json.RawMessage) bool {
	kind := textOf(fields["type"])
	switch {
	case isCall(kind):
		k.replace(fields, "assistant", []json.RawMessage{textPart(callText(fields))})
		return true
	case isResult(kind, textOf(fields["role"])):
		k.replace(fields, "user", k.resultParts(fields))
		return true
	}
	var texts []json.RawMessage
	for _, call := range objectsOf(fields["tool_calls"]) {
		texts = append(texts, textPart(callText(call)))
	}
	if call := objectOf(fields["function_call"]); call != nil {
		texts = append(texts, textPart(callText(call)))
	}
	content, changed := k.contentParts(fields["content"])
	if len(texts) == 0 && !changed {
		return false
	}
	delete(fields, "tool_calls")
	delete(fields, "function_call")
	fields["content"] = contentOf(append(content, texts...))
	return true
}

// contentParts returns the parts of a content with calls and results as texts, and whether there
// were any.
func (k kinds) contentParts(content json.RawMessage) (parts []json.RawMessage, changed bool) {
	if text := textOf(content); text != "" {
		return []json.RawMessage{textPart(text)}, false
	}
	for _, part := range listOf(content) {
		fields := objectOf(part)
		switch kind := textOf(fields["type"]); {
		case isCall(kind):
			parts, changed = append(parts, textPart(callText(fields))), true
		case isResult(kind, ""):
			parts, changed = append(parts, k.resultParts(fields)...), true
		default:
			parts = append(parts, part)
		}
	}
	return parts, changed
}

// callText returns a call in words: its tool, and its arguments.
func callText(call map[string]json.RawMessage) string {
	name, arguments := signature(call)
	return strings.TrimSpace("called " + cmp.Or(name, "a tool") + " " + arguments)
}

// resultParts returns a result in words, after the name of its tool. Parts that are not text, such
// as images, follow unchanged.
func (k kinds) resultParts(result map[string]json.RawMessage) []json.RawMessage {
	name := cmp.Or(k.names[toolID(result)], textOf(result["name"]), "a tool")
	body := result["content"]
	if !hasContent(body) {
		body = result["output"]
	}
	var words []string
	var others []json.RawMessage
	if list := listOf(body); list != nil {
		for _, part := range list {
			if text := textOfPart(part); text != "" {
				words = append(words, text)
			} else {
				others = append(others, part)
			}
		}
	} else if hasContent(body) {
		words = append(words, cmp.Or(textOf(body), string(body)))
	}
	text := strings.TrimSpace("result of " + name + ": " + strings.Join(words, "\n"))
	return append([]json.RawMessage{textPart(text)}, others...)
}

// replace turns a call or a result into a message of a role.
func (k kinds) replace(fields map[string]json.RawMessage, role string, parts []json.RawMessage) {
	for _, name := range []string{"type", "id", "call_id", "tool_call_id", "tool_use_id", "name", "function", "arguments", "input", "output", "is_error"} {
		delete(fields, name)
	}
	fields["role"] = json.RawMessage(`"` + role + `"`)
	fields["content"] = contentOf(parts)
}

// textPart returns a text as a part of a content.
func textPart(text string) json.RawMessage {
	body, _ := Marshal(map[string]string{"type": "text", "text": text}) // strings alone
	return body
}

// textOfPart returns the text of a part of a content; empty for another kind of part.
func textOfPart(part json.RawMessage) string {
	if fields := objectOf(part); fields != nil {
		return textOf(fields["text"])
	}
	return textOf(part)
}

// contentOf returns parts as a content: one string if all of them are texts.
func contentOf(parts []json.RawMessage) json.RawMessage {
	var texts []string
	for _, part := range parts {
		if text := textOfPart(part); text != "" {
			texts = append(texts, text)
		}
	}
	var body json.RawMessage
	if len(texts) == len(parts) {
		body, _ = Marshal(strings.Join(texts, "\n")) // a string
	} else {
		body, _ = Marshal(parts) // of JSON
	}
	return body
}

// Selection of messages by kind: each flag of history_transfer.include is independent.

// kinds selects messages by their kinds.
type kinds struct {
	Include
	asTexts bool              // calls are sent without their results, or results without their calls
	names   map[string]string // of tools, by the ids of their calls
}

// ofKinds returns the messages of the wanted kinds, and whether any part was removed. A model
// refuses a call without its result, and a result without its call: if only one of the two kinds is
// sent, it is sent as texts.
func ofKinds(messages []Message, include Include) (kept []Message, isLess bool) {
	k := kinds{Include: include, asTexts: goesOn(include.ToolCalls) != goesOn(include.ToolResults)}
	if k.asTexts {
		k.names = map[string]string{}
		for _, message := range messages {
			nameTools(k.names, message)
		}
	}
	for _, message := range messages {
		part, ok := k.relevant(message)
		if ok {
			kept = append(kept, part)
		}
		isLess = isLess || !ok || !bytes.Equal(part, message)
	}
	return kept, isLess
}

// partOf maps roles, types and fields to the flag of their kind, in the words of the documents and
// of the common interfaces of models.
var partOf = map[string]func(Include) bool{
	"system": wantsSystem, "developer": wantsSystem, // roles
	"tool": wantsResults, "function": wantsResults, // roles of answers to a call
	"tool_call": wantsCalls, "tool_use": wantsCalls, "function_call": wantsCalls, // types, and the last a field
	"tool_result": wantsResults, "function_call_output": wantsResults, // types
	"tool_calls": wantsCalls,                                 // a field
	"reasoning":  wantsReasoning, "thinking": wantsReasoning, // roles, types and fields
	"redacted_thinking": wantsReasoning, "reasoning_content": wantsReasoning, // a type, a field
}

func wantsSystem(i Include) bool    { return goesOn(i.SystemMessages) }
func wantsCalls(i Include) bool     { return goesOn(i.ToolCalls) }
func wantsResults(i Include) bool   { return goesOn(i.ToolResults) }
func wantsReasoning(i Include) bool { return goesOn(i.AgentReasoning) }

// goesOn reports whether a flag of an Include lets its kind through.
func goesOn(flag *bool) bool { return flag == nil || *flag }

// partFields are the fields of a message, other than its content, that are of one kind.
var partFields = []string{"tool_calls", "function_call", "reasoning", "reasoning_content", "thinking"}

// relevant returns the part of a message that is sent. A message is removed whole if its role or
// type is of a removed kind: system messages (role system or developer), tool results (role tool or
// function, type tool_result), tool calls (type tool_call, tool_use), reasoning (role or type
// reasoning or thinking). Other messages lose the fields and the parts of a content list that are
// of such a kind; if no content remains, the message is removed too. A message without any of these
// is sent byte for byte.
func (k kinds) relevant(message Message) (Message, bool) {
	fields := objectOf(message)
	if fields == nil {
		return message, true
	}
	if !k.wanted(fields["role"]) || !k.wanted(fields["type"]) {
		return nil, false
	}
	changed := false
	for _, name := range partFields {
		if hasContent(fields[name]) && !partOf[name](k.Include) {
			delete(fields, name)
			changed = true
		}
	}
	parts := listOf(fields["content"])
	kept := slices.DeleteFunc(slices.Clone(parts), func(part json.RawMessage) bool { return !k.wanted(objectOf(part)["type"]) })
	if body, err := Marshal(kept); err == nil && len(kept) < len(parts) {
		fields["content"], changed = body, true
	}
	if k.asTexts && k.toTexts(fields) {
		changed = true
	}
	if !changed {
		return message, true
	}
	left := hasContent(fields["content"])
	for _, name := range partFields {
		left = left || hasContent(fields[name])
	}
	body, err := Marshal(fields)
	return body, left && err == nil
}

// wanted reports whether the kind that a role or a type names is sent. An unknown one is.
func (k kinds) wanted(word json.RawMessage) bool {
	asked := partOf[textOf(word)]
	return asked == nil || asked(k.Include)
}

// hasContent reports whether a field has a value that is not empty.
func hasContent(raw json.RawMessage) bool {
	switch string(raw) {
	case "", "null", `""`, "[]", "{}":
		return false
	}
	return true
}

const (
	// SummaryTokensMax is the most tokens of a summary made from extracts.
	SummaryTokensMax = 1000
	// keyPointsMax is how many extracts replace a conversation that is handed off by reference.
	keyPointsMax = 10

	keyPointTokensMax = 60
)

// extractSummary makes a summary from the content of a context, if no agent has written one: the
// request, completed work and decisions, the key points, and the last statements. A quarter of its
// tokens are for the request, half for the last statements, and the rest for the middle.
func extractSummary(c *Context, mostTokens int) string {
	room := SummaryTokensMax
	if mostTokens > 0 {
		room = min(room, mostTokens)
	}
	request := requestOf(c, room/4)
	said := lastStatements(c, room/2/keptNewest)
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

// extractKeyPoints makes key points from the content of a context.
func extractKeyPoints(c *Context) (points []string) {
	most := keyPointTokensMax
	if bound := c.HistoryTransfer.MaxTokens; bound > 0 {
		most = min(most, bound/keyPointsMax)
	}
	if request := requestOf(c, most); request != "" {
		points = append(points, request)
	}
	said := lastStatements(c, most)
	for _, fact := range factsOf(c) {
		if line := cutTokens(fact, most); line != "" && len(points)+len(said) < keyPointsMax {
			points = append(points, line)
		}
	}
	return append(points, said...)
}

// requestOf returns a line with the user's request; empty if unknown.
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

// factsOf returns the completed steps, decisions and facts of a context, a line each.
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

// wordsOfStep returns a step in words; steps are words, or objects of any form.
func wordsOfStep(raw json.RawMessage) string {
	if text := textOf(raw); text != "" {
		return text
	}
	step := objectOf(raw)
	for _, name := range []string{"description", "name", "step", "title"} {
		if text := textOf(step[name]); text != "" {
			return text
		}
	}
	return string(raw)
}

// lastStatements returns the newest messages with text, each in at most most tokens, oldest first.
// It does not repeat the request.
func lastStatements(c *Context, most int) []string {
	all := c.ConversationHistory
	request := -1
	if c.OriginalRequest == "" {
		request = requests(all)[0]
	}
	var said []string
	for i := len(all) - 1; i > request && i >= len(all)-keptNewest; i-- {
		if parts := partsOf(all[i]); strings.TrimSpace(parts.text) != "" {
			if line := cutTokens(parts.speaker+": "+parts.text, most); line != "" {
				said = slices.Insert(said, 0, line)
			}
		}
	}
	return said
}

// CutFor cuts the conversation to an agent's max_context_tokens, and reports whether it exceeded
// that limit. It is pure like CutConversation. If the package names no mode, the conversation is cut in
// the mode of its type, or in the first of the agent's contract.
func (p *Package) CutFor(agent *Profile) bool {
	c := &p.Context
	most, t := agent.MaxContextTokens, &c.HistoryTransfer
	if most <= 0 || ConversationTokens(c.ConversationHistory) <= most {
		return false
	}
	if t.Mode == "" {
		t.Mode = c.acceptedMode(agent.Contract, p.Type.Transfer())
	}
	if t.MaxTokens <= 0 || t.MaxTokens > most {
		t.MaxTokens = most
	}
	p.CutConversation()
	return true
}

// AdaptMode changes a mode that a contract does not accept to the first one that it does. It is for
// packages with the mode of their type.
func (p *Package) AdaptMode(to *Contract) {
	c := &p.Context
	if len(c.ConversationHistory) > 0 && !to.Accepts(c.HistoryTransfer.Mode) {
		c.HistoryTransfer.Mode = c.acceptedMode(to, c.HistoryTransfer.Mode)
		p.CutConversation()
	}
}

// acceptedMode returns mode if a contract accepts it, else the first mode of the contract. A
// transfer by reference needs a URL.
func (c *Context) acceptedMode(of *Contract, mode TransferMode) TransferMode {
	if of.Accepts(mode) {
		return mode
	}
	for _, other := range of.Modes {
		if other != TransferReference || c.ContextURL != "" {
			return other
		}
	}
	return mode // the contract will refuse it
}
