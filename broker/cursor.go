package broker

import (
	"fmt"
	"strconv"
	"strings"
)

// A ledger is one stream, or up to PartitionsMax. A sequence names its partition: those of partition
// p follow p << PartitionBits, and all stay below 2^52. Between two partitions only time orders
// entries.
const (
	PartitionBits = 48
	PartitionsMax = 16
)

// PartitionOf returns the partition of a sequence.
func PartitionOf(seq uint64) int { return int(seq >> PartitionBits) }

// PartitionBase returns the number that the sequences of a partition follow.
func PartitionBase(p int) uint64 { return uint64(p) << PartitionBits }

// Cursor is a place in the ledger: for each partition the next sequence to read. 0, and a partition
// that it lacks, is the first one that the partition has.
type Cursor []uint64

// From returns the cursor before a sequence: of its partition it has that one and the later ones, of
// the others all. From(0) is the beginning.
func From(seq uint64) Cursor {
	if seq == 0 {
		return nil
	}
	c := make(Cursor, PartitionOf(seq)+1)
	c[PartitionOf(seq)] = seq
	return c
}

// Next returns the next sequence to read from a partition.
func (c Cursor) Next(p int) uint64 {
	if p < len(c) {
		return c[p]
	}
	return 0
}

// Passed reports whether the cursor is behind a sequence.
func (c Cursor) Passed(seq uint64) bool { return seq < c.Next(PartitionOf(seq)) }

// Pass moves the cursor behind a sequence.
func (c *Cursor) Pass(seq uint64) {
	p := PartitionOf(seq)
	for len(*c) <= p {
		*c = append(*c, 0)
	}
	(*c)[p] = max((*c)[p], seq+1)
}

// Begin sets the next sequence of its partition.
func (c *Cursor) Begin(seq uint64) {
	c.Pass(seq)
	(*c)[PartitionOf(seq)] = seq
}

// Count returns the number of sequences before the cursor.
func (c Cursor) Count() (n uint64) {
	for p, next := range c {
		if next > 0 {
			n += next - 1 - PartitionBase(p)
		}
	}
	return n
}

// String returns the next sequences, separated by dots. ParseCursor reads it.
func (c Cursor) String() string {
	words := make([]string, 0, max(len(c), 1))
	for _, next := range c {
		words = append(words, strconv.FormatUint(next, 10))
	}
	if len(words) == 0 {
		return "0"
	}
	return strings.Join(words, ".")
}

// ParseCursor reads the String of a cursor.
func ParseCursor(text string) (Cursor, error) {
	words := strings.Split(text, ".")
	if len(words) > PartitionsMax {
		return nil, fmt.Errorf("%q is no place in a ledger", text)
	}
	c := make(Cursor, len(words))
	for p, word := range words {
		next, err := strconv.ParseUint(word, 10, 64)
		if err != nil || next > 0 && PartitionOf(next) != p {
			return nil, fmt.Errorf("%q is no place in a ledger", text)
		}
		c[p] = next
	}
	return c, nil
}

// Partitions returns the partitions of a ledger, the first one first.
func (l LedgerInfo) Partitions() []LedgerInfo {
	first := l
	first.Others = nil
	return append([]LedgerInfo{first}, l.Others...)
}

// Begin returns the cursor before the first entry that the ledger still has.
func (l LedgerInfo) Begin() (c Cursor) {
	for _, p := range l.Partitions() {
		c = append(c, p.First)
	}
	return c
}

// End returns the cursor behind the last entry.
func (l LedgerInfo) End() (c Cursor) {
	for _, p := range l.Partitions() {
		c = append(c, p.Last+1)
	}
	return c
}

// Behind returns how many sequences follow a cursor.
func (l LedgerInfo) Behind(c Cursor) (n uint64) {
	for p, info := range l.Partitions() {
		n += info.Last + 1 - min(max(c.Next(p), PartitionBase(p)+1), info.Last+1)
	}
	return n
}
