package broker

import (
	"crypto/sha256"
	"encoding/hex"
	"time"

	"github.com/agenthandoff/handoff/protocol"
)

// DigestPrefix begins every digest, so that another hash may come one day.
const DigestPrefix = "sha256:"

// RefOf is the reference under which a body is stored: its digest and size.
func RefOf(body []byte) protocol.BlobRef {
	sum := sha256.Sum256(body)
	var text [len(DigestPrefix) + 2*sha256.Size]byte
	hex.Encode(text[copy(text[:], DigestPrefix):], sum[:])
	return protocol.BlobRef{Digest: string(text[:]), Size: int64(len(body))}
}

// PresenceTTL is how long a holder's entry outlives a beat: its lease, in the
// whole seconds that the engine counts in, rounded up.
func PresenceTTL(h protocol.Holder) time.Duration {
	lease := time.Duration(h.LeaseMS) * time.Millisecond
	return max(time.Second, (lease + time.Second - 1).Truncate(time.Second))
}
