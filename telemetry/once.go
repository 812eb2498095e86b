package telemetry

import "sync"

// onceWindow is how many sequences back a repetition is known for one: far more
// than supervisors have in hand at a time.
const onceWindow = 1 << 20

// once tells the first delivery of a ledger entry from the others, by a bit for
// each of the last sequences.
type once struct {
	mu   sync.Mutex
	bits []uint64 // made at the first use: 128 KiB
	high uint64
}

// first is true once for each sequence, and always for one that is too old to be known.
func (o *once) first(seq uint64) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.bits == nil {
		o.bits, o.high = make([]uint64, onceWindow/64), seq
	}
	switch {
	case seq > o.high && seq-o.high >= onceWindow:
		clear(o.bits)
		o.high = seq
	case seq > o.high:
		for next := o.high + 1; next <= seq; next++ { // it stands where one left the window
			o.bits[next%onceWindow/64] &^= 1 << (next % 64)
		}
		o.high = seq
	case o.high-seq >= onceWindow:
		return true
	}
	word, bit := &o.bits[seq%onceWindow/64], uint64(1)<<(seq%64)
	if *word&bit != 0 {
		return false
	}
	*word |= bit
	return true
}
