package natsgateway_test

import (
	"testing"

	"github.com/agenthandoff/handoff/internal/testworld"
)

func TestMain(m *testing.M) { testworld.Main(m) }
