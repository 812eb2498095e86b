package redact

import (
	"cmp"
	"io"
	"regexp"
	"slices"
	"sync"
	"unicode/utf8"
)

// Regular expressions are slow, and nearly all texts have no secret. So every kind of secret
// has keywords, of which each secret of the kind contains one. One loop searches for all
// keywords at once, and an expression is only tried behind a keyword.

const (
	keywordBytesMin = 3 // of a keyword; as many are hashed
	tableBits       = 12
	// guardBytesMax is how many bytes behind a keyword the guard of a kind reads.
	guardBytesMax = 1 << 10
)

// keywordTable finds keywords by a hash of their first bytes, in upper or lower case.
type keywordTable struct {
	bucketByHash [1 << tableBits]uint8 // index into buckets, from 1; 0 is none
	buckets      [][]keyword
}

// keyword is a text that every secret of a kind contains. Without a kind it is part of a secret's
// name.
type keyword struct {
	text   string
	kind   *secretKind
	suffix *regexp.Regexp // matched behind the keyword
	// group of suffix is the secret; 0 is everything from the start of the keyword.
	group int
}

// builtinKeywords is the table of all built-in kinds, built once.
var builtinKeywords = sync.OnceValues(func() (*keywordTable, error) {
	t := new(keywordTable)
	for i := range secretKinds {
		k := &secretKinds[i]
		rest, err := regexp.Compile(`\A(?:` + k.suffix + `)`)
		if err != nil {
			return nil, err
		}
		for _, text := range k.keywords {
			t.add(keyword{text, k, rest, max(rest.SubexpIndex("secret"), 0)})
		}
	}
	for _, text := range nameKeywords {
		t.add(keyword{text: text})
	}
	return t, nil
})

func (t *keywordTable) add(w keyword) {
	place := &t.bucketByHash[hashBytes(w.text[0], w.text[1], w.text[2])]
	if *place == 0 {
		t.buckets = append(t.buckets, nil)
		*place = uint8(len(t.buckets))
	}
	bucket := &t.buckets[*place-1]
	*bucket = append(*bucket, w)
}

func foldCase(c byte) byte { return c | 0x20 }

func hashBytes(a, b, c byte) uint32 {
	return hashWindow(uint32(foldCase(a))<<16 | uint32(foldCase(b))<<8 | uint32(foldCase(c)))
}

func hashWindow(window uint32) uint32 { return window * 0x9E3779B1 >> (32 - tableBits) }

// nextCandidate is the next offset in text[at:end] where a keyword may begin; end if there is
// none. Most of the time for a text is spent in this loop.
func (t *keywordTable) nextCandidate(text []byte, at, end int) int {
	if end = min(end, len(text)-keywordBytesMin+1); at >= end {
		return max(at, end)
	}
	window := uint32(foldCase(text[at]))<<8 | uint32(foldCase(text[at+1]))
	for i, c := range text[at+2 : end+2] {
		window = (window<<8 | uint32(foldCase(c))) & 0xFFFFFF
		if t.bucketByHash[hashWindow(window)] != 0 {
			return at + i
		}
	}
	return end
}

// candidates are the keywords that may begin with these bytes.
func (t *keywordTable) candidates(text []byte) []keyword {
	if place := t.bucketByHash[hashBytes(text[0], text[1], text[2])]; place != 0 {
		return t.buckets[place-1]
	}
	return nil
}

// containsAny reports whether a text may contain a keyword.
func (t *keywordTable) containsAny(text []byte) bool {
	for at := t.nextCandidate(text, 0, len(text)); at < len(text)-keywordBytesMin+1; at = t.nextCandidate(text, at+1, len(text)) {
		for i := range t.candidates(text[at:]) {
			if hasPrefixFold(text[at:], t.candidates(text[at:])[i].text) {
				return true
			}
		}
	}
	return false
}

func hasPrefixFold(text []byte, word string) bool {
	if len(text) < len(word) {
		return false
	}
	for i := range len(word) {
		if foldCase(text[i]) != foldCase(word[i]) {
			return false
		}
	}
	return true
}

// span is a range of bytes.
type span struct{ start, end int }

// search finds secrets in the texts of one body, within the body's budget of steps.
type search struct {
	*Redactor
	ctx        Canceler
	err        error // of ctx
	stepsLeft  int   // of the budget
	sinceCheck int   // bytes read since the last check of ctx
	unread     []byte
	exhausted  bool // the budget ran out in this text
}

func newSearch(ctx Canceler, r *Redactor, body int) *search {
	return &search{Redactor: r, ctx: ctx, stepsLeft: stepsMin + body}
}

// countRead counts bytes that are read, and reports whether the search goes on.
func (s *search) countRead(n int) bool {
	if s.sinceCheck += n; s.sinceCheck >= cancelCheckBytes {
		s.sinceCheck = 0
		if s.err == nil {
			s.err = s.ctx.Err()
		}
	}
	return s.err == nil
}

// countSteps takes n steps from the budget, and reports whether it suffices.
func (s *search) countSteps(n int) bool {
	s.stepsLeft -= n
	return s.countRead(n) && s.stepsLeft >= 0
}

