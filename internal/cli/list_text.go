package cli

import (
	"unicode/utf8"

	"github.com/agenthandoff/handoff/protocol"
)

// checkText refuses what is no text: JSON would put something else in its place,
// and that would be looked for.
func checkText(field, text string) error {
	if !utf8.ValidString(text) {
		return protocol.Errorf(protocol.CodeText, field, "holds bytes that are no UTF-8")
	}
	return nil
}
