//go:build proof

package chaos

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"log/slog"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/agenthandoff/handoff/api"
	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/lifecycle"
	"github.com/agenthandoff/handoff/internal/testworld"
	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/worker"
)

const (
	delegatingAgent = "delegator"
	lineagesWanted  = 1000 // handoffs, about
	lineageLevels   = 5
	lineageRoots    = 100
)

// delegators are the agents of lineages: each hands off to the others.
var delegators = []string{"d0", "d1", "d2", "d3"}

// runDelegator is a worker that hands off below random budgets, and says what it has used.
func runDelegator(ctx context.Context, b *broker.Broker, name string) error {
	agent := name[:2]
	w, err := worker.New(api.Direct(b, agent), worker.Config{Agent: agent, Concurrency: 8, Lease: lease, DrainTimeout: 5 * time.Second,
		Log: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError}))}, worker.HandlerFunc(delegate))
	if err != nil {
		return err
	}
	return w.Run(ctx)
}

// delegate hands off to up to three agents, waits for some of them, or hands on with its result.
func delegate(ctx context.Context, h worker.Handoff) (protocol.Result, error) {
	sum := fnv.New64a()
	_, _ = fmt.Fprint(sum, h.Ticket)
	n := sum.Sum64()
	usage := &protocol.Usage{Tokens: int64(n >> 3 % 40)}
	if err := h.Spent(ctx, protocol.Usage{Tokens: usage.Tokens / 2}); err != nil && ctx.Err() != nil {
		return protocol.Result{}, context.Cause(ctx)
	}
	select {
	case <-time.After(time.Duration(n%40) * time.Millisecond):
	case <-ctx.Done():
		return protocol.Result{}, context.Cause(ctx)
	}
	if n>>8%9 == 0 && h.Attempt == 1 {
		return protocol.Result{}, &worker.Failure{Err: errors.New("no luck"), Usage: usage}
	}
	done := protocol.Result{Body: []byte(`"done"`), Usage: usage}
	if len(h.Returns) > 0 || h.Package.Returned != nil || h.State().Lineage.DepthOf() >= lineageLevels {
		return done, nil
	}
	var awaited []string
	for i := range 1 + n>>12%3 {
		d := n>>16 + i*5
		child := protocol.Package{Reason: "a part", Type: protocol.Delegation, Task: protocol.Task{Description: fmt.Sprint(h.Ticket, i)}}
		child.Target.Agent = nextDelegator(h.Agent, d)
		child.Return = &protocol.ReturnProtocol{Expected: true, TimeoutMS: 600_000, Wait: protocol.WaitBlock}
		if d>>4%3 == 0 {
			tokens := int64(d >> 8 % 300)
			child.Limits = &protocol.Limits{MaxTokens: &tokens}
		}
		ticket, err := h.HandOff(ctx, child)
		var refused *protocol.Error
		switch {
		case errors.As(err, &refused) && lifecycle.Bars(refused.Code):
			return done, nil
		case err != nil:
			return protocol.Result{}, err
		}
		awaited = append(awaited, ticket)
	}
	if n>>40%3 > 0 {
		return protocol.Result{}, worker.Await(awaited...)
	}
	done.Command = &protocol.Command{Goto: []byte(`"` + nextDelegator(h.Agent, n>>44) + `"`)}
	return done, nil
}

func nextDelegator(than string, n uint64) string {
	if next := delegators[n%4]; next != than {
		return next
	}
	return delegators[(n+1)%4]
}

