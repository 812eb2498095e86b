package lifecycle

import (
	"testing"

	p "github.com/agenthandoff/handoff/protocol"
)

// What an append says of the offer that it ended comes back as it was, and what else
// may stand there is no offer.
func TestAttentionNamesAnEndedOffer(t *testing.T) {
	ended := EndedOffer{"a", p.High, 17}
	for _, word := range []Attention{"", AttentionNone, AttentionLater, AttentionNow} {
		got, back, ok := word.WithEnded(ended).Ended()
		if got != word || back != ended || !ok {
			t.Errorf("%q came back as %q with %+v, %v", word, got, back, ok)
		}
		if got, _, ok := word.Ended(); got != word || ok {
			t.Errorf("%q alone is %q and names an offer: %v", word, got, ok)
		}
	}
	for _, says := range []Attention{"none; ended=", "none; ended=a", "none; ended=a.high", "none; ended=a.high.x", "none; ended=.high.1",
		"none; ended=a.urgent.1", "none; ended=a b.high.1", "none; ended=a.high.1.2"} {
		if word, _, ok := says.Ended(); word != AttentionNone || ok {
			t.Errorf("%q is %q and names an offer: %v", says, word, ok)
		}
	}
}
