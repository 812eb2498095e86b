package jetstream

import (
	"testing"

	"github.com/agenthandoff/handoff/broker"
)

// TestBodiesOutliveTheLedger: a body that is referred to at up to half its age is not stored again.
func TestBodiesOutliveTheLedger(t *testing.T) {
	if blobAge-blobAge/2 < broker.LedgerAge {
		t.Errorf("a body may be dropped after %v, its handoff is kept for %v", blobAge-blobAge/2, broker.LedgerAge)
	}
}
