//go:build !race

package lifecycle

const tracesDefault = 10_000
