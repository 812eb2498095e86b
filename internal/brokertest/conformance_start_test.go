package brokertest

import (
	"time"

	"github.com/agenthandoff/handoff/internal/lifecycle"
	"github.com/agenthandoff/handoff/protocol"
)

// testStart submits a handoff with a start twice under one key: no process can have it before, and
// one worker gets it then.
func testStart(k *kit) {
	r := k.familyKit()
	coder := r.registerAgents(1)[0]
	later := pkg("lead", coder)
	later.Key, later.StartAt = "later", time.Now().Add(2*time.Second).UTC()
	head := r.submit(later)
	if again := r.submit(later); again.Ticket != head.Ticket || !again.Repeated || !again.State.StartAt.Equal(later.StartAt) {
		r.Fatalf("submitted again it is %s, from %v", again.Ticket, again.State.StartAt)
	}
	if s := r.decide(head.Ticket).State; time.Now().Before(later.StartAt) && (s.Offer != 0 || lifecycle.WaitingFor(s) != lifecycle.WaitStartAt) {
		r.Fatalf("before its start it waits for %s, with offer %d", lifecycle.WaitingFor(s), s.Offer)
	}
	r.until("it is offered", func() bool { return r.decide(head.Ticket).State.Phase == protocol.Pending })
	claim := r.accept(coder)
	if s := claim.State(); claim.Ticket != head.Ticket || s.OfferedAt.Before(later.StartAt) {
		r.Fatalf("%s was offered at %v, and starts at %v", claim.Ticket, s.OfferedAt, later.StartAt)
	}
	r.must(claim.Complete(r.ctx, protocol.Result{}))
}
