package words

import (
	"cmp"
	"math"
	"slices"
)

const (
	saturation = 1.2  // k1 of BM25: how soon repetitions of a word stop counting
	lengthPart = 0.75 // b of BM25: how much long documents lose
	likeness   = 0.5  // the weight of a word that only begins alike
	beginning  = 4    // minimum number of common letters
	beginsPart = 0.75 // minimum common part of the shorter word
)

// Doc holds the words of one document with their counts. The zero value has none.
type Doc struct {
	counts map[string]float64
	length float64
}

// Add adds the words of texts; each counts weight once in a text.
func (d *Doc) Add(weight float64, texts ...string) {
	if d.counts == nil {
		d.counts = map[string]float64{}
	}
	for _, text := range texts {
		for _, word := range Of(text) {
			d.counts[word.Stem] += weight
			d.length += weight
		}
	}
}

// Rank is how well a document matches a query.
type Rank struct {
	Score float64 // BM25; comparable within one query only
	Share float64 // the document's part of the weight of all query words: 0 to 1
	// Words lists the query's words in the document, highest weight first.
	Words []string
}

// Ranks ranks documents by BM25, and keeps their order. Words that only begin alike count half.
func Ranks(question []Word, docs []Doc) []Rank {
	mean := 0.0
	for i := range docs {
		mean += docs[i].length
	}
	mean /= float64(max(len(docs), 1))
	weights := make([]float64, len(question))
	hits := make([][]float64, len(docs)) // of each document, the count of each word
	for i := range docs {
		hits[i] = make([]float64, len(question))
	}
	total := 0.0
	for w, word := range question {
		with := 0
		for i := range docs {
			if hits[i][w] = docs[i].count(word.Stem); hits[i][w] > 0 {
				with++
			}
		}
		weights[w] = math.Log(1 + (float64(len(docs)-with)+0.5)/(float64(with)+0.5))
		total += weights[w]
	}
	ranks := make([]Rank, len(docs))
	for i := range docs {
		ranks[i] = docs[i].rank(question, weights, hits[i], mean)
		if total > 0 {
			ranks[i].Share /= total
		}
	}
	return ranks
}

// count returns how often a document has a word; words that only begin alike count half.
func (d *Doc) count(word string) float64 {
	if n := d.counts[word]; n > 0 {
		return n
	}
	if len(word) < beginning {
		return 0
	}
	like := 0.0
	for have, n := range d.counts {
		if alike(have, word) {
			like = max(like, n)
		}
	}
	return like * likeness
}

// alike reports whether words begin alike: translat and translation do, author and authentication
// do not.
func alike(a, b string) bool {
	shorter, same := min(len(a), len(b)), 0
	for same < shorter && a[same] == b[same] {
		same++
	}
	return same >= beginning && float64(same) >= beginsPart*float64(shorter)
}

// rank returns the BM25 score of a document, and its matching words.
func (d *Doc) rank(question []Word, weights, hits []float64, mean float64) (r Rank) {
	type part struct {
		word  string
		score float64
	}
	var parts []part
	for w, n := range hits {
		if n == 0 {
			continue
		}
		norm := saturation * (1 - lengthPart + lengthPart*d.length/mean)
		score := weights[w] * n * (saturation + 1) / (n + norm)
		r.Score += score
		r.Share += weights[w]
		parts = append(parts, part{question[w].Said, score})
	}
	slices.SortStableFunc(parts, func(a, b part) int { return cmp.Compare(b.score, a.score) })
	for _, part := range parts {
		r.Words = append(r.Words, part.word)
	}
	return r
}
