package explain

import (
	"strings"

	"github.com/agenthandoff/handoff/protocol"
)

// Complexity is the class that the source of a handoff did not name, and what gave it: medium, by
// rule 1 of the fleet.
func Complexity(s protocol.State) string {
	class, by, found := strings.Cut(s.Classified, "/")
	switch rule, isRule := strings.CutPrefix(by, "rule "); {
	case !found:
		return ""
	case isRule:
		return class + ", by rule " + rule + " of the fleet"
	}
	return class + ", by a " + by
}
