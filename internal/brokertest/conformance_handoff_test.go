package brokertest

import (
	"fmt"
	"time"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/protocol"
)

// testKeyFoundLater submits again under a key when a new package would be refused.
func testKeyFoundLater(k *kit) {
	r := k.familyKit()
	to := r.registerAgents(2)
	var all []protocol.Package
	var first []string
	for i, p := range []protocol.Package{pkg("lead", to[0]), pkg("lead", to...), pkg("lead", to[1])} {
		p.Key = fmt.Sprintf("%s-%d", to[0], i)
		if i == 2 {
			p.Constraints.Deadline = time.Now().Add(200 * time.Millisecond)
		}
		all = append(all, p)
		first = append(first, r.submit(p).Ticket)
	}
	r.must(r.b.RemoveProfile(r.ctx, to[0]))
	r.until("the deadline", func() bool { return time.Now().After(all[2].Constraints.Deadline) })
	_, err := r.b.Directory(r.ctx)
	r.must(err)
	for i, p := range all {
		again := r.submit(p)
		if again.Ticket != first[i] {
			r.Errorf("ticket %s, then %s", first[i], again.Ticket)
		}
		p.Reason = "another"
		_, err := r.trySubmit(p)
		wantCode(k, err, protocol.CodeKeyReused)
	}
	late := all[2]
	late.Key = "first at " + to[0]
	_, err = r.trySubmit(late)
	wantCode(k, err, protocol.CodePast)
	late.Key = ""
	_, err = r.b.Prepare(r.ctx, late)
	wantCode(k, err, protocol.CodePast)
}

// testHandOffTargets hands off to an agent that already has a part in the handoff.
func testHandOffTargets(k *kit) {
	r := k.familyKit()
	to := r.registerAgents(2)
	for name, c := range map[string]struct {
		to   string
		code protocol.Code
	}{
		"itself":  {to[1], protocol.CodeConflict},
		"missing": {"missing-" + to[0], protocol.CodeUnknownAgent},
		"handoff": {protocol.System, protocol.CodeReserved},
		"source":  {to[0], ""},
		"human":   {protocol.Human, ""},
	} {
		r.submit(pkg(to[0], to[1]))
		claim := r.accept(to[1])
		_, err := claim.HandOff(r.ctx, broker.Child{N: 0, Package: delegated(pkg("", c.to))})
		if c.code != "" {
			wantCode(k, err, c.code)
			if made := r.state(claim.Ticket).Children; made != nil {
				r.Errorf("%s: recorded %v", name, made.Made.Numbers())
			}
			continue
		}
		r.must(err)
		parent := r.state(claim.Ticket)
		if s := r.state(parent.ChildTicket(0)); s.Agent != c.to {
			r.Errorf("%s: with %s", name, s.Agent)
		}
	}
}
