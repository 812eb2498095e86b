//go:build proof

package linear

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/jetstream"
	"github.com/agenthandoff/handoff/internal/lifecycle"
	"github.com/agenthandoff/handoff/internal/testworld"
	"github.com/agenthandoff/handoff/protocol"
)

const (
	workflows     = 16  // one after another
	operationsOf  = 180 // of a workflow
	holders       = 3   // handoffs of a workflow that are worked on
	placesToRace  = 6   // places of a workflow that submissions race for
	variable      = "shared"
	bystander     = "bystander" // the target of the submissions that race
	workspaceDone = workflows * operationsOf
)

var paths = []string{"a.go", "b.go"}

// Kinds of operations on a workspace.
const (
	read   kind = "read"
	set    kind = "set"
	setIf  kind = "set if"
	lock   kind = "lock"
	unlock kind = "unlock"
	draw   kind = "draw"
)

// asked is an operation on a workspace that has ended, and what it was told.
type asked struct {
	kind         kind
	workflow     string
	ticket, path string
	version      int // which it asked for
	refused      bool
	told         shared
}

// shared is a state of a workspace, as far as the model knows it.
type shared struct {
	version int
	drawn   int
	locks   [2]string // tickets
}

// workspaceRace is all clients of all workflows.
type workspaceRace struct {
	*race
	clients []*client
	began   time.Time

	mu  sync.Mutex
	all []porcupine.Operation
}

// TestWorkspaceLinearizable: twelve clients set variables, lock paths and race for the last places of
// one workflow after another, on three servers, and the leader of their stream is killed. Their
// operations have an order that a workspace of twenty lines agrees with, which knows no broker.
func TestWorkspaceLinearizable(t *testing.T) {
	if testworld.Race {
		t.Skip("a fleet of processes with the race detector in them outlasts its own timeouts: run it without -race")
	}
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	cluster := testworld.StartCluster(t, 3, 0)
	c := &workspaceRace{race: &race{T: t, ctx: ctx}, began: time.Now()}
	for i := range clients {
		c.clients = append(c.clients, c.client(cluster.URL(), i))
	}
	for _, id := range []string{agent, bystander} {
		c.must(c.clients[0].b.PutProfile(ctx, protocol.Profile{ID: id}))
	}
	c.must(c.clients[0].b.EnsureQueue(ctx, agent))
	var killing sync.WaitGroup
	killing.Go(func() { c.killLeaders(cluster, []string{jetstream.WorkspaceStream}, workspaceDone) })
	for n := range workflows {
		c.raceIn(fmt.Sprint("W", n), int64((n+1)*operationsOf))
	}
	killing.Wait()
	if !t.Failed() {
		c.checkWorkspaces()
	}
}

// raceIn has all clients use one workflow.
func (c *workspaceRace) raceIn(workflow string, until int64) {
	c.Helper()
	most := holders + placesToRace
	_, err := c.clients[0].b.OpenWorkspace(c.ctx, workflow, protocol.WorkspaceLimits{MaxHandoffs: &most}, protocol.Human)
	c.must(err)
	var leases []string
	for i := range holders {
		leases = append(leases, c.hold(workflow, i))
	}
	var running sync.WaitGroup
	for _, one := range c.clients {
		running.Go(func() {
			for c.done.Load() < until && c.ctx.Err() == nil && !c.Failed() {
				c.stepIn(one, workflow, leases)
			}
		})
	}
	running.Wait()
}

