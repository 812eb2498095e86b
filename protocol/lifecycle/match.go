package lifecycle

import (
	"cmp"
	"math"
	"slices"
	"strings"
	"unicode"

	p "github.com/agenthandoff/handoff/protocol"
)

// Found is an agent that Match has found.
type Found struct {
	Agent string  `json:"agent"`
	Score float64 `json:"score"` // BM25; scores of one question compare, those of two do not
	// Words are the words of the question that the profile has, the weightiest first.
	Words []string `json:"words"`
}

// Matches is what Match has found, the best first.
type Matches struct {
	Found []Found `json:"found"`
	// Certain says that the best is well ahead of the second, and has enough of the question:
	// to hand to it unasked is reasonable. Without it a person or a model chooses.
	Certain bool `json:"certain"`
}

const (
	matchSaturation = 1.2  // k1 of BM25: how soon more of the same word counts for nothing
	matchLength     = 0.75 // b of BM25: how much a long profile is held against an agent
	matchAhead      = 1.25 // how many times the score of the second the best must have
	matchEnough     = 0.25 // of the weight of all words of the question, what the best must have
	matchLikeness   = 0.5  // what a word counts that has but the beginning in common
	matchBeginning  = 4    // letters of it
)

// Match finds the agents whose profiles have the words of a task: BM25 over id, name,
// specialization and capabilities, which count three times, examples, which count twice, and the
// description. It leaves out agents that are paused or take no handoffs, and the person. It asks
// no model, and takes about 20 ms for 2,000 agents. At most most agents are returned,
// those without any word of the task never.
func Match(d *Directory, task string, most int) Matches {
	question := wordsOf(task)
	matches := Matches{Found: []Found{}}
	if d == nil || len(question) == 0 {
		return matches
	}
	docs, length := profileWords(d)
	weights := make([]float64, len(question))
	hits := make([][]float64, len(docs)) // of each profile, how often it has each word
	for i := range docs {
		hits[i] = make([]float64, len(question))
	}
	total := 0.0
	for w, word := range question {
		with := 0
		for i, doc := range docs {
			if hits[i][w] = doc.count(word.stem); hits[i][w] > 0 {
				with++
			}
		}
		weights[w] = math.Log(1 + (float64(len(docs)-with)+0.5)/(float64(with)+0.5))
		total += weights[w]
	}
	shares := map[string]float64{}
	for i, doc := range docs {
		found, share := doc.score(question, weights, hits[i], length)
		if found.Score > 0 {
			matches.Found = append(matches.Found, found)
			shares[found.Agent] = share / total
		}
	}
	slices.SortFunc(matches.Found, func(a, b Found) int {
		return cmp.Or(cmp.Compare(b.Score, a.Score), cmp.Compare(a.Agent, b.Agent))
	})
	if all := matches.Found; len(all) > 0 {
		ahead := len(all) == 1 || all[0].Score >= matchAhead*all[1].Score
		matches.Certain = ahead && shares[all[0].Agent] >= matchEnough
	}
	matches.Found = matches.Found[:min(len(matches.Found), max(most, 0))]
	return matches
}

// profileDoc is the words of one profile, each with what it counts.
type profileDoc struct {
	agent  string
	words  map[string]float64
	length float64
}

// profileWords returns the words of all agents that take handoffs, and their mean length.
func profileWords(d *Directory) (docs []profileDoc, mean float64) {
	for id, profile := range d.Agents {
		if id == p.Human || profile.Paused || !profile.Accepts() {
			continue
		}
		doc := profileDoc{agent: id, words: map[string]float64{}}
		doc.add(3, id, profile.Name, profile.Specialization)
		for _, c := range profile.Capabilities {
			doc.add(3, c.ID)
		}
		doc.add(2, profile.Examples...)
		doc.add(1, profile.Description)
		docs = append(docs, doc)
		mean += doc.length
	}
	return docs, mean / float64(max(len(docs), 1))
}

func (doc *profileDoc) add(weight float64, texts ...string) {
	for _, text := range texts {
		for _, word := range wordsOf(text) {
			doc.words[word.stem] += weight
			doc.length += weight
		}
	}
}

// count is how often a profile has a word; words that only begin alike count half.
func (doc *profileDoc) count(word string) float64 {
	if n := doc.words[word]; n > 0 {
		return n
	}
	if len(word) < matchBeginning {
		return 0
	}
	like := 0.0
	for have, n := range doc.words {
		if len(have) >= matchBeginning && have[:matchBeginning] == word[:matchBeginning] {
			like = max(like, n)
		}
	}
	return like * matchLikeness
}

// score is BM25 of a profile, and the weight of the words that it has.
func (doc *profileDoc) score(question []word, weights, hits []float64, mean float64) (found Found, share float64) {
	found.Agent = doc.agent
	type part struct {
		word  string
		score float64
	}
	var parts []part
	for w, n := range hits {
		if n == 0 {
			continue
		}
		norm := matchSaturation * (1 - matchLength + matchLength*doc.length/mean)
		score := weights[w] * n * (matchSaturation + 1) / (n + norm)
		found.Score += score
		share += weights[w]
		parts = append(parts, part{question[w].said, score})
	}
	slices.SortStableFunc(parts, func(a, b part) int { return cmp.Compare(b.score, a.score) })
	for _, part := range parts {
		found.Words = append(found.Words, part.word)
	}
	return found, share
}

// word is a word of a text, as it is compared and as it was said.
type word struct{ stem, said string }

// wordsOf returns the distinct words of a text, in order: split at what is no letter or
// digit and where small letters meet capital ones, in small letters, without what is in every
// sentence, and stemmed.
func wordsOf(text string) (all []word) {
	seen := map[string]bool{}
	for _, said := range strings.FieldsFunc(splitCamel(text), func(r rune) bool { return !unicode.IsLetter(r) && !unicode.IsDigit(r) }) {
		said = strings.ToLower(said)
		if w := (word{stem(said), said}); !fillers[said] && !seen[w.stem] {
			seen[w.stem] = true
			all = append(all, w)
		}
	}
	return all
}

// splitCamel puts a space where a small letter meets a capital one.
func splitCamel(text string) string {
	var b strings.Builder
	last := ' '
	for _, r := range text {
		if unicode.IsUpper(r) && unicode.IsLower(last) {
			b.WriteByte(' ')
		}
		b.WriteRune(r)
		last = r
	}
	return b.String()
}

// stem takes the endings off an English word that change what it says the least. Words that it
// makes alike need not be alike: what counts is that a word and its plural are.
func stem(word string) string {
	for _, ending := range []struct{ from, to string }{
		{"ies", "y"}, {"ing", ""}, {"ers", ""}, {"er", ""}, {"ed", ""}, {"es", ""}, {"s", ""}, {"e", ""},
	} {
		if cut, ok := strings.CutSuffix(word, ending.from); ok && len(cut) >= 3 {
			return cut + ending.to
		}
	}
	return word
}

// fillers are words that stand in tasks of any kind.
var fillers = func() map[string]bool {
	all := map[string]bool{}
	for word := range strings.FieldsSeq(`a about after agent all also an and any are as at be been before but by can could do does
		for from get give given has have help how i if in into is it its just make me my need needs new no not of on one or our
		out please should so some specialist that the their them then there these they this those to up us use using want was
		we what when where which who will with would you your`) {
		all[word] = true
	}
	return all
}()
