// Package words compares texts by their words: it splits a text into words, and ranks documents for
// a query. It is pure, calls no model, and needs no index.
package words

import (
	"strings"
	"unicode"
)

// Word is a word of a text, in the compared and in the original form.
type Word struct{ Stem, Said string }

// Of returns the distinct words of a text, in order. They are split at characters other than
// letters and digits and between a small and a capital letter, lowered, stripped of filler words,
// and stemmed.
func Of(text string) (all []Word) {
	seen := map[string]bool{}
	for _, said := range strings.FieldsFunc(splitCamel(text), func(r rune) bool { return !unicode.IsLetter(r) && !unicode.IsDigit(r) }) {
		said = strings.ToLower(said)
		if w := (Word{stem(said), said}); !fillers[said] && !seen[w.Stem] {
			seen[w.Stem] = true
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

// stem removes the least significant endings of an English word. It may map different words to one
// stem; only a word and its plural must agree.
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

// fillers are words that occur in tasks of any kind.
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
