//go:build !proof

package clients_test

import "time"

// Of TestKilledGateway; more with -tags proof.
const (
	handoffs  = 12
	gap       = 12
	sourceMax = 4 * time.Minute
)
