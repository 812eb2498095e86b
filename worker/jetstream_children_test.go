//go:build unix

package worker_test

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/brokertest"
	"github.com/agenthandoff/handoff/internal/embedded"
	"github.com/agenthandoff/handoff/internal/supervisor"
	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/worker"
)

// supervise starts a supervisor on the real engine.
func supervise(t *testing.T, n *embedded.Node) {
	t.Helper()
	engine := dialEngine(t, n)
	s, err := supervisor.New(brokertest.Over(t, engine), engine, supervisor.Config{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// serveOn starts a worker of an agent that ends with the test.
func serveOn(t *testing.T, n *embedded.Node, cfg worker.Config, h worker.Handler) *worker.Worker {
	t.Helper()
	w, drain := start(t, dial(t, n), cfg, h)
	t.Cleanup(func() {
		if err := drain(); err != nil {
			t.Error(err)
		}
	})
	return w
}

func agents(t *testing.T, b *broker.Broker, profiles ...protocol.Profile) {
	t.Helper()
	for _, p := range profiles {
		if err := b.PutProfile(t.Context(), p); err != nil {
			t.Fatal(err)
		}
	}
}

// appeared waits for a handoff that another one's end has promised.
func appeared(t *testing.T, b *broker.Broker, ticket string) protocol.State {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	for {
		state, err := b.Status(ctx, ticket)
		if err == nil {
			return state
		}
		if !errors.Is(err, &protocol.Error{Code: protocol.CodeNotFound}) {
			t.Fatalf("status of %s: %v", ticket, err)
		}
		select {
		case <-time.After(20 * time.Millisecond): // a ticket's first append is not hinted at
		case <-ctx.Done():
			t.Fatalf("%s has not appeared", ticket)
		}
	}
}

// A program hands off by what it prints (document 0): a name, a list of names, a
// list of agents with an update each, or the end of the chain.
func TestProgramHandsOn(t *testing.T) {
	n := node(t)
	b := dial(t, n)
	agents(t, b, protocol.Profile{ID: "coder"}, protocol.Profile{ID: "tester"}, protocol.Profile{ID: "writer"})
	// The command comes with the package, so that one worker shows all of them.
	e := execOf(t, worker.ExecConfig{Command: []string{script(t, `printf '{"body": "done", "variables": {"tests": 7}, "command": %s}' "$(sed 's/.*"command":"\([^"]*\)".*/\1/' | tr "'" '"')"`)}})
	serveOn(t, n, worker.Config{Agent: "coder"}, e)
	type child struct{ agent, task string }
	for command, want := range map[string][]child{
		`{'goto': 'tester', 'update': {'next_task': 'test it'}}`:                                                                             {{"tester", "test it"}},
		`{'goto': ['tester', 'writer'], 'update': {'next_task': 'look at it'}}`:                                                              {{"tester", "look at it"}, {"writer", "look at it"}},
		`{'goto': [{'agent': 'tester', 'update': {'next_task': 'test it'}}, {'agent': 'tester', 'update': {'next_task': 'test it again'}}]}`: {{"tester", "test it"}, {"tester", "test it again"}},
		`{'goto': 'END'}`: nil,
	} {
		ticket := submitTo(t, b, func(p *protocol.Package) {
			raw, _ := json.Marshal(command)
			p.Context.Variables = map[string]json.RawMessage{"command": raw}
		})
		state := waitFor(t, b, ticket, brokertest.Closed)
		if state.Outcome != protocol.OutcomeSuccess || (state.Children != nil) != (want != nil) {
			t.Errorf("%s: %+v", command, state)
			continue
		}
		if want == nil {
			continue
		}
		head := appeared(t, b, protocol.ChildTicketN(ticket, 0))
		tickets := []string{head.Ticket}
		if head.Aggregate != nil {
			tickets = nil
			for i := range head.Aggregate.Size {
				tickets = append(tickets, protocol.ChildTicketN(head.Ticket, i))
			}
		}
		var got []child
		for _, ticket := range tickets {
			state := appeared(t, b, ticket)
			raw, err := b.Package(t.Context(), ticket)
			pkg, err2 := protocol.DecodePackage(raw)
			if err := errors.Join(err, err2); err != nil || string(pkg.Context.Variables["tests"]) != "7" || pkg.Source != "coder" {
				t.Errorf("%s: %s, %v", command, raw, err)
			}
			got = append(got, child{state.Agent, pkg.Task.Description})
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: handed off %v, want %v", command, got, want)
		}
	}
}

// A handler that waits for a delegation gets the end of its chain.
func TestWaitForChain(t *testing.T) {
	n := node(t)
	b := dial(t, n)
	supervise(t, n)
	agents(t, b, protocol.Profile{ID: "coder"}, protocol.Profile{ID: "planner"}, protocol.Profile{ID: "tester"})
	serveOn(t, n, worker.Config{Agent: "planner"}, worker.HandlerFunc(func(context.Context, worker.Handoff) (protocol.Result, error) {
		return protocol.Result{Body: json.RawMessage(`"planned"`), Command: &protocol.Command{Goto: json.RawMessage(`"tester"`)}}, nil
	}))
	serveOn(t, n, worker.Config{Agent: "tester"}, worker.HandlerFunc(func(context.Context, worker.Handoff) (protocol.Result, error) {
		return protocol.Result{Body: json.RawMessage(`"tested"`)}, nil
	}))
	serveOn(t, n, worker.Config{Agent: "coder"}, worker.HandlerFunc(func(ctx context.Context, h worker.Handoff) (protocol.Result, error) {
		ticket, err := h.HandOff(ctx, delegate("planner", "x"))
		if err != nil {
			return protocol.Result{}, err
		}
		ret, err := h.Wait(ctx, ticket)
		if err != nil {
			return protocol.Result{}, err
		}
		return protocol.Result{Body: ret.Result.Body}, nil
	}))
	ticket := submitTo(t, b, nil)
	waitFor(t, b, ticket, brokertest.Closed)
	result, state, err := b.Result(t.Context(), ticket)
	if err != nil || string(result.Body) != `"tested"` {
		t.Errorf("state %+v, result %s, %v", state, result.Body, err)
	}
}

// A program escalates, a program of its authority answers, and the first goes
// on with the answer.
func TestProgramsEscalateAndAnswer(t *testing.T) {
	n := node(t)
	b := dial(t, n)
	agents(t, b, protocol.Profile{ID: "coder", EscalatesTo: "boss"}, protocol.Profile{ID: "boss"})
	serveOn(t, n, worker.Config{Agent: "coder"}, execOf(t, worker.ExecConfig{Command: []string{script(t, `
package=$(cat)
case $package in
*'"way":"left"'*) echo "went left" ;;
*) echo '{"status":"escalated","rationale":"two ways","assessment":"left is shorter"}' > "$HANDOFF_ACK_FILE" ;;
esac`)}}))
	serveOn(t, n, worker.Config{Agent: "boss"}, execOf(t, worker.ExecConfig{Command: []string{script(t, `
case $(cat) in
*'"assessment":"left is shorter"'*) echo '{"status":"answered","text":"as you say","variables":{"way":"left"}}' > "$HANDOFF_ACK_FILE" ;;
esac`)}}))
	ticket := submitTo(t, b, nil)
	state := waitFor(t, b, ticket, brokertest.Closed)
	result, _, err := b.Result(t.Context(), ticket)
	if err != nil || state.Agent != "coder" || !strings.Contains(string(result.Body), "went left") {
		t.Errorf("state %+v, result %s, %v", state, result.Body, err)
	}
}

// Somebody returns a handoff whose program is at work: it gets TERM, says how far
// it came, and another program puts away what it has left.
func TestProgramIsReturned(t *testing.T) {
	n := node(t)
	b := dial(t, n)
	agents(t, b, protocol.Profile{ID: "coder"})
	l := newLifeline(t)
	e := execOf(t, worker.ExecConfig{
		Command: []string{script(t, `
exec 3> `+l.path+`
trap 'echo "returned: half of it" > "$HANDOFF_ACK_FILE"; echo "[1,2]"; exit 1' TERM
echo ready >&3
while :; do sleep 0.1; done`)},
		Cleanup: []string{script(t, `echo "$HANDOFF_CLEANUP_REASON" >&2; exit 3`)},
	})
	serveOn(t, n, worker.Config{Agent: "coder", Lease: worker.LeaseMin}, e)
	ticket := submitTo(t, b, nil)
	if line := l.next(t); line != "ready" {
		t.Fatalf("the script said %q", line)
	}
	if _, err := b.RollBack(t.Context(), ticket, "lead", "wrong branch"); err != nil {
		t.Fatal(err)
	}
	state := waitFor(t, b, ticket, brokertest.Closed)
	result, _, err := b.Result(t.Context(), ticket)
	if err != nil || state.Outcome != protocol.OutcomeRolledBack || string(result.Body) != "[1,2]" || result.Status != protocol.Partial {
		t.Errorf("state %+v, result %+v, %v", state, result, err)
	}
	if state.Message != "half of it; cleanup failed: exit status 3: returned" {
		t.Errorf("message %q", state.Message)
	}
}

// Many delegations, waited for: each is sent once, the handler runs twice, and
// the returns come in the order of the calls.
func TestAwaitOnJetStream(t *testing.T) {
	n := node(t)
	b := dial(t, n)
	agents(t, b, protocol.Profile{ID: "coder"}, protocol.Profile{ID: "tester"})
	supervise(t, n)
	const many = 60
	tester, drainTester := start(t, dial(t, n), worker.Config{Agent: "tester", Concurrency: 8}, worker.HandlerFunc(func(_ context.Context, h worker.Handoff) (protocol.Result, error) {
		return protocol.Result{Body: h.Package.Context.Variables["i"]}, nil
	}))
	coder, drainCoder := start(t, dial(t, n), worker.Config{Agent: "coder"}, worker.HandlerFunc(func(ctx context.Context, h worker.Handoff) (protocol.Result, error) {
		for i := range many {
			raw, _ := json.Marshal(i)
			pkg := delegate("tester", "x")
			pkg.Context.Variables = map[string]json.RawMessage{"i": raw}
			ticket, err := h.HandOff(ctx, pkg)
			if err != nil {
				return protocol.Result{}, err
			}
			if ret, there := h.Return(ticket); there && (string(ret.Result.Body) != string(raw) || h.Returns[i].HandoffID != ticket) {
				t.Errorf("return %d: %+v", i, ret)
			}
		}
		if len(h.Returns) == 0 {
			return protocol.Result{}, worker.Await()
		}
		return protocol.Result{}, nil
	}))
	begin := time.Now()
	ticket := submitTo(t, b, nil)
	state := waitFor(t, b, ticket, brokertest.Closed)
	if state.Outcome != protocol.OutcomeSuccess || state.AttemptsTotal != 1 || state.Children.Count != many || state.Children.Succeeded.Len() != many {
		t.Errorf("state %+v", state)
	}
	if err := errors.Join(drainCoder(), drainTester()); err != nil { // what is counted is counted then
		t.Error(err)
	}
	if c, s := coder.Stats(), tester.Stats(); c.Suspended != 1 || c.Completed != 1 || s.Completed != many {
		t.Errorf("stats %+v, %+v", c, s)
	}
	t.Logf("%d delegations and their returns took %v", many, time.Since(begin))
}
