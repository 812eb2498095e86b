package broker

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Range is an inclusive range of ledger sequences.
type Range struct {
	From uint64 `json:"from"`
	To   uint64 `json:"to"`
}

// CountRanges counts the sequences in disjoint ranges.
func CountRanges(all []Range) (n uint64) {
	for _, r := range all {
		n += r.To - r.From + 1
	}
	return n
}

// Within returns the parts of ranges between two sequences.
func Within(all []Range, first, last uint64) (in []Range) {
	for _, r := range all {
		if r = (Range{max(r.From, first), min(r.To, last)}); r.From <= r.To {
			in = append(in, r)
		}
	}
	return in
}

// Without returns the parts of ranges that none of the others has.
func Without(all, others []Range) []Range {
	left := slices.Clone(all)
	for _, o := range others {
		var next []Range
		for _, r := range left {
			if o.To < r.From || o.From > r.To {
				next = append(next, r)
				continue
			}
			if r.From < o.From {
				next = append(next, Range{r.From, o.From - 1})
			}
			if r.To > o.To {
				next = append(next, Range{o.To + 1, r.To})
			}
		}
		left = next
	}
	return left
}

// MergeRanges returns the ranges in order, and joins adjacent ones.
func MergeRanges(all []Range) (merged []Range) {
	all = slices.Clone(all)
	slices.SortFunc(all, func(a, b Range) int { return cmp.Compare(a.From, b.From) })
	for _, r := range all {
		if n := len(merged); n > 0 && r.From <= merged[n-1].To+1 {
			merged[n-1].To = max(merged[n-1].To, r.To)
			continue
		}
		merged = append(merged, r)
	}
	return merged
}

// rangesShownMax bounds the ranges that are listed for a person.
const rangesShownMax = 5

// RangeWords returns a text that lists ranges.
func RangeWords(all []Range) string {
	var words []string
	for i, r := range all {
		switch {
		case i == rangesShownMax:
			return strings.Join(words, ", ") + fmt.Sprintf(" and %d more ranges", len(all)-i)
		case r.From == r.To:
			words = append(words, fmt.Sprint(r.From))
		default:
			words = append(words, fmt.Sprintf("%d to %d", r.From, r.To))
		}
	}
	return strings.Join(words, ", ")
}
