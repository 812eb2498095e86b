package lifecycle

import (
	"time"

	p "github.com/agenthandoff/handoff/protocol"
)

var InExperiment = inVariant

// The checks of package verify, which imports this one: verify_test.go sets them.
var (
	CheckFollows   func(before, after p.State, now time.Time) error
	CheckOffer     func(before, after p.State) error
	CheckAfterEnd  func(before, after p.State) error
	CheckEnd       func(before, after p.State) error
	CheckGate      func(p.State) error
	CheckWorkspace func(before, after p.Workspace) error
)
