//go:build !race

package lifecycle

const tracesDefault = 20_000
