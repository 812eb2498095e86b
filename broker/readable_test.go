package broker

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/agenthandoff/handoff/internal/record"
	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/tests/mutate"
)

// FuzzStateOf reads anything as an entry: it is refused as one that cannot be read, with
// words of bounded length, or has what makes subjects.
func FuzzStateOf(f *testing.F) {
	const ticket = "6ba7b810-9dad-11d1-80b4-00c04fd430c8"
	state := protocol.State{Ticket: ticket, Phase: protocol.Pending, Agent: "coder", Offer: protocol.Self, PackageSeq: protocol.Self, Policy: protocol.DefaultPolicy(),
		Summary:     protocol.Summary{Type: protocol.Sequential, Source: "lead", Target: protocol.Target{Agent: "coder"}, Priority: protocol.Normal, Deadline: time.Unix(1e9+1e6, 0).UTC()},
		SubmittedAt: time.Unix(1e9, 0).UTC(), UpdatedAt: time.Unix(1e9, 0).UTC(), OfferedAt: time.Unix(1e9, 0).UTC()}
	body, err := record.Encode(protocol.Record{ID: "id", State: state})
	if err != nil {
		f.Fatal(err)
	}
	if _, err := StateOf(Entry{Ticket: ticket, Seq: 7, Body: body}); err != nil {
		f.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(48, 0))
	f.Add(body)
	for range 200 {
		f.Add(mutate.Record(rng, body))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		e := Entry{Ticket: ticket, Seq: 7, Body: body}
		s, err := StateOf(e)
		if err != nil {
			if !Unreadable(err) || len(err.Error()) > 2*unreadableBytesMax {
				t.Errorf("%v", err)
			}
			return
		}
		if s.Ticket != ticket || s.Offer != 0 && s.Agent != "" && !s.Closed && offerKey(&s).Validate() != nil {
			t.Errorf("an offer of %s without a subject, of\n%s", s.Ticket, body)
		}
		_, _ = HeadOf(e)
		_, _ = RecordOf(e)
		_, _ = DecodeChange(e)
	})
}
