package lifecycle

import (
	"testing"
	"time"

	p "github.com/agenthandoff/handoff/protocol"
)

// TestReleaseOfWhatIsToBeCancelled closes it: another offer would only be dropped
// by whoever claims it next.
func TestReleaseOfWhatIsToBeCancelled(t *testing.T) {
	s := p.State{Ticket: "t", Phase: p.Working, Agent: "a", Offer: 1, Holder: "w1", Fence: 2, Attempt: 1, AttemptsTotal: 1, CancelRequested: true}
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	step, err := Release(s, fleet().At(at), "w1", "cancel requested", &p.ResultParked{Status: p.Partial, Result: []byte(`{"status":"partial","body":"half"}`)})
	if err != nil {
		t.Fatal(err)
	}
	if next := step.State; !next.Closed || next.Outcome != p.OutcomeCancelled || next.Held() || next.Attempt != 0 || DutiesOf(next).Offer {
		t.Errorf("released to %+v", next)
	}
	if got := brief(step.Events); got != "released; closed cancelled (cancelled); result_parked w1" {
		t.Errorf("what it had was not kept: %s", got)
	}
}
