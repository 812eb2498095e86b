package protocol

import (
	"bytes"
	"regexp/syntax"
	"slices"
)

// Regular expressions are slow, and nearly every package holds no secret. So
// each pattern is taken apart into words of which every match must contain
// one; a text without any of a pattern's words is not matched against it.

// patternSet is a set of patterns by their number.
type patternSet [RedactionsMax / 64]uint64

func (s *patternSet) add(i int)     { s[i/64] |= 1 << (i % 64) }
func (s patternSet) has(i int) bool { return s[i/64]&(1<<(i%64)) != 0 }
func (s patternSet) empty() bool    { return s == patternSet{} }

// filter finds the words of all patterns in one pass. Upper and lower case
// are the same to it, as are a few other pairs of characters: it may let too
// much through, never too little.
type filter struct {
	always  patternSet // patterns without a word
	anchors map[uint32][]anchor
	table   [filterSize / 64]uint64 // a bit for the hash of each anchor's first bytes
}

type anchor struct {
	word    []byte
	pattern int
}

const (
	anchorBytesMin = 3 // of a word, and of what is hashed
	filterSize     = 1 << 12
)

func fold(c byte) uint32 { return uint32(c | 0x20) }

func hashAnchor(window uint32) uint32 { return window * 0x9E3779B1 >> 20 }

func (f *filter) add(expr string, number int) {
	words := requiredWords(expr)
	if len(words) == 0 {
		f.always.add(number)
		return
	}
	if f.anchors == nil {
		f.anchors = map[uint32][]anchor{}
	}
	for _, word := range words {
		window := fold(word[0])<<16 | fold(word[1])<<8 | fold(word[2])
		f.anchors[window] = append(f.anchors[window], anchor{[]byte(word), number})
		f.table[hashAnchor(window)/64] |= 1 << (hashAnchor(window) % 64)
	}
}

// in tells which patterns may match in text.
func (f *filter) in(text []byte) patternSet {
	found := f.always
	var window uint32
	for i, c := range text {
		window = window<<8&0xFFFFFF | fold(c)
		h := hashAnchor(window)
		if f.table[h/64]&(1<<(h%64)) == 0 || i < anchorBytesMin-1 {
			continue
		}
		for _, a := range f.anchors[window] {
			if startsFolded(text[i+1-anchorBytesMin:], a.word) {
				found.add(a.pattern)
			}
		}
	}
	return found
}

// anywhere tells whether any pattern may match in a body of JSON.
func (f *filter) anywhere(body []byte) bool {
	return !f.in(body).empty() || unusualEscape(body)
}

func startsFolded(text, word []byte) bool {
	if len(text) < len(word) {
		return false
	}
	for i, c := range word {
		if fold(text[i]) != fold(c) {
			return false
		}
	}
	return true
}

// unusualEscape tells whether characters are escaped that need not be: a word
// may hide behind \u0070 or :\/\/.
func unusualEscape(raw []byte) bool {
	for {
		i := bytes.IndexByte(raw, '\\')
		if i < 0 || i+1 >= len(raw) {
			return false
		}
		if raw[i+1] == 'u' || raw[i+1] == '/' {
			return true
		}
		raw = raw[i+2:]
	}
}

// wordsMax bounds how many words one pattern is taken apart into.
const wordsMax = 64

// requiredWords are such that every match of expr contains one of them, in
// upper or lower case; none if no such words of anchorBytesMin are found.
func requiredWords(expr string) []string {
	tree, err := syntax.Parse(expr, syntax.Perl)
	if err != nil {
		return nil
	}
	if words := wordsOf(tree).best; shortest(words) >= anchorBytesMin {
		return words
	}
	return nil
}

// words is what is known of the matches of an expression: either all of them,
// or words of which each contains one.
type words struct {
	exact []string // nil if there are too many
	best  []string
}

func wordsOf(tree *syntax.Regexp) words {
	switch tree.Op {
	case syntax.OpEmptyMatch, syntax.OpBeginLine, syntax.OpEndLine, syntax.OpBeginText, syntax.OpEndText,
		syntax.OpWordBoundary, syntax.OpNoWordBoundary:
		return words{exact: []string{""}}
	case syntax.OpLiteral:
		return exactly(string(tree.Rune))
	case syntax.OpCharClass:
		return classWords(tree.Rune)
	case syntax.OpCapture:
		return wordsOf(tree.Sub[0])
	case syntax.OpQuest:
		if inner := wordsOf(tree.Sub[0]); inner.exact != nil {
			return exactly(append(slices.Clone(inner.exact), "")...)
		}
	case syntax.OpPlus:
		return words{best: wordsOf(tree.Sub[0]).best}
	case syntax.OpRepeat:
		if tree.Min > 0 {
			return words{best: wordsOf(tree.Sub[0]).best}
		}
	case syntax.OpAlternate:
		return alternateWords(tree.Sub)
	case syntax.OpConcat:
		return concatWords(tree.Sub)
	}
	return words{}
}

// exactly keeps the words as they are; what JSON escapes cannot be searched for.
func exactly(all ...string) words {
	for _, word := range all {
		for _, c := range []byte(word) {
			if c < 0x20 || c >= 0x7f || c == '"' || c == '\\' {
				return words{}
			}
		}
	}
	return words{exact: all, best: all}
}

func classWords(ranges []rune) words {
	var all []string
	for i := 0; i < len(ranges); i += 2 {
		for r := ranges[i]; r <= ranges[i+1]; r++ {
			if all = append(all, string(r)); len(all) > 10 {
				return words{}
			}
		}
	}
	return exactly(all...)
}

func alternateWords(subs []*syntax.Regexp) words {
	var all words
	exact := true
	for _, sub := range subs {
		one := wordsOf(sub)
		if one.best == nil {
			return words{}
		}
		exact = exact && one.exact != nil
		all.exact = append(all.exact, one.exact...)
		all.best = append(all.best, one.best...)
	}
	if !exact {
		all.exact = nil
	}
	if len(all.best) > wordsMax {
		return words{}
	}
	return all
}

// concatWords joins what is exact as far as it goes, and keeps the best run.
func concatWords(subs []*syntax.Regexp) words {
	run, best, whole := []string{""}, []string(nil), true
	for _, sub := range subs {
		one := wordsOf(sub)
		if one.exact != nil && len(run)*len(one.exact) <= wordsMax {
			run = cross(run, one.exact)
			continue
		}
		whole = false
		best = better(best, better(run, one.best))
		run = []string{""}
		if one.exact != nil {
			run = one.exact
		}
	}
	best = better(best, run)
	if whole {
		return words{exact: run, best: best}
	}
	return words{best: best}
}

func cross(left, right []string) []string {
	all := make([]string, 0, len(left)*len(right))
	for _, l := range left {
		for _, r := range right {
			all = append(all, l+r)
		}
	}
	return all
}

// better prefers longer words: they are found by accident less often.
func better(a, b []string) []string {
	if shortest(b) > shortest(a) {
		return b
	}
	return a
}

func shortest(all []string) int {
	if len(all) == 0 {
		return 0
	}
	least := len(all[0])
	for _, word := range all {
		least = min(least, len(word))
	}
	return least
}