// hold submits a handoff to a workflow and takes it.
func (c *workspaceRace) hold(workflow string, n int) (lease string) {
	c.Helper()
	one := c.clients[n]
	key := fmt.Sprint(workflow, "-", n)
	ticket := protocol.TicketForKey(source, key)
	in, err := one.b.Prepare(c.ctx, protocol.Package{Key: key, Source: source, Context: protocol.Context{WorkflowID: workflow}, Target: protocol.Target{Agent: agent}, Reason: "race", Task: protocol.Task{Description: "win"}})
	c.must(err)
	_, err = one.b.Submit(c.ctx, in)
	c.must(err)
	for c.ctx.Err() == nil {
		offers, err := one.b.Pull(c.ctx, agent, 1, time.Second)
		if err != nil && !errors.Is(err, broker.ErrUnreachable) {
			c.must(err)
		}
		for _, offer := range offers {
			if claimed, err := offer.Acknowledge(c.ctx, one.holder, protocol.Ack{Status: protocol.AckAccepted}, true); err == nil && offer.Ticket == ticket {
				return claimed.Lease()
			}
		}
	}
	c.Fatalf("%s is not offered: %v", ticket, c.ctx.Err())
	return ""
}

// stepIn is one operation of a client on a workspace.
func (c *workspaceRace) stepIn(one *client, workflow string, leases []string) {
	ctx, cancel := context.WithTimeout(c.ctx, operationTimeout)
	defer cancel()
	claim, err := one.b.Resume(ctx, leases[one.chance.IntN(len(leases))])
	c.must(err)
	path := one.chance.IntN(len(paths))
	op := asked{workflow: workflow, ticket: claim.Ticket, path: paths[path], version: one.chance.IntN(4)}
	do := c.chooseIn(one, claim, &op)
	call := time.Since(c.began).Nanoseconds()
	err = do(ctx)
	ended := time.Since(c.began).Nanoseconds()
	var refused *protocol.Error
	switch {
	case err == nil:
	case errors.As(err, &refused) && (refused.Code == protocol.CodeConflict || refused.Code == protocol.CodeLockBusy || refused.Code == protocol.CodeLimitExceeded):
		op.refused = true
	default:
		c.Errorf("%s took %v and failed: %v", op.kind, time.Duration(ended-call), err)
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.all = append(c.all, porcupine.Operation{ClientId: one.n, Input: op, Call: call, Return: ended})
	c.done.Add(1)
}

// chooseIn says what the client does next.
func (c *workspaceRace) chooseIn(one *client, claim *broker.Claim, op *asked) func(context.Context) error {
	value := map[string]json.RawMessage{variable: json.RawMessage(fmt.Sprint(one.chance.Int64()))} // what stands already would be no change
	locks := protocol.LockPath{Path: op.path}
	switch roll := one.chance.IntN(100); {
	case roll < 25:
		op.kind = read
		return func(ctx context.Context) error {
			w, err := one.b.Workspace(ctx, op.workflow)
			op.told = seen(w)
			return err
		}
	case roll < 40:
		op.kind = set
		return func(ctx context.Context) error {
			w, err := claim.SetVariables(ctx, lifecycle.Setting{Values: value})
			op.told = seen(w)
			return err
		}
	case roll < 55:
		op.kind = setIf
		return func(ctx context.Context) error {
			if w, err := one.b.Workspace(ctx, op.workflow); err == nil {
				op.version = w.Variables[variable].Version
			}
			w, err := claim.SetVariables(ctx, lifecycle.Setting{Values: value, IfVersion: &op.version})
			op.told = seen(w)
			return err
		}
	case roll < 75:
		op.kind = lock
		return func(ctx context.Context) error {
			_, _, err := claim.TryLock(ctx, 0, locks)
			return err
		}
	case roll < 92:
		op.kind = unlock
		return func(ctx context.Context) error { return claim.Unlock(ctx, locks) }
	}
	op.kind = draw
	return func(ctx context.Context) error { return c.draw(ctx, one, op.workflow) }
}

// draw submits a handoff for one of the last places.
func (c *workspaceRace) draw(ctx context.Context, one *client, workflow string) error {
	in, err := one.b.Prepare(ctx, protocol.Package{Source: source, Context: protocol.Context{WorkflowID: workflow}, Target: protocol.Target{Agent: bystander}, Reason: "race", Task: protocol.Task{Description: "win"}})
	if err != nil {
		return err
	}
	head, err := one.b.Submit(ctx, in)
	if err == nil && head.State.Closed { // another took the place in between
		return protocol.Errorf(protocol.Code(head.State.Reason), "workflow_id", "%s", head.State.Message)
	}
	if err == nil && !head.State.Joined {
		return fmt.Errorf("submitted, and %s", head.State.Phase)
	}
	return err
}

// seen is what the model knows of a workspace.
func seen(w protocol.Workspace) (s shared) {
	s.version, s.drawn = w.Variables[variable].Version, w.Drawn
	for _, l := range w.Locks {
		for i, path := range paths {
			if l.Path == path {
				s.locks[i] = l.Ticket
			}
		}
	}
	return s
}

// next is the model: what an operation makes of a workspace, and whether it may have been told so.
func (s shared) next(op asked) (bool, shared) {
	before, place := s, 0
	for i, path := range paths {
		if path == op.path {
			place = i
		}
	}
	own := s.locks[place] == op.ticket
	switch op.kind {
	case read:
		return op.told == s, s
	case set, setIf:
		if op.refused {
			return op.kind == setIf && op.version != s.version, s
		}
		s.version++
		return op.told == s && (op.kind == set || op.version == before.version), s
	case lock:
		if op.refused {
			return s.locks[place] != "" && !own, s
		}
		s.locks[place] = op.ticket
		return before.locks[place] == "" || own, s
	case unlock:
		if own {
			s.locks[place] = ""
		}
		return !op.refused, s
	case draw:
		if op.refused {
			return s.drawn == holders+placesToRace, s
		}
		s.drawn++
		return s.drawn <= holders+placesToRace, s
	}
	return false, s
}

// checkWorkspaces searches for an order, and checks that a read which is too old is found.
func (c *workspaceRace) checkWorkspaces() {
	model := porcupine.Model{
		Partition: func(all []porcupine.Operation) [][]porcupine.Operation {
			parts := make([][]porcupine.Operation, workflows)
			for _, op := range all {
				n := 0
				_, _ = fmt.Sscanf(op.Input.(asked).workflow, "W%d", &n)
				parts[n] = append(parts[n], op)
			}
			return parts
		},
		Init: func() any { return shared{drawn: holders} },
		Step: func(state, input, _ any) (bool, any) {
			ok, next := state.(shared).next(input.(asked))
			return ok, next
		},
		DescribeOperation: func(input, _ any) string { return fmt.Sprintf("%+v", input) },
		DescribeState:     func(state any) string { return fmt.Sprintf("%+v", state) },
	}
	counts, refusals := map[kind]int{}, map[kind]int{}
	for _, op := range c.all {
		if one := op.Input.(asked); one.refused {
			refusals[one.kind]++
		} else {
			counts[one.kind]++
		}
	}
	result, info := porcupine.CheckOperationsVerbose(model, c.all, 2*time.Minute)
	c.Logf("%d operations on %d workflows in %v; done: %v; refused: %v: %s", len(c.all), workflows, time.Since(c.began).Round(time.Second), counts, refusals, result)
	if result != porcupine.Ok {
		path := c.T.TempDir() + "/history.html"
		if err := porcupine.VisualizePath(model, info, path); err == nil {
			c.Logf("see %s", path)
		}
		c.Errorf("there is no order of these operations that the model agrees with: %s", result)
		return
	}
	last := c.all[len(c.all)-1]
	stale := asked{kind: read, workflow: last.Input.(asked).workflow, told: shared{drawn: holders}}
	later := porcupine.Operation{ClientId: clients, Input: stale, Call: last.Return + time.Hour.Nanoseconds(), Return: last.Return + 2*time.Hour.Nanoseconds()}
	if porcupine.CheckOperations(model, append(c.all, later)) {
		c.Error("a stale read was not found")
	}
}
