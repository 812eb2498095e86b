package protocol

import (
	"cmp"
	"slices"

	"github.com/agenthandoff/handoff/protocol/internal/words"
)

// KeptNewest is how many of the newest messages stay, as far as the bounds allow.
const KeptNewest = 5

const (
	rankedMax      = 2000    // messages whose words are compared with the task: the newest
	rankedBytesMax = 4 << 10 // of each
	questionMax    = 64      // words of the task
)

// CutConversation cuts the conversation to what history_transfer says, and notes there what was
// left out. It is pure: the same package becomes the same, byte for byte, and cutting it again
// changes nothing. Where there is no mode it is relevant_only, for a delegation summary, and for an
// escalation full.
//
//   - full: all messages, but those of the kinds that include leaves out.
//   - relevant_only: the same, and under a bound those with the words of the task.
//   - summary: none. The summary stands for them; where there is none, extracts of at most
//     SummaryTokensMax are one.
//   - reference: none, and no summary. The key points and the URL stand for them; where there are no
//     key points, extracts are.
//
// Under max_messages or max_tokens these stay first, in this order: the newest message, the first
// that is not the system's, the first of a user, and the KeptNewest. Then come, for full the newest,
// for relevant_only those with the words of the task, with a bonus for newer ones (BM25). A call of
// a tool and its results stay or go together, and messages keep their order and their bytes.
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

// Transfer is how much of a conversation goes with a handoff of this type that does not say it.
func (t Type) Transfer() TransferMode {
	switch t {
	case Delegation:
		return TransferSummary
	case Escalation:
		return TransferFull
	}
	return TransferRelevantOnly
}

// note records what a cut has left out of all messages. What one before it left out is counted on.
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

// fit returns the messages that stay within the bounds of t. rank gives what is not kept in any
// case its ranks; without it the newest come first, without a gap.
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
	order := make([]int, len(units)) // the rest, the newest first
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

// budget is the room that is left.
type budget struct{ messages, tokens int }

// take takes the room that a unit needs, where there is as much.
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
// KeptNewest.
func keptFirst(all []Message) []int {
	last := len(all) - 1
	first := []int{last}
	for _, request := range requests(all) {
		if request >= 0 {
			first = append(first, request)
		}
	}
	for i := last - 1; i >= 0 && i > last-KeptNewest; i-- {
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
