package apitest

import (
	"context"
	"errors"
	"maps"
	"testing"
	"time"

	"github.com/agenthandoff/handoff/api"
	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/index/ask"
	"github.com/agenthandoff/handoff/protocol"
)

// sourceCalls calls each operation of api.Source.
func sourceCalls() map[string]func(context.Context, api.Source, string) error {
	return map[string]func(context.Context, api.Source, string) error{
		"Submit": func(ctx context.Context, s api.Source, _ string) error {
			p := newPackage("coder", protocol.NewTicket())
			p.Source = ""
			_, err := s.Submit(ctx, p)
			return err
		},
		"Status": func(ctx context.Context, s api.Source, ticket string) error {
			_, err := s.Status(ctx, ticket)
			return err
		},
		"Wait": func(ctx context.Context, s api.Source, ticket string) error {
			_, err := s.Wait(ctx, ticket, api.UntilClosed)
			return err
		},
		"Result": func(ctx context.Context, s api.Source, ticket string) error {
			_, _, err := s.Result(ctx, ticket)
			return err
		},
		"LastOfChain": func(ctx context.Context, s api.Source, ticket string) error {
			_, err := s.LastOfChain(ctx, ticket)
			return err
		},
		"WaitChain": func(ctx context.Context, s api.Source, ticket string) error {
			_, err := s.WaitChain(ctx, ticket, api.UntilClosed)
			return err
		},
		"ChainResult": func(ctx context.Context, s api.Source, ticket string) error {
			_, _, err := s.ChainResult(ctx, ticket)
			return err
		},
		"Return": func(ctx context.Context, s api.Source, ticket string) error {
			_, err := s.Return(ctx, ticket)
			return err
		},
		"Context": func(ctx context.Context, s api.Source, ticket string) error {
			_, err := s.Context(ctx, ticket)
			return err
		},
		"Cancel": func(ctx context.Context, s api.Source, ticket string) error {
			_, err := s.Cancel(ctx, api.Cancel{Ticket: ticket})
			return err
		},
		"Answer": func(ctx context.Context, s api.Source, ticket string) error {
			_, err := s.Answer(ctx, ticket, protocol.Answer{Text: "yes"})
			return err
		},
	}
}

// holderCalls calls each operation of api.Holder, for coder.
func holderCalls() map[string]func(context.Context, All, string) error {
	type report = func(ctx context.Context, s All, lease string) (protocol.State, error)
	calls := map[string]func(context.Context, All, string) error{
		"Claim": func(ctx context.Context, s All, _ string) error {
			_, err := s.Claim(ctx, api.Claim{Agent: "coder", Lease: lease})
			return err
		},
		"Heartbeat": func(ctx context.Context, s All, ticket string) error {
			_, err := s.Heartbeat(ctx, api.Heartbeat{Lease: madeUp(ticket)})
			return err
		},
		"HandOff": func(ctx context.Context, s All, ticket string) error {
			_, err := s.HandOff(ctx, api.HandOff{Lease: madeUp(ticket)})
			return err
		},
	}
	for name, call := range map[string]report{
		"Acknowledge": func(ctx context.Context, s All, lease string) (protocol.State, error) {
			return s.Acknowledge(ctx, lease, protocol.Ack{Status: protocol.AckAccepted})
		},
		"Progress": func(ctx context.Context, s All, lease string) (protocol.State, error) {
			return s.Progress(ctx, lease, protocol.Progress{Percent: 1})
		},
		"Complete": func(ctx context.Context, s All, lease string) (protocol.State, error) {
			return s.Complete(ctx, lease, done)
		},
		"Decide": func(ctx context.Context, s All, lease string) (protocol.State, error) {
			return s.Decide(ctx, lease, protocol.WorkDecision{Description: "d", Risk: protocol.RiskLow})
		},
		"AnswerHeld": func(ctx context.Context, s All, lease string) (protocol.State, error) {
			return s.AnswerHeld(ctx, lease, protocol.Answer{Text: "yes"})
		},
		"Spend": func(ctx context.Context, s All, lease string) (protocol.State, error) {
			return s.Spend(ctx, lease, protocol.Usage{Tokens: 1})
		},
		"Fail": func(ctx context.Context, s All, lease string) (protocol.State, error) {
			return s.Fail(ctx, lease, broker.Failure{Code: "handler"})
		},
		"Release": func(ctx context.Context, s All, lease string) (protocol.State, error) {
			return s.Release(ctx, lease, "", nil)
		},
		"Escalate": func(ctx context.Context, s All, lease string) (protocol.State, error) {
			return s.Escalate(ctx, lease, "it is large", "")
		},
		"RollBackHeld": func(ctx context.Context, s All, lease string) (protocol.State, error) {
			return s.RollBackHeld(ctx, lease, "undo it", nil)
		},
		"Await": func(ctx context.Context, s All, lease string) (protocol.State, error) {
			return s.Await(ctx, lease, nil)
		},
	} {
		calls[name] = func(ctx context.Context, s All, ticket string) error {
			_, err := call(ctx, s, madeUp(ticket))
			return err
		}
	}
	return calls
}

