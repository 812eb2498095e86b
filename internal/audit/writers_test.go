package audit

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/brokertest"
	"github.com/agenthandoff/handoff/internal/lifecycle"
	"github.com/agenthandoff/handoff/protocol"
)

// TestVerifyWriters checks that an event whose writer has no right to it is reported, in the
// ledger and in an export, and no other event.
func TestVerifyWriters(t *testing.T) {
	w := newFixture(t)
	done, forged := w.submit(1), w.submit(1)
	holder := protocol.Holder{ID: uuid.NewString(), Agent: "a", LeaseMS: 30_000, Slots: 2}
	w.must(w.b.Beat(w.ctx, holder))
	offers, err := w.b.Pull(w.ctx, "a", 2, 0)
	w.must(err)
	for _, offer := range offers {
		claim, err := offer.Acknowledge(w.ctx, holder, protocol.Ack{Status: protocol.AckAccepted}, true)
		w.must(err)
		if claim.Ticket == done {
			w.must(claim.Complete(w.ctx, protocol.Result{Summary: "done"}))
		}
	}
	late := w.submit(1)
	_, err = w.b.Cancel(w.ctx, late, "ann", "not needed")
	w.must(err)
	dir := t.TempDir()
	w.exportDir(dir)
	report, err := VerifyLedger(w.ctx, w.b, nil, CheckWriters)
	w.must(err)
	if report.Found > 0 {
		t.Fatalf("found %+v where all kept to the rules", report.Problems)
	}

	_, _, err = brokertest.Update(w.ctx, w.b, forged, func(h broker.Head, q lifecycle.Query) (lifecycle.Step, error) {
		return lifecycle.StepOf(h.State, &protocol.Completed{Meta: protocol.Meta{At: q.Now, By: "src"}, Fence: h.State.Fence, Status: protocol.Success})
	})
	w.must(err)
	w.exportDir(dir)
	for name, verify := range map[string]func(checks ...Check) (Report, error){
		"ledger": func(checks ...Check) (Report, error) { return VerifyLedger(w.ctx, w.b, nil, checks...) },
		"export": func(checks ...Check) (Report, error) { return VerifyFiles(dir, nil, checks...) },
	} {
		report, err := verify()
		w.must(err)
		if report.Found > 0 {
			t.Errorf("%s: found %+v without being asked who wrote it", name, report.Problems)
		}
		report, err = verify(CheckWriters)
		w.must(err)
		if got := problemKinds(report); !slices.Equal(got, []string{"writer seq 8"}) && name == "ledger" || report.Found != 1 ||
			!strings.Contains(report.Problems[0].Message, "completed has the author src (agent), but only holder may make it") || report.Problems[0].Ticket != forged {
			t.Errorf("%s: found %+v", name, report.Problems)
		}
	}
}
