package brokertest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"time"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/lifecycle"
	"github.com/agenthandoff/handoff/internal/testworld"
	"github.com/agenthandoff/handoff/protocol"
)

// familySizes are the largest families there may be. How long each took is
// logged (go test -v).
var familySizes = []conformanceCase{
	{"a thousand recipients of one large package", testGroupSharedPackage},
	{"a thousand different packages", testGroupOwnPackages},
	{"as many children as go with a result", testChildrenMax},
	{"the return of the largest result", testReturnLargest},
	{"the return of a group of large results", testReturnOfLargeMembers},
	{"the return of what can hardly be said", testReturnOddResults},
}

func (r *familyKit) logDuration(what string, begun time.Time) {
	r.Logf("%s: %v", what, time.Since(begun).Round(time.Millisecond))
}

// largestGroup is how many members the largest group has.
func (k *kit) largestGroup() int {
	if k.isSlow() {
		return protocol.ChildrenMax / 10
	}
	return protocol.ChildrenMax
}

// isSlow reports whether the largest families take minutes: with the race detector, or where one
// machine has every entry three times. They say nothing there that they do not say elsewhere.
func (k *kit) isSlow() bool {
	_, memory := k.Engine.(*Memory)
	return !memory && (testworld.Race || k.replicated)
}

// text is a JSON string of so many bytes.
func text(size int) json.RawMessage {
	return append(append([]byte{'"'}, bytes.Repeat([]byte("x"), size-2)...), '"')
}

// testGroupSharedPackage hands 256 KiB to a thousand agents. What is large is stored once,
// and no entry is.
func testGroupSharedPackage(k *kit) {
	size := k.largestGroup()
	r := k.familyKit()
	to := r.registerAgents(protocol.ChildrenMax + 1)
	p := pkg("lead", to[:size]...)
	p.Context.Variables = map[string]json.RawMessage{"x": text(protocol.InlineBytesMax)}
	p.Return = &protocol.ReturnProtocol{Expected: true, Aggregation: protocol.AggregateMajority}
	begun := time.Now()
	head := r.submit(p)
	r.logDuration("submitted", begun)
	begun = time.Now()
	ended, err := r.ensureChildren(head)
	r.must(err)
	r.logDuration("looked after", begun)
	if len(ended) != 0 {
		r.Errorf("ended %v", ended)
	}
	blob := r.blobOf(head.Ticket, 48<<10)
	for n := range size {
		if member := r.blobOf(protocol.ChildTicketN(head.Ticket, n), 4<<10); member != blob {
			r.Fatalf("member %d has its package in %v, the group in %v", n, member, blob)
		}
	}
	// All of them end; what the group knows of it is small.
	var ends []protocol.ChildClosed
	for n := range size {
		ends = append(ends, protocol.ChildClosed{N: n, Outcome: protocol.OutcomeSuccess})
	}
	closed, _, err := r.b.Update(r.ctx, head, func(h broker.Head, q lifecycle.Query) (lifecycle.Step, error) {
		return lifecycle.MarkChildren(h.State, q, ends)
	})
	r.must(err)
	if closed.State.Outcome != protocol.OutcomeSuccess {
		r.Errorf("closed as %q (%s)", closed.State.Outcome, closed.State.Message)
	}
	if e, err := r.Last(r.ctx, head.Ticket, 0); err != nil || len(e.Body) > 64<<10 {
		r.Errorf("the end is an entry of %d bytes, %v", len(e.Body), err)
	}
	begun = time.Now()
	state, err := r.b.CancelTree(r.ctx, head.Ticket, "lead", "enough")
	r.must(err)
	r.logDuration("cancelled", begun)
	if state.Outcome != protocol.OutcomeSuccess {
		r.Errorf("the group is %q", state.Outcome)
	}
	begun = time.Now()
	ended, err = r.ensureChildren(head)
	r.must(err)
	r.logDuration("read the ends", begun)
	if len(ended) != size {
		r.Errorf("%d members have ended", len(ended))
	}

	p.Target.Agents = to
	_, err = r.b.Prepare(r.ctx, p)
	wantCode(k, err, protocol.CodeTooLarge)
}

// blobOf is where the package of a handoff lies whose first entry is small.
func (r *familyKit) blobOf(ticket string, most int) protocol.BlobRef {
	r.Helper()
	e, err := r.Next(r.ctx, ticket, 0)
	r.must(err)
	if len(e.Body) > most {
		r.Fatalf("the first entry of %s is %d bytes", ticket, len(e.Body))
	}
	change, err := broker.DecodeChange(e)
	r.must(err)
	submitted := change.Record.Events[0].(*protocol.Submitted)
	if submitted.Blob == nil {
		r.Fatalf("the package of %s is in its entry", ticket)
	}
	return *submitted.Blob
}

