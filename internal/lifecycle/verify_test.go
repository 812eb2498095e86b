package lifecycle_test

import (
	"github.com/agenthandoff/handoff/internal/lifecycle"
	"github.com/agenthandoff/handoff/tests/verify"
)

func init() {
	lifecycle.CheckFollows, lifecycle.CheckOffer, lifecycle.CheckAfterEnd = verify.Follows, verify.Offer, verify.AfterEnd
	lifecycle.CheckEnd, lifecycle.CheckGate, lifecycle.CheckWorkspace = verify.End, verify.Gate, verify.Workspace
}
