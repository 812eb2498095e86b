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
	table   [1 << filterBits]bool // by the hash of each anchor's first bytes
}

type anchor struct {
	word    []byte
	pattern int
}

const (
	anchorBytesMin = 3 // of a word, and of what is hashed
	filterBits     = 12
)

func fold(c byte) uint32 { return uint32(c | 0x20) }

func hashAnchor(window uint32) uint32 { return window * 0x9E3779B1 >> (32 - filterBits) }

func (f *filter) add(words []string, number int) {
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
		f.table[hashAnchor(window)] = true
	}
}

// each calls found with the place of every word in text and the pattern it
// belongs to, until it returns false.
func (f *filter) each(text []byte, found func(at, pattern int) bool) {
	var window uint32
	for i, c := range text {
		window = window<<8&0xFFFFFF | fold(c)
		if !f.table[hashAnchor(window)] || i < anchorBytesMin-1 {
			continue
		}
		at := i + 1 - anchorBytesMin
		for _, a := range f.anchors[window] {
			if startsFolded(text[at:], a.word) && !found(at, a.pattern) {
				return
			}
		}
	}
}

// in tells which patterns may match in text.
func (f *filter) in(text []byte) patternSet {
	which := f.always
	f.each(text, func(_, pattern int) bool {
		which.add(pattern)
		return true
	})
	return which
}

// anywhere tells whether any pattern may match in a body of JSON.
func (f *filter) anywhere(body []byte) bool {
	there := !f.always.empty()
	if !there {
		f.each(body, func(_, _ int) bool {
			there = true
			return false
		})
	}
	return there || unusualEscape(body)
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
// leading says that every match begins with one of them.
func requiredWords(expr string) (all []string, leading bool) {
	tree, err := syntax.Parse(expr, syntax.Perl)
	if err != nil {
		return nil, false
	}
	known := wordsOf(tree)
	if shortest(known.best) < anchorBytesMin {
		return nil, false
	}
	return known.best, known.leading
}

// words is what is known of the matches of an expression: either all of them,
// or words of which each contains one, or begins with one.
type words struct {
	exact   []string // nil if there are too many
	best    []string
	leading bool
}

func wordsOf(tree *syntax.Regexp) words {
	switch tree.Op {
	case syntax.OpEmptyMatch, syntax.OpWordBoundary, syntax.OpNoWordBoundary:
		return exactly("")
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
		inner := wordsOf(tree.Sub[0])
		return words{best: inner.best, leading: inner.leading}
	case syntax.OpRepeat:
		if tree.Min > 0 {
			inner := wordsOf(tree.Sub[0])
			return words{best: inner.best, leading: inner.leading}
		}
	case syntax.OpAlternate:
		return alternateWords(tree.Sub)
	case syntax.OpConcat:
		return concatWords(tree.Sub)
	}
	return words{} // anchors of lines and texts too: what they need lies outside the match
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
	return words{exact: all, best: all, leading: true}
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
	all := words{leading: true}
	exact := true
	for _, sub := range subs {
		one := wordsOf(sub)
		if one.best == nil {
			return words{}
		}
		exact = exact && one.exact != nil
		all.exact = append(all.exact, one.exact...)
		all.best = append(all.best, one.best...)
		all.leading = all.leading && one.leading
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
	var best words
	run, whole := []string{""}, true
	for _, sub := range subs {
		one := wordsOf(sub)
		joins := len(run)*len(one.best) <= wordsMax
		if joins && one.exact != nil {
			run = cross(run, one.exact)
			continue
		}
		// The run ends here, with the words that sub begins with if there are such.
		if joins && one.leading {
			best = better(best, words{best: cross(run, one.best), leading: whole})
		} else {
			best = better(best, words{best: run, leading: whole})
			best = better(best, words{best: one.best})
		}
		run, whole = []string{""}, false
	}
	if whole {
		return words{exact: run, best: run, leading: true}
	}
	return better(best, words{best: run})
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

// better prefers words that matches begin with, and then the longer ones: they
// are found by accident less often.
func better(a, b words) words {
	least, other := shortest(a.best), shortest(b.best)
	switch {
	case a.leading && least >= anchorBytesMin:
		return a
	case b.leading && other >= anchorBytesMin, other > least:
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