func testGroupOwnPackages(k *kit) {
	size := k.largestGroup()
	r := k.familyKit()
	to := r.registerAgents(2)
	p := pkg("lead")
	p.Target, p.Type = protocol.Target{}, ""
	p.Context.Variables = map[string]json.RawMessage{"shared": text(2 << 10)}
	for n := range size {
		p.Members = append(p.Members, protocol.Member{Target: protocol.Target{Agent: to[n%2]}, Task: &protocol.Task{Description: fmt.Sprint("part ", n)}})
	}
	begun := time.Now()
	head := r.submit(p)
	r.logDuration("submitted", begun)
	begun = time.Now()
	_, err := r.ensureChildren(head)
	r.must(err)
	r.logDuration("looked after", begun)
	for _, n := range []int{0, 1, size/2 - 1, size - 1} {
		body, err := r.b.Package(r.ctx, protocol.ChildTicketN(head.Ticket, n))
		r.must(err)
		own, err := protocol.DecodePackage(body)
		r.must(err)
		if own.Task.Description != fmt.Sprint("part ", n) || own.Target.Agent != to[n%2] || len(own.Members) != 0 {
			r.Errorf("member %d is %q for %s", n, own.Task.Description, own.Target)
		}
	}
	r.awaitDepth(to[0], size/2)
	for len(p.Members) <= protocol.ChildrenMax {
		p.Members = append(p.Members, p.Members[0])
	}
	_, err = r.b.Prepare(r.ctx, p)
	wantCode(k, err, protocol.CodeTooLarge)
}

// testChildrenMax hands off what together is far more than the engine takes in a message.
func testChildrenMax(k *kit) {
	r := k.familyKit()
	to := r.registerAgents(2)
	var children []broker.Child
	for n := range broker.HandedOffAtOnceMax + 1 {
		p := pkg("", to[1])
		p.Context.Variables = map[string]json.RawMessage{"x": text(100<<10 + n)}
		children = append(children, broker.Child{N: n, Package: p})
	}
	r.submit(pkg("lead", to[0]))
	claim := r.accept(to[0])
	err := claim.Complete(r.ctx, protocol.Result{}, children...)
	wantCode(k, err, protocol.CodeTooLarge)
	if s := r.state(claim.Ticket); s.Phase != protocol.PhaseFailed || s.Children != nil {
		r.Errorf("%d children: %s, %v", len(children), s.Phase, s.Children)
	}
	r.submit(pkg("lead", to[0]))
	claim = r.accept(to[0])
	children = children[:broker.HandedOffAtOnceMax]
	begun := time.Now()
	r.must(claim.Complete(r.ctx, protocol.Result{Body: text(protocol.InlineBytesMax - 1000)}, children...))
	r.logDuration("handed off", begun)
	if n := r.state(claim.Ticket).Children.Made.Len(); n != len(children) {
		r.Errorf("%d children", n)
	}
	for n := range children {
		body, err := r.b.Package(r.ctx, protocol.ChildTicketN(claim.Ticket, n))
		r.must(err)
		if len(body) < 100<<10 {
			r.Errorf("child %d has %d bytes", n, len(body))
		}
	}
	r.awaitDepth(to[1], len(children))
}

func testReturnLargest(k *kit) {
	size := 60 << 20
	if testworld.Race || k.isSlow() {
		size = protocol.ReturnBytesMax + 1<<20 // is left out too
	}
	r := k.familyKit()
	to := r.registerAgents(2)
	head := r.submit(delegated(pkg(to[0], to[1])))
	begun := time.Now()
	r.must(r.accept(to[1]).Complete(r.ctx, protocol.Result{Body: text(size), Notes: "long"}))
	r.logDuration("completed", begun)
	begun = time.Now()
	r.must(r.b.EnsureReturn(r.ctx, r.head(head.Ticket)))
	r.logDuration("returned", begun)
	claim := r.accept(to[0])
	got, err := protocol.DecodePackage(claim.Package)
	r.must(err)
	if ret := got.Returned; len(claim.Package) > protocol.InlineBytesMax || ret.Status != protocol.ReturnSuccess || ret.Audit.Notes == "long" {
		r.Errorf("the return is %d bytes: %s, %q", len(claim.Package), ret.Status, ret.Audit.Notes)
	}
	result, _, err := r.b.Result(r.ctx, head.Ticket)
	if err != nil || len(result.Body) != size {
		r.Errorf("the result has %d bytes, %v", len(result.Body), err)
	}
}