// madeUp is a lease that was never given out.
func madeUp(ticket string) string {
	return broker.LeaseToken{Ticket: ticket, Agent: "coder", Offer: 1, Holder: "6f3dbd4e-5d0c-4a52-8a86-0a6f4a1d1f5e"}.String()
}

// series asks for the one hour of a day long past.
var series = ask.SeriesQuery{Since: time.Unix(0, 0), Until: time.Unix(3600, 0), BucketMS: 3_600_000}

// otherCalls calls each operation of the other interfaces.
func otherCalls() map[string]func(context.Context, All, string) error {
	return map[string]func(context.Context, All, string) error{
		"Package": func(ctx context.Context, s All, ticket string) error { _, err := s.Package(ctx, ticket); return err },
		"History": func(ctx context.Context, s All, ticket string) error { _, err := s.History(ctx, ticket); return err },
		"Members": func(ctx context.Context, s All, ticket string) error { _, err := s.Members(ctx, ticket); return err },
		"LateResults": func(ctx context.Context, s All, ticket string) error {
			_, err := s.LateResults(ctx, ticket)
			return err
		},
		"List":  func(ctx context.Context, s All, _ string) error { _, err := s.List(ctx, ask.ListQuery{}); return err },
		"Count": func(ctx context.Context, s All, _ string) error { _, err := s.Count(ctx, ask.CountQuery{}); return err },
		"Figures": func(ctx context.Context, s All, _ string) error {
			_, err := s.Figures(ctx, ask.FiguresQuery{})
			return err
		},
		"Series": func(ctx context.Context, s All, _ string) error { _, err := s.Series(ctx, series); return err },
		"Position": func(ctx context.Context, s All, _ string) error {
			_, err := s.Position(ctx, ask.Question{})
			return err
		},
		"Find": func(ctx context.Context, s All, ticket string) error {
			_, err := s.Find(ctx, ticket[:ask.PrefixMin])
			return err
		},
		"Why": func(ctx context.Context, s All, ticket string) error {
			_, err := s.Why(ctx, ticket, time.UTC)
			return err
		},
		"Family": func(ctx context.Context, s All, ticket string) error {
			_, err := s.Family(ctx, ask.FamilyQuery{Ticket: ticket})
			return err
		},
		"Reroute": func(ctx context.Context, s All, ticket string) error {
			_, err := s.Reroute(ctx, api.Reroute{Ticket: ticket, To: "stranger"})
			return err
		},
		"RollBack": func(ctx context.Context, s All, ticket string) error {
			_, err := s.RollBack(ctx, ticket, "undo it")
			return err
		},
		"Redrive": func(ctx context.Context, s All, ticket string) error {
			_, err := s.Redrive(ctx, api.Redrive{Ticket: ticket})
			return err
		},
		"Take": func(ctx context.Context, s All, ticket string) error {
			_, err := s.Take(ctx, api.Take{Ticket: ticket, Agent: "coder", Lease: lease})
			return err
		},
		"Raise": func(ctx context.Context, s All, ticket string) error {
			_, err := s.Raise(ctx, ticket, protocol.Amounts{Handoffs: 1})
			return err
		},
		"Dismiss": func(ctx context.Context, s All, ticket string) error {
			_, err := s.Dismiss(ctx, ticket, "seen")
			return err
		},
		"Inbox": func(ctx context.Context, s All, _ string) error { _, err := s.Inbox(ctx, "coder"); return err },
		"Attention": func(ctx context.Context, s All, ticket string) error {
			_, err := s.Attention(ctx, []string{ticket})
			return err
		},
		"DeadLetters": func(ctx context.Context, s All, _ string) error {
			_, err := s.DeadLetters(ctx, ask.DeadQuery{})
			return err
		},
	}
}

