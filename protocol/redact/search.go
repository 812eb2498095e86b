package redact

import (
	"io"
	"regexp"
	"sync"
	"unicode/utf8"
)

// Regular expressions are slow, and nearly every text holds no secret. So every kind of
// secret has words that stand in each secret of it. One loop looks for all words at once,
// and only where one stands is an expression tried, from there on.

const (
	wordBytesMin = 3 // of a word, and of what is hashed
	tableBits    = 12
	// guardBytesMax is how much of a text the guard of a kind sees.
	guardBytesMax = 1 << 10
)

// wordTable finds words by their first bytes, in any case.
type wordTable struct {
	places  [1 << tableBits]uint8 // by hash: which bucket, counted from 1
	buckets [][]word
}

// word is a text that stands in every secret of a kind. Without a kind it is part of the
// name of a secret.
type word struct {
	text string
	kind *secretKind
	rest *regexp.Regexp // matched from the end of the word on
	// group of rest is the secret; 0 is all from the beginning of the word on.
	group int
}

// knownKinds is the table of all kinds, made once.
var knownKinds = sync.OnceValues(func() (*wordTable, error) {
	t := new(wordTable)
	for i := range secretKinds {
		k := &secretKinds[i]
		rest, err := regexp.Compile(`\A(?:` + k.rest + `)`)
		if err != nil {
			return nil, err
		}
		for _, text := range k.words {
			t.add(word{text, k, rest, max(rest.SubexpIndex("secret"), 0)})
		}
	}
	for _, text := range nameWords {
		t.add(word{text: text})
	}
	return t, nil
})

func (t *wordTable) add(w word) {
	place := &t.places[hashBytes(w.text[0], w.text[1], w.text[2])]
	if *place == 0 {
		t.buckets = append(t.buckets, nil)
		*place = uint8(len(t.buckets))
	}
	bucket := &t.buckets[*place-1]
	*bucket = append(*bucket, w)
}

func fold(c byte) byte { return c | 0x20 }

func hashBytes(a, b, c byte) uint32 {
	return hashWindow(uint32(fold(a))<<16 | uint32(fold(b))<<8 | uint32(fold(c)))
}

func hashWindow(window uint32) uint32 { return window * 0x9E3779B1 >> (32 - tableBits) }

// next is the next place, from at on and before end, where a word may begin; end if there
// is none. Nearly all of what a text costs is this loop.
func (t *wordTable) next(text []byte, at, end int) int {
	if end = min(end, len(text)-wordBytesMin+1); at >= end {
		return max(at, end)
	}
	window := uint32(fold(text[at]))<<8 | uint32(fold(text[at+1]))
	for i, c := range text[at+2 : end+2] {
		window = (window<<8 | uint32(fold(c))) & 0xFFFFFF
		if t.places[hashWindow(window)] != 0 {
			return at + i
		}
	}
	return end
}

// at are the words that may begin with these bytes.
func (t *wordTable) at(text []byte) []word {
	if place := t.places[hashBytes(text[0], text[1], text[2])]; place != 0 {
		return t.buckets[place-1]
	}
	return nil
}

// any tells whether any word may stand in text.
func (t *wordTable) any(text []byte) bool {
	for at := t.next(text, 0, len(text)); at < len(text)-wordBytesMin+1; at = t.next(text, at+1, len(text)) {
		for i := range t.at(text[at:]) {
			if hasFolded(text[at:], t.at(text[at:])[i].text) {
				return true
			}
		}
	}
	return false
}

