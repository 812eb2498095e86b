//go:build proof

package process

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/embedded"
	handoffjs "github.com/agenthandoff/handoff/internal/jetstream"
	"github.com/agenthandoff/handoff/protocol"
)

// TestLastPlaces: twenty processes submit at once to a workflow that has five places left. Most of
// them, and the supervisors, are killed at any moment. In the end exactly five are offered.
func TestLastPlaces(t *testing.T) {
	for name, start := range map[string]func(*testing.T, context.Context) string{
		"one node":    func(t *testing.T, _ context.Context) string { return supervisedNode(t, 1) },
		"three nodes": threeNodes,
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
			defer cancel()
			url := start(t, ctx)
			for round := range 3 {
				lastPlaces(t, ctx, url, fmt.Sprintf("W%d", round))
			}
		})
	}
}

// threeNodes starts a cluster for other processes.
func threeNodes(t *testing.T, ctx context.Context) string {
	cluster, err := embedded.StartCluster(ctx, 3, t.TempDir(), embedded.FsyncInterval)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := cluster.Stop(); err != nil {
			t.Error(err)
		}
	})
	nc, err := cluster.Nodes[0].Conn()
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	ensureTopology(t, nc, handoffjs.Topology{Replicas: 3})
	return cluster.Nodes[1].ClientURL()
}

const (
	places, submitters = 5, 20
	spared             = 6 // submitters that are never killed
)

func lastPlaces(t *testing.T, ctx context.Context, url, workflow string) {
	seed := uint64(time.Now().UnixNano())
	chance := rand.New(rand.NewPCG(seed, 1))
	b := dial(t, url)
	putAgent(t, b, protocol.Profile{ID: "clerk"})
	most := places
	if _, err := b.OpenWorkspace(ctx, workflow, protocol.WorkspaceLimits{MaxHandoffs: &most}, protocol.Human); err != nil {
		t.Fatal(err)
	}
	env := []string{"NATS_URL=" + url}
	supervise := func() *startedProcess { return startHandoff(t, "supervisor", env, "supervise") }
	helpers := []*startedProcess{supervise(), supervise()}
	var all []*startedProcess
	for i := range submitters {
		all = append(all, startHandoff(t, fmt.Sprint("submitter ", i), env, "submit", "--to", "clerk", "--reason", "r", "--task", "t", "--workflow", workflow, "--key", fmt.Sprint(workflow, "-", i)))
	}
	killed := 0
	for _, p := range all[spared:] {
		time.Sleep(time.Duration(chance.IntN(60)) * time.Millisecond) // the moment of a kill is not waited for: it is any
		if p.Running() {
			p.Kill()
			killed++
		}
		if i := chance.IntN(8); i < len(helpers) {
			helpers[i].Kill()
			helpers[i] = supervise()
		}
	}
	for _, p := range all {
		p.Wait()
	}
	if !settles(ctx, b, workflow) {
		t.Errorf("seed %d: a submission stays at the gate of its workflow", seed)
	}
	offered, refused := outcomes(t, ctx, b, workflow)
	w, err := b.Workspace(ctx, workflow)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("seed %d: %d killed, %d offered, %d refused", seed, killed, offered, refused)
	if offered != places || w.Drawn != places || len(w.Draws) != places {
		t.Errorf("seed %d: %d are offered, %d places are counted and %d taken, of %d", seed, offered, w.Drawn, len(w.Draws), places)
	}
	for _, p := range helpers {
		p.Kill()
	}
}

// settles waits until no submission of a workflow stands at its gate.
func settles(ctx context.Context, b *broker.Broker, workflow string) bool {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for ctx.Err() == nil {
		gated := 0
		if err := eachOf(ctx, b, workflow, func(s protocol.State) {
			if !s.Closed && s.Phase == protocol.AwaitingApproval {
				gated++
			}
		}); err == nil && gated == 0 {
			return true
		}
		again := time.NewTimer(200 * time.Millisecond)
		select {
		case <-ctx.Done():
		case <-again.C:
		}
	}
	return false
}

// outcomes counts the submissions of a workflow that are offered, and those that were refused.
func outcomes(t *testing.T, ctx context.Context, b *broker.Broker, workflow string) (offered, refused int) {
	t.Helper()
	err := eachOf(ctx, b, workflow, func(s protocol.State) {
		switch {
		case s.Offer != 0 && s.Joined:
			offered++
		case s.Closed && s.Outcome == protocol.OutcomeRejected && s.Reason == string(protocol.CodeLimitExceeded):
			refused++
		default:
			t.Errorf("%s is %s, closed %t as %s", s.Ticket, s.Phase, s.Closed, s.Reason)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	return offered, refused
}

// eachOf calls fn with the state of each handoff of a workflow.
func eachOf(ctx context.Context, b *broker.Broker, workflow string, fn func(protocol.State)) error {
	return b.Heads(ctx, func(e broker.Entry) error {
		s, err := broker.StateOf(e)
		if err == nil && s.Workspace == workflow {
			fn(s)
		}
		return err
	})
}
