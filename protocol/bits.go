package protocol

import (
	"encoding/base64"
	"math/bits"
)

// Bits is a set of small numbers, such as the ordinals of children: a bitmap in
// base64 (RFC 4648 §4, without padding), number 0 in the lowest bit of the first
// byte. The empty text is the empty set. A text that is no base64 is taken for
// the empty set.
type Bits string

func (b Bits) bytes() []byte {
	raw, err := base64.RawStdEncoding.DecodeString(string(b))
	if err != nil {
		return nil
	}
	return raw
}

// Has tells whether n is in the set.
func (b Bits) Has(n int) bool {
	raw := b.bytes()
	return n >= 0 && n/8 < len(raw) && raw[n/8]&(1<<(n%8)) != 0
}

// With returns the set and these numbers; those not from 0 to ChildrenMax-1 are
// left out.
func (b Bits) With(numbers ...int) Bits {
	raw := b.bytes()
	for _, n := range numbers {
		if n < 0 || n >= ChildrenMax {
			continue
		}
		for len(raw) <= n/8 {
			raw = append(raw, 0)
		}
		raw[n/8] |= 1 << (n % 8)
	}
	return Bits(base64.RawStdEncoding.EncodeToString(raw))
}

// AllBits is the set of 0 to n-1.
func AllBits(n int) Bits {
	numbers := make([]int, n)
	for i := range numbers {
		numbers[i] = i
	}
	return Bits("").With(numbers...)
}

// Below tells whether all numbers of the set are below n.
func (b Bits) Below(n int) bool {
	if b == "" { // as a rule
		return true
	}
	raw := b.bytes()
	for i := len(raw) - 1; i >= 0; i-- {
		if raw[i] != 0 {
			return i*8+bits.Len8(raw[i]) <= n
		}
	}
	return true
}

// Len counts the numbers in the set.
func (b Bits) Len() int {
	n := 0
	for _, x := range b.bytes() {
		n += bits.OnesCount8(x)
	}
	return n
}

// And returns what is in both sets.
func (b Bits) And(o Bits) Bits { return b.both(o, func(x, y byte) byte { return x & y }) }

// Or is the union of both.
func (b Bits) Or(o Bits) Bits { return b.With(o.Numbers()...) }

// Without returns what is in b and not in o.
func (b Bits) Without(o Bits) Bits { return b.both(o, func(x, y byte) byte { return x &^ y }) }

func (b Bits) both(o Bits, of func(x, y byte) byte) Bits {
	raw, other := b.bytes(), o.bytes()
	last := 0
	for i := range raw {
		y := byte(0)
		if i < len(other) {
			y = other[i]
		}
		if raw[i] = of(raw[i], y); raw[i] != 0 {
			last = i + 1
		}
	}
	return Bits(base64.RawStdEncoding.EncodeToString(raw[:last]))
}

// Numbers lists the set, the smallest first.
func (b Bits) Numbers() []int {
	var all []int
	for i, x := range b.bytes() {
		for j := range 8 {
			if x&(1<<j) != 0 {
				all = append(all, i*8+j)
			}
		}
	}
	return all
}
