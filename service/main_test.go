package service_test

import (
	"testing"

	"github.com/agenthandoff/handoff/tests/fleet"
)

func TestMain(m *testing.M) { fleet.Main(m) }
