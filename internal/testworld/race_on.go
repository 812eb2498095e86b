//go:build race

package testworld

// Race reports whether the race detector is on.
const Race = true
