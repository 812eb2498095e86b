//go:build !race

package record_test

// raceEnabled is true under the race detector, where pools drop values at random and allocations
// cannot be counted.
const raceEnabled = false
