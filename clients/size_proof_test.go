//go:build proof

package clients_test

import "time"

const (
	handoffs  = 200
	gap       = 6
	sourceMax = 15 * time.Minute
)
