package broker

import (
	"time"

	"github.com/agenthandoff/handoff/protocol"
)

// RefOf is the reference under which a body is stored: its digest and size.
func RefOf(body []byte) protocol.BlobRef {
	return protocol.BlobRef{Digest: protocol.Digest(body), Size: int64(len(body))}
}

// PresenceTTL is how long a holder's entry outlives a beat: its lease, in the
// whole seconds that the engine counts in, rounded up.
func PresenceTTL(h protocol.Holder) time.Duration {
	lease := time.Duration(h.LeaseMS) * time.Millisecond
	return max(time.Second, (lease + time.Second - 1).Truncate(time.Second))
}