func hasFolded(text []byte, word string) bool {
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

// span is a range of bytes.
type span struct{ start, end int }

// search looks for secrets in the texts of one body, within the steps that the body has.
type search struct {
	*Redactor
	ended     Ended
	err       error // of ended
	left      int   // steps
	unchecked int   // bytes read since ended was asked
	rest      []byte
	dear      bool // the steps ran out, or there were none left, in this text
}

func newSearch(ended Ended, r *Redactor, body int) *search {
	return &search{Redactor: r, ended: ended, left: stepsLeast + body}
}

// read counts bytes that are read, and tells whether the search goes on.
func (s *search) read(n int) bool {
	if s.unchecked += n; s.unchecked >= checkedBytes {
		s.unchecked = 0
		if s.err == nil {
			s.err = s.ended.Err()
		}
	}
	return s.err == nil
}

// step counts bytes that are matched, and tells whether there are any left.
func (s *search) step(n int) bool {
	s.left -= n
	return s.read(n) && s.left >= 0
}

// ReadRune gives an expression the next character, and counts it. So what an expression costs
// is what it reads, and it reads no further than it must.
func (s *search) ReadRune() (r rune, size int, err error) {
	if len(s.rest) == 0 {
		return 0, 0, io.EOF
	}
	if r, size = rune(s.rest[0]), 1; r >= utf8.RuneSelf {
		r, size = utf8.DecodeRune(s.rest)
	}
	if !s.step(matchedSteps * size) {
		return 0, 0, io.EOF
	}
	s.rest = s.rest[size:]
	return r, size, nil
}

// secrets finds the secrets in a text, in order and apart from each other. Where the steps
// do not suffice it is the whole text. None if the search was ended.
func (s *search) secrets(text []byte) []span {
	found := s.between(text, 0, len(text), 0)
	if s.err == nil && s.left >= 0 {
		found = s.addedIn(text, found)
	}
	switch {
	case s.err != nil:
		return nil
	case s.left < 0 && s.dear:
		s.dear = false
		return []span{{0, len(text)}}
	}
	return merge(found)
}

// inText is secrets with the error that ended the search.
func (s *search) inText(text []byte) ([]span, error) {
	found := s.secrets(text)
	return found, s.err
}

// between finds the secrets whose words begin in a part of the text. ended is where the last
// secret before it ended.
func (s *search) between(text []byte, at, end, ended int) (found []span) {
	for end = min(end, len(text)-wordBytesMin+1); at < end; {
		from := at
		at = s.kinds.next(text, at, min(end, at+checkedBytes))
		if !s.read(at - from) {
			return nil
		}
		if at-from == checkedBytes || at >= end {
			continue
		}
		secret, ok := s.secretAt(text, at, ended)
		if s.err != nil || s.left < 0 {
			s.dear = true
			return nil
		}
		if !ok {
			at++
			continue
		}
		// What leads to a secret may hold another one: https://TOKEN:password@host.
		found = append(append(found, s.between(text, at+1, secret.start, ended)...), secret)
		if s.err != nil || s.left < 0 {
			return nil
		}
		ended = secret.end
		at = max(at+1, ended)
	}
	return found
}

// secretAt tries the words that begin at a place of the text.
func (s *search) secretAt(text []byte, at, ended int) (span, bool) {
	words := s.kinds.at(text[at:])
	for i := range words {
		w := &words[i]
		if !hasFolded(text[at:], w.text) {
			continue
		}
		secret, ok := span{}, false
		if w.kind == nil {
			secret, ok = s.assignedAt(text, at, at+len(w.text), ended)
		} else {
			secret, ok = s.knownAt(text, w, at, ended)
		}
		if s.err != nil || s.left < 0 {
			return span{}, false
		}
		if ok && secret.start >= ended && secret.start < secret.end && !isPlaceholder(text[secret.start:secret.end]) {
			return secret, true
		}
	}
	return span{}, false
}

// knownAt tries the kind of a word.
func (s *search) knownAt(text []byte, w *word, at, ended int) (span, bool) {
	end, start := at+len(w.text), at-w.kind.back
	if !w.kind.anyCase && string(text[at:end]) != w.text || start < ended {
		return span{}, false
	}
	for _, c := range text[start:at] {
		if !isWordByte(c) && c != '~' && c != '.' {
			return span{}, false
		}
	}
	for start < at && start > max(ended, at-nameBytesMax) && isWordByte(text[start-1]) {
		start--
	}
	if w.kind.back == 0 && isWordByte(text[at]) && at > ended && isWordByte(text[at-1]) {
		return span{}, false
	}
	if w.kind.guard != nil && !w.kind.guard(text[end:min(len(text), end+guardBytesMax)]) {
		return span{}, false
	}
	s.rest = text[end:]
	match := w.rest.FindReaderSubmatchIndex(s)
	switch {
	case match == nil || s.err != nil || s.left < 0:
		return span{}, false
	case w.group == 0:
		return span{start, end + match[1]}, true
	}
	return span{end + match[2*w.group], end + match[2*w.group+1]}, true
}

// isWordByte tells whether a byte is part of a word as expressions see it (\w).
func isWordByte(c byte) bool {
	return c == '_' || '0' <= c && c <= '9' || 'a' <= fold(c) && fold(c) <= 'z'
}
