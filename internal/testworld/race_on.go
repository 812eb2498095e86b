//go:build race

package testworld

// Race tells whether the race detector is on.
const Race = true
