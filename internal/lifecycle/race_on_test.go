//go:build race

package lifecycle

// The race detector makes a trace several times as long.
const tracesDefault = 4_000
