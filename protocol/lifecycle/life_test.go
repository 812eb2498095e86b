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
	for b.Loop() {
		first, err := Submit("t", summary, p.Submitted{}, d, t0)
		if err != nil {
			b.Fatal(err)
		}
		s, err := ApplyAll(p.State{}, first)
		if err != nil {
			b.Fatal(err)
		}
		s.Bind(1)
		taken := []p.Event{&p.Accepted{Meta: p.Meta{At: t0}, Offer: 1, Agent: "a", Holder: "h", LeaseMS: lease, Attempt: 1}, &p.Started{Meta: p.Meta{At: t0}}}
		if s, err = ApplyAll(s, taken); err != nil {
			b.Fatal(err)
		}
		s.Bind(2)
		if _, err = ApplyAll(s, []p.Event{&p.Completed{Meta: p.Meta{At: t0}, Fence: 2, Status: p.Success}}); err != nil {
			b.Fatal(err)
		}
	}
}
