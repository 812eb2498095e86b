package redact

import (
	"cmp"
	"slices"
	"unicode/utf8"
)

// patternMatches appends the matches of the operator's patterns in a text to found, window by
// window.
func (s *search) patternMatches(text []byte, found []span) []span {
	for _, p := range s.patterns {
		for from := 0; from < len(text); {
			end := min(from+patternWindowBytes, len(text))
			for end < len(text) && !utf8.RuneStart(text[end]) {
				end++
			}
			part := text[from:end]
			if !s.countRead(len(part)) {
				return nil
			}
			for _, match := range p.expr.FindAllSubmatchIndex(part, -1) {
				start, stop := from+match[2*p.group], from+match[2*p.group+1]
				if match[2*p.group] >= 0 && start < stop && !isPlaceholder(text[start:stop]) {
					found = append(found, span{start, stop})
				}
			}
			if end == len(text) {
				break
			}
			for from = end - patternOverlapBytes; from < end && !utf8.RuneStart(text[from]); from++ {
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
