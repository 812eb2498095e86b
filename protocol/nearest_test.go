package protocol_test

import (
	"slices"
	"testing"

	"github.com/agenthandoff/handoff/protocol"
)

// TestNearest: the names that may be meant, the nearest first.
func TestNearest(t *testing.T) {
	for name, c := range map[string]struct{ known, want []string }{
		"needs":  {[]string{"creds", "needs-context", "needs-permission", "lease"}, []string{"needs-context", "needs-permission", "creds"}},
		"tesetr": {[]string{"tester", "tested", "coder"}, []string{"tester", "tested"}},
		"te":     {[]string{"tester", "ta"}, []string{"ta"}},
		"nobody": {[]string{"tester"}, nil},
	} {
		if got := protocol.Nearest(name, c.known); !slices.Equal(got, c.want) {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}
