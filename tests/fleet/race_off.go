//go:build !race

package fleet

// Race tells whether the race detector is on.
const Race = false
