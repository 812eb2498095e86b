package telemetry

import "sync"

// sequenceWindowSize is how many sequences are remembered: far more than supervisors process at a
// time.
const sequenceWindowSize = 1 << 20

// sequenceWindow recognises entries of the ledger that are delivered again, by a bit for each of
// the last sequences.
type sequenceWindow struct {
	mu   sync.Mutex
	bits []uint64 // allocated at the first use: 128 KiB
	high uint64   // the highest sequence so far
}

// firstDelivery is true once for each sequence, and always for one older than the window.
func (w *sequenceWindow) firstDelivery(seq uint64) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.bits == nil {
		w.bits, w.high = make([]uint64, sequenceWindowSize/64), seq
	}
	switch {
	case seq > w.high && seq-w.high >= sequenceWindowSize:
		clear(w.bits)
		w.high = seq
	case seq > w.high:
		for next := w.high + 1; next <= seq; next++ { // its bit belonged to one that left the window
			w.bits[next%sequenceWindowSize/64] &^= 1 << (next % 64)
		}
		w.high = seq
	case w.high-seq >= sequenceWindowSize:
		return true
	}
	word, bit := &w.bits[seq%sequenceWindowSize/64], uint64(1)<<(seq%64)
	if *word&bit != 0 {
		return false
	}
	*word |= bit
	return true
}