// TestLineagesUnderKills: lineages of five levels with random budgets, retries and killed workers and
// supervisors keep their limits: what all of a lineage has used is at most the limit of its first
// handoff and what its handoffs have overrun, and no more handoffs are below it than it allows.
func TestLineagesUnderKills(t *testing.T) {
	if testworld.Race {
		t.Skip("a fleet of processes with the race detector in them outlasts its own timeouts: run it without -race")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 6*time.Minute)
	defer cancel()
	c := &chaos{T: t, ctx: ctx, cluster: testworld.StartCluster(t, 3, 0)}
	b := c.broker()
	for _, agent := range delegators {
		if err := b.PutProfile(ctx, protocol.Profile{ID: agent}); err != nil {
			t.Fatal(err)
		}
	}
	url := c.cluster.URL()
	for i := range 2 {
		c.supervisors = append(c.supervisors, testworld.Start(c, fmt.Sprint("supervisor ", i), nil, testworld.Handoff(c), "supervise", "--nats", url))
	}
	for _, agent := range delegators {
		for i := range 2 {
			name := fmt.Sprint(agent, ".", i)
			c.workers = append(c.workers, testworld.Start(c, name, []string{roleEnv + "=" + delegatingAgent + " " + url + " " + name}, os.Args[0]))
		}
	}
	for i := range lineageRoots {
		handoffs, tokens := int64(5+i%40), int64(50+i*37%1500)
		pkg := protocol.Package{Source: "lead", Reason: "a whole", Task: protocol.Task{Description: fmt.Sprint("work ", i)},
			Limits: &protocol.Limits{MaxHandoffs: &handoffs, MaxTokens: &tokens}}
		pkg.Target.Agent = delegators[i%4]
		in, err := b.Prepare(ctx, pkg)
		if err == nil {
			_, err = b.Submit(ctx, in)
		}
		if err != nil {
			t.Fatal(err)
		}
		if i%10 == 9 {
			c.killAndRestart(c.workers[i/10%len(c.workers)], 0)
			c.killAndRestart(c.supervisors[i/10%2], 0)
		}
	}
	heads := awaitAllClosed(ctx, t, b)
	checkLineages(t, heads)
}

// awaitAllClosed reads the heads of all handoffs once none is open. What waits for a budget is
// cancelled.
func awaitAllClosed(ctx context.Context, t *testing.T, b *broker.Broker) map[string]protocol.State {
	t.Helper()
	var last map[string]protocol.State
	for {
		heads, open := map[string]protocol.State{}, 0
		err := b.Entries(ctx, broker.From(1), func(e broker.Entry) error {
			head, err := broker.HeadOf(e)
			heads[e.Ticket] = head.State
			return err
		})
		if err != nil {
			for _, s := range last {
				if !s.Closed {
					state, _ := json.Marshal(s)
					t.Logf("open: %s", state)
				}
			}
			t.Fatal(err)
		}
		last = heads
		for _, s := range heads {
			if !s.Closed {
				open++
			}
			if s.Phase == protocol.AwaitingApproval && s.Gate != nil && slices.Contains(s.Gate.Waits, protocol.GateBudget) { // a person gives it up
				_, err := b.Cancel(ctx, s.Ticket, protocol.Human, "there is no more budget")
				if err != nil && !errors.Is(err, &protocol.Error{Code: protocol.CodeClosed}) && ctx.Err() == nil { // its family may have ended meanwhile
					t.Fatal(err)
				}
			}
		}
		if open == 0 {
			return heads
		}
		if testworld.Pause(ctx, time.Second); ctx.Err() != nil {
			t.Fatalf("%d of %d handoffs are open", open, len(heads))
		}
	}
}

// checkLineages adds up what each lineage has used, by the heads alone.
func checkLineages(t *testing.T, heads map[string]protocol.State) {
	t.Helper()
	type sum struct{ used, over, below int64 }
	sums := map[string]*sum{}
	deepest, refused, attempts := 0, 0, 0
	for _, s := range heads {
		root := s
		for root.N > 0 {
			root = heads[root.Parent]
		}
		if root.Account == nil {
			continue
		}
		of := sums[root.Ticket]
		if of == nil {
			of = &sum{}
			sums[root.Ticket] = of
		}
		if s.N > 0 {
			of.below++
		}
		of.used += s.Account.Used.Tokens
		of.over += s.Account.Over.Tokens
		deepest, attempts = max(deepest, s.Lineage.DepthOf()), attempts+s.AttemptsTotal
		if s.Barred != nil {
			refused += s.Barred.Count
		}
	}
	for ticket, of := range sums {
		tokens, _ := heads[ticket].Limits.Of("max_tokens")
		handoffs, _ := heads[ticket].Limits.Of("max_handoffs")
		if of.used > tokens+of.over {
			t.Errorf("%s: %d tokens used, %d allowed, %d overrun", ticket, of.used, tokens, of.over)
		}
		if of.below > handoffs {
			t.Errorf("%s: %d handoffs below, %d allowed", ticket, of.below, handoffs)
		}
	}
	t.Logf("%d handoffs in %d lineages, %d levels deep, %d attempts, %d hand-offs refused", len(heads), len(sums), deepest, attempts, refused)
	if len(heads) < lineagesWanted*3/4 {
		t.Errorf("only %d handoffs", len(heads))
	}
}
