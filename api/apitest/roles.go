package apitest

import (
	"context"
	"errors"
	"slices"
	"strings"
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

// madeUp is a lease that was never given out.
func madeUp(ticket string) string {
	return broker.LeaseToken{Ticket: ticket, Agent: "coder", Offer: 1, Holder: "6f3dbd4e-5d0c-4a52-8a86-0a6f4a1d1f5e"}.String()
}

// series asks for the one hour of a day long past.
var series = ask.SeriesQuery{Since: time.Unix(0, 0), Until: time.Unix(3600, 0), BucketMS: 3_600_000}

// requests are a request of each operation, with TICKET, LEASE (made up) and KEY in place of these.
// Some have many operations.
var requests = map[string][]string{
	`{}`:                                                            {"Approvals", "Agents", "Queues", "Fleet", "KeyLimits", "Breakers", "Workspaces", "Schedules", "Rules", "Position", "DeadLetters", "PutFleet"},
	`{"filter":{}}`:                                                 {"List", "Count", "Figures"},
	`{"ticket":"TICKET"}`:                                           {"Status", "Result", "LastOfChain", "ChainResult", "Return", "Context", "Cancel", "Approve", "Package", "History", "Members", "LateResults", "Why", "Family", "Redrive"},
	`{"agent":"coder"}`:                                             {"Agent", "Holders", "ResetBreaker", "Inbox"},
	`{"agent":"stranger"}`:                                          {"Profile", "PauseAgent", "ResumeAgent", "RemoveAgent"},
	`{"name":"w"}`:                                                  {"CloseWorkspace", "Workspace", "Schedule", "PauseSchedule", "ResumeSchedule", "RunSchedule", "RemoveSchedule", "SendSignal", "Rule", "PauseRule", "ResumeRule", "RemoveRule"},
	`{"lease":"LEASE"}`:                                             {"Heartbeat", "Release", "Await", "Unlock", "HeldWorkspace"},
	`{"also":["TICKET"]}`:                                           {"Attention"},
	`{"prefix":"TICKET"}`:                                           {"Find"},
	`{"task":"code","most":3}`:                                      {"FindAgents"},
	`{"from":"lead","task":"code","most":3}`:                        {"RecommendAgents"},
	`{"ticket":"TICKET","reason":"no"}`:                             {"Deny", "RollBack", "Dismiss"},
	`{"ticket":"TICKET","wait_ms":1}`:                               {"Wait", "WaitChain"},
	`{"ticket":"TICKET","answer":{"text":"yes"}}`:                   {"Answer"},
	`{"ticket":"TICKET","to":"stranger"}`:                           {"Reroute"},
	`{"ticket":"TICKET","more":{"handoffs":1}}`:                     {"Raise"},
	`{"ticket":"TICKET","agent":"coder","lease_ms":60000}`:          {"Take"},
	`{"agent":"coder","lease_ms":60000}`:                            {"Claim"},
	`{"agent":"coder","key":"KEY","lease_ms":60000}`:                {"Present", "Leave"},
	`{"agent":"coder","key":"KEY","lease_ms":60000,"most":1}`:       {"ClaimMany"},
	`{"profile":{"id":"coder"}}`:                                    {"PutAgent"},
	`{"agent":"coder","profile":{"id":"coder"}}`:                    {"Register"},
	`{"lease":"LEASE","ack":{"status":"accepted"}}`:                 {"Acknowledge"},
	`{"lease":"LEASE","progress":{"percent":1}}`:                    {"Progress"},
	`{"lease":"LEASE","decision":{"description":"d","risk":"low"}}`: {"Decide"},
	`{"lease":"LEASE","usage":{"tokens":1}}`:                        {"Spend"},
	`{"lease":"LEASE","result":{"body":"done"}}`:                    {"Complete"},
	`{"lease":"LEASE","code":"handler"}`:                            {"Fail"},
	`{"lease":"LEASE","rationale":"it is large"}`:                   {"Escalate"},
	`{"lease":"LEASE","answer":{"text":"yes"}}`:                     {"AnswerHeld"},
	`{"lease":"LEASE","reason":"undo it"}`:                          {"RollBackHeld"},
	`{"lease":"LEASE","paths":[{"path":"a"}]}`:                      {"Lock"},
	`{"lease":"LEASE","values":{"v":1}}`:                            {"SetVariables"},
	`{"name":"w","values":{"v":1}}`:                                 {"ResolveVariables"},
	`{"name":"w","limits":{}}`:                                      {"OpenWorkspace"},
	`{"name":"w","cron":"@daily","package":{"target":{"agent":"coder"},"reason":"r","task":{"description":"d"}}}`:       {"PutSchedule"},
	`{"name":"w","package":{"target":{"agent":"coder"},"reason":"r","task":{"description":"d"}}}`:                       {"PutRule"},
	`{"bucket_ms":3600000,"since":"1970-01-01T00:00:00Z","until":"1970-01-01T01:00:00Z"}`:                               {"Series"},
	`{"package":{"key":"TICKET","target":{"agent":"coder"},"reason":"r","task":{"description":"d"}}}`:                   {"Submit"},
	`{"lease":"LEASE","package":{"source":"coder","target":{"agent":"coder"},"reason":"r","task":{"description":"d"}}}`: {"HandOff"},
}

// perform performs an operation on a ticket.
func (w *world) perform(op *api.Operation, s *api.Session, ticket string) error {
	for request, names := range requests {
		if slices.Contains(names, op.Name) {
			_, err := op.Do(w.ctx, s, []byte(strings.NewReplacer("TICKET", ticket, "LEASE", madeUp(ticket), "KEY", key).Replace(request)))
			return err
		}
	}
	w.t.Errorf("the suite has no request of %s", op.Name)
	return nil
}

// testRoles performs every operation without a role that it needs, and with it.
func testRoles(t *testing.T, w *world) {
	ticket := w.submit()
	for i := range api.Operations {
		op := &api.Operations[i]
		for _, role := range []api.Roles{0, api.RoleReader, api.RoleSubmitter, api.RoleOperator, api.RoleWorker} {
			reads := role&(api.RoleSubmitter|api.RoleOperator) != 0 && op.Roles&api.RoleReader != 0
			if role&op.Roles != 0 || reads {
				continue
			}
			err := w.perform(op, w.All(t, api.Caller{Name: "lead", Roles: role, Sources: []string{"lead"}, Agents: []string{"lead"}}), ticket)
			w.wantCode(op.Name+" as "+role.String(), err, protocol.CodeForbidden)
		}
		err := w.perform(op, w.All(t, api.Local("lead")), ticket)
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
	stranger := w.All(t, api.Agent("stranger"))
	for i := range api.Operations {
		op := &api.Operations[i]
		ofHandoffs := slices.Contains([]string{"Reader", "Operator", "Holder", "Workers", "Decider"}, op.Group) && op.Name != "Position"
		if ofHandoffs && w.perform(op, stranger, ticket) == nil {
			t.Errorf("%s as a stranger is answered", op.Name)
		}
	}
}

// testLists lists and counts what the index knows, and what a caller may know of that.
func testLists(t *testing.T, w *world, everything *api.Session, ticket string) {
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
