package ask

import (
	"regexp"
	"strings"

	"github.com/agenthandoff/handoff/protocol"
)

const (
	// PrefixMin is how many characters of a ticket a prefix has at least.
	PrefixMin = 6
	// TicketsMax is how many tickets of a prefix an index returns.
	TicketsMax = 10
)

// TicketsQuery asks for the tickets that begin with a prefix.
type TicketsQuery struct {
	Question
	Prefix string `json:"prefix"`
}

// TicketsAnswer has the tickets in their order; More reports that there are others.
type TicketsAnswer struct {
	Position
	Tickets []string `json:"tickets"`
	More    bool     `json:"more,omitempty"`
}

// prefixForm is the beginning of a ticket, with its hyphens.
var prefixForm = regexp.MustCompile(`^[0-9a-f]{6,8}(-|$)([0-9a-f]{0,4}$|[0-9a-f]{4}-([0-9a-f]{0,4}$|[0-9a-f]{4}-([0-9a-f]{0,4}$|[0-9a-f]{4}-[0-9a-f]{0,12}$)))`)

// ParsePrefix reads the beginning of a ticket, and returns its digits alone.
func ParsePrefix(text string) (digits string, err error) {
	text = strings.ToLower(text)
	if at := strings.IndexByte(text, '-'); !prefixForm.MatchString(text) || at >= 0 && at != 8 {
		return "", protocol.Errorf(protocol.CodeInvalid, "ticket", "%q is not a ticket; give the UUID that submit printed, or at least its first %d characters",
			protocol.CutText(text, shownBytesMax), PrefixMin)
	}
	return strings.ReplaceAll(text, "-", ""), nil
}
