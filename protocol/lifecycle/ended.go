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

// An Attention may say more than its word, in parts: "now; ended=coder.normal.7; attempt=…".
const (
	partEnded   = "; ended="
	partAttempt = "; attempt="
)

// Word is what an append calls for, without its parts.
func (a Attention) Word() Attention {
	word, _, _ := strings.Cut(string(a), ";")
	return Attention(word)
}

// part returns one part.
func (a Attention) part(name string) (text string, ok bool) {
	_, text, ok = strings.Cut(string(a), name)
	text, _, _ = strings.Cut(text, ";")
	return text, ok
}

// WithEnded adds an offer that the append ended and that its writer does not hold:
// a supervisor takes it out of the queue.
func (a Attention) WithEnded(e EndedOffer) Attention {
	return a + Attention(partEnded+e.Agent+"."+string(e.Lane)+"."+strconv.FormatUint(e.Offer, 10))
}

// Ended parts what an append calls for into the word and the offer that it ended.
func (a Attention) Ended() (word Attention, ended EndedOffer, ok bool) {
	text, named := a.part(partEnded)
	if !named { // nearly always
		return a.Word(), ended, false
	}
	agent, rest, _ := strings.Cut(text, ".")
	lane, number, _ := strings.Cut(rest, ".")
	offer, err := strconv.ParseUint(number, 10, 64)
	if err != nil || p.CheckID("agent", agent) != nil || !slices.Contains(p.Priorities, p.Priority(lane)) {
		return a.Word(), ended, false
	}
	return a.Word(), EndedOffer{agent, p.Priority(lane), offer}, true
}

// WithAttempt adds an attempt that the append ended: a supervisor counts it.
func (a Attention) WithAttempt(e Attempt) Attention {
	return a + Attention(partAttempt+e.Agent+"."+string(e.End)+"."+strconv.FormatUint(e.Fence, 10)+"."+strconv.FormatInt(e.RetryAfterMS, 10))
}

// Attempt returns the attempt of a handoff that the append ended, where its agent has a breaker.
func (a Attention) Attempt(ticket string) (e Attempt, ok bool) {
	text, named := a.part(partAttempt)
	if !named { // nearly always
		return e, false
	}
	words := strings.Split(text, ".")
	if len(words) != 4 {
		return e, false
	}
	fence, err := strconv.ParseUint(words[2], 10, 64)
	after, invalid := strconv.ParseInt(words[3], 10, 64)
	e = Attempt{Agent: words[0], Ticket: ticket, Fence: fence, End: p.AttemptEnd(words[1]), RetryAfterMS: after}
	known := slices.Contains(p.AttemptEnds, e.End) && p.CheckID("agent", e.Agent) == nil
	return e, known && err == nil && invalid == nil && after >= 0 && after <= p.RetryAfterMaxMS
}
