package audit

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/protocol/lifecycle"
)

// TestVerifyWriters checks that an event whose writer has no right to it is reported, in the
// ledger and in an archive, and no other event.
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
	w.archive(dir, 0)
	report, err := VerifyLedger(w.ctx, w.b, nil, CheckWriters)
	w.must(err)
	if report.Found > 0 {
		t.Fatalf("found %+v where all kept to the rules", report.Problems)
	}

	_, _, err = w.b.Update(w.ctx, forged, func(h broker.Head, _ *lifecycle.Directory, now time.Time) (lifecycle.Step, error) {
		return lifecycle.StepOf(h.State, &protocol.Completed{Meta: protocol.Meta{At: now, By: "src"}, Fence: h.State.Fence, Status: protocol.Success})
	})
	w.must(err)
	w.archive(dir, 0)
	for name, verify := range map[string]func(checks ...Check) (Report, error){
		"ledger":  func(checks ...Check) (Report, error) { return VerifyLedger(w.ctx, w.b, nil, checks...) },
		"archive": func(checks ...Check) (Report, error) { return VerifyFiles(dir, nil, checks...) },
	} {
		report, err := verify()
		w.must(err)
		if report.Found > 0 {
			t.Errorf("%s: found %+v without being asked who wrote it", name, report.Problems)
		}
		report, err = verify(CheckWriters)
		w.must(err)
		if got := problemKinds(report); !slices.Equal(got, []string{"writer seq 8"}) && name == "ledger" || report.Found != 1 ||
			!strings.Contains(report.Problems[0].Message, "completed is said to be by src (agent), and is made by holder") || report.Problems[0].Ticket != forged {
			t.Errorf("%s: found %+v", name, report.Problems)
		}
	}
}
