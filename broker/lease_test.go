package broker_test

import (
	"encoding/base64"
	"errors"
	"strings"
	"testing"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/broker/brokertest"
	"github.com/agenthandoff/handoff/protocol"
)

// renamed is the lease with another agent's name in it, and all else as it was.
func renamed(t *testing.T, lease, agent, other string) string {
	t.Helper()
	raw, err := base64.RawURLEncoding.DecodeString(strings.TrimPrefix(lease, "lease_"))
	if err != nil {
		t.Fatal(err)
	}
	return "lease_" + base64.RawURLEncoding.EncodeToString([]byte(strings.Replace(string(raw), agent, other, 1)))
}

// A lease that names another agent was never given out: whoever resumed it would
// beat, and accept, in that agent's name.
func TestResumeWithAnotherAgentsName(t *testing.T) {
	ctx := t.Context()
	b, claim, _ := claimed(t, brokertest.NewMemory())
	lease := claim.Lease()
	forged := renamed(t, lease, "coder", "ghost")
	var refused *protocol.Error
	if _, err := b.Resume(ctx, forged); !errors.As(err, &refused) || refused.Code != protocol.CodeLeaseInvalid {
		t.Errorf("forged: %v, want %s", err, protocol.CodeLeaseInvalid)
	}
	again, err := b.Resume(ctx, lease)
	if err != nil {
		t.Fatal(err)
	}
	if err := again.Complete(ctx, protocol.Result{}); err != nil {
		t.Fatal(err)
	}
	for _, ended := range []string{lease, forged} { // of both nobody can tell any more
		if _, err := b.Resume(ctx, ended); !errors.Is(err, broker.ErrLeaseLost) {
			t.Errorf("after the end: %v, want a lost lease", err)
		}
	}
}
