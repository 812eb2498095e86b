package brokertest

import (
	"bytes"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/protocol"
)

// stuckCases are about entries of the ledger that cannot be read.
var stuckCases = []conformanceCase{
	{"a head that cannot be read is one handoff's, and mended by an operator", testMend},
	{"what is of a newer version, or was never readable, is not mended", testMendRefused},
}

func testMend(k *kit) {
	r := k.familyKit()
	to := r.registerAgents(1)[0]
	head := r.submit(pkg("lead", to))
	claim := r.accept(to)
	head = r.head(head.Ticket)
	bad := k.append(head.Ticket, head.Seq, "no record")
	_, err := r.b.Status(r.ctx, head.Ticket)
	wantCode(k, err, protocol.CodeUnreadable)
	if !broker.Unreadable(err) {
		k.Errorf("the status: %v", err)
	}
	if err := claim.Complete(r.ctx, protocol.Result{}); !broker.Unreadable(err) {
		k.Errorf("completed on it: %v", err)
	}
	changes, err := r.b.History(r.ctx, head.Ticket)
	if len(changes) < 2 || !broker.Unreadable(err) {
		k.Errorf("%d changes, %v", len(changes), err)
	}
	mended, err := r.b.RepairHead(r.ctx, head.Ticket)
	k.must(err)
	if mended.Seq <= bad || mended.State.Phase != head.State.Phase || mended.State.Fence != head.State.Fence {
		k.Errorf("mended at %d as %s", mended.Seq, mended.State.Phase)
	}
	again, err := r.b.RepairHead(r.ctx, head.Ticket)
	k.must(err)
	if again.Seq != mended.Seq {
		k.Errorf("mended again at %d", again.Seq)
	}
	k.must(claim.Complete(r.ctx, protocol.Result{}))
	if s := r.state(head.Ticket); s.Outcome != protocol.OutcomeSuccess {
		k.Errorf("closed as %s", s.Outcome)
	}
}

func testMendRefused(k *kit) {
	r := k.familyKit()
	head := r.submit(pkg("lead", r.registerAgents(1)[0]))
	entry, err := k.Last(k.ctx, head.Ticket, 0)
	k.must(err)
	newer := k.append(head.Ticket, head.Seq, string(bytes.Replace(entry.Body, []byte(`"v":1`), []byte(`"v":2`), 1)))
	_, err = r.b.RepairHead(r.ctx, head.Ticket)
	wantCode(k, err, protocol.CodeIllegal)
	never := protocol.NewTicket()
	k.append(never, 0, "no record")
	_, err = r.b.RepairHead(r.ctx, never)
	wantCode(k, err, protocol.CodeIllegal)
	_, err = r.b.RepairHead(r.ctx, protocol.NewTicket())
	wantCode(k, err, protocol.CodeNotFound)
	if last, err := k.Last(k.ctx, head.Ticket, 0); err != nil || last.Seq != newer {
		k.Errorf("entry %d follows, %v", last.Seq, err)
	}
}
