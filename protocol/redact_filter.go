package protocol

import (
	"bytes"
	"encoding/binary"
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
	always  patternSet              // patterns without a word
	anchors [][]anchor              // by the hash of their first bytes
	table   [1 << filterBits]uint16 // which of them, counted from 1, by this hash
}

// anchor is a word and the patterns it belongs to.
type anchor struct {
	word string
	uses []use
}

type use struct {
	pattern int
	after   []uint32 // where the pattern's program stands behind the word
}

const (
	anchorBytesMin = 3 // of a word, and of what is hashed
	filterBits     = 12
)

func fold(c byte) byte { return c | 0x20 }

// firstBytes are the anchorBytesMin bytes that a text begins with, folded.
func firstBytes[T string | []byte](text T) uint32 {
	return uint32(fold(text[0])) | uint32(fold(text[1]))<<8 | uint32(fold(text[2]))<<16
}

// hashAnchor is the place in the table of the lower three bytes of window. The
// lowest byte of the factor is 0, so that the fourth does not count.
func hashAnchor(window uint32) uint32 { return window * 0x3779B100 >> (32 - filterBits) }

// add takes the words of a pattern, and its program if its matches begin with
// them. A word that begins with another one is found with that.
func (f *filter) add(words []string, number int, program *syntax.Prog) {
	if len(words) == 0 {
		f.always.add(number)
		return
	}
	for _, word := range words {
		shorter := func(w string) bool { return len(w) < len(word) && startsFolded(word, w) }
		if slices.ContainsFunc(words, shorter) {
			continue
		}
		place := &f.table[hashAnchor(firstBytes(word))]
		if *place == 0 {
			f.anchors = append(f.anchors, nil)
			*place = uint16(len(f.anchors))
		}
		anchors := &f.anchors[*place-1]
		same := func(a anchor) bool { return len(a.word) == len(word) && startsFolded(a.word, word) }
		i := slices.IndexFunc(*anchors, same)
		if i < 0 {
			i = len(*anchors)
			*anchors = append(*anchors, anchor{word: word})
		}
		(*anchors)[i].uses = append((*anchors)[i].uses, use{number, behind(program, word)})
	}
}

// each calls found with the place of every word in text and of its end, and
// with each use of the word, until it returns false.
func (f *filter) each(text []byte, found func(at, end int, u *use) bool) {
	for at := f.next(text, 0); at < len(text); at = f.next(text, at+1) {
		anchors := f.anchors[f.table[hashAnchor(firstBytes(text[at:]))]-1]
		for i := range anchors {
			a := &anchors[i]
			if !startsFolded(text[at:], a.word) {
				continue
			}
			for j := range a.uses {
				if !found(at, at+len(a.word), &a.uses[j]) {
					return
				}
			}
		}
	}
}

// next is the next place, from at on, where a word may begin: nearly all of
// what a text costs. Eight bytes at a time have six places.
func (f *filter) next(text []byte, at int) int {
	t := &f.table
	for ; len(text)-at >= 8; at += 6 {
		x := binary.LittleEndian.Uint64(text[at:]) | 0x20*everyByte
		if t[hashAnchor(uint32(x))]|t[hashAnchor(uint32(x>>8))]|t[hashAnchor(uint32(x>>16))]|
			t[hashAnchor(uint32(x>>24))]|t[hashAnchor(uint32(x>>32))]|t[hashAnchor(uint32(x>>40))] == 0 {
			continue
		}
		for t[hashAnchor(uint32(x))] == 0 {
			x >>= 8
			at++
		}
		return at
	}
	for ; len(text)-at >= anchorBytesMin; at++ {
		if t[hashAnchor(firstBytes(text[at:]))] != 0 {
			return at
		}
	}
	return len(text)
}

// in tells which patterns may match in text.
func (f *filter) in(text []byte) patternSet {
	which := f.always
	f.each(text, func(_, _ int, u *use) bool {
		which.add(u.pattern)
		return true
	})
	return which
}

// any tells whether any pattern may match in text.
func (f *filter) any(text []byte) bool {
	there := !f.always.empty()
	if !there {
		f.each(text, func(int, int, *use) bool {
			there = true
			return false
		})
	}
	return there
}

func startsFolded[T string | []byte](text T, word string) bool {
	if len(text) < len(word) {
		return false
	}
	for i := range len(word) {
		if fold(text[i]) != fold(word[i]) {
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
