package protocol_test

import (
	"slices"
	"testing"

	"github.com/agenthandoff/handoff/protocol"
)

func TestBits(t *testing.T) {
	bits := func(numbers ...int) protocol.Bits { return protocol.Bits("").With(numbers...) }
	for name, c := range map[string]struct {
		got  protocol.Bits
		want []int
	}{
		"nothing":         {bits(), nil},
		"each once":       {bits(3, 3, 0, 9), []int{0, 3, 9}},
		"added":           {bits(1).With(20, 0), []int{0, 1, 20}},
		"out of range":    {bits(-1, 5, protocol.ChildrenMax), []int{5}},
		"the last":        {bits(protocol.ChildrenMax - 1), []int{protocol.ChildrenMax - 1}},
		"both":            {bits(1, 2, 30).And(bits(2, 30, 31)), []int{2, 30}},
		"shorter other":   {bits(1, 2, 30).And(bits(2)), []int{2}},
		"without":         {bits(1, 2, 30).Without(bits(2, 30, 99)), []int{1}},
		"without nothing": {bits(1, 30).Without(""), []int{1, 30}},
		"all":             {protocol.AllBits(10), []int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}},
		"no base64":       {protocol.Bits("?"), nil},
		"added to none":   {protocol.Bits("?").With(1), []int{1}},
	} {
		if numbers := c.got.Numbers(); !slices.Equal(numbers, c.want) || c.got.Len() != len(c.want) {
			t.Errorf("%s: %v (%d), want %v", name, numbers, c.got.Len(), c.want)
		}
		for n := -1; n < 40; n++ {
			if c.got.Has(n) != slices.Contains(c.want, n) {
				t.Errorf("%s: has %d: %t", name, n, c.got.Has(n))
			}
		}
	}
	// The same set is the same text, so that an empty one is told by comparing.
	if got := bits(1, 500).Without(bits(500)); got != bits(1) {
		t.Errorf("%q, want %q", got, bits(1))
	}
	if got := bits(7, 500).Without(bits(500, 7)); got != "" {
		t.Errorf("an empty set is %q", got)
	}
	if all := protocol.AllBits(protocol.ChildrenMax); len(all) > 170 || all.Len() != protocol.ChildrenMax {
		t.Errorf("%d bytes for %d members", len(all), all.Len())
	}
}