// testReturnOfLargeMembers has members whose results do not fit together: the return carries
// as many as fit, the list of members all of them.
func testReturnOfLargeMembers(k *kit) {
	sizes := []int{3 << 20, 3 << 20, 1000, 5 << 20, 1000}
	r := k.familyKit()
	to := r.registerAgents(len(sizes) + 1)
	lead := to[len(sizes)]
	p := pkg(lead, to[:len(sizes)]...)
	p.Return = &protocol.ReturnProtocol{Expected: true}
	group := r.submit(p)
	for i, size := range sizes {
		r.must(r.accept(to[i]).Complete(r.ctx, protocol.Result{Body: text(size)}))
	}
	ended, err := r.ensureChildren(group)
	r.must(err)
	head, _, err := r.b.Update(r.ctx, group, func(h broker.Head, q lifecycle.Query) (lifecycle.Step, error) {
		return lifecycle.MarkChildren(h.State, q, ended)
	})
	r.must(err)
	r.must(r.b.EnsureReturn(r.ctx, head))
	got, err := protocol.DecodePackage(r.accept(lead).Package)
	r.must(err)
	if len(got.Returned.Members) != len(sizes) {
		r.Fatalf("%d members", len(got.Returned.Members))
	}
	for i, m := range got.Returned.Members {
		if has := m.Result != nil; has != (i == 0 || sizes[i] == 1000) || m.Agent != to[i] || m.Status != protocol.ReturnSuccess {
			r.Errorf("member %d is %s, %s, with a result: %t", i, m.Agent, m.Status, has)
		}
	}
	all, err := r.b.Members(r.ctx, head.State)
	r.must(err)
	for i, m := range all {
		if m.Result == nil {
			r.Errorf("the list has no result of member %d", i)
		}
	}
}

// testReturnOddResults ends delegations with what cannot be put into a package as it is. The
// return was promised, and must be sent all the same.
func testReturnOddResults(k *kit) {
	r := k.familyKit()
	to := r.registerAgents(2)
	deep := func(levels int) json.RawMessage {
		return append(bytes.Repeat([]byte("["), levels), bytes.Repeat([]byte("]"), levels)...)
	}
	for name, end := range map[string]func(*broker.Claim) error{
		"a deep result": func(c *broker.Claim) error {
			return c.Complete(r.ctx, protocol.Result{Body: deep(protocol.DepthMax - 1)})
		},
		"a deep variable": func(c *broker.Claim) error {
			return c.Complete(r.ctx, protocol.Result{Variables: map[string]json.RawMessage{"x": deep(protocol.DepthMax - 2)}})
		},
		"words that are no text": func(c *broker.Claim) error {
			return c.Fail(r.ctx, broker.Failure{Code: "a\x00\xffb", Message: "c\x00\xffd"})
		},
		"a reason that is no text": func(c *broker.Claim) error { return c.RollBack(r.ctx, "a\x00\xffb", nil) },
		"a reason without end":     func(c *broker.Claim) error { return c.RollBack(r.ctx, string(text(2<<20)), nil) },
	} {
		head := r.submit(delegated(pkg(to[0], to[1])))
		r.must(end(r.accept(to[1])))
		head = r.decide(head.Ticket)
		if err := r.b.EnsureReturn(r.ctx, head); err != nil {
			r.Errorf("%s: %.300v", name, err)
			continue
		}
		got, err := protocol.DecodePackage(r.accept(to[0]).Package)
		if err != nil || got.Returned == nil || got.Returned.HandoffID != head.Ticket {
			r.Errorf("%s: the return is %+v, %.300v", name, got.Returned, err)
		}
	}

	// A result nested so deep that the ledger does not take it is refused, and
	// fails the attempt.
	for name, result := range map[string]protocol.Result{
		"body":     {Body: deep(protocol.DepthMax)},
		"variable": {Variables: map[string]json.RawMessage{"x": deep(protocol.DepthMax)}},
		"handed off": {Variables: map[string]json.RawMessage{"x": deep(protocol.DepthMax - 2)},
			Command: &protocol.Command{Goto: json.RawMessage(`"` + to[0] + `"`)}},
	} {
		r.submit(pkg("lead", to[1]))
		claim := r.accept(to[1])
		wantCode(k, claim.Complete(r.ctx, result), protocol.CodeTooLarge)
		if s := r.state(claim.Ticket); s.Phase != protocol.PhaseFailed {
			r.Errorf("%s: the attempt is %s; it would be held until its work timeout", name, s.Phase)
		}
	}
}
