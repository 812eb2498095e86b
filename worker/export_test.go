package worker

import (
	"errors"

	"github.com/agenthandoff/handoff/protocol"
)

// IsStop tells whether Run would end with this error.
func IsStop(err error) bool {
	var stop *stopError
	return errors.As(err, &stop)
}

// RefusalOf returns the acknowledgement in an error of Refuse.
func RefusalOf(err error) (protocol.Ack, bool) {
	var refused *refuseError
	if !errors.As(err, &refused) {
		return protocol.Ack{}, false
	}
	return refused.ack, true
}

const (
	AbandonTimeoutDefault = abandonTimeoutDefault
	LeaseDefault          = leaseDefault
)