// testRoles calls every operation without a role that it needs, and with it.
func testRoles(t *testing.T, w *world) {
	ticket, calls := w.submit(), otherCalls()
	maps.Copy(calls, holderCalls())
	maps.Copy(calls, directoryCalls())
	maps.Copy(calls, workspaceCalls())
	maps.Copy(calls, approverCalls())
	for name, call := range sourceCalls() {
		calls[name] = func(ctx context.Context, s All, ticket string) error { return call(ctx, s, ticket) }
	}
	for _, op := range api.Operations {
		call, ok := calls[op.Name]
		if !ok {
			t.Errorf("the suite has no call of %s", op.Name)
			continue
		}
		for _, role := range []api.Roles{0, api.RoleReader, api.RoleSubmitter, api.RoleOperator, api.RoleWorker} {
			reads := role&(api.RoleSubmitter|api.RoleOperator) != 0 && op.Roles&api.RoleReader != 0
			if role&op.Roles != 0 || reads {
				continue
			}
			err := call(w.ctx, w.All(t, api.Caller{Name: "lead", Roles: role, Sources: []string{"lead"}, Agents: []string{"lead"}}), ticket)
			w.wantCode(op.Name+" as "+role.String(), err, protocol.CodeForbidden)
		}
		if op.Name == "Wait" || op.Name == "WaitChain" { // of an open handoff that lasts
			continue
		}
		err := call(w.ctx, w.All(t, api.Local("lead")), ticket)
		if errors.Is(err, &protocol.Error{Code: protocol.CodeForbidden}) || errors.Is(err, broker.ErrUnreachable) {
			t.Errorf("%s as admin: %v", op.Name, err)
		}
		ticket = w.submit()
	}
}

func testReader(t *testing.T, w *world) {
	ticket := w.submit()
	w.complete("coder")
	everything := w.All(t, api.Caller{Name: "auditor", Roles: api.RoleReader})
	body, err := everything.Package(w.ctx, ticket)
	w.must(err)
	if sent, err := protocol.DecodePackage(body); err != nil || sent.Task.Description != "write it" {
		t.Errorf("package: %v, %s", err, body)
	}
	changes, err := everything.History(w.ctx, ticket)
	if w.must(err); len(changes) < 3 {
		t.Errorf("history: %d changes", len(changes))
	}
	late, err := everything.LateResults(w.ctx, ticket)
	if w.must(err); len(late) != 0 {
		t.Errorf("late results: %d", len(late))
	}
	_, err = everything.Members(w.ctx, ticket)
	w.wantCode("members of a handoff that is no group", err, protocol.CodeIllegal)
	why, err := everything.Why(w.ctx, ticket, time.UTC)
	if w.must(err); why.Ticket != ticket || !why.Closed || len(why.Sentences) == 0 {
		t.Errorf("why: %+v", why)
	}
	testLists(t, w, everything, ticket)
	stranger, calls := w.All(t, api.Agent("stranger")), otherCalls()
	maps.Copy(calls, holderCalls())
	delete(calls, "Position") // it is about no handoff
	for name, call := range calls {
		if err := call(w.ctx, stranger, ticket); err == nil {
			t.Errorf("%s as a stranger is answered", name)
		}
	}
}