// ReadRune implements io.RuneReader for expressions, and counts what they read.
func (s *search) ReadRune() (r rune, size int, err error) {
	if len(s.unread) == 0 {
		return 0, 0, io.EOF
	}
	if r, size = rune(s.unread[0]), 1; r >= utf8.RuneSelf {
		r, size = utf8.DecodeRune(s.unread)
	}
	if !s.countSteps(stepsPerMatchedByte * size) {
		return 0, 0, io.EOF
	}
	s.unread = s.unread[size:]
	return r, size, nil
}

// find returns the secrets in a text in order, without overlaps. If the budget runs out it is the
// whole text; if ctx ended, none.
func (s *search) find(text []byte) []span {
	found := s.findBetween(text, 0, len(text), 0)
	if s.err == nil && s.stepsLeft >= 0 {
		found = s.patternMatches(text, found)
	}
	switch {
	case s.err != nil:
		return nil
	case s.stepsLeft < 0 && s.exhausted:
		s.exhausted = false
		return []span{{0, len(text)}}
	}
	return mergeSpans(found)
}

// findBetween finds the secrets whose keywords begin in text[at:end]. prevEnd is the end of
// the secret before.
func (s *search) findBetween(text []byte, at, end, prevEnd int) (found []span) {
	for end = min(end, len(text)-keywordBytesMin+1); at < end; {
		from := at
		at = s.keywords.nextCandidate(text, at, min(end, at+cancelCheckBytes))
		if !s.countRead(at - from) {
			return nil
		}
		if at-from == cancelCheckBytes || at >= end {
			continue
		}
		secret, ok := s.matchAt(text, at, prevEnd)
		if s.err != nil || s.stepsLeft < 0 {
			s.exhausted = true
			return nil
		}
		if !ok {
			at++
			continue
		}
		// The text between a keyword and its secret may contain another: https://TOKEN:password@host.
		found = append(append(found, s.findBetween(text, at+1, secret.start, prevEnd)...), secret)
		if s.err != nil || s.stepsLeft < 0 {
			return nil
		}
		prevEnd = secret.end
		at = max(at+1, prevEnd)
	}
	return found
}

// matchAt tries the keywords that begin at an offset of the text.
func (s *search) matchAt(text []byte, at, prevEnd int) (span, bool) {
	words := s.keywords.candidates(text[at:])
	for i := range words {
		w := &words[i]
		if !hasPrefixFold(text[at:], w.text) {
			continue
		}
		secret, ok := span{}, false
		if w.kind == nil {
			secret, ok = s.matchAssignment(text, at, at+len(w.text), prevEnd)
		} else {
			secret, ok = s.matchKind(text, w, at, prevEnd)
		}
		if s.err != nil || s.stepsLeft < 0 {
			return span{}, false
		}
		if ok && secret.start >= prevEnd && secret.start < secret.end && !isPlaceholder(text[secret.start:secret.end]) {
			return secret, true
		}
	}
	return span{}, false
}

// matchKind tries the kind of a keyword.
func (s *search) matchKind(text []byte, w *keyword, at, prevEnd int) (span, bool) {
	end, start := at+len(w.text), at-w.kind.prefixMin
	if !w.kind.anyCase && string(text[at:end]) != w.text || start < prevEnd {
		return span{}, false
	}
	for _, c := range text[start:at] {
		if !isWordByte(c) && c != '~' && c != '.' {
			return span{}, false
		}
	}
	for start < at && start > max(prevEnd, at-nameBytesMax) && isWordByte(text[start-1]) {
		start--
	}
	if w.kind.prefixMin == 0 && isWordByte(text[at]) && at > prevEnd && isWordByte(text[at-1]) {
		return span{}, false
	}
	if w.kind.guard != nil && !w.kind.guard(text[end:min(len(text), end+guardBytesMax)]) {
		return span{}, false
	}
	s.unread = text[end:]
	match := w.suffix.FindReaderSubmatchIndex(s)
	switch {
	case match == nil || s.err != nil || s.stepsLeft < 0:
		return span{}, false
	case w.group == 0:
		return span{start, end + match[1]}, true
	}
	return span{end + match[2*w.group], end + match[2*w.group+1]}, true
}

// isWordByte reports whether a byte is part of a word, as \w in expressions.
func isWordByte(c byte) bool {
	return c == '_' || '0' <= c && c <= '9' || 'a' <= foldCase(c) && foldCase(c) <= 'z'
}

// patternMatches appends the matches of the operator's patterns in a text to found. The context is
// checked before each pattern.
func (s *search) patternMatches(text []byte, found []span) []span {
	for _, p := range s.patterns {
		if !s.countRead(max(len(text), cancelCheckBytes)) {
			return nil
		}
		for _, match := range p.expr.FindAllSubmatchIndex(text, -1) {
			start, stop := match[2*p.group], match[2*p.group+1]
			if start >= 0 && start < stop && !isPlaceholder(text[start:stop]) {
				found = append(found, span{start, stop})
			}
		}
	}
	return found
}

// mergeSpans sorts spans and joins those that overlap.
func mergeSpans(found []span) []span {
	slices.SortFunc(found, func(a, b span) int { return cmp.Compare(a.start, b.start) })
	merged := found[:0]
	for _, s := range found {
		if n := len(merged); n > 0 && s.start < merged[n-1].end {
			merged[n-1].end = max(merged[n-1].end, s.end)
			continue
		}
		merged = append(merged, s)
	}
	return merged
}
