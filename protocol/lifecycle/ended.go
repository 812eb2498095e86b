package lifecycle

import (
	"slices"
	"strconv"
	"strings"

	p "github.com/agenthandoff/handoff/protocol"
)

// EndedOffer names an offer that has come to its end, as it stood in a queue.
type EndedOffer struct {
	Agent string
	Lane  p.Priority
	Offer uint64
}

// OfferStands tells whether the current offer of a handoff may stand in its queue:
// it waits there, or the holder that took it has not acknowledged it to the queue.
func OfferStands(s p.State) bool {
	return !s.Closed && s.Offer != 0 && (s.Phase == p.Pending || s.Held())
}

// EndedBetween returns the offer that stood before an append and does not after it.
func EndedBetween(before, after p.State) (EndedOffer, bool) {
	ended := EndedOffer{before.Agent, before.Priority, before.Offer}
	stands := OfferStands(after) && after.Offer == before.Offer && after.Agent == before.Agent
	return ended, OfferStands(before) && !stands
}

// attentionEnded parts the word of an Attention from the offer that the append ended.
const attentionEnded = Attention("; ended=")

// WithEnded adds an offer that the append ended and that its writer does not hold:
// a supervisor takes it out of the queue.
func (a Attention) WithEnded(e EndedOffer) Attention {
	return a + attentionEnded + Attention(e.Agent+"."+string(e.Lane)+"."+strconv.FormatUint(e.Offer, 10))
}

// Ended parts what an append calls for into the word and the offer that it ended.
func (a Attention) Ended() (word Attention, ended EndedOffer, ok bool) {
	before, after, named := strings.Cut(string(a), string(attentionEnded))
	if !named { // nearly always
		return a, ended, false
	}
	agent, rest, _ := strings.Cut(after, ".")
	lane, number, _ := strings.Cut(rest, ".")
	offer, err := strconv.ParseUint(number, 10, 64)
	if err != nil || p.CheckID("agent", agent) != nil || !slices.Contains(p.Priorities, p.Priority(lane)) {
		return Attention(before), ended, false
	}
	return Attention(before), EndedOffer{agent, p.Priority(lane), offer}, true
}
