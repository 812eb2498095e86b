package broker

import (
	"crypto/sha256"
	"encoding/hex"
	"time"

	"github.com/agenthandoff/handoff/protocol"
)

// digestPrefix begins every digest, so that another hash may come one day.
const digestPrefix = "sha256:"

// RefOf is the reference under which a body is stored: its digest and size.
func RefOf(body []byte) protocol.BlobRef {
	sum := sha256.Sum256(body)
	return protocol.BlobRef{Digest: digestPrefix + hex.EncodeToString(sum[:]), Size: int64(len(body))}
}

// PresenceTTL is how long a holder's entry outlives a beat: its lease, in the
// whole seconds that the engine counts in, rounded up.
func PresenceTTL(h protocol.Holder) time.Duration {
	lease := time.Duration(h.LeaseMS) * time.Millisecond
	return max(time.Second, (lease + time.Second - 1).Truncate(time.Second))
}