// testLists lists and counts what the index knows, and what a caller may know of that.
func testLists(t *testing.T, w *world, everything All, ticket string) {
	page, err := everything.List(w.ctx, ask.ListQuery{Question: ask.Question{WaitMS: timeout.Milliseconds()}})
	if w.must(err); len(page.Handoffs) != 1 || page.Handoffs[0].Ticket != ticket {
		t.Errorf("listed: %+v", page.Handoffs)
	}
	at, err := everything.Position(w.ctx, ask.Question{})
	if w.must(err); at.Seq < page.Seq || !at.Complete {
		t.Errorf("position: %+v, and the list was of %d", at, page.Seq)
	}
	found, err := everything.Find(w.ctx, ticket[:ask.PrefixMin])
	if w.must(err); found != ticket {
		t.Errorf("%s begins %s", ticket[:ask.PrefixMin], found)
	}
	_, err = everything.Find(w.ctx, ticket[:ask.PrefixMin-1])
	w.wantCode("a prefix that is too short", err, protocol.CodeInvalid)
	figures, err := everything.Figures(w.ctx, ask.FiguresQuery{})
	if w.must(err); figures.All.Succeeded != 1 {
		t.Errorf("figures: %+v", figures.All)
	}
	none, err := everything.Series(w.ctx, series)
	if w.must(err); len(none.Buckets) != 1 || none.Buckets[0].Submitted != 0 {
		t.Errorf("series: %+v", none.Buckets)
	}
	coder := w.All(t, api.Agent("coder"))
	_, err = coder.Figures(w.ctx, ask.FiguresQuery{})
	w.wantCode("figures of all handoffs", err, protocol.CodeForbidden)
	count, err := coder.Count(w.ctx, ask.CountQuery{Filter: ask.Filter{Agent: []string{"coder"}}})
	if w.must(err); count.Count != 1 {
		t.Errorf("coder counts %d of its own", count.Count)
	}
	_, err = coder.List(w.ctx, ask.ListQuery{Filter: ask.Filter{Agent: []string{"coder", "stranger"}}})
	w.wantCode("a list of the handoffs of another agent", err, protocol.CodeForbidden)
	family, err := coder.Family(w.ctx, ask.FamilyQuery{Ticket: ticket})
	if w.must(err); len(family.Handoffs) != 1 {
		t.Errorf("family: %+v", family.Handoffs)
	}
}

func testOperator(t *testing.T, w *world) {
	operator := w.All(t, api.Caller{Name: "ann", Roles: api.RoleOperator})
	ticket := w.submit()
	state, err := operator.Reroute(w.ctx, api.Reroute{Ticket: ticket, To: "stranger", Reason: "coder is away"})
	if w.must(err); state.Agent != "stranger" {
		t.Errorf("rerouted to %s", state.Agent)
	}
	state, err = operator.RollBack(w.ctx, ticket, "the plan has changed")
	if w.must(err); state.Outcome != protocol.OutcomeRolledBack {
		t.Errorf("rolled back: %s", state.Outcome)
	}
	ticket = w.submit()
	taker := w.All(t, api.Caller{Name: "ann", Roles: api.RoleOperator | api.RoleWorker, Agents: []string{protocol.Human}})
	_, err = taker.Take(w.ctx, api.Take{Ticket: ticket, Agent: "coder", Lease: lease})
	w.wantCode("taken for another agent", err, protocol.CodeForbidden)
	held, err := taker.Take(w.ctx, api.Take{Ticket: ticket, Agent: protocol.Human, Lease: lease})
	w.must(err)
	_, err = taker.Complete(w.ctx, held.Lease, done)
	w.must(err)
	failed := w.submit()
	w.must(w.accept("coder").Fail(w.ctx, broker.Failure{Code: "handler", Message: "no such file"}))
	_, err = operator.Cancel(w.ctx, api.Cancel{Ticket: failed, Reason: "there is none"})
	w.must(err)
	dead, err := operator.DeadLetters(w.ctx, ask.DeadQuery{Source: "lead", Outcome: protocol.OutcomeCancelled})
	if w.must(err); len(dead) != 1 || dead[0].Ticket != failed {
		t.Errorf("%d dead letters", len(dead))
	}
	_, err = operator.DeadLetters(w.ctx, ask.DeadQuery{Limit: -1})
	w.wantCode("a negative limit", err, protocol.CodeInvalid)
	again, err := operator.Redrive(w.ctx, api.Redrive{Ticket: failed})
	if w.must(err); again.Origin != failed {
		t.Errorf("redriven: origin %q, want %s", again.Origin, failed)
	}
	if _, err := operator.Inbox(w.ctx, protocol.Human); err != nil {
		t.Error(err)
	}
	state, err = operator.Reroute(w.ctx, api.Reroute{Ticket: again.Ticket, To: protocol.Human})
	w.must(err)
	needs, err := operator.Attention(w.ctx, []string{state.Ticket, failed})
	if w.must(err); len(needs.Handoffs) != 1 || needs.Handoffs[0].Need != api.NeedPerson || needs.Handoffs[0].State.Ticket != state.Ticket {
		t.Errorf("what needs a person: %+v", needs)
	}
}
