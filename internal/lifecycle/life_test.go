package lifecycle

import (
	"testing"

	p "github.com/agenthandoff/handoff/protocol"
)

// BenchmarkLife is what the core does for a handoff that goes well: three appends.
func BenchmarkLife(b *testing.B) {
	summary := p.Summary{Type: p.Sequential, Source: "s", Target: p.Target{Agent: "a"}, Priority: p.Normal, Digest: "sha256:0"}
	d := fleet(agent("a"))
	b.ReportAllocs()
	me := Claimant{Agent: "a", Holder: "h", LeaseMS: lease, Offer: 1}
	for b.Loop() {
		step, err := Submit("t", summary, p.Submitted{}, d.At(t0))
		if err != nil {
			b.Fatal(err)
		}
		step.State.Bind(1)
		if step, err = Acknowledge(step.State, me, p.Ack{Status: p.AckAccepted}, true, t0); err != nil {
			b.Fatal(err)
		}
		step.State.Bind(2)
		if _, err = Complete(step.State, d.At(t0), p.Completed{Status: p.Success}, nil); err != nil {
			b.Fatal(err)
		}
	}
}
