//go:build !race

package record_test

// raced: under the race detector pools forget at random, and nothing can be said
// of allocations.
const raced = false
